//! Proposals that cannot become an action.

use serde_json::json;

use crate::support::{Stage, grants};

#[test]
fn arguments_that_do_not_fit_are_422_with_the_pointer_into_them_and_make_no_action() {
    let stage = Stage::set();
    let base = stage.provider.url();
    let cases = [
        (json!({}), ""),
        (json!({ "payment_intent": "pi_1", "amount": "100", "currency": "eur" }), "/amount"),
        (json!({ "payment_intent": "pi_1", "amount": 0, "currency": "eur" }), "/amount"),
        (json!({ "payment_intent": "pi_1", "amount": 1.5, "currency": "eur" }), "/amount"),
        (json!({ "payment_intent": 7, "amount": 1, "currency": "eur" }), "/payment_intent"),
        (json!({ "payment_intent": "pi_1", "amount": 1, "currency": "euro" }), "/currency"),
        (
            json!({ "payment_intent": "pi_1", "amount": 1, "currency": "eur", "api_base": "ftp://x" }),
            "/api_base",
        ),
        (json!({ "payment_intent": "pi_1", "amount": 1, "currency": "eur", "memo": "x" }), ""),
        (json!([]), ""),
        (json!("text"), ""),
    ];
    for (arguments, pointer) in &cases {
        let told = stage.propose("refund", "bad", arguments);
        told.refused(422, "invalid_arguments");
        assert_eq!(told.text("/pointer"), *pointer, "{arguments}: {}", told.json);
    }
    // What only the tool can judge comes from the tool, and makes no action either.
    let same = json!({ "from": "DE1", "to": "DE1", "amount": 1, "currency": "eur", "api_base": base });
    stage.propose("transfer", "bad", &same).refused(422, "invalid_arguments");
    assert_eq!(stage.audit(), 0);
    assert_eq!(stage.provider.log().len(), 0);
}

#[test]
fn numbers_that_two_parsers_read_differently_never_become_arguments() {
    let stage = Stage::set();
    let agent = stage.host.agent();
    for amount in
        ["9007199254740993", "18446744073709551615", "1e400", "-9007199254740993", "0.1000000000000000055"]
    {
        let body = format!(
            r#"{{"tool":"refund","arguments":{{"payment_intent":"pi_1","amount":{amount},"currency":"eur"}}}}"#
        );
        let request = agent.request("POST", "/v1/actions").header("Idempotency-Key", "n");
        let told = agent.send(request.body("application/json", body));
        told.refused(400, "invalid_json");
        assert_eq!(told.text("/pointer"), "/arguments/amount");
    }
    for arguments in [r#"{"to":"a","to":"evil"}"#, r#"{"to":1,"\u0074o":2}"#] {
        let body = format!(r#"{{"tool":"refund","arguments":{arguments}}}"#);
        let told = agent.post_text("/v1/actions", &body);
        told.refused(400, "invalid_json");
        assert_eq!(told.text("/pointer"), "/arguments/to");
    }
    // What is equal is shown, hashed and run in one form: the tool gets the canonical bytes.
    let body =
        r#"{ "tool":"probe", "arguments": { "n": 1.0, "mode":"echo", "text":"\u0061\u20ac", "url":"x" } }"#;
    let request = agent.request("POST", "/v1/actions").header("Idempotency-Key", "form");
    let told = agent.send(request.body("application/json", body)).expect(201);
    assert_eq!(told.raw("arguments"), r#"{"mode":"echo","n":1,"text":"a€","url":"x"}"#);
    stage.approve(&told.id(), &told.text("/fingerprint")).expect(200);
    assert_eq!(stage.execute(&told.id()).raw("result"), told.raw("arguments"));
}

#[test]
fn a_key_is_needed_once_in_one_of_its_two_forms() {
    let stage = Stage::set();
    let agent = stage.host.agent();
    let proposal = |more: serde_json::Value| {
        let mut body = json!({ "tool": "refund", "arguments": stage.refund("key", 100) });
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        body
    };
    for (body, key) in [
        (proposal(json!({})), None),
        (proposal(json!({ "run_id": "r" })), None),
        (proposal(json!({ "step": "1" })), None),
        (proposal(json!({ "run_id": "r", "step": "1" })), Some("key")),
        (proposal(json!({ "run_id": "", "step": "1" })), None),
        (proposal(json!({ "run_id": "r", "step": "a\nb" })), None),
        (proposal(json!({})), Some("")),
        (proposal(json!({})), Some("k\tk")),
    ] {
        let mut request = agent.request("POST", "/v1/actions");
        if let Some(key) = key {
            request = request.header("Idempotency-Key", key);
        }
        agent.send(request.body("application/json", body.to_string())).refused(400, "invalid_request");
    }
    let long = "k".repeat(5000);
    let request = agent.request("POST", "/v1/actions").header("Idempotency-Key", &long);
    agent
        .send(request.body("application/json", proposal(json!({})).to_string()))
        .refused(400, "invalid_request");
    let twice =
        agent.request("POST", "/v1/actions").header("Idempotency-Key", "a").header("Idempotency-Key", "b");
    agent
        .send(twice.body("application/json", proposal(json!({})).to_string()))
        .refused(400, "invalid_request");
    assert_eq!(stage.audit(), 0);
}

#[test]
fn unknown_tools_versions_actions_routes_and_parameters_say_so() {
    let stage = Stage::set();
    let agent = stage.host.agent();
    let said = stage.propose("no-such-tool", "k", &json!({})).refused(404, "not_found");
    assert!(said.contains("no-such-tool"), "{said}");
    let versioned =
        json!({ "tool": "refund", "version": "9.9.9", "arguments": {}, "run_id": "r", "step": "1" });
    let said = agent.post("/v1/actions", &versioned).refused(404, "not_found");
    assert!(said.contains("9.9.9"), "{said}");
    let nowhere = "00000000-0000-8000-8000-000000000000";
    for id in [nowhere, "x", "..", "%00", "%2e%2e", "1' OR '1'='1", "';%20DROP%20TABLE%20actions;--"] {
        let id = id.replace(' ', "%20").replace('\'', "%27");
        for target in [
            format!("/v1/actions/{id}"),
            format!("/v1/actions/{id}/effects"),
            format!("/v1/actions/{id}/events"),
        ] {
            let told = agent.get(&target);
            assert!([400, 404].contains(&told.status()), "{target}: {}", told.json);
        }
    }
    for verb in ["execute", "cancel", "supersede"] {
        let body = if verb == "cancel" { json!({ "reason": "r" }) } else { json!({}) };
        agent.post(&format!("/v1/actions/{nowhere}/{verb}"), &body).refused(404, "not_found");
    }
    stage.host.approver().post_nothing(&format!("/v1/actions/{nowhere}/approve")).refused(404, "not_found");
    for target in ["/", "/v1", "/v1/", "/v0/actions", "/v1/action", "/v1/actions/", "/v2/actions", "/admin"] {
        agent.get(target).refused(404, "not_found");
    }
    for target in [
        "/v1/actions?limt=1",
        "/v1/actions?limit=0",
        "/v1/actions?limit=201",
        "/v1/actions?limit=x",
        "/v1/actions?limit=1&limit=2",
        "/v1/actions?status=done",
        "/v1/actions?after=x",
        "/v1/actions?tool=a%20b",
        "/v1/actions?run_id=%00",
        "/v1/actions?run_id=%ff",
        "/v1/tools?x=1",
        "/v1/events?after=-1",
        "/v1/events?limit=1001",
    ] {
        let told = agent.get(target);
        assert_eq!(
            (told.status(), told.outcome().as_str()),
            (400, "invalid_request"),
            "{target}: {}",
            told.json
        );
    }
    let id = stage.approved("refund", "waits", &stage.refund("waits", 100));
    for wait in ["61s", "5", "-1s", "soon", ""] {
        let told = agent.post_nothing(&format!("/v1/actions/{id}/execute?wait={wait}"));
        assert_eq!(
            (told.status(), told.outcome().as_str()),
            (400, "invalid_request"),
            "{wait}: {}",
            told.json
        );
    }
    assert_eq!(stage.action(&id).outcome(), "approved", "a misspelt wait runs nothing");
}

#[test]
fn too_large_bodies_and_arguments_are_refused_with_the_limit() {
    let stage = Stage::set();
    let agent = stage.host.agent();
    let body =
        json!({ "tool": "probe", "arguments": { "mode": "echo", "text": "x".repeat(1 << 20) } }).to_string();
    let request = agent.request("POST", "/v1/actions").header("Idempotency-Key", "big");
    let told = agent.send(request.body("application/json", body));
    let said = told.refused(413, "too_large");
    assert!(said.contains("1048576"), "{said}");
    // Within the body's limit and over the grant's: what is longer, no person reads.
    let arguments = json!({ "mode": "echo", "text": "x".repeat(70 << 10) });
    let said = stage.propose("probe", "long", &arguments).refused(422, "invalid_arguments");
    assert!(said.contains("65536"), "{said}");
    // Exactly at the limit it is taken.
    let spare = r#"{"mode":"echo","text":""}"#.len();
    let arguments = json!({ "mode": "echo", "text": "x".repeat((64 << 10) - spare) });
    stage.propose("probe", "just", &arguments).expect(201);
    let name = "n".repeat(2 << 20);
    let request =
        agent.request("POST", "/v1/actions").body("application/json", json!({ "tool": name }).to_string());
    agent.send(request).refused(413, "too_large");
}

#[test]
fn nobody_proposes_in_anothers_name_without_the_right_to() {
    let stage = Stage::set();
    let proposal = json!({ "tool": "refund", "arguments": stage.refund("actor", 100), "actor": "alice",
        "run_id": "r", "step": "1" });
    let said = stage.host.agent().post("/v1/actions", &proposal).refused(403, "not_permitted");
    assert!(said.contains("act_for") && said.contains("alice"), "{said}");
    let platform = stage.host.new_token("platform", &["agent", "operator"], "default");
    let told = stage.host.with_token(&platform).post("/v1/actions", &proposal).expect(201);
    assert_eq!((told.text("/actor"), told.text("/proposer")), ("alice".to_owned(), "platform".to_owned()));
    // Neither of the two may approve it.
    for name in ["alice", "platform"] {
        let token = stage.host.new_token(name, &["approver"], "default");
        let target = format!("/v1/actions/{}/approve", told.id());
        stage.host.with_token(&token).post_nothing(&target).refused(403, "not_permitted");
    }
}

#[test]
fn a_tool_that_fails_before_its_first_write_makes_no_action() {
    let stage = Stage::set();
    for (mode, status, code) in [
        ("refused", 422, "planning_failed"),
        ("broken", 422, "planning_failed"),
        ("trap", 422, "planning_failed"),
        ("bad-json", 422, "planning_failed"),
        ("invalid-arguments", 422, "invalid_arguments"),
        ("no-such-mode", 422, "invalid_arguments"),
        ("try-later", 503, "planning_failed"),
    ] {
        let told = stage.propose("probe", mode, &json!({ "mode": mode }));
        told.refused(status, code);
        assert_eq!(told.json["retryable"], json!(status == 503), "{mode}");
    }
    assert_eq!(stage.audit(), 0);
    // A provider that is not there while the tool plans: try again later.
    let nobody =
        std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its address").port();
    stage.put_grant("probe", &grants::grant("", &[grants::Route::read(nobody, "/**")])).expect(200);
    let url = format!("http://127.0.0.1:{nobody}/quote");
    let told = stage.propose("probe", "away", &json!({ "mode": "reads-only", "url": url }));
    assert_eq!(told.outcome(), "planning_failed", "{}", told.json);
    assert_eq!(told.json["retryable"], true);
}
