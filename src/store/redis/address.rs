//! Where servers are and what they ask for: URLs, certificates. It opens no connection.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{
    Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _,
    ProtocolVersion, RedisError, TlsCertificates,
};

use super::settings::{Settings, Tls};

/// A peer that says nothing for this long is gone: well above a slow answer, well below the
/// kernel's quarter of an hour.
const SILENCE: Duration = Duration::from_secs(5);

/// One server of several.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
}

impl Address {
    /// Reads `host:port`, as MOVED names it; without a host it is the one who said it.
    pub(super) fn parse(text: &str, said_by: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let host = if host.is_empty() || host == "?" { said_by } else { host };
        Some(Self { host: host.to_owned(), port: port.parse().ok()? })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// How to reach a server: address, account, certificates, socket options.
#[derive(Clone)]
pub(super) struct Access {
    info: ConnectionInfo,
}

impl Access {
    /// What `store.redis.url` says.
    pub(super) fn of_url(settings: &Settings) -> Result<Self, String> {
        Self::read("store.redis.url", &settings.url, &settings.tls)
    }

    /// What each of `store.redis.nodes` says; those without a scheme have none of their own.
    pub(super) fn of_nodes(settings: &Settings) -> Result<Vec<Self>, String> {
        let url = |node: &String| match node.contains("://") {
            true => node.clone(),
            false => format!("redis://{node}"),
        };
        let nodes = settings.nodes.iter().map(url);
        nodes.map(|node| Self::read("store.redis.nodes", &node, &settings.tls)).collect()
    }

    fn read(key: &str, url: &str, tls: &Tls) -> Result<Self, String> {
        let shown = masked(url);
        let wrong = |error: RedisError| {
            format!(
                "{key}: {shown} is not a Redis address ({error}): write redis://host:port or redis+unix:///path"
            )
        };
        let info = url.into_connection_info().map_err(wrong)?;
        let keepalive = TcpKeepalive::new().with_time(SILENCE).with_interval(SILENCE / 5);
        let tcp = TcpSettings::default()
            .set_nodelay(true)
            .set_keepalive(keepalive)
            .set_user_timeout(SILENCE);
        let mut resp = info.redis_settings().clone();
        if !url.contains("protocol=") {
            resp = resp.set_protocol(ProtocolVersion::RESP3);
        }
        let mut info = info.set_tcp_settings(tcp).set_redis_settings(resp);
        if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
            let client = Client::build_with_tls(info, certificates(tls)?);
            let shown = |error| format!("store.redis.tls: {error}");
            info = client.map_err(shown)?.get_connection_info().clone();
        }
        Ok(Self { info })
    }

    /// The same account and certificates at another server.
    pub(super) fn at(&self, address: &Address) -> Self {
        let Address { host, port } = address.clone();
        let addr = match self.info.addr() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => ConnectionAddr::TcpTls {
                host,
                port,
                insecure: *insecure,
                tls_params: tls_params.clone(),
            },
            _ => ConnectionAddr::Tcp(host, port),
        };
        Self { info: self.info.clone().set_addr(addr) }
    }

    /// Where this is; a unix socket has no such address.
    pub(super) fn address(&self) -> Option<Address> {
        match self.info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Some(Address { host: host.clone(), port: *port })
            }
            _ => None,
        }
    }

    /// RESP3 tells when a connection dies, even an idle one.
    pub(super) fn tells_its_end(&self) -> bool {
        self.info.redis_settings().protocol() == ProtocolVersion::RESP3
    }

    pub(super) fn client(&self) -> Result<Client, RedisError> {
        Client::open(self.info.clone())
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.info.addr())
    }
}

fn certificates(tls: &Tls) -> Result<TlsCertificates, String> {
    let read = |name: &str, path: &Path| {
        std::fs::read(path)
            .map_err(|error| format!("store.redis.tls.{name}: {}: {error}", path.display()))
    };
    let root_cert = tls.ca.as_deref().map(|path| read("ca", path)).transpose()?;
    let client_tls = match (&tls.cert, &tls.key) {
        (Some(cert), Some(key)) => Some(ClientTlsConfig {
            client_cert: read("cert", cert)?,
            client_key: read("key", key)?,
        }),
        _ => None,
    };
    Ok(TlsCertificates { client_tls, root_cert })
}

/// A URL without user and password.
pub(super) fn masked(url: &str) -> String {
    let start = url.find("://").map_or(0, |scheme| scheme + 3);
    match url.rfind('@') {
        Some(at) if at > start => format!("{}***{}", &url[..start], &url[at..]),
        _ => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_shown() {
        assert_eq!(masked("redis://bob:p@ss@host:1/0"), "redis://***@host:1/0");
        assert_eq!(masked("redis://host:1"), "redis://host:1");
        assert_eq!(masked(":secret@host:1"), "***@host:1");
        let settings = Settings { url: "http://me:secret@host".into(), ..Settings::default() };
        let error = Access::of_url(&settings).err().unwrap();
        assert!(error.contains("store.redis.url") && !error.contains("secret"), "{error}");
    }

    #[test]
    fn a_redirection_names_a_server() {
        let said_by = "10.0.0.9";
        let parsed = |text| Address::parse(text, said_by).map(|address| address.to_string());
        assert_eq!(parsed("10.0.0.1:6379").as_deref(), Some("10.0.0.1:6379"));
        assert_eq!(parsed(":6380").as_deref(), Some("10.0.0.9:6380"));
        assert_eq!(parsed("?:6380").as_deref(), Some("10.0.0.9:6380"));
        assert_eq!(parsed("fd00::1:6379").as_deref(), Some("[fd00::1]:6379"));
        assert_eq!(parsed("nonsense"), None);
    }
}
