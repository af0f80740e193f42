//! The suite that every store has to pass, on a real file; and what is only
//! true of a file: what cannot be opened (`opening`), what cannot be written
//! (`writing`), what was tampered with (`tampered`), how steps become commits
//! (`group_commit`), and that each statement reads no more than it has to
//! (`statements`).

mod group_commit;
mod opening;
#[cfg(feature = "planted-bugs")]
mod planted;
mod statements;
mod tampered;
mod writing;

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::{ManualClock, SqliteOptions, SqliteStore, sql};
use crate::conformance::Backend;
use crate::{Store, StoreError};

crate::conformance_tests!(OnDisk::open());

/// A store in a folder of its own, with a clock that stands still.
struct OnDisk {
    store: SqliteStore,
    clock: ManualClock,
    folder: tempfile::TempDir,
}

impl OnDisk {
    async fn open() -> OnDisk {
        OnDisk::with(|_| {})
    }

    fn with(set: impl FnOnce(&mut SqliteOptions)) -> OnDisk {
        let folder = tempfile::tempdir().unwrap();
        let clock = ManualClock::default();
        let mut options = options(&folder, &clock);
        set(&mut options);
        OnDisk { store: SqliteStore::open(options).unwrap(), clock, folder }
    }

    fn path(&self) -> PathBuf {
        self.store.path().to_owned()
    }

    /// Somebody else's connection to the same file.
    fn by_hand(&self) -> rusqlite::Connection {
        rusqlite::Connection::open(self.path()).unwrap()
    }

    /// Closes the store and opens it again, as the next host would.
    async fn reopen(self) -> Result<OnDisk, StoreError> {
        let OnDisk { store, clock, folder } = self;
        store.close().await;
        drop(store);
        let store = SqliteStore::open(options(&folder, &clock))?;
        Ok(OnDisk { store, clock, folder })
    }
}

fn options(folder: &tempfile::TempDir, clock: &ManualClock) -> SqliteOptions {
    let mut options = SqliteOptions::new(folder.path().join("ledger.db"));
    options.clock = Arc::new(clock.clone());
    options
}

#[async_trait]
impl Backend for OnDisk {
    fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.store.clone())
    }

    async fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    async fn lose_commits(&self) {
        // As an opening finds it, without one: the cases keep their store.
        let conn = self.by_hand();
        conn.busy_timeout(Duration::from_secs(10)).unwrap();
        conn.execute_batch(sql::TENANTS_REWOUND).unwrap();
        conn.execute(sql::OPENED, [1]).unwrap();
        self.store.inner.rewound.store(true, std::sync::atomic::Ordering::SeqCst);
    }
}

/// This test binary again, for one test of it, with something to be told apart by.
fn this_test_again(name: &str, variable: &str, value: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(variable, value);
    command
}

/// What the parent told this process, if it is one of those.
#[expect(clippy::disallowed_methods, reason = "how a test tells itself apart from its child")]
fn told(variable: &str) -> Option<std::ffi::OsString> {
    std::env::var_os(variable)
}
