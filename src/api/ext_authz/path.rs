//! Paths and queries as clients write them, made equal where they mean the same: else a client
//! would have a new counter for each way to write one path. Pure; any bytes.

/// The path before its query and fragment, normalised: unreserved characters decoded, other
/// escapes in upper case, `.` and `..` resolved, empty segments left out (RFC 3986 §6.2.2).
pub(super) fn normalised(target: &[u8]) -> Vec<u8> {
    let end = target.iter().position(|byte| matches!(byte, b'?' | b'#'));
    let path = unreserved_decoded(&target[..end.unwrap_or(target.len())]);
    if !path.starts_with(b"/") {
        return path;
    }
    let mut segments: Vec<&[u8]> = Vec::new();
    for segment in path.split(|&byte| byte == b'/') {
        match segment {
            b"" | b"." => {}
            b".." => {
                segments.pop();
            }
            segment => segments.push(segment),
        }
    }
    if segments.is_empty() {
        return b"/".to_vec();
    }
    segments.iter().flat_map(|segment| [b"/", *segment]).collect::<Vec<_>>().concat()
}

/// The segments of a normalised path; the root has none.
pub(super) fn segments(normalised: &[u8]) -> Vec<&[u8]> {
    normalised.split(|&byte| byte == b'/').filter(|segment| !segment.is_empty()).collect()
}

/// The first parameter of this name in the query of a target; name and value decoded.
pub(super) fn query_parameter(target: &[u8], name: &str) -> Option<Vec<u8>> {
    let start = target.iter().position(|&byte| byte == b'?')? + 1;
    let query = target[start..].split(|&byte| byte == b'#').next()?;
    query.split(|&byte| byte == b'&').find_map(|pair| {
        let (known, value) = match pair.iter().position(|&byte| byte == b'=') {
            Some(equals) => (&pair[..equals], &pair[equals + 1..]),
            None => (pair, &pair[pair.len()..]),
        };
        (form_decoded(known) == name.as_bytes()).then(|| form_decoded(value))
    })
}

fn unreserved_decoded(path: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        match escaped(byte, after) {
            Some(meant) if meant.is_ascii_alphanumeric() || b"-._~".contains(&meant) => {
                decoded.push(meant);
                rest = &after[2..];
            }
            Some(_) => {
                decoded.push(b'%');
                decoded.extend(after[..2].iter().map(u8::to_ascii_uppercase));
                rest = &after[2..];
            }
            // A lone one means itself; without an escape it would mean more after the next reading.
            None if byte == b'%' => decoded.extend(b"%25"),
            None => decoded.push(byte),
        }
    }
    decoded
}

fn form_decoded(text: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        match escaped(byte, after) {
            Some(meant) => {
                decoded.push(meant);
                rest = &after[2..];
            }
            None if byte == b'+' => decoded.push(b' '),
            None => decoded.push(byte),
        }
    }
    decoded
}

/// What `%` and two hex digits stand for.
fn escaped(byte: u8, after: &[u8]) -> Option<u8> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let (high, low) = (digit(after.first()?)?, digit(after.get(1)?)?);
    (byte == b'%').then_some(u8::try_from(high * 16 + low).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_to_write_one_path() {
        let table: [(&[u8], &[u8]); 17] = [
            (b"/login", b"/login"),
            (b"/login?x=1", b"/login"),
            (b"/login#x?y", b"/login"),
            (b"/login/", b"/login"),
            (b"//login//", b"/login"),
            (b"/%6Cogin", b"/login"),
            (b"/./a/../login", b"/login"),
            (b"/a/%2e%2E/login", b"/login"),
            (b"/../../login", b"/login"),
            (b"/Login", b"/Login"),
            (b"/a%2fb", b"/a%2Fb"),
            (b"/a%zz%4%%36C", b"/a%25zz%254%256C"),
            (b"/\xff%ff", b"/\xff%FF"),
            (b"/", b"/"),
            (b"/..", b"/"),
            (b"*", b"*"),
            (b"", b""),
        ];
        for (written, expected) in table {
            assert_eq!(normalised(written), expected, "{}", written.escape_ascii());
        }
    }

    #[test]
    fn query_parameters() {
        let table: [(&[u8], Option<&[u8]>); 9] = [
            (b"/", None),
            (b"/?", None),
            (b"/?key=a&key=b", Some(b"a")),
            (b"/?x=key&key=a%20b+c", Some(b"a b c")),
            (b"/?k%65y=a", Some(b"a")),
            (b"/?key", Some(b"")),
            (b"/?key=a=b", Some(b"a=b")),
            (b"/?key=%ff%4", Some(b"\xff%4")),
            (b"/?x#?key=a", None),
        ];
        for (target, expected) in table {
            let found = query_parameter(target, "key");
            assert_eq!(found.as_deref(), expected, "{}", target.escape_ascii());
        }
    }

    proptest::proptest! {
        #[test]
        fn a_normalised_path_is_normal(target: Vec<u8>) {
            let once = normalised(&target);
            proptest::prop_assert_eq!(&normalised(&once), &once);
            let _ = query_parameter(&target, "key");
        }
    }
}
