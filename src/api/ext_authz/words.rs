//! Words of the settings that are checked where they stand. Pure.

use serde::{Deserialize, Serialize};

/// How many leading bits of an address tell clients apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "RawMasks")]
pub struct Masks {
    /// Of IPv4, at most 32.
    pub v4: u8,
    /// Of IPv6, at most 128; a household has a network of 64 bits or less to itself.
    pub v6: u8,
}

impl Default for Masks {
    fn default() -> Self {
        Self { v4: 32, v6: 64 }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawMasks {
    #[serde(default = "RawMasks::v4")]
    v4: u8,
    #[serde(default = "RawMasks::v6")]
    v6: u8,
}

impl RawMasks {
    fn v4() -> u8 {
        Masks::default().v4
    }

    fn v6() -> u8 {
        Masks::default().v6
    }
}

impl TryFrom<RawMasks> for Masks {
    type Error = String;

    fn try_from(RawMasks { v4, v6 }: RawMasks) -> Result<Self, String> {
        if v4 > 32 || v6 > 128 {
            return Err(format!(
                "masked_remote_address: {{ v4: {v4}, v6: {v6} }} is too long: v4 has at most 32 bits, v6 at most 128"
            ));
        }
        Ok(Self { v4, v6 })
    }
}

/// The name of a header, in lower case.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct HeaderName(String);

impl HeaderName {
    /// `x-api-key`.
    pub fn x_api_key() -> Self {
        Self("x-api-key".into())
    }

    /// As it goes over the wire.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for HeaderName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match http::HeaderName::try_from(&text) {
            Ok(name) if name != http::header::HOST => Ok(Self(name.as_str().to_owned())),
            Ok(_) => Err("header: host is an attribute of its own: write `from: host`".into()),
            Err(_) => Err(format!(
                "header: \"{text}\" is not the name of a header: write one such as x-api-key"
            )),
        }
    }
}

impl From<HeaderName> for String {
    fn from(name: HeaderName) -> Self {
        name.0
    }
}

/// The value of a header.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct HeaderValue(String);

impl HeaderValue {
    /// `text/plain`.
    pub fn plain_text() -> Self {
        Self("text/plain".into())
    }

    /// As it goes over the wire.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for HeaderValue {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        // Envoy checks nothing: a line break would be a header of its own.
        if text.is_empty() || !text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
            return Err(format!("{text:?} cannot be the value of a header: write plain ASCII"));
        }
        Ok(Self(text))
    }
}

impl From<HeaderValue> for String {
    fn from(value: HeaderValue) -> Self {
        value.0
    }
}

/// A place in a sequence, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "usize", into = "usize")]
pub struct Ordinal(usize);

impl Ordinal {
    /// Elements before it.
    pub fn index(self) -> usize {
        self.0 - 1
    }
}

impl TryFrom<usize> for Ordinal {
    type Error = String;

    fn try_from(number: usize) -> Result<Self, String> {
        match number {
            0 => Err("path_segment: 0 is none: the first is 1".into()),
            number => Ok(Self(number)),
        }
    }
}

impl From<Ordinal> for usize {
    fn from(ordinal: Ordinal) -> Self {
        ordinal.0
    }
}
