//! How an attempt ends: from why the component stopped to what is stated about
//! the action. Pure; [`crate::execute`] writes it down.

use std::time::Duration;

use countersign_domain::action::{Action, ActionError, Fact, Standing, State, next};
use countersign_domain::canonical::CanonicalJson;
use countersign_domain::code;
use countersign_domain::effect::EffectRecord;
use countersign_domain::effect_log::EffectLog;
use countersign_domain::id::{Digest, EffectFingerprint, Ordinal};
use countersign_domain::lease::SendFence;
use countersign_domain::retry::RetryTerms;
use countersign_domain::run::{Ended, ToolFailure};
use countersign_domain::time::Timestamp;
use countersign_store::StoreError;
use countersign_store::steps::Move;

/// Why the gate stopped a component.
#[derive(Debug)]
pub enum Stop {
    /// It asked for something else than it did before.
    Diverged {
        /// Where.
        ordinal: Ordinal,
        /// What it asked for before.
        recorded: EffectFingerprint,
        /// What it asks for now.
        asked: EffectFingerprint,
    },
    /// What stands in the ledger is not what was approved.
    NotApproved(String),
    /// Its first write is not the one that was shown.
    NotThePlan {
        /// Where it wanted to write.
        url: String,
    },
    /// One write more than approvers were told of.
    Unplanned {
        /// Where it wanted to write.
        url: String,
        /// How many the route allows beyond the planned one.
        allowed: u32,
    },
    /// More effects than the grant allows.
    TooManyEffects(u32),
    /// A claim did not hold; the row as it stood.
    ClaimRefused(Box<Action>),
    /// Nothing was sent.
    NotSent {
        /// Why.
        why: String,
        /// The provider's wish.
        retry_after: Option<Duration>,
    },
    /// Something may have been sent.
    Unknown {
        /// Which send.
        fence: SendFence,
        /// Why nobody knows.
        why: String,
        /// The provider's wish.
        retry_after: Option<Duration>,
    },
    /// A write that the ledger may have lost the row of, and that its provider
    /// would not recognise: whether it was sent before is not known.
    PerhapsSent(Ordinal),
    /// A write that did not happen, and that the lost rows may hold another one
    /// in place of.
    PerhapsReplaced(Ordinal),
    /// It was answered, and the answer could not be recorded.
    RecordFailed {
        /// Which send.
        fence: SendFence,
        /// Why.
        why: String,
    },
    /// The attempt is no longer alive, or was asked to stop.
    Halted,
    /// Its host stops, and gives it back.
    Released,
    /// The store failed before anything was claimed.
    Store(String),
}

impl Stop {
    pub(crate) fn store(error: StoreError) -> Stop {
        Stop::Store(error.to_string())
    }
}

/// What is to be stated about an action at the end of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conclusion {
    /// The fact.
    pub fact: Fact,
    /// Where it leads.
    pub to: State,
    /// For `succeeded`.
    pub result: Option<CanonicalJson>,
    /// For everything else.
    pub error: Option<ActionError>,
    /// When the next attempt is due, from now.
    pub next_attempt_after: Option<Duration>,
    /// For `try-later`.
    pub set_aside: Vec<Ordinal>,
    /// For `outcome_lost`.
    pub lost: Option<SendFence>,
}

/// What an attempt left behind.
pub struct Remains<'a> {
    /// The row as it was claimed.
    pub action: &'a Action,
    /// The effects as they stand now.
    pub log: &'a EffectLog,
    /// A send that is claimed and not recorded.
    pub sending: Option<SendFence>,
    /// Why the gate stopped the component, if it did.
    pub stop: Option<Stop>,
    /// How the component ended.
    pub ended: Ended,
    /// Whether somebody asked for it to stop, as last heard.
    pub cancel: Option<String>,
    /// When it ended, by the store's clock: a claim that was refused for being
    /// too late left its row as it was, with the time of an earlier change.
    pub now: Timestamp,
    /// For the rest between attempts.
    pub retry: RetryTerms,
    /// `0.0..1.0`.
    pub jitter: f64,
    /// What is wrong with the result, by the tool's own output schema.
    pub result_misfit: Option<String>,
}

/// Concludes an attempt. `None`: the attempt is over already and has nothing to
/// say; what became of the action was written by whoever ended it.
pub fn conclude(remains: Remains<'_>) -> Option<Conclusion> {
    let standing = standing(&remains);
    let with = Ending { standing, remains: &remains };
    match &remains.stop {
        Some(stop) => with.stopped(stop),
        None => Some(with.ended()),
    }
}

/// What the effects say, as the attempt knows them.
fn standing(remains: &Remains<'_>) -> Standing {
    let Remains { action, log, sending, .. } = remains;
    // Of writes whose rows are lost, nobody knows that none stands.
    let lost = action.rewound && !countersign_domain::planted::on("rewound-ends-as-cancelled");
    Standing {
        open: sending.is_some() || log.records().iter().any(EffectRecord::is_open),
        writes_stand: sending.is_some() || lost || log.records().iter().any(EffectRecord::stands),
    }
}

struct Ending<'a> {
    standing: Standing,
    remains: &'a Remains<'a>,
}

impl Ending<'_> {
    fn stopped(&self, stop: &Stop) -> Option<Conclusion> {
        Some(match stop {
            Stop::Halted => match &self.remains.cancel {
                Some(reason) => self.cancelled(reason),
                None => return None,
            },
            Stop::Released => self.released(),
            Stop::Diverged { ordinal, recorded, asked } => self.for_good(
                code::REPLAY_DIVERGED,
                format!(
                    "effect {ordinal} is not what it was before: the ledger has {recorded}, the tool now asks for \
                     {asked}; nothing was sent"
                ),
            ),
            Stop::NotApproved(why) => self.for_good(code::ACTION_CHANGED, why.clone()),
            Stop::NotThePlan { url } => self.for_good(
                code::ACTION_CHANGED,
                format!("the first write, to {url}, is not the one that was approved; nothing was sent"),
            ),
            Stop::Unplanned { url, allowed } => self.terminally(
                code::UNPLANNED_EFFECT,
                format!(
                    "a further write, to {url}, was refused: approvers were told of {allowed} beyond the planned one \
                     there"
                ),
            ),
            Stop::TooManyEffects(limit) => self.terminally(
                code::TOO_MANY_EFFECTS,
                format!("the tool asked for more than the {limit} effects its grant allows"),
            ),
            Stop::ClaimRefused(row) => return self.refused(row),
            Stop::NotSent { why, retry_after } => {
                self.retryably(code::NOT_SENT, format!("nothing was sent: {why}"), *retry_after)
            }
            Stop::Unknown { fence, why, retry_after } => self.lost(*fence, why, *retry_after),
            Stop::PerhapsSent(ordinal) => self.in_doubt(
                *ordinal,
                "the ledger lost commits, and this write may have been sent before they were lost",
                None,
            ),
            Stop::PerhapsReplaced(ordinal) => self.terminally(
                code::OUTCOME_NEVER_KNOWN,
                format!(
                    "effect {ordinal} did not happen, but the ledger lost commits, and another write may have been \
                     made in its place: it is not sent again, and nothing should be proposed in its stead without \
                     looking"
                ),
            ),
            Stop::RecordFailed { fence, why } => {
                self.lost(*fence, &format!("the answer could not be recorded: {why}"), None)
            }
            Stop::Store(why) => self.retryably(code::UNAVAILABLE, format!("the store failed: {why}"), None),
        })
    }

    /// A claim did not hold: why is in the row.
    fn refused(&self, row: &Action) -> Option<Conclusion> {
        let ours = row.state == State::Executing && row.attempt_id == self.remains.action.attempt_id;
        if !ours {
            return None;
        }
        if let Some(reason) = &row.cancel_requested {
            return Some(self.cancelled(reason));
        }
        if self.remains.now >= row.execution_deadline {
            return Some(self.terminally(code::DEADLINE_PASSED, "the execution deadline passed".into()));
        }
        if row.rewound && !self.standing.open {
            // Whether it was ever sent under its approval, which is over, was
            // lost with the rows.
            return Some(self.terminally(
                code::NOT_SENT,
                "a write could not be claimed any more, and the ledger lost commits of this action".into(),
            ));
        }
        // Approval expired, policy changed, lease gone: whatever it was, nothing
        // is in flight. The reaper states the end that the row calls for.
        Some(self.retryably(
            code::NOT_SENT,
            "a write could not be claimed any more; nothing was sent".into(),
            None,
        ))
    }

    fn ended(&self) -> Conclusion {
        match &self.remains.ended {
            Ended::Returned(result) => match &self.remains.result_misfit {
                Some(why) => self.terminally(
                    code::TOOL_BROKEN,
                    format!("its result does not fit its output schema: {why}"),
                ),
                None => self.succeeded(result),
            },
            Ended::Failed(ToolFailure::Refused(why)) => self.terminally(code::TOOL_REFUSED, why.clone()),
            Ended::Failed(ToolFailure::InvalidArguments(why)) => {
                self.terminally(code::INVALID_ARGUMENTS, why.clone())
            }
            Ended::Failed(ToolFailure::Broken(why)) => self.terminally(code::TOOL_BROKEN, why.clone()),
            Ended::Failed(ToolFailure::TryLater { reason, after }) => {
                let after = after.map(|seconds| Duration::from_secs(u64::from(seconds)));
                let mut conclusion = self.retryably(code::TOOL_TRY_LATER, reason.clone(), after);
                if conclusion.to == State::FailedRetryable {
                    conclusion.set_aside = self.remains.log.to_set_aside();
                }
                conclusion
            }
            Ended::Trapped { why, .. } => self.retryably(code::TOOL_TRAPPED, why.clone(), None),
            Ended::Stopped => self.retryably(code::TOOL_TRAPPED, "it was stopped".into(), None),
            Ended::Unavailable(why) => self.retryably(code::UNAVAILABLE, why.clone(), None),
        }
    }

    fn succeeded(&self, result: &CanonicalJson) -> Conclusion {
        let fact = Fact::Succeeded {
            standing: self.standing,
            result: Digest::of(result.as_str().as_bytes()),
            effects: self.remains.log.digest(),
        };
        let mut conclusion = self.state(fact, None);
        // A result over an open effect is none: nobody knows yet what it is of.
        conclusion.result = (conclusion.to == State::Succeeded).then(|| result.clone());
        conclusion
    }

    /// Ends for good: `cancelled` where nothing stands outside.
    fn for_good(&self, code: &'static str, message: String) -> Conclusion {
        if self.standing.writes_stand {
            return self.terminally(code, message);
        }
        let fact = Fact::StoppedBeforeWrites { standing: self.standing, code: code.into() };
        self.state(fact, Some(ActionError { code: code.into(), message }))
    }

    fn cancelled(&self, reason: &str) -> Conclusion {
        self.for_good(code::CANCELLED, format!("it was cancelled: {reason}"))
    }

    fn terminally(&self, code: &'static str, message: String) -> Conclusion {
        let stands = what_stands(self.remains.log.records(), self.remains.action.rewound);
        let message = format!("{message}{stands}");
        let fact = Fact::FailedTerminally { standing: self.standing, code: code.into() };
        self.state(fact, Some(ActionError { code: code.into(), message }))
    }

    fn retryably(&self, code: &'static str, message: String, retry_after: Option<Duration>) -> Conclusion {
        let fact = Fact::FailedRetryably { standing: self.standing, why: message.clone() };
        let mut conclusion = self.state(fact, Some(ActionError { code: code.into(), message }));
        conclusion.next_attempt_after = Some(self.rest(retry_after));
        conclusion
    }

    /// Due at once, wherever there is somebody to run it. Where an effect is
    /// unknown it stays so: that nobody runs it any more settles nothing.
    fn released(&self) -> Conclusion {
        let message = "its host was told to stop and gave it back".to_owned();
        let error = ActionError { code: code::WORKER_LOST.into(), message };
        let mut conclusion = self.state(Fact::Released { standing: self.standing }, Some(error));
        conclusion.next_attempt_after.get_or_insert(Duration::ZERO);
        conclusion
    }

    fn lost(&self, fence: SendFence, why: &str, retry_after: Option<Duration>) -> Conclusion {
        let mut conclusion = self.in_doubt(fence.ordinal, why, retry_after);
        conclusion.lost = Some(fence);
        conclusion
    }

    fn in_doubt(&self, ordinal: Ordinal, why: &str, retry_after: Option<Duration>) -> Conclusion {
        let fact = Fact::OutcomeLost { ordinal, why: why.to_owned() };
        let error = ActionError {
            code: code::EXECUTION_IN_DOUBT.into(),
            message: format!("it is not known whether effect {ordinal} happened: {why}"),
        };
        let mut conclusion = self.state(fact, Some(error));
        conclusion.next_attempt_after = Some(self.rest(retry_after));
        conclusion
    }

    fn rest(&self, retry_after: Option<Duration>) -> Duration {
        self.remains.retry.rest(self.remains.action.attempt.0, self.remains.jitter, retry_after)
    }

    /// States a fact; where an effect is open, the only one that can be stated.
    fn state(&self, fact: Fact, error: Option<ActionError>) -> Conclusion {
        if let Ok(to) = next(State::Executing, &fact) {
            return Conclusion {
                fact,
                to,
                result: None,
                error,
                next_attempt_after: None,
                set_aside: Vec::new(),
                lost: None,
            };
        }
        let open = self.remains.log.records().iter().find(|record| record.is_open());
        let fence = self.remains.sending;
        let ordinal =
            fence.map(|fence| fence.ordinal).or(open.map(|record| record.ordinal)).unwrap_or(Ordinal(0));
        let why = error
            .as_ref()
            .map_or("the tool returned without asking about it", |error| error.message.as_str())
            .to_owned();
        // What the attempt ended of is no answer to whether the effect happened.
        // Only a component that diverged stays named: asking again through it
        // would be asking for something else.
        let error =
            error.filter(|error| error.code == code::REPLAY_DIVERGED).unwrap_or_else(|| ActionError {
                code: code::EXECUTION_IN_DOUBT.into(),
                message: format!(
                    "it is not known whether effect {ordinal} happened; the last attempt ended so: {why}"
                ),
            });
        Conclusion {
            fact: Fact::OutcomeLost { ordinal, why },
            to: State::OutcomeUnknown,
            result: None,
            error: Some(error),
            next_attempt_after: Some(self.rest(None)),
            set_aside: Vec::new(),
            lost: fence,
        }
    }
}

/// Names what stands outside, for the end of an action that did not succeed.
pub(crate) fn what_stands(records: &[EffectRecord], rewound: bool) -> String {
    let lost = if rewound {
        "; the ledger lost commits, so writes that it does not name may stand, too"
    } else {
        ""
    };
    let standing: Vec<String> = records
        .iter()
        .filter(|record| record.stands())
        .map(|record| {
            let answer =
                record.answer.as_ref().map_or("not known".into(), |answer| answer.status.to_string());
            format!("effect {}: {} {} ({answer})", record.ordinal, record.request.method, record.request.url)
        })
        .collect();
    if standing.is_empty() {
        lost.to_owned()
    } else {
        format!("; what was sent stands: {}{lost}", standing.join(", "))
    }
}

/// A conclusion as the move of an event.
impl Conclusion {
    pub(crate) fn moved(&self) -> Move {
        Move { fact: self.fact.clone(), to: self.to, by: "worker".into() }
    }
}
