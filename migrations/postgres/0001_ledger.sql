-- The ledger and the registry.
--
-- Every primary and unique key is led by tenant_id, so that the same schema
-- shards by tenant. Times are bigint microseconds since 1970, UTC. Ids and
-- digests are bytea (16 and 32 bytes): half of their text form in every index,
-- and nothing to spell in two ways. JSON is text, because a JSON type may
-- reorder what was hashed.
--
-- Constraints and triggers have names, and the names are part of the contract:
-- an error that a constraint raised carries its name. They state again what the
-- code holds anyway; where one fires, the code has a bug or somebody writes by
-- hand.
--
-- Rows that change are rewritten at every change, so tables that change leave
-- room for that in their pages.

-- ---- functions that statements use -----------------------------------------

-- Now, in microseconds. clock_timestamp() and not now(): now() is when the
-- transaction began, and one that waited for a lock would win after its time.
create function countersign_now() returns bigint language sql volatile as
$$ select (extract(epoch from clock_timestamp()) * 1000000)::bigint $$;

-- The link between events.
create function event_chain(before bytea, seq bigint, at bigint, body text) returns bytea
language sql stable strict parallel safe as
$$ select sha256(before || int8send(seq) || int8send(at) || convert_to(body, 'UTF8')) $$;

-- Added to every cursor; raised when a host opens a database whose transaction
-- numbers start below what is written (restored from a dump into a new cluster).
create function countersign_cursor_base() returns bigint language sql immutable parallel safe as
$$ select 0::bigint $$;

-- The cursor of transactions: 16 places each, for the events that one writes.
create function countersign_cursor_of(transaction xid8) returns bigint language sql immutable parallel safe as
$$ select transaction::text::bigint * 16 + countersign_cursor_base() $$;

-- The cursor of an event written now.
create function countersign_cursor(seq bigint) returns bigint language sql volatile as
$$ select countersign_cursor_of(pg_current_xact_id()) + (seq & 15) $$;

-- Cursors below this are final for whoever reads with the same snapshot: every
-- transaction that could write one has ended. Transactions commit in another
-- order than they are numbered in, so a reader that went further would pass by
-- an event that shows up behind it. One that runs in another database of the
-- same server holds nobody up; it is told from ours only by what says so.
create function countersign_horizon() returns bigint language plpgsql stable as $$
declare
    seen pg_snapshot := pg_current_snapshot();
    oldest xid8;
begin
    if pg_snapshot_xmin(seen) = pg_snapshot_xmax(seen) then
        return countersign_cursor_of(pg_snapshot_xmax(seen));
    end if;
    select running into oldest
    from pg_snapshot_xip(seen) running
    where not exists (
            select 1 from pg_locks l join pg_stat_activity b on b.pid = l.pid
            where l.locktype = 'transactionid' and l.mode = 'ExclusiveLock' and l.granted
                and l.transactionid = running::xid
                and b.datid <> (select d.oid from pg_database d where d.datname = current_database())
        )
        and not exists (
            select 1 from pg_prepared_xacts p
            where p.transaction = running::xid and p.database <> current_database()
        )
    order by running limit 1;
    return countersign_cursor_of(coalesce(oldest, pg_snapshot_xmax(seen)));
end $$;

-- What is in force for a claim: read anew when it is called, so after a claim
-- waited for its row, and not while somebody changes it. Changes hold the same
-- lock alone, so no claim is made under what was changed before it.
create function countersign_in_force(tenant text, tool text, out epoch bigint, out paused boolean)
language plpgsql volatile as $$
begin
    perform pg_advisory_xact_lock_shared(hashtextextended(tenant, 7305));
    select t.policy_epoch into epoch from tenants t where t.tenant_id = tenant;
    select exists (select 1 from tools t where t.tenant_id = tenant and t.name = tool and t.paused) into paused;
end $$;

-- What every trigger that refuses says: the name in its argument.
create function countersign_refuse() returns trigger language plpgsql as $$
begin
    raise exception using
        errcode = 'check_violation', message = tg_argv[0] || ' refused a change', constraint = tg_argv[0],
        table = tg_table_name, schema = tg_table_schema;
end $$;

-- ---- the registry ----------------------------------------------------------

create table tenants (
    tenant_id text not null,
    -- Moves with every change of what an existing tool may do or of who may
    -- decide; claims compare it with the epoch that the action was proposed at.
    policy_epoch bigint not null default 1,
    created bigint not null,
    constraint tenants_pkey primary key (tenant_id)
) with (fillfactor = 50);

create table principals (
    tenant_id text not null,
    token_id text not null,
    token_hash bytea not null,
    name text not null,
    roles text not null,
    created bigint not null,
    revoked bigint,
    constraint principals_pkey primary key (tenant_id, token_id),
    constraint principals_tenant foreign key (tenant_id) references tenants (tenant_id),
    constraint principals_token_hash check (length(token_hash) = 32)
);
-- A caller names only its token; which tenant it is of is what the row says.
create index principals_by_token on principals (token_id);

create table components (
    tenant_id text not null,
    digest bytea not null,
    bytes bytea not null,
    created bigint not null,
    constraint components_pkey primary key (tenant_id, digest),
    constraint components_tenant foreign key (tenant_id) references tenants (tenant_id),
    constraint components_digest check (length(digest) = 32)
);
-- Code does not compress by what the server would try.
alter table components alter column bytes set storage external;

create table grants (
    tenant_id text not null,
    digest bytea not null,
    source text not null,
    created_by text not null,
    created bigint not null,
    constraint grants_pkey primary key (tenant_id, digest),
    constraint grants_tenant foreign key (tenant_id) references tenants (tenant_id),
    constraint grants_digest check (length(digest) = 32)
);

create table tool_versions (
    tenant_id text not null,
    name text not null,
    version text not null,
    component_digest bytea not null,
    inspection text not null,
    installed_by text not null,
    installed bigint not null,
    constraint tool_versions_pkey primary key (tenant_id, name, version),
    constraint tool_versions_component foreign key (tenant_id, component_digest)
        references components (tenant_id, digest)
);

-- A tool by name: what of it is in force.
create table tools (
    tenant_id text not null,
    name text not null,
    current_version text not null,
    grant_digest bytea not null,
    paused boolean not null default false,
    constraint tools_pkey primary key (tenant_id, name),
    constraint tools_current foreign key (tenant_id, name, current_version)
        references tool_versions (tenant_id, name, version) deferrable initially deferred,
    constraint tools_grant foreign key (tenant_id, grant_digest) references grants (tenant_id, digest),
    -- SQLite has no boolean; the name stands for the same promise here.
    constraint tools_paused check (paused in (false, true))
);

-- ---- actions ---------------------------------------------------------------

create table actions (
    tenant_id text not null,
    -- A pure function of tenant and action_key, so its uniqueness is the key's.
    id bytea not null,
    state text not null,
    version bigint not null,
    event_seq bigint not null,
    attempt bigint not null default 0,
    attempt_id bytea,
    lease_owner text,
    lease_expires bigint,
    in_flight bigint,
    cancel_requested text,
    attempts_left bigint not null,
    repeats_left bigint not null,
    next_attempt bigint,
    first_write bigint,
    unknown_effects bigint not null default 0,
    standing_writes bigint not null default 0,
    effects bigint not null default 0,
    approvals_given bigint not null default 0,
    approved_fingerprint bytea,
    approved_at bigint,
    superseded_by bytea,
    provider_reference text,
    error_code text,
    error_message text,
    updated bigint not null,

    -- From here on nothing changes after the proposal, but for the result.
    policy_epoch bigint not null,
    approval_expires bigint not null,
    execution_deadline bigint not null,
    approvals_required bigint not null,
    run_by_itself boolean not null,
    created bigint not null,
    fingerprint bytea not null,
    intent bytea not null,
    action_key text not null,
    run text,
    step text,
    tool text not null,
    requested_version text,
    tool_version text not null,
    component_digest bytea not null,
    grant_digest bytea not null,
    actor text not null,
    proposer text not null,
    supersedes bytea,
    compensates bytea,
    seed bytea not null,
    preview text,
    plan text not null,
    arguments text not null,
    result text,

    -- When a worker or the reaper has something to do about it; null: never by
    -- itself. One index over it is all that recovery reads. Set by the trigger
    -- below, whatever a statement says.
    due_at bigint,

    constraint actions_tenant foreign key (tenant_id) references tenants (tenant_id),
    constraint actions_component foreign key (tenant_id, component_digest) references components (tenant_id, digest),
    constraint actions_grant foreign key (tenant_id, grant_digest) references grants (tenant_id, digest)
) with (
    fillfactor = 60, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.02
);

create index actions_due on actions (due_at) where due_at is not null;
-- Lists, newest first.
create index actions_by_time on actions (tenant_id, created, id);
create index actions_by_state on actions (tenant_id, state, created, id);
create index actions_by_tool on actions (tenant_id, tool, created, id);
create index actions_by_run on actions (tenant_id, run, created, id) where run is not null;
-- After the others: of two indexes that a plan holds for equal, as all are while
-- a table is small or was never analysed, the server takes the younger one.
alter table actions add constraint actions_pkey primary key (tenant_id, id);

create trigger actions_immutable before update of
    tenant_id, id, action_key, run, step, tool, requested_version, tool_version, component_digest, grant_digest,
    arguments, intent, fingerprint, actor, proposer, plan, preview, approvals_required, approval_expires,
    execution_deadline, policy_epoch, run_by_itself, supersedes, compensates, created, seed
on actions for each row execute function countersign_refuse('actions_immutable');

-- One function for all that must hold of a row, each under its name: the server
-- reads a check constraint from its text at every statement, and a dozen of them
-- cost as much as the statement itself; this it keeps.
create function countersign_check_action() returns trigger language plpgsql as $$
declare
    broken text := case
        when new.state not in (
            'proposed', 'awaiting_approval', 'approved', 'executing', 'succeeded',
            'failed_retryable', 'failed_terminal', 'outcome_unknown', 'cancelled', 'expired'
        ) then 'actions_state'
        when old.state in ('succeeded', 'failed_terminal', 'cancelled', 'expired') and (
            new.state <> old.state or new.result is distinct from old.result
            or new.error_code is distinct from old.error_code
            or new.approved_fingerprint is distinct from old.approved_fingerprint
        ) then 'actions_terminal_never_changes'
        when new.state <> old.state and new.event_seq <> old.event_seq + 1 then 'actions_state_needs_event'
        when new.event_seq not in (old.event_seq, old.event_seq + 1) then 'actions_event_seq_has_no_gap'
        when not (
            (new.state = 'executing') = (new.attempt_id is not null)
            and (new.state = 'executing') = (new.lease_expires is not null)
            and (new.state = 'executing') = (new.lease_owner is not null)
        ) then 'actions_lease_iff_executing'
        -- The states that only an approved action reaches. The other ends, and
        -- outcome_unknown after a rewound ledger, may come without an approval.
        when new.state in ('approved', 'executing', 'succeeded', 'failed_retryable')
            and (new.approved_fingerprint is distinct from new.fingerprint or new.approved_at is null)
            then 'actions_approved_as_shown'
        when (new.state = 'succeeded') <> (new.result is not null) then 'actions_result_iff_succeeded'
        when new.in_flight is not null and new.state <> 'executing' then 'actions_in_flight_only_executing'
        -- An unknown outcome is never hidden behind another state;
        -- failed_terminal may have one, where a person gave up.
        when new.unknown_effects <> 0 and new.state not in ('executing', 'outcome_unknown', 'failed_terminal')
            then 'actions_unknown_never_hidden'
        when new.state in ('cancelled', 'expired') and new.standing_writes <> 0 then 'actions_undone_has_no_writes'
        when new.state = 'failed_retryable' and new.next_attempt is null then 'actions_retryable_is_due'
        when new.attempts_left < 0 or new.repeats_left < 0 or new.unknown_effects < 0 or new.standing_writes < 0
            or new.effects < 0 or new.unknown_effects > new.standing_writes or new.attempt < 0
            then 'actions_counts'
        when length(new.id) <> 16 or length(new.fingerprint) <> 32 or length(new.intent) <> 32
            or length(new.seed) <> 32
            then 'actions_digests'
        when (new.error_code is null) <> (new.error_message is null) then 'actions_error'
        when (new.run is null) <> (new.step is null) then 'actions_run_and_step'
    end;
begin
    if broken is not null then
        raise exception using
            errcode = 'check_violation', message = broken || ' refused a change', constraint = broken,
            table = tg_table_name, schema = tg_table_schema;
    end if;
    new.due_at := case new.state
        when 'executing' then new.lease_expires
        when 'awaiting_approval' then new.approval_expires
        when 'approved' then
            case
                when new.cancel_requested is not null then new.updated
                when new.run_by_itself then least(new.approved_at, new.approval_expires)
                else new.approval_expires
            end
        when 'failed_retryable' then
            case
                when new.cancel_requested is not null or new.attempts_left = 0
                    then least(new.updated, new.next_attempt)
                when new.standing_writes = 0 then least(new.next_attempt, new.approval_expires)
                else new.next_attempt
            end
        when 'outcome_unknown' then case when new.repeats_left > 0 then new.next_attempt end
    end;
    return new;
end $$;
create trigger actions_check before insert or update on actions
for each row execute function countersign_check_action();

create trigger actions_never_deleted before delete on actions
for each row execute function countersign_refuse('actions_never_deleted');
create trigger actions_never_truncated before truncate on actions
for each statement execute function countersign_refuse('actions_never_deleted');

-- One yes per approver.
create table approvals (
    tenant_id text not null,
    action_id bytea not null,
    approver text not null,
    -- The order in which they were given, from 1.
    place bigint not null,
    at bigint not null,
    note text,
    fingerprint bytea not null,
    constraint approvals_pkey primary key (tenant_id, action_id, approver),
    constraint approvals_action foreign key (tenant_id, action_id) references actions (tenant_id, id)
);

create trigger approvals_immutable before update on approvals
for each row execute function countersign_refuse('approvals_immutable');
create trigger approvals_never_deleted before delete on approvals
for each row execute function countersign_refuse('approvals_never_deleted');
create trigger approvals_never_truncated before truncate on approvals
for each statement execute function countersign_refuse('approvals_never_deleted');

-- ---- effects ---------------------------------------------------------------

create table effects (
    tenant_id text not null,
    action_id bytea not null,
    ordinal bigint not null,
    status text not null,
    attempt_id bytea not null,
    send bigint not null,
    write boolean not null,
    may_have_arrived boolean not null default false,
    set_aside boolean not null default false,
    first_sent bigint,
    -- Start of the key's window where an earlier write of this action was sent
    -- under the same key; null where this effect is the first under its key.
    key_first_sent bigint,
    last_sent bigint,
    unknown_since bigint,
    recorded_at bigint,
    -- The terms that conditions compare, and all of them as JSON.
    class text not null,
    key_window bigint not null,
    send_limit bigint not null,
    terms text not null,
    kind text not null,
    fingerprint bytea not null,
    provider_key text,
    request text not null,
    answer text,
    refusal text,
    evidence text,
    -- Of the request, for people. Given, and not taken out of the JSON: a
    -- character that JSON can spell and this database cannot hold would refuse
    -- the whole claim.
    method text not null,
    target text not null,

    constraint effects_action foreign key (tenant_id, action_id) references actions (tenant_id, id)
) with (
    fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.02
);

-- Effects are serialised: nothing else is claimed while one is out.
create unique index effects_one_in_flight on effects (tenant_id, action_id) where status = 'in_flight';
alter table effects add constraint effects_pkey primary key (tenant_id, action_id, ordinal);

create trigger effects_immutable before update of
    tenant_id, action_id, ordinal, kind, write, class, key_window, send_limit, terms, fingerprint, provider_key,
    request, method, target, key_first_sent
on effects for each row execute function countersign_refuse('effects_immutable');

create function countersign_check_effect() returns trigger language plpgsql as $$
declare
    broken text := case
        when new.status not in ('in_flight', 'succeeded', 'failed', 'unknown') then 'effects_status'
        when new.class not in ('read', 'provider-idempotent', 'verifiable', 'manual') then 'effects_class'
        when not new.write and new.status not in ('succeeded', 'failed') then 'effects_only_writes_are_open'
        when new.write and new.send <> 0 and new.provider_key is null then 'effects_sent_has_key'
        when new.status not in ('succeeded', 'failed')
            and (new.send <= 0 or new.first_sent is null or new.last_sent is null)
            then 'effects_open_was_sent'
        when new.answer is not null and new.status <> 'succeeded' then 'effects_answer_only_if_succeeded'
        when new.refusal is not null and new.status <> 'failed' then 'effects_refusal_only_if_failed'
        when (new.status = 'unknown') <> (new.unknown_since is not null) then 'effects_unknown_has_since'
        when new.ordinal < 1 then 'effects_ordinal'
        when old.status in ('in_flight', 'unknown', 'succeeded') and new.status <> 'failed'
            and new.first_sent is distinct from old.first_sent
            then 'effects_first_sent_never_moves'
    end;
begin
    if broken is not null then
        raise exception using
            errcode = 'check_violation', message = broken || ' refused a change', constraint = broken,
            table = tg_table_name, schema = tg_table_schema;
    end if;
    return new;
end $$;
create trigger effects_check before insert or update on effects
for each row execute function countersign_check_effect();

-- Effects that were set aside and then asked anew: what they were before.
create table effects_set_aside (
    tenant_id text not null,
    action_id bytea not null,
    ordinal bigint not null,
    -- Which of the ordinal's earlier lives, from 1.
    place bigint not null,
    status text not null,
    attempt_id bytea not null,
    send bigint not null,
    write boolean not null,
    may_have_arrived boolean not null,
    set_aside boolean not null,
    first_sent bigint,
    key_first_sent bigint,
    last_sent bigint,
    unknown_since bigint,
    recorded_at bigint,
    class text not null,
    key_window bigint not null,
    send_limit bigint not null,
    terms text not null,
    kind text not null,
    fingerprint bytea not null,
    provider_key text,
    request text not null,
    answer text,
    refusal text,
    evidence text,
    constraint effects_set_aside_pkey primary key (tenant_id, action_id, ordinal, place),
    constraint effects_set_aside_action foreign key (tenant_id, action_id) references actions (tenant_id, id)
);

create function countersign_keep_effect() returns trigger language plpgsql as $$
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
    return case when tg_op = 'DELETE' then old else new end;
end $$;

-- Only what try-later set aside is ever replaced, and it is kept as history.
create trigger effects_never_deleted before delete on effects
for each row when (not old.set_aside) execute function countersign_refuse('effects_never_deleted');
create trigger effects_never_truncated before truncate on effects
for each statement execute function countersign_refuse('effects_never_deleted');
create trigger effects_replaced_is_kept after delete on effects
for each row execute function countersign_keep_effect();
-- A write that is asked again keeps its row; what it said before is history.
create trigger effects_repeated_is_kept before update of status
on effects for each row when (old.set_aside and old.status = 'succeeded' and new.status = 'in_flight')
execute function countersign_keep_effect();

create trigger effects_set_aside_append_only_u before update on effects_set_aside
for each row execute function countersign_refuse('effects_set_aside_append_only');
create trigger effects_set_aside_append_only_d before delete on effects_set_aside
for each row execute function countersign_refuse('effects_set_aside_append_only');
create trigger effects_set_aside_append_only_t before truncate on effects_set_aside
for each statement execute function countersign_refuse('effects_set_aside_append_only');

-- ---- events and logs -------------------------------------------------------

-- One row per transition, written in its transaction; each hash covers the one
-- before it.
create table events (
    tenant_id text not null,
    action_id bytea not null,
    seq bigint not null,
    -- Grows with the number of the transaction that wrote it; read only up to
    -- countersign_horizon().
    cursor bigint not null,
    at bigint not null,
    body text not null,
    hash bytea not null,
    constraint events_cursor unique (tenant_id, cursor),
    constraint events_hash check (length(hash) = 32)
);
alter table events add constraint events_pkey primary key (tenant_id, action_id, seq);

create trigger events_append_only_u before update on events
for each row execute function countersign_refuse('events_append_only');
create trigger events_append_only_d before delete on events
for each row execute function countersign_refuse('events_append_only');
create trigger events_append_only_t before truncate on events
for each statement execute function countersign_refuse('events_append_only');

-- What an attempt printed and logged: a JSON array of lines, one row per attempt.
create table action_logs (
    tenant_id text not null,
    action_id bytea not null,
    attempt bigint not null,
    at bigint not null,
    lines text not null,
    constraint action_logs_pkey primary key (tenant_id, action_id, attempt),
    constraint action_logs_action foreign key (tenant_id, action_id) references actions (tenant_id, id)
);

create trigger components_immutable before update on components
for each row execute function countersign_refuse('components_immutable');
create trigger grants_immutable before update on grants
for each row execute function countersign_refuse('grants_immutable');
