//! What the gate needs of whoever runs components. The sandbox has the same
//! words from its side; the two meet where the server is wired.

use std::sync::Arc;

use async_trait::async_trait;
use countersign_domain::effect::{Effect, Passage};
use countersign_domain::id::ComponentDigest;
use countersign_domain::run::{Call, RunReport};
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
}
