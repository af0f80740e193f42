//! How an attempt ends.

use std::time::Duration;

use countersign_domain::action::{Action, Fact, State};
use countersign_domain::effect::{EffectStatus, Refusal};
use countersign_domain::effect_log::EffectLog;
use countersign_domain::grant::RecoveryClass;
use countersign_domain::id::{AttemptId, Digest, EffectFingerprint, Ordinal, SendNumber};
use countersign_domain::lease::SendFence;
use countersign_domain::retry::RetryTerms;
use countersign_domain::run::{Ended, ToolFailure};
use countersign_gate::conclude::{Remains, Stop, conclude};
use serde_json::json;

use super::{NOW, OURS, effect, json_text, row, uuid};

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
        (Some(|| Stop::Released), Ended::Stopped),
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
        (end(Nothing, Some(Stop::Released), Ended::Stopped, None), "failed_retryable worker_lost"),
        (end(AWrite, Some(Stop::Released), Ended::Stopped, Some("no")), "failed_retryable worker_lost"),
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
