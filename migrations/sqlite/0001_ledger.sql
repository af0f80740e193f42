-- The ledger and the registry.
--
-- Every primary and unique key is led by tenant_id, so that the same schema
-- shards by tenant. Times are integer microseconds since 1970, UTC. Ids and
-- digests are blobs (16 and 32 bytes): half of their text form in every index,
-- and nothing to spell in two ways; read them with hex(). JSON is text, because
-- a JSON type may reorder what was hashed.
--
-- Constraints and triggers have names, and the names are part of the contract:
-- an error that a constraint raised carries its name. They state again what the
-- code holds anyway; where one fires, the code has a bug or somebody writes by
-- hand.

create table tenants (
    tenant_id text not null,
    -- Moves with every change of what an existing tool may do or of who may
    -- decide; claims compare it with the epoch that the action was proposed at.
    policy_epoch integer not null default 1,
    created integer not null,
    constraint tenants_pkey primary key (tenant_id)
) strict, without rowid;

create table principals (
    tenant_id text not null,
    token_id text not null,
    token_hash blob not null,
    name text not null,
    roles text not null,
    created integer not null,
    revoked integer,
    constraint principals_pkey primary key (tenant_id, token_id),
    constraint principals_tenant foreign key (tenant_id) references tenants (tenant_id),
    constraint principals_token_hash check (length(token_hash) = 32)
) strict;
-- A caller names only its token; which tenant it is of is what the row says.
create index principals_by_token on principals (token_id);

create table components (
    tenant_id text not null,
    digest blob not null,
    bytes blob not null,
    created integer not null,
    constraint components_pkey primary key (tenant_id, digest),
    constraint components_tenant foreign key (tenant_id) references tenants (tenant_id),
    constraint components_digest check (length(digest) = 32)
) strict;

create table grants (
    tenant_id text not null,
    digest blob not null,
    source text not null,
    created_by text not null,
    created integer not null,
    constraint grants_pkey primary key (tenant_id, digest),
    constraint grants_tenant foreign key (tenant_id) references tenants (tenant_id),
    constraint grants_digest check (length(digest) = 32)
) strict;

-- A tool by name: what of it is in force.
create table tools (
    tenant_id text not null,
    name text not null,
    current_version text not null,
    grant_digest blob not null,
    paused integer not null default 0,
    constraint tools_pkey primary key (tenant_id, name),
    constraint tools_current foreign key (tenant_id, name, current_version)
        references tool_versions (tenant_id, name, version) deferrable initially deferred,
    constraint tools_grant foreign key (tenant_id, grant_digest) references grants (tenant_id, digest),
    constraint tools_paused check (paused in (0, 1))
) strict;

create table tool_versions (
    tenant_id text not null,
    name text not null,
    version text not null,
    component_digest blob not null,
    inspection text not null,
    installed_by text not null,
    installed integer not null,
    constraint tool_versions_pkey primary key (tenant_id, name, version),
    constraint tool_versions_component foreign key (tenant_id, component_digest)
        references components (tenant_id, digest)
) strict;

create table actions (
    -- What moves, first: a row may run over onto further pages, and these are
    -- read without following it there.
    tenant_id text not null,
    -- A pure function of tenant and action_key, so its uniqueness is the key's.
    id blob not null,
    state text not null,
    version integer not null,
    event_seq integer not null,
    attempt integer not null default 0,
    attempt_id blob,
    lease_owner text,
    lease_expires integer,
    in_flight integer,
    cancel_requested text,
    attempts_left integer not null,
    repeats_left integer not null,
    next_attempt integer,
    first_write integer,
    unknown_effects integer not null default 0,
    standing_writes integer not null default 0,
    effects integer not null default 0,
    approvals_given integer not null default 0,
    approved_fingerprint blob,
    approved_at integer,
    superseded_by blob,
    provider_reference text,
    error_code text,
    error_message text,
    updated integer not null,

    -- From here on nothing changes after the proposal, but for the result.
    policy_epoch integer not null,
    approval_expires integer not null,
    execution_deadline integer not null,
    approvals_required integer not null,
    run_by_itself integer not null,
    created integer not null,
    fingerprint blob not null,
    intent blob not null,
    action_key text not null,
    run text,
    step text,
    tool text not null,
    requested_version text,
    tool_version text not null,
    component_digest blob not null,
    grant_digest blob not null,
    actor text not null,
    proposer text not null,
    supersedes blob,
    compensates blob,
    seed blob not null,
    preview text,
    plan text not null,
    arguments text not null,
    result text,

    -- When a worker or the reaper has something to do about it; null: never by
    -- itself. One index over it is all that recovery reads.
    due_at integer generated always as (
        case state
            when 'executing' then lease_expires
            when 'awaiting_approval' then approval_expires
            when 'approved' then
                case
                    when cancel_requested is not null then updated
                    when run_by_itself = 1 then min(approved_at, approval_expires)
                    else approval_expires
                end
            when 'failed_retryable' then
                case
                    when cancel_requested is not null or attempts_left = 0 then min(updated, next_attempt)
                    when standing_writes = 0 then min(next_attempt, approval_expires)
                    else next_attempt
                end
            when 'outcome_unknown' then case when repeats_left > 0 then next_attempt end
        end
    ) virtual,

    constraint actions_pkey primary key (tenant_id, id),
    constraint actions_tenant foreign key (tenant_id) references tenants (tenant_id),
    constraint actions_component foreign key (tenant_id, component_digest) references components (tenant_id, digest),
    constraint actions_grant foreign key (tenant_id, grant_digest) references grants (tenant_id, digest),
    -- Here and below no list of more than two: SQLite builds a table for one, for
    -- each row that it checks.
    constraint actions_state check (
        state = 'proposed' or state = 'awaiting_approval' or state = 'approved' or state = 'executing'
        or state = 'succeeded' or state = 'failed_retryable' or state = 'failed_terminal'
        or state = 'outcome_unknown' or state = 'cancelled' or state = 'expired'
    ),
    constraint actions_lease_iff_executing check (
        (state = 'executing') = (attempt_id is not null)
        and (state = 'executing') = (lease_expires is not null)
        and (state = 'executing') = (lease_owner is not null)
    ),
    -- The states that only an approved action reaches. The other ends, and
    -- outcome_unknown after a rewound ledger, may come without an approval.
    constraint actions_approved_as_shown check (
        (state <> 'approved' and state <> 'executing' and state <> 'succeeded' and state <> 'failed_retryable')
        or (approved_fingerprint is not distinct from fingerprint and approved_at is not null)
    ),
    constraint actions_result_iff_succeeded check ((state = 'succeeded') = (result is not null)),
    constraint actions_in_flight_only_executing check (in_flight is null or state = 'executing'),
    -- An unknown outcome is never hidden behind another state; failed_terminal
    -- may have one, where a person gave up.
    constraint actions_unknown_never_hidden check (
        unknown_effects = 0 or state = 'executing' or state = 'outcome_unknown' or state = 'failed_terminal'
    ),
    constraint actions_undone_has_no_writes check (
        (state <> 'cancelled' and state <> 'expired') or standing_writes = 0
    ),
    constraint actions_retryable_is_due check (state <> 'failed_retryable' or next_attempt is not null),
    constraint actions_counts check (
        attempts_left >= 0 and repeats_left >= 0 and unknown_effects >= 0 and standing_writes >= 0
        and effects >= 0 and unknown_effects <= standing_writes and attempt >= 0
    ),
    constraint actions_digests check (
        length(id) = 16 and length(fingerprint) = 32 and length(intent) = 32 and length(seed) = 32
    ),
    constraint actions_error check ((error_code is null) = (error_message is null)),
    constraint actions_run_and_step check ((run is null) = (step is null))
) strict;

create index actions_due on actions (due_at) where due_at is not null;
-- Lists, newest first.
create index actions_by_time on actions (tenant_id, created, id);
create index actions_by_state on actions (tenant_id, state, created, id);
create index actions_by_tool on actions (tenant_id, tool, created, id);
create index actions_by_run on actions (tenant_id, run, created, id) where run is not null;

create trigger actions_immutable before update of
    tenant_id, id, action_key, run, step, tool, requested_version, tool_version, component_digest, grant_digest,
    arguments, intent, fingerprint, actor, proposer, plan, preview, approvals_required, approval_expires,
    execution_deadline, policy_epoch, run_by_itself, supersedes, compensates, created, seed
on actions
begin
    select raise(abort, 'actions_immutable');
end;

-- One trigger, three names: each trigger that fires costs as much as a statement.
create trigger actions_move_as_events_say before update of state, event_seq, result, error_code, approved_fingerprint
on actions
begin
    select case
        when old.state = 'succeeded' or old.state = 'failed_terminal' or old.state = 'cancelled'
            or old.state = 'expired'
            then raise(abort, 'actions_terminal_never_changes')
        when new.state <> old.state and new.event_seq <> old.event_seq + 1
            then raise(abort, 'actions_state_needs_event')
        when new.event_seq <> old.event_seq and new.event_seq <> old.event_seq + 1
            then raise(abort, 'actions_event_seq_has_no_gap')
    end;
end;

create trigger actions_never_deleted before delete on actions
begin
    select raise(abort, 'actions_never_deleted');
end;

-- One yes per approver.
create table approvals (
    tenant_id text not null,
    action_id blob not null,
    approver text not null,
    -- The order in which they were given, from 1.
    place integer not null,
    at integer not null,
    note text,
    fingerprint blob not null,
    constraint approvals_pkey primary key (tenant_id, action_id, approver),
    constraint approvals_action foreign key (tenant_id, action_id) references actions (tenant_id, id)
) strict, without rowid;

create trigger approvals_immutable before update on approvals
begin
    select raise(abort, 'approvals_immutable');
end;
create trigger approvals_never_deleted before delete on approvals
begin
    select raise(abort, 'approvals_never_deleted');
end;

create table effects (
    tenant_id text not null,
    action_id blob not null,
    ordinal integer not null,
    status text not null,
    attempt_id blob not null,
    send integer not null,
    write integer not null,
    may_have_arrived integer not null default 0,
    set_aside integer not null default 0,
    first_sent integer,
    -- Start of the key's window where an earlier write of this action was sent
    -- under the same key; null where this effect is the first under its key.
    key_first_sent integer,
    last_sent integer,
    unknown_since integer,
    recorded_at integer,
    -- The terms that conditions compare, and all of them as JSON.
    class text not null,
    key_window integer not null,
    send_limit integer not null,
    terms text not null,
    kind text not null,
    fingerprint blob not null,
    provider_key text,
    request text not null,
    answer text,
    refusal text,
    evidence text,
    method text generated always as (json_extract(request, '$.method')) virtual,
    target text generated always as (json_extract(request, '$.url')) virtual,

    constraint effects_pkey primary key (tenant_id, action_id, ordinal),
    constraint effects_action foreign key (tenant_id, action_id) references actions (tenant_id, id),
    constraint effects_status check (
        status = 'in_flight' or status = 'succeeded' or status = 'failed' or status = 'unknown'
    ),
    constraint effects_class check (
        class = 'read' or class = 'provider-idempotent' or class = 'verifiable' or class = 'manual'
    ),
    constraint effects_only_writes_are_open check (write = 1 or status in ('succeeded', 'failed')),
    constraint effects_sent_has_key check (write = 0 or send = 0 or provider_key is not null),
    constraint effects_open_was_sent check (
        status in ('succeeded', 'failed') or (send > 0 and first_sent is not null and last_sent is not null)
    ),
    constraint effects_answer_only_if_succeeded check (answer is null or status = 'succeeded'),
    constraint effects_refusal_only_if_failed check (refusal is null or status = 'failed'),
    constraint effects_unknown_has_since check ((status = 'unknown') = (unknown_since is not null)),
    constraint effects_ordinal check (ordinal >= 1)
) strict;

-- Effects are serialised: nothing else is claimed while one is out.
create unique index effects_one_in_flight on effects (tenant_id, action_id) where status = 'in_flight';

create trigger effects_immutable before update of
    tenant_id, action_id, ordinal, kind, write, class, key_window, send_limit, terms, fingerprint, provider_key,
    request, key_first_sent
on effects
begin
    select raise(abort, 'effects_immutable');
end;

create trigger effects_first_sent_never_moves before update of first_sent
on effects when old.status <> 'failed' and new.status <> 'failed'
    and new.first_sent is distinct from old.first_sent
begin
    select raise(abort, 'effects_first_sent_never_moves');
end;

-- Only what try-later set aside is ever replaced, and it is kept as history.
create trigger effects_never_deleted before delete on effects when old.set_aside = 0
begin
    select raise(abort, 'effects_never_deleted');
end;
create trigger effects_replaced_is_kept after delete on effects
begin
    insert into effects_set_aside (
        tenant_id, action_id, ordinal, place, status, attempt_id, send, write, may_have_arrived, set_aside, first_sent,
        key_first_sent, last_sent, unknown_since, recorded_at, class, key_window, send_limit, terms, kind,
        fingerprint, provider_key, request, answer, refusal, evidence
    ) values (
        old.tenant_id, old.action_id, old.ordinal,
        1 + (select count(*) from effects_set_aside h
             where h.tenant_id = old.tenant_id and h.action_id = old.action_id and h.ordinal = old.ordinal),
        old.status, old.attempt_id, old.send, old.write, old.may_have_arrived, old.set_aside, old.first_sent,
        old.key_first_sent, old.last_sent, old.unknown_since, old.recorded_at, old.class, old.key_window,
        old.send_limit, old.terms, old.kind, old.fingerprint, old.provider_key, old.request, old.answer, old.refusal,
        old.evidence
    );
end;
-- A write that is asked again keeps its row; what it said before is history.
create trigger effects_repeated_is_kept before update of status
on effects when old.set_aside = 1 and old.status = 'succeeded' and new.status = 'in_flight'
begin
    insert into effects_set_aside (
        tenant_id, action_id, ordinal, place, status, attempt_id, send, write, may_have_arrived, set_aside, first_sent,
        key_first_sent, last_sent, unknown_since, recorded_at, class, key_window, send_limit, terms, kind,
        fingerprint, provider_key, request, answer, refusal, evidence
    ) values (
        old.tenant_id, old.action_id, old.ordinal,
        1 + (select count(*) from effects_set_aside h
             where h.tenant_id = old.tenant_id and h.action_id = old.action_id and h.ordinal = old.ordinal),
        old.status, old.attempt_id, old.send, old.write, old.may_have_arrived, old.set_aside, old.first_sent,
        old.key_first_sent, old.last_sent, old.unknown_since, old.recorded_at, old.class, old.key_window,
        old.send_limit, old.terms, old.kind, old.fingerprint, old.provider_key, old.request, old.answer, old.refusal,
        old.evidence
    );
end;

-- Effects that were set aside and then asked anew: what they were before.
create table effects_set_aside (
    tenant_id text not null,
    action_id blob not null,
    ordinal integer not null,
    -- Which of the ordinal's earlier lives, from 1.
    place integer not null,
    status text not null,
    attempt_id blob not null,
    send integer not null,
    write integer not null,
    may_have_arrived integer not null,
    set_aside integer not null,
    first_sent integer,
    key_first_sent integer,
    last_sent integer,
    unknown_since integer,
    recorded_at integer,
    class text not null,
    key_window integer not null,
    send_limit integer not null,
    terms text not null,
    kind text not null,
    fingerprint blob not null,
    provider_key text,
    request text not null,
    answer text,
    refusal text,
    evidence text,
    constraint effects_set_aside_pkey primary key (tenant_id, action_id, ordinal, place),
    constraint effects_set_aside_action foreign key (tenant_id, action_id) references actions (tenant_id, id)
) strict;

create trigger effects_set_aside_append_only_u before update on effects_set_aside
begin
    select raise(abort, 'effects_set_aside_append_only');
end;
create trigger effects_set_aside_append_only_d before delete on effects_set_aside
begin
    select raise(abort, 'effects_set_aside_append_only');
end;

-- One row per transition, written in its transaction; each hash covers the one
-- before it.
create table events (
    tenant_id text not null,
    action_id blob not null,
    seq integer not null,
    -- Grows in the order of commits: one connection writes.
    cursor integer not null,
    at integer not null,
    body text not null,
    hash blob not null,
    constraint events_pkey primary key (tenant_id, action_id, seq),
    constraint events_cursor unique (tenant_id, cursor),
    constraint events_hash check (length(hash) = 32)
) strict, without rowid;

create trigger events_append_only_u before update on events
begin
    select raise(abort, 'events_append_only');
end;
create trigger events_append_only_d before delete on events
begin
    select raise(abort, 'events_append_only');
end;

-- What an attempt printed and logged: a JSON array of lines, one row per attempt.
create table action_logs (
    tenant_id text not null,
    action_id blob not null,
    attempt integer not null,
    at integer not null,
    lines text not null,
    constraint action_logs_pkey primary key (tenant_id, action_id, attempt),
    constraint action_logs_action foreign key (tenant_id, action_id) references actions (tenant_id, id)
) strict;

create trigger components_immutable before update on components
begin
    select raise(abort, 'components_immutable');
end;
create trigger grants_immutable before update on grants
begin
    select raise(abort, 'grants_immutable');
end;
