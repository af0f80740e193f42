//! A guest process that dies at every point that an attempt passes, and in what else it is asked
//! for: a preview, and a lookup. The host stands still at the point meanwhile, answers, and goes
//! on. The verdict is the provider's log. (Points at which a host can be stopped are in debug
//! builds only.)

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::processes::{finish, guests_of, healthz, kill};
use crate::support::grants::{self, sending_for};
use crate::support::stage::install;
use crate::support::{Fault, Mode, Rule, Stage, Told, at_once, guests, long};

const WRITES: [&str; 4] = ["/reserve", "/transfers", "/ledger", "/notify"];

/// As a bug, as a broken promise, and as the system for want of memory.
const SIGNALS: [&str; 3] = ["SEGV", "ABRT", "KILL"];

/// In the order in which an attempt passes them; those with a number at the second write, so that
/// one before it stands.
const POINTS: [&str; 9] = [
    "before-claim",
    "after-claim",
    "before-write-claim:2",
    "after-write-claim:2",
    "before-first-byte:2",
    "after-answer:2",
    "after-record:2",
    "before-end",
    "after-end",
];

/// Proposes until it is: a call whose process was killed a moment ago may be told to try again.
fn proposed(stage: &Stage, tool: &str, key: &str, arguments: &Value) -> Told {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let told = stage.propose(tool, key, arguments);
        if told.status() < 300 {
            return told;
        }
        assert_eq!(told.json["retryable"], true, "{}", told.json);
        assert!(Instant::now() < until, "it is never proposed: {}", told.json);
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn ends_at(point: &str, signal: &str) {
    let stage = Stage::set();
    let id = stage.approved("transfer", "dies", &stage.transfer(4_000));
    stage.host.stop();
    let (go_on, file) = (stage.host.file("go-on"), stage.host.file("halted"));
    let mut command = stage.host.command();
    command.env("COUNTERSIGN_HALT_AT", point).env("COUNTERSIGN_HALT_UNTIL", &go_on);
    stage.host.wake_with(command.env("COUNTERSIGN_HALT_FILE", file));
    let caller = stage.execute_unheard(&id);
    stage.host.wait_halted();
    // Where it has not begun yet there is none; a call of somebody else's makes one.
    if guests_of(&stage.host).is_empty() {
        proposed(&stage, "probe", "somebody", &json!({ "mode": "no-effect" }));
    }
    let killed = guests_of(&stage.host);
    assert!(!killed.is_empty(), "{point}: there is a process to die");
    killed.iter().for_each(|pid| kill(*pid, signal));
    // Everybody else is served, in another process.
    healthz(&stage.host);
    stage.action(&id).expect(200);
    proposed(&stage, "probe", "meanwhile", &json!({ "mode": "no-effect" }));
    std::fs::write(&go_on, "").expect("the sign to go on");
    let told = finish(&stage, &id);
    drop(caller);
    for path in WRITES {
        assert_eq!(stage.counts(path, &id), (1, 1), "{path}: SIG{signal} at {point}");
    }
    // Nothing was in doubt: who makes an effect did not die.
    let facts = stage.facts(&id);
    assert!(!facts.contains(&"outcome_lost".to_owned()), "SIG{signal} at {point}: {facts:?}");
    assert_eq!(stage.execute(&id).raw("result"), told.raw("result"), "SIG{signal} at {point}");
    stage.audit();
}

#[test]
fn a16_p2_and_p3_a_guest_process_that_dies_at_any_point_of_an_attempt_leaves_each_write_made_once() {
    let all = (0..POINTS.len()).flat_map(|at| SIGNALS.map(|signal| (at, signal)));
    // Each point by one of them, each of them at three points; by night all at all.
    let of_this_run = |(at, signal): &(usize, &str)| long(0, 1) == 1 || SIGNALS[at % 3] == *signal;
    let cases: Vec<(&str, &str)> = all.filter(of_this_run).map(|(at, signal)| (POINTS[at], signal)).collect();
    let next = std::sync::atomic::AtomicUsize::new(0);
    at_once(3, |_| {
        while let Some((point, signal)) = cases.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
            ends_at(point, signal);
        }
    });
}

#[test]
fn a16_a_guest_process_that_dies_in_a_preview_makes_no_effect_and_the_next_one_is_proposed() {
    let stage = Stage::set();
    for signal in SIGNALS {
        let key = format!("preview-{signal}");
        // It spins until its time is up: a tenth of a second, in which its process dies.
        let arguments = json!({ "mode": "preview-spin" });
        std::thread::scope(|scope| {
            let proposing = scope.spawn(|| stage.propose("probe", &key, &arguments));
            let until = Instant::now() + Duration::from_secs(10);
            while !proposing.is_finished() && Instant::now() < until {
                guests_of(&stage.host).into_iter().for_each(|pid| kill(pid, signal));
                healthz(&stage.host);
            }
            let told = proposing.join().expect("the caller");
            // Without a preview it can be shown; without a plan it cannot.
            assert!([201, 422, 503].contains(&told.status()), "{}", told.json);
        });
        let key = format!("after-{signal}");
        proposed(&stage, "refund", &key, &stage.refund(&key, 100));
    }
    assert_eq!(stage.provider.requests("/v1/refunds").len(), 0, "nothing was sent");
    stage.audit();
}

#[test]
fn a16_p2_a_guest_process_that_dies_in_a_lookup_settles_nothing_and_the_next_lookup_does() {
    let stage = Stage::set();
    stage.provider.set_bank_mode(Mode::Ignores);
    let grant = sending_for(&grants::bank(stage.provider.port()), "500ms");
    install(&stage.host, "?name=bank", &guests::TRANSFER, &grant).expect(201);
    for signal in SIGNALS {
        let id = stage.approved("bank", signal, &stage.transfer(5_000));
        stage.provider.fault(Rule::once("/transfers", Fault::LoseReply));
        stage.provider.fault(Rule::once("/lookup", Fault::hold()));
        stage.execute(&id);
        stage.provider.wait_held(1);
        guests_of(&stage.host).into_iter().for_each(|pid| kill(pid, signal));
        healthz(&stage.host);
        assert_eq!(stage.action(&id).outcome(), "outcome_unknown");
        stage.provider.release();
        let ended = stage.wait_for(&id, &["succeeded", "failed_terminal", "cancelled"]);
        assert_eq!(ended.outcome(), "succeeded", "SIG{signal}: {}", ended.json);
        for path in WRITES {
            assert_eq!(stage.counts(path, &id), (1, 1), "{path}: SIG{signal}");
        }
    }
    stage.audit();
}

#[test]
fn i05_an_action_whose_every_attempt_kills_its_host_is_given_up_after_five() {
    let stage = Stage::set();
    stage.host.stop();
    stage.host.wake_armed("after-claim");
    let proposal = json!({ "tool": "refund", "arguments": stage.refund("poison", 100), "run_id": "r",
        "step": "1", "run": "auto" });
    let proposed = stage.host.agent().post("/v1/actions", &proposal).expect(201);
    stage.approve(&proposed.id(), &proposed.text("/fingerprint")).expect(200);
    for _ in 1..5 {
        stage.host.wait_halted();
        stage.host.kill();
        stage.host.wake_armed("after-claim");
    }
    stage.host.wait_halted();
    stage.host.kill();
    // A sixth would succeed.
    stage.host.wake();
    let ended = stage.wait_for(&proposed.id(), &["succeeded", "failed_terminal", "cancelled"]);
    assert_eq!(ended.ending(), "failed_terminal retries_exhausted", "{}", ended.json);
    assert_eq!(ended.number("/attempt"), 5);
    assert_eq!(stage.counts(crate::support::stage::REFUNDS, &proposed.id()), (0, 0));
    // It is in nobody's way.
    let id = stage.approved("refund", "after", &stage.refund("after", 100));
    assert_eq!(stage.execute(&id).outcome(), "succeeded");
    stage.audit();
}
