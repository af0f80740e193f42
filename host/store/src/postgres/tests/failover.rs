//! A server that has not every commit: a standby that lacked some took over, or
//! somebody says that the database was restored.

use std::time::Duration;

use countersign_domain::action::State;

use super::cluster::{self, Cluster};
use super::{InDatabase, PostgresOptions, PostgresStore};
use crate::conformance::scene::{Scene, lost, made};
use crate::ledger::Ledger as _;
use crate::postgres::{moved, sql};
use crate::steps::ClaimKind;

/// Waits until a query of the server says so.
async fn until(client: &tokio_postgres::Client, question: &str) {
    let began = tokio::time::Instant::now();
    while !client.query_one(question, &[]).await.unwrap().get::<_, bool>(0) {
        assert!(began.elapsed() < Duration::from_secs(120), "never: {question}");
        tokio::task::yield_now().await;
    }
}

/// E02: an asynchronous standby that had stopped to follow takes over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e02_a_promoted_standby_that_lacked_commits_doubts_open_actions_before_anything_is_claimed() {
    let Some(primary) = Cluster::start(&[]) else { return };
    let database = primary.database().await;
    // Opened once, so that the standby has the schema.
    PostgresStore::open(PostgresOptions::new(primary.url(&database))).await.unwrap().close();
    let standby = primary.standby();
    let both = format!(
        "host='{},{}' user=postgres dbname={database} target_session_attrs=read-write",
        primary.folder().display(),
        standby.folder().display()
    );
    let store = PostgresStore::open(PostgresOptions::new(both)).await.unwrap();
    let backend = Anywhere(store.clone());
    let scene = Scene::new(&backend).await;
    let (kept, sent) = (scene.approved("kept").await, scene.approved("sent").await);
    let beside = primary.client(&database).await;
    let replica = standby.client(&database).await;
    let reached: String = beside.query_one("select pg_current_wal_lsn()::text", &[]).await.unwrap().get(0);
    until(&replica, &format!("select pg_last_wal_replay_lsn() >= '{reached}'")).await;
    // What is committed from here on, the standby will not have.
    replica.batch_execute("alter system set primary_conninfo = ''").await.unwrap();
    replica.batch_execute("select pg_reload_conf()").await.unwrap();
    until(&replica, "select count(*) = 0 from pg_stat_wal_receiver").await;
    let attempt = scene.run(sent.id).await;
    scene.write(&attempt, 1).await;
    drop(beside);
    drop(primary);
    replica.batch_execute("select pg_promote(false)").await.unwrap();
    until(&replica, "select not pg_is_in_recovery()").await;

    // The next statement meets a server on which nothing of it ever happened.
    let row = loop {
        match store.action(&scene.tenant, sent.id).await {
            Ok(row) => break row.unwrap(),
            Err(_) => tokio::task::yield_now().await,
        }
    };
    assert_eq!(row.state, State::Approved, "the claim is lost, and the write that was sent under it");
    lost(scene.claim(sent.id, ClaimKind::Run).await);
    lost(scene.claim(kept.id, ClaimKind::Run).await);
    assert_eq!(store.doubt_rewound(100).await.unwrap(), 2);
    assert_eq!(store.doubt_rewound(100).await.unwrap(), 0);
    for id in [kept.id, sent.id] {
        let row = scene.whole(id).await;
        assert_eq!((row.state, row.rewound), (State::OutcomeUnknown, true));
    }
    // Another host, and a restart, find it done; what is new goes on.
    let other = PostgresStore::open(PostgresOptions::new(standby.url(&database))).await.unwrap();
    assert_eq!(other.doubt_rewound(100).await.unwrap(), 0);
    scene.running("new").await;
}

struct Anywhere(PostgresStore);

#[async_trait::async_trait]
impl crate::conformance::Backend for Anywhere {
    fn store(&self) -> std::sync::Arc<dyn crate::Store> {
        std::sync::Arc::new(self.0.clone())
    }
    async fn advance(&self, _: Duration) {
        unreachable!("its time is the server's")
    }
    async fn lose_commits(&self) {
        unreachable!("its commits are really lost")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_finds_the_server_moved_says_so_once_and_the_next_one_goes_on_with_it() {
    let Some(backend) = InDatabase::open().await else { return };
    let scene = Scene::new(&backend).await;
    let action = scene.approved("k").await;
    // As if the server had been another one, when somebody last looked.
    backend.beside.execute("update ledger_place set timeline = timeline + 7", &[]).await.unwrap();
    let client = cluster::shared().unwrap().client(backend.name()).await;
    let newest = moved::Newest::default();
    let looks = tokio::join!(moved::look(&client, &newest), moved::look(&backend.beside, &newest));
    assert_eq!((looks.0.unwrap(), looks.1.unwrap()), (true, true), "both are told to doubt");
    let said: i64 = client.query_one(sql::REWINDS, &[]).await.unwrap().get(0);
    assert_eq!(said, 1, "and one of them said it");
    // A host that knew nothing of it claims nothing; one that starts does the rest.
    lost(scene.claim(action.id, ClaimKind::Run).await);
    let url = cluster::shared().unwrap().url(backend.name());
    let other = PostgresStore::open(PostgresOptions::new(url)).await.unwrap();
    assert_eq!(other.doubt_rewound(100).await.unwrap(), 1);
    assert_eq!(scene.whole(action.id).await.state, State::OutcomeUnknown);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_said_to_be_restored_is_doubted_at_that_start_only() {
    let Some(backend) = InDatabase::open().await else { return };
    let scene = Scene::new(&backend).await;
    let action = scene.approved("k").await;
    let open = async |after_restore| {
        let url = cluster::shared().unwrap().url(backend.name());
        let options = PostgresOptions { after_restore, ..PostgresOptions::new(url) };
        PostgresStore::open(options).await.unwrap()
    };
    let restored = open(true).await;
    assert_eq!(restored.doubt_rewound(100).await.unwrap(), 1);
    assert_eq!(restored.doubt_rewound(100).await.unwrap(), 0);
    assert_eq!(open(false).await.doubt_rewound(100).await.unwrap(), 0);
    let claimed = made(scene.claim(action.id, ClaimKind::Repeat).await);
    assert_eq!(claimed.action.state, State::Executing);
}

#[test]
fn fi_4_an_old_primary_that_comes_back_is_refused_by_whoever_used_a_newer_one() {
    let newest = moved::Newest::default();
    newest.pass("one", 1).unwrap();
    newest.pass("one", 2).unwrap();
    let refused = newest.pass("one", 1).unwrap_err();
    assert!(
        matches!(&refused, crate::StoreError::Unavailable { what } if what.contains("old primary")),
        "{refused}"
    );
    newest.pass("one", 2).unwrap();
    // Another server, restored from a dump, counts its own.
    newest.pass("other", 1).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_that_may_do_nothing_but_own_its_database_is_enough_to_look() {
    let Some(cluster) = cluster::shared() else { return };
    let maintenance = cluster.client("postgres").await;
    maintenance.batch_execute("create role plain_owner login").await.unwrap();
    maintenance.batch_execute("create database owned owner plain_owner").await.unwrap();
    let url = cluster.url("owned").replace("user=postgres", "user=plain_owner");
    let store = PostgresStore::open(PostgresOptions::new(url)).await.unwrap();
    assert_eq!(store.doubt_rewound(10).await.unwrap(), 0);
}
