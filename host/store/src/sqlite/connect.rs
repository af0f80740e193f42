//! Connections: how each is set, and that it really is.

use std::path::Path;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::lock::HostLock;
use super::{SqliteOptions, migrate, place, sql};
use crate::StoreError;

/// SQLite up to 3.51.2 can lose committed transactions in WAL mode when a
/// second connection resets the log (sqlite.org/wal.html#walresetbug).
const OLDEST: (u32, u32, u32) = (3, 51, 3);

/// Pages that the WAL holds before they are moved into the file. Chosen: 16 MiB,
/// so that a checkpoint, which stops the writer for some milliseconds, comes
/// once in a few thousand actions.
const CHECKPOINT_PAGES: u32 = 4096;

fn cannot(what: String) -> StoreError {
    StoreError::CannotOpen { what }
}

/// Refuses a library that loses commits.
pub(crate) fn check_version(version: &str) -> Result<(), StoreError> {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let mut next = || parts.next().unwrap_or(0);
    let found = (next(), next(), next());
    if found >= OLDEST {
        return Ok(());
    }
    let (major, minor, patch) = OLDEST;
    Err(cannot(format!(
        "SQLite {version} can lose committed transactions in WAL mode; {major}.{minor}.{patch} or newer is needed: \
         build with the bundled SQLite"
    )))
}

/// Checks the folder and takes the file for this host.
pub(crate) fn take_place(path: &Path) -> Result<HostLock, StoreError> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    if !folder.is_dir() {
        return Err(cannot(format!(
            "the folder {} is not there: make it, or name another file",
            folder.display()
        )));
    }
    place::check(folder)?;
    HostLock::take(path)
}

/// What went wrong while the file was being opened, with the file's name.
fn opening(path: &Path) -> impl Fn(rusqlite::Error) -> StoreError {
    let path = path.display().to_string();
    move |error| {
        use rusqlite::ErrorCode;
        let advice = match error.sqlite_error_code() {
            Some(ErrorCode::NotADatabase) => "it is not a SQLite database: name another file",
            Some(ErrorCode::DatabaseCorrupt) => {
                "it is damaged or cut off: keep it for examination, and restore a backup"
            }
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::CannotOpen) => {
                "make the file and its folder writable for this user"
            }
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                "another process holds it: close whatever has the file open"
            }
            Some(ErrorCode::DiskFull) => "the disk is full: make room",
            _ => "see what the system says about the file",
        };
        cannot(format!("the database {path} cannot be opened ({error}); {advice}"))
    }
}

/// The connection that writes, on a migrated database, and the last cursor.
pub(crate) fn writer(options: &SqliteOptions) -> Result<(Connection, i64), StoreError> {
    let opening = opening(&options.path);
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut conn = Connection::open_with_flags(&options.path, flags).map_err(&opening)?;
    // SQLite falls back to reading only, and says so at the first write.
    if conn.is_readonly(rusqlite::MAIN_DB).map_err(&opening)? {
        return Err(cannot(format!(
            "the database {} may not be written; make the file and its folder writable for this user",
            options.path.display()
        )));
    }
    conn.busy_timeout(options.busy_timeout).map_err(&opening)?;
    let mode: String =
        conn.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0)).map_err(&opening)?;
    if mode != "wal" {
        return Err(cannot(format!(
            "the database {} stays in journal mode {mode}, and only WAL is safe here: put it on a local disk",
            options.path.display()
        )));
    }
    set(&conn, options).map_err(&opening)?;
    conn.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES).map_err(&opening)?;
    // A burst during a long read may grow the WAL; it gives the space back.
    conn.pragma_update_and_check(None, "journal_size_limit", 64 << 20, |row| row.get::<_, i64>(0))
        .map_err(&opening)?;
    if let Some(pages) = options.max_pages {
        conn.pragma_update_and_check(None, "max_page_count", pages, |row| row.get::<_, i64>(0))
            .map_err(&opening)?;
    }
    let now = options.clock.now().as_micros();
    migrate::run(&mut conn, migrate::ALL, now).map_err(|error| match error {
        StoreError::CannotOpen { what } => {
            cannot(format!("the database {} cannot be used: {what}", options.path.display()))
        }
        other => cannot(format!("the database {} cannot be opened: {other}", options.path.display())),
    })?;
    read_back(&conn, options)?;
    let cursor = conn.query_row(sql::LAST_CURSOR, [], |row| row.get(0)).map_err(&opening)?;
    Ok((conn, cursor))
}

/// A connection that reads.
pub(crate) fn reader(options: &SqliteOptions) -> Result<Connection, StoreError> {
    let opening = opening(&options.path);
    // Not opened read-only: a reader of a WAL may have to write its index.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(&options.path, flags).map_err(&opening)?;
    conn.busy_timeout(options.busy_timeout).map_err(&opening)?;
    set(&conn, options).map_err(&opening)?;
    conn.pragma_update(None, "query_only", true).map_err(&opening)?;
    read_back(&conn, options)?;
    Ok(conn)
}

fn set(conn: &Connection, _options: &SqliteOptions) -> rusqlite::Result<()> {
    conn.pragma_update(None, "synchronous", "full")?;
    conn.pragma_update(None, "foreign_keys", true)?;
    conn.pragma_update(None, "temp_store", "memory")?;
    // Negative: KiB.
    conn.pragma_update(None, "cache_size", -16_384)?;
    // Otherwise a statement is planned anew whenever it is bound to other
    // values, in case these would be better served by another index.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    conn.set_prepared_statement_cache_capacity(96);
    Ok(())
}

/// A pragma that was not understood says nothing; so each is asked for again.
fn read_back(conn: &Connection, options: &SqliteOptions) -> Result<(), StoreError> {
    let opening = opening(&options.path);
    for (name, wanted) in [("synchronous", 2), ("foreign_keys", 1)] {
        let found: i64 = conn.pragma_query_value(None, name, |row| row.get(0)).map_err(&opening)?;
        if found != wanted {
            return Err(cannot(format!(
                "the database does not take pragma {name} = {wanted}, it stays at {found}"
            )));
        }
    }
    let mode: String = conn.pragma_query_value(None, "journal_mode", |row| row.get(0)).map_err(&opening)?;
    let timeout: i64 = conn.pragma_query_value(None, "busy_timeout", |row| row.get(0)).map_err(&opening)?;
    if mode != "wal" || u128::try_from(timeout).ok() != Some(options.busy_timeout.as_millis()) {
        return Err(cannot(format!(
            "the database is in journal mode {mode} with a busy timeout of {timeout} ms"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sqlite_that_loses_commits_is_refused_and_the_one_built_in_is_not() {
        for old in ["3.46.0", "3.51.2", "3.7.0", "2.8.17", ""] {
            let refused = check_version(old).unwrap_err().to_string();
            assert!(
                refused.contains("lose committed transactions") && refused.contains("3.51.3"),
                "{refused}"
            );
        }
        for good in ["3.51.3", "3.52.0", "4.0.0"] {
            check_version(good).unwrap();
        }
        check_version(rusqlite::version()).unwrap();
    }
}
