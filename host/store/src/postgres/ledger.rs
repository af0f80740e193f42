//! The ledger's promises, kept by making each step apart from its caller. What a
//! step does stands in `claim`, `record` and `decide`.

use async_trait::async_trait;
use countersign_domain::action::{Action, State};
use countersign_domain::effect::EffectRecord;
use countersign_domain::event::Event;
use countersign_domain::id::{ActionId, AttemptId, TenantId};
use countersign_domain::lease::{LeaseTerms, SendFence};
use countersign_domain::time::Timestamp;
use tokio::sync::broadcast;

use super::rows::Columns;
use super::{Inner, PostgresStore, claim, decide, record, rows, sql};
use crate::StoreError;
use crate::ledger::{Changed, Ledger};
use crate::steps::{
    Approve, ClaimAction, ClaimWrite, ClaimedAction, Due, EndAttempt, ListActions, Liveness, NewAction,
    NewSettled, Proposed, Putoff, RecordSend, Recorded, RepeatWrite, Resolve, Step, Transition, WriteClaimed,
};

#[async_trait]
impl Ledger for PostgresStore {
    async fn now(&self) -> Result<Timestamp, StoreError> {
        let found = self.inner.read(sql::NOW, &[]).await?;
        let row =
            found.first().ok_or_else(|| StoreError::Damaged { what: "the database has no time".into() })?;
        Columns::of(row, 0, "the time").get().map(Timestamp::from_micros)
    }

    fn subscribe(&self) -> broadcast::Receiver<Changed> {
        self.inner.changes.subscribe()
    }

    async fn propose(&self, action: NewAction) -> Result<Proposed, StoreError> {
        self.inner.apart(|pg| async move { decide::propose(&pg, action).await }).await
    }

    async fn approve(&self, approve: Approve) -> Result<Step<Action>, StoreError> {
        self.inner.apart(|pg| async move { decide::approve(&pg, approve).await }).await
    }

    async fn transition(&self, transition: Transition) -> Result<Step<Action>, StoreError> {
        self.inner.apart(|pg| async move { decide::transition(&pg, transition).await }).await
    }

    async fn request_cancel(
        &self,
        tenant: &TenantId,
        action: ActionId,
        reason: &str,
    ) -> Result<Step<Action>, StoreError> {
        let (tenant, reason) = (tenant.clone(), reason.to_owned());
        self.inner
            .apart(|pg| async move { decide::request_cancel(&pg, &tenant, action, &reason).await })
            .await
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
            .apart(|pg| async move { decide::postpone(&pg, &tenant, action, expected, putoff).await })
            .await
    }

    async fn announced(
        &self,
        tenant: &TenantId,
        action: ActionId,
        event_seq: u32,
    ) -> Result<bool, StoreError> {
        let tenant = tenant.clone();
        self.inner.apart(|pg| async move { decide::announced(&pg, &tenant, action, event_seq).await }).await
    }

    async fn doubt_rewound(&self, limit: u32) -> Result<usize, StoreError> {
        self.inner.apart(|pg| async move { decide::doubt_rewound(&pg, limit).await }).await
    }

    async fn claim_action(&self, claim: ClaimAction) -> Result<Step<ClaimedAction>, StoreError> {
        self.inner.apart(|pg| async move { claim::claim_action(&pg, claim).await }).await
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
            .apart(|pg| async move { claim::heartbeat(&pg, &tenant, action, attempt, lease).await })
            .await
    }

    async fn claim_write(&self, claim: ClaimWrite) -> Result<Step<WriteClaimed>, StoreError> {
        self.inner.apart(|pg| async move { claim::claim_write(&pg, claim).await }).await
    }

    async fn repeat_write(&self, repeat: RepeatWrite) -> Result<Step<WriteClaimed>, StoreError> {
        self.inner.apart(|pg| async move { claim::repeat_write(&pg, repeat).await }).await
    }

    async fn doubt_write(&self, claim: ClaimWrite) -> Result<Step<EffectRecord>, StoreError> {
        self.inner.apart(|pg| async move { claim::doubt_write(&pg, claim).await }).await
    }

    async fn still_live(
        &self,
        tenant: &TenantId,
        action: ActionId,
        fence: SendFence,
    ) -> Result<Liveness, StoreError> {
        claim::still_live(&self.inner, tenant, action, fence).await
    }

    async fn record_send(&self, record: RecordSend) -> Result<Recorded, StoreError> {
        self.inner.apart(|pg| async move { record::record_send(&pg, record).await }).await
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
            .apart(|pg| async move { claim::record_settled(&pg, &tenant, action, attempt, effects).await })
            .await
    }

    async fn end_attempt(&self, end: EndAttempt) -> Result<Step<Action>, StoreError> {
        self.inner.apart(|pg| async move { record::end_attempt(&pg, end).await }).await
    }

    async fn resolve(&self, resolve: Resolve) -> Result<Step<Action>, StoreError> {
        self.inner.apart(|pg| async move { decide::resolve(&pg, resolve).await }).await
    }

    async fn action(&self, tenant: &TenantId, action: ActionId) -> Result<Option<Action>, StoreError> {
        let found =
            self.inner.read(sql::ACTION, &[&tenant.as_str(), &action.0.as_bytes().as_slice()]).await?;
        found.first().map(|row| rows::action(row, 0)).transpose()
    }

    async fn actions(&self, tenant: &TenantId, list: ListActions) -> Result<Vec<Action>, StoreError> {
        listed(&self.inner, tenant, &list).await
    }

    async fn effects(
        &self,
        tenant: &TenantId,
        action: ActionId,
        history: bool,
    ) -> Result<Vec<EffectRecord>, StoreError> {
        let statement = if history { sql::EFFECTS_WITH_HISTORY } else { sql::EFFECTS };
        claim::effects(&self.inner, statement, tenant, action).await
    }

    async fn log(&self, tenant: &TenantId, action: ActionId) -> Result<Vec<String>, StoreError> {
        let found = self.inner.read(sql::LOG, &[&tenant.as_str(), &action.0.as_bytes().as_slice()]).await?;
        let mut lines = Vec::new();
        for row in &found {
            let text: &str = Columns::of(row, 0, "a log").get()?;
            let more: Vec<String> = serde_json::from_str(text).map_err(|error| StoreError::Damaged {
                what: format!("a log of the action {action}: {error}"),
            })?;
            lines.extend(more);
        }
        Ok(lines)
    }

    async fn events_of(
        &self,
        tenant: &TenantId,
        action: ActionId,
        after: u32,
        limit: u32,
    ) -> Result<Vec<Event>, StoreError> {
        let found = self
            .inner
            .read(
                sql::EVENTS_OF_ACTION,
                &[&tenant.as_str(), &action.0.as_bytes().as_slice(), &i64::from(after), &i64::from(limit)],
            )
            .await?;
        found.iter().map(rows::event).collect()
    }

    async fn events(&self, tenant: &TenantId, after: i64, limit: u32) -> Result<Vec<Event>, StoreError> {
        let found = self.inner.read(sql::EVENTS, &[&tenant.as_str(), &after, &i64::from(limit)]).await?;
        found.iter().map(rows::event).collect()
    }

    async fn due(&self, limit: u32, all_leases_over: bool) -> Result<Vec<Due>, StoreError> {
        let statement = if all_leases_over { sql::DUE_AFTER_OPENING } else { sql::DUE };
        let found = self.inner.read(statement, &[&i64::from(limit)]).await?;
        let mut due = Vec::with_capacity(found.len());
        for row in &found {
            let policy_epoch = Columns::of(row, 0, "a tenant").get()?;
            let action = rows::action(row, 1)?;
            let unknown = if action.unknown_effects == 0 {
                Vec::new()
            } else {
                claim::effects(&self.inner, sql::UNKNOWN_EFFECTS, &action.tenant, action.id).await?
            };
            due.push(Due { action, unknown, policy_epoch });
        }
        Ok(due)
    }
}

/// Newest first. Several states are several lists, merged: each is read from
/// the end of its own stretch of the index, however long the history is.
async fn listed(pg: &Inner, tenant: &TenantId, list: &ListActions) -> Result<Vec<Action>, StoreError> {
    let from: (i64, Vec<u8>) = match list.after {
        None => (i64::MAX, vec![0xff; 16]),
        Some(after) => {
            let found =
                pg.read(sql::PLACE_IN_LIST, &[&tenant.as_str(), &after.0.as_bytes().as_slice()]).await?;
            let row = found.first().ok_or_else(|| StoreError::NotFound {
                what: format!("the action {after}, after which to go on,"),
            })?;
            let mut c = Columns::of(row, 0, "a place in a list");
            (c.get()?, c.get()?)
        }
    };
    let statement = match list {
        ListActions { run: Some(_), .. } => sql::LIST_BY_RUN,
        ListActions { states, .. } if !states.is_empty() => sql::LIST_BY_STATE,
        ListActions { tool: Some(_), .. } => sql::LIST_BY_TOOL,
        ListActions { .. } => sql::LIST,
    };
    let one = |state: Option<State>| {
        let (from, list) = (&from, list);
        async move {
            let of: super::connect::Params<'_> = &[
                &tenant.as_str(),
                &from.0,
                &from.1,
                &state.map(State::as_str),
                &list.tool.as_ref().map(|tool| tool.as_str()),
                &list.run.as_deref().map(rows::plain),
                &i64::from(list.limit),
            ];
            let found = pg.read(statement, of).await?;
            found.iter().map(|row| rows::action(row, 0)).collect::<Result<Vec<_>, StoreError>>()
        }
    };
    let mut states = list.states.clone();
    states.sort_unstable();
    states.dedup();
    if states.is_empty() {
        return one(None).await;
    }
    let mut merged = Vec::new();
    for state in states {
        merged.extend(one(Some(state)).await?);
    }
    merged.sort_by_key(|action| std::cmp::Reverse((action.created, action.id)));
    merged.truncate(usize::try_from(list.limit).unwrap_or(usize::MAX));
    Ok(merged)
}
