//! What other filters of Envoy found out about a request, read as bytes: a filter may have copied
//! a header into it, and a client could otherwise make the whole request undecodable. Only read
//! when a descriptor asks for a value of it.

use std::collections::HashMap;

use prost::{Message, Oneof};

/// `envoy.config.core.v3.Metadata`.
#[derive(Clone, PartialEq, Message)]
struct Metadata {
    #[prost(map = "string, message", tag = "1")]
    filter_metadata: HashMap<String, Struct>,
}

/// `google.protobuf.Struct`.
#[derive(Clone, PartialEq, Message)]
struct Struct {
    #[prost(map = "string, message", tag = "1")]
    fields: HashMap<String, Value>,
}

/// `google.protobuf.Value`, without lists: a path leads to none of their items.
#[derive(Clone, PartialEq, Message)]
struct Value {
    #[prost(oneof = "Kind", tags = "2, 3, 4, 5")]
    kind: Option<Kind>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Kind {
    #[prost(double, tag = "2")]
    Number(f64),
    #[prost(bytes, tag = "3")]
    Text(Vec<u8>),
    #[prost(bool, tag = "4")]
    Flag(bool),
    #[prost(message, tag = "5")]
    Fields(Struct),
}

/// The text, number or flag at a path below a filter's name; `None` where there is none.
pub(super) fn value(metadata: &[u8], filter: &str, path: &[String]) -> Option<Vec<u8>> {
    let mut metadata = Metadata::decode(metadata).ok()?;
    let (last, parents) = path.split_last()?;
    let mut fields = metadata.filter_metadata.remove(filter)?.fields;
    for name in parents {
        let Some(Kind::Fields(below)) = fields.remove(name)?.kind else { return None };
        fields = below.fields;
    }
    match fields.remove(last)?.kind? {
        Kind::Text(text) => Some(text),
        Kind::Number(number) => Some(number.to_string().into_bytes()),
        Kind::Flag(flag) => Some(flag.to_string().into_bytes()),
        Kind::Fields(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::config::core::v3 as envoy;
    use envoy_types::pb::google::protobuf as wire;
    use wire::value::Kind as WireKind;

    use super::*;

    fn found(metadata: &[u8], path: &[&str]) -> Option<String> {
        let path: Vec<String> = path.iter().map(|&name| name.to_owned()).collect();
        value(metadata, "jwt", &path).map(|value| value.escape_ascii().to_string())
    }

    #[test]
    fn values_of_what_envoy_writes() {
        let fields = |fields: Vec<(&str, WireKind)>| wire::Struct {
            fields: fields
                .into_iter()
                .map(|(name, kind)| (name.to_owned(), wire::Value { kind: Some(kind) }))
                .collect(),
        };
        let payload = fields(vec![
            ("sub", WireKind::StringValue("ann".into())),
            ("level", WireKind::NumberValue(7.0)),
            ("paid", WireKind::BoolValue(true)),
            ("scopes", WireKind::ListValue(wire::ListValue::default())),
            ("nothing", WireKind::NullValue(0)),
        ]);
        let top = fields(vec![("payload", WireKind::StructValue(payload))]);
        let filter_metadata = [("jwt".to_owned(), top)].into_iter().collect();
        let bytes =
            envoy::Metadata { filter_metadata, ..envoy::Metadata::default() }.encode_to_vec();
        let table: [(&[&str], Option<&str>); 8] = [
            (&["payload", "sub"], Some("ann")),
            (&["payload", "level"], Some("7")),
            (&["payload", "paid"], Some("true")),
            (&["payload", "scopes"], None),
            (&["payload", "nothing"], None),
            (&["payload"], None),
            (&["payload", "sub", "x"], None),
            (&["other"], None),
        ];
        for (path, expected) in table {
            assert_eq!(found(&bytes, path).as_deref(), expected, "{path:?}");
        }
        assert_eq!(value(&bytes, "other", &["payload".into()]), None);
    }

    #[test]
    fn an_odd_byte_is_a_byte() {
        let kind = Some(Kind::Text(b"a\xff".to_vec()));
        let below = Struct { fields: [("k".to_owned(), Value { kind })].into_iter().collect() };
        let metadata =
            Metadata { filter_metadata: [("jwt".to_owned(), below)].into_iter().collect() };
        let bytes = metadata.encode_to_vec();
        assert_eq!(found(&bytes, &["k"]).as_deref(), Some("a\\xff"));
        assert_eq!(found(&bytes[..bytes.len() - 1], &["k"]), None);
    }
}
