//! Every statement is one that a migrated database understands, and none that
//! runs while somebody waits reads a table from end to end.

use rusqlite::Connection;

use crate::sqlite::{migrate, sql};

macro_rules! statements {
    ($($name:ident),* $(,)?) => { &[$((stringify!($name), sql::$name)),*] };
}

const ALL: &[(&str, &str)] = statements![
    ACTION,
    ALL_DOUBTED,
    ANNOUNCED,
    APPLIED_MIGRATIONS,
    APPROVALS,
    APPROVE,
    APPROVED_BY,
    BEGIN,
    CHECKPOINT,
    CLAIM_TO_REPEAT,
    CLAIM_TO_RUN,
    CLAIM_WRITE,
    COMMIT,
    COMPONENT,
    CREATE_MIGRATIONS_TABLE,
    DOUBT,
    DOUBT_EFFECTS,
    DOUBT_WRITE,
    DUE,
    DUE_AFTER_OPENING,
    EFFECT,
    EFFECTS,
    EFFECTS_WITH_HISTORY,
    END_ATTEMPT,
    EVENTS,
    EVENTS_OF_ACTION,
    FEWER_EFFECTS,
    FLUSH_COMMITS,
    GIVE_UP_EFFECT,
    GRANT,
    HEARTBEAT,
    INSERT_ACTION,
    INSERT_APPROVAL,
    INSERT_COMPONENT,
    INSERT_EFFECT,
    INSERT_EVENT,
    HASH_BEFORE,
    INSERT_GRANT,
    INSERT_LOG,
    INSERT_MIGRATION,
    INSERT_PRINCIPAL,
    INSERT_TENANT,
    INSERT_TOOL,
    INSERT_TOOL_VERSION,
    IN_FLIGHT_BECOMES_UNKNOWN,
    LAST_CURSOR,
    LATE,
    LEASE_EXPIRES,
    LIST,
    LIST_BY_RUN,
    LIST_BY_STATE,
    LIST_BY_TOOL,
    LOG,
    MOVE_POLICY_EPOCH,
    NAME_SUCCESSOR,
    OPENED,
    PLACE,
    PENDING,
    PLACE_IN_LIST,
    POLICY_EPOCH,
    POSTPONE,
    PRINCIPAL,
    PRINCIPALS,
    PRINCIPAL_OF_TENANT,
    PUT_GRANT_IN_FORCE,
    PUT_IN_FORCE,
    RECORD,
    RECORD_LATE,
    RECORD_SETTLED,
    RELEASE_SAVEPOINT,
    REPEAT_EFFECT,
    REPEAT_WRITE,
    REPLACE_SET_ASIDE,
    REQUEST_CANCEL,
    RESOLVE,
    REVOKE,
    ROLLBACK,
    ROLLBACK_TO_SAVEPOINT,
    SAVEPOINT,
    SETTLE_EFFECT,
    SET_ASIDE,
    SET_PAUSED,
    STILL_LIVE,
    TENANTS_REWOUND,
    TO_DOUBT,
    TOKEN_EXISTS,
    TOOL,
    TOOLS,
    TRANSITION,
    UNKNOWN_EFFECTS,
    VERSION_COMPONENT,
    WRITE_COMMITS,
];

/// Read from end to end on purpose: what is small, and what runs once.
const MAY_SCAN: &[&str] = &[
    "ALL_DOUBTED",
    "APPLIED_MIGRATIONS",
    "DUE_AFTER_OPENING",
    "LAST_CURSOR",
    "OPENED",
    "PLACE",
    "TENANTS_REWOUND",
    "TO_DOUBT",
];

fn migrated() -> Connection {
    let mut conn = Connection::open_in_memory().unwrap();
    migrate::run(&mut conn, migrate::ALL, 0).unwrap();
    conn
}

#[test]
fn every_statement_is_listed_here() {
    let text = include_str!("../sql.rs");
    let mut planted = false;
    for line in text.lines() {
        if line.starts_with("#[cfg(feature = \"planted-bugs\")]") {
            planted = true;
            continue;
        }
        let Some(rest) = line.strip_prefix("pub(crate) const ") else { continue };
        let name = rest.split(':').next().unwrap();
        assert!(std::mem::take(&mut planted) || ALL.iter().any(|(listed, _)| *listed == name), "{name}");
    }
}

#[test]
fn every_statement_prepares_on_a_migrated_database() {
    let conn = migrated();
    for (name, sql) in ALL {
        let prepared = conn.prepare(sql).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(*sql, sql.to_lowercase(), "{name}: lower case throughout");
        drop(prepared);
    }
}

fn plan(conn: &Connection, sql: &str) -> Vec<String> {
    let mut statement = conn.prepare(&format!("explain query plan {sql}")).unwrap();
    for n in 1..=statement.parameter_count() {
        statement.raw_bind_parameter(n, 1).unwrap();
    }
    let mut rows = statement.raw_query();
    let mut lines = Vec::new();
    while let Some(row) = rows.next().unwrap() {
        lines.push(row.get::<_, String>(3).unwrap());
    }
    lines
}

#[test]
fn no_statement_on_the_way_of_an_action_reads_a_table_from_end_to_end() {
    let conn = migrated();
    let control = ["begin", "commit", "rollback", "savepoint", "release", "pragma", "create"];
    for (name, sql) in ALL {
        if MAY_SCAN.contains(name) || control.iter().any(|word| sql.starts_with(word)) {
            continue;
        }
        for line in plan(&conn, sql) {
            let scans =
                line.starts_with("SCAN ") && !line.starts_with("SCAN (") && line != "SCAN CONSTANT ROW";
            assert!(!scans, "{name}: {line}");
        }
    }
}

#[test]
fn lists_and_what_is_due_come_out_of_an_index_in_their_order() {
    let conn = migrated();
    for (name, sql, index) in [
        ("LIST", sql::LIST, "actions_by_time"),
        ("LIST_BY_STATE", sql::LIST_BY_STATE, "actions_by_state"),
        ("LIST_BY_TOOL", sql::LIST_BY_TOOL, "actions_by_tool"),
        ("LIST_BY_RUN", sql::LIST_BY_RUN, "actions_by_run"),
        ("DUE", sql::DUE, "actions_due"),
        ("DUE_AFTER_OPENING", sql::DUE_AFTER_OPENING, "actions_due"),
        ("EVENTS", sql::EVENTS, "events_cursor"),
    ] {
        let lines = plan(&conn, sql);
        assert!(!lines.iter().any(|line| line.contains("TEMP B-TREE")), "{name} sorts: {lines:?}");
        // A unique constraint's index has no name of its own.
        let index = if index == "events_cursor" { "sqlite_autoindex_events" } else { index };
        assert!(lines.iter().any(|line| line.contains(index)), "{name} does not use {index}: {lines:?}");
    }
}

#[test]
fn every_key_is_led_by_the_tenant() {
    let conn = migrated();
    let mut keys = conn
        .prepare(
            "select m.name, i.name, (select c.name from pragma_index_info(i.name) c where c.seqno = 0)
             from sqlite_schema m join pragma_index_list(m.name) i
             where m.type = 'table' and i.\"unique\" = 1 and m.name <> 'schema_migrations'",
        )
        .unwrap();
    let keys: Vec<(String, String, Option<String>)> = keys
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    assert!(keys.len() > 12, "{keys:?}");
    for (table, key, first) in keys {
        assert_eq!(first.as_deref(), Some("tenant_id"), "{table}.{key}");
    }
    let alone: i64 = conn
        .query_row(
            "select count(*) from sqlite_schema m, pragma_table_info(m.name) c
             where m.type = 'table' and m.name <> 'schema_migrations' and c.pk = 1 and c.name <> 'tenant_id'",
            [],
            |row| row.get(0),
        )
        .unwrap();
    assert_eq!(alone, 0, "a primary key that is not led by the tenant");
}

#[test]
fn a_migration_that_fails_leaves_nothing_behind() {
    let mut conn = Connection::open_in_memory().unwrap();
    let broken = migrate::Migration {
        number: 2,
        name: "broken",
        text: "create table half (a integer); create table half (a integer);",
    };
    let both = [migrate::ALL[0], broken];
    let said = migrate::run(&mut conn, &both, 0).unwrap_err().to_string();
    assert!(said.contains("migration 2 (broken) failed"), "{said}");
    let there: i64 = conn
        .query_row("select count(*) from sqlite_schema where name = 'half'", [], |row| row.get(0))
        .unwrap();
    assert_eq!(there, 0);
    // The one before it stands, and running again is no trouble.
    migrate::run(&mut conn, migrate::ALL, 0).unwrap();
}
