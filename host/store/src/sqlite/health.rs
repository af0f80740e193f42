//! What can be known of a SQLite store without being its host, and how many
//! actions wait in it.

use std::fs::{File, TryLockError};
use std::io::Read as _;
use std::path::Path;

use countersign_domain::id::Digest;
use rusqlite::{Connection, OpenFlags};

use super::lock::lock_path;
use super::{SqliteStore, connect, fault, migrate, place, sql};
use crate::StoreError;
use crate::health::{self, CENSUS, Census, Examination, Finding, GRANTS_IN_FORCE, GrantInForce};

/// A log of changes so long that something keeps it from being moved into the
/// file: a reader that never ends, most likely. Chosen: sixteen times where the
/// host moves it.
const LONG_LOG: u64 = 256 << 20;

/// How far into the future the newest action may lie before the clock is said
/// to have been set back.
const CLOCK_SLACK: i64 = 60 * 1_000_000;

impl SqliteStore {
    /// How many actions stand where, now. One read.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] if it cannot be read.
    pub async fn census(&self) -> Result<Census, StoreError> {
        self.inner
            .readers
            .read(|conn| {
                let mut statement = conn.prepare_cached(CENSUS).map_err(fault::statement)?;
                let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)));
                let rows = rows.and_then(Iterator::collect::<Result<Vec<_>, _>>);
                Ok(health::census(rows.map_err(fault::statement)?))
            })
            .await
    }
}

/// Looks at a store's file without taking it: a host that runs on it goes on.
/// Blocks for some milliseconds. `now`: microseconds since 1970, by the host's
/// clock, which is the store's.
pub fn examine(path: &Path, now: i64) -> Examination {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut found = Examination { folder: Some(folder.to_owned()), ..Examination::default() };
    let version = rusqlite::version();
    found.findings.push(match connect::check_version(version) {
        Ok(()) => Finding::good("version", format!("SQLite {version}, built in")),
        Err(error) => Finding::failure("version", error.to_string(), "build with the bundled SQLite"),
    });
    if !folder.is_dir() {
        found.findings.push(Finding::failure(
            "store",
            format!("the folder {} is not there", folder.display()),
            "make it, or name another file with `store`",
        ));
        found.folder = None;
        return found;
    }
    found.findings.push(match place::check(folder) {
        Ok(()) => Finding::good("file system", "a disk of this machine, as far as its kind says"),
        Err(error) => Finding::failure("file system", error.to_string(), "put the store on a local disk"),
    });
    if !path.exists() {
        let words = format!("{} is not there yet; the first `countersign serve` makes it", path.display());
        found.findings.push(Finding::good("store", words));
        return found;
    }
    found.held_by = holder(path);
    match look_inside(path, now) {
        Ok((findings, grants)) => {
            found.findings.extend(findings);
            found.grants = grants;
        }
        Err(error) => found.findings.push(Finding::failure(
            "store",
            format!("{} cannot be read: {error}", path.display()),
            "see that it is a Countersign database and readable for this user; restore a backup if it is damaged",
        )),
    }
    found
}

/// The process of the host that holds the file.
fn holder(path: &Path) -> Option<u32> {
    let mut file = File::open(lock_path(path)).ok()?;
    // Shared and for an instant: a host that starts right now could be told that
    // somebody holds the file, and starts when it is started again.
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => {
            let mut pid = String::new();
            let _ = file.read_to_string(&mut pid);
            Some(pid.trim().parse().unwrap_or(0))
        }
        Ok(()) | Err(TryLockError::Error(_)) => None,
    }
}

fn look_inside(path: &Path, now: i64) -> rusqlite::Result<(Vec<Finding>, Vec<GrantInForce>)> {
    // Read-only, so that the log is not moved into the file when this closes.
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags)?;
    conn.busy_timeout(std::time::Duration::from_secs(2))?;
    let mut found = Vec::new();
    let mode: String = conn.pragma_query_value(None, "journal_mode", |row| row.get(0))?;
    found.push(if mode == "wal" {
        Finding::good(
            "durability",
            "journal_mode = wal, and the host flushes every commit that it acknowledges (synchronous = full)",
        )
    } else {
        Finding::warning(
            "durability",
            format!("journal_mode = {mode}"),
            "the next `countersign serve` sets it to wal, or says why it cannot",
        )
    });
    let log = std::fs::metadata(with_suffix(path, "-wal")).map_or(0, |file| file.len());
    if log > LONG_LOG {
        found.push(Finding::warning(
            "log",
            format!("the log of changes is {} MiB long", log >> 20),
            "close whatever keeps the file open for reading: a shell, a backup",
        ));
    }
    let applied = applied(&conn)?;
    let known: Vec<(i64, String)> = migrate::ALL
        .iter()
        .map(|known| (i64::from(known.number), Digest::of(known.text.as_bytes()).to_string()))
        .collect();
    found.push(health::schema(&applied, &known));
    if applied.is_empty() {
        return Ok((found, Vec::new()));
    }
    found.push(clock(&conn, now)?);
    let mut statement = conn.prepare(GRANTS_IN_FORCE)?;
    let grants = statement.query_map([], |row| {
        let (tenant, tool): (String, String) = (row.get(0)?, row.get(1)?);
        Ok(health::grant_in_force(&tenant, &tool, row.get(2)?))
    })?;
    let grants = grants.filter_map(Result::transpose).collect::<rusqlite::Result<_>>()?;
    Ok((found, grants))
}

fn applied(conn: &Connection) -> rusqlite::Result<Vec<(i64, String)>> {
    let there: i64 = conn.query_row(
        "select count(*) from sqlite_master where type = 'table' and name = 'schema_migrations'",
        [],
        |row| row.get(0),
    )?;
    if there == 0 {
        return Ok(Vec::new());
    }
    let mut statement = conn.prepare(sql::APPLIED_MIGRATIONS)?;
    statement.query_map([], |row| Ok((row.get(0)?, row.get(2)?)))?.collect()
}

/// The store's clock is this machine's; whether it went back since.
fn clock(conn: &Connection, now: i64) -> rusqlite::Result<Finding> {
    let newest: Option<i64> = conn.query_row(
        "select max((select max(a.created) from actions a where a.tenant_id = t.tenant_id)) from tenants t",
        [],
        |row| row.get(0),
    )?;
    let ahead = newest.map_or(0, |newest| newest - now);
    Ok(if ahead > CLOCK_SLACK {
        Finding::warning(
            "clock",
            format!(
                "the newest action was proposed {} s in the future: the clock was set back",
                ahead / 1_000_000
            ),
            "set this machine's clock; until it is there, approvals and leases last longer than they say",
        )
    } else {
        Finding::good("clock", "the store's clock is this machine's, and is not behind the newest action")
    })
}

fn with_suffix(path: &Path, suffix: &str) -> std::path::PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::Level;
    use crate::sqlite::SqliteOptions;

    const NOW: i64 = 2_000_000_000_000_000;

    fn worst(found: &Examination) -> Level {
        found.findings.iter().map(|finding| finding.level).max().unwrap()
    }

    #[tokio::test]
    async fn a_store_is_examined_while_its_host_runs_and_afterwards_and_is_not_changed_by_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger.db");
        let found = examine(&path, NOW);
        assert_eq!((worst(&found), found.held_by), (Level::Good, None), "{found:?}");
        assert!(!path.exists(), "looking makes nothing");

        let store = SqliteStore::open(SqliteOptions::new(&path)).unwrap();
        assert_eq!(store.census().await.unwrap().open.len(), health::OPEN_STATES.len());
        let found = examine(&path, NOW);
        assert_eq!((worst(&found), found.held_by), (Level::Good, Some(std::process::id())), "{found:?}");
        store.close().await;
        drop(store);
        let found = examine(&path, NOW);
        assert_eq!((worst(&found), found.held_by), (Level::Good, None), "{found:?}");
        // It can be taken by a host again.
        SqliteStore::open(SqliteOptions::new(&path)).unwrap();
    }

    #[test]
    fn what_is_no_database_and_where_there_is_no_folder_fails_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger.db");
        std::fs::write(&path, "not a database, whatever its name says ".repeat(50)).unwrap();
        let nowhere = dir.path().join("nowhere/ledger.db");
        for path in [path, nowhere] {
            let found = examine(&path, NOW);
            let bad: Vec<_> =
                found.findings.iter().filter(|finding| finding.level == Level::Failure).collect();
            assert_eq!(bad.len(), 1, "{found:?}");
            assert!(!bad[0].advice.is_empty(), "{found:?}");
        }
    }
}
