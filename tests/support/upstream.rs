//! An upstream with TLS and an authority of its own, for what a provider on loopback cannot show:
//! it notes what it was sent inside TLS, and gives the authority's certificate as PEM.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::{Arc, Mutex, PoisonError};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// An upstream for as long as the process lives.
pub struct Upstream {
    /// Where it listens, on 127.0.0.1; its certificate is for that address.
    pub port: u16,
    /// The certificate of its authority.
    pub authority: String,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Upstream {
    /// Answers every request with `200 OK` and closes.
    pub fn with_tls() -> Upstream {
        let mut params = CertificateParams::new(Vec::new()).expect("an authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let authority = params.self_signed(&key).expect("the authority's certificate").pem();
        let issuer = Issuer::new(params, key);
        let own = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("a certificate");
        let certificate = params.signed_by(&own, &issuer).expect("a signature").der().clone();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![certificate], PrivateKeyDer::try_from(own.serialize_der()).expect("a key"))
            .expect("a configuration");
        let config = Arc::new(config);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let heard: Arc<Mutex<Vec<String>>> = Arc::default();
        let notes = heard.clone();
        std::thread::spawn(move || {
            for tcp in listener.incoming().flatten() {
                let Ok(connection) = ServerConnection::new(config.clone()) else { continue };
                let mut tls = StreamOwned::new(connection, tcp);
                let mut request = Vec::new();
                let mut buffer = [0; 4096];
                while !is_whole(&request) {
                    match tls.read(&mut buffer) {
                        Ok(n @ 1..) => request.extend_from_slice(&buffer[..n]),
                        _ => break,
                    }
                }
                let text = String::from_utf8_lossy(&request).into_owned();
                notes.lock().unwrap_or_else(PoisonError::into_inner).push(text);
                let _ = tls.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
                tls.conn.send_close_notify();
                let _ = tls.flush();
            }
        });
        Upstream { port, authority, heard }
    }

    /// What came, connection by connection, as it was inside TLS.
    pub fn heard(&self) -> Vec<String> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request).to_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.trim().parse().ok());
    length.is_none_or(|length: usize| body.len() >= length)
}
