//! Brings a database to this version's schema, or says why it will not.

use countersign_domain::id::Digest;
use tokio_postgres::{Client, Error};

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
        text: include_str!("../../../../migrations/postgres/0001_ledger.sql"),
    },
    Migration {
        number: 2,
        name: "recovery",
        text: include_str!("../../../../migrations/postgres/0002_recovery.sql"),
    },
];

/// Applies what is missing, each migration in a transaction of its own, while no
/// other host does; then sees to it that cursors go on from where they are.
///
/// # Errors
/// [`StoreError::CannotOpen`] if the database is of a newer version, or if a
/// migration that was applied is not the one that is known here.
pub(crate) async fn run(client: &Client, migrations: &[Migration]) -> Result<(), StoreError> {
    // Another host may be at it for longer than a row is ever waited for.
    client.batch_execute("set lock_timeout = 0").await.map_err(failed)?;
    client.query(sql::MIGRATION_LOCK, &[]).await.map_err(failed)?;
    let done = locked(client, migrations).await;
    client.query(sql::MIGRATION_UNLOCK, &[]).await.map_err(failed)?;
    done
}

async fn locked(client: &Client, migrations: &[Migration]) -> Result<(), StoreError> {
    let cannot = |what: String| Err(StoreError::CannotOpen { what });
    client.batch_execute(sql::CREATE_MIGRATIONS_TABLE).await.map_err(failed)?;
    let mut applied = Vec::new();
    for row in client.query(sql::APPLIED_MIGRATIONS, &[]).await.map_err(failed)? {
        let number: i64 = row.try_get(0).map_err(failed)?;
        let (name, checksum): (String, String) =
            (row.try_get(1).map_err(failed)?, row.try_get(2).map_err(failed)?);
        let Some(known) = migrations.iter().find(|known| i64::from(known.number) == number) else {
            return cannot(format!(
                "the database was made by a newer version: it has migration {number} ({name}), this version knows \
                 {} of them; start the newer version, or restore a backup from before the upgrade",
                migrations.len()
            ));
        };
        if checksum != Digest::of(known.text.as_bytes()).to_string() {
            return cannot(format!(
                "migration {number} ({name}) of the database is not the one this version knows: the database was made \
                 by another build; start that build, or restore a backup"
            ));
        }
        applied.push(number);
    }
    for migration in migrations.iter().filter(|known| !applied.contains(&i64::from(known.number))) {
        apply(client, migration).await?;
    }
    move_cursors_on(client).await
}

async fn apply(client: &Client, migration: &Migration) -> Result<(), StoreError> {
    let checksum = Digest::of(migration.text.as_bytes()).to_string();
    client.batch_execute(sql::BEGIN).await.map_err(failed)?;
    let done = async {
        client.batch_execute(migration.text).await.map_err(|error| StoreError::CannotOpen {
            what: format!(
                "migration {} ({}) failed: {}",
                migration.number,
                migration.name,
                fault::text(&error)
            ),
        })?;
        client
            .execute(sql::INSERT_MIGRATION, &[&i64::from(migration.number), &migration.name, &checksum])
            .await
            .map_err(failed)?;
        client.batch_execute(sql::COMMIT).await.map_err(failed)
    }
    .await;
    if done.is_err() {
        // What is wrong was said; a connection that is gone has undone it too.
        let _ = client.batch_execute(sql::ROLLBACK).await;
    }
    done
}

/// A cursor is made of its transaction's number. A database that was restored
/// from a dump into a new server meets numbers that are lower than what is
/// written, and whoever resumes would pass by everything new.
async fn move_cursors_on(client: &Client) -> Result<(), StoreError> {
    let row = client.query_one(sql::CURSORS_AHEAD, &[]).await.map_err(failed)?;
    let ahead: i64 = row.try_get(0).map_err(failed)?;
    let base: i64 = row.try_get(1).map_err(failed)?;
    if ahead >= 0 {
        let base = base + ahead + 16;
        tracing::info!(base, "cursors go on from where they were before the database was restored");
        // A number, and so nothing that could be taken for anything else.
        let function = format!(
            "create or replace function countersign_cursor_base() returns bigint language sql immutable parallel safe \
             as $$ select {base}::bigint $$"
        );
        client.batch_execute(&function).await.map_err(failed)?;
    }
    Ok(())
}

fn failed(error: Error) -> StoreError {
    fault::read(&error)
}
