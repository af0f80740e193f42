//! Bodies that are not what they must be, at every route that reads one.

use serde_json::json;

use crate::support::{Stage, Told};

/// Each route that reads JSON, by its target and the role that may use it.
fn json_routes(id: &str) -> Vec<(String, &'static str)> {
    let at = |verb: &str| format!("/v1/actions/{id}/{verb}");
    vec![
        ("/v1/actions".to_owned(), "agent"),
        (at("approve"), "approver"),
        (at("decline"), "approver"),
        (at("cancel"), "agent"),
        (at("supersede"), "agent"),
        (at("resolve"), "operator"),
        ("/v1/tokens".to_owned(), "admin"),
    ]
}

fn at_every_route(stage: &Stage, id: &str, check: impl Fn(&str, &dyn Fn(&[u8], &str) -> Told)) {
    for (target, role) in json_routes(id) {
        let caller = stage.host.with_token(&stage.host.token(role));
        let send = |body: &[u8], media_type: &str| {
            let request = caller.request("POST", &target).header("Idempotency-Key", "bad");
            caller.send(request.body(media_type, body))
        };
        check(&target, &send);
    }
}

#[test]
fn what_is_not_json_or_is_read_differently_by_two_parsers_is_refused_at_every_route_with_its_place() {
    let stage = Stage::set();
    let id = stage.propose("refund", "target", &stage.refund("target", 100)).expect(201).id();
    let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
    let bad: Vec<(Vec<u8>, &str)> = vec![
        (b"not json".to_vec(), ""),
        (b"{".to_vec(), ""),
        (b"{\"a\":1}garbage".to_vec(), ""),
        (b"{\"a\":1}{\"a\":1}".to_vec(), ""),
        (b"\xef\xbb\xbf{}".to_vec(), ""),
        (b"{\"a\":\"\xff\"}".to_vec(), ""),
        (br#"{"reason":"a","reason":"evil"}"#.to_vec(), "/reason"),
        (br#"{"a":1,"\u0061":2}"#.to_vec(), "/a"),
        (br#"{"note":"\u0000"}"#.to_vec(), "/note"),
        (br#"{"note":"\ud800"}"#.to_vec(), "/note"),
        (br#"{"a":9007199254740993}"#.to_vec(), "/a"),
        (br#"{"a":18446744073709551615}"#.to_vec(), "/a"),
        (br#"{"a":1e400}"#.to_vec(), "/a"),
        (br#"{"a":0.1000000000000000055}"#.to_vec(), "/a"),
        (br#"{"a":NaN}"#.to_vec(), ""),
        (br#"{'a':1}"#.to_vec(), ""),
        (br#"{"a":1,}"#.to_vec(), ""),
        (format!("{{\"a\":{deep}}}").into_bytes(), ""),
    ];
    at_every_route(&stage, &id, |target, send| {
        for (body, pointer) in &bad {
            let told = send(body, "application/json");
            let shown = String::from_utf8_lossy(body);
            assert_eq!(
                (told.status(), told.outcome().as_str()),
                (400, "invalid_json"),
                "{target} {shown}: {}",
                told.json
            );
            assert!(told.json["offset"].is_u64(), "{target} {shown}: {}", told.json);
            if !pointer.is_empty() {
                assert_eq!(told.text("/pointer"), *pointer, "{target} {shown}");
            }
        }
    });
    assert_eq!(stage.action(&id).outcome(), "awaiting_approval");
    assert_eq!(stage.audit(), 1, "nothing else came of it");
}

#[test]
fn unknown_members_and_values_of_another_type_are_named_by_their_pointer_at_every_route() {
    let stage = Stage::set();
    let id = stage.propose("refund", "target", &stage.refund("target", 100)).expect(201).id();
    at_every_route(&stage, &id, |target, send| {
        let body = json!({ "approved": true, "reason": "r", "tool": "refund", "arguments": {}, "name": "n",
            "roles": ["agent"], "ordinal": 1, "outcome": "give_up", "evidence": "e", "note": "n" });
        let told = send(body.to_string().as_bytes(), "application/json");
        told.refused(400, "invalid_request");
        assert!(told.text("/pointer").starts_with('/'), "{target}: {}", told.json);
        for body in ["[]", "\"text\"", "null", "7"] {
            let told = send(body.as_bytes(), "application/json");
            let said = told.refused(400, "invalid_request");
            assert!(said.contains("must be a JSON object"), "{target} {body}: {said}");
        }
    });
    let wrong = [
        ("/v1/actions", "agent", json!({ "tool": 7, "arguments": {} }), "/tool"),
        ("/v1/actions", "agent", json!({ "tool": "re fund", "arguments": {} }), "/tool"),
        ("/v1/actions", "agent", json!({ "arguments": {} }), "/tool"),
        ("/v1/actions", "agent", json!({ "tool": "refund" }), "/arguments"),
        ("/v1/actions", "agent", json!({ "tool": "refund", "arguments": {}, "version": 1 }), "/version"),
        ("/v1/actions", "agent", json!({ "tool": "refund", "arguments": {}, "run": true }), "/run"),
        ("/v1/actions", "agent", json!({ "tool": "refund", "arguments": {}, "run": "now" }), "/run"),
        (
            "/v1/actions",
            "agent",
            json!({ "tool": "refund", "arguments": {}, "compensates": "x" }),
            "/compensates",
        ),
        ("/v1/actions", "agent", json!({ "tool": "refund", "arguments": {}, "actor": ["x"] }), "/actor"),
        ("/v1/tokens", "admin", json!({ "name": "n", "roles": [] }), "/roles"),
        ("/v1/tokens", "admin", json!({ "name": "n", "roles": ["agent", "king"] }), "/roles/1"),
        ("/v1/tokens", "admin", json!({ "name": "n", "roles": "agent" }), "/roles"),
        ("/v1/tokens", "admin", json!({ "roles": ["agent"] }), "/name"),
    ];
    for (target, role, body, pointer) in wrong {
        let told = stage.host.with_token(&stage.host.token(role)).post(target, &body);
        told.refused(400, "invalid_request");
        assert_eq!(told.text("/pointer"), pointer, "{body}: {}", told.json);
    }
    let operator = stage.host.operator();
    let target = format!("/v1/actions/{id}/resolve");
    for (body, pointer) in [
        (json!({ "outcome": "happened", "evidence": "e" }), "/ordinal"),
        (json!({ "ordinal": "1", "outcome": "happened", "evidence": "e" }), "/ordinal"),
        (json!({ "ordinal": -1, "outcome": "happened", "evidence": "e" }), "/ordinal"),
        (json!({ "ordinal": 1, "outcome": "perhaps", "evidence": "e" }), "/outcome"),
        (
            json!({ "ordinal": 1, "outcome": "give_up", "evidence": "e", "answer": { "status": 200 } }),
            "/answer",
        ),
        (
            json!({ "ordinal": 1, "outcome": "happened", "evidence": "e", "answer": { "status": 99 } }),
            "/answer/status",
        ),
        (
            json!({ "ordinal": 1, "outcome": "happened", "evidence": "e", "answer": { "status": "200" } }),
            "/answer/status",
        ),
        (
            json!({ "ordinal": 1, "outcome": "happened", "evidence": "e", "answer": { "status": 200, "x": 1 } }),
            "/answer/x",
        ),
        (json!({ "ordinal": 1, "outcome": "give_up" }), "/evidence"),
    ] {
        let told = operator.post(&target, &body);
        told.refused(400, "invalid_request");
        assert_eq!(told.text("/pointer"), pointer, "{body}: {}", told.json);
    }
}

#[test]
fn approve_takes_a_note_and_nothing_else() {
    let stage = Stage::set();
    let proposed = stage.propose("refund", "note", &stage.refund("note", 100)).expect(201);
    let target = format!("/v1/actions/{}/approve", proposed.id());
    let approver = stage.host.approver();
    for body in [
        json!({ "arguments": { "amount": 1 } }),
        json!({ "args": {} }),
        json!({ "fingerprint": proposed.text("/fingerprint") }),
        json!({ "approved": true }),
        json!({ "note": "fine", "auto": true }),
    ] {
        approver.post(&target, &body).refused(400, "invalid_request");
    }
    approver.post(&target, &json!({ "note": 7 })).refused(400, "invalid_request");
    approver.post(&target, &json!({ "note": "n".repeat(2001) })).refused(400, "invalid_request");
    for (name, value) in [("If-Match", "\"abc\""), ("If-Match", "*"), ("If-Match", "")] {
        let request = approver.request("POST", &target).header(name, value);
        approver.send(request).refused(400, "invalid_request");
    }
    let twice = approver.request("POST", &target).header("If-Match", "\"a\"").header("If-Match", "\"b\"");
    approver.send(twice).refused(400, "invalid_request");
    let stale = approver.request("POST", &target).header("If-Match", &format!("\"{}\"", "0".repeat(64)));
    approver.send(stale).refused(412, "fingerprint_precondition");
    for query in ["?auto=true", "?approved=1", "?wait=5s"] {
        approver.post_nothing(&format!("{target}{query}")).refused(400, "invalid_request");
    }
    assert_eq!(stage.action(&proposed.id()).outcome(), "awaiting_approval");
    // Headers that mean nothing change nothing; the note is kept.
    let odd = approver.request("POST", &target).header("X-Approved-By", "everybody");
    let told = approver.send(odd.body("application/json", r#"{"note":"looks right"}"#)).expect(200);
    assert_eq!(told.text("/approval/given/0/note"), "looks right");
    assert_eq!(told.text("/approval/given/0/by"), "approver");
}

#[test]
fn reasons_are_needed_and_bounded() {
    let stage = Stage::set();
    let id = stage.propose("refund", "reason", &stage.refund("reason", 100)).expect(201).id();
    for body in
        [json!({}), json!({ "reason": "" }), json!({ "reason": "  " }), json!({ "reason": "r".repeat(2001) })]
    {
        for (verb, role) in [("decline", "approver"), ("cancel", "agent")] {
            let told = stage
                .host
                .with_token(&stage.host.token(role))
                .post(&format!("/v1/actions/{id}/{verb}"), &body);
            told.refused(400, "invalid_request");
            assert_eq!(told.text("/pointer"), "/reason");
        }
    }
    let declined =
        stage.host.approver().post(&format!("/v1/actions/{id}/decline"), &json!({ "reason": "too much" }));
    assert_eq!(declined.expect(200).ending(), "cancelled declined");
    assert!(stage.action(&id).text("/error/message").contains("too much"));
}
