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

    /// Writes `<name>.crt` and `<name>.key` with these names in it: DNS names and URIs.
    pub(crate) fn issue(&self, folder: &Path, name: &str, sans: &[&str]) -> Pair {
        self.issue_until(folder, name, sans, 4000)
    }

    /// The same, valid until the end of a year.
    pub(crate) fn issue_until(&self, folder: &Path, name: &str, sans: &[&str], year: i32) -> Pair {
        let mut params = CertificateParams::default();
        params.subject_alt_names = sans
            .iter()
            .map(|&text| match text.contains("://") {
                true => SanType::URI(text.try_into().unwrap()),
                false => SanType::DnsName(text.try_into().unwrap()),
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
