//! `--ca`, `--cert`, `--key`, `--server-name`: how a command speaks TLS to a server.

use std::path::PathBuf;

use crate::api::trust::{Trust, Trusted};

#[derive(clap::Args)]
#[group(skip)]
#[command(next_help_heading = "TLS (with a target https://HOST:PORT)")]
pub(super) struct Arguments {
    /// Who signed the server's certificate [default: the system's CAs]
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// The client's certificate, for a server that asks for one
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// Its private key
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// The name in the server's certificate [default: the target's host]
    #[arg(long, value_name = "NAME")]
    server_name: Option<String>,
}

impl Arguments {
    /// What was asked for; `None`: nothing.
    pub(super) fn trust(&self) -> Option<Trust> {
        let trust = Trust {
            server: self.ca.clone().map_or(Trusted::System, Trusted::SignedBy),
            identity: self.cert.clone().zip(self.key.clone()),
            server_name: self.server_name.clone(),
        };
        (trust != Trust::default()).then_some(trust)
    }
}
