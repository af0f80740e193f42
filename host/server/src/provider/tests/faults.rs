//! Faults: what reaches the caller byte by byte, and what was done all the same.

use std::io::ErrorKind;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use super::super::wire::{Fault, Rule};
use super::{Reply, Rig, refund_text};

const FORM: &str = "payment_intent=pi_1&amount=100";
const PATH: &str = "/v1/refunds";

#[tokio::test]
async fn a_lost_reply_acts_and_closes_without_a_byte() {
    let rig = Rig::start().await;
    rig.fault(Rule::once(PATH, Fault::LoseReply)).await;
    let (bytes, end) = rig.exchange(&refund_text(Some("k"), FORM)).await;
    assert!(bytes.is_empty() && end.is_ok(), "{bytes:?} {end:?}");
    assert_eq!(rig.effects(), 1);
    let repeat = rig.refund(Some("k")).await;
    assert!(repeat.is_replayed());
    assert_eq!(rig.effects(), 1);
    assert_eq!(rig.events("fault", PATH).len(), 1);
}

#[tokio::test]
async fn a_lost_reply_that_does_not_act_leaves_nothing_done() {
    let rig = Rig::start().await;
    rig.fault(Rule::once(PATH, Fault::LoseReply).acting(false)).await;
    let (bytes, _) = rig.exchange(&refund_text(Some("k"), FORM)).await;
    assert!(bytes.is_empty());
    assert_eq!(rig.effects(), 0);
    let line = rig.events("request", PATH).remove(0);
    assert_eq!(line.outcome.as_deref(), Some("withheld"));
    assert!(!rig.refund(Some("k")).await.is_replayed());
}

#[tokio::test]
async fn reset_at_every_byte_delivers_exactly_that_many_and_acts_once_each() {
    let rig = Rig::start().await;
    // The first effect's answer, one byte at a time, tells how long the others will be.
    rig.fault(Rule::once(PATH, Fault::Drip { ms: 0, n: 1000 })).await;
    let (whole, _) = rig.exchange(&refund_text(None, FORM)).await;
    assert_eq!(Reply::parse(&whole).status, 200);
    for n in 0..=whole.len() {
        rig.fault(Rule::once(PATH, Fault::ResetAtByte { n: n as u64 })).await;
        let (bytes, end) = rig.exchange(&refund_text(None, FORM)).await;
        assert_eq!(bytes.len(), n);
        let kind = end.expect_err("a reset, no orderly end").kind();
        assert_eq!(kind, ErrorKind::ConnectionReset);
        assert_eq!(rig.effects(), n + 2);
    }
}

#[tokio::test]
async fn reset_before_read_neither_reads_nor_acts() {
    let rig = Rig::start().await;
    rig.fault(Rule::once(PATH, Fault::ResetBeforeRead).method("POST")).await;
    // Others pass it by: another path, another method.
    assert_eq!(rig.get("/quote?from=a&to=b&amount=5&currency=EUR").await.status, 200);
    assert_eq!(rig.get(PATH).await.status, 405);
    let (bytes, end) = rig.exchange(&refund_text(Some("k"), FORM)).await;
    assert!(bytes.is_empty());
    assert_eq!(end.expect_err("a reset").kind(), ErrorKind::ConnectionReset);
    assert_eq!(rig.effects(), 0);
    assert!(rig.events("request", PATH).iter().all(|line| line.method == "GET"));
    assert_eq!(rig.events("fault", PATH).len(), 1);
    assert!(!rig.refund(Some("k")).await.is_replayed());
}

#[tokio::test]
async fn reset_before_read_also_meets_a_second_request_on_a_connection() {
    let rig = Rig::start().await;
    let mut socket = rig.connect().await;
    let first = "GET /echo HTTP/1.1\r\nhost: p\r\n\r\n";
    socket.write_all(first.as_bytes()).await.expect("sent");
    rig.wait("requests", "/echo", 1).await;
    rig.fault(Rule::once(PATH, Fault::ResetBeforeRead)).await;
    socket.write_all(refund_text(None, FORM).as_bytes()).await.expect("sent");
    let mut bytes = Vec::new();
    let end = tokio::io::AsyncReadExt::read_to_end(&mut socket, &mut bytes).await;
    assert_eq!(end.expect_err("a reset").kind(), ErrorKind::ConnectionReset);
    assert!(!String::from_utf8_lossy(&bytes).contains("refund"));
    assert_eq!(rig.effects(), 0);
}

#[tokio::test]
async fn held_before_acting_it_acts_at_the_release_though_the_caller_left() {
    let rig = Rig::start().await;
    let fault = Fault::Hold { before: true, settled: false };
    rig.fault(Rule::once(PATH, fault)).await;
    let mut socket = rig.connect().await;
    let text = refund_text(Some("k"), FORM);
    socket.write_all(text.as_bytes()).await.expect("sent");
    rig.wait("held", "*", 1).await;
    drop(socket);
    assert_eq!(rig.effects(), 0);
    assert_eq!(rig.refund(Some("k")).await.status, 409);
    rig.release().await;
    rig.wait("acted", PATH, 1).await;
    assert_eq!(rig.effects(), 1);
    let line = rig.events("effect", PATH).remove(0);
    let request = rig.events("request", PATH).remove(0);
    assert_eq!(line.request_seq, Some(request.seq));
}

#[tokio::test]
async fn a_delay_before_acting_acts_though_the_caller_left() {
    let rig = Rig::start().await;
    let fault = Fault::Delay { ms: 1, before: true, settled: false };
    rig.fault(Rule::once(PATH, fault)).await;
    let mut socket = rig.connect().await;
    let text = refund_text(Some("k"), FORM);
    socket.write_all(text.as_bytes()).await.expect("sent");
    drop(socket);
    rig.wait("acted", PATH, 1).await;
    assert_eq!(rig.effects(), 1);
}

#[tokio::test]
async fn a_status_is_answered_with_its_headers_and_without_acting() {
    let rig = Rig::start().await;
    let rule = json!({
        "match": { "method": "POST", "path": "/v1/*" }, "times": 1,
        "fault": "status", "code": 429, "headers": { "Retry-After": "2" },
    });
    assert_eq!(rig.control("/_control", rule).await.status, 200);
    let limited = rig.refund(Some("k")).await;
    assert_eq!(limited.status, 429);
    assert!(limited.head.contains("retry-after: 2"));
    assert_eq!(limited.json()["error"]["type"], "rate_limit_error");
    assert_eq!(rig.effects(), 0);
    assert!(!rig.refund(Some("k")).await.is_replayed());
    assert_eq!(rig.effects(), 1);
}

#[tokio::test]
async fn a_500_after_acting_hides_an_effect_that_a_repeat_finds() {
    let rig = Rig::start().await;
    rig.fault(Rule::once(PATH, Fault::status(500)).acting(true)).await;
    assert_eq!(rig.refund(Some("k")).await.status, 500);
    assert_eq!(rig.effects(), 1);
    let repeat = rig.refund(Some("k")).await;
    assert!(repeat.status == 200 && repeat.is_replayed());
    assert_eq!(rig.effects(), 1);
}

#[tokio::test]
async fn a_truncated_answer_promises_more_than_it_sends() {
    let rig = Rig::start().await;
    rig.fault(Rule::once(PATH, Fault::Truncate { n: Some(7) })).await;
    let cut = rig.refund(Some("k")).await;
    let whole = rig.refund(Some("k")).await;
    assert_eq!(cut.text.len(), 7);
    let promised = format!("content-length: {}", whole.text.len());
    assert!(cut.head.contains(&promised), "{}", cut.head);
}

#[tokio::test]
async fn a_big_body_is_as_big_as_asked_and_still_json() {
    let rig = Rig::start().await;
    let bytes = 3_000_001;
    for chunked in [false, true] {
        rig.fault(Rule::once(PATH, Fault::BigBody { bytes, chunked })).await;
    }
    let plain = rig.refund(None).await;
    assert_eq!(plain.text.len() as u64, bytes);
    assert_eq!(plain.json()["object"], "refund");
    let chunked = rig.refund(None).await;
    assert!(!chunked.head.contains("content-length"));
    assert!(chunked.text.ends_with("0\r\n\r\n"));
    assert!(chunked.text.len() as u64 > bytes);
}

#[tokio::test]
async fn interim_answers_come_before_the_real_one() {
    let rig = Rig::start().await;
    rig.fault(Rule::once(PATH, Fault::Continues { n: 3, code: 103 })).await;
    let (bytes, _) = rig.exchange(&refund_text(None, FORM)).await;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    assert_eq!(text.matches("HTTP/1.1 103 ").count(), 3);
    let (_, last) = text.rsplit_once("HTTP/1.1 103 ").expect("the last of them");
    assert!(last.contains("HTTP/1.1 200 OK"), "{last}");
}

#[tokio::test]
async fn raw_bytes_stand_in_for_an_answer() {
    let rig = Rig::start().await;
    let body = "SSH-2.0-nothing\r\n".to_owned();
    rig.fault(Rule::once(PATH, Fault::Raw { body: body.clone() })).await;
    let (bytes, _) = rig.exchange(&refund_text(None, FORM)).await;
    assert_eq!(bytes, body.as_bytes());
}

#[tokio::test]
async fn rules_fire_in_order_each_as_often_as_it_says_and_are_shown() {
    let rig = Rig::start().await;
    rig.fault(Rule::times(PATH, 2, Fault::status(503))).await;
    rig.fault(Rule::always("/v1/*", Fault::status(401))).await;
    let mut seen = Vec::new();
    for _ in 0..4 {
        seen.push(rig.refund(None).await.status);
    }
    assert_eq!(seen, [503, 503, 401, 401]);
    let state = rig.get("/_control").await.json();
    let fired: Vec<_> = state["rules"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|rule| (rule["id"].clone(), rule["times"].clone(), rule["fired"].clone()))
        .collect();
    let wanted: [(Value, Value, Value); 2] =
        [(1.into(), 2.into(), 2.into()), (2.into(), Value::Null, 2.into())];
    assert_eq!(fired, wanted);
    rig.control("/_control", json!({ "clear": true })).await;
    assert_eq!(rig.refund(None).await.status, 200);
}

#[tokio::test]
async fn a_rule_that_cannot_be_meant_is_refused_with_what_is_wrong() {
    let rig = Rig::start().await;
    for (rule, word) in [
        (json!({ "fault": "delay" }), "ms"),
        (json!({ "fault": "explode" }), "explode"),
        (json!({ "fault": "delay", "ms": 1, "seconds": 2 }), "seconds"),
        (json!({ "fault": "status", "code": 99 }), "99"),
        (json!({ "fault": "status", "code": 200, "headers": { "a": "b\n" } }), "header `a`"),
        (json!({ "fault": "hold", "times": -1 }), "times"),
        (json!({ "fault": "hold", "match": { "host": "x" } }), "host"),
        (json!({ "fault": "reset-before-read", "act": true }), "act"),
        (json!({ "fault": "continues", "n": 1, "code": 101 }), "101"),
        (json!({ "mode": "sometimes" }), "sometimes"),
        (json!({ "rules": [], "speed": 2 }), "speed"),
    ] {
        let refused = rig.control("/_control", rule).await;
        assert_eq!(refused.status, 400, "{}", refused.text);
        assert!(refused.text.contains(word), "{word}: {}", refused.text);
    }
    let state = rig.get("/_control").await.json();
    assert_eq!(state["rules"], json!([]));
}

#[test]
fn every_fault_reads_back_from_its_own_json() {
    let faults = [
        Fault::LoseReply,
        Fault::delay(5),
        Fault::status(503),
        Fault::ResetAtByte { n: 9 },
        Fault::ResetBeforeRead,
        Fault::hold(),
        Fault::Drip { ms: 1, n: 2 },
        Fault::Continues { n: 2, code: 100 },
        Fault::Truncate { n: None },
        Fault::BigBody { bytes: 1, chunked: true },
        Fault::Raw { body: "x".into() },
    ];
    for fault in faults {
        let rule = Rule::always("/v1/*", fault).method("POST");
        let text = serde_json::to_string(&rule).expect("JSON");
        let back: Rule = serde_json::from_str(&text).expect("a rule");
        assert_eq!(back, rule, "{text}");
        assert!(text.contains(rule.fault.name()), "{text}");
    }
}
