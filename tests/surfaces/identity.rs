//! Who asks: tokens, roles, and requests that were not meant for this host.

use serde_json::json;

use crate::support::http::Request;
use crate::support::{Host, Stage, Told};

#[test]
fn h01_no_token_a_wrong_one_one_in_the_url_and_two_are_401_and_say_how_to_send_one() {
    let host = Host::start();
    let good = host.token("agent");
    let mut wrong = good.clone().into_bytes();
    let last = wrong.len() - 1;
    wrong[last] = if wrong[last] == b'A' { b'B' } else { b'A' };
    let wrong = String::from_utf8(wrong).expect("a text");
    let get = |target: &str, headers: &[(&str, &str)]| {
        let request = headers
            .iter()
            .fold(Request::new("GET", target), |request, (name, value)| request.header(name, value));
        Told::of(request.send(&host.address()).expect("an answer"))
    };
    let bearer = |token: &str| format!("Bearer {token}");
    for headers in [
        vec![],
        vec![("Authorization", String::new())],
        vec![("Authorization", "Bearer".to_owned())],
        vec![("Authorization", bearer(""))],
        vec![("Authorization", bearer("x"))],
        vec![("Authorization", bearer(&wrong))],
        vec![("Authorization", bearer(&good[..good.len() - 1]))],
        vec![("Authorization", format!("Basic {good}"))],
        vec![("Authorization", good.clone())],
        vec![("Authorization", bearer(&good)), ("Authorization", bearer(&wrong))],
        vec![("X-Token", good.clone())],
        vec![("Cookie", format!("token={good}"))],
    ] {
        let headers: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let told = get("/v1/tools", &headers);
        let said = told.refused(401, "unauthenticated");
        assert_eq!(told.answer.header("www-authenticate"), Some("Bearer"));
        assert!(!said.contains(&good), "{said}");
    }
    let authorized = bearer(&good);
    for target in [
        format!("/v1/tools?token={good}"),
        format!("/v1/tools?access_token={good}"),
        "/v1/tools?Token=x".into(),
    ] {
        for headers in [vec![], vec![("Authorization", authorized.as_str())]] {
            let said = get(&target, &headers).refused(401, "unauthenticated");
            assert!(!said.contains(&good));
        }
    }
    get("/v1/tools", &[("Authorization", &authorized)]).expect(200);
    for open in ["/healthz", "/readyz"] {
        get(open, &[]).expect(200);
    }
    // Not a route that exists, not a route that does not: without a token nothing is told.
    get("/v1/actions/00000000-0000-8000-8000-000000000000", &[]).refused(401, "unauthenticated");
}

#[test]
fn h02_each_role_may_do_its_own_and_nothing_else() {
    let stage = Stage::set();
    let id = stage.propose("refund", "roles", &stage.refund("roles", 100)).expect(201).id();
    let at = |verb: &str| format!("/v1/actions/{id}/{verb}");
    let verbs: Vec<(&str, String, &[&str])> = vec![
        ("POST", "/v1/tools".into(), &["operator"]),
        ("PUT", "/v1/tools/refund/grant".into(), &["operator"]),
        ("POST", "/v1/tools/refund/pause".into(), &["operator"]),
        ("POST", "/v1/tools/refund/resume".into(), &["operator"]),
        ("POST", "/v1/actions".into(), &["agent"]),
        ("POST", at("approve"), &["approver"]),
        ("POST", at("decline"), &["approver"]),
        ("POST", at("cancel"), &["agent", "operator"]),
        ("POST", at("supersede"), &["agent"]),
        ("POST", at("execute"), &["agent"]),
        ("POST", at("resolve"), &["operator"]),
        ("POST", "/v1/tokens".into(), &["admin"]),
        ("GET", "/v1/tokens".into(), &["admin"]),
        ("DELETE", "/v1/tokens/0123456789abcdef".into(), &["admin"]),
        ("GET", "/v1/tools".into(), &["agent", "approver", "operator", "admin"]),
        ("GET", "/v1/tools/refund".into(), &["agent", "approver", "operator", "admin"]),
        ("GET", "/v1/actions".into(), &["agent", "approver", "operator", "admin"]),
        ("GET", format!("/v1/actions/{id}"), &["agent", "approver", "operator", "admin"]),
        ("GET", at("effects"), &["agent", "approver", "operator", "admin"]),
        ("GET", at("log"), &["agent", "approver", "operator", "admin"]),
        ("GET", at("events"), &["agent", "approver", "operator", "admin"]),
        ("GET", "/v1/events".into(), &["agent", "approver", "operator", "admin"]),
    ];
    for (method, target, allowed) in verbs {
        for role in ["agent", "approver", "operator", "admin"] {
            let caller = stage.host.with_token(&stage.host.token(role));
            // A body that is refused wherever one is read: the right is looked at before it.
            let request = caller.request(method, &target);
            let request = if method == "GET" { request } else { request.body("application/nothing", "{") };
            let told = caller.send(request);
            if allowed.contains(&role) {
                assert_ne!(told.status(), 403, "{role} {method} {target}: {}", told.json);
            } else {
                let said = told.refused(403, "not_permitted");
                assert!(said.contains(role), "{said}");
            }
        }
        let told = Told::of(Request::new(method, &target).send(&stage.host.address()).expect("an answer"));
        told.refused(401, "unauthenticated");
    }
    assert_eq!(stage.action(&id).outcome(), "awaiting_approval");
}

#[test]
fn f01_requests_of_foreign_pages_and_rebound_names_are_403_whatever_token_they_bring() {
    let host = Host::start();
    let address = host.address();
    let port = address.rsplit(':').next().expect("a port");
    let agent = host.agent();
    for name in [
        "evil.com",
        "localhost.evil.com",
        &format!("evil.com:{port}"),
        "",
        "127.0.0.1.evil.com",
        "a@127.0.0.1",
        "10.0.0.1",
    ] {
        for target in ["/v1/tools", "/healthz", "/nowhere"] {
            let told = agent.send(agent.request("GET", target).header("Host", name));
            assert!([400, 403].contains(&told.status()), "{name} {target}: {}", told.status());
        }
    }
    for origin in ["https://evil.com", "null", "http://localhost:1", "file://", &format!("https://{address}")]
    {
        for method in ["GET", "POST"] {
            let request = agent.request(method, "/v1/actions").header("Origin", origin);
            agent.send(request).refused(403, "not_permitted");
        }
        // A preflight gets no permission.
        let preflight = Request::new("OPTIONS", "/v1/actions")
            .header("Origin", origin)
            .header("Access-Control-Request-Method", "POST");
        let answer = preflight.send(&address).expect("an answer");
        assert!(answer.status >= 400 && answer.header("access-control-allow-origin").is_none());
    }
    agent.send(agent.request("GET", "/v1/tools").header("Origin", &format!("http://{address}"))).expect(200);
    agent.send(agent.request("GET", "/v1/tools").header("Host", &format!("localhost:{port}"))).expect(200);
    let twice = agent.request("GET", "/v1/tools").header("Host", &address).header("Host", "evil.com");
    assert!(agent.send(twice).status() >= 400);
}

#[test]
fn h01_tokens_are_in_no_file_but_their_owners_and_revoking_ends_them() {
    let host = Host::start();
    let made = host.admin().post("/v1/tokens", &json!({ "name": "ci", "roles": ["agent"] })).expect(201);
    let token = made.text("/token");
    let ci = host.with_token(&token);
    ci.get("/v1/tools").expect(200);
    let listed = host.admin().get("/v1/tokens").expect(200);
    assert!(!listed.answer.text().contains(&token));
    let id = made.text("/id");
    let admin = host.admin();
    admin.send(admin.request("DELETE", &format!("/v1/tokens/{id}"))).expect(204);
    ci.get("/v1/tools").refused(401, "unauthenticated");
    host.kill_and_wake();
    host.with_token(&token).get("/v1/tools").refused(401, "unauthenticated");
    let admin = host.admin();
    admin.send(admin.request("DELETE", "/v1/tokens/0000000000000000")).refused(404, "not_found");
    // Found in the files of its owner, and in nothing else that the host writes.
    // `cs_<id>_<secret>`; the secret may hold `_` itself.
    let secret = |token: &str| token.splitn(3, '_').nth(2).expect("a secret").to_owned();
    for role in ["agent", "approver", "operator", "admin"] {
        let found = crate::hostile::files_with(host.folder(), &secret(&host.token(role)));
        assert_eq!(found, [host.file("tokens").join(role)], "{role}");
    }
    assert_eq!(crate::hostile::files_with(host.folder(), &secret(&token)), Vec::<std::path::PathBuf>::new());
    use std::os::unix::fs::PermissionsExt as _;
    for path in [host.file("tokens/admin"), host.file("host.json"), host.file("components.key")] {
        let mode = std::fs::metadata(&path).expect("a file").permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{}", path.display());
    }
}
