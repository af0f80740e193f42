//! Where a component may send: by host, scheme, port, method and path; in spellings that two
//! parsers read differently.

use std::path::Path;
use std::time::Duration;

use serde_json::json;

use crate::support::grants::{Route, grant};
use crate::support::seed::Seed;
use crate::support::upstream::Upstream;
use crate::support::{BINARY, Host, Provider, Stage, at_once, long};

/// Asks for one call; what the component was told, or the planning's refusal. Everything is
/// approved: what holds here is the grant, not the person.
fn attempt(stage: &Stage, key: &str, method: &str, url: &str) -> String {
    let arguments = json!({ "mode": "forbidden-host", "url": url, "method": method, "body": "x" });
    let proposed = stage.propose("probe", key, &arguments);
    if proposed.status() != 201 {
        return format!("{} {}", proposed.status(), proposed.outcome());
    }
    stage.approve(&proposed.id(), &proposed.text("/fingerprint")).expect(200);
    let told = stage.execute(&proposed.id());
    match told.text("/result/error") {
        error if !error.is_empty() => error,
        _ => format!("{} {}", told.ending(), told.text("/result/status")),
    }
}

#[test]
fn b03_and_b04_spellings_of_a_host_that_parsers_read_differently_reach_nobody() {
    let stage = Stage::set();
    let port = stage.provider.port();
    let granted = format!("127.0.0.1:{port}");
    let hosts = [
        format!("{granted}@evil.example"),
        format!("user:pw@{granted}"),
        format!("evil.example@{granted}"),
        format!("evil.example\\@{granted}"),
        format!("127.0.0.1:{port}@127.0.0.1:{port}"),
        format!("127.1:{port}"),
        format!("0x7f.1:{port}"),
        format!("0x7f000001:{port}"),
        format!("2130706433:{port}"),
        format!("017700000001:{port}"),
        format!("127.0.0.01:{port}"),
        format!("0:{port}"),
        format!("0.0.0.0:{port}"),
        format!("localhost:{port}"),
        format!("[::1]:{port}"),
        format!("[::ffff:127.0.0.1]:{port}"),
        format!("[::1%25lo]:{port}"),
        format!("127.0.0.1%2f:{port}"),
        format!("１２７.0.0.1:{port}"),
        format!("127。0。0。1:{port}"),
        "127.0.0.1:".to_owned(),
        "127.0.0.1:0".to_owned(),
        "127.0.0.1:65536".to_owned(),
        format!("127.0.0.1:0{port}"),
        format!("127.0.0.1:+{port}"),
        format!("127.0.0.1:{port} "),
        String::new(),
        ":80".to_owned(),
    ];
    let told = at_once(hosts.len(), |i| {
        let url = format!("http://{}/keyed/spelled", hosts[i]);
        (hosts[i].clone(), attempt(&stage, &format!("spelled-{i}"), "POST", &url))
    });
    let heard = stage.provider.requests("/keyed/spelled");
    for (host, outcome) in &told {
        assert!(!outcome.contains("200"), "{host:?} got through: {outcome}");
    }
    assert_eq!(heard.len(), 0, "{heard:?}");
    // One dot at the end means the same host; it goes out under the host's own spelling.
    assert!(
        attempt(&stage, "dot", "POST", &format!("http://127.0.0.1.:{port}/keyed/spelled")).contains("200")
    );
    // And the way that is granted works.
    assert!(attempt(&stage, "granted", "POST", &format!("http://{granted}/keyed/spelled")).contains("200"));
}

#[test]
fn b06_other_schemes_ports_methods_and_paths_than_the_granted_ones_reach_nobody() {
    let stage = Stage::set();
    let port = stage.provider.port();
    // Somebody else listens on this machine: they must not hear a byte.
    let other = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    other.set_nonblocking(true).expect("a port that does not wait");
    let elsewhere = other.local_addr().expect("its address").port();
    let cases = [
        ("POST", format!("https://127.0.0.1:{port}/keyed/x")),
        ("POST", format!("ftp://127.0.0.1:{port}/keyed/x")),
        ("POST", "file:///etc/passwd".to_owned()),
        ("POST", format!("http://127.0.0.1:{elsewhere}/keyed/x")),
        ("POST", "http://127.0.0.1:22/keyed/x".to_owned()),
        ("POST", "http://127.0.0.1:25/keyed/x".to_owned()),
        ("POST", "http://127.0.0.1:6379/keyed/x".to_owned()),
        ("POST", "http://169.254.169.254/latest/meta-data".to_owned()),
        ("POST", "https://example.com/keyed/x".to_owned()),
        ("CONNECT", format!("http://127.0.0.1:{port}/keyed/x")),
        ("TRACE", format!("http://127.0.0.1:{port}/keyed/x")),
        ("SEARCH", format!("http://127.0.0.1:{port}/keyed/x")),
        ("DELETE", format!("http://127.0.0.1:{port}/keyed/x")),
        ("PUT", format!("http://127.0.0.1:{port}/keyed/x")),
        ("post", format!("http://127.0.0.1:{port}/keyed/x")),
        ("POST", format!("http://127.0.0.1:{port}/v1/refunds")),
        ("POST", format!("http://127.0.0.1:{port}/keyed/../v1/refunds")),
        ("POST", format!("http://127.0.0.1:{port}/keyed/%2e%2e/v1/refunds")),
        ("POST", format!("http://127.0.0.1:{port}/keyed/.%2e/v1/refunds")),
        ("POST", format!("http://127.0.0.1:{port}/keyed%2f..%2fv1/refunds")),
        ("POST", format!("http://127.0.0.1:{port}//keyed/x")),
        ("POST", format!("http://127.0.0.1:{port}/KEYED/x")),
        ("POST", format!("http://127.0.0.1:{port}/keyed/\\x")),
        ("POST", format!("http://127.0.0.1:{port}/keyed/a b")),
        ("POST", format!("http://127.0.0.1:{port}/keyed/a\r\nX-Evil: 1")),
    ];
    let before = stage.provider.log().len();
    for (i, (method, url)) in cases.iter().enumerate() {
        let outcome = attempt(&stage, &format!("case-{i}"), method, url);
        assert!(!outcome.contains("200"), "{method} {url} got through: {outcome}");
    }
    let log = stage.provider.log();
    assert_eq!(log.len(), before, "{:?}", &log[before..]);
    let heard = other.accept();
    assert!(heard.is_err(), "somebody outside the grant was connected to");
}

#[test]
fn b07_a_redirect_is_shown_to_the_component_and_never_followed() {
    let stage = Stage::set();
    let elsewhere = [stage.url("/keyed/elsewhere"), "http://169.254.169.254/".to_owned()];
    for (i, code) in [301, 302, 303, 307, 308].into_iter().flat_map(|code| [(0, code), (1, code)]) {
        let path = format!("/keyed/redirect-{code}-{i}");
        let headers = std::collections::BTreeMap::from([("Location".to_owned(), elsewhere[i].clone())]);
        let fault = crate::support::Fault::Status { code, headers, body: None };
        stage.provider.fault(crate::support::Rule::once(&path, fault));
        let outcome = attempt(&stage, &path, "POST", &stage.url(&path));
        assert_eq!(outcome, format!("succeeded {code}"));
        assert_eq!(stage.provider.requests(&path).len(), 1);
    }
    assert_eq!(stage.provider.requests("/keyed/elsewhere").len(), 0);
}

#[test]
fn b02_a_private_address_needs_the_grants_word_even_for_a_granted_host() {
    let stage = Stage::set();
    let port = stage.provider.port();
    let without = grant("", &[Route::idempotent(port, "/keyed/**")])
        .replace("allow_private = true\n", "")
        .replace("scheme = \"http\"", "scheme = \"https\"");
    stage.put_grant("probe", &without).expect(200);
    let before = stage.provider.log().len();
    let arguments = json!({ "mode": "forbidden-host", "url": format!("https://127.0.0.1:{port}/keyed/x"), "method": "POST" });
    let proposed = stage.propose("probe", "private", &arguments);
    if proposed.status() == 201 {
        stage.approve(&proposed.id(), &proposed.text("/fingerprint")).expect(200);
        let told = stage.execute(&proposed.id());
        assert!(!told.text("/result/error").is_empty(), "{}", told.json);
    }
    assert_eq!(stage.provider.log().len(), before, "not even a connection that spoke no HTTP");
}

#[test]
fn b17_a_component_killed_at_any_moment_of_its_send_leaves_one_send_and_its_record() {
    let stage = Stage::set();
    let mut moment = Seed::of_this_run("b17_a_component_killed");
    for round in 0..long(5, 40) {
        let modes: Vec<&str> =
            (0..8).map(|_| *moment.pick(&["drop-future", "forbidden-host", "write-then-trap"])).collect();
        let begun: Vec<(String, &str, String)> = modes
            .into_iter()
            .enumerate()
            .map(|(i, mode)| {
                let path = format!("/keyed/killed-{round}-{i}");
                let arguments =
                    json!({ "mode": mode, "url": stage.url(&path), "method": "POST", "body": "x" });
                let id = stage.approved("probe", &path, &arguments);
                (path, mode, id)
            })
            .collect();
        for (.., id) in &begun {
            stage.start_execute(id);
        }
        // The fault itself: somewhere between the first one's start and the last one's end.
        std::thread::sleep(Duration::from_micros(moment.below(60_000) as u64));
        for pid in super::processes::guests_of(&stage.host) {
            // Whoever is gone already is as dead.
            let _ = std::process::Command::new("kill").args(["-KILL", &pid.to_string()]).output();
        }
        for (path, mode, id) in &begun {
            let told = stage.wait_for(id, &["succeeded", "failed_terminal"]);
            let good = if *mode == "write-then-trap" { "failed_terminal" } else { "succeeded" };
            assert_eq!(told.outcome(), good, "{path}, {mode}: {}", told.json);
            assert_eq!(stage.counts(path, id), (1, 1), "{mode}: {}", told.json);
            let effects = stage.ledger(id);
            assert_eq!((effects.len(), effects[0]["status"].as_str()), (1, Some("succeeded")), "{path}");
        }
    }
}

/// A host that knows the upstream's authority by the name `internal`, and a probe that may post
/// there.
fn with_authority(upstream: &Upstream, environment: &[(&str, String)]) -> Stage {
    let provider = Provider::start(BINARY);
    let host = Host::asleep("[ca]\ninternal = \"internal.pem\"\n");
    std::fs::write(host.file("internal.pem"), &upstream.authority).expect("the authority");
    let mut command = host.command();
    command.envs(environment.iter().map(|(name, value)| (*name, value.as_str())));
    host.wake_with(&mut command);
    Stage { host, provider }
}

fn tls_grant(upstream: &Upstream, ca: &str) -> String {
    format!(
        "[[http]]\nhost = \"127.0.0.1\"\nport = {}\nallow_private = true\nmethods = [\"POST\"]\npath = \"/**\"\n\
         recovery = \"manual\"\n{ca}\n",
        upstream.port
    )
}

#[test]
fn b15_a_private_authority_is_taken_where_the_grant_names_it_and_nowhere_else() {
    let upstream = Upstream::with_tls();
    let stage = with_authority(&upstream, &[]);
    stage.install_probe("named", &tls_grant(&upstream, "ca = \"internal\""));
    stage.install_probe("unnamed", &tls_grant(&upstream, ""));
    let run = |tool: &str| {
        let url = format!("https://127.0.0.1:{}/{tool}", upstream.port);
        let id = stage.approved(tool, tool, &json!({ "mode": "writes", "url": url, "bodies": ["hello"] }));
        stage.start_execute(&id);
        stage.wait_for(&id, &["succeeded", "failed_terminal", "failed_retryable"])
    };
    assert_eq!(run("named").outcome(), "succeeded");
    let told = run("unnamed");
    assert_eq!(told.ending(), "failed_retryable not_sent", "{}", told.json);
    assert_eq!(stage.ledger(&told.id())[0]["status"], "failed", "its claim is closed");
    let heard: Vec<String> = upstream.heard().into_iter().filter(|text| !text.is_empty()).collect();
    assert_eq!(heard.len(), 1, "{heard:?}");
    assert!(heard[0].starts_with("POST /named HTTP/1.1") && heard[0].ends_with("hello"), "{}", heard[0]);
    // A grant that names one which is not there is refused when it is given.
    let told = stage.put_grant("named", &tls_grant(&upstream, "ca = \"nobody\""));
    assert!(told.refused(422, "invalid_grant").contains("nobody"));
}

#[test]
fn b16_a_proxy_roots_and_a_key_log_in_the_hosts_environment_change_nothing() {
    let upstream = Upstream::with_tls();
    let proxy = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    proxy.set_nonblocking(true).expect("a port that does not wait");
    let address = format!("http://{}", proxy.local_addr().expect("its address"));
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let mut environment: Vec<(&str, String)> = vec![
        ("NO_PROXY", String::new()),
        ("SSL_CERT_FILE", path("none.pem")),
        ("SSL_CERT_DIR", path("none")),
        ("SSLKEYLOGFILE", path("keys.log")),
    ];
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"] {
        environment.push((name, address.clone()));
    }
    let stage = with_authority(&upstream, &environment);
    stage.install_probe("direct", &tls_grant(&upstream, "ca = \"internal\""));
    let url = format!("https://127.0.0.1:{}/direct", upstream.port);
    let id =
        stage.approved("direct", "direct", &json!({ "mode": "writes", "url": url, "bodies": ["hello"] }));
    let told = stage.execute(&id);
    assert_eq!(told.outcome(), "succeeded", "{}", told.json);
    assert_eq!(upstream.heard().len(), 1);
    assert!(proxy.accept().is_err(), "the proxy was connected to");
    assert!(!Path::new(&path("keys.log")).exists(), "session keys were written down");
}
