//! A store that fails at a step, or that loses its word about changes: the
//! windows that only a broken connection opens. Everything else is the real
//! store's.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use countersign_domain::action::Action;
use countersign_domain::effect::EffectRecord;
use countersign_domain::event::Event;
use countersign_domain::id::{
    ActionId, AttemptId, ComponentDigest, GrantDigest, Principal, TenantId, ToolName,
};
use countersign_domain::lease::{LeaseTerms, SendFence};
use countersign_domain::time::Timestamp;
use countersign_domain::tool::InstalledTool;
use countersign_store::sqlite::SqliteStore;
use countersign_store::steps::*;
use countersign_store::{Changed, Ledger, NewPrincipal, NewTool, PrincipalRow, Registry, StoreError};
use tokio::sync::{broadcast, watch};

/// How a step fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fails {
    /// It was not made.
    Before,
    /// It was made, and the word of it is lost.
    After,
}

/// The store, with faults.
pub struct Faulty {
    inner: SqliteStore,
    steps: AtomicUsize,
    fault: Mutex<Option<(usize, Fails)>>,
    /// What failed, by name.
    failed: Mutex<Option<&'static str>>,
    deaf: AtomicBool,
    /// Somebody edits rows in the database: done to every row that is claimed.
    tamper: Mutex<Option<fn(&mut Action)>>,
    /// Counts heartbeats: those that found the attempt alive, and the others.
    beats: watch::Sender<(usize, usize)>,
}

impl Faulty {
    pub fn new(inner: SqliteStore) -> Arc<Faulty> {
        Arc::new(Faulty {
            inner,
            steps: AtomicUsize::new(0),
            fault: Mutex::default(),
            failed: Mutex::default(),
            deaf: AtomicBool::new(false),
            tamper: Mutex::default(),
            beats: watch::Sender::new((0, 0)),
        })
    }

    /// Whoever subscribes from now on hears nothing.
    pub fn go_deaf(&self) {
        self.deaf.store(true, Ordering::SeqCst);
    }

    /// What every action looks like from now on when it is claimed.
    pub fn tamper(&self, how: fn(&mut Action)) {
        *self.tamper.lock().unwrap() = Some(how);
    }

    /// Something that waits for the next heartbeat, from this call on, which
    /// finds the attempt alive, or not.
    pub fn heartbeat_that_finds_it(&self, alive: bool) -> impl Future<Output = ()> + use<> {
        let mut beats = self.beats.subscribe();
        let (live, dead) = *beats.borrow_and_update();
        async move {
            beats.wait_for(|now| if alive { now.0 > live } else { now.1 > dead }).await.unwrap();
        }
    }

    /// The n-th writing step from now on, from 1, fails so.
    pub fn arm(&self, nth: usize, fails: Fails) {
        self.steps.store(0, Ordering::SeqCst);
        *self.failed.lock().unwrap() = None;
        *self.fault.lock().unwrap() = Some((nth, fails));
    }

    /// Which step failed, if it came so far.
    pub fn failed(&self) -> Option<&'static str> {
        *self.failed.lock().unwrap()
    }

    async fn step<T>(
        &self,
        name: &'static str,
        made: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let number = self.steps.fetch_add(1, Ordering::SeqCst) + 1;
        let fault = self.fault.lock().unwrap().filter(|(nth, _)| *nth == number).map(|(_, fails)| fails);
        if fault.is_some() {
            *self.failed.lock().unwrap() = Some(name);
        }
        match fault {
            None => made.await,
            Some(Fails::Before) => Err(StoreError::Unavailable { what: format!("{name} was not heard") }),
            Some(Fails::After) => {
                made.await?;
                Err(StoreError::CommitUnknown { what: format!("the word about {name} is lost") })
            }
        }
    }
}

#[async_trait]
impl Ledger for Faulty {
    async fn now(&self) -> Result<Timestamp, StoreError> {
        self.inner.now().await
    }
    fn subscribe(&self) -> broadcast::Receiver<Changed> {
        if self.deaf.load(Ordering::SeqCst) {
            // Kept open by a sender that is never used.
            let sender = Box::leak(Box::new(broadcast::Sender::new(1)));
            return sender.subscribe();
        }
        self.inner.subscribe()
    }
    async fn propose(&self, action: NewAction) -> Result<Proposed, StoreError> {
        self.step("propose", self.inner.propose(action)).await
    }
    async fn approve(&self, approve: Approve) -> Result<Step<Action>, StoreError> {
        self.step("approve", self.inner.approve(approve)).await
    }
    async fn transition(&self, transition: Transition) -> Result<Step<Action>, StoreError> {
        self.step("transition", self.inner.transition(transition)).await
    }
    async fn request_cancel(
        &self,
        tenant: &TenantId,
        id: ActionId,
        why: &str,
    ) -> Result<Step<Action>, StoreError> {
        self.step("request_cancel", self.inner.request_cancel(tenant, id, why)).await
    }
    async fn postpone(
        &self,
        tenant: &TenantId,
        id: ActionId,
        expected: i64,
        putoff: Putoff,
    ) -> Result<Step<Action>, StoreError> {
        self.step("postpone", self.inner.postpone(tenant, id, expected, putoff)).await
    }
    async fn announced(&self, tenant: &TenantId, id: ActionId, event_seq: u32) -> Result<bool, StoreError> {
        self.step("announced", self.inner.announced(tenant, id, event_seq)).await
    }
    async fn doubt_rewound(&self, limit: u32) -> Result<usize, StoreError> {
        self.inner.doubt_rewound(limit).await
    }
    async fn doubt_write(&self, claim: ClaimWrite) -> Result<Step<EffectRecord>, StoreError> {
        self.step("doubt_write", self.inner.doubt_write(claim)).await
    }
    async fn still_live(
        &self,
        tenant: &TenantId,
        id: ActionId,
        fence: SendFence,
    ) -> Result<Liveness, StoreError> {
        self.inner.still_live(tenant, id, fence).await
    }
    async fn claim_action(&self, claim: ClaimAction) -> Result<Step<ClaimedAction>, StoreError> {
        let mut claimed = self.step("claim_action", self.inner.claim_action(claim)).await?;
        if let (Step::Made(claimed), Some(tamper)) = (&mut claimed, *self.tamper.lock().unwrap()) {
            tamper(&mut claimed.action);
        }
        Ok(claimed)
    }
    async fn heartbeat(
        &self,
        tenant: &TenantId,
        id: ActionId,
        attempt: AttemptId,
        lease: LeaseTerms,
    ) -> Result<Option<Action>, StoreError> {
        let row = self.inner.heartbeat(tenant, id, attempt, lease).await;
        let alive = matches!(row, Ok(Some(_)));
        self.beats.send_modify(|beats| if alive { beats.0 += 1 } else { beats.1 += 1 });
        row
    }
    async fn claim_write(&self, claim: ClaimWrite) -> Result<Step<WriteClaimed>, StoreError> {
        self.step("claim_write", self.inner.claim_write(claim)).await
    }
    async fn repeat_write(&self, repeat: RepeatWrite) -> Result<Step<WriteClaimed>, StoreError> {
        self.step("repeat_write", self.inner.repeat_write(repeat)).await
    }
    async fn record_send(&self, record: RecordSend) -> Result<Recorded, StoreError> {
        self.step("record_send", self.inner.record_send(record)).await
    }
    async fn record_settled(
        &self,
        tenant: &TenantId,
        id: ActionId,
        attempt: AttemptId,
        effects: Vec<NewSettled>,
    ) -> Result<Step<Vec<EffectRecord>>, StoreError> {
        self.step("record_settled", self.inner.record_settled(tenant, id, attempt, effects)).await
    }
    async fn end_attempt(&self, end: EndAttempt) -> Result<Step<Action>, StoreError> {
        self.step("end_attempt", self.inner.end_attempt(end)).await
    }
    async fn resolve(&self, resolve: Resolve) -> Result<Step<Action>, StoreError> {
        self.step("resolve", self.inner.resolve(resolve)).await
    }
    async fn action(&self, tenant: &TenantId, id: ActionId) -> Result<Option<Action>, StoreError> {
        self.inner.action(tenant, id).await
    }
    async fn actions(&self, tenant: &TenantId, list: ListActions) -> Result<Vec<Action>, StoreError> {
        self.inner.actions(tenant, list).await
    }
    async fn effects(
        &self,
        tenant: &TenantId,
        id: ActionId,
        history: bool,
    ) -> Result<Vec<EffectRecord>, StoreError> {
        self.inner.effects(tenant, id, history).await
    }
    async fn log(&self, tenant: &TenantId, id: ActionId) -> Result<Vec<String>, StoreError> {
        self.inner.log(tenant, id).await
    }
    async fn events_of(
        &self,
        tenant: &TenantId,
        id: ActionId,
        after: u32,
        limit: u32,
    ) -> Result<Vec<Event>, StoreError> {
        self.inner.events_of(tenant, id, after, limit).await
    }
    async fn events(&self, tenant: &TenantId, after: i64, limit: u32) -> Result<Vec<Event>, StoreError> {
        self.inner.events(tenant, after, limit).await
    }
    async fn due(&self, limit: u32, all_leases_over: bool) -> Result<Vec<Due>, StoreError> {
        self.inner.due(limit, all_leases_over).await
    }
}

#[async_trait]
impl Registry for Faulty {
    async fn pending(
        &self,
        tenant: &TenantId,
        tool: &ToolName,
        caller: &Principal,
        actor: &Principal,
    ) -> Result<countersign_store::Pending, StoreError> {
        self.inner.pending(tenant, tool, caller, actor).await
    }
    async fn install_tool(&self, tool: NewTool) -> Result<InstalledTool, StoreError> {
        self.inner.install_tool(tool).await
    }
    async fn put_grant(
        &self,
        tenant: &TenantId,
        name: &ToolName,
        grant: GrantDigest,
        source: &str,
        by: &Principal,
    ) -> Result<InstalledTool, StoreError> {
        self.inner.put_grant(tenant, name, grant, source, by).await
    }
    async fn tool(
        &self,
        tenant: &TenantId,
        name: &ToolName,
        version: Option<&str>,
    ) -> Result<Option<InstalledTool>, StoreError> {
        self.inner.tool(tenant, name, version).await
    }
    async fn tools(&self, tenant: &TenantId) -> Result<Vec<InstalledTool>, StoreError> {
        self.inner.tools(tenant).await
    }
    async fn component(
        &self,
        tenant: &TenantId,
        digest: ComponentDigest,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        self.inner.component(tenant, digest).await
    }
    async fn grant(&self, tenant: &TenantId, digest: GrantDigest) -> Result<Option<String>, StoreError> {
        self.inner.grant(tenant, digest).await
    }
    async fn set_paused(&self, tenant: &TenantId, name: &ToolName, paused: bool) -> Result<(), StoreError> {
        self.inner.set_paused(tenant, name, paused).await
    }
    async fn add_principal(&self, principal: NewPrincipal) -> Result<PrincipalRow, StoreError> {
        self.inner.add_principal(principal).await
    }
    async fn principal(&self, token_id: &str) -> Result<Option<PrincipalRow>, StoreError> {
        self.inner.principal(token_id).await
    }
    async fn principals(&self, tenant: &TenantId) -> Result<Vec<PrincipalRow>, StoreError> {
        self.inner.principals(tenant).await
    }
    async fn revoke(&self, tenant: &TenantId, token_id: &str) -> Result<(), StoreError> {
        self.inner.revoke(tenant, token_id).await
    }
}
