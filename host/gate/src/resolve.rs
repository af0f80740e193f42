//! A person's word about an effect whose outcome nobody knows. It is recorded
//! under their name, with their evidence, and it speaks of one send: if the
//! effect moved on since they looked, it is stale.

use countersign_domain::action::{Action, ActionError, Fact, State, next};
use countersign_domain::code;
use countersign_domain::effect::{Answer, EffectKind, EffectStatus, Evidence};
use countersign_domain::id::{ActionId, Ordinal, Principal, SendNumber, TenantId};
use countersign_domain::lease::SendFence;
use countersign_domain::mail::accepted_by_word;
use countersign_store::steps::{Move, Resolve, Step, When};

use crate::conclude::what_stands;
use crate::decide::checked_reason;
use crate::{Gate, GateError, Inner};

/// What a person says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Word {
    /// It happened, and this is the answer that the component is to see.
    Happened(Answer),
    /// It happened, and what the component is to see follows from the effect
    /// itself. So it is with mail: the server would have said that it took it.
    Sent,
    /// It did not happen, and may be made.
    DidNotHappen,
    /// Nobody will ever know. The action ends.
    GiveUp,
}

/// A person's word about one effect.
#[derive(Debug, Clone)]
pub struct Resolution {
    /// Which effect.
    pub ordinal: Ordinal,
    /// The send they looked into; `None`: the last one, as it stands. That it
    /// did not happen is said of a send by its number: while somebody looked,
    /// another may have gone out.
    pub send: Option<SendNumber>,
    /// What they say.
    pub word: Word,
    /// Why they are to be believed: a ticket, a statement, a screenshot's name.
    pub evidence: String,
}

impl Gate {
    /// Records a person's word. Settled, the action is due again and ends by
    /// its own course; given up, it ends.
    ///
    /// # Errors
    /// [`GateError::InvalidState`] if nothing is in doubt,
    /// [`GateError::Stale`] if the effect moved on, is not in doubt, or it is
    /// too early to say that it did not happen.
    pub async fn resolve(
        &self,
        tenant: &TenantId,
        id: ActionId,
        by: &Principal,
        resolution: Resolution,
    ) -> Result<Action, GateError> {
        let inner = &self.inner;
        let evidence = checked_reason(&resolution.evidence).map_err(|_| {
            GateError::InvalidRequest(
                "evidence is needed: say how you know, in 1 to 2000 bytes of text".into(),
            )
        })?;
        let action = inner.row(tenant, id).await?;
        if action.state != State::OutcomeUnknown {
            return Err(GateError::InvalidState {
                action: id,
                state: action.state,
                hint: "only an action whose outcome is unknown can be resolved".into(),
            });
        }
        let effects = inner.store.effects(tenant, id, false).await?;
        let unknown: Vec<_> = effects.iter().filter(|e| e.status == EffectStatus::Unknown).collect();
        if unknown.is_empty() && action.rewound && resolution.word == Word::GiveUp {
            return inner.give_up_what_was_lost(&action, by, &evidence).await;
        }
        if action.approved_fingerprint.is_none() {
            return Err(GateError::InvalidState {
                action: id,
                state: action.state,
                hint: "it was not approved as far as this ledger knows, which lost commits, so it cannot go on: find \
                       out what it did, give it up, and propose what is still to be done under a new key"
                    .into(),
            });
        }
        let Some(effect) = unknown.iter().find(|e| e.ordinal == resolution.ordinal) else {
            let open: Vec<String> = unknown.iter().map(|e| e.ordinal.to_string()).collect();
            return Err(GateError::Stale(format!(
                "effect {} is not in doubt; in doubt are: {}",
                resolution.ordinal,
                open.join(", ")
            )));
        };
        if resolution.send.is_some_and(|send| send != effect.send) {
            return Err(GateError::Stale(format!(
                "effect {} was sent again since you looked (send {} now): look again",
                effect.ordinal, effect.send
            )));
        }
        if resolution.word == Word::DidNotHappen && resolution.send.is_none() {
            return Err(GateError::InvalidRequest(format!(
                "say which send of effect {} you looked into: its last one is {}; look again if you looked before \
                 that went out",
                effect.ordinal, effect.send
            )));
        }
        let others_unknown = unknown.len() > 1;
        let now = inner.store.now().await?;
        let (by_name, ordinal) = (by.to_string(), effect.ordinal);
        let (fact, outcome) = match &resolution.word {
            Word::Happened(_) | Word::Sent => {
                (Fact::FoundDone { ordinal, by: by_name.clone(), others_unknown }, "happened")
            }
            Word::DidNotHappen => {
                let from = effect.unknown_since.map(|since| since.plus(effect.terms.settle));
                if let Some(from) = from.filter(|from| now < *from) {
                    return Err(GateError::Stale(format!(
                        "it is too early to say that effect {ordinal} did not happen: the send may still arrive; look \
                         again after {from}, and say so then"
                    )));
                }
                (Fact::FoundNotDone { ordinal, by: by_name.clone(), others_unknown }, "did_not_happen")
            }
            Word::GiveUp => (Fact::GivenUp { by: by_name.clone() }, "give_up"),
        };
        let to =
            next(action.state, &fact).map_err(|illegal| GateError::InvalidRequest(illegal.to_string()))?;
        let error = matches!(resolution.word, Word::GiveUp).then(|| ActionError {
            code: code::OUTCOME_NEVER_KNOWN.into(),
            message: format!(
                "{by} gave up finding out whether effect {ordinal} happened: do not propose this again without \
                 looking{}",
                what_stands(&effects, action.rewound)
            ),
        });
        let answer = match resolution.word {
            // Whatever somebody writes down, a mail's answer is about that mail.
            Word::Happened(answer) if effect.kind != EffectKind::Email => Some(answer),
            Word::Happened(_) | Word::Sent => Some(accepted_by_word(effect).ok_or_else(|| {
                GateError::InvalidRequest(format!(
                    "effect {ordinal} is no mail: \"happened\" needs the answer that the tool is to see, as status, \
                     headers and body"
                ))
            })?),
            Word::DidNotHappen | Word::GiveUp => None,
        };
        let resolve = Resolve {
            tenant: tenant.clone(),
            action: id,
            fence: SendFence { attempt: effect.attempt, ordinal, send: effect.send },
            expected: action.version_counter,
            moved: Move { fact, to, by: by_name.clone() },
            not_before: (outcome == "did_not_happen").then_some(effect.terms.settle),
            answer,
            evidence: Evidence {
                by: by_name,
                at: now,
                outcome: outcome.into(),
                evidence: serde_json::Value::String(evidence),
            },
            error,
        };
        match inner.store.resolve(resolve).await? {
            Step::Made(action) => {
                inner.nudge.notify_one();
                Ok(action)
            }
            Step::Lost(row) => Err(GateError::Stale(format!(
                "action {} moved on while you decided (it is {} now): look again",
                row.id, row.state
            ))),
        }
    }
}

impl Inner {
    /// An action that a rewound ledger knows no write of: nothing is to be
    /// settled, and somebody says that nobody will know.
    async fn give_up_what_was_lost(
        &self,
        action: &Action,
        by: &Principal,
        evidence: &str,
    ) -> Result<Action, GateError> {
        let error = ActionError {
            code: code::OUTCOME_NEVER_KNOWN.into(),
            message: format!(
                "{by} gave up finding out what this action did ({evidence}): do not propose this again without looking"
            ),
        };
        let fact = Fact::GivenUp { by: by.to_string() };
        match self.state(action, fact, When::Always, Some(error), None, by.as_str()).await? {
            Step::Made(action) => Ok(action),
            Step::Lost(row) => Err(GateError::Stale(format!(
                "action {} moved on while you decided (it is {} now): look again",
                row.id, row.state
            ))),
        }
    }
}
