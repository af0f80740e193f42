//! The rig: a provider over real sockets, the real store with a clock that only
//! moves when told, scripts for components, and hosts that can die.
//!
//! Every test runs inside [`run`], which looks at the end whether the ledger can
//! be what it says: each action's chain of events verifies, nothing is in flight
//! that nobody runs, and the provider did nothing twice.

mod faulty;
mod grant;
mod host;
mod provider;
mod script;

use std::sync::Arc;
use std::time::Duration;

use countersign_domain::action::{Action, State, WaitsFor};
use countersign_domain::canonical::{CanonicalJson, Limits};
use countersign_domain::effect::{EffectRecord, EffectStatus};
use countersign_domain::event::{self, Event};
use countersign_domain::grant::RecoveryClass;
use countersign_domain::id::{ActionId, Principal, TenantId, ToolName};
use countersign_domain::key::ActionKey;
use countersign_domain::tool::InstalledTool;
use countersign_gate::execute::Execution;
use countersign_gate::install::{Candidate, Consent};
use countersign_gate::propose::{Proposal, ProposedAction};
use countersign_gate::resolve::{Resolution, Word};
use countersign_gate::{Gate, GateConfig, GateError};
use countersign_store::sqlite::{ManualClock, SqliteOptions, SqliteStore};
use countersign_store::steps::ListActions;
use countersign_store::{Ledger as _, Store};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

pub use faulty::{Fails, Faulty};
pub use grant::{GrantText, keyed, of_class, unkeyed};
pub use host::{Host, Safe, Stop};
pub use provider::{Do, Provider};
pub use script::{
    Fx, Script, Shelf, Shown, done, looked_up_refund, refund, refused, trapped, try_later, writes,
};

/// Longer than any step of a test takes; whoever waits so long is stuck.
pub const LONG: Duration = Duration::from_secs(60);

/// A microsecond: the clock's resolution.
pub const TICK: Duration = Duration::from_micros(1);

pub struct Rig {
    pub provider: Provider,
    pub clock: ManualClock,
    pub safe: Arc<Safe>,
    pub config: GateConfig,
    /// The provider may be seen to have done the same twice.
    pub doubles_allowed: bool,
    pub shelf: Arc<Shelf>,
    folder: tempfile::TempDir,
    store: Option<SqliteStore>,
    host: Option<Host>,
}

/// Runs a test in a rig of its own.
pub fn run(test: impl AsyncFnOnce(&mut Rig)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut rig = Rig::new().await;
        tokio::time::timeout(Duration::from_secs(240), test(&mut rig)).await.expect("the test is stuck");
        rig.audit().await;
    });
}

impl Rig {
    async fn new() -> Rig {
        // In memory where there is such a place: what a flush costs is not what
        // is tested here.
        let memory = std::path::Path::new("/dev/shm");
        let folder = match memory.is_dir() {
            true => tempfile::tempdir_in(memory),
            false => tempfile::tempdir(),
        };
        let mut rig = Rig {
            provider: Provider::start().await,
            clock: ManualClock::default(),
            safe: Arc::default(),
            config: GateConfig { owner: "rig".into(), ..GateConfig::default() },
            doubles_allowed: false,
            shelf: Arc::default(),
            folder: folder.unwrap(),
            store: None,
            host: None,
        };
        rig.open();
        rig
    }

    fn open(&mut self) {
        self.open_after(false);
    }

    fn open_after(&mut self, restore: bool) {
        let mut options = SqliteOptions::new(self.folder.path().join("ledger.db"));
        options.clock = Arc::new(self.clock.clone());
        options.readers = 1;
        options.after_restore = restore;
        self.store = Some(SqliteStore::open(options).unwrap());
        self.host = Some(self.another_host());
    }

    /// A host beside the one that is there, over the same store.
    pub fn another_host(&self) -> Host {
        self.host_over(Arc::new(self.store().clone()))
    }

    /// A host over this store.
    pub fn host_over(&self, store: Arc<dyn Store>) -> Host {
        let authority = self.provider.address.to_string();
        Host::start(store, self.shelf.clone(), self.safe.clone(), authority, self.config.clone())
    }

    pub fn host(&self) -> &Host {
        self.host.as_ref().unwrap()
    }

    pub fn store(&self) -> &SqliteStore {
        self.store.as_ref().unwrap()
    }

    /// The host's process dies and another opens the store.
    pub async fn crash_and_restart(&mut self) {
        self.host.take().unwrap().die().await;
        self.store.take().unwrap().close().await;
        self.open();
        self.tend(true).await;
    }

    /// A copy of the ledger as it stands, taken while nobody has it open.
    pub async fn backup(&mut self) {
        self.host.take().unwrap().die().await;
        self.store.take().unwrap().close().await;
        let file = |name: &str| self.folder.path().join(name);
        std::fs::copy(file("ledger.db"), file("backup.db")).unwrap();
        self.open();
    }

    /// The host dies, the copy is put back, and a host opens it. `told`: by
    /// somebody who says so, with nothing left that could find it out.
    pub async fn restore(&mut self, told: bool) {
        self.host.take().unwrap().die().await;
        self.store.take().unwrap().close().await;
        let file = |name: &str| self.folder.path().join(name);
        std::fs::copy(file("backup.db"), file("ledger.db")).unwrap();
        for left in ["ledger.db-wal", "ledger.db-shm"] {
            let _ = std::fs::remove_file(file(left));
        }
        if told {
            std::fs::remove_file(file("ledger.db.opening")).unwrap();
        }
        self.open_after(told);
        self.tend(true).await;
    }

    /// The host dies and nobody notices but by its leases; another host is left.
    pub async fn crash_and_leave_to_another(&mut self) {
        self.host.take().unwrap().die().await;
        self.last_words().await;
        self.host = Some(self.another_host());
        self.clock.advance(self.config.lease.length + self.config.lease.margin + Duration::from_secs(60));
        self.tend(false).await;
    }

    /// The host's process dies wherever it is, and comes again over a store that
    /// other hosts have open, too.
    pub async fn another_life(&mut self) {
        self.host.take().unwrap().die().await;
        self.last_words().await;
        self.host = Some(self.another_host());
    }

    /// Waits until the store has made what hosts that died had asked of it.
    pub async fn last_words(&self) {
        // It fails, but not before its turn.
        let nobody = ActionId(uuid::Uuid::nil());
        let _ = self.store().request_cancel(&tenant(), nobody, "nobody").await;
    }

    /// Another configuration from now on.
    pub fn reconfigure(&mut self, change: impl FnOnce(&mut GateConfig)) {
        change(&mut self.config);
        self.host = Some(self.another_host());
    }

    /// One look of the reaper.
    pub async fn tend(&self, all_leases_over: bool) -> usize {
        self.host().run(async move |gate| gate.tend(all_leases_over).await.unwrap()).await
    }

    // ---- what people and agents do ------------------------------------------

    pub async fn install(&self, name: &str, grant: &GrantText, script: Script) -> InstalledTool {
        self.install_version(name, "1.0.0", grant, script).await
    }

    pub async fn install_version(
        &self,
        name: &str,
        version: &str,
        grant: &GrantText,
        script: Script,
    ) -> InstalledTool {
        let bytes = self.shelf.put(name, version, script);
        let grant = grant.text(self.provider.port());
        self.host()
            .run(async move |gate: Gate| {
                let candidate = Candidate { name: None, bytes, grant: Some(grant) };
                // The operator of these tests says yes to everything.
                let consent = Consent::To(gate.prospect(&tenant(), &candidate).await.unwrap().confirm);
                gate.install(&tenant(), &principal("ops"), candidate, &consent).await.unwrap()
            })
            .await
    }

    pub async fn put_grant(&self, name: &str, grant: &GrantText) {
        let (name, grant) = (tool(name), grant.text(self.provider.port()));
        self.host()
            .run(async move |gate: Gate| {
                gate.put_grant(&tenant(), &principal("ops"), &name, &grant).await.unwrap()
            })
            .await;
    }

    pub async fn try_propose(&self, proposal: Proposal) -> Result<ProposedAction, GateError> {
        self.host().run(async move |gate: Gate| gate.propose(proposal).await).await
    }

    pub async fn propose(&self, name: &str, arguments: Value) -> Action {
        let key = format!("key-{name}-{arguments}");
        self.try_propose(proposal(name, arguments, &key)).await.unwrap().action
    }

    pub async fn approve(&self, id: ActionId, by: &str) -> Result<Action, GateError> {
        let by = principal(by);
        self.host().run(async move |gate: Gate| gate.approve(&tenant(), id, &by, None, None).await).await
    }

    pub async fn decline(&self, id: ActionId, by: &str) -> Result<Action, GateError> {
        let by = principal(by);
        self.host().run(async move |gate: Gate| gate.decline(&tenant(), id, &by, "no").await).await
    }

    pub async fn cancel(&self, id: ActionId) -> Result<Action, GateError> {
        self.host()
            .run(async move |gate: Gate| {
                gate.cancel(&tenant(), id, &principal("agent"), "changed my mind").await
            })
            .await
    }

    pub fn spawn_execute(&self, id: ActionId, wait: Duration) -> JoinHandle<Result<Execution, GateError>> {
        self.host().spawn(async move |gate: Gate| gate.execute(&tenant(), id, wait).await)
    }

    pub async fn execute(&self, id: ActionId) -> Result<Execution, GateError> {
        self.spawn_execute(id, LONG).await.unwrap()
    }

    /// Executes once and does not wait for what the reaper would do later.
    pub async fn attempt(&self, id: ActionId) -> Action {
        let _ =
            self.host().run(async move |gate: Gate| gate.execute(&tenant(), id, Duration::ZERO).await).await;
        self.quiet(id).await
    }

    /// Executes, and does not even wait for its own run.
    pub async fn attempt_briefly(&self, id: ActionId) -> Result<Execution, GateError> {
        self.host()
            .run(async move |gate: Gate| gate.execute(&tenant(), id, Duration::from_millis(2)).await)
            .await
    }

    pub async fn resolve(&self, id: ActionId, ordinal: u32, word: Word) -> Result<Action, GateError> {
        let effects = self.effects(id).await;
        let send = effects.iter().find(|effect| effect.ordinal.0 == ordinal).map(|effect| effect.send.0);
        self.resolve_send(id, ordinal, send, word, "ticket 4711").await
    }

    pub async fn resolve_send(
        &self,
        id: ActionId,
        ordinal: u32,
        send: Option<u32>,
        word: Word,
        evidence: &str,
    ) -> Result<Action, GateError> {
        let resolution = Resolution {
            ordinal: countersign_domain::id::Ordinal(ordinal),
            send: send.map(countersign_domain::id::SendNumber),
            word,
            evidence: evidence.into(),
        };
        self.host()
            .run(async move |gate: Gate| gate.resolve(&tenant(), id, &principal("ops"), resolution).await)
            .await
    }

    pub async fn store_now(&self) -> countersign_domain::time::Timestamp {
        self.store().now().await.unwrap()
    }

    // ---- looking ---------------------------------------------------------------

    pub async fn row(&self, id: ActionId) -> Action {
        self.store().action(&tenant(), id).await.unwrap().unwrap()
    }

    pub async fn effects(&self, id: ActionId) -> Vec<EffectRecord> {
        self.store().effects(&tenant(), id, false).await.unwrap()
    }

    pub async fn history(&self, id: ActionId) -> Vec<EffectRecord> {
        self.store().effects(&tenant(), id, true).await.unwrap()
    }

    pub async fn events(&self, id: ActionId) -> Vec<Event> {
        self.store().events_of(&tenant(), id, 0, 1000).await.unwrap()
    }

    /// The names of the facts, in order.
    pub async fn facts(&self, id: ActionId) -> Vec<String> {
        let fact = |event: Event| {
            let body: Value = serde_json::from_str(&event.body).unwrap();
            body["fact"].as_str().unwrap().to_owned()
        };
        self.events(id).await.into_iter().map(fact).collect()
    }

    /// Waits until nobody executes the action.
    pub async fn quiet(&self, id: ActionId) -> Action {
        self.until(id, |action| action.state != State::Executing).await
    }

    /// Waits until the action is as asked; woken by the store's own words.
    pub async fn until(&self, id: ActionId, is: impl Fn(&Action) -> bool) -> Action {
        let mut changes = self.store().subscribe();
        loop {
            let action = self.row(id).await;
            if is(&action) {
                return action;
            }
            match tokio::time::timeout(LONG, changes.recv()).await {
                Ok(change) => drop(change.unwrap()),
                Err(_) => panic!("nothing changes: {:#?}", self.row(id).await),
            }
        }
    }

    /// Lets the reaper look and the time pass until the action ends or waits for
    /// a person.
    pub async fn settle(&self, id: ActionId) -> Action {
        let began = std::time::Instant::now();
        while began.elapsed() < LONG {
            let action = self.quiet(id).await;
            if action.state.is_terminal() {
                return action;
            }
            if action.state == State::OutcomeUnknown && !self.goes_on_by_itself(&action).await {
                // Row and effects are two looks.
                if self.row(id).await.version_counter == action.version_counter {
                    return action;
                }
                continue;
            }
            if let Some(due) = action.next_attempt {
                let now = self.store().now().await.unwrap();
                self.clock.advance(due.since(now));
            }
            if action.state == State::Approved {
                let _ = self.attempt(id).await;
                continue;
            }
            let before = action.version_counter;
            self.tend(false).await;
            // A host looks again now and then, too: what was under way at this
            // look may end without a word about it.
            let moved = self.until(id, |action| action.version_counter != before);
            let _ = tokio::time::timeout(Duration::from_millis(20), moved).await;
        }
        panic!("it does not settle: {:?}", self.row(id).await)
    }

    /// Lets it go on by itself as far as it does, until it says in its row that it
    /// waits for a person.
    pub async fn left_to_a_person(&self, id: ActionId) -> Action {
        let action = self.settle(id).await;
        if let Some(due) = action.next_attempt.filter(|_| action.waits_for() != Some(WaitsFor::Person)) {
            self.clock.advance(due.since(self.store_now().await));
            self.tend(false).await;
        }
        self.until(id, |action| action.waits_for() == Some(WaitsFor::Person)).await
    }

    async fn goes_on_by_itself(&self, action: &Action) -> bool {
        let now = self.store().now().await.unwrap();
        let effects = self.effects(action.id).await;
        let mut unknown = effects.iter().filter(|effect| effect.status == EffectStatus::Unknown);
        if action.repeats_left == 0 || action.next_attempt.is_none() {
            return false;
        }
        unknown.clone().any(|effect| effect.terms.class == RecoveryClass::Verifiable)
            || action.cancel_requested.is_none()
                && unknown.all(|effect| {
                    effect.terms.class == RecoveryClass::ProviderIdempotent
                        && effect.window_ends().is_some_and(|end| action.next_attempt.unwrap().max(now) < end)
                })
    }

    /// What holds at the end of every test.
    async fn audit(&self) {
        let list = ListActions { limit: 1000, ..ListActions::default() };
        for action in self.store().actions(&tenant(), list).await.unwrap() {
            let events = self.events(action.id).await;
            event::verify(&tenant(), action.id, &events, action.state)
                .unwrap_or_else(|broken| panic!("action {}: {broken}", action.id));
            assert_eq!(events.len(), action.event_seq as usize, "an event per transition");
            let effects = self.effects(action.id).await;
            let open = effects.iter().filter(|effect| effect.is_open()).count();
            if !matches!(action.state, State::Executing | State::OutcomeUnknown) {
                let given_up = action.error.as_ref().is_some_and(|error| error.code == "outcome_never_known");
                assert!(open == 0 || given_up, "{} hides an open effect", action.state);
            }
            let standing = effects.iter().filter(|effect| effect.stands()).count();
            assert_eq!(action.standing_writes as usize, standing, "the row counts what stands");
        }
        let acted = self.provider.acted();
        for (n, one) in acted.iter().enumerate() {
            assert!(self.doubles_allowed || !acted[..n].contains(one), "done twice: {one:?} of {acted:#?}");
        }
    }
}

pub fn tenant() -> TenantId {
    "default".parse().unwrap()
}

pub fn principal(name: &str) -> Principal {
    name.parse().unwrap()
}

pub fn tool(name: &str) -> ToolName {
    name.parse().unwrap()
}

pub fn arguments(value: &Value) -> CanonicalJson {
    CanonicalJson::parse(value.to_string(), Limits::bytes(1 << 20)).unwrap()
}

/// What the agent proposes.
pub fn proposal(name: &str, values: Value, key: &str) -> Proposal {
    Proposal {
        tenant: tenant(),
        proposer: principal("agent"),
        actor: principal("agent"),
        tool: tool(name),
        version: None,
        arguments: arguments(&values),
        key: ActionKey::Key(key.into()),
        run_by_itself: false,
        compensates: None,
        supersedes: None,
    }
}

/// An amount, for the refund tool.
pub fn amount(cents: u32) -> Value {
    json!({"amount": cents})
}

/// The action of an execution that ended.
#[track_caller]
pub fn ended(execution: Result<Execution, GateError>) -> Action {
    match execution.unwrap() {
        Execution::Ended { action, .. } => *action,
        Execution::Running(action) => panic!("it still runs: {action:?}"),
    }
}

/// The code of an error.
#[track_caller]
pub fn code<T: std::fmt::Debug>(result: Result<T, GateError>) -> &'static str {
    result.unwrap_err().code()
}

/// The code in the row.
pub fn row_code(action: &Action) -> &str {
    action.error.as_ref().map_or("", |error| error.code.as_str())
}
