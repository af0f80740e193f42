//! The rules of passage: who may pass, exactly as approved, at most once, and
//! what is done when nobody knows.
//!
//! This room knows neither wasm nor axum. A component is a trait to it
//! ([`Components`]), and so are the points at which a test may stop it
//! ([`Signals`]).
//!
//! Follow an action in this order: [`propose`] (with [`plan`]), [`decide`],
//! [`execute`], [`attempt`] — the heart: one call of a component, from claim to
//! record —, [`conclude`]; then [`reaper`], [`reconciler`] and [`resolve`] for
//! what went wrong, and [`announce`] for whom to tell.
//! [`dispatch`] is the only code here that can send anything.

#![deny(missing_docs)]

pub mod announce;
pub mod attempt;
pub mod components;
pub mod conclude;
pub mod decide;
pub mod difference;
pub mod dispatch;
mod error;
pub mod execute;
pub mod grants;
mod heartbeat;
pub mod install;
pub mod places;
pub mod plan;
pub mod propose;
pub mod quota;
pub mod rates;
pub mod reaper;
pub mod reconciler;
mod release;
pub mod request;
pub mod resolve;
pub mod signals;
pub mod waiters;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use countersign_domain::id::AttemptId;
use countersign_domain::lease::LeaseTerms;
use countersign_domain::retry::RetryTerms;
use countersign_store::Store;

pub use announce::Announce;
pub use components::{ComponentError, Components, Effects, LookupReport, Verdict};
pub use error::GateError;
pub use signals::{Point, Signals};

/// What the gate is told at start.
#[derive(Debug, Clone)]
pub struct GateConfig {
    /// Who this host is, for people: `host/pid`.
    pub owner: String,
    /// How long attempts live.
    pub lease: LeaseTerms,
    /// How often, and how soon again.
    pub retry: RetryTerms,
    /// Repeats and lookups of an action's unknown effects without a person.
    /// Chosen: ten, which with doubling rests spans about five minutes of a
    /// provider's trouble.
    pub repeats: u32,
    /// How often the reaper looks when nothing wakes it.
    pub reap_every: Duration,
    /// Attempts that this host runs at once. Chosen: 256; each costs a suspended
    /// component, about 20 KiB and a place in the engine's pool.
    pub concurrent_attempts: usize,
    /// Told of what waits for a person; `None`: nobody is.
    pub announce: Option<Arc<dyn Announce>>,
    /// What no grant may exceed.
    pub ceiling: countersign_domain::grant::Ceiling,
    /// Proposals that this host plans at once: each runs a component until its
    /// first write. Chosen: half of the attempts; the pool has room for both.
    pub concurrent_plans: usize,
    /// What one tenant may take up. Unlimited unless somebody says otherwise:
    /// what is right depends on who is let in.
    pub quotas: quota::Quotas,
}

impl Default for GateConfig {
    fn default() -> GateConfig {
        GateConfig {
            owner: "host".into(),
            lease: LeaseTerms::default(),
            retry: RetryTerms::default(),
            repeats: 10,
            reap_every: Duration::from_millis(250),
            concurrent_attempts: 256,
            announce: None,
            ceiling: countersign_domain::grant::Ceiling::default(),
            concurrent_plans: 128,
            quotas: quota::Quotas::of(quota::Quota::unlimited()),
        }
    }
}

/// The gate. Cheap to clone; every surface and every worker holds one.
#[derive(Clone)]
pub struct Gate {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    store: Arc<dyn Store>,
    components: Arc<dyn Components>,
    dispatcher: dispatch::Dispatcher,
    grants: grants::Grants,
    schemas: propose::Schemas,
    signals: Option<Arc<dyn Signals>>,
    waiters: waiters::Waiters,
    /// One place per attempt that may run at once.
    places: places::Places,
    /// One per proposal that may be planned at once.
    planning: places::Places,
    admission: quota::Admission,
    /// Attempts that this very host runs.
    live: Arc<Mutex<HashSet<AttemptId>>>,
    /// Actions that this very host is about to claim, or looks up.
    at_work: reaper::Claiming,
    /// Actions that this very host tells somebody of.
    telling: reaper::Claiming,
    /// Wakes the reaper before its time.
    nudge: tokio::sync::Notify,
    /// Set once: no new claims.
    draining: tokio::sync::watch::Sender<bool>,
    /// Set once: attempts are given back as soon as nothing of theirs is sent.
    releasing: tokio::sync::watch::Sender<bool>,
    config: GateConfig,
}

impl Gate {
    /// A gate over a store, a way to run components, and a sender.
    pub fn new(
        store: Arc<dyn Store>,
        components: Arc<dyn Components>,
        dispatcher: dispatch::Dispatcher,
        signals: Option<Arc<dyn Signals>>,
        config: GateConfig,
    ) -> Gate {
        let waiters = waiters::Waiters::default();
        waiters.clone().listen(store.subscribe());
        Gate {
            inner: Arc::new(Inner {
                places: places::Places::new(config.concurrent_attempts),
                planning: places::Places::new(config.concurrent_plans),
                admission: quota::Admission::default(),
                live: Arc::default(),
                at_work: Arc::default(),
                telling: Arc::default(),
                store,
                components,
                dispatcher,
                grants: grants::Grants::default(),
                schemas: propose::Schemas::default(),
                signals,
                waiters,
                nudge: tokio::sync::Notify::new(),
                draining: tokio::sync::watch::Sender::new(false),
                releasing: tokio::sync::watch::Sender::new(false),
                config,
            }),
        }
    }

    /// The store, for reading.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.inner.store
    }

    /// Attempts that run in this host now.
    pub fn running(&self) -> usize {
        self.inner.places.held()
    }

    /// Takes no new claim from now on, and returns when every attempt that runs
    /// has ended: its send finished, its answer recorded.
    pub async fn drain(&self) {
        self.inner.draining.send_replace(true);
        // Every place free means that no attempt runs.
        self.inner.places.all_free().await;
    }
}

impl Inner {
    pub(crate) fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    pub(crate) fn is_live(&self, attempt: AttemptId) -> bool {
        self.live.lock().unwrap_or_else(PoisonError::into_inner).contains(&attempt)
    }

    /// Lets a test stop here; nothing in a build for use.
    pub(crate) async fn reached(&self, point: Point, ordinal: Option<countersign_domain::id::Ordinal>) {
        if let Some(signals) = &self.signals {
            signals.reached(point, ordinal).await;
        }
    }
}

/// A number in `0.0..1.0` for jitter; nothing is decided by it.
pub(crate) fn jitter() -> f64 {
    let bytes = uuid::Uuid::new_v4();
    f64::from(u32::from_be_bytes([
        bytes.as_bytes()[0],
        bytes.as_bytes()[1],
        bytes.as_bytes()[2],
        bytes.as_bytes()[3],
    ])) / (f64::from(u32::MAX) + 1.0)
}
