//! Stable codes by which every surface says why something did not go through,
//! and by which an action says why it ended.

/// Not JSON, or JSON that no two parsers read alike.
pub const INVALID_JSON: &str = "invalid_json";
/// No token, or one that is not known.
pub const UNAUTHENTICATED: &str = "unauthenticated";
/// The token does not allow it.
pub const NOT_PERMITTED: &str = "not_permitted";
/// Not there, or another tenant's.
pub const NOT_FOUND: &str = "not_found";
/// The action is in a state where this cannot be done.
pub const INVALID_STATE: &str = "invalid_state";
/// The same key came with another intent.
pub const IDEMPOTENCY_KEY_MISMATCH: &str = "idempotency_key_mismatch";
/// What would run is not what was approved.
pub const ACTION_CHANGED: &str = "action_changed";
/// The approval ran out.
pub const APPROVAL_EXPIRED: &str = "approval_expired";
/// Nobody knows whether an effect happened.
pub const EXECUTION_IN_DOUBT: &str = "execution_in_doubt";
/// The component asked for something else than it did before.
pub const REPLAY_DIVERGED: &str = "replay_diverged";
/// A write that nobody was told of.
pub const UNPLANNED_EFFECT: &str = "unplanned_effect";
/// A person gave up finding out.
pub const OUTCOME_NEVER_KNOWN: &str = "outcome_never_known";
/// What the caller saw is not what stands there now.
pub const FINGERPRINT_PRECONDITION: &str = "fingerprint_precondition";
/// Over a limit of size.
pub const TOO_LARGE: &str = "too_large";
/// The arguments do not fit the tool's schema.
pub const INVALID_ARGUMENTS: &str = "invalid_arguments";
/// The component imports or uses what no tool gets, or is none.
pub const COMPONENT_REFUSED: &str = "component_refused";
/// The grant is not one.
pub const INVALID_GRANT: &str = "invalid_grant";
/// It would give more than is given now, and nobody said yes to that.
pub const NEEDS_CONFIRMATION: &str = "needs_confirmation";
/// A part of the request is not of the form it must have.
pub const INVALID_REQUEST: &str = "invalid_request";
/// Over a quota.
pub const QUOTA_EXCEEDED: &str = "quota_exceeded";
/// The host cannot do it now.
pub const UNAVAILABLE: &str = "unavailable";

/// An approver declined.
pub const DECLINED: &str = "declined";
/// It was cancelled.
pub const CANCELLED: &str = "cancelled";
/// A new proposal replaced it.
pub const SUPERSEDED: &str = "superseded";
/// Its execution deadline passed.
pub const DEADLINE_PASSED: &str = "deadline_passed";
/// It failed as often as it may.
pub const RETRIES_EXHAUSTED: &str = "retries_exhausted";
/// The tool refused by a rule of its own.
pub const TOOL_REFUSED: &str = "tool_refused";
/// The tool says it cannot go on, or returned what is not a result.
pub const TOOL_BROKEN: &str = "tool_broken";
/// The tool asked to be tried later.
pub const TOOL_TRY_LATER: &str = "tool_try_later";
/// The tool trapped or met a limit.
pub const TOOL_TRAPPED: &str = "tool_trapped";
/// The provider could not be reached; nothing was sent.
pub const NOT_SENT: &str = "not_sent";
/// The worker that ran it is gone; nothing is in doubt.
pub const WORKER_LOST: &str = "worker_lost";
/// The tool ended before its first write could be shown.
pub const PLANNING_FAILED: &str = "planning_failed";
/// The action asked for more effects than its grant allows.
pub const TOO_MANY_EFFECTS: &str = "too_many_effects";
