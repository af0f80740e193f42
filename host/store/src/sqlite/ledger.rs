//! The ledger's promises, kept by handing each step to the writer or to a
//! reader. What a step does stands in `claim`, `record` and `decide`.

use std::sync::atomic::Ordering;

use async_trait::async_trait;
use countersign_domain::action::{Action, State};
use countersign_domain::effect::EffectRecord;
use countersign_domain::event::Event;
use countersign_domain::id::{ActionId, AttemptId, TenantId};
use countersign_domain::lease::{LeaseTerms, SendFence};
use countersign_domain::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};
use tokio::sync::broadcast;

use super::{SqliteStore, claim, decide, fault, record, rows, sql};
use crate::StoreError;
use crate::ledger::{Changed, Ledger};
use crate::steps::{
    Approve, ClaimAction, ClaimWrite, ClaimedAction, Due, EndAttempt, ListActions, Liveness, NewAction,
    NewSettled, Proposed, Putoff, RecordSend, Recorded, RepeatWrite, Resolve, Step, Transition, WriteClaimed,
};

/// Survives a power failure once answered.
const FLUSHED: bool = true;
/// Committed; flushed with the next step that is.
const COMMITTED: bool = false;

#[async_trait]
impl Ledger for SqliteStore {
    async fn now(&self) -> Result<Timestamp, StoreError> {
        Ok(self.inner.clock.now())
    }

    fn subscribe(&self) -> broadcast::Receiver<Changed> {
        self.inner.changes.subscribe()
    }

    async fn propose(&self, action: NewAction) -> Result<Proposed, StoreError> {
        self.inner.writer.step(FLUSHED, move |tx| decide::propose(tx, action)).await
    }

    async fn approve(&self, approve: Approve) -> Result<Step<Action>, StoreError> {
        self.inner.writer.step(FLUSHED, move |tx| decide::approve(tx, approve)).await
    }

    async fn transition(&self, transition: Transition) -> Result<Step<Action>, StoreError> {
        self.inner.writer.step(FLUSHED, move |tx| decide::transition(tx, transition)).await
    }

    async fn request_cancel(
        &self,
        tenant: &TenantId,
        action: ActionId,
        reason: &str,
    ) -> Result<Step<Action>, StoreError> {
        let (tenant, reason) = (tenant.clone(), reason.to_owned());
        self.inner.writer.step(FLUSHED, move |tx| decide::request_cancel(tx, &tenant, action, &reason)).await
    }

    async fn postpone(
        &self,
        tenant: &TenantId,
        action: ActionId,
        expected: i64,
        putoff: Putoff,
    ) -> Result<Step<Action>, StoreError> {
        let tenant = tenant.clone();
        self.inner
            .writer
            .step(COMMITTED, move |tx| decide::postpone(tx, &tenant, action, expected, putoff))
            .await
    }

    async fn announced(
        &self,
        tenant: &TenantId,
        action: ActionId,
        event_seq: u32,
    ) -> Result<bool, StoreError> {
        let tenant = tenant.clone();
        self.inner.writer.step(COMMITTED, move |tx| decide::announced(tx, &tenant, action, event_seq)).await
    }

    async fn doubt_rewound(&self, limit: u32) -> Result<usize, StoreError> {
        // Only an opening finds that commits were lost, and there is one host.
        if !self.inner.rewound.load(Ordering::Acquire) {
            return Ok(0);
        }
        let open: decide::Open = self
            .inner
            .readers
            .read(move |conn| rows::collect(conn, sql::TO_DOUBT, params![limit], |_, row| rows::key(row)))
            .await?;
        if open.is_empty() {
            self.inner.writer.step(FLUSHED, decide::all_doubted).await?;
            self.inner.rewound.store(false, Ordering::Release);
            return Ok(0);
        }
        let all = open.clone();
        match self.inner.writer.step(FLUSHED, move |tx| decide::doubt(tx, all)).await {
            Ok(doubted) => return Ok(doubted),
            Err(StoreError::Damaged { .. } | StoreError::Constraint { .. }) => {}
            Err(error) => return Err(error),
        }
        // One that is damaged stops none of the others; nothing claims it.
        let mut doubted = 0;
        for one in open {
            let id = one.1;
            match self.inner.writer.step(FLUSHED, move |tx| decide::doubt(tx, vec![one])).await {
                Ok(made) => doubted += made,
                Err(error) => tracing::error!(action = %id, %error, "an action could not be doubted"),
            }
        }
        Ok(doubted)
    }

    async fn claim_action(&self, claim: ClaimAction) -> Result<Step<ClaimedAction>, StoreError> {
        self.inner.writer.step(COMMITTED, move |tx| claim::claim_action(tx, claim)).await
    }

    async fn heartbeat(
        &self,
        tenant: &TenantId,
        action: ActionId,
        attempt: AttemptId,
        lease: LeaseTerms,
    ) -> Result<Option<Action>, StoreError> {
        let tenant = tenant.clone();
        self.inner
            .writer
            .step(COMMITTED, move |tx| claim::heartbeat(tx, &tenant, action, attempt, lease))
            .await
    }

    async fn claim_write(&self, claim: ClaimWrite) -> Result<Step<WriteClaimed>, StoreError> {
        self.inner.writer.step(FLUSHED, move |tx| claim::claim_write(tx, claim)).await
    }

    async fn repeat_write(&self, repeat: RepeatWrite) -> Result<Step<WriteClaimed>, StoreError> {
        self.inner.writer.step(FLUSHED, move |tx| claim::repeat_write(tx, repeat)).await
    }

    async fn doubt_write(&self, claim: ClaimWrite) -> Result<Step<EffectRecord>, StoreError> {
        self.inner.writer.step(COMMITTED, move |tx| claim::doubt_write(tx, claim)).await
    }

    async fn still_live(
        &self,
        tenant: &TenantId,
        action: ActionId,
        fence: SendFence,
    ) -> Result<Liveness, StoreError> {
        let tenant = tenant.clone();
        let clock = self.inner.clock.clone();
        self.inner
            .readers
            .glance(move |conn| {
                let live = conn
                    .prepare_cached(sql::STILL_LIVE)
                    .map_err(fault::statement)?
                    .exists(params![
                        tenant.as_str(),
                        action.0.as_bytes(),
                        fence.attempt.0.as_bytes(),
                        fence.ordinal.0,
                        fence.send.0,
                    ])
                    .map_err(fault::statement)?;
                // The time is read last: what is compared with it is not older.
                Ok(Liveness { now: clock.now(), live })
            })
            .await
    }

    async fn record_send(&self, record: RecordSend) -> Result<Recorded, StoreError> {
        self.inner.writer.step(FLUSHED, move |tx| record::record_send(tx, record)).await
    }

    async fn record_settled(
        &self,
        tenant: &TenantId,
        action: ActionId,
        attempt: AttemptId,
        effects: Vec<NewSettled>,
    ) -> Result<Step<Vec<EffectRecord>>, StoreError> {
        let tenant = tenant.clone();
        self.inner
            .writer
            .step(COMMITTED, move |tx| claim::record_settled(tx, &tenant, action, attempt, effects))
            .await
    }

    async fn end_attempt(&self, end: EndAttempt) -> Result<Step<Action>, StoreError> {
        self.inner.writer.step(FLUSHED, move |tx| record::end_attempt(tx, end)).await
    }

    async fn resolve(&self, resolve: Resolve) -> Result<Step<Action>, StoreError> {
        self.inner.writer.step(FLUSHED, move |tx| decide::resolve(tx, resolve)).await
    }

    async fn action(&self, tenant: &TenantId, action: ActionId) -> Result<Option<Action>, StoreError> {
        let tenant = tenant.clone();
        self.inner
            .readers
            .glance(move |conn| {
                let found = params![tenant.as_str(), action.0.as_bytes()];
                Ok(rows::collect(conn, sql::ACTION, found, rows::action)?.pop())
            })
            .await
    }

    async fn actions(&self, tenant: &TenantId, list: ListActions) -> Result<Vec<Action>, StoreError> {
        let tenant = tenant.clone();
        self.inner.readers.read(move |conn| listed(conn, &tenant, &list)).await
    }

    async fn effects(
        &self,
        tenant: &TenantId,
        action: ActionId,
        history: bool,
    ) -> Result<Vec<EffectRecord>, StoreError> {
        let tenant = tenant.clone();
        let statement = if history { sql::EFFECTS_WITH_HISTORY } else { sql::EFFECTS };
        self.inner
            .readers
            .glance(move |conn| {
                let of = params![tenant.as_str(), action.0.as_bytes()];
                rows::collect(conn, statement, of, |_, row| rows::effect(row))
            })
            .await
    }

    async fn log(&self, tenant: &TenantId, action: ActionId) -> Result<Vec<String>, StoreError> {
        let tenant = tenant.clone();
        self.inner
            .readers
            .read(move |conn| {
                let of = params![tenant.as_str(), action.0.as_bytes()];
                let attempts = rows::collect(conn, sql::LOG, of, |_, row| {
                    let lines: String = row.get(0).map_err(fault::statement)?;
                    serde_json::from_str::<Vec<String>>(&lines).map_err(|error| StoreError::Damaged {
                        what: format!("a log of the action {action}: {error}"),
                    })
                })?;
                Ok(attempts.concat())
            })
            .await
    }

    async fn events_of(
        &self,
        tenant: &TenantId,
        action: ActionId,
        after: u32,
        limit: u32,
    ) -> Result<Vec<Event>, StoreError> {
        let tenant = tenant.clone();
        self.inner
            .readers
            .read(move |conn| {
                let of = params![tenant.as_str(), action.0.as_bytes(), after, limit];
                rows::collect(conn, sql::EVENTS_OF_ACTION, of, |_, row| rows::event(row))
            })
            .await
    }

    async fn events(&self, tenant: &TenantId, after: i64, limit: u32) -> Result<Vec<Event>, StoreError> {
        let tenant = tenant.clone();
        self.inner
            .readers
            .read(move |conn| {
                let of = params![tenant.as_str(), after, limit];
                rows::collect(conn, sql::EVENTS, of, |_, row| rows::event(row))
            })
            .await
    }

    async fn due(&self, limit: u32, all_leases_over: bool) -> Result<Vec<Due>, StoreError> {
        let statement = if all_leases_over { sql::DUE_AFTER_OPENING } else { sql::DUE };
        let now = self.inner.clock.now();
        self.inner
            .readers
            .read(move |conn| {
                let actions = rows::collect(conn, statement, params![now.as_micros(), limit], rows::action)?;
                actions.into_iter().map(|action| due(conn, action)).collect()
            })
            .await
    }
}

fn due(conn: &Connection, action: Action) -> Result<Due, StoreError> {
    let unknown = if action.unknown_effects == 0 {
        Vec::new()
    } else {
        let of = params![action.tenant.as_str(), action.id.0.as_bytes()];
        rows::collect(conn, sql::UNKNOWN_EFFECTS, of, |_, row| rows::effect(row))?
    };
    let policy_epoch = conn
        .prepare_cached(sql::POLICY_EPOCH)
        .map_err(fault::statement)?
        .query_row(params![action.tenant.as_str()], |row| row.get(0))
        .map_err(fault::statement)?;
    Ok(Due { action, unknown, policy_epoch })
}

/// Newest first. Several states are several lists, merged: each is read from
/// the end of its own stretch of the index, however long the history is.
fn listed(conn: &Connection, tenant: &TenantId, list: &ListActions) -> Result<Vec<Action>, StoreError> {
    let from: (i64, [u8; 16]) = match list.after {
        None => (i64::MAX, [0xff; 16]),
        Some(after) => conn
            .prepare_cached(sql::PLACE_IN_LIST)
            .map_err(fault::statement)?
            .query_row(params![tenant.as_str(), after.0.as_bytes()], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()
            .map_err(fault::statement)?
            .ok_or_else(|| StoreError::NotFound { what: format!("action {after} to go on after") })?,
    };
    let statement = match list {
        ListActions { run: Some(_), .. } => sql::LIST_BY_RUN,
        ListActions { states, .. } if !states.is_empty() => sql::LIST_BY_STATE,
        ListActions { tool: Some(_), .. } => sql::LIST_BY_TOOL,
        ListActions { .. } => sql::LIST,
    };
    let one = |state: Option<State>| {
        let of = params![
            tenant.as_str(),
            from.0,
            from.1,
            state.map(State::as_str),
            list.tool.as_ref().map(|tool| tool.as_str()),
            list.run,
            list.limit,
        ];
        rows::collect(conn, statement, of, rows::action)
    };
    let mut states = list.states.clone();
    states.sort_unstable();
    states.dedup();
    if states.is_empty() {
        return one(None);
    }
    let mut merged = Vec::new();
    for state in states {
        merged.extend(one(Some(state))?);
    }
    merged.sort_by_key(|action| std::cmp::Reverse((action.created, action.id)));
    merged.truncate(usize::try_from(list.limit).unwrap_or(usize::MAX));
    Ok(merged)
}
