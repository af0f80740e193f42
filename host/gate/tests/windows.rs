//! Death and frost at every step. A loop over every point that an attempt comes
//! past, not a choice of some: a new step gets its windows for nothing.

use countersign_domain::action::{Action, State};
use countersign_domain::effect::{Answer, EffectStatus};
use countersign_domain::id::ActionId;
use countersign_gate::resolve::Word;
use countersign_gate::{GateError, Point};
use serde_json::json;

use crate::rig::*;

/// How a dead worker is found out.
#[derive(Debug, Clone, Copy)]
enum Found {
    /// Its host starts again and knows that nobody lives.
    AtRestart,
    /// Its lease runs out, and another host is there.
    ByLease,
}

/// Runs the action with the process dying at the n-th point; `None`: it ended
/// before it came so far.
async fn die_at(rig: &mut Rig, id: ActionId, n: usize, found: Found) -> Option<Point> {
    rig.host().stops.arm(Stop::Nth(n));
    let execution = rig.spawn_execute(id, LONG);
    let stops = rig.host().stops.clone();
    tokio::select! {
        () = stops.reached() => {}
        _ = execution => return None,
    }
    let (point, _) = *stops.passed().last().unwrap();
    match found {
        Found::AtRestart => rig.crash_and_restart().await,
        Found::ByLease => rig.crash_and_leave_to_another().await,
    }
    Some(point)
}

/// A person looks at the provider's log and says what is there.
pub async fn try_to_tell_the_truth(rig: &mut Rig, action: &Action) -> Result<Action, GateError> {
    let effects = rig.effects(action.id).await;
    let Some(unknown) = effects.iter().find(|effect| effect.status == EffectStatus::Unknown) else {
        return Ok(rig.row(action.id).await);
    };
    let path = unknown.request.url.split_once(&rig.provider.address.to_string()).unwrap().1;
    let body = String::from_utf8(unknown.request.body.clone()).unwrap();
    let acted = rig.provider.acted().iter().any(|acted| acted.path == path && acted.body == body);
    let word = if acted {
        Word::Happened(Answer { status: 200, headers: vec![], body: br#"{"id":"told"}"#.to_vec() })
    } else {
        rig.clock.advance(unknown.terms.settle);
        Word::DidNotHappen
    };
    rig.resolve_send(action.id, unknown.ordinal.0, Some(unknown.send.0), word, "their log").await
}

/// The same where nobody else moves the action, and on to its end.
pub async fn tell_the_truth(rig: &mut Rig, action: Action) -> Action {
    try_to_tell_the_truth(rig, &action).await.unwrap();
    rig.settle(action.id).await
}

/// Writes to paths of its own, so that the rig can tell doubles.
fn numbered(n: u32) -> Script {
    Script::new(move |fx| async move {
        let run = fx.arguments()["amount"].to_string();
        for i in 1..=n {
            if fx.post(&format!("/w/{i}"), &run).await.status() != 200 {
                return refused("no");
            }
        }
        done(json!(n))
    })
}

fn death_everywhere(class: &'static str, writes: u32, found: Found) {
    run(async |rig| {
        let name = "numbered";
        rig.install(name, &of_class(class), numbered(writes)).await;
        let mut points = 0;
        for n in 1.. {
            let run = u32::try_from(n).unwrap();
            let id = rig.propose(name, amount(run)).await.id;
            let died = die_at(rig, id, n, found).await;
            let mut action = rig.settle(id).await;
            if let Some(point) = died {
                points += 1;
                let in_doubt =
                    matches!(point, Point::AfterWriteClaim | Point::BeforeFirstByte | Point::AfterAnswer);
                let waits = in_doubt && class != "provider-idempotent";
                assert_eq!(action.state == State::OutcomeUnknown, waits, "{class}, {found:?}, {point:?}");
                if waits {
                    action = tell_the_truth(rig, action).await;
                }
            }
            assert_eq!(action.state, State::Succeeded, "{class}, {found:?}, {died:?}: {:?}", action.error);
            for i in 1..=writes {
                let path = format!("/w/{i}");
                let acted = rig.provider.acted();
                let count =
                    acted.iter().filter(|one| one.path == path && one.body == run.to_string()).count();
                assert_eq!(count, 1, "{class}, {found:?}, {died:?}: write {i}");
            }
            if died.is_none() {
                break;
            }
        }
        // Every kind of point was met: four around the attempt, five per write.
        assert_eq!(points, 4 + 5 * writes as usize);
    });
}

macro_rules! deaths {
    ($($name:ident: $class:literal, $writes:literal, $found:ident;)*) => {
        $(#[test] fn $name() { death_everywhere($class, $writes, Found::$found) })*
    };
}

deaths! {
    p2_death_at_every_step_of_a_keyed_write_ends_succeeded_with_one_effect: "provider-idempotent", 1, AtRestart;
    p2_death_at_every_step_of_a_keyed_write_left_to_its_lease_ends_succeeded_with_one_effect: "provider-idempotent", 1, ByLease;
    p2_death_at_every_step_of_five_keyed_writes_ends_succeeded_with_five_effects: "provider-idempotent", 5, AtRestart;
    p2_death_at_every_step_of_five_keyed_writes_left_to_the_lease_ends_succeeded_with_five_effects: "provider-idempotent", 5, ByLease;
    p2_death_at_every_step_of_a_manual_write_waits_for_a_person_and_makes_one_effect: "manual", 1, AtRestart;
    p2_death_at_every_step_of_a_manual_write_left_to_its_lease_waits_for_a_person_and_makes_one_effect: "manual", 1, ByLease;
    p2_death_at_every_step_of_five_manual_writes_waits_for_a_person_and_makes_five_effects: "manual", 5, AtRestart;
    p2_death_at_every_step_of_a_verifiable_write_waits_and_makes_one_effect: "verifiable", 1, ByLease;
    p2_death_at_every_step_of_five_verifiable_writes_waits_and_makes_five_effects: "verifiable", 5, AtRestart;
}

/// The worker stands still for more than its lease at the n-th point, another
/// host takes over, and then the worker goes on as if nothing had been.
fn frost_everywhere(class: &'static str) {
    run(async |rig| {
        rig.install("numbered", &of_class(class), numbered(2)).await;
        for n in 1.. {
            let run = u32::try_from(n).unwrap();
            let id = rig.propose("numbered", amount(run)).await.id;
            let frozen = rig.another_host();
            frozen.stops.arm(Stop::Nth(n));
            let execution = frozen.spawn(async move |gate| gate.execute(&tenant(), id, LONG).await);
            let stops = frozen.stops.clone();
            tokio::select! {
                () = stops.reached() => {}
                _ = execution => break,
            }
            let (point, _) = *stops.passed().last().unwrap();
            rig.clock.advance(rig.config.lease.length * 2 + rig.config.lease.margin);
            rig.tend(false).await;
            let action = rig.settle(id).await;
            let in_doubt =
                matches!(point, Point::AfterWriteClaim | Point::BeforeFirstByte | Point::AfterAnswer);
            let waits = in_doubt && class != "provider-idempotent";
            assert_eq!(action.state == State::OutcomeUnknown, waits, "{class}, {point:?}");
            stops.release();
            if point == Point::AfterAnswer && waits {
                // Its late answer is one about that very send.
                rig.until(id, |action| action.state != State::OutcomeUnknown).await;
            }
            // The one that was frozen is done with its attempt.
            frozen.run(async move |gate| gate.drain().await).await;
            let mut action = rig.settle(id).await;
            if action.state == State::OutcomeUnknown {
                action = tell_the_truth(rig, action).await;
            }
            assert_eq!(action.state, State::Succeeded, "{class}, {point:?}: {:?}", action.error);
            let acted = rig.provider.acted();
            let count = acted.iter().filter(|one| one.body == run.to_string()).count();
            assert_eq!(count, 2, "{class}, {point:?}");
            frozen.die().await;
        }
    });
}

#[test]
fn p1_p2_a_worker_frozen_for_two_leases_at_every_step_sends_nothing_more_for_a_keyed_write() {
    frost_everywhere("provider-idempotent");
}

#[test]
fn p1_p2_a_worker_frozen_for_two_leases_at_every_step_sends_nothing_more_for_a_manual_write() {
    frost_everywhere("manual");
}

#[test]
fn p1_a_claim_is_committed_before_the_first_byte_leaves() {
    run(async |rig| {
        rig.install("refund", &keyed(), refund()).await;
        for (n, point) in
            [Point::BeforeWriteClaim, Point::AfterWriteClaim, Point::BeforeFirstByte].into_iter().enumerate()
        {
            let id = rig.propose("refund", amount(u32::try_from(n).unwrap())).await.id;
            rig.host().stops.arm(Stop::At(point, 1));
            let _execution = rig.spawn_execute(id, LONG);
            rig.host().stops.reached().await;
            let claimed = point != Point::BeforeWriteClaim;
            assert_eq!(rig.row(id).await.in_flight.is_some(), claimed, "{point:?}");
            let of_this = rig.provider.all_requests().into_iter().filter(|seen| seen.body == n.to_string());
            assert_eq!(of_this.count(), 0, "{point:?}");
            rig.crash_and_restart().await;
            let state = if claimed { State::OutcomeUnknown } else { State::FailedRetryable };
            assert_eq!(rig.row(id).await.state, state, "{point:?}");
            assert_eq!(rig.settle(id).await.state, State::Succeeded);
        }
    });
}

#[test]
fn p8_break_1_the_end_of_an_attempt_whose_lease_ran_out_is_not_written() {
    run(async |rig| {
        let script = Script::new(|fx| async move {
            fx.get("/stock").await;
            refused("not today")
        });
        rig.install("refuses", &keyed().top("planning = \"none\"\n"), script).await;
        let id = rig.propose("refuses", json!({})).await.id;
        let slow = rig.another_host();
        slow.stops.arm(Stop::At(Point::BeforeEnd, 1));
        let _execution = slow.spawn(async move |gate| gate.execute(&tenant(), id, LONG).await);
        slow.stops.reached().await;
        rig.clock.advance(rig.config.lease.length);
        rig.tend(false).await;
        slow.stops.release();
        slow.run(async move |gate| gate.drain().await).await;
        let action = rig.row(id).await;
        assert_eq!((action.state, row_code(&action)), (State::FailedRetryable, "worker_lost"));
        assert_eq!(rig.facts(id).await, ["proposed", "policy_allowed", "claimed", "worker_lost"]);
        let action = rig.settle(id).await;
        assert_eq!((action.state, row_code(&action)), (State::FailedTerminal, "tool_refused"));
    });
}

#[test]
fn break_16_34_the_last_attempt_records_its_success_and_dies_and_the_action_still_succeeds() {
    run(async |rig| {
        rig.reconfigure(|config| config.retry.attempts = 1);
        rig.install("refund", &keyed(), refund()).await;
        for (n, point) in [Point::AfterRecord, Point::BeforeEnd].into_iter().enumerate() {
            let id = rig.propose("refund", amount(u32::try_from(n).unwrap())).await.id;
            rig.host().stops.arm(Stop::At(point, 1));
            let _execution = rig.spawn_execute(id, LONG);
            rig.host().stops.reached().await;
            rig.crash_and_restart().await;
            let action = rig.settle(id).await;
            assert_eq!(action.state, State::Succeeded, "{point:?}: {:?}", action.error);
        }
    });
}

#[test]
fn break_16_34_the_last_attempt_records_its_success_and_traps_and_is_given_another_to_report_it() {
    run(async |rig| {
        rig.reconfigure(|config| config.retry.attempts = 1);
        let runs = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let script = Script::new(move |fx| {
            let runs = runs.clone();
            async move {
                let shown = fx.post("/refunds", "5").await;
                // Planning ends at the write; the first run past it traps.
                match runs.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
                    0 => trapped("by accident"),
                    _ => done(shown.json()),
                }
            }
        });
        rig.install("refund", &keyed(), script).await;
        let id = rig.propose("refund", amount(5)).await.id;
        assert_eq!(rig.attempt(id).await.state, State::FailedRetryable);
        let action = rig.settle(id).await;
        assert_eq!(action.state, State::Succeeded, "{:?}", action.error);
        assert_eq!(rig.provider.requests("/refunds").len(), 1);
    });
}

#[test]
fn break_34_a_worker_that_dies_again_over_what_was_done_takes_no_attempt_from_its_report() {
    run(async |rig| {
        rig.reconfigure(|config| config.retry.attempts = 1);
        rig.install("refund", &keyed(), refund()).await;
        let id = rig.propose("refund", amount(5)).await.id;
        rig.host().stops.arm(Stop::At(Point::AfterRecord, 1));
        let _execution = rig.spawn_execute(id, LONG);
        rig.host().stops.reached().await;
        // Twice more somebody begins to report it, and dies.
        for _ in 0..2 {
            rig.crash_and_leave_to_another().await;
            let action = rig.row(id).await;
            assert_eq!((action.state, action.attempts_left), (State::FailedRetryable, 1));
            rig.clock.advance(action.next_attempt.unwrap().since(rig.store_now().await));
            rig.host().stops.arm(Stop::At(Point::BeforeEnd, 1));
            rig.tend(false).await;
            rig.host().stops.reached().await;
        }
        rig.crash_and_leave_to_another().await;
        let action = rig.settle(id).await;
        assert_eq!(action.state, State::Succeeded, "{:?}", action.error);
        assert_eq!(rig.provider.requests("/refunds").len(), 1);
    });
}

#[test]
fn p1_the_last_look_before_the_first_byte_asks_whether_the_attempt_still_holds_the_row() {
    run(async |rig| {
        rig.install("refund", &unkeyed("manual"), refund()).await;
        let id = rig.propose("refund", amount(5)).await.id;
        rig.host().stops.arm(Stop::At(Point::BeforeFirstByte, 1));
        let _execution = rig.spawn_execute(id, LONG);
        rig.host().stops.reached().await;
        // Its lease has long to run, and still it is over: somebody said so.
        let other = rig.another_host();
        other.run(async move |gate| gate.tend(true).await.unwrap()).await;
        assert_eq!(rig.row(id).await.state, State::OutcomeUnknown);
        rig.host().stops.release();
        rig.host().run(async move |gate: countersign_gate::Gate| gate.drain().await).await;
        assert_eq!(rig.provider.all_requests().len(), 0, "not a byte left");
        assert_eq!(rig.row(id).await.state, State::OutcomeUnknown);
    });
}

#[test]
fn p9_what_dies_every_time_before_its_write_is_given_up_when_its_attempts_are_spent() {
    run(async |rig| {
        rig.install("refund", &keyed(), refund()).await;
        let id = rig.propose("refund", amount(5)).await.id;
        for _ in 0..rig.config.retry.attempts {
            rig.host().stops.arm(Stop::At(Point::AfterClaim, 1));
            let action = rig.row(id).await;
            if let Some(due) = action.next_attempt {
                rig.clock.advance(due.since(action.updated));
            }
            if action.state == State::Approved {
                drop(rig.spawn_execute(id, LONG));
            } else {
                rig.tend(false).await;
            }
            rig.host().stops.reached().await;
            rig.crash_and_restart().await;
        }
        let action = rig.settle(id).await;
        assert_eq!((action.state, row_code(&action)), (State::FailedTerminal, "retries_exhausted"));
        assert!(rig.provider.all_requests().is_empty());
    });
}
