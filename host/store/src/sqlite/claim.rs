//! Claims, and what needs none: the steps before something goes out. Each
//! function runs inside the writer's transaction, and its first statement
//! compares and sets the action's row.

use countersign_domain::action::{Action, Fact, State};
use countersign_domain::effect::EffectRecord;
use countersign_domain::grant::RecoveryClass;
use countersign_domain::id::{ActionId, AttemptId, Ordinal, TenantId};
use countersign_domain::lease::LeaseTerms;
use countersign_domain::time::{Timestamp, micros};
use rusqlite::params;

use super::decide::{in_flight_becomes_unknown, lost, set, write_event};
use super::rows;
use super::sql;
use super::writer::Tx;
use crate::StoreError;
use crate::steps::{
    ClaimAction, ClaimKind, ClaimWrite, ClaimedAction, Move, NewSettled, RepeatWrite, Step, WriteClaimed,
};
use crate::written;

pub(super) fn claim_action(tx: &Tx<'_, '_>, claim: ClaimAction) -> Result<Step<ClaimedAction>, StoreError> {
    let statement = match claim.kind {
        #[cfg(feature = "planted-bugs")]
        ClaimKind::Run if countersign_domain::planted::on("claim") => sql::CLAIM_WHATEVER_THE_STATE,
        #[cfg(feature = "planted-bugs")]
        ClaimKind::Run if countersign_domain::planted::on("claim-ignores-rewind") => {
            sql::CLAIM_TO_RUN_REWOUND
        }
        ClaimKind::Run => sql::CLAIM_TO_RUN,
        ClaimKind::Repeat => sql::CLAIM_TO_REPEAT,
    };
    let made = set(
        tx,
        &claim.tenant,
        claim.action,
        statement,
        params![
            claim.tenant.as_str(),
            claim.action.0.as_bytes(),
            tx.now.as_micros(),
            claim.attempt.0.as_bytes(),
            claim.owner,
            tx.now.plus(claim.lease.length).as_micros(),
        ],
    )?;
    let Some(action) = made else { return lost(tx, &claim.tenant, claim.action) };
    let attempt = action.attempt;
    let fact = match claim.kind {
        ClaimKind::Run => Fact::Claimed { attempt },
        ClaimKind::Repeat => Fact::SafeToRepeat { attempt },
    };
    write_event(tx, &action, Move { fact, to: State::Executing, by: claim.owner })?;
    let effects = rows::collect(
        tx.conn(),
        sql::EFFECTS,
        params![claim.tenant.as_str(), claim.action.0.as_bytes()],
        |_, row| rows::effect(row),
    )?;
    Ok(Step::Made(ClaimedAction { action, effects }))
}

pub(super) fn heartbeat(
    tx: &Tx<'_, '_>,
    tenant: &TenantId,
    id: ActionId,
    attempt: AttemptId,
    lease: LeaseTerms,
) -> Result<Option<Action>, StoreError> {
    set(
        tx,
        tenant,
        id,
        sql::HEARTBEAT,
        params![
            tenant.as_str(),
            id.0.as_bytes(),
            tx.now.as_micros(),
            attempt.0.as_bytes(),
            tx.now.plus(lease.length).as_micros(),
        ],
    )
}

pub(super) fn claim_write(tx: &Tx<'_, '_>, claim: ClaimWrite) -> Result<Step<WriteClaimed>, StoreError> {
    let inherited = claim.first_sent;
    let window_ends = match (claim.terms.class, inherited) {
        (RecoveryClass::ProviderIdempotent, Some(first)) => {
            Some(first.plus(claim.terms.key_window).as_micros())
        }
        _ => None,
    };
    // Long enough for the attempt's own pace and for the longest send.
    let lease = tx.now.plus(claim.lease.length).max(tx.now.plus(claim.terms.send).plus(claim.lease.margin));
    let conditions = params![
        claim.tenant.as_str(),
        claim.action.0.as_bytes(),
        tx.now.as_micros(),
        claim.attempt.0.as_bytes(),
        claim.ordinal.0,
        lease.as_micros(),
        window_ends,
    ];
    if !take_row_for_write(tx, conditions)? {
        return lost(tx, &claim.tenant, claim.action);
    }
    let lease_expires = lease_expires(tx, &claim.tenant, claim.action)?;
    let (tenant, action) = (claim.tenant.clone(), claim.action);
    let record = written::write(claim, inherited, tx.now);
    insert_effect(tx, &tenant, action, &record, inherited)?;
    Ok(Step::Made(written::claimed(record, lease_expires)))
}

fn take_row_for_write(tx: &Tx<'_, '_>, conditions: &[&dyn rusqlite::ToSql]) -> Result<bool, StoreError> {
    #[cfg(feature = "planted-bugs")]
    if countersign_domain::planted::on("write-claim-trusts-action-claim") {
        return Ok(tx.run(sql::CLAIM_WRITE_TRUSTING, conditions)? == 1);
    } else if countersign_domain::planted::on("write-claim-leaves-row") {
        return Ok(tx.row(sql::CLAIM_WRITE_LEAVING_ROW, conditions, |_| Ok(()))?.is_some());
    }
    Ok(tx.run(sql::CLAIM_WRITE, conditions)? == 1)
}

fn lease_expires(tx: &Tx<'_, '_>, tenant: &TenantId, id: ActionId) -> Result<Timestamp, StoreError> {
    tx.row(sql::LEASE_EXPIRES, params![tenant.as_str(), id.0.as_bytes()], |row| {
        row.get(0).map(Timestamp::from_micros).map_err(super::fault::statement)
    })?
    .ok_or_else(|| StoreError::NotFound { what: format!("the action {id}") })
}

pub(super) fn repeat_write(tx: &Tx<'_, '_>, repeat: RepeatWrite) -> Result<Step<WriteClaimed>, StoreError> {
    let (tenant, id) = (repeat.tenant.as_str(), repeat.action.0);
    let made = tx.run(
        sql::REPEAT_WRITE,
        params![
            tenant,
            id.as_bytes(),
            tx.now.as_micros(),
            repeat.attempt.0.as_bytes(),
            repeat.ordinal.0,
            micros(repeat.lease.length),
            micros(repeat.lease.margin),
        ],
    )?;
    if made == 0 {
        return lost(tx, &repeat.tenant, repeat.action);
    }
    let lease_expires = lease_expires(tx, &repeat.tenant, repeat.action)?;
    tx.run(
        sql::REPEAT_EFFECT,
        params![tenant, id.as_bytes(), repeat.ordinal.0, tx.now.as_micros(), repeat.attempt.0.as_bytes()],
    )?;
    let record = effect(tx, &repeat.tenant, repeat.action, repeat.ordinal)?;
    Ok(Step::Made(written::claimed(record, lease_expires)))
}

/// Enters a write that the ledger may have lost the row of.
pub(super) fn doubt_write(tx: &Tx<'_, '_>, claim: ClaimWrite) -> Result<Step<EffectRecord>, StoreError> {
    let (tenant, id) = (claim.tenant.as_str(), claim.action.0);
    let made = set(
        tx,
        &claim.tenant,
        claim.action,
        sql::DOUBT_WRITE,
        params![tenant, id.as_bytes(), tx.now.as_micros(), claim.attempt.0.as_bytes()],
    )?;
    let Some(action) = made else { return lost(tx, &claim.tenant, claim.action) };
    let approved = action.approved_at.unwrap_or(action.created);
    let key_first_sent = claim.first_sent;
    let first = key_first_sent.map_or(approved, |first| first.min(approved));
    let record = written::write(claim, Some(first), first);
    insert_effect(tx, &action.tenant, action.id, &record, key_first_sent)?;
    in_flight_becomes_unknown(tx, &action.tenant, action.id)?;
    effect(tx, &action.tenant, action.id, record.ordinal).map(Step::Made)
}

/// The row of an effect, which has to be there.
pub(super) fn effect(
    tx: &Tx<'_, '_>,
    tenant: &TenantId,
    id: ActionId,
    ordinal: Ordinal,
) -> Result<EffectRecord, StoreError> {
    tx.row(sql::EFFECT, params![tenant.as_str(), id.0.as_bytes(), ordinal.0], rows::effect)?.ok_or_else(
        || StoreError::Damaged { what: format!("effect {ordinal} of the action {id} is not there") },
    )
}

/// Records effects that needed no claim under an attempt that goes on.
pub(super) fn record_settled(
    tx: &Tx<'_, '_>,
    tenant: &TenantId,
    id: ActionId,
    attempt: AttemptId,
    effects: Vec<NewSettled>,
) -> Result<Step<Vec<EffectRecord>>, StoreError> {
    let alive = tx.run(
        sql::RECORD_SETTLED,
        params![
            tenant.as_str(),
            id.0.as_bytes(),
            tx.now.as_micros(),
            attempt.0.as_bytes(),
            u32::try_from(effects.len()).unwrap_or(u32::MAX),
        ],
    )?;
    if alive == 0 {
        return lost(tx, tenant, id);
    }
    effects
        .into_iter()
        .map(|effect| insert_settled(tx, tenant, id, attempt, effect))
        .collect::<Result<Vec<_>, _>>()
        .map(Step::Made)
}

/// Inserts one that is settled as it comes.
pub(super) fn insert_settled(
    tx: &Tx<'_, '_>,
    tenant: &TenantId,
    id: ActionId,
    attempt: AttemptId,
    effect: NewSettled,
) -> Result<EffectRecord, StoreError> {
    let record = written::settled(attempt, effect, tx.now);
    insert_effect(tx, tenant, id, &record, None)?;
    Ok(record)
}

/// Inserts an effect, in place of one that was set aside without having
/// happened.
fn insert_effect(
    tx: &Tx<'_, '_>,
    tenant: &TenantId,
    id: ActionId,
    record: &EffectRecord,
    key_first_sent: Option<Timestamp>,
) -> Result<(), StoreError> {
    let insert = || -> Result<usize, StoreError> {
        tx.run(
            sql::INSERT_EFFECT,
            params![
                tenant.as_str(),
                id.0.as_bytes(),
                record.ordinal.0,
                record.kind.as_str(),
                record.write,
                record.terms.class.as_str(),
                // Clamped so that no sum of a time and a length overflows.
                micros(record.terms.key_window).min(i64::MAX / 4),
                micros(record.terms.send).min(i64::MAX / 4),
                rows::json(&record.terms)?,
                record.fingerprint.0.as_bytes(),
                rows::json(&record.request)?,
                record.provider_key,
                record.status.as_str(),
                record.attempt.0.as_bytes(),
                record.send.0,
                record.first_sent.map(Timestamp::as_micros),
                key_first_sent.map(Timestamp::as_micros),
                record.last_sent.map(Timestamp::as_micros),
                record.may_have_arrived,
                rows::json_option(record.answer.as_ref())?,
                rows::json_option(record.refusal.as_ref())?,
                record.recorded_at.map(Timestamp::as_micros),
            ],
        )
    };
    match insert() {
        Err(StoreError::Constraint { name }) if name == "effects_pkey" => {
            let place = params![tenant.as_str(), id.0.as_bytes(), record.ordinal.0];
            let counted = tx.row(sql::REPLACE_SET_ASIDE, place, |row| {
                row.get::<_, bool>(0).map_err(super::fault::statement)
            })?;
            match counted {
                None => return Err(StoreError::Constraint { name }),
                Some(false) => {}
                Some(true) => {
                    tx.run(sql::FEWER_EFFECTS, params![tenant.as_str(), id.0.as_bytes(), 1])?;
                }
            }
            insert().map(|_| ())
        }
        other => other.map(|_| ()),
    }
}
