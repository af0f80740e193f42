//! Every statement, as text. A step is one statement and so one transaction,
//! with one flush at most and one round trip.
//!
//! `$1` is the tenant and `$2` the action throughout, `$3` of a step is how its
//! commit is made durable. Each step begins alike (`taken!`):
//!
//! * `s` is what the statement's snapshot has of the action's row;
//! * `r` takes that row's lock, and has its version as it stands once the lock
//!   is held (an action that cannot be moved by this step is not locked at all);
//! * `c` says whether the two are the same (`fresh`) and what time it is, read
//!   after the lock was waited for. A claim that waited across an expiry loses.
//!   The state is compared here and not in the row, so that no plan takes the
//!   index by state for the shorter way.
//!
//! Everything that belongs to an action (effects, approvals, events) changes
//! only under its row's lock and with its row's version; so while `fresh` holds,
//! the snapshot shows all of it as it stands. Where it does not hold, the step
//! changes nothing and is made again. What claims compare beside their action,
//! policy and pauses, is read anew after the lock (`countersign_in_force`).
//!
//! An answer's first two columns are whether the step was made, and `fresh`.
//! A time that has run out is one that is not after now: `approval_expires > now`
//! is still open.
//!
//! Long because it is a list: every statement stands here and nowhere else.

/// A list of columns, made once so that every statement gives the same row.
/// They are of a relation called `x`; its approvals come along.
macro_rules! action_columns {
    () => {
        "x.tenant_id, x.id, x.state, x.version, x.event_seq, x.attempt, x.attempt_id, x.lease_expires, x.in_flight, \
         x.cancel_requested, x.attempts_left, x.repeats_left, x.next_attempt, x.first_write, x.unknown_effects, \
         x.standing_writes, x.effects, x.approved_fingerprint, x.approved_at, x.superseded_by, x.provider_reference, \
         x.error_code, x.error_message, x.updated, x.policy_epoch, x.approval_expires, x.execution_deadline, \
         x.approvals_required, x.run_by_itself, x.created, x.fingerprint, x.intent, x.action_key, x.tool, \
         x.requested_version, x.tool_version, x.component_digest, x.grant_digest, x.actor, x.proposer, x.supersedes, \
         x.compensates, x.seed, x.preview, x.plan, x.arguments, x.result, x.rewound, x.announced, \
         case when x.approvals_given > 0 then ( \
            select json_agg(json_build_array(p.approver, p.at, p.note, encode(p.fingerprint, 'hex')) order by p.place) \
            from approvals p where p.tenant_id = x.tenant_id and p.action_id = x.id \
         )::text end"
    };
}
macro_rules! effect_columns {
    () => {
        "x.ordinal, x.kind, x.write, x.terms, x.fingerprint, x.request, x.provider_key, x.status, x.attempt_id, \
         x.send, x.first_sent, x.last_sent, x.may_have_arrived, x.unknown_since, x.answer, x.refusal, x.set_aside, \
         x.evidence, x.recorded_at"
    };
}

macro_rules! row_taken {
    ($gate:expr) => {
        concat!(
            "with s as materialized (
    select version, state, attempt_id, tool from actions where tenant_id = $1 and id = $2
),
r as materialized (
    select version, set_config('synchronous_commit', $3, true) from actions
    where tenant_id = $1 and id = $2 and (select ",
            $gate,
            " from s) for update
)"
        )
    };
}
macro_rules! taken {
    ($gate:expr) => {
        concat!(
            row_taken!($gate),
            ",
c as materialized (select r.version = s.version as fresh, s.state, countersign_now() as now from r, s)"
        )
    };
}
/// The same, with what is in force; it and then the time are read last.
macro_rules! taken_in_force {
    ($gate:expr) => {
        concat!(
            row_taken!($gate),
            ",
g as materialized (select r.version = s.version as fresh, s.state, s.tool from r, s),
f as materialized (
    select g.fresh, g.state, i.epoch, i.paused from g, lateral countersign_in_force($1, g.tool) i
),
c as materialized (select f.*, countersign_now() as now from f)"
        )
    };
}
/// Whether the answer can be relied on: the row was taken as the snapshot has
/// it, or it was not one that this step takes.
macro_rules! fresh {
    ($gate:expr) => {
        concat!("coalesce((select c.fresh from c), not coalesce((select ", $gate, " from s), false))")
    };
}
/// The row after the step. Where it was not made there is none: it is read then,
/// which is rarer than it is wide.
macro_rules! row_after {
    ($gate:expr) => {
        concat!(
            "
select x.id is not null, x.id is not null or ",
            fresh!($gate),
            ", ",
            action_columns!(),
            " from (select) one left join m x on true"
        )
    };
}
/// The event of the transition that `m` made, linked on to the one before; a
/// link that is missing refuses the step, by `hash`.
macro_rules! event {
    ($body:expr, $condition:expr) => {
        concat!(
            ",
e as (
    insert into events (tenant_id, action_id, seq, cursor, at, body, hash)
    select m.tenant_id, m.id, m.event_seq, countersign_cursor(m.event_seq), m.updated, ",
            $body,
            ", event_chain(b.hash, m.event_seq, m.updated, ",
            $body,
            ")
    from m left join events b on b.tenant_id = $1 and b.action_id = $2 and b.seq = m.event_seq - 1
    where ",
            $condition,
            "
)"
        )
    };
}
macro_rules! effect_fields {
    () => {
        "tenant_id, action_id, ordinal, kind, write, class, key_window, send_limit, terms, fingerprint, request, \
         method, target, provider_key, status, attempt_id, send, first_sent, key_first_sent, last_sent, \
         may_have_arrived, answer, refusal, recorded_at"
    };
}

/// The action was doubted for every commit that its tenant's ledger is known to
/// have lost, or is younger. No lock: whoever finds that commits were lost says
/// so before any statement of its own on that server, and so does everybody
/// else, so no snapshot there is older than the word.
macro_rules! not_rewound {
    () => {
        "a.rewinds = (select t.rewinds from tenants t where t.tenant_id = $1)"
    };
}

// ---- the connection ---------------------------------------------------------

/// Once per connection. What a role or a server says about durability is not
/// ours; a host that froze in a transaction is put out of it; plans depend on
/// the schema and not on what the tables held when they were made.
pub(crate) const SETTINGS: &str = "
set synchronous_commit = on;
set default_transaction_isolation = 'read committed';
set default_transaction_read_only = off;
set idle_in_transaction_session_timeout = '30s';
set lock_timeout = '20s';
set statement_timeout = 0;
set client_min_messages = warning;
set plan_cache_mode = force_generic_plan;
set enable_seqscan = off;
set enable_bitmapscan = off;
set jit = off;
set max_parallel_workers_per_gather = 0";
/// What a server must be before anything is written to it.
pub(crate) const SERVER: &str = "select current_setting('server_version_num')::bigint, \
     current_setting('server_version'), current_setting('fsync'), current_setting('full_page_writes'), \
     pg_is_in_recovery(), current_setting('server_encoding')";
/// Whose commits a server has. The timeline is the one that is written on: the
/// control file learns of a new one only at the checkpoint after a promotion.
pub(crate) const PLACE: &str = "select (select system_identifier::text from pg_control_system()), \
     ('x' || lpad(left(pg_walfile_name(pg_current_wal_insert_lsn()), 8), 16, '0'))::bit(64)::bigint, \
     l.identity, l.timeline, l.rewinds > l.doubted from ledger_place l";
/// `$1` `$2` the place as it was, `$3` `$4` as it is, `$5` the first look, and no
/// commit was lost. Who comes second waits, and changes nothing.
pub(crate) const MOVED: &str = "with m as (
    update ledger_place set identity = $3, timeline = $4::bigint, rewinds = rewinds + (not $5::boolean)::int
    where identity = $1 and timeline = $2::bigint returning 1
)
update tenants set rewinds = rewinds + 1 where not $5 and exists (select 1 from m)";
/// Somebody says that the database was restored.
pub(crate) const RESTORED: &str = "with m as (
    update ledger_place set rewinds = rewinds + 1 returning 1
)
update tenants set rewinds = rewinds + 1 where exists (select 1 from m)";
pub(crate) const BEGIN: &str = "begin";
pub(crate) const COMMIT: &str = "commit";
pub(crate) const ROLLBACK: &str = "rollback";
/// `$1` how this transaction's commit is made durable.
pub(crate) const DURABLE: &str = "select set_config('synchronous_commit', $1, true), countersign_now()";
pub(crate) const NOW: &str = "select countersign_now()";
pub(crate) const LISTEN: &str = "listen countersign";
pub(crate) const NOTIFY: &str = "select pg_notify('countersign', $1)";
/// Losing a wake-up costs nothing but a poll.
pub(crate) const NOTIFY_SETTINGS: &str = "set synchronous_commit = off";

/// One starter at a time, whatever database of the server it is.
pub(crate) const MIGRATION_LOCK: &str =
    "select pg_advisory_lock(hashtextextended('countersign migrations', 7305))";
pub(crate) const MIGRATION_UNLOCK: &str =
    "select pg_advisory_unlock(hashtextextended('countersign migrations', 7305))";
pub(crate) const CREATE_MIGRATIONS_TABLE: &str = "create table if not exists schema_migrations (
    number bigint not null primary key, name text not null, checksum text not null, applied bigint not null
)";
pub(crate) const APPLIED_MIGRATIONS: &str =
    "select number, name, checksum from schema_migrations order by number";
pub(crate) const INSERT_MIGRATION: &str =
    "insert into schema_migrations (number, name, checksum, applied) values ($1, $2, $3, countersign_now())";

/// How far the written cursors are ahead of those to come; positive only in a
/// database that was restored from a dump into a server that counts anew.
pub(crate) const CURSORS_AHEAD: &str =
    "select coalesce(max(last), 0) - countersign_cursor_of(pg_current_xact_id()),
    countersign_cursor_base()
from (
    select (select max(cursor) from events where events.tenant_id = tenants.tenant_id) as last from tenants
) t";

/// Actions that are to be doubted; `$1` how many.
pub(crate) const TO_DOUBT: &str = "select a.tenant_id, a.id, a.state from tenants t
    join actions a on a.tenant_id = t.tenant_id
        and a.state in ('awaiting_approval', 'approved', 'executing', 'failed_retryable', 'outcome_unknown')
where a.rewinds < t.rewinds limit $1";
pub(crate) const REWINDS: &str = "select rewinds from ledger_place";
/// `$1` how often commits had been lost when nothing was left to be doubted.
pub(crate) const ALL_DOUBTED: &str = "update ledger_place set doubted = $1::bigint where doubted < $1";
/// `$4` `$5` error, `$6` the event. What was not sent when last heard of may have
/// been sent since.
pub(crate) const DOUBT: &str = concat!(
    taken!("true"),
    ",
n as materialized (
    select count(*) as unsent from effects x
    where x.tenant_id = $1 and x.action_id = $2 and x.write and x.status = 'failed' and x.refusal is null
),
m as (
    update actions a set
        state = 'outcome_unknown', version = a.version + 1, event_seq = a.event_seq + 1, updated = c.now,
        rewinds = (select t.rewinds from tenants t where t.tenant_id = $1), rewound = true,
        attempt_id = null, lease_owner = null, lease_expires = null, next_attempt = c.now,
        unknown_effects = a.unknown_effects + (a.in_flight is not null)::int + n.unsent,
        standing_writes = a.standing_writes + n.unsent,
        in_flight = null, error_code = $4, error_message = $5
    from c, n
    where c.fresh and a.tenant_id = $1 and a.id = $2
        and c.state in ('awaiting_approval', 'approved', 'executing', 'failed_retryable', 'outcome_unknown')
        and a.rewinds < (select t.rewinds from tenants t where t.tenant_id = $1)
    returning a.*
),
u as (
    update effects x set
        status = 'unknown', unknown_since = m.updated, may_have_arrived = true, recorded_at = null,
        first_sent = coalesce(x.first_sent, x.key_first_sent, m.approved_at, x.last_sent)
    from m
    where x.tenant_id = $1 and x.action_id = $2 and x.write
        and (x.status = 'in_flight' or (x.status = 'failed' and x.refusal is null))
)",
    event!("$6", "true"),
    row_after!("true")
);

// ---- propose, approve, decide -------------------------------------------------

/// `$4`… the row, `$34` the hash before the first event, `$35` the events'
/// bodies, `$36` nobody's attempt, `$37`… the effects made while planning, each a
/// list. An action that this one replaces (`$28`) is told so if it has ended; one
/// that has not is moved by a transition, which names its successor itself.
pub(crate) const INSERT_ACTION: &str = concat!(
    "with recursive s as materialized (select 1 from actions where tenant_id = $1 and id = $2),
c as materialized (
    select countersign_now() as now, set_config('synchronous_commit', $3, true) where not exists (select 1 from s)
),
m as (
    insert into actions (
        tenant_id, id, state, version, event_seq, attempts_left, repeats_left, approved_fingerprint, approved_at,
        effects, policy_epoch, approval_expires, execution_deadline, approvals_required, run_by_itself, created,
        fingerprint, intent, action_key, run, step, tool, requested_version, tool_version, component_digest,
        grant_digest, actor, proposer, supersedes, compensates, seed, preview, plan, arguments, updated, rewinds
    )
    select $1, $2, $4, 1, $5::bigint, $6::bigint, $7::bigint, $8::bytea, case when $8::bytea is not null then c.now end,
        $9::bigint, $10::bigint, c.now + $11::bigint, c.now + $12::bigint, $13::bigint, $14::boolean, $15::bigint, $16,
        $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, c.now,
        (select t.rewinds from tenants t where t.tenant_id = $1)
    from c
    on conflict (tenant_id, id) do nothing
    returning tenant_id, id, updated
),
h (seq, hash) as (
    select 1::bigint, event_chain($34, 1, m.updated, ($35::text[])[1]) from m
    union all
    select h.seq + 1, event_chain(h.hash, h.seq + 1, m.updated, ($35::text[])[h.seq + 1])
    from h, m where h.seq < cardinality($35::text[])
),
e as (
    insert into events (tenant_id, action_id, seq, cursor, at, body, hash)
    select m.tenant_id, m.id, h.seq, countersign_cursor(h.seq), m.updated, ($35::text[])[h.seq], h.hash from m, h
),
i as (
    insert into effects (",
    effect_fields!(),
    ")
    select m.tenant_id, m.id, n.ordinal, n.kind, n.write, n.class, n.key_window, n.send_limit, n.terms, n.fingerprint,
        n.request, n.method, n.target, null, n.status, $36, n.send, null, null, null, false, n.answer, n.refusal,
        m.updated
    from m, unnest(
        $37::bigint[], $38::text[], $39::boolean[], $40::text[], $41::bigint[], $42::bigint[], $43::text[],
        $44::bytea[], $45::text[], $46::text[], $47::text[], $48::text[], $49::bigint[], $50::text[], $51::text[]
    ) as n (
        ordinal, kind, write, class, key_window, send_limit, terms, fingerprint, request, method, target, status, send,
        answer, refusal
    )
),
k as (
    update actions old set superseded_by = $2 from m
    where old.tenant_id = $1 and old.id = $28 and old.superseded_by is null
        and old.state in ('succeeded', 'failed_terminal', 'cancelled', 'expired')
)
select m.updated is not null, m.updated is not null or exists (select 1 from s), m.updated
from (select) one left join m on true"
);

/// `$4` approver, `$5` what they saw, `$6` where the last yes leads, `$7` their
/// words, `$8` the event. The third column is whether they said so before.
macro_rules! approve {
    ($approved:expr, $fits:expr) => {
        concat!(
            taken_in_force!("state = 'awaiting_approval'"),
            ",
m as (
    update actions a set
        approvals_given = a.approvals_given + 1,
        state = case when a.approvals_given + 1 >= a.approvals_required then $6 else a.state end,
        approved_fingerprint = case when a.approvals_given + 1 >= a.approvals_required then ",
            $approved,
            " end,
        approved_at = case when a.approvals_given + 1 >= a.approvals_required then c.now end,
        event_seq = a.event_seq + (a.approvals_given + 1 >= a.approvals_required)::int,
        version = a.version + 1, updated = c.now
    from c
    where c.fresh and a.tenant_id = $1 and a.id = $2 and c.state = 'awaiting_approval'
        and a.approval_expires > c.now and ",
            $fits,
            " and a.policy_epoch = c.epoch and ",
            not_rewound!(),
            "
        and not exists (
            select 1 from approvals p where p.tenant_id = $1 and p.action_id = $2 and p.approver = $4
        )
    returning a.*
),
i as (
    insert into approvals (tenant_id, action_id, approver, place, at, note, fingerprint)
    select m.tenant_id, m.id, $4, m.approvals_given, m.updated, $7, $5 from m
)",
            event!("$8", "m.state <> 'awaiting_approval'"),
            "
select x.id is not null, x.id is not null or ",
            fresh!("state = 'awaiting_approval'"),
            ", x.id is null and exists (
        select 1 from approvals p where p.tenant_id = $1 and p.action_id = $2 and p.approver = $4 and p.fingerprint = $5
    ), ",
            action_columns!(),
            " from (select) one left join m x on true"
        )
    };
}
pub(crate) const APPROVE: &str = approve!("$5::bytea", "a.fingerprint = $5::bytea");

/// Planted: an approval is taken for whatever stands there.
#[cfg(feature = "planted-bugs")]
pub(crate) const APPROVE_WHATEVER_STANDS: &str = approve!("a.fingerprint", "$5::bytea is not null");

/// `$4` the version it was decided on, `$5` where to, `$6` `$7` error, `$8` how
/// long until the next attempt, `$9` what is in flight becomes unknown, `$10`
/// successor, `$11` the condition on time, `$12` the event,
/// `$13` attempts that it grants.
pub(crate) const TRANSITION: &str = concat!(
    taken!("true"),
    ",
m as (
    update actions a set
        state = $5, version = a.version + 1, event_seq = a.event_seq + 1, updated = c.now,
        attempt_id = null, lease_owner = null, lease_expires = null,
        error_code = coalesce($6, a.error_code), error_message = coalesce($7, a.error_message),
        next_attempt = c.now + $8::bigint,
        unknown_effects = a.unknown_effects + ($9::boolean and a.in_flight is not null)::int,
        in_flight = case when $9 then null else a.in_flight end,
        superseded_by = coalesce($10::bytea, a.superseded_by),
        attempts_left = greatest(a.attempts_left, $13::bigint)
    from c
    where c.fresh and a.tenant_id = $1 and a.id = $2 and a.version = $4::bigint
        and ($5 = 'outcome_unknown' or ",
    not_rewound!(),
    ")
        and case $11::text
            when 'always' then true
            when 'approval_expired' then a.approval_expires <= c.now
            when 'approval_open' then a.approval_expires > c.now
            when 'lease_expired' then a.lease_expires <= c.now
        end
    returning a.*
),
u as (
    update effects x set status = 'unknown', unknown_since = m.updated from m
    where $9 and x.tenant_id = $1 and x.action_id = $2 and x.status = 'in_flight'
)",
    event!("$12", "true"),
    row_after!("true")
);

/// `$4` reason.
pub(crate) const REQUEST_CANCEL: &str = concat!(
    taken!("true"),
    ",
m as (
    update actions a set cancel_requested = $4, version = a.version + 1, updated = c.now
    from c
    where c.fresh and a.tenant_id = $1 and a.id = $2 and c.state in ('executing', 'outcome_unknown')
        and a.cancel_requested is null
    returning a.*
)",
    row_after!("true")
);

/// `$4` the event that began the doubt. Nobody decides on this column, so the
/// row's version stays.
pub(crate) const ANNOUNCED: &str = concat!(
    taken!("state = 'outcome_unknown'"),
    ",
m as (
    update actions a set announced = a.event_seq
    from c
    where c.fresh and a.tenant_id = $1 and a.id = $2 and c.state = 'outcome_unknown' and a.event_seq = $4::bigint
    returning a.id
)
select m.id is not null, m.id is not null or ",
    fresh!("state = 'outcome_unknown'"),
    " from (select) one left join m on true"
);

/// `$4` version, `$5` how long until it is due again, `$6` repeats that it costs.
pub(crate) const POSTPONE: &str = concat!(
    taken!("true"),
    ",
m as (
    update actions a set
        next_attempt = c.now + $5::bigint, repeats_left = a.repeats_left - $6::bigint, version = a.version + 1,
        updated = c.now
    from c
    where c.fresh and a.tenant_id = $1 and a.id = $2 and a.version = $4::bigint and c.state = 'outcome_unknown'
        and a.repeats_left >= $6
    returning a.*
)",
    row_after!("true")
);

// ---- claims -------------------------------------------------------------------

/// `$4` attempt, `$5` owner, `$6` length of the lease, `$7` `$8` the event before
/// and after the attempt's number.
macro_rules! claim_to_run {
    ($gate:expr, $not_rewound:expr, $condition:expr) => {
        concat!(
            taken_in_force!($gate),
            ",
m as (
    update actions a set
        state = 'executing', version = a.version + 1, event_seq = a.event_seq + 1, updated = c.now,
        attempt = a.attempt + 1, attempt_id = $4, lease_owner = $5, lease_expires = c.now + $6::bigint,
        attempts_left = a.attempts_left - 1, next_attempt = null
    from c
    where c.fresh and a.tenant_id = $1 and a.id = $2 and a.attempts_left > 0 and ",
            $not_rewound,
            $condition,
            "
    returning a.*
)",
            event!("$7::text || m.attempt || $8::text", "true"),
            row_after!($gate)
        )
    };
}
macro_rules! claim_to_run_unless {
    ($not_rewound:expr) => {
        claim_to_run!(
            "state in ('approved', 'failed_retryable')",
            $not_rewound,
            "
        and a.cancel_requested is null and a.approved_fingerprint = a.fingerprint
        and (
            (c.state = 'approved' and a.approval_expires > c.now and a.policy_epoch = c.epoch)
            or (c.state = 'failed_retryable' and a.next_attempt <= c.now)
        )
        and (a.standing_writes > 0 or not c.paused)"
        )
    };
}
pub(crate) const CLAIM_TO_RUN: &str = claim_to_run_unless!(not_rewound!());

/// Planted: the claim does not ask whether the action was doubted.
#[cfg(feature = "planted-bugs")]
pub(crate) const CLAIM_TO_RUN_REWOUND: &str = claim_to_run_unless!("true");

/// Planted: the claim does not look at the state.
#[cfg(feature = "planted-bugs")]
pub(crate) const CLAIM_WHATEVER_THE_STATE: &str = claim_to_run!("true", "true", "");

/// The window is judged here. The parameters of `CLAIM_TO_RUN`. Without a next
/// attempt nothing is repeated by itself.
pub(crate) const CLAIM_TO_REPEAT: &str = concat!(
    taken!("state = 'outcome_unknown'"),
    ",
m as (
    update actions a set
        state = 'executing', version = a.version + 1, event_seq = a.event_seq + 1, updated = c.now,
        attempt = a.attempt + 1, attempt_id = $4, lease_owner = $5, lease_expires = c.now + $6::bigint,
        repeats_left = a.repeats_left - 1, next_attempt = null
    from c
    where c.fresh and a.tenant_id = $1 and a.id = $2 and c.state = 'outcome_unknown' and a.cancel_requested is null
        and a.approved_fingerprint = a.fingerprint and ",
    not_rewound!(),
    "
        and a.repeats_left > 0 and a.next_attempt <= c.now and (a.unknown_effects > 0 or a.rewound)
        and not exists (
            select 1 from effects x where x.tenant_id = $1 and x.action_id = $2 and x.status = 'unknown'
                and not (x.class = 'provider-idempotent' and x.first_sent + x.key_window > c.now)
        )
    returning a.*
)",
    event!("$7::text || m.attempt || $8::text", "true"),
    row_after!("state = 'outcome_unknown'")
);

/// `$4` attempt, `$5` length of the lease.
pub(crate) const HEARTBEAT: &str = concat!(
    taken!("state = 'executing' and attempt_id = $4"),
    ",
m as (
    update actions a set
        lease_expires = greatest(a.lease_expires, c.now + $5::bigint), version = a.version + 1, updated = c.now
    from c
    where c.fresh and a.tenant_id = $1 and a.id = $2 and c.state = 'executing' and a.attempt_id = $4
        and a.lease_expires > c.now and a.cancel_requested is null
    returning a.*
)",
    row_after!("state = 'executing' and attempt_id = $4")
);

/// `$4` attempt, `$5` ordinal, `$6` length of the lease, `$7` end of the window
/// of a key that an earlier write was sent under, `$8`… the effect. `$18` is when
/// that key was first sent.
macro_rules! claim_write {
    ($update:expr, $in_force:expr, $effects:expr, $before_insert:expr, $insert_from:expr) => {
        concat!(
            taken_in_force!("state = 'executing' and attempt_id = $4"),
            ",
m as (
    ",
            $update,
            $effects,
            "
    from c
    where c.fresh and a.tenant_id = $1 and a.id = $2 and c.state = 'executing' and a.attempt_id = $4
        and a.lease_expires > c.now and a.cancel_requested is null and a.in_flight is null
        and a.execution_deadline > c.now and ($7::bigint is null or $7 > c.now) and ",
            not_rewound!(),
            $in_force,
            "
    returning a.lease_expires, a.updated
)",
            $before_insert,
            ",
i as (
    insert into effects (",
            effect_fields!(),
            ")
    select $1, $2, $5::bigint, $8::text, true, $9::text, $10::bigint, $11::bigint, $12::text, $13::bytea, $14::text,
        $15::text, $16::text, $17::text, 'in_flight', $4, 1, coalesce($18::bigint, m.updated), $18, m.updated,
        $18 is not null, null, null, null
    from ",
            $insert_from,
            "
)
select m.updated is not null, m.updated is not null or ",
            fresh!("state = 'executing' and attempt_id = $4"),
            ", m.lease_expires, m.updated from (select) one left join m on true"
        )
    };
}
macro_rules! claim_write_update {
    () => {
        "update actions a set
        in_flight = $5::bigint, lease_expires = greatest(a.lease_expires, c.now + $6::bigint),
        first_write = coalesce(a.first_write, c.now), standing_writes = a.standing_writes + 1,
        version = a.version + 1, updated = c.now"
    };
}
macro_rules! claim_write_in_force {
    () => {
        "
        and (a.standing_writes > 0 or a.unknown_effects > 0 or (
            a.approval_expires > c.now and a.policy_epoch = c.epoch
        ))"
    };
}
/// Makes room where `try-later` set something aside that did not happen; a
/// trigger keeps it as history.
macro_rules! replace_set_aside {
    ($ordinals:expr) => {
        concat!(
            ",
d as (
    delete from effects x using m
    where x.tenant_id = $1 and x.action_id = $2 and x.ordinal ",
            $ordinals,
            " and x.set_aside and (not x.write or x.status = 'failed')
    returning x.ordinal
)"
        )
    };
}
/// Recorded effects that are about to be replaced so.
macro_rules! fewer_effects {
    ($ordinals:expr) => {
        concat!(
            "(
            select count(*) from effects x
            where x.tenant_id = $1 and x.action_id = $2 and x.ordinal ",
            $ordinals,
            " and x.set_aside and (not x.write or x.status = 'failed')
                and (x.refusal is not null or x.status = 'succeeded')
        )"
        )
    };
}
pub(crate) const CLAIM_WRITE: &str =
    claim_write!(claim_write_update!(), claim_write_in_force!(), "", "", "m");

/// The same where its place is taken, perhaps by what was set aside.
pub(crate) const CLAIM_WRITE_IN_PLACE: &str = claim_write!(
    claim_write_update!(),
    claim_write_in_force!(),
    concat!(", effects = a.effects - ", fewer_effects!("= $5")),
    replace_set_aside!("= $5"),
    "m left join d on true"
);

/// Planted: only the action claim looks at policy and approval.
#[cfg(feature = "planted-bugs")]
pub(crate) const CLAIM_WRITE_TRUSTING: &str = claim_write!(claim_write_update!(), "", "", "", "m");

/// Planted: the conditions are looked at, the row is left alone.
#[cfg(feature = "planted-bugs")]
pub(crate) const CLAIM_WRITE_LEAVING_ROW: &str = concat!(
    "with s as materialized (select state, tool from actions where tenant_id = $1 and id = $2),
c as materialized (
    select true as fresh, s.state, countersign_now() as now, set_config('synchronous_commit', $3, true) as how, i.epoch
    from s, lateral countersign_in_force($1, s.tool) i
),
m as (
    select greatest(a.lease_expires, c.now + $6::bigint) as lease_expires, c.now as updated
    from actions a, c
    where a.tenant_id = $1 and a.id = $2 and c.state = 'executing' and a.attempt_id = $4
        and a.lease_expires > c.now and a.cancel_requested is null and a.in_flight is null
        and a.execution_deadline > c.now and ($7::bigint is null or $7 > c.now)",
    claim_write_in_force!(),
    "
),
i as (
    insert into effects (",
    effect_fields!(),
    ")
    select $1, $2, $5::bigint, $8::text, true, $9::text, $10::bigint, $11::bigint, $12::text, $13::bytea, $14::text,
        $15::text, $16::text, $17::text, 'in_flight', $4, 1, coalesce($18::bigint, m.updated), $18, m.updated,
        $18 is not null, null, null, null
    from m
)
select m.updated is not null, true, m.lease_expires, m.updated from (select) one left join m on true"
);

/// `$4` attempt, `$5` ordinal, `$6` length of the lease, `$7` margin. What may be
/// claimed again: what failed and was never shown, and, inside the key's window,
/// what is unknown or was set aside. Only what is unknown needs no deadline: to
/// ask again is to find out. The effect remembers that an earlier send may have
/// arrived, and when the first was.
pub(crate) const REPEAT_WRITE: &str = concat!(
    taken_in_force!("state = 'executing' and attempt_id = $4"),
    ",
m as (
    update actions a set
        in_flight = $5::bigint,
        lease_expires = greatest(a.lease_expires, c.now + $6::bigint, c.now + x.send_limit + $7::bigint),
        first_write = coalesce(a.first_write, c.now),
        standing_writes = a.standing_writes + (x.status = 'failed')::int,
        unknown_effects = a.unknown_effects - (x.status = 'unknown')::int,
        effects = a.effects - (x.status = 'succeeded')::int,
        version = a.version + 1, updated = c.now
    from c, effects x
    where c.fresh and a.tenant_id = $1 and a.id = $2 and c.state = 'executing' and a.attempt_id = $4
        and a.lease_expires > c.now and a.cancel_requested is null and a.in_flight is null and ",
    not_rewound!(),
    claim_write_in_force!(),
    "
        and x.tenant_id = $1 and x.action_id = $2 and x.ordinal = $5 and x.write
        and (
            (x.status = 'failed' and x.refusal is null and a.execution_deadline > c.now
                and (x.key_first_sent is null or x.class <> 'provider-idempotent'
                    or x.key_first_sent + x.key_window > c.now))
            or (x.status = 'unknown' and x.class = 'provider-idempotent' and x.first_sent + x.key_window > c.now)
            or (x.status = 'succeeded' and x.set_aside and x.class = 'provider-idempotent'
                and x.first_sent + x.key_window > c.now and a.execution_deadline > c.now)
        )
    returning a.lease_expires, a.updated
),
u as (
    update effects x set
        status = 'in_flight', send = x.send + 1, attempt_id = $4, last_sent = m.updated,
        first_sent = coalesce(x.first_sent, x.key_first_sent, m.updated),
        may_have_arrived = x.may_have_arrived or x.status in ('unknown', 'succeeded') or x.key_first_sent is not null,
        unknown_since = null, answer = null, set_aside = false, recorded_at = null
    from m
    where x.tenant_id = $1 and x.action_id = $2 and x.ordinal = $5
    returning ",
    effect_columns!(),
    "
)
select m.updated is not null, m.updated is not null or ",
    fresh!("state = 'executing' and attempt_id = $4"),
    ", m.lease_expires, u.* from (select) one left join m on true left join u on true"
);

/// `$4` attempt, `$5` how it stays by them, `$6`… the effects, each a list.
macro_rules! record_settled {
    ($effects:expr, $before_insert:expr, $insert_from:expr) => {
        concat!(
            taken!("state = 'executing' and attempt_id = $4"),
            ",
m as (
    update actions a set
        effects = a.effects + cardinality($5::bigint[])",
            $effects,
            ", version = a.version + 1, updated = c.now
    from c
    where c.fresh and a.tenant_id = $1 and a.id = $2 and c.state = 'executing' and a.attempt_id = $4
    returning a.updated
)",
            $before_insert,
            ",
i as (
    insert into effects (",
            effect_fields!(),
            ")
    select $1, $2, n.ordinal, n.kind, n.write, n.class, n.key_window, n.send_limit, n.terms, n.fingerprint, n.request,
        n.method, n.target, null, n.status, $4, n.send, null, null, null, false, n.answer, n.refusal, m.updated
    from ",
            $insert_from,
            ", unnest(
        $5::bigint[], $6::text[], $7::boolean[], $8::text[], $9::bigint[], $10::bigint[], $11::text[], $12::bytea[],
        $13::text[], $14::text[], $15::text[], $16::text[], $17::bigint[], $18::text[], $19::text[]
    ) as n (
        ordinal, kind, write, class, key_window, send_limit, terms, fingerprint, request, method, target, status, send,
        answer, refusal
    )
)
select m.updated is not null, m.updated is not null or ",
            fresh!("state = 'executing' and attempt_id = $4"),
            ", m.updated from (select) one left join m on true"
        )
    };
}
pub(crate) const RECORD_SETTLED: &str = record_settled!("", "", "m");

/// The same where places are taken, perhaps by what was set aside.
pub(crate) const RECORD_SETTLED_IN_PLACE: &str = record_settled!(
    concat!(" - ", fewer_effects!("= any($5)")),
    replace_set_aside!("= any($5)"),
    "(select m.updated, count(d.ordinal) from m left join d on true group by m.updated) m"
);

/// A write without a row, of an action whose ledger was rewound: `$4` attempt,
/// `$5` ordinal, `$6`… the effect, `$16` when an earlier write was sent under its
/// key.
macro_rules! doubt_write {
    ($effects:expr, $before_insert:expr, $insert_from:expr) => {
        concat!(
            taken!("state = 'executing' and attempt_id = $4"),
            ",
m as (
    update actions a set
        unknown_effects = a.unknown_effects + 1, standing_writes = a.standing_writes + 1,
        first_write = coalesce(a.first_write, a.approved_at), version = a.version + 1, updated = c.now",
            $effects,
            "
    from c
    where c.fresh and a.tenant_id = $1 and a.id = $2 and c.state = 'executing' and a.attempt_id = $4
        and a.lease_expires > c.now and a.in_flight is null and a.rewound
    returning a.updated, least(coalesce(a.approved_at, a.created), $16::bigint) as first
)",
            $before_insert,
            ",
i as (
    insert into effects (",
            effect_fields!(),
            ", unknown_since)
    select $1, $2, $5::bigint, $6::text, true, $7::text, $8::bigint, $9::bigint, $10::text, $11::bytea, $12::text,
        $13::text, $14::text, $15::text, 'unknown', $4, 1, m.first, $16, m.first, true, null, null, null, m.updated
    from ",
            $insert_from,
            "
)
select m.updated is not null, m.updated is not null or ",
            fresh!("state = 'executing' and attempt_id = $4"),
            ", m.updated, m.first from (select) one left join m on true"
        )
    };
}
pub(crate) const DOUBT_WRITE: &str = doubt_write!("", "", "m");
/// … where `try-later` set something aside.
pub(crate) const DOUBT_WRITE_IN_PLACE: &str = doubt_write!(
    concat!(", effects = a.effects - ", fewer_effects!("= $5::bigint")),
    replace_set_aside!("= $5::bigint"),
    "m left join d on true"
);

/// `$3` attempt, `$4` ordinal, `$5` send.
pub(crate) const STILL_LIVE: &str = "select exists (
    select 1 from actions a
        join effects x on x.tenant_id = a.tenant_id and x.action_id = a.id and x.ordinal = a.in_flight
    where a.tenant_id = $1 and a.id = $2 and a.state = 'executing' and a.attempt_id = $3 and a.in_flight = $4::bigint
        and x.attempt_id = $3 and x.send = $5::bigint
), countersign_now()";

// ---- records and ends -----------------------------------------------------------

/// `$4` attempt, `$5` ordinal, `$6` send, `$7` it was recorded, `$8` it did not
/// happen, `$9` attempts it grants, `$10` the provider's name for it, `$11`
/// status, `$12` answer, `$13` refusal. What may have arrived once is not undone
/// by a later send that did not go out; where it did not happen, its key's window
/// has not begun.
macro_rules! record {
    ($matched:expr) => {
        concat!(
            taken!("state = 'executing' and attempt_id = $4"),
            ",
m as (
    update actions a set
        in_flight = null, effects = a.effects + $7::boolean::int,
        standing_writes = a.standing_writes - $8::boolean::int,
        attempts_left = greatest(a.attempts_left, $9::bigint),
        provider_reference = coalesce($10, a.provider_reference), version = a.version + 1, updated = c.now
    from c
    where c.fresh and a.tenant_id = $1 and a.id = $2 and c.state = 'executing' and a.attempt_id = $4
        and a.in_flight = $5::bigint and ",
            $matched,
            "
    returning a.updated
),
u as (
    update effects x set
        status = $11, answer = $12, refusal = $13, recorded_at = m.updated, unknown_since = null,
        first_sent = case when $11 = 'failed' then x.key_first_sent else x.first_sent end,
        may_have_arrived = case when $11 = 'failed' then x.key_first_sent is not null else x.may_have_arrived end
    from m
    where x.tenant_id = $1 and x.action_id = $2 and x.ordinal = $5
    returning ",
            effect_columns!(),
            "
)
select m.updated is not null, m.updated is not null or ",
            fresh!("state = 'executing' and attempt_id = $4"),
            ", u.* from (select) one left join m on true left join u on true"
        )
    };
}
pub(crate) const RECORD: &str = record!(
    "exists (
            select 1 from effects x where x.tenant_id = $1 and x.action_id = $2 and x.ordinal = $5
                and x.status = 'in_flight' and x.attempt_id = $4 and x.send = $6::bigint
                and not ($8 and x.may_have_arrived)
        )"
);

/// Planted: matched by attempt and place, not by send.
#[cfg(feature = "planted-bugs")]
pub(crate) const RECORD_OF_ANY_SEND: &str = record!("$6::bigint > 0");

/// A late answer: `$4` attempt, `$5` ordinal, `$6` send, `$7` answer, `$8` the
/// provider's name for it; `$9` `$10` where to and the event while another effect
/// is unknown, `$11` `$12` where to and the event if it was the last.
pub(crate) const RECORD_LATE: &str = concat!(
    taken!("state = 'outcome_unknown'"),
    ",
m as (
    update actions a set
        state = case when a.unknown_effects > 1 then $9 else $11 end,
        unknown_effects = a.unknown_effects - 1, effects = a.effects + 1,
        attempts_left = greatest(a.attempts_left, 1),
        -- what is left may be something that goes on by itself.
        next_attempt = case when a.unknown_effects > 1 then coalesce(a.next_attempt, c.now) else c.now end,
        provider_reference = coalesce($8, a.provider_reference),
        event_seq = a.event_seq + 1, version = a.version + 1, updated = c.now
    from c
    where c.fresh and a.tenant_id = $1 and a.id = $2 and c.state = 'outcome_unknown'
        and exists (
            select 1 from effects x where x.tenant_id = $1 and x.action_id = $2 and x.ordinal = $5::bigint
                and x.status = 'unknown' and x.attempt_id = $4 and x.send = $6::bigint
        )
    returning a.*
),
u as (
    update effects x set status = 'succeeded', answer = $7, recorded_at = m.updated, unknown_since = null from m
    where x.tenant_id = $1 and x.action_id = $2 and x.ordinal = $5
)",
    event!("case when m.unknown_effects > 0 then $10::text else $12::text end", "true"),
    row_after!("state = 'outcome_unknown'")
);

/// `$4` attempt, `$5` where to, `$6` result, `$7` `$8` error, `$9` how long until
/// the next attempt, `$10` the outcome of something is lost, `$11` `$12` which
/// send, `$13` attempts given back, `$14` ordinals to set aside, `$15` what was
/// printed, `$16` the event.
macro_rules! end_attempt {
    ($gate:expr, $condition:expr) => {
        concat!(
            taken!($gate),
            ",
m as (
    update actions a set
        state = $5, version = a.version + 1, event_seq = a.event_seq + 1, updated = c.now,
        attempt_id = null, lease_owner = null, lease_expires = null,
        result = $6, error_code = $7, error_message = $8, next_attempt = c.now + $9::bigint,
        unknown_effects = a.unknown_effects + (a.in_flight is not null)::int, in_flight = null,
        attempts_left = a.attempts_left + $13::bigint
    from c
    where c.fresh and a.tenant_id = $1 and a.id = $2 and ",
            $condition,
            "
    returning a.*
),
u as (
    update effects x set status = 'unknown', unknown_since = m.updated from m
    where $10 and x.tenant_id = $1 and x.action_id = $2 and x.status = 'in_flight'
),
o as (
    update effects x set set_aside = true from m
    where cardinality($14::bigint[]) > 0 and x.tenant_id = $1 and x.action_id = $2 and x.ordinal = any($14)
        and x.status in ('succeeded', 'failed')
),
l as (
    insert into action_logs (tenant_id, action_id, attempt, at, lines)
    select m.tenant_id, m.id, m.attempt, m.updated, $15 from m where $15::text is not null
)",
            event!("$16", "true"),
            row_after!($gate)
        )
    };
}
pub(crate) const END_ATTEMPT: &str = end_attempt!(
    "state = 'executing' and attempt_id = $4",
    concat!(
        "c.state = 'executing' and a.attempt_id = $4 and ($10::boolean or ",
        not_rewound!(),
        ")
        and (a.in_flight is not null or a.unknown_effects > 0) = $10::boolean
        and ($11::bigint is null or (a.in_flight = $11 and exists (
            select 1 from effects x where x.tenant_id = $1 and x.action_id = $2 and x.ordinal = $11
                and x.status = 'in_flight' and x.attempt_id = $4 and x.send = $12::bigint
        )))"
    )
);

/// Planted: the end of an attempt looks at neither state nor attempt.
#[cfg(feature = "planted-bugs")]
pub(crate) const END_ATTEMPT_WHATEVER_THE_STATE: &str = end_attempt!(
    "true",
    "$4::bytea is not null and $10::boolean is not null and $11::bigint is null and $12::bigint is null"
);

/// `$4` version, `$5` where to, `$6` it happened, `$7` it did not, `$8` attempts it
/// grants, `$9` `$10` error, `$11` attempt, `$12` ordinal, `$13` send, `$14` how
/// long it has to have been unknown, `$15` answer, `$16` `$17` the evidence before
/// and after its time, `$18` the event. Who gave up on it leaves it unknown, and
/// says so.
pub(crate) const RESOLVE: &str = concat!(
    taken!("state = 'outcome_unknown'"),
    ",
m as (
    update actions a set
        state = $5, version = a.version + 1, event_seq = a.event_seq + 1, updated = c.now,
        unknown_effects = a.unknown_effects - ($6::boolean or $7::boolean)::int, effects = a.effects + $6::int,
        standing_writes = a.standing_writes - $7::int,
        attempts_left = greatest(a.attempts_left, $8::bigint),
        next_attempt = case $5
            when 'failed_retryable' then c.now
            -- what is left may be something that goes on by itself.
            when 'outcome_unknown' then coalesce(a.next_attempt, c.now)
        end,
        error_code = coalesce($9, a.error_code), error_message = coalesce($10, a.error_message)
    from c
    where c.fresh and a.tenant_id = $1 and a.id = $2 and a.version = $4::bigint and c.state = 'outcome_unknown'
        and exists (
            select 1 from effects x where x.tenant_id = $1 and x.action_id = $2 and x.ordinal = $12::bigint
                and x.status = 'unknown' and x.attempt_id = $11 and x.send = $13::bigint
                and x.unknown_since + $14::bigint <= c.now
        )
    returning a.*
),
u as (
    update effects x set
        evidence = $16::text || to_char(
            timestamptz 'epoch' at time zone 'UTC' + m.updated * interval '1 microsecond',
            'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'
        ) || $17::text,
        status = case when $6 then 'succeeded' when $7 then 'failed' else x.status end,
        answer = case when $6 then $15::text else x.answer end,
        recorded_at = case when $6 or $7 then m.updated else x.recorded_at end,
        unknown_since = case when $6 or $7 then null else x.unknown_since end,
        first_sent = case when $7 then x.key_first_sent else x.first_sent end,
        may_have_arrived = case when $7 then x.key_first_sent is not null else x.may_have_arrived end
    from m
    where x.tenant_id = $1 and x.action_id = $2 and x.ordinal = $12
)",
    event!("$18", "true"),
    row_after!("state = 'outcome_unknown'")
);

// ---- reads ----------------------------------------------------------------------

pub(crate) const ACTION: &str =
    concat!("select ", action_columns!(), " from actions x where x.tenant_id = $1 and x.id = $2");

pub(crate) const EFFECTS: &str = concat!(
    "select ",
    effect_columns!(),
    " from effects x where x.tenant_id = $1 and x.action_id = $2 order by x.ordinal"
);

pub(crate) const UNKNOWN_EFFECTS: &str = concat!(
    "select ",
    effect_columns!(),
    " from effects x where x.tenant_id = $1 and x.action_id = $2 and x.status = 'unknown' order by x.ordinal"
);

/// What was replaced comes before what replaced it.
pub(crate) const EFFECTS_WITH_HISTORY: &str = concat!(
    "select ",
    effect_columns!(),
    " from (
    select ",
    effect_columns!(),
    ", x.place from effects_set_aside x where x.tenant_id = $1 and x.action_id = $2
    union all
    select ",
    effect_columns!(),
    ", 9223372036854775807 from effects x where x.tenant_id = $1 and x.action_id = $2
) x order by x.ordinal, x.place"
);

pub(crate) const LOG: &str =
    "select lines from action_logs where tenant_id = $1 and action_id = $2 order by attempt";

/// `$3` after, `$4` limit.
pub(crate) const EVENTS_OF_ACTION: &str =
    "select cursor, tenant_id, action_id, seq, at, body, hash from events
where tenant_id = $1 and action_id = $2 and seq > $3 order by seq limit $4";

/// `$2` after, `$3` limit. Only as far as nothing can show up behind.
pub(crate) const EVENTS: &str = "select cursor, tenant_id, action_id, seq, at, body, hash from events
where tenant_id = $1 and cursor > $2 and cursor < (select countersign_horizon()) order by cursor limit $3";

/// Where a list goes on.
pub(crate) const PLACE_IN_LIST: &str = "select created, id from actions where tenant_id = $1 and id = $2";

macro_rules! list {
    ($narrowed:literal) => {
        concat!(
            "select ",
            action_columns!(),
            " from actions x where x.tenant_id = $1 and (x.created, x.id) < ($2::bigint, $3::bytea)
    and ($4::text is null or x.state = $4) and ($5::text is null or x.tool = $5) and ($6::text is null or x.run = $6)",
            $narrowed,
            " order by x.created desc, x.id desc limit $7"
        )
    };
}

// The same list by what narrows it best: `$2` `$3` where it goes on, `$4` state,
// `$5` tool, `$6` run, `$7` limit.
pub(crate) const LIST: &str = list!("");
pub(crate) const LIST_BY_STATE: &str = list!(" and x.state = $4");
pub(crate) const LIST_BY_TOOL: &str = list!(" and x.tool = $5");
pub(crate) const LIST_BY_RUN: &str = list!(" and x.run = $6");

macro_rules! policy_epoch {
    () => {
        "(select t.policy_epoch from tenants t where t.tenant_id = x.tenant_id)"
    };
}

/// `$1` limit. What nobody can move now is not listed: it would stand before
/// everything else for ever. No lock: many hosts may read the same list, and the
/// claims decide. The first column is what the claims of its tenant compare with.
pub(crate) const DUE: &str = concat!(
    "with c as materialized (select countersign_now() as now)
select ",
    policy_epoch!(),
    ", ",
    action_columns!(),
    " from actions x where x.due_at <= (select c.now from c)
    and not (
        x.state in ('approved', 'failed_retryable') and x.approval_expires > (select c.now from c)
        and x.cancel_requested is null and x.attempts_left > 0 and x.standing_writes = 0
        and exists (select 1 from tools t where t.tenant_id = x.tenant_id and t.name = x.tool and t.paused)
    )
order by x.due_at limit $1"
);

/// Once, when a host opened a store that is its alone.
pub(crate) const DUE_AFTER_OPENING: &str = concat!(
    "select ",
    policy_epoch!(),
    ", ",
    action_columns!(),
    " from actions x
where x.due_at is not null and (x.due_at <= (select countersign_now()) or x.state = 'executing')
order by x.due_at limit $1"
);

// ---- the registry ---------------------------------------------------------------

/// Taken alone by what moves a tenant's epoch; claims hold it together.
pub(crate) const POLICY_LOCK: &str = "select pg_advisory_xact_lock(hashtextextended($1, 7305))";
/// A token is looked up without its tenant, so it is unique without it too.
pub(crate) const TOKEN_LOCK: &str =
    "select pg_advisory_xact_lock(hashtextextended('countersign token ' || $1::text, 7306))";
pub(crate) const INSERT_TENANT: &str = "insert into tenants (tenant_id, created)
values ($1, countersign_now()) on conflict (tenant_id) do nothing";
pub(crate) const MOVE_POLICY_EPOCH: &str =
    "update tenants set policy_epoch = policy_epoch + 1 where tenant_id = $1";
pub(crate) const INSERT_COMPONENT: &str = "insert into components (tenant_id, digest, bytes, created)
values ($1, $2, $3, $4) on conflict (tenant_id, digest) do nothing";
pub(crate) const INSERT_GRANT: &str = "insert into grants (tenant_id, digest, source, created_by, created)
values ($1, $2, $3, $4, $5) on conflict (tenant_id, digest) do nothing";
pub(crate) const INSERT_TOOL_VERSION: &str = "insert into tool_versions (
    tenant_id, name, version, component_digest, inspection, installed_by, installed
) values ($1, $2, $3, $4, $5, $6, $7) on conflict (tenant_id, name, version) do nothing";
pub(crate) const VERSION_COMPONENT: &str =
    "select component_digest from tool_versions where tenant_id = $1 and name = $2 and version = $3";
pub(crate) const INSERT_TOOL: &str = "insert into tools (tenant_id, name, current_version, grant_digest)
values ($1, $2, $3, $4) on conflict (tenant_id, name) do nothing";
/// One row if anything in force changes.
pub(crate) const PUT_IN_FORCE: &str = "update tools set current_version = $3, grant_digest = $4
where tenant_id = $1 and name = $2 and (current_version <> $3 or grant_digest <> $4)";
pub(crate) const PUT_GRANT_IN_FORCE: &str = "update tools set grant_digest = $3
where tenant_id = $1 and name = $2 and grant_digest <> $3";
pub(crate) const SET_PAUSED: &str = "update tools set paused = $3 where tenant_id = $1 and name = $2";

macro_rules! tools {
    ($condition:literal) => {
        concat!(
            "select v.tenant_id, v.name, v.version, v.version = t.current_version, v.component_digest, t.grant_digest,
    g.source, v.inspection, t.paused, (select e.policy_epoch from tenants e where e.tenant_id = t.tenant_id),
    v.installed
from tools t
    join tool_versions v on v.tenant_id = t.tenant_id and v.name = t.name
    join grants g on g.tenant_id = t.tenant_id and g.digest = t.grant_digest
where t.tenant_id = $1 ",
            $condition
        )
    };
}
pub(crate) const TOOL: &str = tools!("and t.name = $2 and v.version = coalesce($3, t.current_version)");
pub(crate) const TOOLS: &str =
    tools!("order by v.name collate \"C\", v.installed desc, v.version collate \"C\" desc");
pub(crate) const COMPONENT: &str = "select bytes from components where tenant_id = $1 and digest = $2";
pub(crate) const GRANT: &str = "select source from grants where tenant_id = $1 and digest = $2";

pub(crate) const TOKEN_EXISTS: &str = "select 1 from principals where token_id = $1";
pub(crate) const INSERT_PRINCIPAL: &str = "insert into principals (
    tenant_id, token_id, token_hash, name, roles, created
) values ($1, $2, $3, $4, $5, $6)";
/// `$2` tool, `$3` caller, `$4` actor. As many rows as there are pending ones, which the quota
/// bounds.
pub(crate) const PENDING: &str =
    "select count(*), count(*) filter (where tool = $2), count(*) filter (where proposer = $3),
    count(*) filter (where actor = $4)
from actions where tenant_id = $1 and state = 'awaiting_approval'";
pub(crate) const PRINCIPAL: &str = "select tenant_id, token_id, token_hash, name, roles, created, revoked
from principals where token_id = $1";
pub(crate) const PRINCIPALS: &str = "select tenant_id, token_id, token_hash, name, roles, created, revoked
from principals where tenant_id = $1 order by created, token_id collate \"C\"";
pub(crate) const PRINCIPAL_OF_TENANT: &str =
    "select revoked from principals where tenant_id = $1 and token_id = $2";
pub(crate) const REVOKE: &str = "update principals set revoked = $3
where tenant_id = $1 and token_id = $2 and revoked is null";
