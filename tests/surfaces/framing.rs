//! Media types, methods and the framing of requests.

use crate::support::http::{Request, raw};
use crate::support::{Host, Stage};

#[test]
fn a_body_of_another_media_type_is_415_so_that_no_web_page_can_send_one() {
    let stage = Stage::set();
    let id = stage.propose("refund", "type", &stage.refund("type", 100)).expect(201).id();
    let body = r#"{"reason":"r"}"#;
    for media_type in [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "text/json",
        "json",
        "",
    ] {
        for (verb, role) in [("decline", "approver"), ("cancel", "agent"), ("approve", "approver")] {
            let caller = stage.host.with_token(&stage.host.token(role));
            let request = caller.request("POST", &format!("/v1/actions/{id}/{verb}"));
            let told = caller.send(request.body(media_type, body));
            told.refused(415, "invalid_request");
        }
    }
    let agent = stage.host.agent();
    let gzip = agent.request("POST", "/v1/actions").header("Content-Encoding", "gzip");
    agent.send(gzip.body("application/json", "x")).refused(415, "invalid_request");
    let operator = stage.host.operator();
    for media_type in ["text/plain", "application/octet-stream", "application/json"] {
        let told = operator.send(operator.request("POST", "/v1/tools").body(media_type, "x"));
        told.refused(415, "invalid_request");
        let told = operator.send(operator.request("PUT", "/v1/tools/refund/grant").body(media_type, ""));
        told.refused(415, "invalid_request");
    }
    // A parameter does not hurt.
    let told = agent.send(
        agent
            .request("POST", &format!("/v1/actions/{id}/cancel"))
            .body("application/json; charset=utf-8", body),
    );
    told.expect(200);
}

#[test]
fn a_method_that_a_route_does_not_take_is_405_and_reading_never_changes_anything() {
    let stage = Stage::set();
    let id = stage.propose("refund", "method", &stage.refund("method", 100)).expect(201).id();
    let approver = stage.host.approver();
    for method in ["GET", "PUT", "DELETE", "PATCH", "OPTIONS"] {
        for verb in ["approve", "decline", "cancel", "execute", "supersede", "resolve"] {
            let told = approver.send(approver.request(method, &format!("/v1/actions/{id}/{verb}")));
            told.refused(405, "invalid_request");
            assert!(told.answer.header("access-control-allow-origin").is_none());
        }
    }
    for (method, target) in
        [("POST", "/healthz"), ("DELETE", "/v1/actions"), ("PUT", "/v1/tools"), ("TRACE", "/v1/tools")]
    {
        let told = approver.send(approver.request(method, target));
        assert_eq!(told.status(), 405, "{method} {target}");
    }
    assert_eq!(stage.action(&id).outcome(), "awaiting_approval");
}

#[test]
fn h05_requests_that_two_servers_would_frame_differently_are_not_answered_as_two() {
    let host = Host::start();
    let address = host.address();
    let both = format!(
        "POST /v1/actions HTTP/1.1\r\nHost: {address}\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n\
         0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: {address}\r\n\r\n"
    );
    let two = format!(
        "POST /v1/actions HTTP/1.1\r\nHost: {address}\r\nContent-Length: 4\r\nContent-Length: 40\r\n\r\n\
         {{}}..GET /healthz HTTP/1.1\r\nHost: {address}\r\n\r\n"
    );
    for text in [both, two] {
        let answer =
            String::from_utf8_lossy(&raw(&address, text.as_bytes()).expect("an answer")).into_owned();
        assert!(!answer.contains("200 OK"), "the smuggled request was answered:\n{answer}");
        assert!(answer.matches("HTTP/1.1 ").count() <= 1, "{answer}");
    }
    for text in [
        "GET / HTTP/1.1\r\n\r\n".to_owned(),
        "GARBAGE\r\n\r\n".to_owned(),
        format!("GET /healthz HTTP/1.1\r\nHost: {address}\r\nBad Header: x\r\n\r\n"),
        format!("GET /healthz HTTP/1.1\r\nHost: {address}\r\nX-Long: {}\r\n\r\n", "x".repeat(20 << 10)),
        format!("GET http://evil.example/healthz HTTP/1.1\r\nHost: {address}\r\n\r\n"),
    ] {
        let answer =
            String::from_utf8_lossy(&raw(&address, text.as_bytes()).expect("an answer")).into_owned();
        assert!(!answer.contains("200 OK"), "{}: {answer}", &text[..text.len().min(80)]);
    }
    assert_eq!(Request::new("GET", "/healthz").send(&address).expect("an answer").status, 200);
}

#[test]
fn every_answer_forbids_keeping_it_and_guessing_its_type() {
    let stage = Stage::set();
    let agent = stage.host.agent();
    let id = stage.propose("refund", "headers", &stage.refund("headers", 100)).expect(201).id();
    for target in ["/healthz", "/v1/actions", "/nowhere", &format!("/v1/actions/{id}")] {
        let told = agent.get(target);
        assert_eq!(told.answer.header("cache-control"), Some("no-store"), "{target}");
        assert_eq!(told.answer.header("x-content-type-options"), Some("nosniff"), "{target}");
    }
}
