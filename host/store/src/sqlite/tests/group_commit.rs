//! How steps become commits, and that none of them takes another with it.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use super::OnDisk;
use crate::StoreError;
use crate::conformance::scene::{LEASE, Scene, made};
use crate::sqlite::sql;
use crate::steps::ClaimKind;

/// Holds the writer in a step until the sender is used or dropped.
fn hold(on_disk: &OnDisk) -> (std::sync::mpsc::Sender<()>, tokio::task::JoinHandle<()>) {
    let (release, held) = channel::<()>();
    let (entered, inside) = channel::<()>();
    let store = on_disk.store.clone();
    let task = tokio::spawn(async move {
        let step = store.inner.writer.step(false, move |_| {
            let _ = entered.send(());
            let _ = held.recv();
            Ok(())
        });
        step.await.unwrap();
    });
    let _ = tokio::task::block_in_place(|| inside.recv());
    (release, task)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_waited_for_the_last_commit_is_made_in_the_next_one() {
    let on_disk = OnDisk::open().await;
    let scene = Scene::new(&on_disk).await;
    let (release, task) = hold(&on_disk);
    let mut queued = Vec::new();
    for n in 0..50 {
        let new = scene.proposal(&format!("k{n}"), 1).await;
        let store = on_disk.store.clone();
        // Polled once, so that it is in the queue; then left to itself.
        let mut step = Box::pin(async move { crate::Ledger::propose(&store, new).await });
        assert!(futures_poll(&mut step).is_none());
        queued.push(step);
    }
    let before = on_disk.store.figures();
    drop(release);
    task.await.unwrap();
    for step in queued {
        step.await.unwrap();
    }
    let after = on_disk.store.figures();
    assert_eq!(
        (after.steps - before.steps, after.flushes - before.flushes),
        (50, 1),
        "fifty steps, one flush"
    );
}

fn futures_poll<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::Pin::new(future).poll(&mut context) {
        std::task::Poll::Ready(output) => Some(output),
        std::task::Poll::Pending => None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_step_that_fails_or_panics_is_undone_alone() {
    let on_disk = OnDisk::open().await;
    let scene = Scene::new(&on_disk).await;
    let (release, task) = hold(&on_disk);
    let writer = &on_disk.store.inner.writer;
    let insert = "insert into tenants (tenant_id, created) values (?1, 1)";
    let mut good = Vec::new();
    let mut bad = Vec::new();
    for n in 0..10 {
        let mut ok = Box::pin(writer.step(true, move |tx| tx.run(insert, [format!("good-{n}")])));
        let mut fails = Box::pin(writer.step(true, move |tx| {
            tx.run(insert, [format!("bad-{n}")])?;
            tx.run(insert, [format!("bad-{n}")])
        }));
        let mut panics = Box::pin(writer.step(true, move |tx| -> Result<usize, StoreError> {
            tx.run(insert, [format!("worse-{n}")])?;
            panic!("on purpose")
        }));
        assert!(futures_poll(&mut ok).is_none() && futures_poll(&mut fails).is_none());
        assert!(futures_poll(&mut panics).is_none());
        good.push(ok);
        bad.push((fails, panics));
    }
    drop(release);
    task.await.unwrap();
    for step in good {
        assert_eq!(step.await.unwrap(), 1);
    }
    for (fails, panics) in bad {
        assert_eq!(fails.await.unwrap_err(), StoreError::Constraint { name: "tenants_pkey".into() });
        let said = panics.await.unwrap_err();
        assert!(matches!(&said, StoreError::Unavailable { what } if what.contains("on purpose")), "{said}");
    }
    let names: Vec<String> = {
        let conn = on_disk.by_hand();
        let mut statement =
            conn.prepare("select tenant_id from tenants where tenant_id <> 'default'").unwrap();
        statement.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
    };
    assert_eq!(names.len(), 10);
    assert!(names.iter().all(|name| name.starts_with("good")), "{names:?}");
    // And the writer lives.
    scene.approved("k").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_caller_that_goes_away_undoes_nothing() {
    let on_disk = OnDisk::open().await;
    let scene = Scene::new(&on_disk).await;
    let (release, task) = hold(&on_disk);
    let new = scene.proposal("k", 1).await;
    let id = new.id;
    let mut step = Box::pin(scene.store.propose(new));
    assert!(futures_poll(&mut step).is_none());
    drop(step);
    drop(release);
    task.await.unwrap();
    // Behind it in the queue, so after it.
    scene.approved("next").await;
    scene.whole(id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn closing_makes_what_is_queued_and_refuses_what_comes_later() {
    let on_disk = OnDisk::open().await;
    let scene = Scene::new(&on_disk).await;
    let (release, task) = hold(&on_disk);
    let new = scene.proposal("k", 1).await;
    let (id, later) = (new.id, scene.proposal("later", 1).await);
    let mut queued = Box::pin(scene.store.propose(new));
    assert!(futures_poll(&mut queued).is_none());
    let store = on_disk.store.clone();
    let closing = tokio::spawn(async move { store.close().await });
    drop(release);
    task.await.unwrap();
    queued.await.unwrap();
    closing.await.unwrap();
    for refused in [
        scene.store.propose(later).await.map(|_| ()),
        scene.store.action(&scene.tenant, id).await.map(|_| ()),
    ] {
        assert!(matches!(refused, Err(StoreError::Unavailable { .. })), "{refused:?}");
    }
    assert!(!on_disk.path().with_extension("db-wal").exists(), "the log is in the file");
    drop(scene);
    let again = on_disk.reopen().await.unwrap();
    Scene::new(&again).await.whole(id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_human_approved_action_with_one_write_costs_five_flushes_alone() {
    let on_disk = OnDisk::open().await;
    let scene = Scene::new(&on_disk).await;
    let before = on_disk.store.figures();
    let action = scene.awaiting("k", 1).await;
    made(scene.store.approve(scene.approval(&action, "ben")).await);
    let attempt = scene.run(action.id).await;
    scene.store.heartbeat(&scene.tenant, action.id, attempt.id, LEASE).await.unwrap().unwrap();
    scene.written(&attempt, 1).await;
    scene.succeed(&attempt).await;
    let after = on_disk.store.figures();
    // Propose, approve, claim the write, record it, end; the action claim and
    // the heartbeat wait for the next of them.
    assert_eq!((after.commits - before.commits, after.flushes - before.flushes), (7, 5));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_connection_flushes_what_has_to_be_and_only_that() {
    let on_disk = OnDisk::open().await;
    let writer = &on_disk.store.inner.writer;
    // Inside the step, as the commit will find it.
    for flush in [true, false, false, true, true, false, true] {
        let level: i64 = writer
            .step(flush, |tx| {
                tx.conn()
                    .pragma_query_value(None, "synchronous", |row| row.get(0))
                    .map_err(super::super::fault::statement)
            })
            .await
            .unwrap();
        assert_eq!(level, if flush { 2 } else { 1 });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_hundred_callers_of_everything_at_once_are_all_answered() {
    let on_disk = OnDisk::open().await;
    let scene = Scene::new(&on_disk).await;
    let mut actions = Vec::new();
    for n in 0..200 {
        actions.push(scene.approved(&format!("k{n}")).await);
    }
    let store = scene.store.clone();
    let mut tasks = tokio::task::JoinSet::new();
    for action in actions {
        let (store, claim) = (store.clone(), scene.claim_of(action.id, ClaimKind::Run));
        let attempt = crate::conformance::scene::Attempt { action: action.id, id: claim.attempt };
        let write = scene.write_of(&attempt, 1, countersign_domain::grant::RecoveryClass::Manual);
        tasks.spawn(async move {
            made(store.claim_action(claim).await);
            made(store.claim_write(write).await).fence
        });
    }
    assert_eq!(tasks.join_all().await.len(), 200);
    let figures = on_disk.store.figures();
    assert!(figures.flushes < figures.steps, "{figures:?}");
    let _ = (Arc::strong_count(&store), Duration::ZERO, sql::COMMIT);
}
