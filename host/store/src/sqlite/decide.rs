//! The steps around an attempt: propose, approve, transition, cancel, resolve,
//! postpone. Each function runs inside the writer's transaction.

use std::time::Duration;

use countersign_domain::action::{Action, State};
use countersign_domain::effect::EffectStatus;
use countersign_domain::event::{self, EventBody};
use countersign_domain::id::{ActionId, Digest, TenantId};
use rusqlite::params;

use super::claim::insert_settled;
use super::rows;
use super::sql;
use super::writer::Tx;
use crate::StoreError;
use crate::steps::{Approve, Move, NewAction, Proposed, Putoff, Resolve, Step, Transition};
use crate::written::First;
use countersign_domain::id::AttemptId;
use countersign_domain::time::micros;

/// The row as it stands, or that there is none.
pub(super) fn stands(tx: &Tx<'_, '_>, tenant: &TenantId, id: ActionId) -> Result<Action, StoreError> {
    tx.row(sql::ACTION, params![tenant.as_str(), id.0.as_bytes()], |row| rows::action(tx.conn(), row))?
        .ok_or_else(|| StoreError::NotFound { what: format!("the action {id}") })
}

/// Compares and sets: the row as it stands then, if the conditions held.
pub(super) fn set(
    tx: &Tx<'_, '_>,
    tenant: &TenantId,
    id: ActionId,
    statement: &'static str,
    params: impl rusqlite::Params,
) -> Result<Option<Action>, StoreError> {
    match tx.run(statement, params)? {
        0 => Ok(None),
        _ => stands(tx, tenant, id).map(Some),
    }
}

/// Somebody else was first: the row, for saying why.
pub(super) fn lost<T>(tx: &Tx<'_, '_>, tenant: &TenantId, id: ActionId) -> Result<Step<T>, StoreError> {
    stands(tx, tenant, id).map(|action| Step::Lost(Box::new(action)))
}

/// The event of a transition that was just made; its number is the row's.
pub(super) fn write_event(tx: &Tx<'_, '_>, action: &Action, moved: Move) -> Result<(), StoreError> {
    let (tenant, id) = (action.tenant.as_str(), action.id.0);
    let before: Option<[u8; 32]> =
        tx.row(sql::HASH_BEFORE, params![tenant, id.as_bytes(), action.event_seq], |row| {
            row.get(0).map_err(super::fault::statement)
        })?;
    let Some(before) = before else {
        return Err(StoreError::Damaged {
            what: format!(
                "event {} of the action {} is missing; nothing can be linked on to it",
                action.event_seq.saturating_sub(1),
                action.id
            ),
        });
    };
    let body = EventBody { fact: moved.fact, to: moved.to, by: moved.by }.canonical();
    let hash = event::chain(Digest::from_bytes(before), action.event_seq, tx.now, &body);
    tx.run(
        sql::INSERT_EVENT,
        params![
            tenant,
            id.as_bytes(),
            action.event_seq,
            tx.next_cursor(),
            tx.now.as_micros(),
            body,
            hash.as_bytes(),
        ],
    )?;
    tx.changed(&action.tenant, action.id);
    Ok(())
}

pub(super) fn propose(tx: &Tx<'_, '_>, mut new: NewAction) -> Result<Proposed, StoreError> {
    let Some(first) = First::of(&new) else {
        return Err(StoreError::Damaged { what: "a proposal without a move".into() });
    };
    let (run, step) = new.key.run().unzip();
    let approval_expires = tx.now.plus(new.approval_expires_after);
    let execution_deadline = tx.now.plus(new.execution_deadline_after);
    let inserted = tx.run(
        sql::INSERT_ACTION,
        params![
            new.tenant.as_str(),
            new.id.0.as_bytes(),
            first.state.as_str(),
            first.event_seq,
            new.attempts,
            new.repeats,
            first.approved.as_ref().map(|fingerprint| fingerprint.0.as_bytes()),
            first.approved.map(|_| tx.now.as_micros()),
            first.effects,
            new.policy_epoch,
            approval_expires.as_micros(),
            execution_deadline.as_micros(),
            new.approvals_required,
            new.run_by_itself,
            new.created.as_micros(),
            new.fingerprint.0.as_bytes(),
            new.intent.0.as_bytes(),
            new.key.canonical(),
            run,
            step,
            new.tool.as_str(),
            new.requested_version,
            new.version,
            new.component.0.as_bytes(),
            new.grant.0.as_bytes(),
            new.actor.as_str(),
            new.proposer.as_str(),
            new.supersedes.as_ref().map(|id| id.0.as_bytes()),
            new.compensates.as_ref().map(|id| id.0.as_bytes()),
            new.seed,
            new.preview.as_ref().map(|text| text.as_str()),
            new.plan.as_str(),
            new.arguments.as_str(),
            tx.now.as_micros(),
        ],
    )?;
    if inserted == 0 {
        return stands(tx, &new.tenant, new.id).map(|action| Proposed::Again(Box::new(action)));
    }
    let mut before = event::genesis(&new.tenant, new.id);
    for (seq, moved) in (1u32..).zip(std::mem::take(&mut new.moves)) {
        let body = EventBody { fact: moved.fact, to: moved.to, by: moved.by }.canonical();
        before = event::chain(before, seq, tx.now, &body);
        tx.run(
            sql::INSERT_EVENT,
            params![
                new.tenant.as_str(),
                new.id.0.as_bytes(),
                seq,
                tx.next_cursor(),
                tx.now.as_micros(),
                body,
                before.as_bytes(),
            ],
        )?;
    }
    let nobody = AttemptId(uuid::Uuid::nil());
    for effect in std::mem::take(&mut new.planned_effects) {
        insert_settled(tx, &new.tenant, new.id, nobody, effect)?;
    }
    if let Some(old) = new.supersedes {
        tx.run(sql::NAME_SUCCESSOR, params![new.tenant.as_str(), old.0.as_bytes(), new.id.0.as_bytes()])?;
    }
    tx.changed(&new.tenant, new.id);
    Ok(Proposed::New(Box::new(first.action(new, tx.now, approval_expires, execution_deadline))))
}

pub(super) fn approve(tx: &Tx<'_, '_>, approve: Approve) -> Result<Step<Action>, StoreError> {
    let (tenant, id) = (approve.tenant.as_str(), approve.action.0);
    #[cfg(feature = "planted-bugs")]
    let statement = if countersign_domain::planted::on("fingerprint") {
        sql::APPROVE_WHATEVER_STANDS
    } else {
        sql::APPROVE
    };
    #[cfg(not(feature = "planted-bugs"))]
    let statement = sql::APPROVE;
    let made = set(
        tx,
        &approve.tenant,
        approve.action,
        statement,
        params![
            tenant,
            id.as_bytes(),
            approve.by.as_str(),
            tx.now.as_micros(),
            approve.fingerprint.0.as_bytes(),
            approve.if_last.to.as_str(),
        ],
    )?;
    let Some(mut action) = made else {
        let already = tx.row(
            sql::APPROVED_BY,
            params![tenant, id.as_bytes(), approve.by.as_str(), approve.fingerprint.0.as_bytes()],
            |_| Ok(()),
        )?;
        let action = stands(tx, &approve.tenant, approve.action)?;
        return Ok(if already.is_some() { Step::Made(action) } else { Step::Lost(Box::new(action)) });
    };
    // Those that were given before this one.
    let place = action.approvals.len() + 1;
    tx.run(
        sql::INSERT_APPROVAL,
        params![
            tenant,
            id.as_bytes(),
            approve.by.as_str(),
            u32::try_from(place).unwrap_or(u32::MAX),
            tx.now.as_micros(),
            approve.note,
            approve.fingerprint.0.as_bytes(),
        ],
    )?;
    action.approvals.push(countersign_domain::approval::Approval {
        by: approve.by,
        at: tx.now,
        note: approve.note,
        fingerprint: approve.fingerprint,
    });
    if action.state == State::AwaitingApproval {
        tx.changed(&approve.tenant, approve.action);
    } else {
        write_event(tx, &action, approve.if_last)?;
    }
    Ok(Step::Made(action))
}

pub(super) fn transition(tx: &Tx<'_, '_>, step: Transition) -> Result<Step<Action>, StoreError> {
    let next_attempt = next_attempt(tx, step.moved.to, step.next_attempt_after);
    let made = set(
        tx,
        &step.tenant,
        step.action,
        sql::TRANSITION,
        params![
            step.tenant.as_str(),
            step.action.0.as_bytes(),
            step.expected,
            tx.now.as_micros(),
            step.moved.to.as_str(),
            step.error.as_ref().map(|error| error.code.as_str()),
            step.error.as_ref().map(|error| error.message.as_str()),
            next_attempt,
            step.in_flight_becomes_unknown,
            step.superseded_by.as_ref().map(|id| id.0.as_bytes()),
            rows::when(step.when),
            step.grants,
        ],
    )?;
    let Some(action) = made else { return lost(tx, &step.tenant, step.action) };
    if step.in_flight_becomes_unknown {
        in_flight_becomes_unknown(tx, &step.tenant, step.action)?;
    }
    write_event(tx, &action, step.moved)?;
    Ok(Step::Made(action))
}

/// When the next attempt is due: in `failed_retryable` always some time, in
/// `outcome_unknown` only where something is to be done without a person.
pub(super) fn next_attempt(tx: &Tx<'_, '_>, to: State, after: Option<Duration>) -> Option<i64> {
    match to {
        State::FailedRetryable => Some(tx.now.plus(after.unwrap_or_default()).as_micros()),
        State::OutcomeUnknown => after.map(|after| tx.now.plus(after).as_micros()),
        _ => None,
    }
}

pub(super) fn in_flight_becomes_unknown(
    tx: &Tx<'_, '_>,
    tenant: &TenantId,
    id: ActionId,
) -> Result<(), StoreError> {
    tx.run(sql::IN_FLIGHT_BECOMES_UNKNOWN, params![tenant.as_str(), id.0.as_bytes(), tx.now.as_micros()])
        .map(|_| ())
}

pub(super) fn request_cancel(
    tx: &Tx<'_, '_>,
    tenant: &TenantId,
    id: ActionId,
    reason: &str,
) -> Result<Step<Action>, StoreError> {
    let made = set(
        tx,
        tenant,
        id,
        sql::REQUEST_CANCEL,
        params![tenant.as_str(), id.0.as_bytes(), tx.now.as_micros(), reason],
    )?;
    if let Some(action) = made {
        tx.changed(tenant, id);
        return Ok(Step::Made(action));
    }
    let action = stands(tx, tenant, id)?;
    let asked =
        action.cancel_requested.is_some() && matches!(action.state, State::Executing | State::OutcomeUnknown);
    Ok(if asked { Step::Made(action) } else { Step::Lost(Box::new(action)) })
}

pub(super) fn postpone(
    tx: &Tx<'_, '_>,
    tenant: &TenantId,
    id: ActionId,
    expected: i64,
    putoff: Putoff,
) -> Result<Step<Action>, StoreError> {
    let (after, cost) = putoff.terms();
    let due = next_attempt(tx, State::OutcomeUnknown, after);
    let made = set(
        tx,
        tenant,
        id,
        sql::POSTPONE,
        params![tenant.as_str(), id.0.as_bytes(), expected, tx.now.as_micros(), due, cost],
    )?;
    match made {
        Some(action) => {
            // Nothing moved, but whom it waits for may be another.
            tx.changed(tenant, id);
            Ok(Step::Made(action))
        }
        None => lost(tx, tenant, id),
    }
}

pub(super) fn announced(
    tx: &Tx<'_, '_>,
    tenant: &TenantId,
    id: ActionId,
    event_seq: u32,
) -> Result<bool, StoreError> {
    Ok(tx.run(sql::ANNOUNCED, params![tenant.as_str(), id.0.as_bytes(), event_seq])? == 1)
}

/// Actions that are open, and are to be doubted.
pub(super) type Open = Vec<(TenantId, ActionId, State)>;

/// Doubts these actions; how many there still were.
pub(super) fn doubt(tx: &Tx<'_, '_>, open: Open) -> Result<usize, StoreError> {
    let mut doubted = 0;
    for (tenant, id, state) in open {
        let moved = Move::rewound(state)?;
        let error = Move::rewound_error();
        let made = set(
            tx,
            &tenant,
            id,
            sql::DOUBT,
            params![tenant.as_str(), id.0.as_bytes(), tx.now.as_micros(), error.code, error.message],
        )?;
        let Some(action) = made else { continue };
        let approved = action.approved_at.map(|at| at.as_micros());
        tx.run(sql::DOUBT_EFFECTS, params![tenant.as_str(), id.0.as_bytes(), tx.now.as_micros(), approved])?;
        write_event(tx, &action, moved)?;
        doubted += 1;
    }
    Ok(doubted)
}

pub(super) fn all_doubted(tx: &Tx<'_, '_>) -> Result<(), StoreError> {
    tx.run(sql::ALL_DOUBTED, []).map(|_| ())
}

pub(super) fn resolve(tx: &Tx<'_, '_>, resolve: Resolve) -> Result<Step<Action>, StoreError> {
    use countersign_domain::action::Fact;
    let (happened, did_not) = match &resolve.moved.fact {
        Fact::FoundDone { .. } => (true, false),
        Fact::FoundNotDone { .. } => (false, true),
        _ => (false, false),
    };
    let (tenant, id) = (resolve.tenant.as_str(), resolve.action.0);
    let made = set(
        tx,
        &resolve.tenant,
        resolve.action,
        sql::RESOLVE,
        params![
            tenant,
            id.as_bytes(),
            resolve.expected,
            tx.now.as_micros(),
            resolve.moved.to.as_str(),
            happened,
            did_not,
            u32::from(happened || did_not),
            resolve.error.as_ref().map(|error| error.code.as_str()),
            resolve.error.as_ref().map(|error| error.message.as_str()),
            resolve.fence.attempt.0.as_bytes(),
            resolve.fence.ordinal.0,
            resolve.fence.send.0,
            resolve.not_before.map_or(0, micros),
        ],
    )?;
    let Some(action) = made else { return lost(tx, &resolve.tenant, resolve.action) };
    let mut evidence = resolve.evidence;
    evidence.at = tx.now;
    let evidence = rows::json(&evidence)?;
    let ordinal = resolve.fence.ordinal.0;
    if happened || did_not {
        let status = if happened { EffectStatus::Succeeded } else { EffectStatus::Failed };
        let answer = rows::json_option(resolve.answer.filter(|_| happened).as_ref())?;
        tx.run(
            sql::SETTLE_EFFECT,
            params![
                tenant,
                id.as_bytes(),
                ordinal,
                tx.now.as_micros(),
                status.as_str(),
                answer,
                None::<String>,
                evidence,
            ],
        )?;
    } else {
        tx.run(sql::GIVE_UP_EFFECT, params![tenant, id.as_bytes(), ordinal, evidence])?;
    }
    write_event(tx, &action, resolve.moved)?;
    Ok(Step::Made(action))
}
