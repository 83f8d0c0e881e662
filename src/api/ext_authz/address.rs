//! Whose address counts. X-Forwarded-For is written by everybody on the way, first of all by the
//! client: only what stands at a place counted from the right was written by a proxy that is ours.
//! Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::words::Masks;

/// The entry of X-Forwarded-For at this place, counted from the right from 1. `None`: the list is
/// shorter, or no address stands there; the connection's own address counts then.
pub(super) fn forwarded(list: &[u8], hop: u32) -> Option<IpAddr> {
    let place = usize::try_from(hop).ok()?.checked_sub(1)?;
    parsed(std::str::from_utf8(list.rsplit(|&byte| byte == b',').nth(place)?).ok()?)
}

/// An address, with or without a port. IPv4 in the clothes of IPv6 is IPv4.
pub(super) fn parsed(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let host = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?.0,
        None if text.bytes().filter(|&byte| byte == b':').count() == 1 => text.split_once(':')?.0,
        None => text,
    };
    host.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

/// The network of an address, as `10.1.0.0/16`.
pub(super) fn masked(address: IpAddr, masks: Masks) -> String {
    match address {
        IpAddr::V4(address) => {
            let bits = u32::MAX.checked_shl(32 - u32::from(masks.v4)).unwrap_or(0);
            format!("{}/{}", Ipv4Addr::from_bits(address.to_bits() & bits), masks.v4)
        }
        IpAddr::V6(address) => {
            let bits = u128::MAX.checked_shl(128 - u32::from(masks.v6)).unwrap_or(0);
            format!("{}/{}", Ipv6Addr::from_bits(address.to_bits() & bits), masks.v6)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hops_are_counted_from_the_right() {
        let table: [(&[u8], u32, Option<&str>); 14] = [
            (b"1.2.3.4, 203.0.113.9", 0, None),
            (b"1.2.3.4, 203.0.113.9", 1, Some("203.0.113.9")),
            (b"1.2.3.4, 203.0.113.9", 2, Some("1.2.3.4")),
            (b"1.2.3.4, 203.0.113.9", 3, None),
            (b"", 1, None),
            (b"203.0.113.9", 1, Some("203.0.113.9")),
            (b"x,203.0.113.9:4711", 1, Some("203.0.113.9")),
            (b"[2001:db8::1]:80", 1, Some("2001:db8::1")),
            (b"2001:DB8:0::1", 1, Some("2001:db8::1")),
            (b"::ffff:203.0.113.9", 1, Some("203.0.113.9")),
            (b"203.0.113.9,", 1, None),
            (b"unknown", 1, None),
            (b"\xff\xfe", 1, None),
            (b"[2001:db8::1", 1, None),
        ];
        for (list, hop, expected) in table {
            let found = forwarded(list, hop).map(|address| address.to_string());
            assert_eq!(found.as_deref(), expected, "{} {hop}", list.escape_ascii());
        }
    }

    #[test]
    fn networks() {
        let table = [
            ("10.1.2.3", 32, 64, "10.1.2.3/32"),
            ("10.1.2.3", 16, 64, "10.1.0.0/16"),
            ("10.1.2.3", 0, 64, "0.0.0.0/0"),
            ("2001:db8:1:2:3::4", 32, 64, "2001:db8:1:2::/64"),
            ("2001:db8:1:2:3::4", 32, 128, "2001:db8:1:2:3::4/128"),
            ("2001:db8:1:2:3::4", 32, 0, "::/0"),
        ];
        for (address, v4, v6, expected) in table {
            assert_eq!(masked(address.parse().unwrap(), Masks { v4, v6 }), expected);
        }
    }
}
