//! The whole matrix, ten states by every fact in every standing, against a
//! table kept in a file: a changed transition shows as a changed line there.

use super::{Fact, Standing, State, next};
use crate::id::{AttemptNumber, Digest, Fingerprint, Ordinal};

/// Every fact, in every standing that can matter to it.
fn every_fact() -> Vec<(String, Fact)> {
    let digest = Digest::of(b"x");
    let attempt = AttemptNumber(1);
    let ordinal = Ordinal(1);
    let text = String::new;
    let mut facts = vec![
        ("proposed".into(), Fact::Proposed { fingerprint: Fingerprint(digest) }),
        ("policy_allowed".into(), Fact::PolicyAllowed),
        ("approval_required".into(), Fact::ApprovalRequired { required: 1 }),
        ("policy_denied".into(), Fact::PolicyDenied),
        ("approved".into(), Fact::Approved { fingerprint: Fingerprint(digest) }),
        ("declined".into(), Fact::Declined { reason: text() }),
        ("superseded".into(), Fact::Superseded),
        ("ledger_rewound".into(), Fact::LedgerRewound),
        ("claimed".into(), Fact::Claimed { attempt }),
        ("outcome_lost".into(), Fact::OutcomeLost { ordinal, why: text() }),
        ("retries_exhausted".into(), Fact::RetriesExhausted),
        ("safe_to_repeat".into(), Fact::SafeToRepeat { attempt }),
        ("given_up".into(), Fact::GivenUp { by: text() }),
    ];
    for others_unknown in [false, true] {
        let note = if others_unknown { " (others unknown)" } else { "" };
        facts.push((format!("found_done{note}"), Fact::FoundDone { ordinal, by: text(), others_unknown }));
        facts.push((
            format!("found_not_done{note}"),
            Fact::FoundNotDone { ordinal, by: text(), others_unknown },
        ));
    }
    for (open, writes_stand) in [(false, false), (false, true), (true, false), (true, true)] {
        let standing = Standing { open, writes_stand };
        let note = match (open, writes_stand) {
            (false, false) => "",
            (false, true) => " (writes stand)",
            (true, false) => " (open)",
            (true, true) => " (open, writes stand)",
        };
        for fact in [
            Fact::Cancelled { standing, reason: text() },
            Fact::Changed { standing, what: text() },
            Fact::Expired { standing },
            Fact::Succeeded { standing, result: digest, effects: digest },
            Fact::FailedRetryably { standing, why: text() },
            Fact::WorkerLost { standing },
            Fact::Released { standing },
            Fact::FailedTerminally { standing, code: text() },
            Fact::StoppedBeforeWrites { standing, code: text() },
        ] {
            facts.push((format!("{}{note}", fact.name()), fact));
        }
    }
    facts
}

fn matrix() -> String {
    let mut lines = String::new();
    for &from in State::ALL {
        for (label, fact) in every_fact() {
            let to = next(from, &fact).map_or("-", State::as_str);
            lines.push_str(&format!("{from} + {label} -> {to}\n"));
        }
    }
    lines
}

#[test]
fn p8_the_whole_transition_matrix_is_the_golden_table() {
    let golden = include_str!("../../testdata/transitions.txt");
    let found = matrix();
    for (line, (expected, got)) in golden.lines().zip(found.lines()).enumerate() {
        assert_eq!(got, expected, "line {}", line + 1);
    }
    assert_eq!(golden.lines().count(), found.lines().count());
}

#[test]
fn p8_nothing_follows_a_terminal_state() {
    for &from in State::ALL.iter().filter(|state| state.is_terminal()) {
        for (label, fact) in every_fact() {
            assert!(next(from, &fact).is_err(), "{from} + {label}");
        }
    }
}

#[test]
fn p2_no_fact_but_outcome_lost_or_a_rewind_leaves_executing_while_an_effect_is_open() {
    for (label, fact) in every_fact() {
        let open = label.contains("(open");
        if open {
            assert!(next(State::Executing, &fact).is_err(), "{label}");
        }
    }
}

#[test]
fn p2_what_stands_outside_is_never_called_cancelled_or_expired() {
    for &from in &[State::Executing, State::FailedRetryable] {
        for (label, fact) in every_fact().into_iter().filter(|(label, _)| label.contains("writes stand")) {
            let to = next(from, &fact);
            assert!(!matches!(to, Ok(State::Cancelled | State::Expired)), "{from} + {label}");
        }
    }
}

#[test]
fn p9_every_state_that_is_not_terminal_has_a_way_to_an_end() {
    for &from in State::ALL {
        let mut reached = vec![from];
        let mut at = 0;
        while at < reached.len() {
            for (_, fact) in every_fact() {
                if let Ok(to) = next(reached[at], &fact)
                    && !reached.contains(&to)
                {
                    reached.push(to);
                }
            }
            at += 1;
        }
        assert!(reached.iter().any(|state| state.is_terminal()), "{from}");
    }
}
