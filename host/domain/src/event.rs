//! Events: one per transition, written in its transaction, chained by hash.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::action::{Fact, IllegalTransition, State, next};
use crate::id::{ActionId, Digest, TenantId};
use crate::time::Timestamp;

/// One transition of one action.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Tenant-wide cursor; grows in the order of commits, may have gaps.
    pub cursor: i64,
    /// Whose action.
    pub tenant: TenantId,
    /// Which action.
    pub action: ActionId,
    /// From 1, without gaps.
    pub seq: u32,
    /// By the database's clock.
    pub at: Timestamp,
    /// Canonical JSON of [`EventBody`]: the text that is hashed.
    pub body: String,
    /// SHA-256 over the hash before, seq, time and body; see [`chain`].
    pub hash: Digest,
}

/// What an event says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventBody {
    /// The fact.
    #[serde(flatten)]
    pub fact: Fact,
    /// Where it led.
    pub to: State,
    /// Who stated it: a principal, `worker`, `reaper`.
    pub by: String,
}

impl EventBody {
    /// The canonical text (RFC 8785). Written by hand, because there is one for
    /// every transition and the general canonicaliser takes several times as
    /// long: a body has only texts, small integers and names in ASCII, for which
    /// sorting the members is all there is to it.
    pub fn canonical(&self) -> String {
        let sorted = match serde_json::to_value(self) {
            Ok(serde_json::Value::Object(members)) => members.into_iter().collect::<BTreeMap<_, _>>(),
            never => unreachable!("an event body is not an object: {never:?}"),
        };
        serde_json::to_string(&sorted)
            .unwrap_or_else(|never| unreachable!("an event body did not serialise: {never}"))
    }
}

/// The hash before an action's first event.
pub fn genesis(tenant: &TenantId, action: ActionId) -> Digest {
    Digest::of(format!("countersign/events/1\n{tenant}\n{action}").as_bytes())
}

/// The next link: SHA-256(hash before ‖ seq, 8 bytes big-endian ‖ microseconds,
/// 8 bytes big-endian ‖ body). Plain enough for a database to compute.
pub fn chain(before: Digest, seq: u32, at: Timestamp, body: &str) -> Digest {
    let mut hash = Sha256::new();
    hash.update(before.as_bytes());
    hash.update(i64::from(seq).to_be_bytes());
    hash.update(at.as_micros().to_be_bytes());
    hash.update(body.as_bytes());
    Digest::from_bytes(hash.finalize().into())
}

/// What is wrong with an action's events.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BrokenChain {
    /// An event is missing or doubled.
    #[error("event {expected} is missing: {found} follows")]
    Gap {
        /// The number that should have come.
        expected: u32,
        /// The number that came.
        found: u32,
    },
    /// An event, or one before it, was changed.
    #[error("event {seq} was changed: its hash is not that of its content after event {}", seq - 1)]
    Changed {
        /// Which.
        seq: u32,
    },
    /// An event says something that cannot be.
    #[error("event {seq} cannot be: {why}")]
    Impossible {
        /// Which.
        seq: u32,
        /// Why.
        why: String,
    },
    /// The row says something else than the last event.
    #[error("the action is {row} and its last event says {event}")]
    Row {
        /// In the row.
        row: State,
        /// By the events.
        event: State,
    },
    /// The action has no event at all.
    #[error("there are no events")]
    Empty,
}

/// Verifies an action's whole chain and that it leads to where the row is.
///
/// # Errors
/// [`BrokenChain`] names the first event that is wrong.
pub fn verify(tenant: &TenantId, action: ActionId, events: &[Event], row: State) -> Result<(), BrokenChain> {
    let mut before = genesis(tenant, action);
    let mut state: Option<State> = None;
    for (expected, event) in (1u32..).zip(events) {
        if event.seq != expected {
            return Err(BrokenChain::Gap { expected, found: event.seq });
        }
        if chain(before, event.seq, event.at, &event.body) != event.hash {
            return Err(BrokenChain::Changed { seq: event.seq });
        }
        let impossible = |why: String| BrokenChain::Impossible { seq: event.seq, why };
        let body: EventBody = serde_json::from_str(&event.body).map_err(|e| impossible(e.to_string()))?;
        let to = match (state, &body.fact) {
            (None, Fact::Proposed { .. }) => crate::action::FIRST,
            (None, fact) => return Err(impossible(format!("it starts with \"{}\"", fact.name()))),
            (Some(from), fact) => {
                next(from, fact).map_err(|e: IllegalTransition| impossible(e.to_string()))?
            }
        };
        if to != body.to {
            return Err(impossible(format!("it says {} where the rules say {to}", body.to)));
        }
        state = Some(to);
        before = event.hash;
    }
    match state {
        None => Err(BrokenChain::Empty),
        Some(event) if event != row => Err(BrokenChain::Row { row, event }),
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{AttemptNumber, Fingerprint};
    use crate::key::{ActionKey, action_id};

    fn history() -> (TenantId, ActionId, Vec<Event>) {
        let tenant: TenantId = "default".parse().unwrap();
        let action = action_id(&tenant, &ActionKey::Key("k".into()));
        let facts = [
            (Fact::Proposed { fingerprint: Fingerprint(Digest::of(b"f")) }, State::Proposed),
            (Fact::PolicyAllowed, State::Approved),
            (Fact::Claimed { attempt: AttemptNumber(1) }, State::Executing),
        ];
        let mut before = genesis(&tenant, action);
        let mut events = vec![];
        for (seq, (fact, to)) in (1u32..).zip(facts) {
            let body = EventBody { fact, to, by: "ann".into() }.canonical();
            let at = Timestamp::from_micros(i64::from(seq));
            before = chain(before, seq, at, &body);
            events.push(Event { cursor: 0, tenant: tenant.clone(), action, seq, at, body, hash: before });
        }
        (tenant, action, events)
    }

    #[test]
    fn every_body_is_in_canonical_form_and_reads_back() {
        use crate::action::Standing;
        use crate::id::Ordinal;
        let text = "é \u{1} \u{7f} \u{2028} \" \\ / \n \t \u{8} \u{c} \r 💶".to_owned();
        let standing = Standing { open: true, writes_stand: false };
        let (ordinal, others_unknown) = (Ordinal(7), true);
        let digest = Digest::of(b"x");
        let facts = [
            Fact::Proposed { fingerprint: Fingerprint(digest) },
            Fact::PolicyAllowed,
            Fact::ApprovalRequired { required: u32::MAX },
            Fact::Declined { reason: text.clone() },
            Fact::Cancelled { standing, reason: text.clone() },
            Fact::Changed { standing, what: text.clone() },
            Fact::Expired { standing },
            Fact::Claimed { attempt: AttemptNumber(1) },
            Fact::Succeeded { standing, result: digest, effects: digest },
            Fact::OutcomeLost { ordinal, why: text.clone() },
            Fact::FoundDone { ordinal, by: text.clone(), others_unknown },
            Fact::FoundNotDone { ordinal, by: text.clone(), others_unknown },
            Fact::GivenUp { by: text.clone() },
        ];
        for fact in facts {
            let body = EventBody { fact, to: State::OutcomeUnknown, by: text.clone() };
            let written = body.canonical();
            assert_eq!(written, serde_json_canonicalizer::to_string(&body).unwrap());
            assert_eq!(serde_json::from_str::<EventBody>(&written).unwrap(), body);
        }
    }

    #[test]
    fn p8_an_edited_deleted_swapped_or_truncated_history_is_named() {
        let (tenant, action, good) = history();
        let check = |events: &[Event]| verify(&tenant, action, events, State::Executing);
        assert_eq!(check(&good), Ok(()));

        let mut edited = good.clone();
        edited[1].body = edited[1].body.replace("ann", "eve");
        assert_eq!(check(&edited), Err(BrokenChain::Changed { seq: 2 }));

        let mut deleted = good.clone();
        deleted.remove(1);
        assert_eq!(check(&deleted), Err(BrokenChain::Gap { expected: 2, found: 3 }));

        let mut later = good.clone();
        later[0].at = Timestamp::from_micros(99);
        assert_eq!(check(&later), Err(BrokenChain::Changed { seq: 1 }));

        assert_eq!(
            check(&good[..2]),
            Err(BrokenChain::Row { row: State::Executing, event: State::Approved })
        );
        assert_eq!(check(&[]), Err(BrokenChain::Empty));
        assert!(verify(&"other".parse().unwrap(), action, &good, State::Executing).is_err());
    }
}
