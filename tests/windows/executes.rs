//! One action, executed by many at once.

use std::collections::BTreeSet;

use crate::on_both_stores;
use crate::support::host::tally;
use crate::support::stage::REFUNDS;
use crate::support::{Backend, Fault, Host, Rule, Stage, Told, at_once, long};

on_both_stores! {
    p3_many_executes_at_once_send_once_and_all_get_the_same_result_bytes,
    p3_losers_wait_for_the_winner_that_is_slow_and_never_run_it_themselves,
    five_effects_executed_by_eight_at_once_are_made_once_each,
    a_caller_that_hangs_up_changes_nothing_it_runs_on_and_is_recorded,
    an_action_that_runs_by_itself_is_sent_once_although_it_is_executed_as_well,
}

fn p3_many_executes_at_once_send_once_and_all_get_the_same_result_bytes(on: Backend) {
    let stage = Stage::on(on);
    for n in [2, 8, 64, 200] {
        let id = stage.approved("refund", &format!("many-{n}"), &stage.refund(&format!("many{n}"), 1250));
        let told = at_once(n, |_| stage.execute(&id));
        assert_eq!(tally(told.iter().map(Told::outcome)), tally(vec!["succeeded".to_owned(); n]));
        let results: BTreeSet<String> = told.iter().map(|told| told.raw("result")).collect();
        assert_eq!(results.len(), 1, "{results:?}");
        assert!(results.iter().all(|result| result.contains("succeeded")), "{results:?}");
        let winners = told.iter().filter(|told| !told.is_replayed()).count();
        assert_eq!(winners, 1, "exactly one caller ran it");
        assert_eq!(stage.counts(REFUNDS, &id), (1, 1));
        assert_eq!(stage.facts(&id), ["proposed", "approval_required", "approved", "claimed", "succeeded"]);
    }
}

fn p3_losers_wait_for_the_winner_that_is_slow_and_never_run_it_themselves(on: Backend) {
    let stage = Stage::on(on);
    let id = stage.approved("refund", "slow", &stage.refund("slow", 1250));
    stage.provider.fault(Rule::once(REFUNDS, Fault::hold()));
    let told = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..16).map(|_| scope.spawn(|| stage.execute(&id))).collect();
        stage.provider.wait_held(1);
        // Whoever does not wait is told that it runs.
        let now = stage.start_execute(&id);
        assert_eq!((now.status(), now.outcome().as_str()), (202, "executing"));
        assert!(now.answer.header("retry-after").is_some());
        stage.provider.release();
        callers.into_iter().map(|caller| caller.join().expect("a caller")).collect::<Vec<Told>>()
    });
    assert_eq!(tally(told.iter().map(Told::outcome)), tally(vec!["succeeded".to_owned(); 16]));
    assert_eq!(stage.counts(REFUNDS, &id), (1, 1));
}

fn five_effects_executed_by_eight_at_once_are_made_once_each(on: Backend) {
    let stage = Stage::on(on);
    for round in 0..long(3, 50) {
        let id = stage.approved("transfer", &format!("eight-{round}"), &stage.transfer(12_000));
        let told = at_once(8, |_| stage.execute(&id));
        assert_eq!(tally(told.iter().map(Told::outcome)), tally(vec!["succeeded".to_owned(); 8]));
        for path in ["/reserve", "/transfers", "/ledger", "/notify"] {
            assert_eq!(stage.counts(path, &id), (1, 1), "{path}");
        }
        let keys: BTreeSet<Option<String>> = stage
            .provider
            .log()
            .into_iter()
            .map(|line| line.key)
            .filter(|key| key.as_ref().is_some_and(|key| key.contains(&id)))
            .collect();
        assert_eq!(keys.len(), 4, "each write has a key of its own: {keys:?}");
    }
}

fn a_caller_that_hangs_up_changes_nothing_it_runs_on_and_is_recorded(on: Backend) {
    let stage = Stage::on(on);
    let id = stage.approved("refund", "gone", &stage.refund("gone", 100));
    stage.provider.fault(Rule::once(REFUNDS, Fault::hold()));
    let caller = stage.execute_unheard(&id);
    stage.provider.wait_held(1);
    drop(caller);
    stage.provider.release();
    let ended = stage.wait_for(&id, &["succeeded"]);
    // Whoever asks later gets the very result.
    let again = stage.execute(&id);
    assert!(again.is_replayed());
    assert_eq!(again.raw("result"), ended.raw("result"));
    assert_eq!(stage.counts(REFUNDS, &id), (1, 1));
}

#[test]
fn a_second_host_on_the_same_file_is_refused_and_told_who_holds_it() {
    let stage = Stage::set();
    let other = Host::asleep("");
    let store = format!("sqlite:{}", stage.host.file("countersign.db").display());
    let said = other.refuses_to_start(other.command().args(["--store", &store]));
    for part in ["another host", &format!("pid {}", stage.host.pid()), "countersign.db", "PostgreSQL"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    // The first one is none the worse for it.
    let id = stage.approved("refund", "still", &stage.refund("still", 100));
    assert_eq!(stage.execute(&id).outcome(), "succeeded");
    assert_eq!(stage.counts(REFUNDS, &id), (1, 1));
}

fn an_action_that_runs_by_itself_is_sent_once_although_it_is_executed_as_well(on: Backend) {
    let stage = Stage::on(on);
    for round in 0..10 {
        let body = serde_json::json!({ "tool": "refund", "arguments": stage.refund(&format!("auto{round}"), 100),
            "run_id": "auto", "step": round.to_string(), "run": "auto" });
        let proposed = stage.host.agent().post("/v1/actions", &body).expect(201);
        let (id, saw) = (proposed.id(), proposed.text("/fingerprint"));
        at_once(4, |i| match i {
            0 => stage.approve(&id, &saw),
            _ => stage.execute(&id),
        });
        assert_eq!(stage.wait_for(&id, &["succeeded"]).outcome(), "succeeded");
        assert_eq!(stage.counts(REFUNDS, &id), (1, 1));
    }
}
