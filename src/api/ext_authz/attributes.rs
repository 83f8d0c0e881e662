//! What Envoy knows of a request, as values of descriptor entries. Pure; any bytes.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::address::Address;

use super::settings::{Case, Entry, Settings, Source};
use super::{address, metadata, path};
use crate::api::pb::envoy::service::auth::v3::AttributeContext;
use crate::api::pb::envoy::service::auth::v3::attribute_context::HttpRequest;
use crate::check::{self, Descriptor, Request};

/// The attributes of one request.
pub(super) struct Attributes {
    context: AttributeContext,
    http: HttpRequest,
    /// Which entry of X-Forwarded-For is the client, from the right; 0: none.
    trusted_hops: u32,
    /// Whose API key the request brings, if the gate knows it.
    pub(super) key_name: Option<Arc<str>>,
}

type Bytes<'a> = Cow<'a, [u8]>;

impl Attributes {
    /// `trusted_hops`: as in the settings.
    pub(super) fn new(mut context: AttributeContext, trusted_hops: u32) -> Self {
        let http = context.request.take().and_then(|request| request.http).unwrap_or_default();
        Self { context, http, trusted_hops, key_name: None }
    }

    /// The question that these settings make of the request. Every entry has a value: where the
    /// request has none, the default.
    pub(super) fn question(&self, settings: &Settings) -> Request {
        let entry = |entry: &Entry| check::Entry::new(entry.key.as_str(), self.entry(entry));
        let descriptor = |entries: &[Entry]| Descriptor {
            entries: entries.iter().map(entry).collect(),
            hits: 1,
            limit_override: None,
        };
        let descriptors = settings.descriptors.iter();
        Request {
            domain: settings.domain.clone().unwrap_or_default(),
            descriptors: descriptors.map(|wanted| descriptor(&wanted.entries)).collect(),
        }
    }

    /// A header by its name in lower case; several lines of it joined by a comma.
    pub(super) fn header(&self, name: &str) -> Option<Bytes<'_>> {
        if let Some(value) = self.http.headers.get(name) {
            return Some(value.into());
        }
        let lines = &self.http.header_map.as_ref()?.headers;
        let mut values = lines.iter().filter(|line| line.key.eq_ignore_ascii_case(name)).map(
            |line| match &*line.raw_value {
                [] => line.value.as_bytes(),
                raw => raw,
            },
        );
        let first = values.next()?;
        let rest: Vec<&[u8]> = values.collect();
        if rest.is_empty() {
            return Some(first.into());
        }
        Some([&[first], &*rest].concat().join(&b',').into())
    }

    /// Whether the client speaks gRPC, and so reads its answer in headers.
    pub(super) fn is_grpc(&self) -> bool {
        let content_type = self.header("content-type").unwrap_or_default();
        content_type
            .strip_prefix(b"application/grpc")
            .is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
    }

    fn entry(&self, entry: &Entry) -> Vec<u8> {
        let fits = |value: &Bytes<'_>| {
            !value.is_empty() && entry.max_bytes.is_none_or(|most| value.len() <= most)
        };
        match self.value(&entry.from, entry.case).filter(fits) {
            Some(value) => value.into_owned(),
            None => entry.default.as_bytes().to_vec(),
        }
    }

    fn value(&self, source: &Source, case: Case) -> Option<Bytes<'_>> {
        let value = match source {
            Source::Header(name) => self.header(name.as_str())?,
            Source::Method => (&self.http.method).into(),
            Source::Path => self.path(case).into(),
            Source::PathAndQuery => (&self.http.path).into(),
            Source::PathSegment(ordinal) => {
                path::segments(&self.path(case)).get(ordinal.index())?.to_vec().into()
            }
            Source::PathTemplate(templates) => {
                return Some(templates.value(&path::segments(&self.path(case)))?.to_vec().into());
            }
            Source::QueryParameter(name) => path::query_parameter(&self.http.path, name)?.into(),
            Source::Host => host(&self.http.host).into(),
            Source::RemoteAddress => self.remote_address()?.to_string().into_bytes().into(),
            Source::MaskedRemoteAddress(masks) => {
                address::masked(self.remote_address()?, *masks).into_bytes().into()
            }
            Source::Principal => (&self.context.source.as_ref()?.principal).into(),
            Source::ContextExtension(name) => self.context.context_extensions.get(name)?.into(),
            Source::Metadata(wanted) => {
                let of = |context| metadata::value(context, &wanted.filter, &wanted.path);
                let own = of(&self.context.metadata_context);
                own.or_else(|| of(&self.context.route_metadata_context))?.into()
            }
            Source::ApiKeyName => self.key_name.as_ref()?.as_bytes().into(),
            Source::Constant(text) => return Some(text.clone().into_bytes().into()),
        };
        Some(cased(value, case))
    }

    fn path(&self, case: Case) -> Vec<u8> {
        path::normalised(&cased((&self.http.path).into(), case))
    }

    /// The client's address. Where X-Forwarded-For is too short for the hops, somebody came by
    /// another way, and only the connection can be believed.
    fn remote_address(&self) -> Option<IpAddr> {
        let list = self.header("x-forwarded-for");
        let forwarded = list.and_then(|list| address::forwarded(&list, self.trusted_hops));
        forwarded.or_else(|| {
            match self.context.source.as_ref()?.address.as_ref()?.address.as_ref()? {
                Address::SocketAddress(socket) => address::parsed(&socket.address),
                Address::Pipe(_) | Address::EnvoyInternalAddress(_) => None,
            }
        })
    }
}

fn cased(value: Bytes<'_>, case: Case) -> Bytes<'_> {
    match case {
        Case::Keep => value,
        Case::Lower => value.to_ascii_lowercase().into(),
    }
}

/// In lower case, without port and trailing dot: ways to write one host are one host.
fn host(authority: &[u8]) -> Vec<u8> {
    let is_port = |port: &[u8]| port.iter().all(u8::is_ascii_digit);
    let host = match authority.iter().rposition(|&byte| byte == b':') {
        Some(colon) if is_port(&authority[colon + 1..]) => &authority[..colon],
        _ => authority,
    };
    host.strip_suffix(b".").unwrap_or(host).to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::config::core::v3 as core;
    use prost::Message as _;

    use super::*;
    use crate::api::pb::envoy::service::auth::v3::attribute_context::{Peer, Request as Wire};

    /// A request as Envoy tells it: `raw` as with `encode_raw_headers`.
    fn context(target: &[u8], lines: &[(&str, &[u8])], raw: bool) -> AttributeContext {
        let mut http = HttpRequest {
            method: b"GET".to_vec(),
            path: target.to_vec(),
            host: b"Shop.Example.com.:8443".to_vec(),
            ..HttpRequest::default()
        };
        if raw {
            let line = |(name, value): &(&str, &[u8])| core::HeaderValue {
                key: (*name).to_owned(),
                raw_value: value.to_vec(),
                ..core::HeaderValue::default()
            };
            http.header_map = Some(core::HeaderMap { headers: lines.iter().map(line).collect() });
        } else {
            let lines = lines.iter().map(|(name, value)| ((*name).to_owned(), value.to_vec()));
            http.headers = lines.collect();
        }
        let socket = core::SocketAddress { address: "10.0.0.5".into(), ..Default::default() };
        let address = core::Address { address: Some(Address::SocketAddress(socket)) };
        let principal = b"spiffe://mesh/ns/shop".to_vec();
        AttributeContext {
            source: Some(Peer { address: Some(address), principal, ..Peer::default() }),
            request: Some(Wire { http: Some(http), time: None }),
            context_extensions: [("plan".to_owned(), b"gold".to_vec())].into(),
            ..AttributeContext::default()
        }
    }

    /// The value of an entry whose default is `none`.
    fn value(context: AttributeContext, entry: &str, trusted_hops: u32) -> String {
        // Over the wire and back, as Envoy sends it.
        let context = AttributeContext::decode(&*context.encode_to_vec()).unwrap();
        let text = format!("{{ key: k, default: none, {entry} }}");
        let entry: Entry = serde_yaml::from_str(&text).unwrap();
        Attributes::new(context, trusted_hops).entry(&entry).escape_ascii().to_string()
    }

    #[test]
    fn every_attribute_has_a_value() {
        let target: &[u8] = b"/V1/%75sers/7/?key=K%201&x=y";
        let lines: [(&str, &[u8]); 3] =
            [("x-user", b"Ann"), ("x-empty", b""), ("x-odd", b"a\xff\xfeb")];
        let table = [
            ("from: { header: X-User }", "Ann"),
            ("from: { header: x-user }, case: lower", "ann"),
            ("from: { header: x-user }, max_bytes: 3", "Ann"),
            ("from: { header: x-user }, max_bytes: 2", "none"),
            ("from: { header: x-empty }", "none"),
            ("from: { header: x-missing }", "none"),
            ("from: { header: x-odd }", "a\\xff\\xfeb"),
            ("from: method", "GET"),
            ("from: path", "/V1/users/7"),
            ("from: path, case: lower", "/v1/users/7"),
            ("from: path_and_query", "/V1/%75sers/7/?key=K%201&x=y"),
            ("from: { path_segment: 3 }", "7"),
            ("from: { path_segment: 4 }", "none"),
            ("from: { path_template: { any_of: [ '/v1/users/{id}' ] } }", "none"),
            (
                "from: { path_template: { any_of: [ '/v1/users/{id}' ] } }, case: lower",
                "/v1/users/{id}",
            ),
            ("from: { path_template: { any_of: [ '/V1/users/{id}' ], capture: id } }", "7"),
            ("from: { query_parameter: key }", "K 1"),
            ("from: { query_parameter: z }", "none"),
            ("from: host", "shop.example.com"),
            ("from: remote_address", "10.0.0.5"),
            ("from: { masked_remote_address: { v4: 8 } }", "10.0.0.0/8"),
            ("from: principal", "spiffe://mesh/ns/shop"),
            ("from: { context_extension: plan }", "gold"),
            ("from: { context_extension: cost }", "none"),
            ("from: { metadata: { filter: f, path: [a] } }", "none"),
            ("from: { constant: All }, case: lower", "All"),
        ];
        for raw in [true, false] {
            for (entry, expected) in table {
                assert_eq!(value(context(target, &lines, raw), entry, 0), expected, "{entry}");
            }
        }
    }

    #[test]
    fn a_client_does_not_choose_its_address() {
        let table: [(&[u8], u32, &str); 6] = [
            (b"1.2.3.4, 203.0.113.9", 0, "10.0.0.5"),
            (b"1.2.3.4, 203.0.113.9", 1, "203.0.113.9"),
            (b"5.6.7.8, 203.0.113.9", 1, "203.0.113.9"),
            (b"1.2.3.4, 203.0.113.9, 10.0.0.5", 2, "203.0.113.9"),
            (b"203.0.113.9", 2, "10.0.0.5"),
            (b"1.2.3.4, nonsense", 1, "10.0.0.5"),
        ];
        for (forwarded, hops, expected) in table {
            let lines = [("x-forwarded-for", forwarded)];
            for raw in [true, false] {
                let found = value(context(b"/", &lines, raw), "from: remote_address", hops);
                assert_eq!(found, expected, "{} {hops}", forwarded.escape_ascii());
            }
        }
        let lines: [(&str, &[u8]); 2] =
            [("x-forwarded-for", b"1.2.3.4"), ("X-Forwarded-For", b"203.0.113.9")];
        let found = value(context(b"/", &lines, true), "from: remote_address", 1);
        assert_eq!(found, "203.0.113.9", "a second line goes on where the first ends");
    }

    #[test]
    fn a_request_that_says_nothing_is_limited_all_the_same() {
        let text = "{ domain: d, descriptors: [
            { entries: [{ key: a, from: remote_address }, { key: b, from: path, default: x }] },
            { entries: [{ key: c, from: { constant: y } }] } ] }";
        let settings: Settings = serde_yaml::from_str(text).unwrap();
        let nothing = Attributes::new(AttributeContext::default(), 1);
        assert!(!nothing.is_grpc());
        let question = nothing.question(&settings);
        let entries: Vec<_> =
            question.descriptors.iter().map(|descriptor| descriptor.entries.clone()).collect();
        let entry = |key: &str, value: &str| check::Entry::new(key, value);
        assert_eq!(entries, [vec![entry("a", ""), entry("b", "x")], vec![entry("c", "y")]]);
        assert_eq!((question.domain.as_str(), question.descriptors[0].hits), ("d", 1));
    }

    #[test]
    fn hosts() {
        let table: [(&[u8], &[u8]); 8] = [
            (b"Shop.Example.COM", b"shop.example.com"),
            (b"shop:8443", b"shop"),
            (b"shop.:80", b"shop"),
            (b"shop:", b"shop"),
            (b"[2001:DB8::1]:80", b"[2001:db8::1]"),
            (b"[2001:db8::1]", b"[2001:db8::1]"),
            (b"shop:x", b"shop:x"),
            (b"", b""),
        ];
        for (authority, expected) in table {
            assert_eq!(host(authority), expected, "{}", authority.escape_ascii());
        }
    }

    #[test]
    fn who_speaks_grpc() {
        let table: [(&[u8], bool); 5] = [
            (b"application/grpc", true),
            (b"application/grpc+proto", true),
            (b"application/grpc;x", true),
            (b"application/grpc-web", false),
            (b"application/json", false),
        ];
        for (content_type, expected) in table {
            let context = context(b"/", &[("content-type", content_type)], false);
            assert_eq!(Attributes::new(context, 0).is_grpc(), expected);
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic(target: Vec<u8>, line: Vec<u8>, hops in 0..5_u32) {
            let lines = [("x-forwarded-for", &*line)];
            value(context(&target, &lines, true), "from: remote_address", hops);
            value(context(&target, &lines, true), "from: path, case: lower", hops);
            value(context(&target, &lines, true), "from: host", hops);
        }
    }
}
