//! The store in a PostgreSQL database, for any number of hosts.
//!
//! Read `sql` for the statements and for how a step takes its row, `writer` for
//! how a step is made, `claim`, `record` and `decide` for the steps, `rows` for
//! what a row is. `connect`, `moved` and `migrate` are about being let in at all,
//! `wake` about hosts telling each other.

mod claim;
mod connect;
mod decide;
mod fault;
mod health;
mod ledger;
mod migrate;
mod moved;
mod record;
mod registry;
mod rows;
mod sql;
#[cfg(test)]
mod tests;
mod tls;
mod wake;
mod writer;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

pub use health::examine;
use tokio::sync::broadcast;

use self::connect::{Address, Pool};
use self::wake::Wake;
use crate::StoreError;
use crate::ledger::Changed;

/// How the commit of a step is made durable that another flushes for it.
const UNFLUSHED: &str = "off";

/// When a commit counts as made: what `synchronous_commit` is set to for it,
/// whatever the role or the server says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// Flushed by this server, and by the synchronous standby if there is one.
    #[default]
    Flushed,
    /// The synchronous standby has applied it, too: whoever reads there sees it.
    Applied,
}

impl Durability {
    const fn setting(self) -> &'static str {
        match self {
            Durability::Flushed => "on",
            Durability::Applied => "remote_apply",
        }
    }
}

/// How a store is opened.
#[derive(Clone)]
pub struct PostgresOptions {
    /// `postgres://user:password@host:port/database`, or the same as
    /// `host=… user=…`. Has a secret in it, and is never shown.
    pub url: String,
    /// The password, where it does not stand in the URL. Never shown.
    pub password: Option<String>,
    /// Certificates, in PEM, of authorities that may vouch for the server, beside
    /// the public ones.
    pub roots: Vec<u8>,
    /// Connections that steps and reads take turns with, at least one.
    pub connections: usize,
    /// How long to wait for a turn, and for an answer. A step that got no answer
    /// in that time is [`StoreError::CommitUnknown`].
    pub patience: Duration,
    /// When a commit counts as made.
    pub durability: Durability,
    /// The database was restored: what it says of open actions may be out of
    /// date, and each becomes `outcome_unknown` before it goes on. A server that
    /// took over, or that was recovered to a point in time, is found out without
    /// this.
    pub after_restore: bool,
    /// Settings made on each connection after ours; for tests.
    pub(crate) more_settings: Option<String>,
}

impl PostgresOptions {
    /// The database, with everything else as a host wants it.
    pub fn new(url: impl Into<String>) -> PostgresOptions {
        PostgresOptions {
            url: url.into(),
            password: None,
            roots: Vec::new(),
            // Chosen: a server on a few cores does most work with about eight
            // connections and half of that with a hundred; raise it with the
            // server's cores.
            connections: 8,
            // Chosen: as long as the longest send, after which a lease needs
            // attention anyway.
            patience: Duration::from_secs(30),
            durability: Durability::default(),
            after_restore: false,
            more_settings: None,
        }
    }
}

impl std::fmt::Debug for PostgresOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresOptions")
            .field("connections", &self.connections)
            .field("patience", &self.patience)
            .field("durability", &self.durability)
            .finish_non_exhaustive()
    }
}

/// A store in a PostgreSQL database. Clones share it; it closes with the last
/// one.
#[derive(Clone)]
pub struct PostgresStore {
    inner: Arc<Inner>,
}

/// What the clones share.
pub(crate) struct Inner {
    place: String,
    pool: Pool,
    changes: broadcast::Sender<Changed>,
    wake: Wake,
    /// `synchronous_commit` of a commit that must be flushed.
    durable: &'static str,
    /// Commits were lost, and not every action is known to be doubted for it.
    rewound: Arc<AtomicBool>,
}

impl std::fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresStore").field("place", &self.inner.place).finish_non_exhaustive()
    }
}

impl PostgresStore {
    /// Opens a database, and brings it to this version's schema.
    ///
    /// # Errors
    /// [`StoreError::CannotOpen`] with what is wrong, where, and what to do;
    /// [`StoreError::Unavailable`] where waiting may help.
    pub async fn open(options: PostgresOptions) -> Result<PostgresStore, StoreError> {
        let address = Address::new(&options)?;
        let place = address.place();
        let named = |error: StoreError| match error {
            StoreError::CannotOpen { what } if !what.contains(&place) => {
                StoreError::CannotOpen { what: format!("the database {place} cannot be used: {what}") }
            }
            other => other,
        };
        // A connection of its own: what a migration does to a session goes with it.
        let (client, driver) = address.reach().await.map_err(named)?;
        let driver = tokio::spawn(driver);
        let conn = connect::set(client, &options).await.map_err(named)?;
        migrate::run(&conn.client, migrate::ALL).await.map_err(named)?;
        if options.after_restore {
            moved::restored(&conn.client).await.map_err(named)?;
        }
        let newest = moved::Newest::default();
        let rewound = Arc::new(AtomicBool::new(moved::look(&conn.client, &newest).await.map_err(named)?));
        drop(conn);
        // It ends with its client; how it ended says nothing any more.
        let _ = driver.await;
        // Chosen: a receiver that lags behind by so many only polls sooner.
        let (changes, _) = broadcast::channel(1024);
        let wake = Wake::start(address.clone(), options.clone(), changes.clone()).await.map_err(named)?;
        let durable = options.durability.setting();
        let pool = Pool::new(address, options, rewound.clone(), newest);
        let inner = Inner { place: place.clone(), pool, changes, wake, durable, rewound };
        Ok(PostgresStore { inner: Arc::new(inner) })
    }

    /// The database, its host and its port, for people.
    pub fn place(&self) -> &str {
        &self.inner.place
    }

    /// Lets go of the database. Steps that were begun are made; later ones and
    /// reads are [`StoreError::Unavailable`].
    pub fn close(&self) {
        self.inner.close();
    }
}

impl Inner {
    fn close(&self) {
        self.pool.close();
        self.wake.close();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close();
    }
}
