//! From `handle` to the gate and back: what is asked, how often, and when.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use countersign_domain::effect::{Passage, Refusal};
use countersign_domain::run::Ended;
use serde_json::json;

use super::rig::{Gate, answered, at, call, invoke, limit, mode, probe, returned, sandbox};

/// Rounds of what was a race before it was closed.
const ROUNDS: usize = 300;

#[tokio::test(flavor = "multi_thread")]
async fn a_request_arrives_whole_and_its_answer_comes_back() {
    let gate = Gate::new(|n, _| answered(n, 201, "made"));
    let steps = json!([{
        "method": "PUT", "url": "https://api.example:8443/a?b=c", "headers": { "X-One": "1" }, "body": "hello",
    }]);
    let report = invoke(probe(json!({ "mode": "script", "steps": steps })), &gate).await;
    let answer = &returned(&report)["answers"][0];
    assert_eq!((answer["status"].as_u64(), answer["body"].as_str()), (Some(201), Some("made")));
    assert_eq!(gate.count(), 1);
    let request = gate.request(0);
    assert_eq!(request.method, "PUT");
    assert_eq!(request.scheme.as_deref(), Some("https"));
    assert_eq!(request.authority.as_deref(), Some("api.example:8443"));
    assert_eq!(request.path_with_query.as_deref(), Some("/a?b=c"));
    assert_eq!(request.headers, [("x-one".to_owned(), "1".to_owned())]);
    assert_eq!(request.body, b"hello");
}

#[tokio::test(flavor = "multi_thread")]
async fn refund_asks_for_one_effect_and_returns_the_providers_words() {
    let gate = Gate::new(|n, _| {
        answered(n, 200, r#"{"id":"re_1","status":"succeeded","amount":1250,"currency":"eur"}"#)
    });
    let arguments = json!({ "payment_intent": "pi_1", "amount": 1250, "currency": "eur" });
    let report = invoke(call("refund", arguments), &gate).await;
    assert_eq!(returned(&report)["id"], "re_1");
    assert_eq!(gate.count(), 1);
    let body = String::from_utf8(gate.request(0).body).unwrap();
    assert!(body.contains("amount=1250") && body.contains("0b5ae1f2-6c3d-8e4f-9a0b-1c2d3e4f5a6b"), "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn b11_a_body_torn_down_in_the_middle_is_never_submitted() {
    for round in 0..ROUNDS {
        let gate = Gate::yes();
        let mut arguments = mode("truncated-body");
        arguments["n"] = json!(if round % 2 == 0 { 8_192 } else { 600_000 });
        let report = invoke(probe(arguments), &gate).await;
        assert!(matches!(report.ended, Ended::Trapped { .. }), "{:?}", report.ended);
        assert_eq!(gate.count(), 0, "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn b17_a_finished_request_whose_future_is_dropped_is_sent_once_and_recorded() {
    for round in 0..ROUNDS {
        let gate = Gate::yes();
        let report = invoke(probe(mode("drop-future")), &gate).await;
        returned(&report);
        assert_eq!((gate.count(), gate.recorded()), (1, 1), "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn b17_a_trap_before_any_wait_sends_nothing_however_fast_the_host_is() {
    for round in 0..ROUNDS {
        let gate = Gate::yes();
        let report = invoke(probe(mode("trap-in-flight")), &gate).await;
        assert!(matches!(report.ended, Ended::Trapped { .. }), "{:?}", report.ended);
        assert_eq!((gate.count(), gate.recorded()), (0, 0), "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn b17_a_trap_after_the_answer_leaves_one_recorded_send() {
    let gate = Gate::yes();
    let report = invoke(probe(mode("write-then-trap")), &gate).await;
    assert!(matches!(report.ended, Ended::Trapped { limit: None, .. }), "{:?}", report.ended);
    assert_eq!((gate.count(), gate.recorded()), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn b17_a_run_that_ends_by_the_clock_returns_only_when_the_gate_is_done() {
    let gate = Gate::held();
    let mut call = probe(mode("forbidden-host"));
    call.limits.wall = Duration::from_secs(1);
    let mut running = tokio::spawn({
        let gate = gate.clone();
        async move { invoke(call, &gate).await }
    });
    gate.arrived.acquire().await.unwrap().forget();
    let early = tokio::time::timeout(Duration::from_millis(1_500), &mut running).await;
    assert!(early.is_err(), "it returned while the gate was at work");
    assert_eq!(gate.recorded(), 0);
    gate.permits.as_ref().unwrap().add_permits(1);
    let report = running.await.unwrap();
    assert_eq!(limit(&report), "wall");
    assert_eq!((gate.count(), gate.recorded()), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn b17_a_caller_that_goes_away_does_not_take_the_gate_along() {
    for _ in 0..50 {
        let gate = Gate::held();
        let running = tokio::spawn({
            let gate = gate.clone();
            async move { invoke(probe(mode("forbidden-host")), &gate).await }
        });
        gate.arrived.acquire().await.unwrap().forget();
        running.abort();
        assert!(running.await.unwrap_err().is_cancelled());
        gate.permits.as_ref().unwrap().add_permits(1);
        while gate.recorded() == 0 {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn b17_a_store_dropped_at_any_of_a_thousand_moments_takes_no_send_along() {
    // How long a whole run takes here and now; a moment is a part of that and a little more.
    let begun = Instant::now();
    for _ in 0..20 {
        returned(&invoke(probe(mode("forbidden-host")), &Gate::yes()).await);
    }
    let most = begun.elapsed() / 20 * 5 / 4;
    let mut gates = Vec::new();
    for round in 0..1_000_u32 {
        let gate = Gate::yes();
        let running = tokio::spawn({
            let gate = gate.clone();
            let kind = ["drop-future", "forbidden-host", "write-then-trap"][round as usize % 3];
            async move { invoke(probe(mode(kind)), &gate).await }
        });
        // Moments in an order that repeats none (the golden ratio's multiples).
        let moment = Instant::now() + most * (round.wrapping_mul(2_654_435_769) >> 16) / (1 << 16);
        while Instant::now() < moment {
            tokio::task::yield_now().await;
        }
        running.abort();
        drop(running.await);
        gates.push(gate);
    }
    // Whatever had begun comes to its record, and nothing begins twice.
    for gate in &gates {
        while gate.recorded() < gate.count() {
            tokio::task::yield_now().await;
        }
        assert!(gate.count() <= 1);
    }
    let sent = gates.iter().filter(|gate| gate.count() == 1).count();
    assert!((1..gates.len()).contains(&sent), "moments before and after the send: {sent} of 1,000");
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_ends_the_component_and_nothing_more_is_asked() {
    let gate = Gate::new(|n, _| if n == 0 { answered(0, 200, "ok") } else { Passage::Stopped });
    let mut arguments = mode("writes");
    arguments["bodies"] = json!(["one", "two", "three"]);
    let report = invoke(probe(arguments), &gate).await;
    assert_eq!(report.ended, Ended::Stopped);
    assert_eq!(gate.count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_counts_even_when_the_component_did_not_wait_for_the_answer() {
    let gate = Gate::new(|_, _| Passage::Stopped);
    assert_eq!(invoke(probe(mode("drop-future")), &gate).await.ended, Ended::Stopped);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gate_that_panics_ends_the_run_and_not_the_host() {
    let gate = Gate::new(|_, _| panic!("on purpose"));
    let report = invoke(probe(mode("forbidden-host")), &gate).await;
    assert!(matches!(report.ended, Ended::Unavailable(_)), "{:?}", report.ended);
    returned(&invoke(probe(mode("no-effect")), &Gate::yes()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn c02_a_refusal_reaches_the_component_as_a_code_without_words() {
    let secret = "the grant says so";
    let cases = [
        (Refusal::NotGranted(secret.to_owned()), "HttpRequestDenied"),
        (Refusal::AddressProhibited(secret.to_owned()), "DestinationIpProhibited"),
        (Refusal::BodyTooLarge(7), "HttpRequestBodySize(Some(7))"),
        (Refusal::MayHaveHappened(secret.to_owned()), "HttpRequestDenied"),
        (Refusal::TooMany(3), "ConnectionLimitReached"),
    ];
    for (refusal, code) in cases {
        let gate = Gate::new(move |n, _| Passage::Refused { refusal: refusal.clone(), at: at(n) });
        let report = invoke(probe(mode("forbidden-host")), &gate).await;
        assert_eq!(returned(&report)["error"], code);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn effects_started_at_once_are_submitted_one_after_the_other_in_order() {
    let bodies: Vec<String> = (0..20).map(|n| format!("body {n}")).collect();
    let gate = Gate::new(|n, request| answered(n, 200, std::str::from_utf8(&request.body).unwrap()));
    let mut arguments = mode("at-once");
    arguments["bodies"] = json!(bodies);
    let report = invoke(probe(arguments), &gate).await;
    let answers: Vec<String> = returned(&report)["answers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|a| a["body"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(answers, bodies, "each answer belongs to its request");
    let asked: Vec<String> =
        gate.seen.lock().unwrap().iter().map(|r| String::from_utf8(r.body.clone()).unwrap()).collect();
    assert_eq!(asked, bodies);
    assert_eq!(gate.most_at_once.load(Ordering::SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn more_requests_at_once_than_the_host_keeps_are_refused_and_not_lost() {
    let gate = Gate::yes();
    let mut arguments = mode("at-once");
    arguments["bodies"] = json!(vec!["x"; 40]);
    let report = invoke(probe(arguments), &gate).await;
    let result = returned(&report);
    let refused = result["answers"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|a| a["error"] == "ConnectionLimitReached")
        .count();
    assert_eq!((gate.count(), refused), (32, 8));
}

#[tokio::test(flavor = "multi_thread")]
async fn b08_forbidden_headers_are_errors_and_never_leave() {
    let names = [
        "authorization",
        "cookie",
        "proxy-authorization",
        "host",
        "idempotency-key",
        "x-idempotency-key",
        "expect",
        "te",
        "accept-encoding",
        "forwarded",
        "x-forwarded-for",
        "via",
        "traceparent",
        "connection",
        "upgrade",
        "http2-settings",
    ];
    let gate = Gate::yes();
    let mut arguments = mode("forbidden-headers");
    arguments["headers"] = json!(names);
    let mut call = probe(arguments);
    call.forbidden_headers = Arc::new(names.iter().map(|n| (*n).to_owned()).collect::<BTreeSet<_>>());
    let result = returned(&invoke(call, &gate).await);
    for name in names {
        for way in ["set", "append", "from_list", "clone"] {
            assert_eq!(result["headers"][name][way], "forbidden", "{name} by {way}");
        }
    }
    assert_eq!(gate.request(0).headers, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn b09_request_trailers_are_dropped() {
    let gate = Gate::yes();
    let mut arguments = mode("trailers");
    arguments["headers"] = json!(["x-late"]);
    let report = invoke(probe(arguments), &gate).await;
    assert_eq!(returned(&report)["answer"]["status"], 200);
    let request = gate.request(0);
    assert_eq!((request.headers.len(), request.body.as_slice()), (0, &b"hello"[..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn b11_a_length_that_is_not_the_bodys_is_never_submitted() {
    for n in [0, 4, 6, 10_000] {
        let gate = Gate::yes();
        let mut arguments = mode("wrong-length");
        arguments["n"] = json!(n);
        let report = invoke(probe(arguments), &gate).await;
        let result = returned(&report);
        assert_eq!(result["content_length"], "accepted");
        assert!(result["answer"]["error"].is_string(), "{result}");
        assert_eq!(gate.count(), 0, "{n}");
    }
    let gate = Gate::yes();
    let mut arguments = mode("wrong-length");
    arguments["n"] = json!(5);
    returned(&invoke(probe(arguments), &gate).await);
    assert_eq!(gate.count(), 1, "the right length is one");
}

#[tokio::test(flavor = "multi_thread")]
async fn b11_a_body_that_is_dropped_unfinished_is_an_error_and_not_sent() {
    let gate = Gate::yes();
    let report = invoke(probe(mode("dont-finish")), &gate).await;
    assert!(returned(&report)["error"].is_string());
    assert_eq!(gate.count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a07_waiting_for_the_answer_to_an_unfinished_request_ends_at_once() {
    let gate = Gate::yes();
    let report = invoke(probe(mode("hold-body")), &gate).await;
    match &report.ended {
        Ended::Trapped { why, limit: None } => assert!(why.contains("cannot come"), "{why}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(gate.count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_over_its_limit_is_refused_with_the_limit() {
    for (bytes, sent) in [(100_000, 1), (100_001, 0)] {
        let gate = Gate::yes();
        let mut arguments = mode("forbidden-host");
        arguments["body"] = json!("x".repeat(bytes));
        let mut call = probe(arguments);
        call.limits.request_body = 100_000;
        let report = invoke(call, &gate).await;
        assert_eq!(gate.count(), sent, "{bytes}");
        if sent == 0 {
            assert_eq!(returned(&report)["error"], "HttpRequestBodySize(Some(100000))");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_body_arrives_as_it_was_written() {
    let gate = Gate::yes();
    let body: String = (0..90_000).map(|n| format!("{n:07} ")).collect();
    let mut arguments = mode("forbidden-host");
    arguments["body"] = json!(body);
    returned(&invoke(probe(arguments), &gate).await);
    assert_eq!(gate.request(0).body, body.as_bytes());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_preview_reaches_nobody() {
    let preview = sandbox().await.preview(probe(mode("preview-write"))).await.unwrap();
    assert_eq!(preview.title, "Probe");
    assert!(preview.fields[1].value.contains("HttpRequestDenied"), "{preview:?}");
}
