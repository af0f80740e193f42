//! The two schemas are one: the same migrations, the same names. And starting,
//! on what is there.

use std::collections::BTreeSet;

use super::{PostgresOptions, PostgresStore, cluster};
use crate::StoreError;
use crate::conformance::scene::new_tool;
use crate::postgres::{migrate, sql};
use crate::{Ledger as _, Registry as _};

const SQLITE: &str = concat!(
    include_str!("../../../../../migrations/sqlite/0001_ledger.sql"),
    include_str!("../../../../../migrations/sqlite/0002_recovery.sql")
);
const POSTGRES: &str = concat!(
    include_str!("../../../../../migrations/postgres/0001_ledger.sql"),
    include_str!("../../../../../migrations/postgres/0002_recovery.sql")
);

#[test]
fn both_folders_have_the_same_migrations_and_this_version_knows_them() {
    let list = |folder: &str| {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../migrations").join(folder);
        let mut names: Vec<_> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    assert_eq!(list("sqlite"), list("postgres"));
    let known: Vec<_> =
        migrate::ALL.iter().map(|known| format!("{:04}_{}.sql", known.number, known.name)).collect();
    assert_eq!(list("postgres"), known);
}

/// What an error can name: constraints, indexes that are unique, and what
/// triggers say.
fn names(schema: &str) -> BTreeSet<&str> {
    let mut names = BTreeSet::new();
    for line in schema.lines().map(str::trim) {
        for before in
            ["constraint ", "create unique index ", "raise(abort, '", "countersign_refuse('", "then '"]
        {
            if let Some(at) = line.find(before) {
                let rest = &line[at + before.len()..];
                let end = rest.find(|c: char| !(c.is_ascii_lowercase() || c == '_')).unwrap_or(rest.len());
                names.insert(&rest[..end]);
            }
        }
    }
    names.remove("");
    names
}

#[test]
fn an_error_names_the_same_constraint_on_both() {
    let comments = |text: &'static str| text.lines().filter(|line| !line.trim().starts_with("--"));
    let sqlite: String = comments(SQLITE).map(|line| format!("{line}\n")).collect();
    let postgres: String = comments(POSTGRES).map(|line| format!("{line}\n")).collect();
    let (sqlite, postgres) = (names(&sqlite), names(&postgres));
    assert!(sqlite.len() > 40, "{sqlite:?}");
    assert_eq!(sqlite, postgres);
}

#[test]
fn every_key_is_led_by_the_tenant() {
    let mut keys = 0;
    for line in POSTGRES.lines().map(str::trim).filter(|line| !line.starts_with("--")) {
        if line.contains("primary key (")
            || line.contains(" unique (")
            || line.starts_with("create unique index")
        {
            keys += 1;
            let columns = &line[line.find('(').unwrap()..];
            assert!(columns.starts_with("(tenant_id"), "{line}");
        }
    }
    assert!(keys >= 12, "{keys}");
}

/// All constants that are statements, by the text of the file.
macro_rules! statements {
    ($($name:ident),* $(,)?) => {
        &[$((stringify!($name), sql::$name)),*]
    };
}
const STATEMENTS: &[(&str, &str)] = statements![
    SERVER,
    PLACE,
    MOVED,
    RESTORED,
    TO_DOUBT,
    REWINDS,
    ALL_DOUBTED,
    DOUBT,
    ANNOUNCED,
    DOUBT_WRITE,
    DOUBT_WRITE_IN_PLACE,
    STILL_LIVE,
    BEGIN,
    COMMIT,
    ROLLBACK,
    DURABLE,
    NOW,
    LISTEN,
    NOTIFY,
    NOTIFY_SETTINGS,
    MIGRATION_LOCK,
    MIGRATION_UNLOCK,
    CREATE_MIGRATIONS_TABLE,
    APPLIED_MIGRATIONS,
    INSERT_MIGRATION,
    CURSORS_AHEAD,
    INSERT_ACTION,
    APPROVE,
    TRANSITION,
    REQUEST_CANCEL,
    POSTPONE,
    CLAIM_TO_RUN,
    CLAIM_TO_REPEAT,
    HEARTBEAT,
    CLAIM_WRITE,
    CLAIM_WRITE_IN_PLACE,
    REPEAT_WRITE,
    RECORD_SETTLED,
    RECORD_SETTLED_IN_PLACE,
    RECORD,
    RECORD_LATE,
    END_ATTEMPT,
    RESOLVE,
    ACTION,
    EFFECTS,
    UNKNOWN_EFFECTS,
    EFFECTS_WITH_HISTORY,
    LOG,
    EVENTS_OF_ACTION,
    EVENTS,
    PLACE_IN_LIST,
    LIST,
    LIST_BY_STATE,
    LIST_BY_TOOL,
    LIST_BY_RUN,
    DUE,
    DUE_AFTER_OPENING,
    POLICY_LOCK,
    TOKEN_LOCK,
    INSERT_TENANT,
    MOVE_POLICY_EPOCH,
    INSERT_COMPONENT,
    INSERT_GRANT,
    INSERT_TOOL_VERSION,
    VERSION_COMPONENT,
    INSERT_TOOL,
    PUT_IN_FORCE,
    PUT_GRANT_IN_FORCE,
    SET_PAUSED,
    TOOL,
    TOOLS,
    COMPONENT,
    GRANT,
    TOKEN_EXISTS,
    INSERT_PRINCIPAL,
    PRINCIPAL,
    PENDING,
    PRINCIPALS,
    PRINCIPAL_OF_TENANT,
    REVOKE,
];
#[cfg(feature = "planted-bugs")]
const PLANTED: &[(&str, &str)] = statements![
    APPROVE_WHATEVER_STANDS,
    CLAIM_WHATEVER_THE_STATE,
    CLAIM_TO_RUN_REWOUND,
    CLAIM_WRITE_TRUSTING,
    CLAIM_WRITE_LEAVING_ROW,
    RECORD_OF_ANY_SEND,
    END_ATTEMPT_WHATEVER_THE_STATE,
];
#[cfg(not(feature = "planted-bugs"))]
const PLANTED: &[(&str, &str)] = &[];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_statement_prepares() {
    let Some(cluster) = cluster::shared() else { return };
    let client = cluster.client(&cluster::still(cluster).await).await;
    client.batch_execute(sql::SETTINGS).await.unwrap();
    for (name, statement) in STATEMENTS.iter().chain(PLANTED) {
        if let Err(error) = client.prepare(statement).await {
            panic!("{name}: {error:?}");
        }
    }
    // And none is left out above.
    let text = include_str!("../sql.rs");
    let mut planted = false;
    let mut known: Vec<_> = STATEMENTS.iter().map(|(name, _)| *name).collect();
    known.push("SETTINGS");
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("pub(crate) const ") {
            let name = rest.split(':').next().unwrap();
            assert!(planted || known.contains(&name), "{name} is not tried");
        }
        planted = line == "#[cfg(feature = \"planted-bugs\")]";
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hosts_that_start_at_once_on_an_empty_database_all_come_up() {
    let Some(cluster) = cluster::shared() else { return };
    let name = cluster.database().await;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let url = cluster.url(&name);
        tasks.spawn(async move { PostgresStore::open(PostgresOptions::new(url)).await.unwrap() });
    }
    let stores = tasks.join_all().await;
    let tool = new_tool(&"one".parse().unwrap(), "refund", "1.0.0", "bytes", "grant");
    let installed = stores[0].install_tool(tool).await.unwrap();
    for store in stores {
        assert_eq!(store.tool(&installed.tenant, &installed.name, None).await.unwrap().unwrap(), installed);
        // The real clock, which every database of a host has.
        assert!(store.now().await.unwrap() >= installed.installed);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_of_a_newer_version_or_of_another_build_is_refused_and_left_alone() {
    let Some(cluster) = cluster::shared() else { return };
    let name = cluster::still(cluster).await;
    let client = cluster.client(&name).await;
    let open = || async {
        match PostgresStore::open(PostgresOptions::new(cluster.url(&name))).await {
            Err(StoreError::CannotOpen { what }) => what,
            other => panic!("{other:?}"),
        }
    };
    client.batch_execute("insert into schema_migrations values (9999, 'later', 'x', 0)").await.unwrap();
    let what = open().await;
    assert!(
        what.contains("newer version") && what.contains("9999 (later)") && what.contains(&name),
        "{what}"
    );
    client
        .batch_execute(
            "delete from schema_migrations where number = 9999; update schema_migrations set checksum = 'x'",
        )
        .await
        .unwrap();
    let what = open().await;
    assert!(what.contains("another build") && what.contains("1 (ledger)"), "{what}");
}
