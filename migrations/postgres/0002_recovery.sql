-- What recovery remembers: that a ledger lost commits, which actions are in
-- doubt for it, and who was told of a doubt.

-- How often this tenant's ledger was found to have lost commits.
alter table tenants add column rewinds bigint not null default 0;

-- The count that the action was proposed under, or doubted at. Behind its
-- tenant's: it is to be doubted, and nothing claims or ends it before that.
alter table actions add column rewinds bigint not null default 0;
alter table actions add column rewound boolean not null default false;
-- The event that began the doubt which somebody was told of last.
alter table actions add column announced bigint;

-- The database, as it was when somebody last looked whose it is. One row.
create table ledger_place (
    -- Whose it is: the server's own identifier, empty before the first look.
    identity text not null,
    -- The timeline that the server writes on; it grows when a standby is
    -- promoted, and when a server was recovered to a point in time.
    timeline bigint not null,
    -- How often it was found to have lost commits, and how many of those times
    -- every open action has been doubted for.
    rewinds bigint not null,
    doubted bigint not null
);
insert into ledger_place (identity, timeline, rewinds, doubted) values ('', 0, 0, 0);
create trigger ledger_place_never_deleted before delete on ledger_place
for each row execute function countersign_refuse('ledger_place_never_deleted');
create trigger ledger_place_never_truncated before truncate on ledger_place
for each statement execute function countersign_refuse('ledger_place_never_deleted');

-- All that must hold of an action's row, as before, and: what lost rows stands
-- for a write, and a doubt that waits for a person is due until somebody was
-- told.
create or replace function countersign_check_action() returns trigger language plpgsql as $$
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
        when new.rewound is null then 'actions_rewound'
        -- Of writes whose rows are lost, nobody knows that none stands.
        when new.rewound and new.state in ('cancelled', 'expired') then 'actions_rewound_never_undone'
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
                when new.standing_writes = 0 and not new.rewound then least(new.next_attempt, new.approval_expires)
                else new.next_attempt
            end
        when 'outcome_unknown' then
            case
                when new.next_attempt is not null and new.repeats_left > 0 then new.next_attempt
                when new.announced is distinct from new.event_seq then coalesce(new.next_attempt, new.updated)
            end
    end;
    return new;
end $$;

-- By the new rule, what waits for a person already is due, too.
update actions set announced = null where state = 'outcome_unknown';
