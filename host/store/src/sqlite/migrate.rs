//! Brings a database to this version's schema, or says why it will not.

use countersign_domain::id::Digest;
use rusqlite::{Connection, TransactionBehavior, params};

use super::{fault, sql};
use crate::StoreError;

/// A migration. Numbers and names are those of the other databases' folders.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Migration {
    pub(crate) number: u32,
    pub(crate) name: &'static str,
    pub(crate) text: &'static str,
}

/// All of them, in order.
pub(crate) const ALL: &[Migration] = &[
    Migration {
        number: 1,
        name: "ledger",
        text: include_str!("../../../../migrations/sqlite/0001_ledger.sql"),
    },
    Migration {
        number: 2,
        name: "recovery",
        text: include_str!("../../../../migrations/sqlite/0002_recovery.sql"),
    },
];

/// Applies what is missing, each migration in a transaction of its own.
///
/// # Errors
/// [`StoreError::CannotOpen`] if the database is of a newer version, or if a
/// migration that was applied is not the one that is known here.
pub(crate) fn run(conn: &mut Connection, migrations: &[Migration], now: i64) -> Result<(), StoreError> {
    conn.execute_batch(sql::CREATE_MIGRATIONS_TABLE).map_err(fault::statement)?;
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(fault::statement)?;
    let applied: Vec<(u32, String, String)> = {
        let mut statement = tx.prepare(sql::APPLIED_MIGRATIONS).map_err(fault::statement)?;
        let rows = statement
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
            .map_err(fault::statement)?;
        rows.collect::<Result<_, _>>().map_err(fault::statement)?
    };
    let cannot = |what: String| Err(StoreError::CannotOpen { what });
    for (number, name, checksum) in &applied {
        let Some(known) = migrations.iter().find(|known| known.number == *number) else {
            return cannot(format!(
                "the database was made by a newer version: it has migration {number} ({name}), this version knows \
                 {} of them; start the newer version, or restore a backup from before the upgrade",
                migrations.len()
            ));
        };
        if *checksum != Digest::of(known.text.as_bytes()).to_string() {
            return cannot(format!(
                "migration {number} ({name}) of the database is not the one this version knows: the database was made \
                 by another build; start that build, or restore a backup"
            ));
        }
    }
    tx.commit().map_err(fault::commit)?;

    for migration in
        migrations.iter().filter(|known| applied.iter().all(|(number, ..)| *number != known.number))
    {
        let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).map_err(fault::statement)?;
        tx.execute_batch(migration.text).map_err(|error| StoreError::CannotOpen {
            what: format!("migration {} ({}) failed: {error}", migration.number, migration.name),
        })?;
        let checksum = Digest::of(migration.text.as_bytes()).to_string();
        tx.execute(sql::INSERT_MIGRATION, params![migration.number, migration.name, checksum, now])
            .map_err(fault::statement)?;
        tx.commit().map_err(fault::commit)?;
    }
    Ok(())
}
