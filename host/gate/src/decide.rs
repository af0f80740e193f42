//! Decisions about an action that is not running: approve, decline, cancel,
//! supersede. Approving runs nothing.

use std::sync::Arc;

use countersign_domain::action::{Action, ActionError, Fact, State};
use countersign_domain::approval::may_decide;
use countersign_domain::canonical::CanonicalJson;
use countersign_domain::code;
use countersign_domain::id::{ActionId, Fingerprint, Principal, TenantId};
use countersign_domain::key::ActionKey;
use countersign_domain::time::Timestamp;
use countersign_store::steps::{Approve, Move, Step, Transition, When};

use crate::propose::{Proposal, ProposedAction};
use crate::{Gate, GateError, Inner};

/// How often a decision is made anew on a row that changed in the meantime.
/// Chosen: each time somebody else moved the row on, and rows move a few times
/// in their life.
const TRIES: u32 = 16;

impl Gate {
    /// Gives one approver's yes to exactly what stands in the row. `saw`: the
    /// fingerprint that the approver was shown; another is refused.
    ///
    /// # Errors
    /// [`GateError::MayNotDecide`], [`GateError::FingerprintPrecondition`],
    /// [`GateError::ApprovalExpired`], [`GateError::ActionChanged`],
    /// [`GateError::InvalidState`].
    pub async fn approve(
        &self,
        tenant: &TenantId,
        id: ActionId,
        by: &Principal,
        saw: Option<Fingerprint>,
        note: Option<String>,
    ) -> Result<Action, GateError> {
        let inner = &self.inner;
        let action = inner.row(tenant, id).await?;
        may_decide(by, &action.proposer, &action.actor)?;
        let other = saw.is_some_and(|saw| saw != action.fingerprint);
        if other && !countersign_domain::planted::on("fingerprint") {
            return Err(GateError::FingerprintPrecondition { action: id, current: action.fingerprint });
        }
        let moved = Move {
            fact: Fact::Approved { fingerprint: action.fingerprint },
            to: State::Approved,
            by: by.to_string(),
        };
        let approve = Approve {
            tenant: tenant.clone(),
            action: id,
            by: by.clone(),
            note,
            fingerprint: action.fingerprint,
            if_last: moved,
        };
        match inner.store.approve(approve).await? {
            Step::Made(action) => {
                if action.state == State::Approved && action.run_by_itself {
                    inner.nudge.notify_one();
                }
                Ok(action)
            }
            Step::Lost(row) => Err(inner.why_not_approved(*row, by).await?),
        }
    }

    /// Says no.
    ///
    /// # Errors
    /// [`GateError::MayNotDecide`], [`GateError::InvalidState`].
    pub async fn decline(
        &self,
        tenant: &TenantId,
        id: ActionId,
        by: &Principal,
        reason: &str,
    ) -> Result<Action, GateError> {
        let reason = checked_reason(reason)?;
        self.inner
            .decide(tenant, id, |action, now| {
                may_decide(by, &action.proposer, &action.actor)?;
                if action.state != State::AwaitingApproval {
                    return Err(invalid(action, "only an action that awaits approval can be declined"));
                }
                if now >= action.approval_expires {
                    return Err(GateError::ApprovalExpired { action: id, expired: action.approval_expires });
                }
                let error = Some(said(code::DECLINED, &format!("{by} declined: {reason}")));
                Ok(Decision {
                    fact: Fact::Declined { reason: reason.clone() },
                    when: When::ApprovalOpen,
                    error,
                    superseded_by: None,
                    by: by.to_string(),
                })
            })
            .await
    }

    /// Takes an action back. While it executes or is in doubt this is a
    /// request: no new effect starts, the one in flight is awaited.
    ///
    /// # Errors
    /// [`GateError::InvalidState`] once it ended.
    pub async fn cancel(
        &self,
        tenant: &TenantId,
        id: ActionId,
        by: &Principal,
        reason: &str,
    ) -> Result<Action, GateError> {
        let reason = checked_reason(reason)?;
        let inner = &self.inner;
        for _ in 0..TRIES {
            let action = inner.row(tenant, id).await?;
            if matches!(action.state, State::Executing | State::OutcomeUnknown) {
                match inner.store.request_cancel(tenant, id, &reason).await? {
                    Step::Made(action) => {
                        inner.nudge.notify_one();
                        return Ok(action);
                    }
                    Step::Lost(_) => continue,
                }
            }
            let fact = Fact::Cancelled { standing: action.standing(), reason: reason.clone() };
            let message = format!("{by} cancelled it: {reason}");
            if action.state.is_terminal() {
                return Err(invalid(&action, "it ended; nothing is left to cancel"));
            }
            let error = Some(said(code::CANCELLED, &message));
            match inner.state(&action, fact, When::Always, error, None, by.as_str()).await? {
                Step::Made(action) => return Ok(action),
                Step::Lost(_) => {}
            }
        }
        Err(GateError::unavailable("the action keeps changing; try again"))
    }

    /// Cancels an action that has not begun (or finds one that ended without
    /// anything standing outside) and proposes it anew, with other arguments if
    /// given. The new action's key derives from the old action, so pressing
    /// twice makes one.
    ///
    /// # Errors
    /// As for a proposal, and [`GateError::InvalidState`] if it runs, stands or
    /// is in doubt.
    pub async fn supersede(
        &self,
        tenant: &TenantId,
        id: ActionId,
        by: &Principal,
        arguments: Option<CanonicalJson>,
        key: Option<ActionKey>,
    ) -> Result<ProposedAction, GateError> {
        let inner = &self.inner;
        let old = inner.row(tenant, id).await?;
        let may = matches!(
            old.state,
            State::AwaitingApproval | State::Approved | State::Expired | State::Cancelled
        );
        if !may {
            return Err(invalid(
                &old,
                "only an action that has not begun, expired or was cancelled can be superseded",
            ));
        }
        let key = key.unwrap_or_else(|| ActionKey::Key(format!("supersedes:{id}")));
        let new_id = countersign_domain::key::action_id(tenant, &key);
        if old.superseded_by.is_some_and(|other| other != new_id) {
            return Err(invalid(&old, "it is superseded already; look at superseded_by"));
        }
        let proposal = Proposal {
            tenant: tenant.clone(),
            proposer: by.clone(),
            actor: old.actor.clone(),
            tool: old.tool.clone(),
            version: old.requested_version.clone(),
            arguments: arguments.unwrap_or_else(|| old.arguments.clone()),
            key,
            run_by_itself: old.run_by_itself,
            compensates: old.compensates,
            supersedes: Some(id),
        };
        let pending = matches!(old.state, State::AwaitingApproval | State::Approved);
        if pending {
            // A slip in the new arguments must not cost the old action.
            inner.fits(&proposal).await?;
            // First the old one goes: between the two steps there is none to
            // run, never two.
            inner
                .decide(tenant, id, |action, _| {
                    if action.state == State::Cancelled && action.superseded_by == Some(new_id) {
                        return Err(GateError::Conflict("superseded meanwhile".into()));
                    }
                    let message = format!("{by} replaced it by action {new_id}");
                    Ok(Decision {
                        fact: Fact::Superseded,
                        when: When::Always,
                        error: Some(said(code::SUPERSEDED, &message)),
                        superseded_by: Some(new_id),
                        by: by.to_string(),
                    })
                })
                .await
                .map(drop)
                .or_else(|error| if matches!(error, GateError::Conflict(_)) { Ok(()) } else { Err(error) })?;
        }
        self.propose(proposal).await
    }
}

/// A transition that somebody decided on.
struct Decision {
    fact: Fact,
    when: When,
    error: Option<ActionError>,
    superseded_by: Option<ActionId>,
    by: String,
}

impl Inner {
    /// Decides on a row, and decides anew if the row moved on before the
    /// decision was written.
    async fn decide(
        self: &Arc<Inner>,
        tenant: &TenantId,
        id: ActionId,
        decision: impl Fn(&Action, Timestamp) -> Result<Decision, GateError>,
    ) -> Result<Action, GateError> {
        for _ in 0..TRIES {
            let action = self.row(tenant, id).await?;
            let decision = decision(&action, self.store.now().await?)?;
            let to = countersign_domain::action::next(action.state, &decision.fact)
                .map_err(|illegal| invalid(&action, &illegal.to_string()))?;
            let transition = Transition {
                tenant: tenant.clone(),
                action: id,
                expected: action.version_counter,
                moved: Move { fact: decision.fact, to, by: decision.by },
                when: decision.when,
                error: decision.error,
                next_attempt_after: None,
                in_flight_becomes_unknown: false,
                grants: 0,
                superseded_by: decision.superseded_by,
            };
            if let Step::Made(action) = self.store.transition(transition).await? {
                return Ok(action);
            }
        }
        Err(GateError::unavailable("the action keeps changing; try again"))
    }

    /// Why an approval did not hold. What the row calls for is written down on
    /// the way: an approval that comes too late expires the action.
    async fn why_not_approved(&self, row: Action, by: &Principal) -> Result<GateError, GateError> {
        if row.state != State::AwaitingApproval {
            if row.approvals.iter().any(|given| &given.by == by) {
                return Ok(invalid(&row, "you approved it before; it has moved on since"));
            }
            return Ok(invalid(&row, "only an action that awaits approval can be approved"));
        }
        let row = self.void_if_changed(row).await?;
        Ok(match row.state {
            State::Expired => GateError::ApprovalExpired { action: row.id, expired: row.approval_expires },
            State::Cancelled => {
                let what = row.error.as_ref().map_or("something changed", |error| error.message.as_str());
                GateError::ActionChanged { action: row.id, what: what.to_owned() }
            }
            _ => GateError::FingerprintPrecondition { action: row.id, current: row.fingerprint },
        })
    }
}

fn said(code: &str, message: &str) -> ActionError {
    ActionError { code: code.into(), message: message.into() }
}

fn invalid(action: &Action, hint: &str) -> GateError {
    GateError::InvalidState { action: action.id, state: action.state, hint: hint.into() }
}

/// The longest reason or note, in bytes. Chosen: a paragraph.
pub const MAX_WORDS: usize = 2000;

/// Somebody's words: there, and not a book.
pub(crate) fn checked_reason(reason: &str) -> Result<String, GateError> {
    let reason = reason.trim();
    if reason.is_empty() || reason.len() > MAX_WORDS || reason.contains('\0') {
        return Err(GateError::InvalidRequest(format!("a reason is 1 to {MAX_WORDS} bytes of text")));
    }
    Ok(reason.to_owned())
}
