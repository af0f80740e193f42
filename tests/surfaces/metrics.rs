//! `GET /metrics`: who may read it, on which hosts it is, and that its numbers are what happened.

use crate::on_both_stores;
use crate::support::{Backend, Fault, Mode, Rule, Stage, grants};

on_both_stores! {
    what_happened_is_counted_once_and_what_waits_is_what_waits,
}

fn scrape(stage: &Stage) -> String {
    let told = stage.host.operator().get("/metrics");
    assert_eq!(told.status(), 200);
    let kind = told.answer.header("content-type").expect("a type");
    assert!(kind.starts_with("text/plain; version=0.0.4"), "{kind}");
    told.answer.text()
}

#[track_caller]
fn line(text: &str, line: &str) {
    assert!(text.lines().any(|found| found == line), "no line {line:?} in:\n{text}");
}

fn what_happened_is_counted_once_and_what_waits_is_what_waits(on: Backend) {
    let stage = Stage::on(on);
    let done = stage.approved("refund", "done", &stage.refund("done", 100));
    assert_eq!(stage.execute(&done).outcome(), "succeeded");
    // Asked again: no second claim, no second send.
    assert_eq!(stage.execute(&done).outcome(), "succeeded");
    stage.propose("refund", "waits", &stage.refund("waits", 100)).expect(201);
    stage.propose("refund", "waits", &stage.refund("waits", 100)).expect(200);
    // One whose outcome nobody will know but a person.
    stage.provider.set_mode(Mode::Ignores);
    let grant = grants::grant(
        "show = [\"/mode\"]\n[limits]\nsend = \"700ms\"",
        &[grants::Route::manual(stage.provider.port(), "/any/**")],
    );
    stage.install_probe("manual", &grant);
    stage.provider.fault(Rule::once("/any/lost", Fault::LoseReply));
    let write = serde_json::json!({ "mode": "writes", "url": stage.url("/any/lost"), "bodies": ["once"] });
    let lost = stage.approved("manual", "lost", &write);
    stage.execute(&lost).refused(409, "execution_in_doubt");

    let text = scrape(&stage);
    line(&text, "countersign_proposals_total 3");
    line(&text, "countersign_transitions_total{to=\"succeeded\"} 1");
    line(&text, "countersign_transitions_total{to=\"outcome_unknown\"} 1");
    line(&text, "countersign_claims_total{of=\"write\",outcome=\"made\"} 2");
    line(&text, "countersign_sends_total{class=\"provider-idempotent\",outcome=\"answered\"} 1");
    line(&text, "countersign_sends_total{class=\"manual\",outcome=\"unknown\"} 1");
    line(&text, "countersign_actions{state=\"awaiting_approval\"} 1");
    line(&text, "countersign_actions{state=\"outcome_unknown\"} 1");
    line(&text, "countersign_waiting_for_person{for=\"approval\"} 1");
    line(&text, "countersign_store_up 1");
    line(&text, "countersign_attempts_running 0");
    for part in ["countersign_store_step_seconds_bucket{", "countersign_process_resident_memory_bytes "] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("refund") && !text.contains("default"), "no label is anybody's name: {text}");

    let agent = stage.host.agent().get("/metrics");
    agent.refused(403, "not_permitted");
    let nobody = crate::support::http::Request::new("GET", "/metrics").send(&stage.host.address());
    assert_eq!(nobody.expect("an answer").status, 401);
}

#[test]
fn a_worker_answers_no_caller_but_says_how_it_is_and_what_it_did() {
    let Some(on) = crate::support::backend::on_postgres() else { return };
    let stage = Stage::on(on);
    let worker = stage.host.beside(on.lease());
    worker.wake_with(worker.command().args(["--role", "worker"]));
    worker.operator().get("/healthz").expect(200);
    worker.operator().get("/readyz").expect(200);
    assert_eq!(worker.operator().get("/metrics").status(), 200);
    worker.agent().get("/metrics").refused(403, "not_permitted");
    worker.agent().get("/v1/actions").refused(404, "not_found");
}
