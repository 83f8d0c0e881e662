//! Durations as people write them in settings and rules: `250ms`, `90s`, `1h30m`, `7d`.

use std::time::Duration;

use serde::{Deserialize as _, Deserializer, Serializer};

/// The longest there is: sums with instants stay far from their range.
const MAX: Duration = Duration::from_secs(3650 * 24 * 60 * 60);

/// Reads `250ms`, `90s`, `1h30m`, `7d`.
///
/// # Errors
/// A sentence that names what is wrong.
pub fn parse(text: &str) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text.trim()).map_err(|error| {
        format!("\"{text}\" is not a duration ({error}): write a number and a unit, such as 250ms, 90s or 1h30m")
    })?;
    if duration > MAX {
        return Err(format!("\"{text}\" is more than 3650 days"));
    }
    Ok(duration)
}

/// The shortest text that [`parse`] reads back.
pub fn text(duration: Duration) -> String {
    humantime::format_duration(duration).to_string().replace(' ', "")
}

/// For `#[serde(with = "crate::duration")]`.
///
/// # Errors
/// As the format has them, and those of [`parse`].
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    parse(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
}

/// For `#[serde(with = "crate::duration")]`.
///
/// # Errors
/// As the format has them.
pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&text(*duration))
}
