//! Whether the file that is opened is the one that was closed. A backup that is
//! put back forgets claims, and what they sent would be sent again; so what was
//! last seen of the file is remembered beside it, in `<file>.opening`, and a file
//! that knows less than that has lost commits.
//!
//! Not noticed here: a backup taken and put back between two openings of a host
//! that did not close the file, and one that brings the file beside it along.
//! Whoever restores says so ([`super::SqliteOptions::after_restore`]).

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, TransactionBehavior, params};
use serde::{Deserialize, Serialize};

use super::{SqliteOptions, fault, sql};
use crate::StoreError;

/// What was last seen of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Seen {
    /// Of the database; another one has another past.
    identity: String,
    /// How often it had been opened.
    opening: i64,
    /// Its last event.
    cursor: i64,
}

/// The file beside it, for as long as the store is open.
#[derive(Debug)]
pub(super) struct Memory {
    path: PathBuf,
    seen: Seen,
}

impl Memory {
    /// The store closes, with this as its last event.
    pub(super) fn closed(mut self, cursor: i64) {
        self.seen.cursor = cursor;
        self.write();
    }

    /// Whole or not at all. That it cannot be written stops nobody: it only
    /// finds what operators are to say anyway.
    fn write(&self) {
        let draft = self.path.with_extension("opening.new");
        let write = || -> std::io::Result<()> {
            let mut file = fs::File::create(&draft)?;
            file.write_all(serde_json::to_string(&self.seen)?.as_bytes())?;
            file.sync_all()?;
            fs::rename(&draft, &self.path)
        };
        if let Err(error) = write() {
            tracing::warn!(path = %self.path.display(), %error, "what was seen of the database cannot be kept");
        }
    }
}

/// Notes that the file is opened. Also: whether some of its actions are to be
/// doubted, because it lost commits now or at an opening that was not finished
/// with.
pub(super) fn opened(
    conn: &mut Connection,
    options: &SqliteOptions,
    cursor: i64,
) -> Result<(Memory, bool), StoreError> {
    let path = beside(&options.path);
    let before: Option<Seen> =
        fs::read_to_string(&path).ok().and_then(|text| serde_json::from_str(&text).ok());
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(fault::statement)?;
    let (identity, opening, mut rewound): (String, i64, bool) = tx
        .query_row(sql::PLACE, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .map_err(fault::statement)?;
    let lost =
        options.after_restore || before.is_some_and(|before| knows_more(&before, &identity, opening, cursor));
    if lost {
        tracing::warn!(
            path = %options.path.display(),
            told = options.after_restore,
            "the database was put back to an earlier state: every open action is doubted before it goes on"
        );
        tx.execute(sql::TENANTS_REWOUND, []).map_err(fault::statement)?;
        rewound = true;
    }
    tx.execute(sql::OPENED, params![lost]).map_err(fault::statement)?;
    tx.commit().map_err(fault::commit)?;
    let memory = Memory { path, seen: Seen { identity, opening: opening + 1, cursor } };
    // After the file: one that was not written yet knows less, and alarms nobody.
    memory.write();
    Ok((memory, rewound))
}

/// Whether what was seen is more than what is there.
fn knows_more(before: &Seen, identity: &str, opening: i64, cursor: i64) -> bool {
    before.identity == identity && (before.opening > opening || before.cursor > cursor)
}

fn beside(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(".opening");
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_knows_less_than_was_seen_of_it_lost_commits() {
        let before = Seen { identity: "a".into(), opening: 3, cursor: 70 };
        for (identity, opening, cursor, lost) in [
            ("a", 3, 70, false),
            ("a", 3, 90, false),
            ("a", 4, 70, false),
            ("a", 2, 70, true),
            ("a", 3, 69, true),
            ("another", 1, 0, false),
        ] {
            assert_eq!(knows_more(&before, identity, opening, cursor), lost, "{identity} {opening} {cursor}");
        }
    }
}
