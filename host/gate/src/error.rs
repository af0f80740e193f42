//! Why something did not pass, by what the caller can do about it.

use countersign_domain::action::{Action, State};
use countersign_domain::approval::MayNotDecide;
use countersign_domain::code;
use countersign_domain::id::{ActionId, Fingerprint, Intent};
use countersign_store::StoreError;

use crate::components::ComponentError;

/// Why something did not pass. The text is for the caller; causes are in
/// `source`, for the log.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GateError {
    /// There is no such tool, version or action for this tenant.
    #[error("there is no {what}")]
    NotFound {
        /// What was looked for, by the caller's own words.
        what: String,
    },
    /// The arguments do not fit the tool's input schema, or the tool says so.
    #[error("the arguments do not fit the tool: {why}")]
    InvalidArguments {
        /// JSON Pointer into the arguments.
        pointer: String,
        /// What is wrong there.
        why: String,
    },
    /// The same key names another intent already.
    #[error(
        "this idempotency key already names action {action}, whose intent {existing} differs from this request's \
         intent {requested}: use a new key for a new intent, or send the first request again unchanged"
    )]
    KeyMismatch {
        /// The action that has the key.
        action: ActionId,
        /// Its intent.
        existing: Intent,
        /// What was asked now.
        requested: Intent,
    },
    /// The action is somewhere else.
    #[error("action {action} is {state}: {hint}")]
    InvalidState {
        /// Which.
        action: ActionId,
        /// Where it is.
        state: State,
        /// What can be done.
        hint: String,
    },
    /// What the caller saw is not what stands there.
    #[error(
        "action {action} has fingerprint {current}, not the one you saw: load it again and decide about that"
    )]
    FingerprintPrecondition {
        /// Which.
        action: ActionId,
        /// What stands there.
        current: Fingerprint,
    },
    /// The caller may not decide about this one.
    #[error(transparent)]
    MayNotDecide(#[from] MayNotDecide),
    /// The approval ran out.
    #[error("the approval of action {action} ran out at {expired}: propose it again, or supersede it")]
    ApprovalExpired {
        /// Which.
        action: ActionId,
        /// When.
        expired: countersign_domain::time::Timestamp,
    },
    /// What would run is not what was proposed.
    #[error("action {action} is void: {what}; propose it again, or supersede it")]
    ActionChanged {
        /// Which.
        action: ActionId,
        /// What differs.
        what: String,
    },
    /// Nobody knows what came of a send.
    #[error(
        "the outcome of action {} is not known: {why}. Do not propose it again; it is settled by the provider's own \
         idempotency, by a lookup, or by a person", action.id
    )]
    InDoubt {
        /// The action.
        action: Box<Action>,
        /// Why.
        why: String,
    },
    /// The run that looks for the first write ended before it could be shown.
    #[error("the tool ended before anything could be proposed: {why}")]
    PlanningFailed {
        /// Its words, or what happened.
        why: String,
        /// Whether the same call may do better later.
        retryable: bool,
    },
    /// The grant's text is not a grant, or exceeds what operators allow.
    #[error("{0}")]
    InvalidGrant(String),
    /// The component is none, or wants what no tool gets.
    #[error("{0}")]
    ComponentRefused(String),
    /// What would be installed asks for more than what is in force.
    #[error(
        "tool {} would get more than it has now ({}); read what, and install it again with confirm={}",
        .0.name, .0.difference.summary(), .0.confirm
    )]
    NeedsYes(Box<crate::install::Prospect>),
    /// A part of the request has not the form it must have.
    #[error("{0}")]
    InvalidRequest(String),
    /// Somebody's word about an effect does not fit it any more.
    #[error("{0}")]
    Stale(String),
    /// Something with this name is there already and differs.
    #[error("{0}")]
    Conflict(String),
    /// Somebody has all that they may have; nothing was changed.
    #[error("over the quota `{quota}`: {why}. An operator can raise it: [quota] in countersign.toml")]
    QuotaExceeded {
        /// Its name in the configuration.
        quota: String,
        /// Whose, how much, and what to do.
        why: String,
        /// Whose: `tenant acme`, `tool refund`, `caller bot`, `actor ann`.
        whose: String,
        /// How much that one may have.
        limit: u32,
        /// When it is worth trying again.
        retry_after: std::time::Duration,
    },
    /// The host cannot do it now; nothing was changed.
    #[error("{what}")]
    Unavailable {
        /// What is wrong, and what to do.
        what: String,
        /// The cause, for the log.
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
}

impl GateError {
    /// The stable code.
    pub fn code(&self) -> &'static str {
        match self {
            GateError::NotFound { .. } => code::NOT_FOUND,
            GateError::InvalidArguments { .. } => code::INVALID_ARGUMENTS,
            GateError::KeyMismatch { .. } => code::IDEMPOTENCY_KEY_MISMATCH,
            GateError::InvalidState { .. } | GateError::Stale(_) | GateError::Conflict(_) => {
                code::INVALID_STATE
            }
            GateError::FingerprintPrecondition { .. } => code::FINGERPRINT_PRECONDITION,
            GateError::MayNotDecide(_) => code::NOT_PERMITTED,
            GateError::ApprovalExpired { .. } => code::APPROVAL_EXPIRED,
            GateError::ActionChanged { .. } => code::ACTION_CHANGED,
            GateError::InDoubt { .. } => code::EXECUTION_IN_DOUBT,
            GateError::PlanningFailed { .. } => code::PLANNING_FAILED,
            GateError::InvalidGrant(_) => code::INVALID_GRANT,
            GateError::ComponentRefused(_) => code::COMPONENT_REFUSED,
            GateError::NeedsYes(_) => code::NEEDS_CONFIRMATION,
            GateError::InvalidRequest(_) => code::INVALID_REQUEST,
            GateError::QuotaExceeded { .. } => code::QUOTA_EXCEEDED,
            GateError::Unavailable { .. } => code::UNAVAILABLE,
        }
    }

    /// Whether the very same request may do better later.
    pub fn retryable(&self) -> bool {
        match self {
            GateError::Unavailable { .. } => true,
            GateError::PlanningFailed { retryable, .. } => *retryable,
            _ => false,
        }
    }

    pub(crate) fn unavailable(what: impl Into<String>) -> GateError {
        GateError::Unavailable { what: what.into(), source: None }
    }

    pub(crate) fn no_action(action: ActionId) -> GateError {
        GateError::NotFound { what: format!("action {action}") }
    }
}

impl From<StoreError> for GateError {
    fn from(error: StoreError) -> GateError {
        match error {
            StoreError::NotFound { what } => GateError::NotFound { what },
            StoreError::Conflict { what } => GateError::Conflict(what),
            other => GateError::Unavailable { what: other.to_string(), source: Some(Box::new(other)) },
        }
    }
}

impl From<ComponentError> for GateError {
    fn from(error: ComponentError) -> GateError {
        match error {
            ComponentError::Refused(why) => GateError::ComponentRefused(why),
            ComponentError::Unavailable(what) => GateError::unavailable(what),
        }
    }
}
