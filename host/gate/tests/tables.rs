//! The two decisions that are pure: what the reaper does about a row, and how an
//! attempt ends. As tables; the windows beside this file hold what comes of them.

use std::time::Duration;

use countersign_domain::action::{Action, ActionError, Fact, State};
use countersign_domain::canonical::CanonicalJson;
use countersign_domain::effect::{
    Answer, EffectKind, EffectRecord, EffectStatus, RecordedRequest, Refusal, Terms,
};
use countersign_domain::effect_log::EffectLog;
use countersign_domain::grant::{On5xx, RecoveryClass};
use countersign_domain::id::{
    ActionId, AttemptId, AttemptNumber, ComponentDigest, Digest, EffectFingerprint, Fingerprint, GrantDigest,
    Intent, Ordinal, SendNumber,
};
use countersign_domain::key::ActionKey;
use countersign_domain::lease::SendFence;
use countersign_domain::retry::RetryTerms;
use countersign_domain::run::{Ended, ToolFailure};
use countersign_domain::time::Timestamp;
use countersign_gate::conclude::{Remains, Stop, conclude};
use countersign_gate::reaper::{Todo, plan};
use countersign_store::steps::{ClaimKind, Due, When};
use serde_json::json;

use crate::rig::{TICK, principal, tenant, tool};

const NOW: Timestamp = Timestamp::from_micros(1_790_000_000_000_000);
const HOUR: Duration = Duration::from_secs(3600);
const OURS: AttemptId = AttemptId(uuid(7));

const fn uuid(n: u128) -> uuid::Uuid {
    uuid::Uuid::from_u128(n)
}

/// A row of a minute ago whose approval is open and whose budgets are whole.
fn row(state: State) -> Action {
    let digest = Digest::of(b"x");
    let executing = state == State::Executing;
    Action {
        tenant: tenant(),
        id: ActionId(uuid(1)),
        key: ActionKey::Key("k".into()),
        tool: tool("refund"),
        requested_version: None,
        version: "1.0.0".into(),
        component: ComponentDigest(digest),
        grant: GrantDigest(digest),
        arguments: json_text(json!({})),
        intent: Intent(digest),
        fingerprint: Fingerprint(digest),
        actor: principal("agent"),
        proposer: principal("agent"),
        plan: json_text(json!({})),
        preview: None,
        approvals_required: 1,
        approval_expires: NOW.plus(HOUR),
        execution_deadline: NOW.plus(24 * HOUR),
        policy_epoch: 3,
        run_by_itself: false,
        supersedes: None,
        compensates: None,
        created: NOW.minus(Duration::from_secs(60)),
        seed: [0; 32],
        state,
        approved_fingerprint: Some(Fingerprint(digest)),
        approved_at: Some(NOW.minus(Duration::from_secs(30))),
        approvals: vec![],
        attempt: AttemptNumber(1),
        attempt_id: executing.then_some(OURS),
        lease_expires: executing.then(|| NOW.plus(TICK)),
        in_flight: None,
        cancel_requested: None,
        attempts_left: 4,
        repeats_left: 10,
        next_attempt: matches!(state, State::FailedRetryable | State::OutcomeUnknown).then_some(NOW),
        first_write: None,
        unknown_effects: u32::from(state == State::OutcomeUnknown),
        standing_writes: u32::from(state == State::OutcomeUnknown),
        effects: 0,
        superseded_by: None,
        provider_reference: None,
        result: None,
        error: None,
        updated: NOW.minus(Duration::from_secs(60)),
        version_counter: 5,
        event_seq: 3,
    }
}

fn json_text(value: serde_json::Value) -> CanonicalJson {
    CanonicalJson::of(&value).unwrap()
}

fn effect(ordinal: u32, class: RecoveryClass, status: EffectStatus) -> EffectRecord {
    EffectRecord {
        ordinal: Ordinal(ordinal),
        kind: EffectKind::Http,
        write: class != RecoveryClass::Read,
        terms: Terms {
            class,
            key_window: HOUR,
            in_flight_status: 409,
            replay_header: None,
            on_5xx: On5xx::Unknown,
            send: Duration::from_secs(30),
            settle: Duration::from_secs(60),
        },
        fingerprint: EffectFingerprint(Digest::of(b"e")),
        request: RecordedRequest {
            method: "POST".into(),
            url: "https://a.example/".into(),
            headers: vec![],
            body: vec![],
        },
        provider_key: Some("key".into()),
        status,
        attempt: OURS,
        send: SendNumber(1),
        first_sent: Some(NOW.minus(Duration::from_secs(60))),
        last_sent: Some(NOW.minus(Duration::from_secs(60))),
        may_have_arrived: status == EffectStatus::Unknown,
        unknown_since: (status == EffectStatus::Unknown).then_some(NOW),
        answer: (status == EffectStatus::Succeeded).then(|| Answer {
            status: 200,
            headers: vec![],
            body: vec![],
        }),
        refusal: None,
        set_aside: false,
        evidence: None,
        recorded_at: Some(NOW),
    }
}

// ---- the reaper -------------------------------------------------------------------

/// What the reaper does, in short.
fn todo(change: impl FnOnce(&mut Due, &mut bool), state: State) -> String {
    let unknown = match state {
        State::OutcomeUnknown => vec![effect(1, RecoveryClass::ProviderIdempotent, EffectStatus::Unknown)],
        _ => vec![],
    };
    let mut due = Due { action: row(state), unknown, policy_epoch: 3 };
    let mut opening = false;
    change(&mut due, &mut opening);
    match plan(NOW, &due, opening, RetryTerms::default(), 0.5) {
        None => "waits".into(),
        Some(Todo::Run(ClaimKind::Run)) => "run".into(),
        Some(Todo::Run(ClaimKind::Repeat)) => "repeat".into(),
        Some(Todo::LeaveToPerson) => "left to a person".into(),
        Some(Todo::State { fact, when, error, next_attempt_after }) => {
            // Whatever it states, the rules allow.
            let to = countersign_domain::action::next(due.action.state, &fact).unwrap();
            let due = next_attempt_after.is_some();
            assert_eq!(due, matches!(to, State::FailedRetryable | State::OutcomeUnknown), "{to}");
            let when = match when {
                When::Always => "",
                When::ApprovalExpired => " if expired",
                When::ApprovalOpen => " if open",
                When::LeaseExpired => " if the lease is over",
            };
            format!("{} -> {to}{when}, {}", fact.name(), error.map(|error| error.code).unwrap_or_default())
        }
    }
}

#[test]
fn p9_the_reaper_does_to_each_row_what_its_columns_call_for() {
    use State::*;
    type Change = fn(&mut Due, &mut bool);
    let table: Vec<(&str, State, Change, &str)> = vec![
        ("nothing is due", AwaitingApproval, |_, _| {}, "waits"),
        (
            "nobody decided",
            AwaitingApproval,
            |due, _| due.action.approval_expires = NOW,
            "expired -> expired if expired, approval_expired",
        ),
        ("its caller runs it", Approved, |_, _| {}, "waits"),
        ("workers run it", Approved, |due, _| due.action.run_by_itself = true, "run"),
        (
            "nobody ran it",
            Approved,
            |due, _| due.action.approval_expires = NOW,
            "expired -> expired if expired, approval_expired",
        ),
        (
            "expired goes before running",
            Approved,
            |due, _| {
                due.action.run_by_itself = true;
                due.action.approval_expires = NOW;
            },
            "expired -> expired if expired, approval_expired",
        ),
        (
            "policy changed",
            Approved,
            |due, _| {
                due.action.run_by_itself = true;
                due.policy_epoch = 4;
            },
            "changed -> cancelled, action_changed",
        ),
        ("its lease lives", Executing, |_, _| {}, "waits"),
        (
            "its lease ran out",
            Executing,
            |due, _| due.action.lease_expires = Some(NOW),
            "worker_lost -> failed_retryable if the lease is over, worker_lost",
        ),
        (
            "its host started anew",
            Executing,
            |_, opening| *opening = true,
            "worker_lost -> failed_retryable, worker_lost",
        ),
        (
            "… with a write that stands",
            Executing,
            |due, opening| {
                *opening = true;
                due.action.standing_writes = 1;
            },
            "worker_lost -> failed_retryable, worker_lost",
        ),
        (
            "… in the middle of a send",
            Executing,
            |due, _| {
                due.action.lease_expires = Some(NOW);
                due.action.in_flight = Some(Ordinal(1));
                due.action.standing_writes = 1;
            },
            "outcome_lost -> outcome_unknown if the lease is over, execution_in_doubt",
        ),
        (
            "… in the middle of finding out (6)",
            Executing,
            |due, _| {
                due.action.lease_expires = Some(NOW);
                due.action.unknown_effects = 1;
                due.action.standing_writes = 1;
            },
            "outcome_lost -> outcome_unknown if the lease is over, execution_in_doubt",
        ),
        ("it is due", FailedRetryable, |_, _| {}, "run"),
        ("it rests", FailedRetryable, |due, _| due.action.next_attempt = Some(NOW.plus(TICK)), "waits"),
        (
            "a cancel was asked",
            FailedRetryable,
            |due, _| due.action.cancel_requested = Some("no".into()),
            "cancelled -> cancelled, cancelled",
        ),
        (
            "… over a write (5)",
            FailedRetryable,
            |due, _| {
                due.action.cancel_requested = Some("no".into());
                due.action.standing_writes = 1;
            },
            "cancelled -> failed_terminal, cancelled",
        ),
        (
            "its approval ran out",
            FailedRetryable,
            |due, _| due.action.approval_expires = NOW,
            "expired -> expired if expired, approval_expired",
        ),
        (
            "… after a write",
            FailedRetryable,
            |due, _| {
                due.action.approval_expires = NOW;
                due.action.standing_writes = 1;
            },
            "run",
        ),
        (
            "policy changed",
            FailedRetryable,
            |due, _| due.policy_epoch = 4,
            "changed -> cancelled, action_changed",
        ),
        (
            "… after a write",
            FailedRetryable,
            |due, _| {
                due.policy_epoch = 4;
                due.action.standing_writes = 1;
            },
            "run",
        ),
        (
            "its attempts are spent (18)",
            FailedRetryable,
            |due, _| due.action.attempts_left = 0,
            "retries_exhausted -> failed_terminal, retries_exhausted",
        ),
        ("the provider knows the key", OutcomeUnknown, |_, _| {}, "repeat"),
        ("it rests", OutcomeUnknown, |due, _| due.action.next_attempt = Some(NOW.plus(TICK)), "waits"),
        (
            "its window is over (4)",
            OutcomeUnknown,
            |due, _| due.unknown[0].first_sent = Some(NOW.minus(HOUR)),
            "left to a person",
        ),
        (
            "… one tick before",
            OutcomeUnknown,
            |due, _| due.unknown[0].first_sent = Some(NOW.minus(HOUR).plus(TICK)),
            "repeat",
        ),
        (
            "nobody knows a key",
            OutcomeUnknown,
            |due, _| due.unknown[0].terms.class = RecoveryClass::Manual,
            "left to a person",
        ),
        (
            "one of two is manual",
            OutcomeUnknown,
            |due, _| {
                due.unknown.push(effect(2, RecoveryClass::Manual, EffectStatus::Unknown));
                due.action.unknown_effects = 2;
            },
            "left to a person",
        ),
        (
            "a cancel was asked",
            OutcomeUnknown,
            |due, _| due.action.cancel_requested = Some("no".into()),
            "left to a person",
        ),
        (
            "it diverged (7)",
            OutcomeUnknown,
            |due, _| {
                due.action.error = Some(ActionError { code: "replay_diverged".into(), message: "x".into() });
            },
            "left to a person",
        ),
        ("its repeats are spent (17)", OutcomeUnknown, |due, _| due.action.repeats_left = 0, "waits"),
        (
            "it was left to a person",
            OutcomeUnknown,
            |due, _| {
                due.unknown[0].terms.class = RecoveryClass::Manual;
                due.action.next_attempt = None;
            },
            "waits",
        ),
        (
            "it ended",
            Succeeded,
            |due, opening| {
                *opening = true;
                due.action.approval_expires = NOW;
            },
            "waits",
        ),
        ("it ended", FailedTerminal, |due, _| due.action.cancel_requested = Some("no".into()), "waits"),
    ];
    for (what, state, change, expected) in table {
        assert_eq!(todo(change, state), expected, "{state}, {what}");
    }
}

#[test]
fn after_a_restart_nothing_rests_and_after_a_lost_lease_it_does() {
    let due = |opening| {
        let mut due = Due { action: row(State::Executing), unknown: vec![], policy_epoch: 3 };
        due.action.lease_expires = Some(NOW);
        match plan(NOW, &due, opening, RetryTerms::default(), 1.0) {
            Some(Todo::State { next_attempt_after, .. }) => next_attempt_after.unwrap(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(due(true), Duration::ZERO);
    assert_eq!(due(false), Duration::from_millis(500));
}

// ---- the end of an attempt ----------------------------------------------------------

/// What was open or standing when it ended.
#[derive(Debug, Clone, Copy)]
enum With {
    Nothing,
    AWrite,
    AnUnknown,
    ASend,
}

fn fence() -> SendFence {
    SendFence { attempt: OURS, ordinal: Ordinal(1), send: SendNumber(1) }
}

fn end(with: With, stop: Option<Stop>, ended: Ended, cancel: Option<&str>) -> String {
    let action = row(State::Executing);
    let records = match with {
        With::Nothing | With::ASend => vec![],
        With::AWrite => vec![effect(1, RecoveryClass::Manual, EffectStatus::Succeeded)],
        With::AnUnknown => vec![effect(1, RecoveryClass::ProviderIdempotent, EffectStatus::Unknown)],
    };
    let log = EffectLog::new(records);
    let sending = matches!(with, With::ASend).then(fence);
    let conclusion = conclude(Remains {
        action: &action,
        log: &log,
        sending,
        stop,
        ended,
        cancel: cancel.map(str::to_owned),
        now: NOW,
        retry: RetryTerms::default(),
        jitter: 0.5,
        result_misfit: None,
    });
    let Some(conclusion) = conclusion else { return "says nothing".into() };
    assert_eq!(countersign_domain::action::next(State::Executing, &conclusion.fact), Ok(conclusion.to));
    assert_eq!(conclusion.result.is_some(), conclusion.to == State::Succeeded);
    let goes_on = matches!(conclusion.to, State::FailedRetryable | State::OutcomeUnknown);
    assert_eq!(conclusion.next_attempt_after.is_some(), goes_on);
    // A send that is out is named in full, or its record could not be matched.
    assert_eq!(conclusion.lost, sending);
    let names = conclusion.error.as_ref().is_some_and(|error| error.message.contains("what was sent stands"));
    let ended_over_a_write = matches!(with, With::AWrite) && conclusion.to == State::FailedTerminal;
    assert!(names || !ended_over_a_write, "{:?}", conclusion.error);
    let code = conclusion.error.map(|error| error.code).unwrap_or_default();
    format!("{} {code}", conclusion.to).trim_end().to_owned()
}

#[test]
fn break_2_6_nothing_but_outcome_lost_ends_an_attempt_over_an_open_effect() {
    type Stopped = Option<fn() -> Stop>;
    let ends: Vec<(Stopped, Ended)> = vec![
        (None, Ended::Returned(json_text(json!(1)))),
        (None, Ended::Failed(ToolFailure::Refused("no".into()))),
        (None, Ended::Failed(ToolFailure::TryLater { reason: "busy".into(), after: None })),
        (None, Ended::Trapped { why: "unreachable".into(), limit: None }),
        (None, Ended::Stopped),
        (None, Ended::Unavailable("full".into())),
        (Some(|| Stop::NotThePlan { url: "u".into() }), Ended::Stopped),
        (Some(|| Stop::Unplanned { url: "u".into(), allowed: 0 }), Ended::Stopped),
        (Some(|| Stop::TooManyEffects(3)), Ended::Stopped),
        (Some(|| Stop::NotSent { why: "refused".into(), retry_after: None }), Ended::Stopped),
        (Some(|| Stop::Store("gone".into())), Ended::Stopped),
    ];
    for with in [With::AnUnknown, With::ASend] {
        for (stop, ended) in &ends {
            let said = end(with, stop.map(|stop| stop()), ended.clone(), None);
            assert_eq!(said, "outcome_unknown execution_in_doubt", "{with:?} {ended:?}");
        }
        // In doubt, whoever asked for what.
        let said = end(with, Some(Stop::Halted), Ended::Stopped, Some("no"));
        assert_eq!(said, "outcome_unknown execution_in_doubt");
    }
}

#[test]
fn how_an_attempt_ends_with_nothing_open() {
    use With::{AWrite, Nothing};
    let returned = || Ended::Returned(json_text(json!(1)));
    let later = || Ended::Failed(ToolFailure::TryLater { reason: "busy".into(), after: None });
    let diverged = || {
        Some(Stop::Diverged {
            ordinal: Ordinal(1),
            recorded: EffectFingerprint(Digest::of(b"a")),
            asked: EffectFingerprint(Digest::of(b"b")),
        })
    };
    let table = [
        (end(Nothing, None, returned(), None), "succeeded"),
        (end(AWrite, None, returned(), None), "succeeded"),
        (end(AWrite, None, returned(), Some("too late to cancel")), "succeeded"),
        (
            end(Nothing, None, Ended::Failed(ToolFailure::Refused("no".into())), None),
            "failed_terminal tool_refused",
        ),
        (
            end(AWrite, None, Ended::Failed(ToolFailure::Broken("no".into())), None),
            "failed_terminal tool_broken",
        ),
        (end(AWrite, None, later(), None), "failed_retryable tool_try_later"),
        (
            end(AWrite, None, Ended::Trapped { why: "x".into(), limit: None }, None),
            "failed_retryable tool_trapped",
        ),
        (end(Nothing, None, Ended::Unavailable("full".into()), None), "failed_retryable unavailable"),
        (end(Nothing, diverged(), Ended::Stopped, None), "cancelled replay_diverged"),
        (end(AWrite, diverged(), Ended::Stopped, None), "failed_terminal replay_diverged"),
        (end(With::AnUnknown, diverged(), Ended::Stopped, None), "outcome_unknown replay_diverged"),
        (end(Nothing, Some(Stop::Halted), Ended::Stopped, None), "says nothing"),
        (end(Nothing, Some(Stop::Halted), Ended::Stopped, Some("no")), "cancelled cancelled"),
        (end(AWrite, Some(Stop::Halted), Ended::Stopped, Some("no")), "failed_terminal cancelled"),
        (
            end(AWrite, Some(Stop::TooManyEffects(1)), Ended::Stopped, None),
            "failed_terminal too_many_effects",
        ),
        (
            end(
                With::ASend,
                Some(Stop::RecordFailed { fence: fence(), why: "full".into() }),
                Ended::Stopped,
                None,
            ),
            "outcome_unknown execution_in_doubt",
        ),
        (
            end(
                With::ASend,
                Some(Stop::Unknown { fence: fence(), why: "cut".into(), retry_after: None }),
                Ended::Stopped,
                None,
            ),
            "outcome_unknown execution_in_doubt",
        ),
    ];
    for (n, (said, expected)) in table.into_iter().enumerate() {
        assert_eq!(said, expected, "row {n}");
    }
}

#[test]
fn a_refused_claim_ends_as_the_row_that_refused_it_calls_for() {
    let refused = |with, change: fn(&mut Action)| {
        let mut row = row(State::Executing);
        change(&mut row);
        end(with, Some(Stop::ClaimRefused(Box::new(row))), Ended::Stopped, None)
    };
    use With::{AWrite, AnUnknown, Nothing};
    assert_eq!(refused(Nothing, |_| {}), "failed_retryable not_sent");
    assert_eq!(refused(Nothing, |row| row.cancel_requested = Some("no".into())), "cancelled cancelled");
    assert_eq!(refused(AWrite, |row| row.cancel_requested = Some("no".into())), "failed_terminal cancelled");
    assert_eq!(refused(AWrite, |row| row.execution_deadline = NOW), "failed_terminal deadline_passed");
    assert_eq!(refused(AnUnknown, |row| row.execution_deadline = NOW), "outcome_unknown execution_in_doubt");
    assert_eq!(
        refused(AnUnknown, |row| row.cancel_requested = Some("no".into())),
        "outcome_unknown execution_in_doubt"
    );
    // Somebody else's row by now: there is nothing to say.
    assert_eq!(refused(AWrite, |row| row.attempt_id = Some(AttemptId(uuid(8)))), "says nothing");
    assert_eq!(refused(AWrite, |row| row.state = State::OutcomeUnknown), "says nothing");
}

#[test]
fn try_later_sets_aside_what_may_be_asked_again_and_rests_as_long_as_it_wished() {
    let action = row(State::Executing);
    let mut refusal = effect(2, RecoveryClass::Manual, EffectStatus::Failed);
    refusal.refusal = Some(Refusal::NotGranted("no".into()));
    let log = EffectLog::new(vec![effect(1, RecoveryClass::Read, EffectStatus::Succeeded), refusal]);
    let conclusion = conclude(Remains {
        action: &action,
        log: &log,
        sending: None,
        stop: None,
        ended: Ended::Failed(ToolFailure::TryLater { reason: "busy".into(), after: Some(90) }),
        cancel: None,
        now: NOW,
        retry: RetryTerms::default(),
        jitter: 0.5,
        result_misfit: None,
    })
    .unwrap();
    assert_eq!(conclusion.set_aside, [Ordinal(1), Ordinal(2)]);
    assert_eq!(conclusion.next_attempt_after, Some(Duration::from_secs(90)));
    assert!(matches!(conclusion.fact, Fact::FailedRetryably { .. }));
}
