//! What hosts and readers hear of each other's changes, and in which order.

use std::time::Duration;

use super::{InDatabase, PostgresOptions, PostgresStore, cluster};
use crate::conformance::scene::{Scene, seen};
use crate::ledger::Ledger as _;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hosts_hear_of_each_others_changes_and_again_after_the_line_was_cut() {
    let Some(backend) = InDatabase::open().await else { return };
    let url = cluster::shared().unwrap().url(backend.name());
    let other = PostgresStore::open(PostgresOptions::new(url)).await.unwrap();
    let scene = Scene::new(&backend).await;
    let mut hears = other.subscribe();
    let action = scene.awaiting("k", 1).await;
    assert_eq!(hears.recv().await.unwrap().action, action.id);

    let listeners = "select pg_terminate_backend(pid) from pg_stat_activity
        where datname = current_database() and application_name = 'countersign' and query ilike 'listen%'";
    backend.beside.execute(listeners, &[]).await.unwrap();
    // Wake-ups are lost meanwhile, and said again by the next change.
    let mut told = 0;
    loop {
        let next = scene.awaiting(&format!("k{told}x"), 1).await;
        told += 1;
        let heard = tokio::time::timeout(Duration::from_millis(50), hears.recv()).await;
        if heard.is_ok_and(|changed| changed.unwrap().action == next.id) {
            break;
        }
        assert!(told < 400, "the line did not come back");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_never_goes_past_an_event_that_is_not_committed_yet() {
    let Some(backend) = InDatabase::open().await else { return };
    let scene = Scene::new(&backend).await;
    let first = scene.awaiting("first", 1).await;
    let seen = scene.tenant_events(0, 2).await;
    assert_eq!(seen.len(), 2);
    let last = seen[1].cursor;

    // Somebody approves and is slow to commit; a later one is quick.
    let mut slow = cluster::shared().unwrap().client(backend.name()).await;
    let tx = slow.transaction().await.unwrap();
    let ids: [&(dyn tokio_postgres::types::ToSql + Sync); 2] =
        [&scene.tenant.as_str(), &first.id.0.as_bytes().as_slice()];
    tx.execute(
        "update actions set event_seq = 3, version = version + 1, state = 'cancelled' where tenant_id = $1 and id = $2",
        &ids,
    )
    .await
    .unwrap();
    tx.execute(
        "insert into events select tenant_id, action_id, 3, countersign_cursor(3), at, body, hash from events
         where tenant_id = $1 and action_id = $2 and seq = 2",
        &ids,
    )
    .await
    .unwrap();
    let quick = scene.awaiting("quick", 1).await;
    assert_eq!(scene.store.events(&scene.tenant, last, 100).await.unwrap(), [], "not yet");
    assert_eq!(scene.events(quick.id).await.len(), 2, "of one action they are all there");
    tx.commit().await.unwrap();
    let rest = scene.tenant_events(last, 3).await;
    let order: Vec<_> = rest.iter().map(|event| (event.action, event.seq)).collect();
    assert_eq!(order, [(first.id, 3), (quick.id, 1), (quick.id, 2)]);

    // What runs in another database of the server holds nobody up.
    let mut elsewhere = cluster::shared().unwrap().client("postgres").await;
    let tx = elsewhere.transaction().await.unwrap();
    tx.query_one("select pg_current_xact_id()::text", &[]).await.unwrap();
    scene.awaiting("meanwhile", 1).await;
    assert_eq!(scene.tenant_events(rest[2].cursor, 2).await.len(), 2);
    tx.rollback().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cursors_go_on_in_a_database_that_was_restored_into_a_server_that_counts_anew() {
    let Some(backend) = InDatabase::open().await else { return };
    let scene = Scene::new(&backend).await;
    scene.awaiting("before", 1).await;
    // As if the old server had counted much further.
    backend
        .beside
        .batch_execute(
            "alter table events disable trigger user; update events set cursor = cursor + 160000000000;
             alter table events enable trigger user",
        )
        .await
        .unwrap();
    let url = cluster::shared().unwrap().url(backend.name());
    let reopened = PostgresStore::open(PostgresOptions::new(url)).await.unwrap();
    let old = seen(&reopened, &scene.tenant, 0, 2).await;
    assert_eq!(old.len(), 2, "what was written is still there");
    scene.awaiting("after", 1).await;
    let new = seen(&reopened, &scene.tenant, old[1].cursor, 2).await;
    assert_eq!(new.len(), 2, "whoever resumes misses nothing");
}
