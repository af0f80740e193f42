-- What recovery remembers: that a ledger lost commits, which actions are in
-- doubt for it, and who was told of a doubt.

-- How often this tenant's ledger was found to have lost commits.
alter table tenants add column rewinds integer not null default 0;

-- The count that the action was proposed under, or doubted at. Behind its
-- tenant's: it is to be doubted, and nothing claims or ends it before that.
alter table actions add column rewinds integer not null default 0;
alter table actions add column rewound integer not null default 0
    constraint actions_rewound check (rewound = 0 or rewound = 1)
    -- Of writes whose rows are lost, nobody knows that none stands.
    constraint actions_rewound_never_undone check (rewound = 0 or (state <> 'cancelled' and state <> 'expired'));
-- The event that began the doubt which somebody was told of last.
alter table actions add column announced integer;

-- The database, as it was when it was last opened. One row.
create table ledger_place (
    -- Whose it is: drawn once, and copied with every backup.
    identity text not null,
    -- Grows by one at each opening.
    opening integer not null,
    -- How often it was found to have lost commits, and how many of those times
    -- every open action has been doubted for.
    rewinds integer not null,
    doubted integer not null
) strict;
insert into ledger_place (identity, opening, rewinds, doubted) values (lower(hex(randomblob(16))), 0, 0, 0);
create trigger ledger_place_never_deleted before delete on ledger_place
begin
    select raise(abort, 'ledger_place_never_deleted');
end;

-- A doubt that waits for a person is due until somebody was told; what lost
-- rows stands for a write.
drop index actions_due;
alter table actions drop column due_at;
alter table actions add column due_at integer generated always as (
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
                when standing_writes = 0 and rewound = 0 then min(next_attempt, approval_expires)
                else next_attempt
            end
        when 'outcome_unknown' then
            case
                when next_attempt is not null and repeats_left > 0 then next_attempt
                when announced is not event_seq then coalesce(next_attempt, updated)
            end
    end
) virtual;
create index actions_due on actions (due_at) where due_at is not null;
