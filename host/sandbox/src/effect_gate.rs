//! The one door out. What a component asks for goes through here whole, and
//! comes back whole; the sandbox has no other way to reach anything.

use async_trait::async_trait;
use countersign_domain::effect::{Effect, Passage};

/// Decides about one effect, makes it happen or not, and records what came of it
/// before it answers.
///
/// The sandbox calls it from a task of its own, one effect at a time per run,
/// and waits for it even when the component is gone by then. Dropping the
/// future is not how it is stopped.
#[async_trait]
pub trait EffectGate: Send + Sync + 'static {
    /// Lets an effect pass, or not. The answer is what the component will see on
    /// every replay of this action.
    async fn submit(&self, effect: Effect) -> Passage;
}
