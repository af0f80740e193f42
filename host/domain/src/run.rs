//! One run of a component: what it is given, and how it can end. Shared words
//! of the gate, which decides to run, and the sandbox, which runs.

use serde::{Deserialize, Serialize};

use crate::canonical::CanonicalJson;
use crate::id::{ActionId, ComponentDigest, Principal, TenantId};
use crate::time::Timestamp;

/// What a component may know about the action it runs for: nothing in it
/// differs between attempts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunContext {
    /// Whose action.
    pub tenant: TenantId,
    /// Which action.
    pub action: ActionId,
    /// The caller's run.
    pub run: Option<String>,
    /// The caller's step.
    pub step: Option<String>,
    /// In whose name.
    pub actor: Principal,
    /// The component's clock before its first record.
    pub started: Timestamp,
    /// The seed of its randomness.
    pub seed: [u8; 32],
}

/// The resources one run may use. Units in the names' documentation; the
/// defaults and their reasons stand in [`crate::grant`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunLimits {
    /// Linear memory over all memories together, bytes.
    pub memory: u64,
    /// The component's own running time.
    pub cpu: std::time::Duration,
    /// The whole call, waiting included.
    pub wall: std::time::Duration,
    /// Bytes of a result.
    pub result: u64,
    /// Bytes kept of what it prints and logs, per stream.
    pub log: u64,
    /// Bytes of one request body.
    pub request_body: u64,
}

/// A call of a component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Which code.
    pub component: ComponentDigest,
    /// The canonical arguments.
    pub arguments: CanonicalJson,
    /// What it may know.
    pub context: RunContext,
    /// What it may use.
    pub limits: RunLimits,
    /// Header names, lower-case, that it cannot set.
    pub forbidden_headers: std::sync::Arc<std::collections::BTreeSet<String>>,
}

/// How a component's own words end a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "failure", rename_all = "snake_case")]
pub enum ToolFailure {
    /// The arguments are not what it takes.
    InvalidArguments(String),
    /// A business rule says no.
    Refused(String),
    /// Not now.
    TryLater {
        /// Its words.
        reason: String,
        /// Its wish, seconds.
        after: Option<u32>,
    },
    /// It cannot go on.
    Broken(String),
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// It returned a result: JSON text, canonical.
    Returned(CanonicalJson),
    /// It returned a failure.
    Failed(ToolFailure),
    /// It trapped, or met a limit.
    Trapped {
        /// What happened, without anything from inside the component's memory.
        why: String,
        /// Which limit it met, if it met one.
        limit: Option<&'static str>,
    },
    /// The gate stopped it: [`crate::effect::Passage::Stopped`].
    Stopped,
    /// The host could not run it: no capacity, or the component does not load.
    Unavailable(String),
}

/// What a run left behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunReport {
    /// How it ended.
    pub ended: Ended,
    /// What it printed and logged, bounded, for the action's log.
    pub log: Vec<String>,
}
