//! What came of a send, and the end of an attempt. A word that comes late finds
//! that it does.

use countersign_domain::action::{Fact, State, next};
use countersign_domain::effect::EffectStatus;

use super::claim::{gone, made};
use super::decide::{body, next_attempt, stepped, told};
use super::rows;
use super::{Inner, sql};
use crate::StoreError;
use crate::steps::{EndAttempt, Move, RecordSend, Recorded, SendResult, Step};

pub(super) async fn record_send(pg: &Inner, record: RecordSend) -> Result<Recorded, StoreError> {
    let (id, fence) = (record.action.0, record.fence);
    let (status, answer, reference, refusal) = match record.result {
        SendResult::Answered { answer, reference } => {
            (EffectStatus::Succeeded, Some(answer), reference, None)
        }
        SendResult::NotSent => (EffectStatus::Failed, None, None, None),
        SendResult::Refused(refusal) => (EffectStatus::Failed, None, None, Some(refusal)),
    };
    let happened = status == EffectStatus::Succeeded;
    // What was done is always reported: it grants the attempt that reports it.
    let grants = i64::from(happened && !countersign_domain::planted::on("success-grants-nothing"));
    #[cfg(feature = "planted-bugs")]
    let statement = if countersign_domain::planted::on("record-ignores-send") {
        sql::RECORD_OF_ANY_SEND
    } else {
        sql::RECORD
    };
    #[cfg(not(feature = "planted-bugs"))]
    let statement = sql::RECORD;
    let reference = reference.as_deref().map(rows::plain);
    let answer = rows::json_option(answer.as_ref())?;
    let row = pg
        .step(
            statement,
            &[
                &record.tenant.as_str(),
                &id.as_bytes().as_slice(),
                &pg.durable,
                &fence.attempt.0.as_bytes().as_slice(),
                &i64::from(fence.ordinal.0),
                &i64::from(fence.send.0),
                &(happened || refusal.is_some()),
                &!happened,
                &grants,
                &reference,
                &status.as_str(),
                &answer,
                &rows::json_option(refusal.as_ref())?,
            ],
        )
        .await?;
    if let Some(row) = row
        && made(&row)?
    {
        let effect = rows::effect_option(&row, 2)?.ok_or_else(|| gone(record.action, fence.ordinal))?;
        return Ok(Recorded::InTime(Box::new(effect)));
    }

    // Too late for its attempt. An answer still settles what became unknown. Who
    // sent could not know what else is unknown by now; the row does.
    let Some(moved) = record.if_late.filter(|_| happened) else { return Ok(Recorded::Stale) };
    let Fact::FoundDone { ordinal, by, .. } = moved.fact else { return Ok(Recorded::Stale) };
    let found = |others_unknown: bool| {
        let fact = Fact::FoundDone { ordinal, by: by.clone(), others_unknown };
        let to = next(State::OutcomeUnknown, &fact).ok()?;
        Some((to.as_str(), body(Move { fact, to, by: moved.by.clone() })))
    };
    let (Some(others), Some(last)) = (found(true), found(false)) else { return Ok(Recorded::Stale) };
    let row = pg
        .step(
            sql::RECORD_LATE,
            &[
                &record.tenant.as_str(),
                &id.as_bytes().as_slice(),
                &pg.durable,
                &fence.attempt.0.as_bytes().as_slice(),
                &i64::from(fence.ordinal.0),
                &i64::from(fence.send.0),
                &answer,
                &reference,
                &others.0,
                &others.1,
                &last.0,
                &last.1,
            ],
        )
        .await?;
    match row {
        Some(row) if made(&row)? => {
            pg.changed(&record.tenant, record.action);
            Ok(Recorded::Late(Box::new(rows::action(&row, 2)?)))
        }
        _ => Ok(Recorded::Stale),
    }
}

pub(super) async fn end_attempt(
    pg: &Inner,
    end: EndAttempt,
) -> Result<Step<countersign_domain::action::Action>, StoreError> {
    let outcome_lost = matches!(end.moved.fact, Fact::OutcomeLost { .. });
    // An attempt that was given back, at shutdown, was none.
    let given_back = i64::from(matches!(end.moved.fact, Fact::Released { .. }));
    #[cfg(feature = "planted-bugs")]
    let statement = if countersign_domain::planted::on("record-ignores-state") {
        sql::END_ATTEMPT_WHATEVER_THE_STATE
    } else {
        sql::END_ATTEMPT
    };
    #[cfg(not(feature = "planted-bugs"))]
    let statement = sql::END_ATTEMPT;
    let log = if end.log.is_empty() { None } else { Some(rows::json(&end.log)?) };
    let set_aside: Vec<i64> = end.set_aside.iter().map(|ordinal| i64::from(ordinal.0)).collect();
    let row = pg
        .step(
            statement,
            &[
                &end.tenant.as_str(),
                &end.action.0.as_bytes().as_slice(),
                &pg.durable,
                &end.attempt.0.as_bytes().as_slice(),
                &end.moved.to.as_str(),
                &end.result.as_ref().map(|text| text.as_str()),
                &end.error.as_ref().map(|error| rows::plain(&error.code)),
                &end.error.as_ref().map(|error| rows::plain(&error.message)),
                &next_attempt(end.moved.to, end.next_attempt_after),
                &outcome_lost,
                &end.lost.map(|fence| i64::from(fence.ordinal.0)),
                &end.lost.map(|fence| i64::from(fence.send.0)),
                &given_back,
                &set_aside,
                &log,
                &body(end.moved),
            ],
        )
        .await?;
    let made = stepped(pg, row, &end.tenant, end.action).await?;
    Ok(told(pg, &end.tenant, end.action, made))
}
