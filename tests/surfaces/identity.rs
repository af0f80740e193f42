//! Who asks: tokens, roles, and requests that were not meant for this host.

use std::collections::BTreeSet;

use serde_json::{Value, json};

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
        ("POST", at("reconcile"), &["operator"]),
        ("POST", at("resolve"), &["operator"]),
        ("GET", "/metrics".into(), &["operator"]),
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
    // Every route that there is stands here, but for those that are open to anybody.
    let described =
        Request::new("GET", "/openapi.json").send(&stage.host.address()).expect("an answer").text();
    let described: Value = serde_json::from_str(&described).expect("JSON");
    let mut there = BTreeSet::new();
    for (path, methods) in described["paths"].as_object().expect("paths") {
        for method in methods.as_object().expect("methods").keys() {
            there.insert(format!("{} {path}", method.to_uppercase()));
        }
    }
    let open = ["GET /healthz", "GET /readyz", "GET /openapi.json"].map(str::to_owned);
    let known = verbs.iter().map(|(method, target, _)| {
        let path =
            target.replace(&id, "{id}").replace("/refund", "/{name}").replace("0123456789abcdef", "{id}");
        format!("{method} {path}")
    });
    assert_eq!(known.chain(open).collect::<BTreeSet<String>>(), there);
    for (method, target, allowed) in verbs {
        for role in ["agent", "approver", "operator", "admin"] {
            let caller = stage.host.with_token(&stage.host.token(role));
            // The same role of another tenant gets no further, and finds nothing of this one's.
            let stranger =
                stage.host.new_token(&format!("{role}-{method}-{}", target.len()), &[role], "other");
            let stranger = stage.host.with_token(&stranger);
            let told = match method {
                "GET" => stranger.get(&target),
                _ => stranger.send(stranger.request(method, &target).body("application/json", "{}")),
            };
            let ours = target.contains(&id) || target.contains("/refund") || target.ends_with("cdef");
            match allowed.contains(&role) {
                false => drop(told.refused(403, "not_permitted")),
                true if ours && method == "GET" => drop(told.refused(404, "not_found")),
                true if ours => assert!(told.status() >= 400, "{role} {method} {target}: {}", told.json),
                true => assert_ne!(told.status(), 403, "{role} {method} {target}: {}", told.json),
            }
            assert!(!told.answer.text().contains(&id) || told.status() == 404, "{target}: {}", told.json);
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

#[test]
fn h01_who_tries_tokens_is_told_to_slow_down_learns_nothing_and_shuts_nobody_out() {
    let host = Host::start();
    let good = host.token("agent");
    let other = |at: usize| {
        let mut bytes = good.clone().into_bytes();
        bytes[at] = if bytes[at] == b'1' { b'2' } else { b'1' };
        String::from_utf8(bytes).expect("a text")
    };
    let revoked = host.admin().post("/v1/tokens", &json!({ "name": "gone", "roles": ["agent"] })).expect(201);
    let admin = host.admin();
    admin.send(admin.request("DELETE", &format!("/v1/tokens/{}", revoked.text("/id")))).expect(204);
    // One that never was, one with another secret, one that was ended, one that is none.
    let wrong = [other(5), other(good.len() - 2), revoked.text("/token"), "cs_x".into()];
    let mut slowed = 0;
    for n in 0..400 {
        let told = host.with_token(&wrong[n % wrong.len()]).get("/v1/tools");
        match told.status() {
            401 if slowed == 0 => {}
            // The bucket fills while it is emptied.
            401 => slowed = 0,
            _ => {
                told.refused(429, "quota_exceeded");
                slowed += 1;
            }
        }
        if slowed == 2 * wrong.len() {
            break;
        }
    }
    assert_eq!(slowed, 2 * wrong.len(), "nobody was told to slow down");
    // The same words for each of them: from now on no answer says which it is.
    let answers: Vec<Told> = (0..200)
        .map(|n| host.with_token(&wrong[n % wrong.len()]).get("/v1/tools"))
        .filter(|told| told.status() == 429)
        .collect();
    let said: BTreeSet<String> = answers.iter().map(|told| told.answer.text()).collect();
    assert_eq!(said.len(), 1, "{said:?}");
    let told = &answers[0];
    assert_eq!(told.answer.header("retry-after"), Some("1"));
    assert_eq!((told.text("/quota"), told.number("/limit")), ("wrong_tokens.address".into(), 60));
    assert_eq!(told.json["retryable"], json!(false));
    // A right one from the same address is taken, and none at all is asked for one, as ever.
    for _ in 0..20 {
        host.agent().get("/v1/tools").expect(200);
    }
    Told::of(Request::new("GET", "/v1/tools").send(&host.address()).expect("an answer"))
        .refused(401, "unauthenticated");
    // It is said in the log, once and not for each.
    host.wait_said("wrong tokens come faster");
    let lines = host.said().lines().filter(|line| line.contains("wrong tokens")).count();
    assert!(lines <= 12, "{lines} lines");
    assert!(!host.said().contains(&good[20..]), "and without any of them");
}
