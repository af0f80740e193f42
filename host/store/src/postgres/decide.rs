//! The steps around an attempt: propose, approve, transition, cancel, resolve,
//! postpone.

use std::sync::atomic::Ordering;
use std::time::Duration;

use countersign_domain::action::{Action, Fact, State};
use countersign_domain::approval::Approval;
use countersign_domain::event::{self, EventBody};
use countersign_domain::id::{ActionId, TenantId};
use countersign_domain::time::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::claim::{SettledColumns, clamped, made};
use super::rows::{self, Columns};
use super::{Inner, UNFLUSHED, sql};
use crate::StoreError;
use crate::steps::{Approve, Move, NewAction, Proposed, Putoff, Resolve, Step, Transition};
use crate::written::First;

/// A length of time as a parameter.
pub(super) fn length(length: Duration) -> i64 {
    clamped(length)
}

pub(super) fn missing(id: ActionId) -> StoreError {
    StoreError::NotFound { what: format!("the action {id}") }
}

/// Somebody else was first: the row, for saying why.
pub(super) async fn lost<T>(pg: &Inner, tenant: &TenantId, id: ActionId) -> Result<Step<T>, StoreError> {
    stands(pg, tenant, id).await.map(|action| Step::Lost(Box::new(action)))
}

/// The row as it stands, or that there is none.
pub(super) async fn stands(pg: &Inner, tenant: &TenantId, id: ActionId) -> Result<Action, StoreError> {
    let found = pg.read(sql::ACTION, &[&tenant.as_str(), &id.0.as_bytes().as_slice()]).await?;
    found.first().map(|row| rows::action(row, 0)).transpose()?.ok_or_else(|| missing(id))
}

/// The text of a transition's event.
pub(super) fn body(moved: Move) -> String {
    EventBody { fact: moved.fact, to: moved.to, by: moved.by }.canonical()
}

/// The answer of a step that gives the row after it.
pub(super) async fn stepped(
    pg: &Inner,
    row: Option<Row>,
    tenant: &TenantId,
    id: ActionId,
) -> Result<Step<Action>, StoreError> {
    match row {
        Some(row) if made(&row)? => rows::action(&row, 2).map(Step::Made),
        _ => lost(pg, tenant, id).await,
    }
}

pub(super) async fn propose(pg: &Inner, new: NewAction) -> Result<Proposed, StoreError> {
    let Some(first) = First::of(&new) else {
        return Err(StoreError::Damaged { what: "a proposal without a move".into() });
    };
    let bodies: Vec<String> = new.moves.iter().cloned().map(body).collect();
    let (run, step) = new.key.run().unzip();
    let columns = SettledColumns::of(&new.planned_effects)?;
    let nobody = [0u8; 16];
    let genesis = event::genesis(&new.tenant, new.id);
    let (id, key) = (new.id.0, new.key.canonical());
    let tenant = new.tenant.as_str();
    let (supersedes, compensates) = (
        new.supersedes.as_ref().map(|id| id.0.as_bytes().as_slice()),
        new.compensates.as_ref().map(|id| id.0.as_bytes().as_slice()),
    );
    let mut params: Vec<&(dyn ToSql + Sync)> = Vec::with_capacity(51);
    let (id_bytes, seed, nobody) = (id.as_bytes().as_slice(), new.seed.as_slice(), nobody.as_slice());
    let (state_text, event_seq) = (first.state.as_str(), i64::from(first.event_seq));
    let (attempts, repeats) = (i64::from(new.attempts), i64::from(new.repeats));
    let approved_bytes = first.approved.as_ref().map(|fingerprint| fingerprint.0.as_bytes().as_slice());
    let effects_count = i64::from(first.effects);
    let (expires, deadline) = (length(new.approval_expires_after), length(new.execution_deadline_after));
    let required = i64::from(new.approvals_required);
    let created = new.created.as_micros();
    let fingerprint = new.fingerprint.0.as_bytes().as_slice();
    let intent = new.intent.0.as_bytes().as_slice();
    let tool = new.tool.as_str();
    let component = new.component.0.as_bytes().as_slice();
    let grant = new.grant.0.as_bytes().as_slice();
    let (actor, proposer) = (new.actor.as_str(), new.proposer.as_str());
    let preview = new.preview.as_ref().map(|text| text.as_str());
    let (plan, arguments) = (new.plan.as_str(), new.arguments.as_str());
    let genesis = genesis.as_bytes().as_slice();
    params.extend::<[&(dyn ToSql + Sync); 36]>([
        &tenant,
        &id_bytes,
        &pg.durable,
        &state_text,
        &event_seq,
        &attempts,
        &repeats,
        &approved_bytes,
        &effects_count,
        &new.policy_epoch,
        &expires,
        &deadline,
        &required,
        &new.run_by_itself,
        &created,
        &fingerprint,
        &intent,
        &key,
        &run,
        &step,
        &tool,
        &new.requested_version,
        &new.version,
        &component,
        &grant,
        &actor,
        &proposer,
        &supersedes,
        &compensates,
        &seed,
        &preview,
        &plan,
        &arguments,
        &genesis,
        &bodies,
        &nobody,
    ]);
    params.extend(columns.params());
    let row = pg.step(sql::INSERT_ACTION, &params).await?.ok_or_else(|| missing(new.id))?;
    if !made(&row)? {
        return stands(pg, &new.tenant, new.id).await.map(|there| Proposed::Again(Box::new(there)));
    }
    let now = Timestamp::from_micros(Columns::of(&row, 2, "a proposal").get()?);
    pg.changed(&new.tenant, new.id);
    let after = |length: i64| Timestamp::from_micros(now.as_micros() + length);
    Ok(Proposed::New(Box::new(first.action(new, now, after(expires), after(deadline)))))
}

pub(super) async fn approve(pg: &Inner, approve: Approve) -> Result<Step<Action>, StoreError> {
    #[cfg(feature = "planted-bugs")]
    let statement = if countersign_domain::planted::on("fingerprint") {
        sql::APPROVE_WHATEVER_STANDS
    } else {
        sql::APPROVE
    };
    #[cfg(not(feature = "planted-bugs"))]
    let statement = sql::APPROVE;
    let row = pg
        .step(
            statement,
            &[
                &approve.tenant.as_str(),
                &approve.action.0.as_bytes().as_slice(),
                &pg.durable,
                &approve.by.as_str(),
                &approve.fingerprint.0.as_bytes().as_slice(),
                &approve.if_last.to.as_str(),
                &approve.note.as_deref().map(rows::plain),
                &body(approve.if_last),
            ],
        )
        .await?
        .ok_or_else(|| missing(approve.action))?;
    if made(&row)? {
        let mut action = rows::action(&row, 3)?;
        pg.changed(&approve.tenant, approve.action);
        // The statement does not see what it writes itself.
        action.approvals.push(Approval {
            by: approve.by,
            at: action.updated,
            note: approve.note,
            fingerprint: approve.fingerprint,
        });
        return Ok(Step::Made(action));
    }
    let already: bool = Columns::of(&row, 2, "an approval").get()?;
    let action = stands(pg, &approve.tenant, approve.action).await?;
    Ok(if already { Step::Made(action) } else { Step::Lost(Box::new(action)) })
}

pub(super) async fn transition(pg: &Inner, step: Transition) -> Result<Step<Action>, StoreError> {
    let next_attempt = next_attempt(step.moved.to, step.next_attempt_after);
    let row = pg
        .step(
            sql::TRANSITION,
            &[
                &step.tenant.as_str(),
                &step.action.0.as_bytes().as_slice(),
                &pg.durable,
                &step.expected,
                &step.moved.to.as_str(),
                &step.error.as_ref().map(|error| rows::plain(&error.code)),
                &step.error.as_ref().map(|error| rows::plain(&error.message)),
                &next_attempt,
                &step.in_flight_becomes_unknown,
                &step.superseded_by.as_ref().map(|id| id.0.as_bytes().as_slice()),
                &rows::when(step.when),
                &body(step.moved),
                &i64::from(step.grants),
            ],
        )
        .await?;
    let made = stepped(pg, row, &step.tenant, step.action).await?;
    Ok(told(pg, &step.tenant, step.action, made))
}

/// Tells of a step that was made.
pub(super) fn told(pg: &Inner, tenant: &TenantId, id: ActionId, step: Step<Action>) -> Step<Action> {
    if matches!(step, Step::Made(_)) {
        pg.changed(tenant, id);
    }
    step
}

/// How long until the next attempt: in `failed_retryable` always some time, in
/// `outcome_unknown` only where something is to be done without a person.
pub(super) fn next_attempt(to: State, after: Option<Duration>) -> Option<i64> {
    match to {
        State::FailedRetryable => Some(length(after.unwrap_or_default())),
        State::OutcomeUnknown => after.map(length),
        _ => None,
    }
}

pub(super) async fn request_cancel(
    pg: &Inner,
    tenant: &TenantId,
    id: ActionId,
    reason: &str,
) -> Result<Step<Action>, StoreError> {
    let row = pg
        .step(
            sql::REQUEST_CANCEL,
            &[&tenant.as_str(), &id.0.as_bytes().as_slice(), &pg.durable, &rows::plain(reason)],
        )
        .await?;
    let made = stepped(pg, row, tenant, id).await?;
    match told(pg, tenant, id, made) {
        // Once more is the same word, not another.
        Step::Lost(action)
            if action.cancel_requested.is_some()
                && matches!(action.state, State::Executing | State::OutcomeUnknown) =>
        {
            Ok(Step::Made(*action))
        }
        step => Ok(step),
    }
}

pub(super) async fn postpone(
    pg: &Inner,
    tenant: &TenantId,
    id: ActionId,
    expected: i64,
    putoff: Putoff,
) -> Result<Step<Action>, StoreError> {
    let (after, cost) = putoff.terms();
    let due = next_attempt(State::OutcomeUnknown, after);
    let id_bytes = id.0.as_bytes().as_slice();
    let row = pg
        .step(sql::POSTPONE, &[&tenant.as_str(), &id_bytes, &UNFLUSHED, &expected, &due, &i64::from(cost)])
        .await?;
    // Nothing moved, but whom it waits for may be another.
    let made = stepped(pg, row, tenant, id).await?;
    Ok(told(pg, tenant, id, made))
}

pub(super) async fn announced(
    pg: &Inner,
    tenant: &TenantId,
    id: ActionId,
    event_seq: u32,
) -> Result<bool, StoreError> {
    let id_bytes = id.0.as_bytes().as_slice();
    let row =
        pg.step(sql::ANNOUNCED, &[&tenant.as_str(), &id_bytes, &UNFLUSHED, &i64::from(event_seq)]).await?;
    row.map_or(Ok(false), |row| made(&row))
}

/// Doubts some of the actions that were open when commits were lost. Several
/// hosts may be at it; each action is doubted by one of them.
pub(super) async fn doubt_rewound(pg: &Inner, limit: u32) -> Result<usize, StoreError> {
    // Let go of first: a connection that finds more commits lost meanwhile sets
    // it again.
    if !pg.rewound.swap(false, Ordering::AcqRel) {
        return Ok(0);
    }
    let doubted = doubt_some(pg, limit).await;
    if !matches!(doubted, Ok((0, 0))) {
        pg.rewound.store(true, Ordering::Release);
    }
    doubted.map(|(_, made)| made)
}

/// How many were found, and how many of them were doubted here.
async fn doubt_some(pg: &Inner, limit: u32) -> Result<(usize, usize), StoreError> {
    let rewinds = pg.read(sql::REWINDS, &[]).await?;
    let rewinds: i64 =
        rewinds.first().map_or(Ok(0), |row| Columns::of(row, 0, "the ledger's place").get())?;
    let open = pg.read(sql::TO_DOUBT, &[&i64::from(limit)]).await?;
    if open.is_empty() {
        let mut tx = pg.begin().await?;
        tx.run(sql::ALL_DOUBTED, &[&rewinds]).await?;
        tx.commit().await?;
        return Ok((0, 0));
    }
    let mut made = 0;
    for row in &open {
        let (tenant, id, state) = rows::key(row)?;
        let error = Move::rewound_error();
        let (id_bytes, body) = (id.0.as_bytes().as_slice(), body(Move::rewound(state)?));
        let step = pg
            .step(sql::DOUBT, &[&tenant.as_str(), &id_bytes, &pg.durable, &error.code, &error.message, &body])
            .await;
        match step {
            Ok(Some(row)) if super::claim::made(&row)? => {
                pg.changed(&tenant, id);
                made += 1;
            }
            Ok(_) => {}
            // One that is damaged stops none of the others; nothing claims it.
            Err(error) => tracing::error!(action = %id, %error, "an action could not be doubted"),
        }
    }
    Ok((open.len(), made))
}

pub(super) async fn resolve(pg: &Inner, resolve: Resolve) -> Result<Step<Action>, StoreError> {
    let (happened, did_not) = match &resolve.moved.fact {
        Fact::FoundDone { .. } => (true, false),
        Fact::FoundNotDone { .. } => (false, true),
        _ => (false, false),
    };
    // The evidence as JSON, around its time, which is the database's.
    let before = format!(r#"{{"by":{},"at":""#, rows::json(&resolve.evidence.by)?);
    let after = format!(
        r#"","outcome":{},"evidence":{}}}"#,
        rows::json(&resolve.evidence.outcome)?,
        rows::json(&resolve.evidence.evidence)?
    );
    let row = pg
        .step(
            sql::RESOLVE,
            &[
                &resolve.tenant.as_str(),
                &resolve.action.0.as_bytes().as_slice(),
                &pg.durable,
                &resolve.expected,
                &resolve.moved.to.as_str(),
                &happened,
                &did_not,
                &i64::from(happened || did_not),
                &resolve.error.as_ref().map(|error| rows::plain(&error.code)),
                &resolve.error.as_ref().map(|error| rows::plain(&error.message)),
                &resolve.fence.attempt.0.as_bytes().as_slice(),
                &i64::from(resolve.fence.ordinal.0),
                &i64::from(resolve.fence.send.0),
                &resolve.not_before.map_or(0, length),
                &rows::json_option(resolve.answer.as_ref())?,
                &before,
                &after,
                &body(resolve.moved),
            ],
        )
        .await?;
    let made = stepped(pg, row, &resolve.tenant, resolve.action).await?;
    Ok(told(pg, &resolve.tenant, resolve.action, made))
}
