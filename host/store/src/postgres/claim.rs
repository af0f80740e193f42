//! Claims, and what needs none: the steps before something goes out.

use countersign_domain::action::{Action, Fact, State};
use countersign_domain::effect::{EffectRecord, EffectStatus};
use countersign_domain::event::EventBody;
use countersign_domain::grant::RecoveryClass;
use countersign_domain::id::{ActionId, AttemptId, AttemptNumber, Ordinal, TenantId};
use countersign_domain::lease::{LeaseTerms, SendFence};
use countersign_domain::time::{Timestamp, micros};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::decide::{length, lost, missing};
use super::rows::{self, Columns};
use super::{Inner, UNFLUSHED, sql};
use crate::StoreError;
use crate::rows::Columns as _;
use crate::steps::{
    ClaimAction, ClaimKind, ClaimWrite, ClaimedAction, Liveness, NewSettled, RepeatWrite, Settled, Step,
    WriteClaimed,
};
use crate::written;

pub(super) async fn claim_action(pg: &Inner, claim: ClaimAction) -> Result<Step<ClaimedAction>, StoreError> {
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
    let (before, after) = event_around_attempt(claim.kind, &claim.owner);
    let row = pg
        .step(
            statement,
            &[
                &claim.tenant.as_str(),
                &claim.action.0.as_bytes().as_slice(),
                &UNFLUSHED,
                &claim.attempt.0.as_bytes().as_slice(),
                &rows::plain(&claim.owner),
                &length(claim.lease.length),
                &before,
                &after,
            ],
        )
        .await?
        .ok_or_else(|| missing(claim.action))?;
    if !made(&row)? {
        return lost(pg, &claim.tenant, claim.action).await;
    }
    let action = rows::action(&row, 2)?;
    pg.changed(&claim.tenant, claim.action);
    // The first attempt of an action that read nothing while it was planned has
    // no effects; every other one may.
    let effects = if action.attempt.0 == 1 && action.effects == 0 {
        Vec::new()
    } else {
        effects(pg, sql::EFFECTS, &claim.tenant, claim.action).await?
    };
    Ok(Step::Made(ClaimedAction { action, effects }))
}

/// The event of a claim, before and after the attempt's number: only the row
/// knows which one it is.
fn event_around_attempt(kind: ClaimKind, by: &str) -> (String, String) {
    // Keys are sorted, and `attempt` is the first: whatever else the text has,
    // this number comes before it.
    let attempt = AttemptNumber(u32::MAX);
    let fact = match kind {
        ClaimKind::Run => Fact::Claimed { attempt },
        ClaimKind::Repeat => Fact::SafeToRepeat { attempt },
    };
    let body = EventBody { fact, to: State::Executing, by: by.to_owned() }.canonical();
    let (before, after) = body.split_once(&u32::MAX.to_string()).unwrap_or((&body, ""));
    (before.to_owned(), after.to_owned())
}

/// Whether a step was made.
pub(super) fn made(row: &Row) -> Result<bool, StoreError> {
    Columns::of(row, 0, "a step's answer").get()
}

/// Effects of an action.
pub(super) async fn effects(
    pg: &Inner,
    statement: &'static str,
    tenant: &TenantId,
    id: ActionId,
) -> Result<Vec<EffectRecord>, StoreError> {
    let found = pg.read(statement, &[&tenant.as_str(), &id.0.as_bytes().as_slice()]).await?;
    found.iter().map(|row| rows::effect(row, 0)).collect()
}

pub(super) async fn heartbeat(
    pg: &Inner,
    tenant: &TenantId,
    id: ActionId,
    attempt: AttemptId,
    lease: LeaseTerms,
) -> Result<Option<Action>, StoreError> {
    let row = pg
        .step(
            sql::HEARTBEAT,
            &[
                &tenant.as_str(),
                &id.0.as_bytes().as_slice(),
                &UNFLUSHED,
                &attempt.0.as_bytes().as_slice(),
                &length(lease.length),
            ],
        )
        .await?;
    match row {
        Some(row) if made(&row)? => rows::action(&row, 2).map(Some),
        _ => Ok(None),
    }
}

pub(super) async fn claim_write(pg: &Inner, claim: ClaimWrite) -> Result<Step<WriteClaimed>, StoreError> {
    let inherited = claim.first_sent;
    let window_ends = match (claim.terms.class, inherited) {
        (RecoveryClass::ProviderIdempotent, Some(first)) => {
            Some(first.plus(claim.terms.key_window).as_micros())
        }
        _ => None,
    };
    #[cfg(feature = "planted-bugs")]
    let statement = if countersign_domain::planted::on("write-claim-trusts-action-claim") {
        sql::CLAIM_WRITE_TRUSTING
    } else if countersign_domain::planted::on("write-claim-leaves-row") {
        sql::CLAIM_WRITE_LEAVING_ROW
    } else {
        sql::CLAIM_WRITE
    };
    #[cfg(not(feature = "planted-bugs"))]
    let statement = sql::CLAIM_WRITE;
    let (terms, request) = (rows::json(&claim.terms)?, rows::json(&claim.request)?);
    // Long enough for the attempt's own pace and for the longest send.
    let lease = claim.lease.length.max(claim.terms.send.saturating_add(claim.lease.margin));
    let (id, attempt) = (claim.action.0, claim.attempt.0);
    let (method, target) = (rows::plain(&claim.request.method), rows::plain(&claim.request.url));
    let provider_key = rows::plain(&claim.provider_key);
    let params: [&(dyn ToSql + Sync); 18] = [
        &claim.tenant.as_str(),
        &id.as_bytes().as_slice(),
        &pg.durable,
        &attempt.as_bytes().as_slice(),
        &i64::from(claim.ordinal.0),
        &length(lease),
        &window_ends,
        &claim.kind.as_str(),
        &claim.terms.class.as_str(),
        &length(claim.terms.key_window),
        &length(claim.terms.send),
        &terms,
        &claim.fingerprint.0.as_bytes().as_slice(),
        &request,
        &method,
        &target,
        &provider_key,
        &inherited.map(Timestamp::as_micros),
    ];
    let row = match pg.step(statement, &params).await {
        Err(StoreError::Constraint { name }) if name == "effects_pkey" => {
            pg.step(sql::CLAIM_WRITE_IN_PLACE, &params).await?
        }
        other => other?,
    }
    .ok_or_else(|| missing(claim.action))?;
    if !made(&row)? {
        return lost(pg, &claim.tenant, claim.action).await;
    }
    let mut c = Columns::of(&row, 2, "a write claim");
    let (lease_expires, now) = (c.time()?, c.time()?);
    let record = written::write(claim, inherited, now);
    Ok(Step::Made(written::claimed(record, lease_expires)))
}

pub(super) async fn repeat_write(pg: &Inner, repeat: RepeatWrite) -> Result<Step<WriteClaimed>, StoreError> {
    let row = pg
        .step(
            sql::REPEAT_WRITE,
            &[
                &repeat.tenant.as_str(),
                &repeat.action.0.as_bytes().as_slice(),
                &pg.durable,
                &repeat.attempt.0.as_bytes().as_slice(),
                &i64::from(repeat.ordinal.0),
                &length(repeat.lease.length),
                &length(repeat.lease.margin),
            ],
        )
        .await?
        .ok_or_else(|| missing(repeat.action))?;
    if !made(&row)? {
        return lost(pg, &repeat.tenant, repeat.action).await;
    }
    let lease_expires = Columns::of(&row, 2, "a repeat claim").time()?;
    let record = rows::effect_option(&row, 3)?.ok_or_else(|| gone(repeat.action, repeat.ordinal))?;
    Ok(Step::Made(written::claimed(record, lease_expires)))
}

/// Enters a write that the ledger may have lost the row of.
pub(super) async fn doubt_write(pg: &Inner, claim: ClaimWrite) -> Result<Step<EffectRecord>, StoreError> {
    let (terms, request) = (rows::json(&claim.terms)?, rows::json(&claim.request)?);
    let (id, attempt) = (claim.action.0, claim.attempt.0);
    let (method, target) = (rows::plain(&claim.request.method), rows::plain(&claim.request.url));
    let provider_key = rows::plain(&claim.provider_key);
    let params: [&(dyn ToSql + Sync); 16] = [
        &claim.tenant.as_str(),
        &id.as_bytes().as_slice(),
        &UNFLUSHED,
        &attempt.as_bytes().as_slice(),
        &i64::from(claim.ordinal.0),
        &claim.kind.as_str(),
        &claim.terms.class.as_str(),
        &length(claim.terms.key_window),
        &length(claim.terms.send),
        &terms,
        &claim.fingerprint.0.as_bytes().as_slice(),
        &request,
        &method,
        &target,
        &provider_key,
        &claim.first_sent.map(Timestamp::as_micros),
    ];
    let row = match pg.step(sql::DOUBT_WRITE, &params).await {
        Err(StoreError::Constraint { name }) if name == "effects_pkey" => {
            pg.step(sql::DOUBT_WRITE_IN_PLACE, &params).await?
        }
        other => other?,
    }
    .ok_or_else(|| missing(claim.action))?;
    if !made(&row)? {
        return lost(pg, &claim.tenant, claim.action).await;
    }
    let mut c = Columns::of(&row, 2, "a doubted write");
    let (now, first) = (c.time()?, c.time()?);
    Ok(Step::Made(EffectRecord {
        status: EffectStatus::Unknown,
        unknown_since: Some(now),
        ..written::write(claim, Some(first), first)
    }))
}

pub(super) async fn still_live(
    pg: &Inner,
    tenant: &TenantId,
    id: ActionId,
    fence: SendFence,
) -> Result<Liveness, StoreError> {
    let found = pg
        .read(
            sql::STILL_LIVE,
            &[
                &tenant.as_str(),
                &id.0.as_bytes().as_slice(),
                &fence.attempt.0.as_bytes().as_slice(),
                &i64::from(fence.ordinal.0),
                &i64::from(fence.send.0),
            ],
        )
        .await?;
    let row = found.first().ok_or_else(|| missing(id))?;
    let mut c = Columns::of(row, 0, "the last look");
    Ok(Liveness { live: c.get()?, now: Timestamp::from_micros(c.get()?) })
}

pub(super) fn gone(id: ActionId, ordinal: Ordinal) -> StoreError {
    StoreError::Damaged { what: format!("effect {ordinal} of the action {id} is not there") }
}

/// Effects that are settled as they come, column by column.
#[derive(Default)]
pub(super) struct SettledColumns {
    ordinals: Vec<i64>,
    kinds: Vec<&'static str>,
    writes: Vec<bool>,
    classes: Vec<&'static str>,
    key_windows: Vec<i64>,
    send_limits: Vec<i64>,
    terms: Vec<String>,
    fingerprints: Vec<Vec<u8>>,
    requests: Vec<String>,
    methods: Vec<String>,
    targets: Vec<String>,
    statuses: Vec<&'static str>,
    sends: Vec<i64>,
    answers: Vec<Option<String>>,
    refusals: Vec<Option<String>>,
}

impl SettledColumns {
    pub(super) fn of(effects: &[NewSettled]) -> Result<SettledColumns, StoreError> {
        let mut columns = SettledColumns::default();
        for effect in effects {
            let (status, send, answer, refusal) = match &effect.outcome {
                Settled::Answered(answer) => (EffectStatus::Succeeded, 1, Some(answer), None),
                Settled::Refused(refusal) => (EffectStatus::Failed, 0, None, Some(refusal)),
            };
            columns.ordinals.push(i64::from(effect.ordinal.0));
            columns.kinds.push(effect.kind.as_str());
            columns.writes.push(effect.write);
            columns.classes.push(effect.terms.class.as_str());
            columns.key_windows.push(length(effect.terms.key_window));
            columns.send_limits.push(length(effect.terms.send));
            columns.terms.push(rows::json(&effect.terms)?);
            columns.fingerprints.push(effect.fingerprint.0.as_bytes().to_vec());
            columns.requests.push(rows::json(&effect.request)?);
            columns.methods.push(rows::plain(&effect.request.method).into_owned());
            columns.targets.push(rows::plain(&effect.request.url).into_owned());
            columns.statuses.push(status.as_str());
            columns.sends.push(send);
            columns.answers.push(rows::json_option(answer)?);
            columns.refusals.push(rows::json_option(refusal)?);
        }
        Ok(columns)
    }

    /// In the order in which the statements name them.
    pub(super) fn params(&self) -> [&(dyn ToSql + Sync); 15] {
        [
            &self.ordinals,
            &self.kinds,
            &self.writes,
            &self.classes,
            &self.key_windows,
            &self.send_limits,
            &self.terms,
            &self.fingerprints,
            &self.requests,
            &self.methods,
            &self.targets,
            &self.statuses,
            &self.sends,
            &self.answers,
            &self.refusals,
        ]
    }
}

/// Records effects that needed no claim under an attempt that goes on.
pub(super) async fn record_settled(
    pg: &Inner,
    tenant: &TenantId,
    id: ActionId,
    attempt: AttemptId,
    effects: Vec<NewSettled>,
) -> Result<Step<Vec<EffectRecord>>, StoreError> {
    let columns = SettledColumns::of(&effects)?;
    let (name, attempt_bytes, id_bytes) = (tenant.as_str(), attempt.0.into_bytes(), id.0.into_bytes());
    let (attempt_bytes, id_bytes) = (attempt_bytes.as_slice(), id_bytes.as_slice());
    let mut params: Vec<&(dyn ToSql + Sync)> = vec![&name, &id_bytes, &UNFLUSHED, &attempt_bytes];
    params.extend(columns.params());
    let row = match pg.step(sql::RECORD_SETTLED, &params).await {
        Err(StoreError::Constraint { name }) if name == "effects_pkey" => {
            pg.step(sql::RECORD_SETTLED_IN_PLACE, &params).await?
        }
        other => other?,
    }
    .ok_or_else(|| missing(id))?;
    if !made(&row)? {
        return lost(pg, tenant, id).await;
    }
    let now = Timestamp::from_micros(Columns::of(&row, 2, "a record").get()?);
    Ok(Step::Made(effects.into_iter().map(|effect| written::settled(attempt, effect, now)).collect()))
}

/// A length of time as it is added to a time in the database; clamped so that no
/// such sum overflows.
pub(super) fn clamped(length: std::time::Duration) -> i64 {
    micros(length).min(i64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_event_of_a_claim_is_whole_around_any_attempt_whoever_owns_it() {
        for owner in ["worker", "4294967295", "{\"attempt\":4294967295", "\u{0}\u{1}é"] {
            for (kind, fact) in [
                (ClaimKind::Run, Fact::Claimed { attempt: AttemptNumber(7) }),
                (ClaimKind::Repeat, Fact::SafeToRepeat { attempt: AttemptNumber(7) }),
            ] {
                let (before, after) = event_around_attempt(kind, owner);
                let whole = EventBody { fact, to: State::Executing, by: owner.into() }.canonical();
                assert_eq!(format!("{before}7{after}"), whole);
            }
        }
    }
}
