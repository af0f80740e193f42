//! Events: one per transition, chained, in an order that can be resumed.

use countersign_domain::action::State;
use countersign_domain::event::{Event, verify};
use countersign_domain::grant::RecoveryClass;

use super::Backend;
use super::scene::{SETTLE, Scene, lost, made};
use crate::ledger::Changed;
use crate::steps::ClaimKind;

pub async fn p8_the_events_of_a_whole_life_verify(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let action = scene.awaiting("k", 1).await;
    made(scene.store.approve(scene.approval(&action, "ben")).await);
    let attempt = scene.run(action.id).await;
    let claimed = scene.write_as(&attempt, 1, RecoveryClass::Manual).await;
    let unknown = scene.lose(&attempt, claimed.fence).await;
    scene.advance(SETTLE).await;
    made(scene.store.resolve(scene.found_not_done_of(&unknown, claimed.fence)).await);
    let again = scene.run(action.id).await;
    scene.succeed(&again).await;
    let facts = [
        "proposed",
        "approval_required",
        "approved",
        "claimed",
        "outcome_lost",
        "found_not_done",
        "claimed",
        "succeeded",
    ];
    assert_eq!(scene.facts(action.id).await, facts);
    let row = scene.whole(action.id).await;
    let events = scene.events(action.id).await;
    // And a history that somebody touched does not.
    let check = |events: &[Event]| verify(&scene.tenant, action.id, events, row.state);
    for n in 0..events.len() {
        let mut edited = events.clone();
        edited[n].body = edited[n].body.replace("\"by\":\"", "\"by\":\"x");
        assert!(check(&edited).is_err(), "edited {n}");
        let mut cut = events.clone();
        cut.remove(n);
        assert!(check(&cut).is_err(), "cut {n}");
    }
}

pub async fn a_tenants_events_resume_without_loss_or_doubling(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    // Somebody reads on while others write.
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..40 {
        let (store, new) = (scene.store.clone(), scene.proposal(&format!("k{n}"), n % 2).await);
        tasks.spawn(async move { store.propose(new).await.map(|_| ()) });
    }
    let mut seen: Vec<Event> = Vec::new();
    let mut writing = true;
    loop {
        let after = seen.last().map_or(0, |event| event.cursor);
        let page = scene.store.events(&scene.tenant, after, 7).await.unwrap();
        let empty = page.is_empty();
        seen.extend(page);
        if !writing && empty && seen.len() >= 80 {
            break;
        }
        while let Some(done) = tasks.try_join_next() {
            done.unwrap().unwrap();
        }
        writing = !tasks.is_empty();
        tokio::task::yield_now().await;
    }
    assert_eq!(seen.len(), 80, "two of each");
    assert!(seen.windows(2).all(|two| two[0].cursor < two[1].cursor), "in order");
    let mut distinct: Vec<_> = seen.iter().map(|event| (event.action, event.seq)).collect();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), 80);
    assert_eq!(scene.tenant_events(0, 80).await, seen);
}

pub async fn the_events_of_one_action_resume_after_a_number(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let attempt = scene.running("k").await;
    scene.succeed(&attempt).await;
    let all = scene.events(attempt.action).await;
    assert_eq!(all.iter().map(|event| event.seq).collect::<Vec<_>>(), [1, 2, 3, 4]);
    let page = |after, limit| scene.store.events_of(&scene.tenant, attempt.action, after, limit);
    assert_eq!(page(1, 2).await.unwrap(), all[1..3]);
    assert_eq!(page(4, 2).await.unwrap(), []);
}

pub async fn one_tenant_sees_no_other_tenants_events(backend: &dyn Backend) {
    let (one, other) = (Scene::of(backend, "one").await, Scene::of(backend, "other").await);
    let (mine, theirs) = (one.approved("k").await, other.approved("k").await);
    for (scene, id) in [(&one, mine.id), (&other, theirs.id)] {
        let events = scene.tenant_events(0, 2).await;
        assert!(events.iter().all(|event| event.tenant == scene.tenant && event.action == id));
        assert_eq!(events.len(), 2);
    }
}

pub async fn a_change_is_told_after_its_commit(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let mut changes = scene.store.subscribe();
    let action = scene.awaiting("k", 1).await;
    let told =
        |changed: Changed| assert_eq!(changed, Changed { tenant: scene.tenant.clone(), action: action.id });
    told(changes.recv().await.unwrap());
    made(scene.store.approve(scene.approval(&action, "ben")).await);
    told(changes.recv().await.unwrap());
    assert_eq!(scene.state(action.id).await, State::Approved, "whoever is told can read it");
    let attempt = scene.run(action.id).await;
    told(changes.recv().await.unwrap());
    made(scene.store.request_cancel(&scene.tenant, action.id, "no more").await);
    told(changes.recv().await.unwrap());
    made(scene.fail_retryably(&attempt).await);
    told(changes.recv().await.unwrap());
}

pub async fn a_step_that_loses_tells_nobody_and_writes_no_event(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let attempt = scene.running("k").await;
    let before = scene.events(attempt.action).await;
    let mut changes = scene.store.subscribe();
    lost(scene.claim(attempt.action, ClaimKind::Run).await);
    lost(scene.store.approve(scene.approval(&scene.row(attempt.action).await, "ben")).await);
    assert!(changes.try_recv().is_err());
    assert_eq!(scene.events(attempt.action).await, before);
    // The next that wins is the next that is told.
    scene.succeed(&attempt).await;
    assert_eq!(changes.recv().await.unwrap().action, attempt.action);
    assert!(changes.try_recv().is_err());
}
