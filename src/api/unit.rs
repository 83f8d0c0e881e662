//! The units of time on Envoy's wire. Months have 30 days and years 365, as Envoy counts them.

use std::time::Duration;

use super::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;

/// Longest first, in seconds.
const UNITS: [(Unit, u64); 7] = [
    (Unit::Year, 365 * 86_400),
    (Unit::Month, 30 * 86_400),
    (Unit::Week, 7 * 86_400),
    (Unit::Day, 86_400),
    (Unit::Hour, 3_600),
    (Unit::Minute, 60),
    (Unit::Second, 1),
];

/// The longest unit that a window is a multiple of, and how many of it. A window that is no whole
/// number of seconds has none.
pub fn of_window(window: Duration) -> (Unit, u32) {
    let whole = window.subsec_nanos() == 0;
    let fits = |(unit, seconds): &(Unit, u64)| {
        let multiplier = u32::try_from(window.as_secs() / seconds).ok()?;
        (whole && window.as_secs().is_multiple_of(*seconds)).then_some((*unit, multiplier))
    };
    UNITS.iter().find_map(fits).unwrap_or((Unit::Unknown, 0))
}

/// The seconds of a unit that came with a request: an `envoy.type.v3.RateLimitUnit`, which has
/// the same numbers but no week. `None`: unset, or not known.
pub fn of_request_s(number: i32) -> Option<u64> {
    let unit = Unit::try_from(number).ok().filter(|unit| *unit != Unit::Week)?;
    UNITS.iter().find(|(known, _)| *known == unit).map(|(_, seconds)| *seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_as_units() {
        let table = [
            (1_000, (Unit::Second, 1)),
            (90_000, (Unit::Second, 90)),
            (300_000, (Unit::Minute, 5)),
            (7 * 86_400_000, (Unit::Week, 1)),
            (30 * 86_400_000, (Unit::Month, 1)),
            (365 * 86_400_000, (Unit::Year, 1)),
            (3650 * 86_400_000, (Unit::Year, 10)),
            (250, (Unit::Unknown, 0)),
            (1_001, (Unit::Unknown, 0)),
        ];
        for (window_ms, expected) in table {
            assert_eq!(of_window(Duration::from_millis(window_ms)), expected, "{window_ms}");
        }
    }

    #[test]
    fn units_of_requests() {
        let day_s = 86_400;
        let known = [1, 60, 3_600, day_s, 30 * day_s, 365 * day_s];
        for (number, seconds) in (1..).zip(known) {
            assert_eq!(of_request_s(number), Some(seconds), "{number}");
        }
        for number in [0, 7, 8, -1, i32::MIN, i32::MAX] {
            assert_eq!(of_request_s(number), None, "{number}");
        }
    }
}
