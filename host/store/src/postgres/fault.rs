//! What PostgreSQL, or the way to it, says went wrong, by what a caller can do
//! about it.

use tokio_postgres::Error;
use tokio_postgres::error::{DbError, Severity, SqlState};

use crate::StoreError;

/// What a failed statement means for who made it.
#[derive(Debug)]
pub(crate) enum Failed {
    /// Nothing was changed, and it may go through when made again: a deadlock, a
    /// transaction that could not be put in order with another.
    Again(StoreError),
    /// Nothing was changed.
    Undone(StoreError),
    /// The connection is gone, or the server ended it: what was sent may have
    /// been committed.
    Gone(StoreError),
}

/// From an error of a statement that was sent.
///
/// A commit happens after the last row was sent and before the server says that
/// it is ready, so everything short of an error that the server states as its
/// answer leaves the commit unknown; and so does an answer that ends the
/// connection, which may have come after the commit.
pub(crate) fn statement(error: &Error) -> Failed {
    let Some(said) = error.as_db_error() else {
        // The socket broke, or what came over it made no sense. (Or what was to
        // be sent could not be put into words, which would be a bug here; the
        // driver does not say which.)
        return Failed::Gone(unknown(text(error)));
    };
    if matches!(said.parsed_severity(), Some(Severity::Fatal | Severity::Panic)) {
        return Failed::Gone(unknown(said.message().to_owned()));
    }
    match said.code() {
        &SqlState::T_R_SERIALIZATION_FAILURE | &SqlState::T_R_DEADLOCK_DETECTED => {
            Failed::Again(StoreError::Unavailable {
                what: format!("others changed the same at the same time ({}); try again", said.message()),
            })
        }
        _ => Failed::Undone(undone(said)),
    }
}

/// From an error of a statement that changes nothing.
pub(crate) fn read(error: &Error) -> StoreError {
    match statement(error) {
        Failed::Again(error) | Failed::Undone(error) => error,
        Failed::Gone(_) => StoreError::Unavailable { what: text(error) },
    }
}

/// The error with what it was caused by: the driver tells them apart.
pub(crate) fn text(error: &Error) -> String {
    match (error.as_db_error(), std::error::Error::source(error)) {
        (Some(said), _) => said.message().to_owned(),
        (None, Some(source)) => format!("{error}: {source}"),
        (None, None) => error.to_string(),
    }
}

fn unknown(what: String) -> StoreError {
    StoreError::CommitUnknown { what }
}

fn undone(said: &DbError) -> StoreError {
    let code = said.code().code();
    let message = said.message();
    match said.code() {
        // An event that could not be linked on to the one before it.
        &SqlState::NOT_NULL_VIOLATION
            if (said.table(), said.column()) == (Some("events"), Some("hash")) =>
        {
            StoreError::Damaged {
                what: "the event before is missing; nothing can be linked on to it: somebody changed the database by \
                       hand"
                    .into(),
            }
        }
        _ if code.starts_with("23") => StoreError::Constraint {
            name: said.constraint().or(said.column()).unwrap_or(message).to_owned(),
        },
        &SqlState::DISK_FULL => StoreError::CannotWrite {
            what: format!("the server's disk is full ({message}); make room, then try again"),
        },
        &SqlState::READ_ONLY_SQL_TRANSACTION => StoreError::CannotWrite {
            what: "the server takes no writes: it is a standby, or set to be read only; name the primary in the \
                   database's URL"
                .into(),
        },
        &SqlState::INSUFFICIENT_PRIVILEGE => StoreError::CannotWrite {
            what: format!("the database's role may not do that ({message}); grant it the tables of its schema"),
        },
        &SqlState::IO_ERROR => StoreError::CannotWrite {
            what: format!("the server's disk reported an error ({message}); look at it before anything else"),
        },
        &SqlState::DATA_CORRUPTED | &SqlState::INDEX_CORRUPTED => StoreError::Damaged {
            what: format!("the database ({message}); stop, keep it, and restore a backup"),
        },
        &SqlState::LOCK_NOT_AVAILABLE => StoreError::Unavailable {
            what: format!("somebody holds a lock of the same row for long ({message}); try again"),
        },
        // Resources, interventions, connections.
        _ if ["53", "57", "08", "55"].iter().any(|class| code.starts_with(class)) => {
            StoreError::Unavailable { what: format!("{message} (SQLSTATE {code})") }
        }
        _ => StoreError::Damaged { what: format!("{message} (SQLSTATE {code})") },
    }
}
