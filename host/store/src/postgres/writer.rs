//! How a step is made: one statement and one commit, made again where it met
//! another; and transactions of several statements, for what is rare.
//!
//! A step runs in a task of its own. A caller that stops waiting undoes nothing.

use std::sync::Arc;
use std::time::Duration;

use countersign_domain::id::{ActionId, TenantId};
use countersign_domain::time::Timestamp;
use tokio::time::Instant;
use tokio_postgres::Row;

use super::connect::{Lent, Params};
use super::fault::{self, Failed};
use super::{Inner, sql};
use crate::StoreError;
use crate::ledger::Changed;

/// How long a step is made again while others are in its way. Chosen: each time
/// somebody else got through, so this long means a bug or a server that stands.
const STUBBORN: Duration = Duration::from_secs(20);

/// The longest pause before it is made again, in milliseconds.
const LONGEST_PAUSE: u64 = 32;

impl Inner {
    /// Runs a step apart from whoever waits for it.
    pub(crate) async fn apart<T, F>(
        self: &Arc<Self>,
        step: impl FnOnce(Arc<Inner>) -> F,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        tokio::spawn(step(self.clone())).await.unwrap_or_else(|error| {
            Err(StoreError::Unavailable { what: format!("the step met a bug and was undone: {error}") })
        })
    }

    /// Makes a step of one statement, whose second column is `fresh`. `None`: it
    /// gave no row.
    pub(crate) async fn step(
        &self,
        sql: &'static str,
        params: Params<'_>,
    ) -> Result<Option<Row>, StoreError> {
        let began = Instant::now();
        let mut round = 0;
        loop {
            let mut lent = self.pool.lend().await?;
            let error = match lent.rows(sql, params).await {
                Ok(mut rows) => {
                    let Some(row) = rows.pop() else { return Ok(None) };
                    if row.try_get(1).map_err(|error| fault::read(&error))? {
                        return Ok(Some(row));
                    }
                    StoreError::Unavailable {
                        what: "others changed the same row all the time; try again".into(),
                    }
                }
                Err(Failed::Again(error)) => error,
                Err(Failed::Undone(error) | Failed::Gone(error)) => return Err(error),
            };
            drop(lent);
            if began.elapsed() > STUBBORN {
                return Err(error);
            }
            pause(round).await;
            round += 1;
        }
    }

    /// Reads.
    pub(crate) async fn read(&self, sql: &'static str, params: Params<'_>) -> Result<Vec<Row>, StoreError> {
        let mut again = true;
        loop {
            match self.pool.lend().await?.rows(sql, params).await {
                Ok(rows) => return Ok(rows),
                Err(Failed::Undone(error)) => return Err(error),
                // The connection had ended while it lay idle; the next will do.
                Err(Failed::Gone(_)) if again => again = false,
                Err(Failed::Gone(StoreError::CommitUnknown { what })) => {
                    return Err(StoreError::Unavailable { what });
                }
                Err(Failed::Again(error) | Failed::Gone(error)) => return Err(error),
            }
        }
    }

    /// Begins a transaction of several statements, whose commit is flushed.
    pub(crate) async fn begin(&self) -> Result<Tx<'_>, StoreError> {
        let lent = self.pool.lend().await?;
        let mut tx = Tx { lent, now: Timestamp::from_micros(0), open: true };
        tx.run(sql::BEGIN, &[]).await?;
        let row = tx.row(sql::DURABLE, &[&self.durable]).await?;
        let now = row.map(|row| row.try_get(1).map_err(|error| fault::read(&error))).transpose()?;
        tx.now = Timestamp::from_micros(now.unwrap_or_default());
        Ok(tx)
    }

    /// Says that an action changed, after the commit and before its caller is
    /// answered: whoever has the answer knows that everybody here was told.
    /// Other hosts are told a little later.
    pub(crate) fn changed(&self, tenant: &TenantId, action: ActionId) {
        let changed = Changed { tenant: tenant.clone(), action };
        self.wake.tell(&changed);
        // Nobody listening is no error.
        let _ = self.changes.send(changed);
    }
}

/// Between two tries: longer each time, and never the same for two that are in
/// each other's way.
async fn pause(round: u32) {
    if round == 0 {
        return;
    }
    let most = LONGEST_PAUSE.min(1 << round.min(10));
    let [random, ..] = uuid::Uuid::new_v4().into_bytes();
    tokio::time::sleep(Duration::from_micros(most * 1000 * u64::from(random) / 255)).await;
}

/// A transaction that is open. Let go of without a commit it is undone, with its
/// connection.
pub(crate) struct Tx<'a> {
    lent: Lent<'a>,
    /// When it began. Nothing in such a transaction is compared with the time.
    pub(crate) now: Timestamp,
    open: bool,
}

impl Tx<'_> {
    /// The first row that a statement gives, if any.
    pub(crate) async fn row(
        &mut self,
        sql: &'static str,
        params: Params<'_>,
    ) -> Result<Option<Row>, StoreError> {
        let rows = self.lent.rows(sql, params).await.map_err(before_commit)?;
        Ok(rows.into_iter().next())
    }

    /// Runs a statement that gives no rows; how many rows it changed.
    pub(crate) async fn run(&mut self, sql: &'static str, params: Params<'_>) -> Result<u64, StoreError> {
        self.lent.run(sql, params).await.map_err(before_commit)
    }

    pub(crate) async fn commit(mut self) -> Result<(), StoreError> {
        let committed = self.lent.run(sql::COMMIT, &[]).await;
        self.open = committed.is_err();
        committed.map(|_| ()).map_err(|failed| match failed {
            Failed::Again(error) | Failed::Undone(error) | Failed::Gone(error) => error,
        })
    }

    /// Undoes it and keeps the connection.
    pub(crate) async fn rollback(mut self) {
        self.open = self.lent.run(sql::ROLLBACK, &[]).await.is_err();
    }
}

impl Drop for Tx<'_> {
    fn drop(&mut self) {
        if self.open {
            self.lent.discard();
        }
    }
}

/// Until the commit is sent, a lost connection means that it was undone.
fn before_commit(failed: Failed) -> StoreError {
    match failed {
        Failed::Gone(StoreError::CommitUnknown { what }) => StoreError::Unavailable { what },
        Failed::Again(error) | Failed::Undone(error) | Failed::Gone(error) => error,
    }
}
