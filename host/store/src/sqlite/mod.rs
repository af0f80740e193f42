//! The store in one SQLite file, for one host.
//!
//! Read `sql` for the statements, `writer` for how many callers' steps become
//! one commit, `claim`, `record` and `decide` for the steps, `rows` for what a
//! row is. `lock`, `place`, `migrate` and `opening` are about opening the file at
//! all.

mod claim;
mod clock;
mod connect;
mod decide;
mod fault;
mod health;
mod ledger;
mod lock;
mod migrate;
mod opening;
mod place;
mod readers;
mod record;
mod registry;
mod rows;
mod sql;
#[cfg(test)]
mod tests;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::sync::broadcast;

pub use clock::{Clock, ManualClock, SystemClock};
pub use health::examine;
pub use writer::Figures;

use self::lock::HostLock;
use self::readers::Readers;
use self::writer::Writer;
use crate::StoreError;
use crate::ledger::Changed;

/// How a store is opened.
#[derive(Clone)]
pub struct SqliteOptions {
    /// The file; made if it is not there. Its folder has to be.
    pub path: PathBuf,
    /// Where the time comes from.
    pub clock: Arc<dyn Clock>,
    /// Connections that read, at least one.
    pub readers: usize,
    /// How long to wait for another process that holds the write lock (a
    /// backup, somebody's shell) before a step is [`StoreError::Unavailable`].
    pub busy_timeout: Duration,
    /// The most pages of 4 KiB that the file may grow to; `None`: the disk.
    pub max_pages: Option<u32>,
    /// The file was restored from a backup: what it says of open actions may be
    /// out of date, and each becomes `outcome_unknown` before it goes on. A file
    /// that was put back by itself is found out without this where the one
    /// beside it, `<file>.opening`, remembers more than it does.
    pub after_restore: bool,
}

impl SqliteOptions {
    /// The file, with everything else as a host wants it.
    pub fn new(path: impl Into<PathBuf>) -> SqliteOptions {
        SqliteOptions {
            path: path.into(),
            clock: Arc::new(SystemClock::default()),
            // Chosen: reads are short, and the machine's cores are shared.
            readers: 3,
            busy_timeout: Duration::from_secs(5),
            max_pages: None,
            after_restore: false,
        }
    }
}

impl std::fmt::Debug for SqliteOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteOptions")
            .field("path", &self.path)
            .field("readers", &self.readers)
            .finish_non_exhaustive()
    }
}

/// A store in one SQLite file. Clones share it; it closes with the last one.
#[derive(Clone)]
pub struct SqliteStore {
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    clock: Arc<dyn Clock>,
    changes: broadcast::Sender<Changed>,
    readers: Readers,
    writer: Writer,
    /// Commits were lost, and not every action is doubted for it yet.
    rewound: AtomicBool,
}

impl std::fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteStore").field("path", &self.inner.path).finish_non_exhaustive()
    }
}

impl SqliteStore {
    /// Opens the file as its only host, and brings it to this version's schema.
    /// Blocks for as long as that takes.
    ///
    /// # Errors
    /// [`StoreError::CannotOpen`] with what is wrong, where, and what to do.
    pub fn open(options: SqliteOptions) -> Result<SqliteStore, StoreError> {
        connect::check_version(rusqlite::version())?;
        let lock = connect::take_place(&options.path)?;
        SqliteStore::open_locked(options, lock)
    }

    fn open_locked(options: SqliteOptions, lock: HostLock) -> Result<SqliteStore, StoreError> {
        let (mut writing, cursor) = connect::writer(&options)?;
        let (memory, rewound) =
            opening::opened(&mut writing, &options, cursor).map_err(|error| StoreError::CannotOpen {
                what: format!("the database {} cannot be opened: {error}", options.path.display()),
            })?;
        let reading = (0..options.readers.max(1))
            .map(|_| connect::reader(&options))
            .collect::<Result<Vec<_>, StoreError>>()?;
        // Chosen: a receiver that lags behind by so many only polls sooner.
        let (changes, _) = broadcast::channel(1024);
        let writer = Writer::start(writing, cursor, options.clock.clone(), changes.clone(), lock, memory)?;
        Ok(SqliteStore {
            inner: Arc::new(Inner {
                path: options.path,
                clock: options.clock,
                changes,
                readers: Readers::new(reading),
                writer,
                rewound: AtomicBool::new(rewound),
            }),
        })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// What the writer did since the store was opened.
    pub fn figures(&self) -> Figures {
        self.inner.writer.figures()
    }

    /// Makes what is queued, moves it into the file and lets go of it. Steps
    /// and reads that come later are [`StoreError::Unavailable`].
    pub async fn close(&self) {
        let inner = self.inner.clone();
        // It joins a thread.
        let _ = tokio::task::spawn_blocking(move || inner.close()).await;
    }
}

impl Inner {
    fn close(&self) {
        // A checkpoint cannot empty the WAL while somebody reads.
        self.readers.close();
        self.writer.close();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close();
    }
}
