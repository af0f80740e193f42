//! The suite that every store has to pass, and what only a server can do wrong.

mod cluster;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use countersign_domain::time::micros;
use tokio_postgres::Client;

use super::{PostgresOptions, PostgresStore};
use crate::Store;
use crate::conformance::Backend;

/// A store in a database of its own, with a clock that stands still.
struct InDatabase {
    store: PostgresStore,
    beside: Client,
}

impl InDatabase {
    async fn open() -> Option<InDatabase> {
        InDatabase::open_with(|_| {}).await
    }

    async fn open_with(change: impl FnOnce(&mut PostgresOptions)) -> Option<InDatabase> {
        let cluster = cluster::shared()?;
        let name = cluster::still(cluster).await;
        let mut options = PostgresOptions::new(cluster.url(&name));
        change(&mut options);
        let store = PostgresStore::open(options).await.unwrap();
        let beside = cluster.client(&name).await;
        beside.batch_execute("set synchronous_commit = off").await.unwrap();
        Some(InDatabase { store, beside })
    }
}

#[async_trait]
impl Backend for InDatabase {
    fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.store.clone())
    }

    async fn advance(&self, by: Duration) {
        self.beside.execute("update test_clock set now = now + $1", &[&micros(by)]).await.unwrap();
    }
}

crate::conformance_tests!(match InDatabase::open().await {
    Some(backend) => std::future::ready(backend),
    None => return,
});
