//! The slots of a cluster: which one a key has, and who serves each. Pure.

use redis::Value;

use super::address::Address;

/// Into how many slots a cluster divides its keys.
pub(super) const COUNT: usize = 16_384;

/// The slot of every key with this hash tag: CRC-16/XMODEM, as the cluster specification says.
pub(super) fn of(hash_tag: &[u8]) -> usize {
    let step = |crc: u16, byte: &u8| (crc << 8) ^ TABLE[usize::from((crc >> 8) ^ u16::from(*byte))];
    usize::from(hash_tag.iter().fold(0, step)) % COUNT
}

const TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut crc = (index as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 != 0 { (crc << 1) ^ 0x1021 } else { crc << 1 };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
};

/// Some slots in a row, and their primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) first: usize,
    pub(super) last: usize,
    pub(super) primary: Address,
}

/// Reads the reply of CLUSTER SLOTS; `asked` is the host that gave it. `None`: it is no such reply.
pub(super) fn read(reply: &Value, asked: &str) -> Option<Vec<Range>> {
    let Value::Array(rows) = reply else { return None };
    let mut ranges = Vec::with_capacity(rows.len());
    for row in rows {
        let Value::Array(row) = row else { return None };
        let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = &row[..] else {
            return None;
        };
        let [host, Value::Int(port), ..] = &primary[..] else { return None };
        let host = match host {
            Value::BulkString(host) => String::from_utf8(host.clone()).ok()?,
            Value::SimpleString(host) => host.clone(),
            _ => String::new(),
        };
        // A server that does not know its own name leaves it out.
        let host = if host.is_empty() || host == "?" { asked.to_owned() } else { host };
        let (first, last) = (usize::try_from(*first).ok()?, usize::try_from(*last).ok()?);
        if first > last || last >= COUNT {
            return None;
        }
        let primary = Address { host, port: u16::try_from(*port).ok()? };
        ranges.push(Range { first, last, primary });
    }
    Some(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(of(b"123456789"), 0x31c3);
        assert_eq!(of(b"foo"), 12_182);
        assert_eq!(of(b""), 0);
    }

    #[test]
    fn a_nameless_server_is_the_one_that_was_asked() {
        let primary = Value::Array(vec![Value::BulkString(vec![]), Value::Int(7000)]);
        let row = Value::Array(vec![Value::Int(0), Value::Int(5460), primary]);
        let ranges = read(&Value::Array(vec![row]), "10.0.0.1").unwrap();
        let primary = Address { host: "10.0.0.1".into(), port: 7000 };
        assert_eq!(ranges, [Range { first: 0, last: 5460, primary }]);
        assert_eq!(read(&Value::Okay, ""), None);
    }
}
