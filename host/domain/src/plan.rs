//! The plan: the first write that a component would make, captured before
//! anybody approves. What is later sent first must equal it.

use serde::{Deserialize, Serialize};

use crate::effect::RecordedRequest;
use crate::id::EffectFingerprint;

/// What is known before approval about what will be sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The first write; `None` where the component made none, or where looking
    /// for it would already have sent something.
    pub first_write: Option<PlannedWrite>,
    /// Writes beyond the first that may follow, contents not known yet, by the
    /// route they go to. Shown to every approver.
    pub may_follow: Vec<MayFollow>,
    /// The component asked for an effect before its first write, and the grant
    /// lets nothing out while planning: so the first write is not known.
    pub stopped_early: bool,
}

/// The write that was captured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedWrite {
    /// What will be compared.
    pub fingerprint: EffectFingerprint,
    /// What is shown.
    pub request: RecordedRequest,
}

/// More writes than the one that is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MayFollow {
    /// How many at the most.
    pub up_to: u32,
    /// Where to: host, methods and path of the route.
    pub to: String,
}

impl Plan {
    /// Whether any write at all may be sent under this plan.
    pub fn allows_writes(&self) -> bool {
        self.first_write.is_some() || !self.may_follow.is_empty()
    }
}
