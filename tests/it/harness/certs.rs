//! Certificates of the test's own making.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
    SanType, date_time_ymd,
};

/// Somebody who signs.
pub(crate) struct Ca(CertifiedIssuer<'static, KeyPair>);

impl Ca {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.distinguished_name.push(DnType::CommonName, name);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Writes its certificate.
    pub(crate) fn write(&self, path: &Path) -> PathBuf {
        std::fs::write(path, self.0.pem()).unwrap();
        path.to_owned()
    }

    /// Writes `<name>.crt` and `<name>.key` with these names in it: addresses, DNS names and URIs.
    pub(crate) fn issue(&self, folder: &Path, name: &str, sans: &[&str]) -> Pair {
        self.issue_until(folder, name, sans, 4000)
    }

    /// The same, valid until the end of a year.
    pub(crate) fn issue_until(&self, folder: &Path, name: &str, sans: &[&str], year: i32) -> Pair {
        let mut params = CertificateParams::default();
        params.subject_alt_names = sans
            .iter()
            .map(|&text| match text.parse() {
                Ok(address) => SanType::IpAddress(address),
                _ if text.contains("://") => SanType::URI(text.try_into().unwrap()),
                _ => SanType::DnsName(text.try_into().unwrap()),
            })
            .collect();
        params.not_after = date_time_ymd(year, 12, 31);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        let path = |kind| folder.join(format!("{name}.{kind}"));
        let pair = Pair { cert: path("crt"), key: path("key") };
        std::fs::write(&pair.cert, certificate.pem()).unwrap();
        std::fs::write(&pair.key, key.serialize_pem()).unwrap();
        pair
    }
}

/// A certificate and its key, in files.
pub(crate) struct Pair {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

/// What an authority has signed for servers and for those who ask them.
pub(crate) struct Issued {
    pub(crate) ca: PathBuf,
    pub(crate) server: Pair,
    pub(crate) client: Pair,
}

impl Issued {
    /// By an authority of this name; servers are called so.
    pub(crate) fn by(authority: &str, folder: &Path, server: &str) -> Self {
        let ca = Ca::new(authority);
        let names = ["server", "client"].map(|kind| format!("{authority}-{kind}"));
        let [server, client] = names.map(|name| ca.issue(folder, &name, &[server]));
        Self { ca: ca.write(&folder.join(format!("{authority}.pem"))), server, client }
    }

    /// What a redis-server is told: it shows its certificate, and asks for the client's.
    pub(crate) fn arguments(&self, port: u16) -> Vec<String> {
        let Pair { cert, key } = &self.server;
        let (cert, key, ca) = (cert.display(), key.display(), self.ca.display());
        let line = format!(
            "--tls-port {port} --tls-cert-file {cert} --tls-key-file {key} --tls-ca-cert-file {ca} --tls-replication yes --tls-cluster yes"
        );
        line.split(' ').map(str::to_owned).collect()
    }
}
