//! TLS: no byte of HTTP towards a server that is not proven to be the target.

use std::sync::Arc;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CidrSubnet, GeneralSubtree, IsCa, Issuer, KeyPair, NameConstraints,
};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::AsyncWriteExt as _;
use tokio_rustls::TlsAcceptor;

use super::rig::*;
use crate::dispatch::{Dispatcher, DispatcherConfig, Outgoing};

struct Root {
    issuer: Issuer<'static, KeyPair>,
    der: CertificateDer<'static>,
}

impl Root {
    fn new(constraints: Option<NameConstraints>) -> Root {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.name_constraints = constraints;
        let key = KeyPair::generate().unwrap();
        let der = params.self_signed(&key).unwrap().der().clone();
        Root { issuer: Issuer::new(params, key), der }
    }

    fn issue(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> TlsAcceptor {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        acceptor(certificate.der().clone(), key, &[&rustls::version::TLS13, &rustls::version::TLS12])
    }
}

fn acceptor(
    certificate: CertificateDer<'static>,
    key: KeyPair,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> TlsAcceptor {
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}

/// A TLS server; what it notes is what it read *inside* TLS.
async fn serving(acceptor: TlsAcceptor, answer: &'static [u8], orderly: bool) -> Upstream {
    Upstream::start(move |peer| {
        let acceptor = acceptor.clone();
        async move {
            let (tcp, peer) = peer.take();
            let Ok(tls) = acceptor.accept(tcp).await else { return };
            let mut peer = peer.over(tls);
            while peer.read_request().await.is_some() {
                peer.io.write_all(answer).await.ok();
                peer.io.flush().await.ok();
                if !orderly {
                    return;
                }
                if find(answer, b"close").is_some() {
                    peer.io.shutdown().await.ok();
                }
            }
        }
    })
    .await
}

fn trusting(root: &Root, config: DispatcherConfig) -> Dispatcher {
    let names = Names::at("a.example", "127.0.0.1");
    sender(DispatcherConfig { extra_roots: vec![root.der.clone()], ..config }, names)
}

fn to(host: &str, upstream: &Upstream) -> Outgoing {
    let port = upstream.port();
    let grant = format!(
        "[limits]\nsend = \"5s\"\n[[http]]\nhost = \"{host}\"\nport = {port}\nmethods = [\"POST\"]\npath = \"/**\"\n\
         allow_private = true\n{IDEMPOTENT}"
    );
    outgoing(&grant, "POST", &format!("https://{host}:{port}/v1"), &[], b"{}")
}

#[tokio::test]
async fn a_certificate_from_the_operators_own_root_is_accepted_for_its_name() {
    proven_sends().await;
}

/// Three sends to a server that proves itself.
pub(super) async fn proven_sends() {
    let root = Root::new(None);
    let upstream = serving(root.issue("a.example", |_| {}), OK, true).await;
    let sender = trusting(&root, config());
    for _ in 0..3 {
        assert_eq!(answer(send(&sender, to("a.example", &upstream)).await).body, b"ok");
    }
    let expected = format!("POST /v1 HTTP/1.1\r\nHost: a.example:{}\r\n", upstream.port());
    assert!(upstream.seen.text(0).starts_with(&expected), "{}", upstream.seen.text(0));
    assert_eq!(upstream.seen.connections(), 1, "used again");
}

#[tokio::test]
async fn b15_a_certificate_that_proves_nothing_gets_no_byte_of_http() {
    let root = Root::new(None);
    let expired = |params: &mut CertificateParams| params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    let future = |params: &mut CertificateParams| params.not_before = rcgen::date_time_ymd(2999, 1, 1);
    let key = KeyPair::generate().unwrap();
    let own = CertificateParams::new(vec!["a.example".to_owned()]).unwrap().self_signed(&key).unwrap();
    let narrow = Root::new(Some(NameConstraints {
        permitted_subtrees: vec![GeneralSubtree::DnsName("b.example".to_owned())],
        excluded_subtrees: Vec::new(),
    }));
    let excluding = Root::new(Some(NameConstraints {
        permitted_subtrees: Vec::new(),
        excluded_subtrees: vec![GeneralSubtree::IpAddress(CidrSubnet::V4([127, 0, 0, 0], [255, 0, 0, 0]))],
    }));
    let cases: Vec<(&str, &str, &Root, TlsAcceptor)> = vec![
        ("wrong name", "a.example", &root, root.issue("b.example", |_| {})),
        ("a parent's wildcard", "a.example", &root, root.issue("*.a.example", |_| {})),
        ("another root", "a.example", &root, Root::new(None).issue("a.example", |_| {})),
        ("expired", "a.example", &root, root.issue("a.example", expired)),
        ("not yet valid", "a.example", &root, root.issue("a.example", future)),
        ("self-signed", "a.example", &root, acceptor(own.der().clone(), key, rustls::ALL_VERSIONS)),
        ("outside the root's names", "a.example", &narrow, narrow.issue("a.example", |_| {})),
        ("address outside the root's names", "127.0.0.1", &excluding, excluding.issue("127.0.0.1", |_| {})),
        ("wrong address", "127.0.0.1", &root, root.issue("127.0.0.2", |_| {})),
        ("a name for an address", "127.0.0.1", &root, root.issue("a.example", |_| {})),
    ];
    for (what, host, trusted, acceptor) in cases {
        let upstream = serving(acceptor, OK, true).await;
        let sent = send(&trusting(trusted, config()), to(host, &upstream)).await;
        assert_eq!(
            (fate(&sent), why(&sent)),
            ("not sent", "the server's certificate was not accepted"),
            "{what}"
        );
        upstream.ended(1).await;
        assert_eq!((upstream.seen.connections(), upstream.seen.all_bytes()), (1, 0), "{what}");
    }
    let upstream = serving(root.issue("127.0.0.1", |_| {}), OK, true).await;
    assert_eq!(fate(&send(&trusting(&root, config()), to("127.0.0.1", &upstream)).await), "answered");
}

#[tokio::test]
async fn b15_a_route_that_names_an_authority_takes_that_one_and_no_other() {
    let (internal, everybodys) = (Root::new(None), Root::new(None));
    let config = DispatcherConfig {
        extra_roots: vec![everybodys.der.clone()],
        authorities: [("internal".to_owned(), vec![internal.der.clone()])].into(),
        ..config()
    };
    let sender = sender(config, Names::at("a.example", "127.0.0.1"));
    let named = |upstream: &Upstream, ca: &str| {
        let port = upstream.port();
        let grant = format!(
            "[[http]]\nhost = \"a.example\"\nport = {port}\nmethods = [\"POST\"]\npath = \"/**\"\n\
             allow_private = true\n{ca}\n{IDEMPOTENT}"
        );
        outgoing(&grant, "POST", &format!("https://a.example:{port}/v1"), &[], b"{}")
    };
    let (ours, theirs) = ("ca = \"internal\"", "");
    let proven = serving(internal.issue("a.example", |_| {}), OK, true).await;
    let public = serving(everybodys.issue("a.example", |_| {}), OK, true).await;
    for (upstream, ca, expected) in [
        (&proven, ours, "answered"),
        (&proven, theirs, "not sent"),
        (&public, theirs, "answered"),
        (&public, ours, "not sent"),
        // Neither proof is worth anything to the other kind of route afterwards.
        (&proven, theirs, "not sent"),
        (&public, ours, "not sent"),
    ] {
        assert_eq!(fate(&send(&sender, named(upstream, ca)).await), expected, "{ca:?}");
    }
    let before = proven.seen.connections();
    assert_eq!(fate(&send(&sender, named(&proven, "ca = \"unknown\"")).await), "refused");
    assert_eq!(proven.seen.connections(), before);
}

#[tokio::test]
async fn c02_no_way_to_fail_before_the_first_byte_tells_what_was_to_be_sent() {
    let root = Root::new(None);
    let wrong = serving(root.issue("b.example", |_| {}), OK, true).await;
    let reset = Upstream::start(|peer| async move { peer.reset() }).await;
    let ask = |host: &str, port: u16| {
        let grant = format!(
            "[[http]]\nhost = \"{host}\"\nport = {port}\nmethods = [\"POST\"]\npath = \"/**\"\n\
             allow_private = true\n{IDEMPOTENT}"
        );
        outgoing(
            &grant,
            "POST",
            &format!("https://{host}:{port}/?token=sk_query_canary"),
            &[],
            b"sk_body_canary",
        )
    };
    for (what, request) in [
        ("bad TLS", ask("a.example", wrong.port())),
        ("bad DNS", ask("nowhere.example", wrong.port())),
        ("reset", ask("a.example", reset.port())),
        ("refused", ask("a.example", 1)),
    ] {
        let sent = send(&trusting(&root, config()), request).await;
        assert_eq!(fate(&sent), "not sent", "{what}");
        let told = format!("{sent:?}");
        for canary in ["sk_", "token", SECRET, "b.example"] {
            assert!(!told.contains(canary), "{what}: {told}");
        }
    }
}

#[tokio::test]
async fn b15_what_does_not_speak_tls_gets_no_byte_of_http() {
    let root = Root::new(None);
    for reply in [
        &b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"[..],
        // Fatal alert `protocol_version`: what a TLS 1.1 server answers.
        b"\x15\x03\x02\x00\x02\x02\x46",
        // A ServerHello that chooses TLS 1.1.
        b"\x16\x03\x02\x00\x2a\x02\x00\x00\x26\x03\x02AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\x00\xc0\x13\x00",
        b"",
    ] {
        let upstream = Upstream::start(move |mut peer| async move {
            peer.read(4096).await.ok();
            peer.io.write_all(reply).await.ok();
            peer.io.shutdown().await.ok();
            peer.read_to_end().await;
        })
        .await;
        let sent = send(&trusting(&root, config()), to("a.example", &upstream)).await;
        assert_eq!((fate(&sent), why(&sent)), ("not sent", "the TLS handshake failed"), "{reply:?}");
        upstream.ended(1).await;
        assert!(find(&upstream.seen.bytes(0), b"HTTP").is_none());
        assert!(find(&upstream.seen.bytes(0), SECRET.as_bytes()).is_none());
    }
}

#[tokio::test]
async fn b14_a_handshake_that_never_ends_is_not_sent() {
    let root = Root::new(None);
    let upstream = Upstream::start(|mut peer| async move { peer.read_to_end().await }).await;
    let quick = DispatcherConfig { connect: Duration::from_millis(200), ..config() };
    let started = std::time::Instant::now();
    let sent = send(&trusting(&root, quick), to("a.example", &upstream)).await;
    assert!(started.elapsed() < Duration::from_secs(4), "by the limit for connecting, not by the send's");
    assert_eq!((fate(&sent), why(&sent)), ("not sent", "the TLS handshake did not end in time"));
    upstream.ended(1).await;
}

#[tokio::test]
async fn p1_a_withdrawn_send_over_tls_says_nothing_after_the_handshake() {
    let root = Root::new(None);
    let upstream = serving(root.issue("a.example", |_| {}), OK, true).await;
    let sent = trusting(&root, config()).send(to("a.example", &upstream), || async { false }).await;
    assert_eq!(fate(&sent), "not sent");
    upstream.ended(1).await;
    assert_eq!(upstream.seen.all_bytes(), 0);
}

#[tokio::test]
async fn p2_an_answer_that_tls_does_not_end_is_lost() {
    let root = Root::new(None);
    let open_ended = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello";
    for (orderly, expected) in [(true, "answered"), (false, "lost")] {
        let upstream = serving(root.issue("a.example", |_| {}), open_ended, orderly).await;
        let sent = send(&trusting(&root, config()), to("a.example", &upstream)).await;
        assert_eq!(fate(&sent), expected, "ended by TLS: {orderly}: {sent:?}");
    }
}

#[test]
fn a_root_that_is_no_certificate_is_named() {
    let config = DispatcherConfig { extra_roots: vec![CertificateDer::from(vec![1, 2, 3])], ..config() };
    let made =
        Dispatcher::new(config, Arc::new(Names::default()), Arc::new(crate::dispatch::Secrets::default()));
    let Err(error) = made else { panic!() };
    assert!(error.to_string().starts_with("root certificate 1 of the configuration"), "{error}");
}
