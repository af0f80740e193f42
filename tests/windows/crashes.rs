//! Every point of an attempt at which a host can die, for a tool with one effect and for one
//! with five, at each effect. A loop, so that a new point or effect gets its window for nothing.
//!
//! Each time: the host is started so that it stops at the point, driven there, killed with
//! SIGKILL, started again, and asked again. Then the provider's log is read.

use std::sync::atomic::{AtomicUsize, Ordering};

use countersign_gate::Point;

use crate::on_both_stores;
use crate::support::stage::REFUNDS;
use crate::support::{Backend, Mode, Stage, at_once, grants};

on_both_stores! {
    p2_killed_at_every_point_of_a_tool_with_one_effect_makes_that_effect_once,
    p2_killed_at_every_point_and_effect_of_a_tool_with_five_sends_only_what_is_missing,
    p2_killed_at_every_point_at_a_provider_without_keys_never_sends_twice_and_waits_for_a_person,
    e10_randomness_and_clocks_in_a_body_are_the_same_after_a_crash,
    a_host_that_dies_again_and_again_still_makes_each_effect_once,
    a_proposal_that_was_acknowledged_and_an_approval_that_was_acknowledged_survive_a_kill,
}

/// What the provider must have seen, and what the ledger must say, after a death at a point.
struct Window {
    /// Requests for the write at which it died.
    requests: usize,
    /// The fact by which the ledger knows of the death.
    known_by: Option<&'static str>,
}

fn window(point: Point) -> Window {
    let (requests, known_by) = match point {
        // Nothing is claimed: the action is simply still approved.
        Point::BeforeClaim => (1, None),
        // Claimed, and no write in flight: nothing is in doubt.
        Point::AfterClaim | Point::BeforeWriteClaim => (1, Some("worker_lost")),
        // A write is claimed; whether it was sent, only the process knew.
        Point::AfterWriteClaim | Point::BeforeFirstByte => (1, Some("outcome_lost")),
        // It was sent and answered, and only the process knew the answer.
        Point::AfterAnswer => (2, Some("outcome_lost")),
        // Recorded: replayed from here on.
        Point::AfterRecord | Point::BeforeEnd => (1, Some("worker_lost")),
        Point::AfterEnd => (1, None),
    };
    Window { requests, known_by }
}

fn has_ordinal(point: Point) -> bool {
    !matches!(point, Point::BeforeClaim | Point::AfterClaim | Point::BeforeEnd | Point::AfterEnd)
}

/// One life up to the point, and one after it, on the same folder.
fn die_at(stage: &Stage, at: &str, tool: &str, arguments: &serde_json::Value) -> String {
    stage.host.wake_armed(at);
    let id = stage.approved(tool, at, arguments);
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| stage.try_execute(&id));
        stage.host.wait_halted();
        stage.host.kill();
        assert!(caller.join().expect("a caller").is_err(), "the host died before it could answer");
    });
    stage.host.wake();
    id
}

fn sleeping_stage(on: Backend) -> Stage {
    let stage = Stage::on(on);
    stage.host.kill();
    stage
}

/// Goes through windows on several stages at the same time.
fn each<T: Sync>(on: Backend, windows: &[T], enter: impl Fn(&Stage, &T) + Sync) {
    let next = AtomicUsize::new(0);
    at_once(on.side_by_side().min(windows.len()), |_| {
        let stage = sleeping_stage(on);
        while let Some(window) = windows.get(next.fetch_add(1, Ordering::Relaxed)) {
            enter(&stage, window);
            stage.host.kill();
        }
    });
}

fn check(stage: &Stage, id: &str, point: Point, at: &str) {
    let told = stage.execute(id);
    assert_eq!(told.outcome(), "succeeded", "{at}: {}", told.json);
    let facts = stage.facts(id);
    for fact in ["worker_lost", "outcome_lost"] {
        let expected = usize::from(window(point).known_by == Some(fact));
        let found = facts.iter().filter(|known| *known == fact).count();
        assert_eq!(found, expected, "{at}: {fact} in {facts:?}");
    }
    // The caller comes a third time.
    let again = stage.execute(id);
    assert!(again.is_replayed(), "{at}");
    assert_eq!(again.raw("result"), told.raw("result"), "{at}");
}

fn p2_killed_at_every_point_of_a_tool_with_one_effect_makes_that_effect_once(on: Backend) {
    each(on, Point::ALL, |stage, point| {
        let at = point.name();
        let id = die_at(stage, at, "refund", &stage.refund(&at.replace('-', ""), 4200));
        check(stage, &id, *point, at);
        assert_eq!(stage.counts(REFUNDS, &id), (window(*point).requests, 1), "{at}");
        same_request(stage, REFUNDS, &id);
    });
}

fn p2_killed_at_every_point_and_effect_of_a_tool_with_five_sends_only_what_is_missing(on: Backend) {
    const WRITES: [(u32, &str); 4] = [(2, "/reserve"), (3, "/transfers"), (4, "/ledger"), (5, "/notify")];
    let mut windows = Vec::new();
    for point in Point::ALL.iter().copied() {
        let writes: &[(u32, &str)] = if has_ordinal(point) { &WRITES } else { &WRITES[..1] };
        windows.extend(writes.iter().map(|(ordinal, path)| (point, *ordinal, *path)));
    }
    each(on, &windows, |stage, (point, ordinal, path)| {
        let quotes = stage.provider.requests("/quote").len();
        let at =
            if has_ordinal(*point) { format!("{}:{ordinal}", point.name()) } else { point.name().to_owned() };
        let id = die_at(stage, &at, "transfer", &stage.transfer(12_000));
        check(stage, &id, *point, &at);
        for (_, other) in WRITES {
            let requests = if other == *path { window(*point).requests } else { 1 };
            assert_eq!(stage.counts(other, &id), (requests, 1), "{at}: {other}");
            same_request(stage, other, &id);
        }
        // The read was made while planning, and was replayed ever since.
        assert_eq!(stage.provider.requests("/quote").len() - quotes, 1, "{at}");
    });
}

/// What is sent again is the very same request under the very same key.
fn same_request(stage: &Stage, path: &str, id: &str) {
    let sent = stage.requests(path, id);
    let first = &sent[0];
    for again in &sent {
        assert_eq!(
            (&again.key, &again.body_sha256, &again.headers.len()),
            (&first.key, &first.body_sha256, &first.headers.len())
        );
    }
}

fn p2_killed_at_every_point_at_a_provider_without_keys_never_sends_twice_and_waits_for_a_person(on: Backend) {
    each(on, Point::ALL, |stage, point| {
        let at = point.name();
        let (tool, path) = (format!("manual-{at}"), format!("/any/{at}"));
        stage.provider.set_mode(Mode::Ignores);
        stage.host.wake();
        let route = grants::Route::manual(stage.provider.port(), "/any/**");
        stage.install_probe(&tool, &grants::grant("[limits]\nsend = \"300ms\"", &[route]));
        stage.host.kill();
        let arguments = serde_json::json!({ "mode": "writes", "url": stage.url(&path), "bodies": ["once"] });
        let id = die_at(stage, at, &tool, &arguments);
        let told = stage.execute(&id);
        if window(*point).known_by != Some("outcome_lost") {
            assert_eq!(told.outcome(), "succeeded", "{at}: {}", told.json);
            assert_eq!(stage.counts(&path, &id), (1, 1), "{at}");
            return;
        }
        // Whether it was sent only the dead process knew: nobody sends it again unasked.
        told.refused(409, "execution_in_doubt");
        let sent = usize::from(*point == Point::AfterAnswer);
        assert_eq!(stage.counts(&path, &id), (sent, sent), "{at}");
        let word = if sent == 1 {
            serde_json::json!({ "ordinal": 1, "outcome": "happened", "evidence": "it is in their list",
                "answer": { "status": 200, "body": "" } })
        } else {
            let settles = stage.ledger(&id)[0]["settles_at"].as_str().expect("a time").to_owned();
            super::expiry::wait_until(&settles);
            serde_json::json!({ "ordinal": 1, "send": 1, "outcome": "did_not_happen", "evidence": "it is not in their list" })
        };
        stage.resolve(&id, word).expect(200);
        let told = stage.execute(&id);
        assert_eq!(told.outcome(), "succeeded", "{at}: {}", told.json);
        assert_eq!(stage.counts(&path, &id), (1, 1), "{at}");
        stage.facts(&id);
    });
}

fn e10_randomness_and_clocks_in_a_body_are_the_same_after_a_crash(on: Backend) {
    each(on, &["after-answer:1", "before-first-byte:1", "after-record:1"], |stage, at| {
        let path = format!("/keyed/{}", at.replace(':', "-"));
        let arguments = serde_json::json!({ "mode": "random-body", "url": stage.url(&path) });
        let id = die_at(stage, at, "probe", &arguments);
        let told = stage.execute(&id);
        assert_eq!(told.outcome(), "succeeded", "{at}: {}", told.json);
        assert_eq!(stage.effects(&path, &id).len(), 1, "{at}");
        same_request(stage, &path, &id);
        let sent = stage.requests(&path, &id)[0].body.clone().expect("a body");
        let planned = stage.action(&id).text("/plan/first_write/body");
        assert_eq!(sent, planned, "what was shown is what was sent");
    });
}

fn a_host_that_dies_again_and_again_still_makes_each_effect_once(on: Backend) {
    let stage = sleeping_stage(on);
    stage.host.wake_armed("after-claim");
    let id = stage.approved("transfer", "again", &stage.transfer(500));
    let _caller = stage.execute_unheard(&id);
    stage.host.wait_halted();
    // The reaper takes it up by itself in every new life, and dies at the next place.
    for at in ["after-write-claim:2", "after-answer:2", "before-first-byte:3", "after-record:4"] {
        stage.host.kill();
        stage.host.wake_armed(at);
        stage.host.wait_halted();
    }
    stage.host.kill_and_wake();
    assert_eq!(stage.wait_for(&id, &["succeeded", "failed_terminal"]).outcome(), "succeeded");
    for path in ["/reserve", "/transfers", "/ledger", "/notify"] {
        assert_eq!(stage.effects(path, &id).len(), 1, "{path}");
        same_request(&stage, path, &id);
    }
    stage.facts(&id);
}

fn a_proposal_that_was_acknowledged_and_an_approval_that_was_acknowledged_survive_a_kill(on: Backend) {
    let stage = sleeping_stage(on);
    stage.host.wake();
    for round in 0..5 {
        let proposed =
            stage.propose("refund", &format!("kept-{round}"), &stage.refund("kept", 100)).expect(201);
        stage.host.kill_and_wake();
        assert_eq!(stage.action(&proposed.id()).raw("fingerprint"), proposed.raw("fingerprint"));
        stage.approve(&proposed.id(), &proposed.text("/fingerprint")).expect(200);
        stage.host.kill_and_wake();
        assert_eq!(stage.action(&proposed.id()).outcome(), "approved");
        let told = stage.execute(&proposed.id());
        stage.host.kill_and_wake();
        assert_eq!(stage.action(&proposed.id()).raw("result"), told.raw("result"));
        assert_eq!(stage.counts(REFUNDS, &proposed.id()), (1, 1));
    }
}
