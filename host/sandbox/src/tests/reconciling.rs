//! A tool that asks its provider what became of a send.

use std::sync::Arc;
use std::time::Duration;

use countersign_domain::effect::{EffectKind, EffectRecord, EffectStatus, RecordedRequest, Terms};
use countersign_domain::grant::{On5xx, RecoveryClass};
use countersign_domain::id::{Digest, EffectFingerprint, Ordinal, SendNumber};
use countersign_domain::run::Ended;
use serde_json::json;

use super::rig::{Gate, STARTED, answered, call, sandbox};
use crate::Verdict;

fn unknown_effect() -> EffectRecord {
    let minute = Duration::from_secs(60);
    EffectRecord {
        ordinal: Ordinal(3),
        kind: EffectKind::Http,
        write: true,
        terms: Terms {
            class: RecoveryClass::Verifiable,
            key_window: minute,
            in_flight_status: 409,
            replay_header: None,
            on_5xx: On5xx::Unknown,
            send: minute,
            settle: minute,
        },
        fingerprint: EffectFingerprint(Digest::of(b"effect")),
        request: RecordedRequest {
            method: "POST".to_owned(),
            url: "https://api.bank.example/transfers".to_owned(),
            headers: vec![("content-type".to_owned(), "application/json".to_owned())],
            body: b"{}".to_vec(),
        },
        provider_key: Some("key-3".to_owned()),
        status: EffectStatus::Unknown,
        attempt: "00000000-0000-4000-8000-000000000000".parse().unwrap(),
        send: SendNumber(1),
        first_sent: Some(STARTED),
        last_sent: Some(STARTED),
        may_have_arrived: true,
        unknown_since: Some(STARTED),
        answer: None,
        refusal: None,
        set_aside: false,
        evidence: None,
        recorded_at: None,
    }
}

async fn ask(name: &str, status: u16, body: &str) -> (Result<Verdict, Ended>, Arc<Gate>) {
    let body = body.to_owned();
    let gate = Gate::new(move |n, _| answered(n, status, &body));
    let arguments = json!({ "from": "a", "to": "b", "amount": 5, "currency": "eur" });
    let call = call(name, arguments);
    let report = sandbox().await.reconcile(call, &unknown_effect(), gate.clone()).await;
    (report.verdict, gate)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_providers_answer_becomes_a_verdict() {
    let (verdict, gate) = ask("transfer", 201, r#"{"id":"tr_9"}"#).await;
    match verdict {
        Ok(Verdict::Done(answer)) => {
            assert_eq!((answer.status, answer.body.as_slice()), (201, &br#"{"id":"tr_9"}"#[..]));
            assert_eq!(answer.header("content-type"), Some("text/plain"));
        }
        other => panic!("{other:?}"),
    }
    let request = gate.request(0);
    assert_eq!((gate.count(), request.method.as_str()), (1, "GET"));
    assert_eq!(request.path_with_query.as_deref(), Some("/lookup?key=key-3"));

    assert_eq!(ask("transfer", 404, r#"{"error":"not_found"}"#).await.0, Ok(Verdict::NotDone));
    assert_eq!(ask("transfer", 404, "<html>").await.0, Ok(Verdict::Unknown));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_without_a_reconciler_is_not_asked() {
    let (verdict, gate) = ask("refund", 200, "{}").await;
    assert!(matches!(verdict, Err(Ended::Unavailable(_))), "{verdict:?}");
    assert_eq!(gate.count(), 0);
}
