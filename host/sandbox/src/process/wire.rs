//! What the host and a guest process say to each other, and what the host makes
//! of what it is told.
//!
//! JSON, like everything else that leaves a room: effects and passages are
//! tagged by name, which formats without names cannot read back, and the weight
//! of a message is a body, which is text in the domain's own form anyway.
//!
//! The host says what is true. A guest process may say anything: what it says
//! about a run is bounded and cleaned here as if the component had said it.

use std::collections::BTreeSet;
use std::sync::Arc;

use countersign_domain::canonical::CanonicalJson;
use countersign_domain::effect::{Answer, Effect, EffectRecord, Passage};
use countersign_domain::id::ComponentDigest;
use countersign_domain::run::{Call, Ended, RunContext, RunLimits, ToolFailure};
use countersign_domain::tool::{Manifest, Preview};
use serde::{Deserialize, Serialize};

use crate::error::SandboxError;
use crate::reconcile::Verdict;
use crate::{manifest, reconcile, run};

/// The first message to a guest process: how to build its engine.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Start {
    pub(super) max_runs: u32,
    pub(super) max_memory: u64,
    pub(super) epoch_tick_micros: u64,
}

/// From the host.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToGuest {
    /// Take over the component whose compiled form comes with this message.
    Load(ComponentDigest),
    /// Begin a call.
    Ask { id: u64, ask: Box<Ask> },
    /// The answer to the call's open effect.
    Passage { id: u64, passage: Passage },
    /// The host's side failed over the call's open effect.
    NoPassage { id: u64 },
    /// Nobody waits for the call any more.
    Cancel { id: u64 },
}

/// What is asked of a component.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Ask {
    Describe(ComponentDigest),
    Preview(Given),
    Invoke(Given),
    Reconcile(Given, Box<EffectRecord>),
}

/// A [`Call`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Given {
    component: ComponentDigest,
    arguments: String,
    context: RunContext,
    limits: RunLimits,
    #[serde(with = "shared")]
    forbidden_headers: Arc<BTreeSet<String>>,
}

/// What many calls share on one side, and is read anew on the other.
mod shared {
    use super::{Arc, BTreeSet, Deserialize, Serialize};

    pub(super) fn serialize<S: serde::Serializer>(
        names: &Arc<BTreeSet<String>>,
        s: S,
    ) -> Result<S::Ok, S::Error> {
        (**names).serialize(s)
    }

    pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(
        d: D,
    ) -> Result<Arc<BTreeSet<String>>, D::Error> {
        BTreeSet::deserialize(d).map(Arc::new)
    }
}

impl From<Call> for Given {
    fn from(call: Call) -> Given {
        Given {
            component: call.component,
            arguments: call.arguments.into_string(),
            context: call.context,
            limits: call.limits,
            forbidden_headers: call.forbidden_headers,
        }
    }
}

impl From<Given> for Call {
    fn from(given: Given) -> Call {
        Call {
            component: given.component,
            arguments: CanonicalJson::from_trusted(given.arguments),
            context: given.context,
            limits: given.limits,
            forbidden_headers: given.forbidden_headers,
        }
    }
}

/// From a guest process.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum FromGuest {
    /// A component could not be taken over.
    NotLoaded { component: ComponentDigest, why: String },
    /// The call asks for an effect, and waits.
    Effect { id: u64, effect: Effect },
    /// The call is over.
    Ended { id: u64, said: Said },
}

/// How a call ended, as told.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Said {
    Manifest(Result<Manifest, Objection>),
    Preview(Result<Preview, End>),
    Report { end: End, log: Vec<String> },
    Verdict { verdict: Result<Word, End>, log: Vec<String> },
    Cancelled,
}

/// A [`SandboxError`] about a component.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Objection {
    Refused { what: String, why: String },
    Busy(String),
}

impl From<SandboxError> for Objection {
    fn from(error: SandboxError) -> Objection {
        match error {
            SandboxError::Refused { what, why } => Objection::Refused { what, why },
            other => Objection::Busy(other.to_string()),
        }
    }
}

impl From<Objection> for SandboxError {
    fn from(objection: Objection) -> SandboxError {
        match objection {
            Objection::Refused { what, why } => SandboxError::refused(words(what), words(why)),
            Objection::Busy(why) => SandboxError::Busy(words(why)),
        }
    }
}

/// An [`Ended`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum End {
    Returned(String),
    Failed(Failure),
    Trapped { why: String, limit: Option<String> },
    Stopped,
    Unavailable(String),
}

impl From<Ended> for End {
    fn from(ended: Ended) -> End {
        match ended {
            Ended::Returned(json) => End::Returned(json.into_string()),
            Ended::Failed(failure) => End::Failed(failure.into()),
            Ended::Trapped { why, limit } => End::Trapped { why, limit: limit.map(str::to_owned) },
            Ended::Stopped => End::Stopped,
            Ended::Unavailable(why) => End::Unavailable(why),
        }
    }
}

/// A [`ToolFailure`], whose own form is for objects only.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Failure {
    InvalidArguments(String),
    Refused(String),
    TryLater { reason: String, after: Option<u32> },
    Broken(String),
}

impl From<ToolFailure> for Failure {
    fn from(failure: ToolFailure) -> Failure {
        match failure {
            ToolFailure::InvalidArguments(text) => Failure::InvalidArguments(text),
            ToolFailure::Refused(text) => Failure::Refused(text),
            ToolFailure::TryLater { reason, after } => Failure::TryLater { reason, after },
            ToolFailure::Broken(text) => Failure::Broken(text),
        }
    }
}

impl From<Failure> for ToolFailure {
    fn from(failure: Failure) -> ToolFailure {
        match failure {
            Failure::InvalidArguments(text) => ToolFailure::InvalidArguments(text),
            Failure::Refused(text) => ToolFailure::Refused(text),
            Failure::TryLater { reason, after } => ToolFailure::TryLater { reason, after },
            Failure::Broken(text) => ToolFailure::Broken(text),
        }
    }
}

/// A [`Verdict`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Word {
    Done(Answer),
    NotDone,
    Unknown,
}

impl From<Verdict> for Word {
    fn from(verdict: Verdict) -> Word {
        match verdict {
            Verdict::Done(answer) => Word::Done(answer),
            Verdict::NotDone => Word::NotDone,
            Verdict::Unknown => Word::Unknown,
        }
    }
}

impl From<Word> for Verdict {
    fn from(word: Word) -> Verdict {
        match word {
            Word::Done(answer) => reconcile::plausible(answer).map_or(Verdict::Unknown, Verdict::Done),
            Word::NotDone => Verdict::NotDone,
            Word::Unknown => Verdict::Unknown,
        }
    }
}

/// The limits that a run can meet, by name.
const LIMITS: &[&str] = &[
    "wall",
    "cpu",
    "memory",
    "table",
    "stack",
    "resources",
    "fields",
    "host_call_bytes",
    "handles",
    "random",
    "capability",
    "result",
];
/// The longest text about an end that is kept, bytes: room for every one of the
/// room's own.
const WORDS: usize = 4 << 10;

/// One text, as long as it may be, on one line.
fn words(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(WORDS));
    if text.contains(char::is_control) { text.replace(char::is_control, " ") } else { text }
}

/// How a call ended.
pub(super) fn ended(end: End, limits: &RunLimits) -> Ended {
    match end {
        // Canonical, or made so; within its limit, or not a result.
        End::Returned(text) => run::result(Ok(text), limits),
        End::Failed(failure) => Ended::Failed(run::bounded(failure.into())),
        End::Trapped { why, limit } => Ended::Trapped {
            why: words(why),
            limit: limit.and_then(|name| LIMITS.iter().copied().find(|known| *known == name)),
        },
        End::Stopped => Ended::Stopped,
        End::Unavailable(why) => Ended::Unavailable(words(why)),
    }
}

/// What it printed and logged: three streams, each within its limit and a line.
pub(super) fn log(said: Vec<String>, limits: &RunLimits) -> Vec<String> {
    let most = limits.log.saturating_add(2 * WORDS as u64).saturating_mul(3);
    let mut kept = 0u64;
    let mut lines = Vec::with_capacity(said.len());
    for mut line in said {
        if line.contains(|c: char| c.is_control() && c != '\t') {
            line = words(line);
        }
        kept = kept.saturating_add(line.len() as u64);
        if kept > most {
            break;
        }
        lines.push(line);
    }
    lines
}

/// A tool's manifest, held to the bounds again.
pub(super) fn manifest(said: Result<Manifest, Objection>) -> Result<Manifest, SandboxError> {
    manifest::checked(said?)
}

/// A tool's preview, held to the bounds again.
pub(super) fn preview(said: Result<Preview, End>, limits: &RunLimits) -> Result<Preview, Ended> {
    match said {
        Ok(preview) => {
            manifest::checked_preview(preview).map_err(|why| Ended::Failed(ToolFailure::Broken(why)))
        }
        Err(end) => Err(match ended(end, limits) {
            // No preview is a result.
            Ended::Returned(_) => Ended::Unavailable("it ended without a preview".to_owned()),
            other => other,
        }),
    }
}
