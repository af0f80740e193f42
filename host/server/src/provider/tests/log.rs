//! The log: on the disk before the answer, complete, in order, and without secrets.

use std::path::PathBuf;

use serde_json::json;

use super::super::wire::Mode;
use super::{Rig, post_text};

#[tokio::test]
async fn every_answer_finds_its_lines_already_in_the_file() {
    let rig = Rig::start().await;
    for n in 1..=20 {
        rig.refund(None).await;
        assert_eq!(rig.effects(), n);
        assert_eq!(rig.events("request", "/v1/refunds").len(), n);
    }
}

#[tokio::test]
async fn numbers_are_gapless_and_an_effect_follows_its_request_under_load() {
    let rig = Rig::start().await;
    super::idempotency::futures_of(100, |n| {
        let key = format!("k{}", n % 10);
        let rig = &rig;
        async move { rig.refund(Some(&key)).await }
    })
    .await;
    let lines = super::read_log(&rig.log).expect("the log");
    for (at, line) in lines.iter().enumerate() {
        assert_eq!(line.seq, at as u64 + 1);
        if line.event == "effect" {
            let request = line.request_seq.and_then(|seq| lines.get(seq as usize - 1));
            let request = request.expect("its request");
            assert_eq!((request.event.as_str(), &request.key), ("request", &line.key));
        }
    }
    assert_eq!(rig.effects(), 10);
}

#[tokio::test]
async fn secrets_are_reflected_by_echo_and_never_in_the_log() {
    let rig = Rig::start().await;
    let secret = "sk_test_4eC39HqLyjWDarjtT1zdp7dc";
    let headers = format!("authorization: Bearer {secret}\r\ncookie: session={secret}\r\n");
    let reply = rig.send(&post_text("/echo", &headers, "text/plain", "hello")).await;
    let body = reply.json();
    assert_eq!(body["headers"]["authorization"], format!("Bearer {secret}"));
    assert_eq!(body["body"], "hello");
    let text = std::fs::read_to_string(&rig.log).expect("the log");
    assert!(!text.contains(secret), "{text}");
    let line = rig.events("request", "/echo").remove(0);
    assert!(line.authorization_present);
    assert_eq!(line.authorization_sha256.map(|hash| hash.len()), Some(12));
    assert!(line.headers.contains(&"cookie".to_owned()));
    assert_eq!(line.body.as_deref(), Some("hello"));
}

#[tokio::test]
async fn the_log_can_be_read_and_counted_over_http() {
    let rig = Rig::start().await;
    rig.refund(Some("a")).await;
    rig.refund(Some("a")).await;
    rig.refund(Some("b")).await;
    for (query, count) in [
        ("event=effect&path=/v1/refunds", 2),
        ("event=effect&path=/v1/*&key=a", 1),
        ("event=request&key=a", 2),
        ("event=request&outcome=replayed", 1),
        ("event=effect&kind=transfer", 0),
    ] {
        let answer = rig.get(&format!("/_count?{query}")).await;
        assert_eq!(answer.json(), json!({ "count": count }), "{query}");
    }
    let lines = rig.get("/_log").await.json();
    assert_eq!(lines.as_array().map(Vec::len), Some(5));
}

#[tokio::test]
async fn a_restarted_provider_goes_on_after_a_torn_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("provider.jsonl");
    let whole = r#"{"seq":7,"event":"effect","path":"/v1/refunds","effect_id":"re_00000001"}"#;
    std::fs::write(&log, format!("{whole}\n{{\"seq\":8,\"eve")).expect("written");
    let rig = Rig::on(folder, log, Mode::Honours).await;
    let reply = rig.refund(None).await;
    assert_eq!(reply.json()["id"], "re_00000002");
    let request = rig.events("request", "*").remove(0);
    assert_eq!(request.seq, 8);
    assert_eq!(rig.effects(), 2);
    assert!(rig.folder.path().exists());
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn nothing_is_answered_once_the_log_cannot_be_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut rig = Rig::on(folder, PathBuf::from("/dev/full"), Mode::Honours).await;
    let text = super::refund_text(None, "payment_intent=pi_1&amount=100");
    let (bytes, _) = rig.exchange(&text).await;
    assert!(bytes.is_empty());
    let error = rig.fatal.recv().await.expect("said out loud");
    assert!(error.contains("space"), "{error}");
}
