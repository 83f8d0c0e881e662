//! Settings of `ext_authz:`: which attributes of an HTTP request become which descriptors, and
//! what a refusal looks like. What is wrong is refused where it stands, with a remedy.

use serde::{Deserialize, Serialize};

use super::template::AnyTemplate;
use super::words::{HeaderName, HeaderValue, Masks, Ordinal};

/// Headers that say where a message or a connection ends. Envoy would take any value for them.
const FRAMING: [&str; 7] =
    ["connection", "content-length", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"];

/// Settings of `ext_authz:`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The rules that apply; `None`: this door is closed.
    pub domain: Option<String>,
    /// What a request becomes: decided together.
    pub descriptors: Vec<Descriptor>,
    /// Which entry of X-Forwarded-For is the client, counted from the right; 0: none, the address
    /// of the connection is.
    pub trusted_hops: u32,
    /// What Envoy hears when nobody can decide.
    pub on_error: OnError,
    /// What a refused client reads.
    pub refusal: Refusal,
    /// Headers for the service behind Envoy.
    pub upstream_headers: Vec<UpstreamHeader>,
    /// Whether answers carry what was asked and who refused it, for access logs.
    pub dynamic_metadata: bool,
}

/// Entries, outermost first.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Descriptor {
    /// At least one.
    pub entries: Vec<Entry>,
}

/// One entry, and where its value comes from.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The descriptor key.
    pub key: String,
    /// Where the value comes from.
    pub from: Source,
    /// The value where the request has none. It is limited as well.
    #[serde(default)]
    pub default: String,
    /// Whether case makes a difference.
    #[serde(default)]
    pub case: Case,
    /// A longer value counts as none.
    #[serde(default)]
    pub max_bytes: Option<usize>,
}

/// An attribute of a request.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// A header; several lines of it are joined by a comma.
    Header(HeaderName),
    /// GET, POST.
    Method,
    /// The path, normalised, without its query.
    Path,
    /// The path as the client wrote it, with its query.
    PathAndQuery,
    /// One segment of the path, from 1.
    PathSegment(Ordinal),
    /// The template that the path matches, or a part of the path that it captures.
    PathTemplate(AnyTemplate),
    /// A parameter of the query, decoded; the first of that name.
    QueryParameter(String),
    /// In lower case, without a port.
    Host,
    /// The client's address, by `trusted_hops`.
    RemoteAddress,
    /// The network of the client's address.
    MaskedRemoteAddress(Masks),
    /// Who the client's certificate says it is: a URI SAN, else a DNS SAN, else its subject.
    Principal,
    /// What Envoy's route says (`context_extensions`).
    ContextExtension(String),
    /// What another filter of Envoy found out, such as a claim of a JWT.
    Metadata(MetadataPath),
    /// The name of the client's API key (`api_keys`).
    ApiKeyName,
    /// The same for all.
    Constant(String),
}

/// Where a value stands in the metadata of a request.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct MetadataPath {
    /// The filter that wrote it, such as `envoy.filters.http.jwt_authn`.
    pub filter: String,
    /// Names, outermost first.
    pub path: Vec<String>,
}

/// Whether case makes a difference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Case {
    /// It does.
    #[default]
    Keep,
    /// It does not: ASCII letters are made small, also before a template is matched.
    Lower,
}

/// What Envoy hears when nobody can decide (`store.on_error: error`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OnError {
    /// An `error_response` of 503; with `failure_mode_allow` Envoy lets it pass all the same.
    #[default]
    ErrorResponse,
    /// A gRPC status: for an Envoy before 1.37, which would take an `error_response` for a 403.
    GrpcStatus,
}

/// What a refused client reads.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Refusal {
    /// `None`: problem details as JSON (RFC 9457). `{retry_after}` becomes the wait in seconds.
    pub body: Option<String>,
    /// What `body` is.
    pub content_type: HeaderValue,
}

impl Default for Refusal {
    fn default() -> Self {
        Self { body: None, content_type: HeaderValue::plain_text() }
    }
}

/// A header for the service behind Envoy; a client's own of that name never gets there.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct UpstreamHeader {
    /// Its name.
    pub name: HeaderName,
    /// Its value.
    pub value: UpstreamValue,
}

/// What the service behind Envoy can be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum UpstreamValue {
    /// Hits of the limit that is closest to biting.
    Limit,
    /// What is left of it.
    Remaining,
    /// Its rule.
    Rule,
    /// `store`, `l1`, `rules` or `fallback`.
    Source,
    /// `true` where a limit in shadow mode is over.
    Shadow,
}

impl Settings {
    /// Whether descriptors want the name of an API key, which only the gate can say.
    pub fn wants_key_names(&self) -> bool {
        let entries = self.descriptors.iter().flat_map(|descriptor| &descriptor.entries);
        entries.map(|entry| &entry.from).any(|source| *source == Source::ApiKeyName)
    }

    /// What types cannot say: which key is wrong, and why.
    ///
    /// # Errors
    /// The first wrong key below `ext_authz`, and a sentence with a remedy.
    pub fn check(&self) -> Result<(), (String, &'static str)> {
        let wrong = |key: &str, why| Err((format!("ext_authz.{key}"), why));
        match (&self.domain, self.descriptors.is_empty()) {
            (None, true) => {}
            (None, false) => {
                return wrong("domain", "the descriptors need one: name the domain of their rules");
            }
            (Some(domain), _) if domain.is_empty() => {
                return wrong("domain", "it is empty: name the domain of a rules file");
            }
            (Some(_), true) => {
                return wrong(
                    "descriptors",
                    "without one nothing is limited: write at least one, such as \
                     `- entries: [{ key: remote_address, from: remote_address }]`",
                );
            }
            (Some(_), false) => {}
        }
        if self.upstream_headers.iter().any(|header| FRAMING.contains(&header.name.as_str())) {
            return wrong(
                "upstream_headers",
                "a header that frames a message would break it: choose a name of your own",
            );
        }
        for (index, descriptor) in self.descriptors.iter().enumerate() {
            let place = format!("descriptors[{index}].entries");
            if descriptor.entries.is_empty() {
                return wrong(&place, "there must be at least one");
            }
            for (index, entry) in descriptor.entries.iter().enumerate() {
                let place = format!("{place}[{index}]");
                if let Some((key, why)) = entry.fault() {
                    return wrong(&format!("{place}.{key}"), why);
                }
            }
        }
        Ok(())
    }
}

impl Entry {
    fn fault(&self) -> Option<(&'static str, &'static str)> {
        if self.key.is_empty() {
            return Some(("key", "it is empty: rules name their descriptors by it"));
        }
        if self.max_bytes == Some(0) {
            return Some(("max_bytes", "no value would fit: leave it out, or make it at least 1"));
        }
        match &self.from {
            Source::PathTemplate(templates)
                if self.case == Case::Lower && templates.has_capitals() =>
            {
                Some((
                    "from.path_template",
                    "a path in lower case matches no capitals: write the templates small",
                ))
            }
            Source::Metadata(metadata) if metadata.filter.is_empty() => {
                Some(("from.metadata.filter", "it is empty: name the filter that writes it"))
            }
            Source::Metadata(metadata) if metadata.path.is_empty() => {
                Some(("from.metadata.path", "it is empty: write names such as [payload, sub]"))
            }
            Source::QueryParameter(name) if name.is_empty() => {
                Some(("from.query_parameter", "it is empty: name a parameter"))
            }
            Source::ContextExtension(name) if name.is_empty() => {
                Some(("from.context_extension", "it is empty: name a key of context_extensions"))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(from: &str) -> String {
        format!("{{ domain: d, descriptors: [{{ entries: [{{ key: k, from: {from} }}] }}] }}")
    }

    #[test]
    fn what_is_wrong_is_said_with_a_remedy() {
        let from_yaml = |text: &str| serde_yaml::from_str::<Settings>(text);
        let good = [
            "{}",
            &entry("path"),
            &entry("{ header: X-Api-Key }"),
            &entry("{ masked_remote_address: { v4: 24 } }"),
            &entry("{ path_template: { any_of: [ '/a/{b}' ], capture: b } }"),
            &entry("{ metadata: { filter: f, path: [a, b] } }"),
        ];
        for text in good {
            let settings = from_yaml(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(settings.check(), Ok(()), "{text}");
            let shown = serde_yaml::to_string(&settings).unwrap();
            assert_eq!(from_yaml(&shown).unwrap(), settings, "{shown}");
        }
        let bad = [
            (entry("{ header: 'x y' }"), "\"x y\" is not the name of a header"),
            (entry("{ header: ':path' }"), "is not the name of a header"),
            (entry("{ header: Host }"), "write `from: host`"),
            (entry("{ path_segment: 0 }"), "the first is 1"),
            (entry("{ path_template: { any_of: ['a'] } }"), "starts with /"),
            (entry("{ masked_remote_address: { v4: 33 } }"), "v4 has at most 32 bits"),
            (entry("{ masked_remote_address: { v6: 129 } }"), "v6 at most 128"),
            (entry("{ masked_remote_address: { v5: 1 } }"), "v5"),
            (entry("adress"), "adress"),
            ("{ refusal: { content_type: \"a\\r\\nx: y\" } }".into(), "write plain ASCII"),
            ("{ on_error: allow }".into(), "allow"),
        ];
        for (text, expected) in bad {
            let error = from_yaml(&text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn what_types_cannot_say_is_said_by_key() {
        let table = [
            ("{ domain: d }", "descriptors"),
            ("{ domain: '' }", "domain"),
            ("{ descriptors: [{ entries: [{ key: k, from: path }] }] }", "domain"),
            ("{ domain: d, descriptors: [{ entries: [] }] }", "descriptors[0].entries"),
            (&entry("path").replace("key: k", "key: ''"), "descriptors[0].entries[0].key"),
            (
                &entry("path").replace("key: k", "key: k, max_bytes: 0"),
                "descriptors[0].entries[0].max_bytes",
            ),
            (
                &entry("{ metadata: { filter: f, path: [] } }"),
                "descriptors[0].entries[0].from.metadata.path",
            ),
            (
                &entry("{ path_template: { any_of: ['/A/{B}'] } }")
                    .replace("key: k", "key: k, case: lower"),
                "descriptors[0].entries[0].from.path_template",
            ),
            ("{ upstream_headers: [{ name: Content-Length, value: limit }] }", "upstream_headers"),
            (&entry("{ query_parameter: '' }"), "descriptors[0].entries[0].from.query_parameter"),
        ];
        for (text, key) in table {
            let settings: Settings = serde_yaml::from_str(text).unwrap();
            assert_eq!(settings.check().unwrap_err().0, format!("ext_authz.{key}"), "{text}");
        }
    }
}
