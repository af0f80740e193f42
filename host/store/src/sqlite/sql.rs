//! Every statement, as text. A step's first statement compares and sets the
//! action's row; the row as it stands then is what the others work with.
//!
//! None says `returning`: SQLite builds a temporary table for that, each time,
//! which costs more than the statement. The row is read after it, under the same
//! lock.
//!
//! `?1` is the tenant and `?2` the action throughout. A time that has run out
//! is one that is not after now: `approval_expires > now` is still open.
//!
//! Long because it is a list: every statement stands here and nowhere else.

/// A list of columns, made once so that every statement gives the same row.
macro_rules! action_columns {
    () => {
        "tenant_id, id, state, version, event_seq, attempt, attempt_id, lease_expires, in_flight, cancel_requested, \
         attempts_left, repeats_left, next_attempt, first_write, unknown_effects, standing_writes, effects, \
         approved_fingerprint, approved_at, superseded_by, provider_reference, error_code, error_message, updated, \
         policy_epoch, approval_expires, execution_deadline, approvals_required, run_by_itself, created, fingerprint, \
         intent, action_key, tool, requested_version, tool_version, component_digest, grant_digest, actor, proposer, \
         supersedes, compensates, seed, preview, plan, arguments, result, rewound, announced, approvals_given"
    };
}
macro_rules! effect_columns {
    () => {
        "ordinal, kind, write, terms, fingerprint, request, provider_key, status, attempt_id, send, first_sent, \
         last_sent, may_have_arrived, unknown_since, answer, refusal, set_aside, evidence, recorded_at"
    };
}

/// The action was doubted for every commit that its tenant's ledger is known to
/// have lost, or is younger.
macro_rules! not_rewound {
    () => {
        "rewinds = (select t.rewinds from tenants t where t.tenant_id = actions.tenant_id)"
    };
}

// ---- the connection ---------------------------------------------------------

pub(crate) const BEGIN: &str = "begin immediate";
pub(crate) const COMMIT: &str = "commit";
pub(crate) const ROLLBACK: &str = "rollback";
pub(crate) const SAVEPOINT: &str = "savepoint step";
pub(crate) const RELEASE_SAVEPOINT: &str = "release step";
pub(crate) const ROLLBACK_TO_SAVEPOINT: &str = "rollback to step";
pub(crate) const FLUSH_COMMITS: &str = "pragma synchronous = full";
pub(crate) const WRITE_COMMITS: &str = "pragma synchronous = normal";
pub(crate) const CHECKPOINT: &str = "pragma wal_checkpoint(truncate)";

pub(crate) const CREATE_MIGRATIONS_TABLE: &str = "create table if not exists schema_migrations (
    number integer not null primary key, name text not null, checksum text not null, applied integer not null
) strict";
pub(crate) const APPLIED_MIGRATIONS: &str =
    "select number, name, checksum from schema_migrations order by number";
pub(crate) const INSERT_MIGRATION: &str =
    "insert into schema_migrations (number, name, checksum, applied) values (?1, ?2, ?3, ?4)";

/// Once, at the start.
pub(crate) const LAST_CURSOR: &str = "select coalesce(max(last), 0) from (
    select (select max(cursor) from events where events.tenant_id = tenants.tenant_id) as last from tenants
)";

/// The database as it was last opened.
pub(crate) const PLACE: &str = "select identity, opening, rewinds > doubted from ledger_place";
/// `?1` commits were lost since.
pub(crate) const OPENED: &str = "update ledger_place set opening = opening + 1, rewinds = rewinds + ?1";
pub(crate) const TENANTS_REWOUND: &str = "update tenants set rewinds = rewinds + 1";
/// Actions that are to be doubted; `?1` how many.
pub(crate) const TO_DOUBT: &str = "select a.tenant_id, a.id, a.state from tenants t
    join actions a on a.tenant_id = t.tenant_id
        and a.state in ('awaiting_approval', 'approved', 'executing', 'failed_retryable', 'outcome_unknown')
where a.rewinds < t.rewinds limit ?1";
pub(crate) const ALL_DOUBTED: &str = "update ledger_place set doubted = rewinds";
/// `?3` now, `?4` `?5` error. What was not sent when last heard of may have been
/// sent since.
pub(crate) const DOUBT: &str = "update actions set
    state = 'outcome_unknown', version = version + 1, event_seq = event_seq + 1, updated = ?3,
    rewinds = (select t.rewinds from tenants t where t.tenant_id = actions.tenant_id), rewound = 1,
    attempt_id = null, lease_owner = null, lease_expires = null, next_attempt = ?3,
    unknown_effects = unknown_effects + (in_flight is not null) + (
        select count(*) from effects e where e.tenant_id = ?1 and e.action_id = ?2 and e.write = 1
            and e.status = 'failed' and e.refusal is null
    ),
    standing_writes = standing_writes + (
        select count(*) from effects e where e.tenant_id = ?1 and e.action_id = ?2 and e.write = 1
            and e.status = 'failed' and e.refusal is null
    ),
    in_flight = null, error_code = ?4, error_message = ?5
where tenant_id = ?1 and id = ?2
    and rewinds < (select t.rewinds from tenants t where t.tenant_id = actions.tenant_id)";
/// `?3` now, `?4` when the action was approved.
pub(crate) const DOUBT_EFFECTS: &str = "update effects set
    status = 'unknown', unknown_since = ?3, may_have_arrived = 1, recorded_at = null,
    first_sent = coalesce(first_sent, key_first_sent, ?4, last_sent)
where tenant_id = ?1 and action_id = ?2 and write = 1
    and (status = 'in_flight' or (status = 'failed' and refusal is null))";

// ---- propose, approve, decide -------------------------------------------------

pub(crate) const INSERT_ACTION: &str = "insert into actions (
    tenant_id, id, state, version, event_seq, attempts_left, repeats_left, approved_fingerprint, approved_at, effects,
    policy_epoch, approval_expires, execution_deadline, approvals_required, run_by_itself, created, fingerprint, intent,
    action_key, run, step, tool, requested_version, tool_version, component_digest, grant_digest, actor, proposer,
    supersedes, compensates, seed, preview, plan, arguments, updated, rewinds
) values (
    ?1, ?2, ?3, 1, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24,
    ?25, ?26, ?27, ?28, ?29, ?30, ?31, ?32, ?33, ?34, (select t.rewinds from tenants t where t.tenant_id = ?1)
) on conflict (tenant_id, id) do nothing";

/// The old action of a proposal that replaces one which has ended. One that has
/// not is moved by a transition, which names its successor itself.
pub(crate) const NAME_SUCCESSOR: &str = "update actions set superseded_by = ?3
where tenant_id = ?1 and id = ?2 and superseded_by is null
    and state in ('succeeded', 'failed_terminal', 'cancelled', 'expired')";

pub(crate) const INSERT_EVENT: &str = "insert into events (tenant_id, action_id, seq, cursor, at, body, hash)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7)";

/// What an event links on to; `?3` its own number.
pub(crate) const HASH_BEFORE: &str =
    "select hash from events where tenant_id = ?1 and action_id = ?2 and seq = ?3 - 1";

/// `?3` approver, `?4` now, `?5` what they saw, `?6` where the last yes leads.
pub(crate) const APPROVE: &str = concat!(
    "update actions set
    approvals_given = approvals_given + 1,
    state = case when approvals_given + 1 >= approvals_required then ?6 else state end,
    approved_fingerprint = case when approvals_given + 1 >= approvals_required then ?5 end,
    approved_at = case when approvals_given + 1 >= approvals_required then ?4 end,
    event_seq = event_seq + (approvals_given + 1 >= approvals_required),
    version = version + 1, updated = ?4
where tenant_id = ?1 and id = ?2 and state = 'awaiting_approval' and approval_expires > ?4 and fingerprint = ?5 and ",
    not_rewound!(),
    "
    and policy_epoch = (select t.policy_epoch from tenants t where t.tenant_id = actions.tenant_id)
    and not exists (
        select 1 from approvals a where a.tenant_id = ?1 and a.action_id = ?2 and a.approver = ?3
    )"
);

/// Planted: an approval is taken for whatever stands there.
#[cfg(feature = "planted-bugs")]
pub(crate) const APPROVE_WHATEVER_STANDS: &str = "update actions set
    approvals_given = approvals_given + 1,
    state = case when approvals_given + 1 >= approvals_required then ?6 else state end,
    approved_fingerprint = case when approvals_given + 1 >= approvals_required and ?5 is not null then fingerprint end,
    approved_at = case when approvals_given + 1 >= approvals_required then ?4 end,
    event_seq = event_seq + (approvals_given + 1 >= approvals_required),
    version = version + 1, updated = ?4
where tenant_id = ?1 and id = ?2 and state = 'awaiting_approval' and approval_expires > ?4
    and policy_epoch = (select t.policy_epoch from tenants t where t.tenant_id = actions.tenant_id)
    and not exists (
        select 1 from approvals a where a.tenant_id = ?1 and a.action_id = ?2 and a.approver = ?3
    )";

pub(crate) const INSERT_APPROVAL: &str = "insert into approvals (
    tenant_id, action_id, approver, place, at, note, fingerprint
) values (?1, ?2, ?3, ?4, ?5, ?6, ?7)";

pub(crate) const APPROVED_BY: &str = "select 1 from approvals
where tenant_id = ?1 and action_id = ?2 and approver = ?3 and fingerprint = ?4";

/// `?3` the version it was decided on, `?4` now, `?5` where to, `?6` `?7` error,
/// `?8` next attempt, `?9` what is in flight becomes unknown, `?10` successor,
/// `?11` the condition on time, `?12` attempts that it grants.
pub(crate) const TRANSITION: &str = concat!(
    "update actions set
    state = ?5, version = version + 1, event_seq = event_seq + 1, updated = ?4,
    attempt_id = null, lease_owner = null, lease_expires = null,
    error_code = coalesce(?6, error_code), error_message = coalesce(?7, error_message),
    next_attempt = ?8,
    unknown_effects = unknown_effects + (?9 and in_flight is not null),
    in_flight = case when ?9 then null else in_flight end,
    superseded_by = coalesce(?10, superseded_by), attempts_left = max(attempts_left, ?12)
where tenant_id = ?1 and id = ?2 and version = ?3 and (?5 = 'outcome_unknown' or ",
    not_rewound!(),
    ")
    and case ?11
        when 'always' then 1
        when 'approval_expired' then approval_expires <= ?4
        when 'approval_open' then approval_expires > ?4
        when 'lease_expired' then lease_expires <= ?4
    end"
);

/// The one effect that is out, `?3` now.
pub(crate) const IN_FLIGHT_BECOMES_UNKNOWN: &str = "update effects set status = 'unknown', unknown_since = ?3
where tenant_id = ?1 and action_id = ?2 and status = 'in_flight'";

/// `?3` now, `?4` reason.
pub(crate) const REQUEST_CANCEL: &str =
    "update actions set cancel_requested = ?4, version = version + 1, updated = ?3
where tenant_id = ?1 and id = ?2 and state in ('executing', 'outcome_unknown') and cancel_requested is null";

/// `?3` version, `?4` now, `?5` when it is due again, `?6` repeats that it costs.
pub(crate) const POSTPONE: &str = "update actions set
    next_attempt = ?5, repeats_left = repeats_left - ?6, version = version + 1, updated = ?4
where tenant_id = ?1 and id = ?2 and version = ?3 and state = 'outcome_unknown' and repeats_left >= ?6";

/// `?3` the event that began the doubt.
pub(crate) const ANNOUNCED: &str = "update actions set announced = event_seq
where tenant_id = ?1 and id = ?2 and state = 'outcome_unknown' and event_seq = ?3";

// ---- claims -------------------------------------------------------------------

// `?3` now, `?4` attempt, `?5` owner, `?6` lease.
macro_rules! claim_to_run {
    ($not_rewound:expr) => {
        concat!(
    "update actions set
    state = 'executing', version = version + 1, event_seq = event_seq + 1, updated = ?3,
    attempt = attempt + 1, attempt_id = ?4, lease_owner = ?5, lease_expires = ?6,
    attempts_left = attempts_left - 1, next_attempt = null
where tenant_id = ?1 and id = ?2 and cancel_requested is null and attempts_left > 0 and ",
    $not_rewound,
    "
    and approved_fingerprint = fingerprint
    and (
        (state = 'approved' and approval_expires > ?3
            and policy_epoch = (select t.policy_epoch from tenants t where t.tenant_id = actions.tenant_id))
        or (state = 'failed_retryable' and next_attempt <= ?3)
    )
    and (standing_writes > 0 or not exists (
        select 1 from tools t where t.tenant_id = actions.tenant_id and t.name = actions.tool and t.paused = 1
    ))"
        )
    };
}
pub(crate) const CLAIM_TO_RUN: &str = claim_to_run!(not_rewound!());

/// Planted: the claim does not ask whether the action was doubted.
#[cfg(feature = "planted-bugs")]
pub(crate) const CLAIM_TO_RUN_REWOUND: &str = claim_to_run!("true");

/// Planted: the claim does not look at the state.
#[cfg(feature = "planted-bugs")]
pub(crate) const CLAIM_WHATEVER_THE_STATE: &str = "update actions set
    state = 'executing', version = version + 1, event_seq = event_seq + 1, updated = ?3,
    attempt = attempt + 1, attempt_id = ?4, lease_owner = ?5, lease_expires = ?6,
    attempts_left = attempts_left - 1, next_attempt = null
where tenant_id = ?1 and id = ?2 and attempts_left > 0";

/// The window is judged here: `?3` now, `?4` attempt, `?5` owner, `?6` lease.
/// Without a next attempt nothing is repeated by itself.
pub(crate) const CLAIM_TO_REPEAT: &str = concat!(
    "update actions set
    state = 'executing', version = version + 1, event_seq = event_seq + 1, updated = ?3,
    attempt = attempt + 1, attempt_id = ?4, lease_owner = ?5, lease_expires = ?6,
    repeats_left = repeats_left - 1, next_attempt = null
where tenant_id = ?1 and id = ?2 and state = 'outcome_unknown' and cancel_requested is null
    and approved_fingerprint = fingerprint and ",
    not_rewound!(),
    "
    and repeats_left > 0 and next_attempt <= ?3 and (unknown_effects > 0 or rewound = 1)
    and not exists (
        select 1 from effects e where e.tenant_id = ?1 and e.action_id = ?2 and e.status = 'unknown'
            and not (e.class = 'provider-idempotent' and e.first_sent + e.key_window > ?3)
    )"
);

/// `?3` now, `?4` attempt, `?5` lease.
pub(crate) const HEARTBEAT: &str =
    "update actions set lease_expires = max(lease_expires, ?5), version = version + 1, updated = ?3
where tenant_id = ?1 and id = ?2 and state = 'executing' and attempt_id = ?4 and lease_expires > ?3
    and cancel_requested is null";

/// `?3` now, `?4` attempt, `?5` ordinal, `?6` lease, `?7` end of the window of a
/// key that an earlier write was sent under.
pub(crate) const CLAIM_WRITE: &str = concat!(
    "update actions set
    in_flight = ?5, lease_expires = max(lease_expires, ?6), first_write = coalesce(first_write, ?3),
    standing_writes = standing_writes + 1, version = version + 1, updated = ?3
where tenant_id = ?1 and id = ?2 and state = 'executing' and attempt_id = ?4 and lease_expires > ?3
    and cancel_requested is null and in_flight is null and execution_deadline > ?3 and ",
    not_rewound!(),
    "
    and (?7 is null or ?7 > ?3)
    and (standing_writes > 0 or unknown_effects > 0 or (
        approval_expires > ?3
        and policy_epoch = (select t.policy_epoch from tenants t where t.tenant_id = actions.tenant_id)
    ))"
);

/// Planted: only the action claim looks at policy and approval.
#[cfg(feature = "planted-bugs")]
pub(crate) const CLAIM_WRITE_TRUSTING: &str = "update actions set
    in_flight = ?5, lease_expires = max(lease_expires, ?6), first_write = coalesce(first_write, ?3),
    standing_writes = standing_writes + 1, version = version + 1, updated = ?3
where tenant_id = ?1 and id = ?2 and state = 'executing' and attempt_id = ?4 and lease_expires > ?3
    and cancel_requested is null and in_flight is null and execution_deadline > ?3
    and (?7 is null or ?7 > ?3)";

/// Planted: the conditions are looked at, the row is left alone.
#[cfg(feature = "planted-bugs")]
pub(crate) const CLAIM_WRITE_LEAVING_ROW: &str = "select max(lease_expires, ?6) from actions
where tenant_id = ?1 and id = ?2 and state = 'executing' and attempt_id = ?4 and lease_expires > ?3
    and cancel_requested is null and in_flight is null and execution_deadline > ?3
    and (?7 is null or ?7 > ?3) and ?5 > 0
    and (standing_writes > 0 or unknown_effects > 0 or (
        approval_expires > ?3
        and policy_epoch = (select t.policy_epoch from tenants t where t.tenant_id = actions.tenant_id)
    ))";

pub(crate) const INSERT_EFFECT: &str = "insert into effects (
    tenant_id, action_id, ordinal, kind, write, class, key_window, send_limit, terms, fingerprint, request,
    provider_key, status, attempt_id, send, first_sent, key_first_sent, last_sent, may_have_arrived, answer, refusal,
    recorded_at
) values (
    ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22
)";

/// Makes room where `try-later` set something aside that did not happen; a
/// trigger keeps it as history.
pub(crate) const REPLACE_SET_ASIDE: &str = "delete from effects
where tenant_id = ?1 and action_id = ?2 and ordinal = ?3 and set_aside = 1
    and (write = 0 or status = 'failed')
returning refusal is not null or status = 'succeeded'";

/// `?3` now, `?4` attempt, `?5` ordinal, `?6` lease length, `?7` margin. What
/// may be claimed again: what failed and was never shown, and, inside the key's
/// window, what is unknown or was set aside. Only what is unknown needs no
/// deadline: to ask again is to find out.
pub(crate) const REPEAT_WRITE: &str = concat!(
    "update actions set
    in_flight = ?5, lease_expires = max(lease_expires, ?3 + ?6, ?3 + e.send_limit + ?7),
    first_write = coalesce(first_write, ?3),
    standing_writes = standing_writes + (e.status = 'failed'),
    unknown_effects = unknown_effects - (e.status = 'unknown'),
    effects = effects - (e.status = 'succeeded'),
    version = version + 1, updated = ?3
from effects e
where actions.tenant_id = ?1 and actions.id = ?2 and state = 'executing' and actions.attempt_id = ?4
    and lease_expires > ?3 and cancel_requested is null and in_flight is null and ",
    not_rewound!(),
    "
    and (standing_writes > 0 or unknown_effects > 0 or (
        approval_expires > ?3
        and policy_epoch = (select t.policy_epoch from tenants t where t.tenant_id = ?1)
    ))
    and e.tenant_id = ?1 and e.action_id = ?2 and e.ordinal = ?5 and e.write = 1
    and (
        (e.status = 'failed' and e.refusal is null and execution_deadline > ?3
            and (e.key_first_sent is null or e.class <> 'provider-idempotent' or e.key_first_sent + e.key_window > ?3))
        or (e.status = 'unknown' and e.class = 'provider-idempotent' and e.first_sent + e.key_window > ?3)
        or (e.status = 'succeeded' and e.set_aside = 1 and e.class = 'provider-idempotent'
            and e.first_sent + e.key_window > ?3 and execution_deadline > ?3)
    )"
);

/// The effect of the claim above: `?3` ordinal, `?4` now, `?5` attempt. It
/// remembers that an earlier send may have arrived, and when the first was.
pub(crate) const REPEAT_EFFECT: &str = "update effects set
    status = 'in_flight', send = send + 1, attempt_id = ?5, last_sent = ?4,
    first_sent = coalesce(first_sent, key_first_sent, ?4),
    may_have_arrived = may_have_arrived or status in ('unknown', 'succeeded') or key_first_sent is not null,
    unknown_since = null, answer = null, set_aside = 0, recorded_at = null
where tenant_id = ?1 and action_id = ?2 and ordinal = ?3";

/// A write without a row, of an action whose ledger was rewound: `?3` now, `?4`
/// attempt.
pub(crate) const DOUBT_WRITE: &str = "update actions set
    unknown_effects = unknown_effects + 1, standing_writes = standing_writes + 1,
    first_write = coalesce(first_write, approved_at), version = version + 1, updated = ?3
where tenant_id = ?1 and id = ?2 and state = 'executing' and attempt_id = ?4 and lease_expires > ?3
    and in_flight is null and rewound = 1";

/// `?3` attempt, `?4` ordinal, `?5` send.
pub(crate) const STILL_LIVE: &str = "select 1 from actions a
    join effects e on e.tenant_id = a.tenant_id and e.action_id = a.id and e.ordinal = a.in_flight
where a.tenant_id = ?1 and a.id = ?2 and a.state = 'executing' and a.attempt_id = ?3 and a.in_flight = ?4
    and e.attempt_id = ?3 and e.send = ?5";

// ---- records and ends -----------------------------------------------------------

/// `?3` now, `?4` attempt, `?5` ordinal, `?6` send, `?7` it was recorded, `?8` it
/// did not happen, `?9` attempts it grants, `?10` the provider's name for it.
/// What may have arrived once is not undone by a later send that did not go out.
pub(crate) const RECORD: &str = "update actions set
    in_flight = null, effects = effects + ?7, standing_writes = standing_writes - ?8,
    attempts_left = max(attempts_left, ?9), provider_reference = coalesce(?10, provider_reference),
    version = version + 1, updated = ?3
where tenant_id = ?1 and id = ?2 and state = 'executing' and attempt_id = ?4 and in_flight = ?5
    and exists (
        select 1 from effects e where e.tenant_id = ?1 and e.action_id = ?2 and e.ordinal = ?5
            and e.status = 'in_flight' and e.attempt_id = ?4 and e.send = ?6 and not (?8 and e.may_have_arrived)
    )";

/// Planted: matched by attempt and place, not by send.
#[cfg(feature = "planted-bugs")]
pub(crate) const RECORD_OF_ANY_SEND: &str = "update actions set
    in_flight = null, effects = effects + ?7, standing_writes = standing_writes - ?8,
    attempts_left = max(attempts_left, ?9), provider_reference = coalesce(?10, provider_reference),
    version = version + 1, updated = ?3
where tenant_id = ?1 and id = ?2 and state = 'executing' and attempt_id = ?4 and in_flight = ?5 and ?6 > 0";

/// `?3` ordinal, `?4` now, `?5` status, `?6` answer, `?7` refusal, `?8` evidence.
/// Where it did not happen, its key's window has not begun.
pub(crate) const SETTLE_EFFECT: &str = "update effects set
    status = ?5, answer = ?6, refusal = ?7, evidence = coalesce(?8, evidence), recorded_at = ?4, unknown_since = null,
    first_sent = case when ?5 = 'failed' then key_first_sent else first_sent end,
    may_have_arrived = case when ?5 = 'failed' then key_first_sent is not null else may_have_arrived end
where tenant_id = ?1 and action_id = ?2 and ordinal = ?3";

/// What a late answer finds: `?3` attempt, `?4` ordinal, `?5` send.
pub(crate) const LATE: &str = "select unknown_effects > 1 from actions
where tenant_id = ?1 and id = ?2 and state = 'outcome_unknown'
    and exists (
        select 1 from effects e where e.tenant_id = ?1 and e.action_id = ?2 and e.ordinal = ?4
            and e.status = 'unknown' and e.attempt_id = ?3 and e.send = ?5
    )";

/// `?3` now, `?4` where to, `?5` the provider's name for it.
pub(crate) const RECORD_LATE: &str = "update actions set
    state = ?4, unknown_effects = unknown_effects - 1, effects = effects + 1, attempts_left = max(attempts_left, 1),
    next_attempt = case when ?4 = 'failed_retryable' then ?3 else coalesce(next_attempt, ?3) end,
    provider_reference = coalesce(?5, provider_reference),
    event_seq = event_seq + 1, version = version + 1, updated = ?3
where tenant_id = ?1 and id = ?2 and state = 'outcome_unknown'";

/// `?3` now, `?4` attempt, `?5` how many more are recorded.
pub(crate) const RECORD_SETTLED: &str = "update actions set
    effects = effects + ?5, version = version + 1, updated = ?3
where tenant_id = ?1 and id = ?2 and state = 'executing' and attempt_id = ?4";

/// What else `RECORD_SETTLED` and `CLAIM_WRITE` replaced.
pub(crate) const FEWER_EFFECTS: &str =
    "update actions set effects = effects - ?3 where tenant_id = ?1 and id = ?2";

/// `?3` now, `?4` attempt, `?5` where to, `?6` result, `?7` `?8` error, `?9` next
/// attempt, `?10` the outcome of something is lost, `?11` `?12` which send, `?13`
/// attempts given back.
pub(crate) const END_ATTEMPT: &str = concat!(
    "update actions set
    state = ?5, version = version + 1, event_seq = event_seq + 1, updated = ?3,
    attempt_id = null, lease_owner = null, lease_expires = null,
    result = ?6, error_code = ?7, error_message = ?8, next_attempt = ?9,
    unknown_effects = unknown_effects + (in_flight is not null), in_flight = null,
    attempts_left = attempts_left + ?13
where tenant_id = ?1 and id = ?2 and state = 'executing' and attempt_id = ?4 and (?10 or ",
    not_rewound!(),
    ")
    and (in_flight is not null or unknown_effects > 0) = ?10
    and (?11 is null or (in_flight = ?11 and exists (
        select 1 from effects e where e.tenant_id = ?1 and e.action_id = ?2 and e.ordinal = ?11
            and e.status = 'in_flight' and e.attempt_id = ?4 and e.send = ?12
    )))"
);

/// Planted: the end of an attempt looks at neither state nor attempt.
#[cfg(feature = "planted-bugs")]
pub(crate) const END_ATTEMPT_WHATEVER_THE_STATE: &str = "update actions set
    state = ?5, version = version + 1, event_seq = event_seq + 1, updated = ?3,
    attempt_id = null, lease_owner = null, lease_expires = null,
    result = ?6, error_code = ?7, error_message = ?8, next_attempt = ?9,
    unknown_effects = unknown_effects + (in_flight is not null), in_flight = null,
    attempts_left = attempts_left + ?13
where tenant_id = ?1 and id = ?2 and ?4 is not null and ?10 is not null and ?11 is null and ?12 is null";

/// `?3` ordinal.
pub(crate) const SET_ASIDE: &str = "update effects set set_aside = 1
where tenant_id = ?1 and action_id = ?2 and ordinal = ?3 and status in ('succeeded', 'failed')";

pub(crate) const INSERT_LOG: &str =
    "insert into action_logs (tenant_id, action_id, attempt, at, lines) values (?1, ?2, ?3, ?4, ?5)";

/// `?3` version, `?4` now, `?5` where to, `?6` it happened, `?7` it did not, `?8`
/// attempts it grants, `?9` `?10` error, `?11` attempt, `?12` ordinal, `?13` send,
/// `?14` how long it has to have been unknown.
pub(crate) const RESOLVE: &str = "update actions set
    state = ?5, version = version + 1, event_seq = event_seq + 1, updated = ?4,
    unknown_effects = unknown_effects - (?6 or ?7), effects = effects + ?6, standing_writes = standing_writes - ?7,
    attempts_left = max(attempts_left, ?8),
    next_attempt = case ?5
        when 'failed_retryable' then ?4
        -- what is left may be something that goes on by itself.
        when 'outcome_unknown' then coalesce(next_attempt, ?4)
    end,
    error_code = coalesce(?9, error_code), error_message = coalesce(?10, error_message)
where tenant_id = ?1 and id = ?2 and version = ?3 and state = 'outcome_unknown'
    and exists (
        select 1 from effects e where e.tenant_id = ?1 and e.action_id = ?2 and e.ordinal = ?12
            and e.status = 'unknown' and e.attempt_id = ?11 and e.send = ?13
            and e.unknown_since + ?14 <= ?4
    )";

/// A person gave up on it: it stays unknown, and says who. `?3` ordinal, `?4`
/// evidence.
pub(crate) const GIVE_UP_EFFECT: &str = "update effects set evidence = ?4
where tenant_id = ?1 and action_id = ?2 and ordinal = ?3";

// ---- reads ----------------------------------------------------------------------

pub(crate) const ACTION: &str =
    concat!("select ", action_columns!(), " from actions where tenant_id = ?1 and id = ?2");

/// Until when an attempt may start a send.
pub(crate) const LEASE_EXPIRES: &str = "select lease_expires from actions where tenant_id = ?1 and id = ?2";

/// `?3` ordinal.
pub(crate) const EFFECT: &str = concat!(
    "select ",
    effect_columns!(),
    " from effects where tenant_id = ?1 and action_id = ?2 and ordinal = ?3"
);

pub(crate) const APPROVALS: &str = "select approver, at, note, fingerprint from approvals
where tenant_id = ?1 and action_id = ?2 order by place";

pub(crate) const EFFECTS: &str = concat!(
    "select ",
    effect_columns!(),
    " from effects where tenant_id = ?1 and action_id = ?2 order by ordinal"
);

pub(crate) const UNKNOWN_EFFECTS: &str = concat!(
    "select ",
    effect_columns!(),
    " from effects where tenant_id = ?1 and action_id = ?2 and status = 'unknown' order by ordinal"
);

/// What was replaced comes before what replaced it.
pub(crate) const EFFECTS_WITH_HISTORY: &str = concat!(
    "select ",
    effect_columns!(),
    " from (
    select ",
    effect_columns!(),
    ", place from effects_set_aside where tenant_id = ?1 and action_id = ?2
    union all
    select ",
    effect_columns!(),
    ", 9223372036854775807 as place from effects where tenant_id = ?1 and action_id = ?2
) order by ordinal, place"
);

pub(crate) const LOG: &str =
    "select lines from action_logs where tenant_id = ?1 and action_id = ?2 order by attempt";

/// `?3` after, `?4` limit.
pub(crate) const EVENTS_OF_ACTION: &str =
    "select cursor, tenant_id, action_id, seq, at, body, hash from events
where tenant_id = ?1 and action_id = ?2 and seq > ?3 order by seq limit ?4";

/// `?2` after, `?3` limit.
pub(crate) const EVENTS: &str = "select cursor, tenant_id, action_id, seq, at, body, hash from events
where tenant_id = ?1 and cursor > ?2 order by cursor limit ?3";

/// Where a list goes on.
pub(crate) const PLACE_IN_LIST: &str = "select created, id from actions where tenant_id = ?1 and id = ?2";

macro_rules! list {
    ($narrowed:literal) => {
        concat!(
            "select ",
            action_columns!(),
            " from actions where tenant_id = ?1 and (created, id) < (?2, ?3)
    and (?4 is null or state = ?4) and (?5 is null or tool = ?5) and (?6 is null or run = ?6)",
            $narrowed,
            " order by created desc, id desc limit ?7"
        )
    };
}

// The same list by what narrows it best: `?2` `?3` where it goes on, `?4` state,
// `?5` tool, `?6` run, `?7` limit.
pub(crate) const LIST: &str = list!("");
pub(crate) const LIST_BY_STATE: &str = list!(" and state = ?4");
pub(crate) const LIST_BY_TOOL: &str = list!(" and tool = ?5");
pub(crate) const LIST_BY_RUN: &str = list!(" and run = ?6");

/// `?1` now, `?2` limit. What nobody can move now is not listed: it would stand
/// before everything else for ever.
pub(crate) const DUE: &str = concat!(
    "select ",
    action_columns!(),
    " from actions where due_at <= ?1
    and not (
        state in ('approved', 'failed_retryable') and approval_expires > ?1 and cancel_requested is null
        and attempts_left > 0 and standing_writes = 0
        and exists (
            select 1 from tools t where t.tenant_id = actions.tenant_id and t.name = actions.tool and t.paused = 1
        )
    )
order by due_at limit ?2"
);

/// What the claims of an action's tenant compare with.
pub(crate) const POLICY_EPOCH: &str = "select policy_epoch from tenants where tenant_id = ?1";

/// Once, when a host opened the store: nobody lives who could hold a lease.
pub(crate) const DUE_AFTER_OPENING: &str = concat!(
    "select ",
    action_columns!(),
    " from actions where due_at is not null and (due_at <= ?1 or state = 'executing') order by due_at limit ?2"
);

// ---- the registry ---------------------------------------------------------------

pub(crate) const INSERT_TENANT: &str =
    "insert into tenants (tenant_id, created) values (?1, ?2) on conflict (tenant_id) do nothing";
pub(crate) const MOVE_POLICY_EPOCH: &str =
    "update tenants set policy_epoch = policy_epoch + 1 where tenant_id = ?1";
pub(crate) const INSERT_COMPONENT: &str = "insert into components (tenant_id, digest, bytes, created)
values (?1, ?2, ?3, ?4) on conflict (tenant_id, digest) do nothing";
pub(crate) const INSERT_GRANT: &str = "insert into grants (tenant_id, digest, source, created_by, created)
values (?1, ?2, ?3, ?4, ?5) on conflict (tenant_id, digest) do nothing";
pub(crate) const INSERT_TOOL_VERSION: &str = "insert into tool_versions (
    tenant_id, name, version, component_digest, inspection, installed_by, installed
) values (?1, ?2, ?3, ?4, ?5, ?6, ?7) on conflict (tenant_id, name, version) do nothing";
pub(crate) const VERSION_COMPONENT: &str =
    "select component_digest from tool_versions where tenant_id = ?1 and name = ?2 and version = ?3";
pub(crate) const INSERT_TOOL: &str = "insert into tools (tenant_id, name, current_version, grant_digest)
values (?1, ?2, ?3, ?4) on conflict (tenant_id, name) do nothing";
/// One row if anything in force changes.
pub(crate) const PUT_IN_FORCE: &str = "update tools set current_version = ?3, grant_digest = ?4
where tenant_id = ?1 and name = ?2 and (current_version <> ?3 or grant_digest <> ?4)";
pub(crate) const PUT_GRANT_IN_FORCE: &str = "update tools set grant_digest = ?3
where tenant_id = ?1 and name = ?2 and grant_digest <> ?3";
pub(crate) const SET_PAUSED: &str = "update tools set paused = ?3 where tenant_id = ?1 and name = ?2";

macro_rules! tools {
    ($condition:literal) => {
        concat!(
            "select v.tenant_id, v.name, v.version, v.version = t.current_version, v.component_digest, t.grant_digest,
    g.source, v.inspection, t.paused, (select e.policy_epoch from tenants e where e.tenant_id = t.tenant_id),
    v.installed
from tools t
    join tool_versions v on v.tenant_id = t.tenant_id and v.name = t.name
    join grants g on g.tenant_id = t.tenant_id and g.digest = t.grant_digest
where t.tenant_id = ?1 ",
            $condition
        )
    };
}
pub(crate) const TOOL: &str = tools!("and t.name = ?2 and v.version = coalesce(?3, t.current_version)");
pub(crate) const TOOLS: &str = tools!("order by v.name, v.installed desc, v.version desc");
pub(crate) const COMPONENT: &str = "select bytes from components where tenant_id = ?1 and digest = ?2";
pub(crate) const GRANT: &str = "select source from grants where tenant_id = ?1 and digest = ?2";

pub(crate) const TOKEN_EXISTS: &str = "select 1 from principals where token_id = ?1";
pub(crate) const INSERT_PRINCIPAL: &str = "insert into principals (
    tenant_id, token_id, token_hash, name, roles, created
) values (?1, ?2, ?3, ?4, ?5, ?6)";
/// `?2` tool, `?3` caller, `?4` actor. As many rows as there are pending ones, which the quota
/// bounds.
pub(crate) const PENDING: &str =
    "select count(*), coalesce(sum(tool = ?2), 0), coalesce(sum(proposer = ?3), 0),
    coalesce(sum(actor = ?4), 0)
from actions where tenant_id = ?1 and state = 'awaiting_approval'";
pub(crate) const PRINCIPAL: &str = "select tenant_id, token_id, token_hash, name, roles, created, revoked
from principals where token_id = ?1";
pub(crate) const PRINCIPALS: &str = "select tenant_id, token_id, token_hash, name, roles, created, revoked
from principals where tenant_id = ?1 order by created, token_id";
pub(crate) const PRINCIPAL_OF_TENANT: &str =
    "select revoked from principals where tenant_id = ?1 and token_id = ?2";
pub(crate) const REVOKE: &str = "update principals set revoked = ?3
where tenant_id = ?1 and token_id = ?2 and revoked is null";
