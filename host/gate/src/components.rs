//! What the gate needs of whoever runs components. The sandbox has the same
//! words from its side; the two meet where the server is wired.

use std::sync::Arc;

use async_trait::async_trait;
use countersign_domain::effect::{Answer, Effect, EffectRecord, Passage};
use countersign_domain::id::ComponentDigest;
use countersign_domain::run::{Call, Ended, RunReport};
use countersign_domain::tool::{Inspection, Preview};

/// Why a component cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ComponentError {
    /// It is not what may be installed: no component, or it wants what no tool
    /// gets.
    #[error("{0}")]
    Refused(String),
    /// The host cannot do it now.
    #[error("{0}")]
    Unavailable(String),
}

/// What a tool says about an effect whose outcome is unknown. A claim, not yet
/// evidence: whether the provider was asked is in the effects that it made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It happened, and this would have been the answer.
    Done(Answer),
    /// It did not happen.
    NotDone,
    /// Nobody knows yet.
    Unknown,
}

/// How a lookup ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LookupReport {
    /// What the tool says, or how the call ended without a word.
    pub verdict: Result<Verdict, Ended>,
    /// What it printed and logged, bounded.
    pub log: Vec<String>,
}

/// Where a running component's effects go. One per attempt.
#[async_trait]
pub trait Effects: Send + Sync + 'static {
    /// Asks for an effect. Effects of one run are asked for one after another;
    /// the answer is whole and recorded.
    async fn submit(&self, effect: Effect) -> Passage;
}

/// Whoever runs components.
#[async_trait]
pub trait Components: Send + Sync + 'static {
    /// Looks at a component's bytes and lets it describe itself, with nothing
    /// granted.
    async fn inspect(&self, bytes: Arc<[u8]>) -> Result<Inspection, ComponentError>;

    /// Whether [`Components::load`] was done for it.
    fn is_loaded(&self, component: ComponentDigest) -> bool;

    /// Makes a component ready. Checks that the bytes have this digest.
    async fn load(&self, component: ComponentDigest, bytes: Arc<[u8]>) -> Result<(), ComponentError>;

    /// The tool's own words about a call; no effects, a tenth of a second.
    /// `None` if it has none to say or fails to.
    async fn preview(&self, call: Call) -> Option<Preview>;

    /// Runs a component to its end. Returns only when no effect that it asked
    /// for is outstanding.
    async fn invoke(&self, call: Call, effects: Arc<dyn Effects>) -> RunReport;

    /// Asks a component what became of one of its effects. It runs apart from
    /// every attempt; what it asks for goes to `effects`, which lets out reads
    /// only. One that cannot be asked gives [`Ended::Unavailable`].
    async fn reconcile(&self, call: Call, effect: &EffectRecord, effects: Arc<dyn Effects>) -> LookupReport;
}
