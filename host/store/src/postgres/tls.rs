//! TLS to the database: certificates verified against the public roots and the
//! operator's own, nothing else. There is no mode that encrypts and does not
//! verify: it would keep out nobody who can stand in between.
//!
//! Not checked here: revocation.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::StoreError;

fn cannot(what: String) -> StoreError {
    StoreError::CannotOpen { what }
}

/// A connector that trusts the public roots and those given, in PEM.
///
/// # Errors
/// [`StoreError::CannotOpen`] for roots that are none.
pub(super) fn connector(roots: &[u8]) -> Result<MakeRustlsConnect, StoreError> {
    let mut trusted = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    let mut own = 0;
    for root in CertificateDer::pem_slice_iter(roots) {
        let wrong =
            |why: String| cannot(format!("the authorities for the database's TLS cannot be used: {why}"));
        let root = root.map_err(|error| wrong(format!("{error}; they are certificates in PEM")))?;
        trusted.add(root).map_err(|error| wrong(error.to_string()))?;
        own += 1;
    }
    if own == 0 && !roots.is_empty() {
        return Err(cannot("the authorities for the database's TLS hold no certificate in PEM".into()));
    }
    // Named, not the process's default: what is verified does not depend on
    // what else was linked.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| cannot(format!("TLS cannot be set up: {error}")))?
        .with_root_certificates(trusted)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

/// The URL in the driver's words: it knows one mode that asks for TLS, and this
/// connector verifies whatever is asked for.
pub(super) fn verified(url: &str) -> String {
    url.replace("sslmode=verify-full", "sslmode=require").replace("sslmode=verify-ca", "sslmode=require")
}

/// Where the URL does not say: nothing that leaves this machine goes in clear,
/// and what stays on it needs no certificate.
pub(super) fn unless_said(url: &str, config: &mut Config) {
    if url.contains("sslmode=") {
        // What may fall back to no TLS is no protection from whoever wants it to.
        if config.get_ssl_mode() == SslMode::Prefer {
            config.ssl_mode(SslMode::Require);
        }
        return;
    }
    config.ssl_mode(if is_here(config) { SslMode::Disable } else { SslMode::Require });
}

/// Whether what goes to the database stays on this machine.
pub(super) fn is_here(config: &Config) -> bool {
    let stays = |host: &Host| match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => {
            name == "localhost" || name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
        }
    };
    config.get_hosts().iter().all(stays) && config.get_hostaddrs().iter().all(|ip| ip.is_loopback())
}
