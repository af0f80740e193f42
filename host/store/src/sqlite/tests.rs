//! The file itself: what cannot be opened, what cannot be written, what was
//! tampered with; and the suite that every store has to pass.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::{ManualClock, SqliteOptions, SqliteStore};
use crate::Store;
use crate::conformance::Backend;

/// A store in a folder of its own, with a clock that stands still.
struct OnDisk {
    store: SqliteStore,
    clock: ManualClock,
    _folder: tempfile::TempDir,
}

impl OnDisk {
    async fn open() -> OnDisk {
        let folder = tempfile::tempdir().unwrap();
        let clock = ManualClock::default();
        let mut options = SqliteOptions::new(folder.path().join("ledger.db"));
        options.clock = Arc::new(clock.clone());
        OnDisk { store: SqliteStore::open(options).unwrap(), clock, _folder: folder }
    }
}

#[async_trait]
impl Backend for OnDisk {
    fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.store.clone())
    }

    async fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }
}

crate::conformance_tests!(OnDisk::open());
