//! What came of a send, and the end of an attempt. Each function runs inside
//! the writer's transaction; a word that comes late finds that it does.

use countersign_domain::action::{Action, Fact, State, next};
use countersign_domain::effect::EffectStatus;
use rusqlite::params;

use super::claim::effect;
use super::decide::{in_flight_becomes_unknown, lost, next_attempt, set, write_event};
use super::rows;
use super::sql;
use super::writer::Tx;
use crate::StoreError;
use crate::steps::{EndAttempt, Move, RecordSend, Recorded, SendResult, Step};

pub(super) fn record_send(tx: &Tx<'_, '_>, record: RecordSend) -> Result<Recorded, StoreError> {
    let (tenant, id, fence) = (record.tenant.as_str(), record.action.0, record.fence);
    let (status, answer, reference, refusal) = match record.result {
        SendResult::Answered { answer, reference } => {
            (EffectStatus::Succeeded, Some(answer), reference, None)
        }
        SendResult::NotSent => (EffectStatus::Failed, None, None, None),
        SendResult::Refused(refusal) => (EffectStatus::Failed, None, None, Some(refusal)),
    };
    let happened = status == EffectStatus::Succeeded;
    // What was done is always reported: it grants the attempt that reports it.
    let grants = u32::from(happened && !countersign_domain::planted::on("success-grants-nothing"));
    let settle = || -> Result<_, StoreError> {
        tx.run(
            sql::SETTLE_EFFECT,
            params![
                tenant,
                id.as_bytes(),
                fence.ordinal.0,
                tx.now.as_micros(),
                status.as_str(),
                rows::json_option(answer.as_ref())?,
                rows::json_option(refusal.as_ref())?,
                None::<String>,
            ],
        )
    };
    #[cfg(feature = "planted-bugs")]
    let statement = if countersign_domain::planted::on("record-ignores-send") {
        sql::RECORD_OF_ANY_SEND
    } else {
        sql::RECORD
    };
    #[cfg(not(feature = "planted-bugs"))]
    let statement = sql::RECORD;
    let in_time = tx.run(
        statement,
        params![
            tenant,
            id.as_bytes(),
            tx.now.as_micros(),
            fence.attempt.0.as_bytes(),
            fence.ordinal.0,
            fence.send.0,
            happened || refusal.is_some(),
            !happened,
            grants,
            reference,
        ],
    )?;
    if in_time == 1 {
        settle()?;
        let effect = effect(tx, &record.tenant, record.action, fence.ordinal)?;
        return Ok(Recorded::InTime(Box::new(effect)));
    }

    // Too late for its attempt. An answer still settles what became unknown.
    let Some(moved) = record.if_late.filter(|_| happened) else { return Ok(Recorded::Stale) };
    let others = tx.row(
        sql::LATE,
        params![tenant, id.as_bytes(), fence.attempt.0.as_bytes(), fence.ordinal.0, fence.send.0],
        |row| row.get::<_, bool>(0).map_err(super::fault::statement),
    )?;
    let Some(others_unknown) = others else { return Ok(Recorded::Stale) };
    // Who sent could not know what else is unknown by now; the row does.
    let Fact::FoundDone { ordinal, by, .. } = moved.fact else { return Ok(Recorded::Stale) };
    let fact = Fact::FoundDone { ordinal, by, others_unknown };
    let Ok(to) = next(State::OutcomeUnknown, &fact) else { return Ok(Recorded::Stale) };
    let late = params![tenant, id.as_bytes(), tx.now.as_micros(), to.as_str(), reference];
    let Some(action) = set(tx, &record.tenant, record.action, sql::RECORD_LATE, late)? else {
        return Ok(Recorded::Stale);
    };
    settle()?;
    write_event(tx, &action, Move { fact, to, by: moved.by })?;
    Ok(Recorded::Late(Box::new(action)))
}

pub(super) fn end_attempt(tx: &Tx<'_, '_>, end: EndAttempt) -> Result<Step<Action>, StoreError> {
    let (tenant, id) = (end.tenant.as_str(), end.action.0);
    let outcome_lost = matches!(end.moved.fact, Fact::OutcomeLost { .. });
    // An attempt that was given back, at shutdown, was none.
    let given_back = u32::from(matches!(end.moved.fact, Fact::Released { .. }));
    #[cfg(feature = "planted-bugs")]
    let statement = if countersign_domain::planted::on("record-ignores-state") {
        sql::END_ATTEMPT_WHATEVER_THE_STATE
    } else {
        sql::END_ATTEMPT
    };
    #[cfg(not(feature = "planted-bugs"))]
    let statement = sql::END_ATTEMPT;
    let made = set(
        tx,
        &end.tenant,
        end.action,
        statement,
        params![
            tenant,
            id.as_bytes(),
            tx.now.as_micros(),
            end.attempt.0.as_bytes(),
            end.moved.to.as_str(),
            end.result.as_ref().map(|text| text.as_str()),
            end.error.as_ref().map(|error| error.code.as_str()),
            end.error.as_ref().map(|error| error.message.as_str()),
            next_attempt(tx, end.moved.to, end.next_attempt_after),
            outcome_lost,
            end.lost.map(|fence| fence.ordinal.0),
            end.lost.map(|fence| fence.send.0),
            given_back,
        ],
    )?;
    let Some(action) = made else { return lost(tx, &end.tenant, end.action) };
    if outcome_lost {
        in_flight_becomes_unknown(tx, &end.tenant, end.action)?;
    }
    for ordinal in end.set_aside {
        tx.run(sql::SET_ASIDE, params![tenant, id.as_bytes(), ordinal.0])?;
    }
    if !end.log.is_empty() {
        let lines = rows::json(&end.log)?;
        tx.run(sql::INSERT_LOG, params![tenant, id.as_bytes(), action.attempt.0, tx.now.as_micros(), lines])?;
    }
    write_event(tx, &action, end.moved)?;
    Ok(Step::Made(action))
}
