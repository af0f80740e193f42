//! The suite that every store has to pass, and what only a server can do wrong.

mod cluster;
mod failover;
mod figures;
mod health;
mod hearing;
mod plans;
#[cfg(feature = "planted-bugs")]
mod planted;
mod proxy;
mod schema;
mod server;
mod tls;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use countersign_domain::time::micros;
use tokio_postgres::Client;

use super::{PostgresOptions, PostgresStore, sql};
use crate::Store;
use crate::conformance::Backend;

/// A store in a database of its own, with a clock that stands still.
struct InDatabase {
    store: PostgresStore,
    /// A connection that does not go through the store.
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
        // A machine that is busy with other things is not what is tested.
        options.patience = Duration::from_secs(300);
        change(&mut options);
        let store = PostgresStore::open(options).await.unwrap();
        let beside = cluster.client(&name).await;
        beside.batch_execute("set synchronous_commit = off").await.unwrap();
        Some(InDatabase { store, beside })
    }

    fn name(&self) -> &str {
        self.store.place().split(' ').next().unwrap()
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

    async fn lose_commits(&self) {
        // As a new connection finds it, without a failover.
        self.beside.execute(sql::RESTORED, &[]).await.unwrap();
        self.store.inner.rewound.store(true, std::sync::atomic::Ordering::SeqCst);
    }
}

crate::conformance_tests!(match InDatabase::open().await {
    Some(backend) => std::future::ready(backend),
    None => return,
});

/// E06, at the isolations that a server or a role may have set instead of ours.
/// READ COMMITTED is in the suite above.
mod isolation {
    use super::*;

    async fn thousand_winners(level: &str) {
        let set = format!("set default_transaction_isolation = '{level}'");
        let Some(backend) = InDatabase::open_with(|options| options.more_settings = Some(set)).await else {
            return;
        };
        let shown = backend.store.inner.read("show transaction_isolation", &[]).await.unwrap();
        assert_eq!(shown[0].get::<_, &str>(0), level);
        crate::conformance::races::two_hundred_claimers_of_a_thousand_actions_have_a_thousand_winners(
            &backend,
        )
        .await;
        let Some(backend) = InDatabase::open_with(|options| {
            options.more_settings = Some(format!("set default_transaction_isolation = '{level}'"));
        })
        .await
        else {
            return;
        };
        crate::conformance::approve::break_20_approvals_given_at_once_are_all_counted(&backend).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn e06_two_hundred_claimers_of_a_thousand_actions_at_repeatable_read() {
        thousand_winners("repeatable read").await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn e06_two_hundred_claimers_of_a_thousand_actions_at_serializable() {
        thousand_winners("serializable").await;
    }
}
