//! Proposals: one key, one action.

use std::time::Duration;

use countersign_domain::action::{Fact, State};
use countersign_domain::effect::Refusal;
use countersign_domain::id::{ComponentDigest, Digest, Fingerprint, Ordinal};
use countersign_domain::key::{ActionKey, action_id};

use super::Backend;
use super::scene::{Scene, answer, new_tool, principal, text};
use crate::steps::{ListActions, Move, NewAction, Proposed, Settled};

pub async fn p5_the_same_key_finds_the_same_action_and_changes_nothing(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let first = scene.awaiting("k", 1).await;
    scene.advance(Duration::from_secs(1)).await;
    let mut again = scene.proposal("k", 0).await;
    again.arguments = text(r#"{"amount":"99.00"}"#);
    let Proposed::Again(found) = scene.store.propose(again).await.unwrap() else {
        panic!("two actions of one key")
    };
    assert_eq!(*found, first, "the caller compares the intents; the row is the first one's");
    assert_eq!(scene.facts(first.id).await, ["proposed", "approval_required"]);
}

pub async fn break_21_after_an_upgrade_the_same_key_still_finds_its_own_action(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let attempt = scene.running("k").await;
    let ended = scene.succeed(&attempt).await;
    let newer = new_tool(&scene.tenant, "refund", "2.0.0", "other bytes", "grant");
    let newer = scene.store.install_tool(newer).await.unwrap();
    let again = NewAction {
        version: newer.version,
        component: newer.component,
        fingerprint: Fingerprint(Digest::of(b"another, because the component is another")),
        ..scene.proposal("k", 0).await
    };
    let Proposed::Again(found) = scene.store.propose(again).await.unwrap() else {
        panic!("two actions of one key")
    };
    assert_eq!(*found, ended);
    assert_eq!(found.result, Some(text(r#"{"ok":true}"#)));
}

pub async fn two_hundred_proposals_of_one_key_make_one_action(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..200 {
        let (store, new) = (scene.store.clone(), scene.proposal("k", 1).await);
        tasks.spawn(async move { matches!(store.propose(new).await.unwrap(), Proposed::New(_)) });
    }
    let new = tasks.join_all().await.into_iter().filter(|new| *new).count();
    assert_eq!(new, 1);
    let id = action_id(&scene.tenant, &ActionKey::Key("k".into()));
    assert_eq!(scene.facts(id).await, ["proposed", "approval_required"]);
    scene.whole(id).await;
}

pub async fn the_key_of_one_tenant_names_nothing_in_another(backend: &dyn Backend) {
    let (one, other) = (Scene::of(backend, "one").await, Scene::of(backend, "other").await);
    let action = one.approved("k").await;
    let theirs = other.approved("k").await;
    assert_ne!(action.id, theirs.id);
    assert_eq!(other.store.action(&other.tenant, action.id).await.unwrap(), None);
    assert_eq!(other.store.events_of(&other.tenant, action.id, 0, 10).await.unwrap(), []);
    assert_eq!(other.store.effects(&other.tenant, action.id, true).await.unwrap(), []);
    assert_eq!(
        other.store.actions(&other.tenant, ListActions { limit: 10, ..Default::default() }).await.unwrap(),
        [theirs]
    );
}

pub async fn a_proposal_writes_its_events_and_planned_effects_in_one_commit(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let refusal = Refusal::NotGranted("no route".into());
    let new = NewAction {
        planned_effects: vec![
            scene.settled_of(1, Settled::Answered(answer(200))),
            scene.settled_of(2, Settled::Refused(refusal.clone())),
        ],
        ..scene.proposal("k", 1).await
    };
    let action = scene.propose(new).await;
    assert_eq!(action.state, State::AwaitingApproval);
    assert_eq!((action.effects, action.standing_writes, action.event_seq), (2, 0, 2));
    let effects = scene.store.effects(&scene.tenant, action.id, false).await.unwrap();
    assert_eq!(effects.iter().map(|effect| effect.ordinal).collect::<Vec<_>>(), [Ordinal(1), Ordinal(2)]);
    assert_eq!(effects[0].answer, Some(answer(200)), "byte for byte");
    assert_eq!(effects[1].refusal, Some(refusal));
    assert_eq!(effects[0].recorded_at, Some(action.updated));
    scene.whole(action.id).await;
}

pub async fn a_proposal_that_policy_denies_ends_at_once(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let mut new = scene.proposal("k", 0).await;
    new.moves[1] = Move { fact: Fact::PolicyDenied, to: State::Cancelled, by: "policy".into() };
    let action = scene.propose(new).await;
    assert_eq!(action.state, State::Cancelled);
    assert_eq!((action.approved_fingerprint, action.approved_at), (None, None));
    scene.whole(action.id).await;
}

pub async fn every_field_of_an_action_is_read_back_as_it_was_written(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let old = scene.awaiting("old", 1).await;
    scene.advance(Duration::from_millis(3)).await;
    let key = ActionKey::Run { run: "run-1 \"é\"".into(), step: "a, b".into() };
    let new = NewAction {
        id: action_id(&scene.tenant, &key),
        key,
        requested_version: Some("1".into()),
        arguments: text(r#"{"a":[1,2.5,"é\n'; drop table actions;--"],"b":null}"#),
        actor: principal("somebody-else"),
        preview: Some(text(r#"{"fields":[],"title":"Refund"}"#)),
        run_by_itself: true,
        supersedes: Some(old.id),
        compensates: Some(old.id),
        seed: std::array::from_fn(|n| u8::try_from(n).unwrap() + 200),
        attempts: 9,
        repeats: 8,
        ..scene.proposal("new", 0).await
    };
    let written = scene.propose(new.clone()).await;
    assert_eq!(scene.row(written.id).await, written);
    assert_eq!(written.key, new.key);
    assert_eq!(written.arguments, new.arguments);
    assert_eq!(written.seed, new.seed);
    assert_eq!(written.approved_fingerprint, Some(new.fingerprint));
    assert_eq!(written.approval_expires, written.updated.plus(new.approval_expires_after));
    assert_eq!(written.execution_deadline, written.updated.plus(new.execution_deadline_after));
    assert_eq!((written.attempts_left, written.repeats_left), (9, 8));

    let other_code =
        NewAction { component: ComponentDigest(Digest::of(b"never stored")), ..scene.proposal("x", 0).await };
    assert!(
        scene.store.propose(other_code).await.is_err(),
        "an action of a component that nobody has could never run"
    );
}

pub async fn a_proposal_that_replaces_an_ended_action_is_named_there(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let old = scene.approved("old").await;
    let cancelled = super::scene::made(scene.store.transition(scene.cancelled_of(&old)).await);
    let new = NewAction { supersedes: Some(old.id), ..scene.proposal("new", 0).await };
    let new = scene.propose(new).await;
    let named = scene.row(old.id).await;
    assert_eq!(named.superseded_by, Some(new.id));
    assert_eq!((named.state, named.event_seq), (State::Cancelled, cancelled.event_seq), "nothing else moved");

    // One that lives names its successor by the transition that ends it.
    let living = scene.approved("living").await;
    let next = NewAction { supersedes: Some(living.id), ..scene.proposal("next", 0).await };
    let next = scene.propose(next).await;
    assert_eq!(scene.row(living.id).await, living, "a decision that was made on it still holds");
    let mut superseded = scene.transition_of(&living, Fact::Superseded);
    superseded.superseded_by = Some(next.id);
    let superseded = super::scene::made(scene.store.transition(superseded).await);
    assert_eq!((superseded.state, superseded.superseded_by), (State::Cancelled, Some(next.id)));
}

pub async fn lists_are_newest_first_and_go_on_where_they_stopped(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let mut expected = Vec::new();
    for n in 0..12u32 {
        let mut new = scene.proposal(&format!("k{n}"), n % 2).await;
        if n % 3 == 0 {
            let key = ActionKey::Run { run: "run".into(), step: n.to_string() };
            new = NewAction { id: action_id(&scene.tenant, &key), key, ..new };
        }
        expected.push(scene.propose(new).await);
        // Two by two at the same instant.
        scene.advance(Duration::from_micros(u64::from(n % 2))).await;
    }
    expected.sort_by_key(|action| std::cmp::Reverse((action.created, action.id)));

    let list = |list: ListActions| {
        let (store, tenant) = (scene.store.clone(), scene.tenant.clone());
        async move { store.actions(&tenant, list).await.unwrap() }
    };
    let mut paged = Vec::new();
    loop {
        let after = paged.last().map(|action: &countersign_domain::action::Action| action.id);
        let page = list(ListActions { after, limit: 5, ..Default::default() }).await;
        if page.is_empty() {
            break;
        }
        assert!(page.len() <= 5);
        paged.extend(page);
    }
    assert_eq!(paged, expected);

    let only = |keep: &dyn Fn(&countersign_domain::action::Action) -> bool| -> Vec<_> {
        expected.iter().filter(|action| keep(action)).cloned().collect()
    };
    let awaiting =
        list(ListActions { states: vec![State::AwaitingApproval], limit: 99, ..Default::default() }).await;
    assert_eq!(awaiting, only(&|action| action.state == State::AwaitingApproval));
    let both = vec![State::AwaitingApproval, State::Approved, State::Approved];
    let both = list(ListActions { states: both, limit: 7, ..Default::default() }).await;
    assert_eq!(both, expected[..7]);
    let of_run = list(ListActions { run: Some("run".into()), limit: 99, ..Default::default() }).await;
    assert_eq!(of_run, only(&|action| action.key.run().is_some()));
    let approved_of_run = ListActions {
        run: Some("run".into()),
        states: vec![State::Approved],
        limit: 99,
        ..Default::default()
    };
    assert_eq!(
        list(approved_of_run).await,
        only(&|action| action.key.run().is_some() && action.state == State::Approved)
    );
    let of_tool = ListActions { tool: Some(scene.tool.name.clone()), limit: 99, ..Default::default() };
    assert_eq!(list(of_tool).await, expected);
    let of_none = ListActions { tool: Some("other".parse().unwrap()), limit: 99, ..Default::default() };
    assert_eq!(list(of_none).await, []);
}
