//! Names and addresses: what must not be reached is not connected to.

use std::net::IpAddr;

use countersign_domain::effect::Refusal;
use countersign_domain::egress::{Method, Target};
use countersign_domain::grant::Grant;

use super::rig::*;
use crate::dispatch::{Dispatched, DispatcherConfig, Outgoing};

/// To a name, over plain HTTP to loopback's upstream; what the name resolves
/// to, the test says.
fn to(host: &str, upstream: &Upstream, allow_private: bool) -> Outgoing {
    let (scheme, port) = (if allow_private { "http" } else { "https" }, upstream.port());
    let grant = format!(
        "[limits]\nsend = \"5s\"\n[[http]]\nhost = \"{host}\"\nport = {port}\nscheme = \"{scheme}\"\nmethods = [\"POST\"]\n\
         path = \"/**\"\nallow_private = {allow_private}\n"
    );
    outgoing(&grant, "POST", &format!("{scheme}://{host}:{port}/"), &[], b"x")
}

fn is_prohibited(sent: &Dispatched) -> bool {
    matches!(sent, Dispatched::Refused(Refusal::AddressProhibited(_)))
}

const SPECIAL: &[&str] = &[
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "100.64.0.1",
    "127.0.0.1",
    "169.254.169.254",
    "172.16.0.1",
    "192.0.0.192",
    "192.168.1.1",
    "198.18.0.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "168.63.129.16",
    "::",
    "::1",
    "::ffff:127.0.0.1",
    "::127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b:1::7f00:1",
    "2002:7f00:1::",
    "2001::80ff:fffe",
    "fe80::1",
    "fec0::1",
    "fc00::1",
    "fd00:ec2::254",
    "100::1",
    "2001:db8::1",
    "ff02::1",
];

#[tokio::test]
async fn b01_b02_an_address_that_is_not_public_is_refused_alone_and_among_good_ones() {
    let upstream = Upstream::answering(OK).await;
    let good: IpAddr = "93.184.216.34".parse().unwrap();
    for special in SPECIAL {
        let special: IpAddr = special.parse().unwrap();
        for answers in [vec![special], vec![good, special], vec![special, good]] {
            let sender = sender(config(), Names::of("a.example", vec![answers]));
            let sent = send(&sender, to("a.example", &upstream, false)).await;
            assert!(is_prohibited(&sent), "{special}: {sent:?}");
        }
        // Written as an address, it is judged the same.
        let host = if special.is_ipv6() { format!("[{special}]") } else { special.to_string() };
        assert!(is_prohibited(&send(&plain_sender(), to(&host, &upstream, false)).await), "{host}");
    }
    assert_eq!(upstream.seen.connections(), 0);
}

#[tokio::test]
async fn b01_a_name_is_resolved_once_and_what_was_judged_is_connected_to() {
    let upstream = Upstream::answering(OK).await;
    let loopback: IpAddr = "127.0.0.1".parse().unwrap();
    // A rebinding server: what it says the second time is never asked for.
    for round in 0..1000 {
        let names = std::sync::Arc::new(Names::of(
            "a.example",
            vec![vec!["169.254.169.254".parse().unwrap()], vec![loopback], vec![loopback]],
        ));
        let sender = crate::dispatch::Dispatcher::new(
            config(),
            names.clone(),
            std::sync::Arc::new(crate::dispatch::Secrets::default()),
        )
        .unwrap();
        assert!(is_prohibited(&send(&sender, to("a.example", &upstream, true)).await), "round {round}");
        assert_eq!(*names.asked.lock().unwrap(), 1);
    }
    assert_eq!(upstream.seen.connections(), 0);
}

#[tokio::test]
async fn b01_a_name_that_alternates_reaches_nobody_inside_in_a_thousand_calls() {
    // Somebody listens where a rebinding server points at.
    let inside = Upstream::answering(OK).await;
    let (good, loopback): (IpAddr, IpAddr) = ("93.184.216.34".parse().unwrap(), "127.0.0.1".parse().unwrap());
    let answers = (0..1000).map(|n| vec![if n % 2 == 0 { good } else { loopback }]).collect();
    // Whether the good address answers is not what this is about.
    let config = DispatcherConfig { connect: std::time::Duration::from_millis(2), ..config() };
    let sender = sender(config, Names::of("a.example", answers));
    for round in 0..1000 {
        let sent = send(&sender, to("a.example", &inside, false)).await;
        match round % 2 {
            0 => assert_eq!(fate(&sent), "not sent", "round {round}"),
            _ => assert!(is_prohibited(&sent), "round {round}: {sent:?}"),
        }
    }
    assert_eq!(inside.seen.connections(), 0);
}

#[test]
fn b05_a_star_is_one_label_and_a_grant_for_everybodys_hosts_is_not_read() {
    let grant = |host: &str| {
        let text = format!("[[http]]\nhost = \"{host}\"\nmethods = [\"POST\"]\npath = \"/**\"\n");
        text.parse::<Grant>()
    };
    for wide in ["*", "*.com", "*.co.uk", "*.github.io", "*example.com", "a.*.com", "xn--example-.org"] {
        assert!(grant(wide).is_err(), "{wide} was read");
    }
    let granted = grant("*.example.com").unwrap();
    let allows = |host: &str| {
        let target = Target::parse("https", host, "/").unwrap();
        granted.route(Method::Post, &target).is_ok()
    };
    assert!(allows("a.example.com") && allows("A.Example.COM."));
    for other in ["evilexample.com", "example.com.evil.net", "example.com", "a.b.example.com"] {
        assert!(!allows(other), "{other}");
    }
}

#[test]
fn b06_no_scheme_port_or_method_but_the_granted_ones_has_a_route() {
    let text = "[[http]]\nhost = \"a.example\"\nmethods = [\"POST\"]\npath = \"/**\"\n";
    let granted: Grant = text.parse().unwrap();
    for scheme in ["http", "ftp", "file", "", "HTTPS:"] {
        let target = Target::parse(scheme, "a.example", "/");
        assert!(target.is_err() || granted.route(Method::Post, &target.unwrap()).is_err(), "{scheme}");
    }
    for authority in ["", "a.example:22", "a.example:25", "a.example:6379", "a.example:80"] {
        let target = Target::parse("https", authority, "/");
        assert!(target.is_err() || granted.route(Method::Post, &target.unwrap()).is_err(), "{authority}");
    }
    for method in ["CONNECT", "TRACE", "SEARCH", "OPTIONS", "post", ""] {
        assert!(method.parse::<Method>().is_err(), "{method}");
    }
    let target = Target::parse("https", "a.example", "/").unwrap();
    for method in Method::ALL {
        assert_eq!(granted.route(*method, &target).is_ok(), *method == Method::Post, "{method}");
    }
    for scheme in ["http", "ftp", "file"] {
        let refused = format!("{text}scheme = \"{scheme}\"\n").parse::<Grant>();
        assert!(refused.is_err(), "{scheme} was granted");
    }
}

#[tokio::test]
async fn b02_allow_private_opens_loopback_and_private_addresses_and_nothing_else() {
    let upstream = Upstream::answering(OK).await;
    for special in SPECIAL {
        let opened =
            ["10.0.0.1", "127.0.0.1", "172.16.0.1", "192.168.1.1", "::1", "fc00::1"].contains(special);
        if opened {
            continue;
        }
        let sender = sender(config(), Names::at("a.example", special));
        assert!(is_prohibited(&send(&sender, to("a.example", &upstream, true)).await), "{special}");
    }
    let reached = sender(config(), Names::at("a.example", "127.0.0.1"));
    assert_eq!(fate(&send(&reached, to("a.example", &upstream, true)).await), "answered");
    assert_eq!(upstream.seen.connections(), 1);
}

#[tokio::test]
async fn b02_nothing_goes_to_a_public_address_in_the_clear() {
    let upstream = Upstream::answering(OK).await;
    for answers in [vec!["93.184.216.34"], vec!["127.0.0.1", "93.184.216.34"]] {
        let answers = answers.into_iter().map(|ip| ip.parse().unwrap()).collect();
        let sender = sender(config(), Names::of("a.example", vec![answers]));
        assert!(is_prohibited(&send(&sender, to("a.example", &upstream, true)).await));
    }
    assert_eq!(upstream.seen.connections(), 0);
}

#[tokio::test]
async fn a_name_without_addresses_is_not_sent_to() {
    let upstream = Upstream::answering(OK).await;
    let sent =
        send(&sender(config(), Names::of("a.example", vec![vec![]])), to("a.example", &upstream, true)).await;
    assert_eq!(fate(&sent), "not sent");
}

/// The send of the test below, in a process with another environment.
#[tokio::test]
async fn b16_a_send_goes_direct() {
    let upstream = Upstream::answering(OK).await;
    let names = Names::at("a.example", "127.0.0.1");
    assert_eq!(fate(&send(&sender(config(), names), to("a.example", &upstream, true)).await), "answered");
    super::tls::proven_sends().await;
}

#[tokio::test]
async fn b16_the_environment_names_no_proxy_no_roots_and_no_key_log() {
    let proxy = Upstream::start(|mut peer| async move { peer.read_to_end().await }).await;
    let folder = tempfile::tempdir().unwrap();
    let key_log = folder.path().join("keys.log");
    let mut child = tokio::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "dispatch::tests::addresses::b16_a_send_goes_direct"]);
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"] {
        child.env(name, format!("http://{}", proxy.address));
    }
    child.env("NO_PROXY", "").env("SSLKEYLOGFILE", &key_log);
    child.env("SSL_CERT_FILE", folder.path().join("none.pem")).env("SSL_CERT_DIR", folder.path());
    let output = child.output().await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    assert_eq!(proxy.seen.connections(), 0);
    assert!(!key_log.exists());
}
