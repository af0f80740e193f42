//! A server over the network: encrypted to whom the certificate says, or not at all.

use std::process::Command;

use tokio_postgres::config::SslMode;

use super::cluster::Cluster;
use super::{PostgresOptions, PostgresStore};
use crate::StoreError;
use crate::ledger::Ledger as _;
use crate::postgres::connect;

/// A server that speaks TLS on a loopback address of its own, and the
/// authority that vouches for it.
struct Encrypted {
    cluster: Cluster,
    address: String,
    authority: Vec<u8>,
    _files: tempfile::TempDir,
}

impl Encrypted {
    fn start() -> Option<Encrypted> {
        // Nobody else listens there.
        let [.., b, c] = std::process::id().to_be_bytes();
        let address = format!("127.83.{b}.{}", c.max(1));
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let authority = params.self_signed(&key).unwrap().pem().into_bytes();
        let issuer = rcgen::Issuer::new(params, key);
        let servers = rcgen::KeyPair::generate().unwrap();
        let named = rcgen::CertificateParams::new(vec![address.clone()]).unwrap();
        let certificate = named.signed_by(&servers, &issuer).unwrap();

        let files = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = files.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let settings = [
            "ssl=on".to_owned(),
            format!("listen_addresses={address}"),
            format!("ssl_cert_file={}", file("cert", &certificate.pem())),
            format!("ssl_key_file={}", file("key", &servers.serialize_pem())),
            format!("hba_file={}", file("hba", "local all all trust\nhost all all 127.0.0.0/8 trust\n")),
        ];
        // The server takes no key that others may read. Not root: not there.
        let folder = files.path().display();
        let give = format!("chmod 600 {folder}/key; chown -R postgres {folder} 2>/dev/null || true");
        assert!(Command::new("sh").args(["-c", &give]).status().unwrap().success());
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        let cluster = Cluster::start(&settings)?;
        Some(Encrypted { cluster, address, authority, _files: files })
    }

    async fn open(&self, mode: &str, roots: &[u8]) -> Result<PostgresStore, StoreError> {
        let mut options =
            PostgresOptions::new(format!("postgres://postgres@{}/postgres?sslmode={mode}", self.address));
        options.roots = roots.to_vec();
        PostgresStore::open(options).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b15_a_database_is_spoken_to_only_if_somebody_trusted_vouches_for_it() {
    let Some(server) = Encrypted::start() else { return };
    for mode in ["prefer", "require", "verify-ca", "verify-full"] {
        let Err(StoreError::CannotOpen { what }) = server.open(mode, b"").await else {
            panic!("{mode}: a server that nobody vouches for was spoken to");
        };
        assert!(what.contains("ca_file") && what.contains("sslmode=disable"), "{mode}: {what}");
    }
    let store = server.open("verify-full", &server.authority).await.unwrap();
    store.now().await.unwrap();
    let client = server.cluster.client("postgres").await;
    let in_clear = "select count(*) from pg_stat_ssl join pg_stat_activity using (pid)
        where client_addr is not null and not ssl";
    let encrypted = "select count(*) from pg_stat_ssl where ssl and version >= 'TLSv1.2'";
    assert_eq!(client.query_one(in_clear, &[]).await.unwrap().get::<_, i64>(0), 0);
    // The one that listens for changes, and the one that was asked for the time.
    assert!(client.query_one(encrypted, &[]).await.unwrap().get::<_, i64>(0) >= 2);
    store.close();
}

#[test]
fn what_leaves_this_machine_is_encrypted_unless_the_url_says_otherwise() {
    for (url, mode) in [
        ("postgres://u@db.example.com/d", SslMode::Require),
        ("postgres://u@192.0.2.1,127.0.0.1/d", SslMode::Require),
        ("postgres://u@db.example.com/d?sslmode=prefer", SslMode::Require),
        ("postgres://u@db.example.com/d?sslmode=disable", SslMode::Disable),
        ("postgres://u@localhost/d", SslMode::Disable),
        ("postgres://u@127.0.0.1/d", SslMode::Disable),
        ("host=/run/postgresql user=u dbname=d", SslMode::Disable),
        ("host=/run/postgresql user=u dbname=d sslmode=verify-full", SslMode::Require),
    ] {
        assert_eq!(connect::config(url).unwrap().get_ssl_mode(), mode, "{url}");
    }
}

#[tokio::test]
async fn authorities_that_are_none_are_an_error_at_start() {
    for roots in ["no certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
        let mut options = PostgresOptions::new("postgres://u@127.0.0.1:1/d");
        options.roots = roots.into();
        let refused = PostgresStore::open(options).await.unwrap_err().to_string();
        assert!(refused.contains("authorities"), "{refused}");
    }
}
