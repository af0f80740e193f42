//! Keys: what is replayed, what is refused, what is forgotten, what can be looked up.

use serde_json::json;

use super::super::keys::{Found, Keys};
use super::super::message::Answer;
use super::super::wire::{Fault, Mode, Rule};
use super::{Rig, bank_text, refund_text};

#[tokio::test]
async fn the_same_key_and_body_get_the_stored_answer_and_one_effect() {
    let rig = Rig::start().await;
    let first = rig.refund(Some("k")).await;
    let second = rig.refund(Some("k")).await;
    assert_eq!((first.status, second.status), (200, 200));
    assert_eq!(first.text, second.text);
    assert!(!first.is_replayed() && second.is_replayed());
    assert_eq!(rig.effects(), 1);
    let outcomes: Vec<_> = rig
        .events("request", "/v1/refunds")
        .into_iter()
        .map(|line| (line.outcome.unwrap_or_default(), line.replayed))
        .collect();
    assert_eq!(outcomes, [("fresh".to_owned(), false), ("replayed".to_owned(), true)]);
    let body = first.json();
    assert_eq!(body["object"], "refund");
    assert_eq!(body["amount"], 100);
    assert_eq!(body["payment_intent"], "pi_1");
    let read = rig.get(&format!("/v1/refunds/{}", body["id"].as_str().expect("id"))).await;
    assert_eq!(read.text, first.text);
}

#[tokio::test]
async fn the_same_key_for_another_body_or_path_is_refused_without_an_effect() {
    let rig = Rig::start().await;
    rig.refund(Some("k")).await;
    let other = refund_text(Some("k"), "payment_intent=pi_1&amount=101");
    for text in [other, bank_text("/reserve", Some("k"), "{}")] {
        let refused = rig.send(&text).await;
        assert_eq!(refused.status, 400);
        assert_eq!(refused.json()["error"]["type"], "idempotency_error");
    }
    assert_eq!(rig.effects(), 1);
}

#[tokio::test]
async fn the_same_key_while_the_first_is_in_flight_is_told_so_until_it_ends() {
    let rig = Rig::start().await;
    rig.fault(Rule::once("/v1/refunds", Fault::hold())).await;
    let held = rig.refund(Some("k"));
    let meanwhile = async {
        rig.wait("reached", "/v1/refunds", 1).await;
        let busy = rig.refund(Some("k")).await;
        assert_eq!(busy.status, 409);
        assert_eq!(busy.json()["error"]["code"], "idempotency_key_in_use");
        rig.wait("held", "*", 1).await;
        rig.release().await;
    };
    let (first, ()) = tokio::join!(held, meanwhile);
    assert_eq!(first.status, 200);
    let repeat = rig.refund(Some("k")).await;
    assert!(repeat.is_replayed());
    assert_eq!(repeat.text, first.text);
    assert_eq!(rig.effects(), 1);
}

#[tokio::test]
async fn a_settled_hold_is_replayed_while_it_is_held() {
    let rig = Rig::start().await;
    let fault = Fault::Hold { before: false, settled: true };
    rig.fault(Rule::once("/v1/refunds", fault)).await;
    let (first, repeat) = tokio::join!(rig.refund(Some("k")), async {
        rig.wait("held", "*", 1).await;
        let repeat = rig.refund(Some("k")).await;
        rig.release().await;
        repeat
    });
    assert!(repeat.is_replayed());
    assert_eq!(repeat.text, first.text);
}

#[tokio::test]
async fn two_hundred_at_once_under_one_key_have_one_effect() {
    let rig = Rig::start().await;
    let all = futures_of(200, |_| rig.refund(Some("k"))).await;
    let won = all.iter().filter(|r| r.status == 200 && !r.is_replayed());
    assert_eq!(won.count(), 1);
    assert!(all.iter().all(|r| r.status == 200 || r.status == 409));
    assert_eq!(rig.effects(), 1);
    assert_eq!(rig.events("request", "/v1/refunds").len(), 200);
}

#[tokio::test]
async fn without_a_key_every_request_acts() {
    let rig = Rig::start().await;
    let (first, second) = (rig.refund(None).await, rig.refund(None).await);
    assert_ne!(first.json()["id"], second.json()["id"]);
    assert_eq!(rig.effects(), 2);
}

#[test]
fn a_key_is_kept_to_the_last_millisecond_and_forgotten_at_its_retention() {
    let keys = Keys::default();
    let answer = Answer::json(200, &json!({}));
    let Found::Fresh(ticket) = keys.begin("k", [1; 32], 5, 1000) else {
        panic!("a new key is fresh");
    };
    // However old, a key whose request still runs is in use.
    assert!(matches!(keys.begin("k", [1; 32], 9_999_999, 1000), Found::InFlight));
    ticket.finish(answer.clone());
    assert!(matches!(keys.begin("k", [1; 32], 1004, 1000), Found::Stored(stored) if stored == answer));
    assert!(matches!(keys.begin("k", [2; 32], 1004, 1000), Found::Different));
    assert!(matches!(keys.begin("k", [2; 32], 1005, 1000), Found::Fresh(_)));
}

#[tokio::test]
async fn a_forgotten_key_acts_again() {
    let rig = Rig::start().await;
    rig.refund(Some("k")).await;
    let hour = json!({ "advance_ms": 1000 * 60 * 60 });
    assert_eq!(rig.control("/_control/clock", hour).await.status, 200);
    let again = rig.refund(Some("k")).await;
    assert_eq!(again.status, 200);
    assert!(!again.is_replayed());
    assert_eq!(rig.effects(), 2);
}

#[tokio::test]
async fn retention_and_mode_can_be_changed_while_it_runs() {
    let rig = Rig::start().await;
    rig.refund(Some("k")).await;
    let state = rig.control("/_control", json!({ "mode": "forgets" })).await.json();
    assert_eq!(state["key_retention_ms"], 60_000);
    rig.control("/_control/clock", json!({ "advance_ms": 60_000 })).await;
    assert!(!rig.refund(Some("k")).await.is_replayed());
    rig.control("/_control", json!({ "mode": "honours", "key_retention_ms": 90_000 })).await;
    rig.control("/_control/clock", json!({ "advance_ms": 60_000 })).await;
    assert!(rig.refund(Some("k")).await.is_replayed());
    rig.control("/_control", json!({ "mode": "ignores" })).await;
    assert!(!rig.refund(Some("k")).await.is_replayed());
    assert_eq!(rig.effects(), 3);
}

#[tokio::test]
async fn a_refusal_before_any_work_leaves_the_key_free_and_a_decline_keeps_it() {
    let rig = Rig::start().await;
    let bad = refund_text(Some("k"), "payment_intent=pi_1&amount=ten");
    assert_eq!(rig.send(&bad).await.status, 400);
    assert_eq!(rig.refund(Some("k")).await.status, 200);
    let declined = refund_text(Some("d"), "payment_intent=pi_declined_1&amount=100");
    let (first, second) = (rig.send(&declined).await, rig.send(&declined).await);
    assert_eq!((first.status, second.status), (402, 402));
    assert_eq!(first.json()["error"]["type"], "card_error");
    assert!(second.is_replayed());
    assert_eq!(rig.effects(), 1);
}

#[tokio::test]
async fn two_keys_on_one_request_are_refused() {
    let rig = Rig::start().await;
    let text = refund_text(Some("a\r\nidempotency-key: b"), "payment_intent=pi_1&amount=1");
    assert_eq!(rig.send(&text).await.status, 400);
    assert_eq!(rig.effects(), 0);
    let line = rig.events("request", "*").remove(0);
    let named = line.headers.iter().filter(|name| *name == "idempotency-key");
    assert_eq!(named.count(), 2);
}

#[tokio::test]
async fn a_bank_that_ignores_keys_acts_each_time_and_can_be_asked_what_it_did() {
    let rig = Rig::start_with(Mode::Ignores).await;
    assert_eq!(rig.get("/lookup?key=tool-action:1:2").await.status, 404);
    let text = bank_text("/transfers", Some("tool-action:1:2"), r#"{"amount":5,"to":"x"}"#);
    let (first, second) = (rig.send(&text).await, rig.send(&text).await);
    assert_ne!(first.json()["id"], second.json()["id"]);
    assert_eq!(rig.effects(), 2);
    let found = rig.get("/lookup?key=tool-action%3A1%3A2").await;
    assert_eq!((found.status, &found.text), (200, &first.text));
    assert!(found.head.contains("lookup-count: 2"), "{}", found.head);
    assert!(found.head.contains("lookup-path: /transfers"), "{}", found.head);
}

#[tokio::test]
async fn the_bank_can_ignore_keys_while_refunds_honour_them() {
    let rig = Rig::start().await;
    rig.control("/_control", json!({ "bank_mode": "ignores" })).await;
    let notify = bank_text("/notify", Some("n"), "{}");
    rig.send(&notify).await;
    rig.send(&notify).await;
    rig.refund(Some("r")).await;
    rig.refund(Some("r")).await;
    assert_eq!(rig.events("effect", "/notify").len(), 2);
    assert_eq!(rig.events("effect", "/v1/refunds").len(), 1);
}

#[tokio::test]
async fn a_bank_that_honours_keys_replays_each_of_its_four_writes() {
    let rig = Rig::start().await;
    for path in ["/reserve", "/transfers", "/ledger", "/notify"] {
        let text = bank_text(path, Some(path), r#"{"amount":5}"#);
        let (first, second) = (rig.send(&text).await, rig.send(&text).await);
        assert_eq!(first.status, 200);
        assert!(first.json()["id"].is_string());
        assert_eq!(first.text, second.text);
        assert!(second.is_replayed());
    }
    assert_eq!(rig.effects(), 4);
}

#[tokio::test]
async fn a_quote_is_a_read_with_the_same_answer_each_time() {
    let rig = Rig::start().await;
    let target = "/quote?from=acc_1&to=acc_2&amount=5000&currency=EUR";
    let (first, second) = (rig.get(target).await, rig.get(target).await);
    assert_eq!(first.status, 200);
    assert_eq!(first.text, second.text);
    assert_eq!(first.json()["fee"], 30);
    assert_eq!(rig.get("/quote?from=a&to=b&amount=5").await.status, 400);
    assert_eq!(rig.effects(), 0);
}

/// Runs many at once on one thread.
pub async fn futures_of<F: Future>(count: usize, make: impl Fn(usize) -> F) -> Vec<F::Output> {
    let mut running: Vec<_> = (0..count).map(|n| Box::pin(make(n))).collect();
    let mut done: Vec<Option<F::Output>> = (0..count).map(|_| None).collect();
    std::future::poll_fn(|cx| {
        let mut waiting = false;
        for (future, slot) in running.iter_mut().zip(&mut done) {
            if slot.is_none() {
                match future.as_mut().poll(cx) {
                    std::task::Poll::Ready(value) => *slot = Some(value),
                    std::task::Poll::Pending => waiting = true,
                }
            }
        }
        match waiting {
            true => std::task::Poll::Pending,
            false => std::task::Poll::Ready(()),
        }
    })
    .await;
    done.into_iter().flatten().collect()
}
