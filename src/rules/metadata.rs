//! `metadata`: any block, typed as YAML 1.1 types it, since envoyproxy/ratelimit does.

use serde_json::{Map, Number, Value as Json};

use super::fields::boolean;
use super::yaml::{How, Node, Value};

/// The JSON that a node stands for.
pub(super) fn value(node: &Node) -> Json {
    match &node.value {
        _ if node.is_null() => Json::Null,
        Value::Text { text, how: How::Plain } => scalar(text),
        Value::Text { text, .. } => Json::String(text.to_string()),
        Value::List(items) => Json::Array(items.iter().map(|item| value(item)).collect()),
        Value::Map(pairs) => {
            let pair = |(key, item): &(_, _)| -> Option<(String, Json)> {
                let (key, item): (&std::sync::Arc<Node>, &std::sync::Arc<Node>) = (key, item);
                Some((key.text()?.to_owned(), value(item)))
            };
            Json::Object(pairs.iter().filter_map(pair).collect::<Map<_, _>>())
        }
        Value::Bad => Json::Null,
    }
}

fn scalar(text: &str) -> Json {
    if let Some(flag) = boolean(text) {
        return Json::Bool(flag);
    }
    if let Ok(number) = text.parse::<i64>() {
        return Json::Number(number.into());
    }
    let is_number =
        text.starts_with(|symbol: char| symbol.is_ascii_digit() || "+-.".contains(symbol));
    let number = text.parse::<f64>().ok().filter(|_| is_number).and_then(Number::from_f64);
    number.map_or_else(|| Json::String(text.to_owned()), Json::Number)
}

#[cfg(test)]
mod tests {
    use super::super::diagnostic::Source;
    use super::super::yaml;

    #[test]
    fn metadata_is_typed() {
        let text =
            "{a: y, b: 1, c: 1.5, d: 'y', e: ~, f: [x, {g: no}], h: -3, i: .inf, j: infinity}";
        let (documents, faults) = yaml::parse(&Source::new("test", text));
        assert!(faults.is_empty());
        assert_eq!(
            super::value(&documents[0]).to_string(),
            r#"{"a":true,"b":1,"c":1.5,"d":"y","e":null,"f":["x",{"g":false}],"h":-3,"i":".inf","j":"infinity"}"#
        );
    }
}
