//! What the reaper does about a row.

use std::time::Duration;

use countersign_domain::action::{ActionError, State};
use countersign_domain::effect::EffectStatus;
use countersign_domain::grant::RecoveryClass;
use countersign_domain::id::Ordinal;
use countersign_domain::retry::RetryTerms;
use countersign_gate::reaper::{Todo, plan};
use countersign_store::steps::{ClaimKind, Due, When};

use super::{HOUR, NOW, effect, row};
use crate::rig::TICK;

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
        Some(Todo::LookUp(ordinals)) => format!("looked up: {ordinals:?}"),
        Some(Todo::Rest(settling)) => format!("settles for {settling:?}"),
        Some(Todo::Announce) => "announced".into(),
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

/// Its first effect is one that its tool can look up, unknown for so long.
fn verifiable(due: &mut Due, since: Duration) {
    due.unknown[0].terms.class = RecoveryClass::Verifiable;
    due.unknown[0].unknown_since = Some(NOW.minus(since));
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
        ("its repeats are spent (17)", OutcomeUnknown, |due, _| due.action.repeats_left = 0, "announced"),
        (
            "… and the last of them may still find out",
            OutcomeUnknown,
            |due, _| {
                due.action.repeats_left = 0;
                due.action.next_attempt = Some(NOW.plus(TICK));
            },
            "waits",
        ),
        (
            "… and somebody was told",
            OutcomeUnknown,
            |due, _| {
                due.action.repeats_left = 0;
                due.action.announced = Some(3);
            },
            "waits",
        ),
        (
            "… of an earlier doubt",
            OutcomeUnknown,
            |due, _| {
                due.action.repeats_left = 0;
                due.action.announced = Some(2);
            },
            "announced",
        ),
        (
            "it can be looked up",
            OutcomeUnknown,
            |due, _| verifiable(due, Duration::from_secs(60)),
            "looked up: [Ordinal(1)]",
        ),
        (
            "… even if a cancel was asked",
            OutcomeUnknown,
            |due, _| {
                verifiable(due, Duration::from_secs(60));
                due.action.cancel_requested = Some("no".into());
            },
            "looked up: [Ordinal(1)]",
        ),
        (
            "… but not before its send has settled (32)",
            OutcomeUnknown,
            |due, _| verifiable(due, Duration::from_secs(60) - TICK),
            "settles for 1µs",
        ),
        (
            "… nor through a component that diverged (7)",
            OutcomeUnknown,
            |due, _| {
                verifiable(due, Duration::from_secs(60));
                due.action.error = Some(ActionError { code: "replay_diverged".into(), message: "x".into() });
            },
            "left to a person",
        ),
        (
            "one of two can be looked up",
            OutcomeUnknown,
            |due, _| {
                verifiable(due, Duration::from_secs(60));
                due.unknown.push(effect(2, RecoveryClass::Manual, EffectStatus::Unknown));
                due.action.unknown_effects = 2;
            },
            "looked up: [Ordinal(1)]",
        ),
        (
            "… the other repeats once that is settled",
            OutcomeUnknown,
            |due, _| {
                verifiable(due, Duration::from_secs(60));
                due.unknown.push(effect(2, RecoveryClass::ProviderIdempotent, EffectStatus::Unknown));
                due.action.unknown_effects = 2;
            },
            "looked up: [Ordinal(1)]",
        ),
        (
            "the ledger lost its writes (35)",
            OutcomeUnknown,
            |due, _| {
                due.unknown.clear();
                due.action.unknown_effects = 0;
                due.action.rewound = true;
            },
            "repeat",
        ),
        (
            "… and perhaps its approval",
            OutcomeUnknown,
            |due, _| {
                due.unknown.clear();
                due.action.rewound = true;
                due.action.approved_fingerprint = None;
            },
            "left to a person",
        ),
        (
            "its approval ran out, and the ledger lost its writes (35)",
            FailedRetryable,
            |due, _| {
                due.action.approval_expires = NOW;
                due.action.rewound = true;
            },
            "run",
        ),
        (
            "a cancel was asked, and the ledger lost its writes (35)",
            FailedRetryable,
            |due, _| {
                due.action.cancel_requested = Some("no".into());
                due.action.rewound = true;
            },
            "cancelled -> failed_terminal, cancelled",
        ),
        (
            "it was left to a person",
            OutcomeUnknown,
            |due, _| {
                due.unknown[0].terms.class = RecoveryClass::Manual;
                due.action.next_attempt = None;
            },
            "announced",
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
