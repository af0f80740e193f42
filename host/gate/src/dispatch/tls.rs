//! TLS as a client: certificates verified against the bundled roots and the
//! operator's own, nothing else.
//!
//! The environment is not asked: not for roots (`SSL_CERT_FILE`), not for a key
//! log (`SSLKEYLOGFILE`). Not checked: revocation; no root program's lists are
//! bundled, and an answer that waits for an OCSP server is a send that waits.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use countersign_domain::egress::HostName;

/// Why no sender could be made.
#[derive(Debug, thiserror::Error)]
pub enum DispatcherError {
    /// One of the operator's own roots is no certificate.
    #[error("root certificate {index} of the configuration cannot be used: it is not a DER certificate")]
    Root {
        /// Counted from 1, in the order given.
        index: usize,
        /// What the TLS library says.
        #[source]
        source: rustls::Error,
    },
    /// The TLS library does not start.
    #[error("TLS cannot be set up")]
    Tls(#[source] rustls::Error),
}

/// A certificate, DER.
pub type Certificate = CertificateDer<'static>;

/// The certificates in a file of PEM, whatever else is in it.
///
/// # Errors
/// What is wrong with the text.
pub fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|error| error.to_string())
}

/// A connector for TLS 1.2 and 1.3. No ALPN: HTTP/1.1 is the one protocol a
/// request of ours can be written in byte for byte.
pub(super) fn connector(extra_roots: &[CertificateDer<'static>]) -> Result<TlsConnector, DispatcherError> {
    trusting(RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() }, extra_roots)
}

/// A connector that takes certificates of this authority and of no other: where
/// it is known who signs, whoever else does is somebody else.
pub(super) fn only(authority: &[CertificateDer<'static>]) -> Result<TlsConnector, DispatcherError> {
    trusting(RootCertStore::empty(), authority)
}

fn trusting(
    mut roots: RootCertStore,
    more: &[CertificateDer<'static>],
) -> Result<TlsConnector, DispatcherError> {
    for (at, root) in more.iter().enumerate() {
        roots.add(root.clone()).map_err(|source| DispatcherError::Root { index: at + 1, source })?;
    }
    // Named, not the process's default: what is verified does not depend on
    // what else was linked or installed first.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(DispatcherError::Tls)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// The name that the certificate must be for: the target's host, never an
/// address that it resolved to.
pub(super) fn server_name(host: &HostName) -> Option<ServerName<'static>> {
    match host.ip() {
        Some(ip) => Some(ServerName::IpAddress(ip.into())),
        None => ServerName::try_from(host.as_str().to_owned()).ok(),
    }
}
