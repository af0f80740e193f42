//! What SQLite says went wrong, by what a caller can do about it.

use rusqlite::{Error, ErrorCode, ffi};

use crate::StoreError;

/// From an error of a statement. Nothing that it would have changed stands.
pub(crate) fn statement(error: Error) -> StoreError {
    let text = error.to_string();
    let Some(sqlite) = error.sqlite_error().copied() else {
        return StoreError::Damaged { what: text };
    };
    match sqlite.code {
        ErrorCode::ConstraintViolation => StoreError::Constraint { name: constraint_name(sqlite.extended_code, &text) },
        ErrorCode::DiskFull => StoreError::CannotWrite {
            what: "the disk (or the largest size set for the database) is full; make room, then try again".into(),
        },
        ErrorCode::ReadOnly | ErrorCode::PermissionDenied => StoreError::CannotWrite {
            what: format!(
                "the database cannot be written ({text}); make the file and its folder writable for this user"
            ),
        },
        ErrorCode::SystemIoFailure => StoreError::CannotWrite {
            what: format!("the disk reported an error ({text}); look at the machine's disk before anything else"),
        },
        ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => StoreError::Unavailable {
            what: "another process holds the database's write lock; close whatever has the file open, then try again"
                .into(),
        },
        ErrorCode::OutOfMemory | ErrorCode::OperationInterrupted | ErrorCode::TooBig => {
            StoreError::Unavailable { what: text }
        }
        ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => StoreError::Damaged {
            what: format!("the database file ({text}); stop, keep the file, and restore a backup"),
        },
        _ => StoreError::Damaged { what: text },
    }
}

/// From an error of `commit`. A disk that failed while it flushed may have
/// written the commit or not, and only the next start shows which.
pub(crate) fn commit(error: Error) -> StoreError {
    match error.sqlite_error_code() {
        Some(ErrorCode::SystemIoFailure) => StoreError::CommitUnknown { what: error.to_string() },
        _ => statement(error),
    }
}

/// The constraint's name as the migrations give it. SQLite says
/// `CHECK constraint failed: <name>`, a trigger says its name alone, and a
/// unique key is told by its columns, `UNIQUE constraint failed: effects.…`.
fn constraint_name(extended: i32, text: &str) -> String {
    let detail = text.rsplit_once("constraint failed: ").map_or(text, |(_, detail)| detail);
    match extended {
        ffi::SQLITE_CONSTRAINT_FOREIGNKEY => "foreign_key".into(),
        ffi::SQLITE_CONSTRAINT_PRIMARYKEY | ffi::SQLITE_CONSTRAINT_UNIQUE => {
            let table = detail.split('.').next().unwrap_or(detail);
            let key = if detail.contains("cursor") {
                "cursor"
            } else if table == "effects" && !detail.contains("ordinal") {
                "one_in_flight"
            } else {
                "pkey"
            };
            format!("{table}_{key}")
        }
        _ => detail.to_owned(),
    }
}
