//! What only a server can do wrong: forget, make wait, go away, be another.

use countersign_domain::action::State;
use countersign_domain::grant::RecoveryClass;
use tokio_postgres::Client;

use super::cluster::{self, Cluster};
use super::proxy::Proxy;
use super::{InDatabase, PostgresOptions, PostgresStore};
use crate::StoreError;
use crate::conformance::scene::{MICROSECOND, Scene, answered, lost, made};
use crate::postgres::connect::{self, Server};
use crate::steps::{ClaimKind, Recorded, Step};

async fn refused(url: String) -> String {
    match PostgresStore::open(PostgresOptions::new(url)).await {
        Err(StoreError::CannotOpen { what } | StoreError::Unavailable { what }) => what,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was opened"),
    }
}

/// Waits until that many statements wait for a lock; the database says when.
async fn blocked(beside: &Client, many: i64) {
    let waiting = "select count(*) from pg_stat_activity
        where datname = current_database() and wait_event_type = 'Lock'";
    while beside.query_one(waiting, &[]).await.unwrap().get::<_, i64>(0) < many {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e01_a_server_that_loses_commits_is_refused() {
    let Some(cluster) = Cluster::start(&["fsync=off"]) else { return };
    let what = refused(cluster.url("postgres")).await;
    assert!(what.contains("fsync = off") && what.contains("set fsync = on"), "{what}");
    drop(cluster);
    let Some(cluster) = Cluster::start(&["full_page_writes=off"]) else { return };
    let what = refused(cluster.url("postgres")).await;
    assert!(what.contains("full_page_writes = off"), "{what}");
}

#[test]
fn servers_that_are_too_old_or_take_no_writes_are_refused_and_others_are_not() {
    let good = Server {
        version: 140_000,
        version_text: "14.0".into(),
        fsync: true,
        full_page_writes: true,
        in_recovery: false,
        encoding: "UTF8".into(),
    };
    good.judge().unwrap();
    let old = Server { version: 130_022, version_text: "13.22".into(), ..good.clone() };
    assert!(old.judge().unwrap_err().to_string().contains("13.22"));
    let standby = Server { in_recovery: true, ..good.clone() };
    assert!(matches!(standby.judge(), Err(StoreError::Unavailable { .. })));
    assert!(Server { encoding: "SQL_ASCII".into(), ..good }.judge().is_err());
}

#[test]
fn what_a_url_must_be_is_said_and_no_password_is_shown() {
    for bad in ["postgres://u:secret@h:x/d", "secret", "postgres:///d", ""] {
        let what = connect::config(bad).unwrap_err().to_string();
        assert!(what.contains("postgres://") && !what.contains("secret"), "{what}");
    }
    let config = connect::config("postgres://u:secret@db.example:6543/ledger").unwrap();
    assert_eq!(connect::place(&config), "ledger on db.example:6543");
    let options = PostgresOptions::new("postgres://u:secret@h/d");
    assert!(!format!("{options:?}").contains("secret"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_reached_is_named_with_what_to_do() {
    let Some(cluster) = cluster::shared() else { return };
    let what = refused(cluster.url("no_such_database")).await;
    assert!(what.contains("no_such_database") && what.contains("createdb"), "{what}");
    let what = refused("host=/nonexistent/folder user=u dbname=d".into()).await;
    assert!(what.contains("/nonexistent/folder") && what.contains("cannot be reached"), "{what}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e01_what_is_to_be_flushed_is_flushed_whatever_server_database_and_role_say() {
    // Nobody else's commits flush this server's log, and its own writer sleeps.
    let quiet = [
        "synchronous_commit=off",
        "wal_writer_delay=10s",
        "wal_writer_flush_after=1GB",
        "bgwriter_delay=10s",
    ];
    let Some(cluster) = Cluster::start(&quiet) else { return };
    let name = cluster.database().await;
    let beside = cluster.client(&name).await;
    for off in [format!("alter database {name}"), "alter role postgres".to_owned()] {
        beside.batch_execute(&format!("{off} set synchronous_commit = off")).await.unwrap();
    }
    let store = PostgresStore::open(PostgresOptions::new(cluster.url(&name))).await.unwrap();
    let backend = InDatabase { store, beside };
    let scene = Scene::new(&backend).await;
    let behind = || async {
        let text = "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), pg_current_wal_flush_lsn())::bigint";
        backend.beside.query_one(text, &[]).await.unwrap().get::<_, i64>(0)
    };
    // Told to others, and so committed, by now.
    let settle = || async {
        let idle = "select count(*) from pg_stat_activity where state = 'active' and pid <> pg_backend_pid()
            and backend_type = 'client backend'";
        while backend.beside.query_one(idle, &[]).await.unwrap().get::<_, i64>(0) > 0 {
            tokio::task::yield_now().await;
        }
    };
    let action = scene.awaiting("k", 1).await;
    made(scene.store.approve(scene.approval(&action, "ben")).await);
    settle().await;
    let attempt = scene.run(action.id).await;
    settle().await;
    assert!(
        behind().await > 0,
        "a claim of an action needs no flush; if it had one, this test would hold nothing"
    );
    let claimed = scene.write_as(&attempt, 1, RecoveryClass::Manual).await;
    // What came after it is at most the word to other hosts.
    let flushed_up_to = "select pg_wal_lsn_diff(pg_current_wal_flush_lsn(), '0/0')::bigint";
    let after_claim = backend.beside.query_one(flushed_up_to, &[]).await.unwrap().get::<_, i64>(0);
    let row = scene.row(action.id).await;
    assert_eq!(row.in_flight, Some(claimed.fence.ordinal));
    for step in 0..3 {
        let before = backend.beside.query_one(flushed_up_to, &[]).await.unwrap().get::<_, i64>(0);
        assert!(before >= after_claim);
        match step {
            0 => drop(scene.in_time(action.id, claimed.fence, answered(200)).await),
            1 => drop(made(scene.store.request_cancel(&scene.tenant, action.id, "no more").await)),
            _ => drop(scene.fail_terminally(&attempt).await.unwrap()),
        }
        let after = backend.beside.query_one(flushed_up_to, &[]).await.unwrap().get::<_, i64>(0);
        assert!(after > before, "step {step} was answered and not flushed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn break_15_a_claim_that_waits_for_its_row_across_the_expiry_loses() {
    let Some(backend) = InDatabase::open().await else { return };
    let scene = Scene::new(&backend).await;
    let held = "select 1 from actions where tenant_id = $1 and id = $2 for update";
    let mut holder = cluster::shared().unwrap().client(backend.name()).await;

    // The claim of an action, an approval, and the claim of a write.
    let approved = scene.approved("claim").await;
    let awaiting = scene.awaiting("approval", 1).await;
    let short = crate::steps::NewAction {
        approval_expires_after: crate::conformance::scene::APPROVAL,
        ..scene.proposal("write", 0).await
    };
    let writing = scene.propose(short).await;
    scene.advance_to(approved.approval_expires, MICROSECOND).await;
    let attempt = scene.run(writing.id).await;

    let claim = scene.claim_of(approved.id, ClaimKind::Run);
    let approval = scene.approval(&awaiting, "ben");
    let write = scene.write_of(&attempt, 1, RecoveryClass::Manual);
    let tx = holder.transaction().await.unwrap();
    for id in [approved.id, awaiting.id, writing.id] {
        tx.query_one(held, &[&scene.tenant.as_str(), &id.0.as_bytes().as_slice()]).await.unwrap();
    }
    let (one, two, three) = (scene.store.clone(), scene.store.clone(), scene.store.clone());
    let claim = tokio::spawn(async move { one.claim_action(claim).await });
    let approval = tokio::spawn(async move { two.approve(approval).await });
    let write = tokio::spawn(async move { three.claim_write(write).await });
    blocked(&backend.beside, 3).await;
    scene.advance(MICROSECOND).await;
    tx.rollback().await.unwrap();

    assert_eq!(lost(claim.await.unwrap()), approved);
    assert_eq!(lost(approval.await.unwrap()), awaiting);
    let row = lost(write.await.unwrap());
    assert_eq!((row.state, row.standing_writes), (State::Executing, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn break_27_a_claim_that_waits_while_the_policy_changes_or_the_tool_is_paused_loses() {
    let Some(backend) = InDatabase::open().await else { return };
    let scene = Scene::new(&backend).await;
    let mut holder = cluster::shared().unwrap().client(backend.name()).await;
    for paused in [false, true] {
        let action = scene.approved(&format!("k{paused}")).await;
        let claim = scene.claim_of(action.id, ClaimKind::Run);
        let tx = holder.transaction().await.unwrap();
        let held = "select 1 from actions where tenant_id = $1 and id = $2 for update";
        tx.query_one(held, &[&scene.tenant.as_str(), &action.id.0.as_bytes().as_slice()]).await.unwrap();
        let store = scene.store.clone();
        let claim = tokio::spawn(async move { store.claim_action(claim).await });
        blocked(&backend.beside, 1).await;
        if paused {
            scene.store.set_paused(&scene.tenant, &scene.tool.name, true).await.unwrap();
        } else {
            scene.change_policy().await;
        }
        // Only let go of: the row is as it was, and the claim's snapshot is old.
        tx.rollback().await.unwrap();
        assert_eq!(lost(claim.await.unwrap()), action, "paused: {paused}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_waited_for_another_is_decided_on_what_that_one_left() {
    let Some(backend) = InDatabase::open().await else { return };
    let scene = Scene::new(&backend).await;
    let mut holder = cluster::shared().unwrap().client(backend.name()).await;
    let action = scene.awaiting("k", 2).await;
    let by_ben = scene.approval(&action, "ben");
    let tx = holder.transaction().await.unwrap();
    // Somebody else's yes, half way through.
    let yes = "update actions set approvals_given = approvals_given + 1, version = version + 1
        where tenant_id = $1 and id = $2";
    tx.execute(yes, &[&scene.tenant.as_str(), &action.id.0.as_bytes().as_slice()]).await.unwrap();
    let store = scene.store.clone();
    let ben = tokio::spawn(async move { store.approve(by_ben).await });
    blocked(&backend.beside, 1).await;
    tx.commit().await.unwrap();
    assert_eq!(made(ben.await.unwrap()).state, State::Approved, "two of two");
    assert_eq!(scene.whole(action.id).await.event_seq, 3);

    // The same one's, pressed twice: what the statement looked at before it
    // waited does not have the first.
    let action = scene.awaiting("twice", 2).await;
    let by_ben = scene.approval(&action, "ben");
    let ids: [&(dyn tokio_postgres::types::ToSql + Sync); 2] =
        [&scene.tenant.as_str(), &action.id.0.as_bytes().as_slice()];
    let tx = holder.transaction().await.unwrap();
    tx.execute(yes, &ids).await.unwrap();
    let press =
        "insert into approvals select tenant_id, id, 'ben', 1, updated, null, fingerprint from actions
        where tenant_id = $1 and id = $2";
    tx.execute(press, &ids).await.unwrap();
    let store = scene.store.clone();
    let ben = tokio::spawn(async move { store.approve(by_ben).await });
    blocked(&backend.beside, 1).await;
    tx.commit().await.unwrap();
    let row = made(ben.await.unwrap());
    assert_eq!((row.state, row.approvals.len()), (State::AwaitingApproval, 1), "counted once");
    scene.whole(action.id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_stops_waiting_undoes_nothing() {
    let Some(backend) = InDatabase::open().await else { return };
    let scene = Scene::new(&backend).await;
    let action = scene.approved("k").await;
    let mut holder = cluster::shared().unwrap().client(backend.name()).await;
    let tx = holder.transaction().await.unwrap();
    let held = "select 1 from actions where tenant_id = $1 and id = $2 for update";
    tx.query_one(held, &[&scene.tenant.as_str(), &action.id.0.as_bytes().as_slice()]).await.unwrap();
    let mut changes = scene.store.subscribe();
    let (store, claim) = (scene.store.clone(), scene.claim_of(action.id, ClaimKind::Run));
    let caller = tokio::spawn(async move { store.claim_action(claim).await });
    blocked(&backend.beside, 1).await;
    caller.abort();
    assert!(caller.await.unwrap_err().is_cancelled());
    tx.rollback().await.unwrap();
    assert_eq!(changes.recv().await.unwrap().action, action.id);
    assert_eq!(scene.whole(action.id).await.state, State::Executing);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e05_a_claim_whose_answer_is_lost_is_unknown_and_reading_again_shows_it() {
    let Some(cluster) = cluster::shared() else { return };
    let name = cluster::still(cluster).await;
    let proxy = Proxy::start(cluster).await;
    let store = PostgresStore::open(PostgresOptions::new(proxy.url(&name))).await.unwrap();
    let backend = InDatabase { store, beside: cluster.client(&name).await };
    let scene = Scene::new(&backend).await;
    for round in 0..20 {
        let attempt = scene.running(&format!("k{round}")).await;
        let claim = scene.write_of(&attempt, 1, RecoveryClass::Manual);
        // The key is in the claim's own message and in nobody else's.
        proxy.swallow_answer_to(&claim.provider_key);
        let lost = scene.store.claim_write(claim).await.unwrap_err();
        assert!(matches!(lost, StoreError::CommitUnknown { .. }), "{lost}");
        // The server has it all the same, a moment later at most.
        let row = loop {
            let row = scene.row(attempt.action).await;
            if row.in_flight.is_some() {
                break row;
            }
            tokio::task::yield_now().await;
        };
        assert_eq!((row.attempt_id, row.standing_writes), (Some(attempt.id), 1));
        scene.whole(attempt.action).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_whose_connection_the_server_ends_is_not_known_to_be_undone() {
    let Some(backend) = InDatabase::open().await else { return };
    let scene = Scene::new(&backend).await;
    let action = scene.approved("k").await;
    let mut holder = cluster::shared().unwrap().client(backend.name()).await;
    let tx = holder.transaction().await.unwrap();
    let held = "select 1 from actions where tenant_id = $1 and id = $2 for update";
    tx.query_one(held, &[&scene.tenant.as_str(), &action.id.0.as_bytes().as_slice()]).await.unwrap();
    let (store, claim) = (scene.store.clone(), scene.claim_of(action.id, ClaimKind::Run));
    let claim = tokio::spawn(async move { store.claim_action(claim).await });
    blocked(&backend.beside, 1).await;
    let end = "select pg_terminate_backend(pid) from pg_stat_activity
        where datname = current_database() and wait_event_type = 'Lock'";
    backend.beside.execute(end, &[]).await.unwrap();
    let unknown = claim.await.unwrap().unwrap_err();
    assert!(matches!(unknown, StoreError::CommitUnknown { .. }), "{unknown}");
    tx.rollback().await.unwrap();
    assert_eq!(scene.row(action.id).await, action, "it was undone, as reading again shows");

    // And all others, while they lie idle: the next step does not notice.
    let end = "select pg_terminate_backend(pid) from pg_stat_activity
        where datname = current_database() and application_name = 'countersign'";
    backend.beside.execute(end, &[]).await.unwrap();
    let gone = "select count(*) from pg_stat_activity
        where datname = current_database() and application_name = 'countersign' and state <> 'idle'";
    while backend.beside.query_one(gone, &[]).await.unwrap().get::<_, i64>(0) > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(scene.row(action.id).await, action);
    scene.run(action.id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn words_with_a_character_that_the_database_cannot_hold_stop_no_step() {
    let Some(backend) = InDatabase::open().await else { return };
    let scene = Scene::new(&backend).await;
    let action = scene.awaiting("k", 1).await;
    let mut approval = scene.approval(&action, "ben");
    approval.note = Some("yes\0no".into());
    made(scene.store.approve(approval).await);
    let attempt = scene.run(action.id).await;
    let mut claim = scene.write_of(&attempt, 1, RecoveryClass::Manual);
    claim.request.headers.push(("x".into(), "a\0b".into()));
    claim.request.url.push('\0');
    let claimed = made(scene.store.claim_write(claim.clone()).await);
    assert_eq!(scene.effect(action.id, 1).await.request, claim.request, "what was asked is kept to the byte");
    scene.in_time(action.id, claimed.fence, answered(200)).await;
    made(scene.store.request_cancel(&scene.tenant, action.id, "no\0more").await);
    let mut end = scene.end_of(
        &attempt,
        countersign_domain::action::Fact::FailedTerminally {
            standing: scene.standing(action.id).await,
            code: "tool_broken".into(),
        },
        State::FailedTerminal,
    );
    end.error = crate::conformance::scene::error("a\0b");
    end.log = vec!["\0".into()];
    made(scene.store.end_attempt(end).await);
    assert_eq!(scene.store.log(&scene.tenant, action.id).await.unwrap(), ["\0"]);
    scene.whole(action.id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_cut_out_of_a_history_stops_the_next_step_of_its_action() {
    let Some(backend) = InDatabase::open().await else { return };
    let scene = Scene::new(&backend).await;
    let action = scene.approved("k").await;
    backend
        .beside
        .batch_execute("alter table events disable trigger user; delete from events where seq = 2")
        .await
        .unwrap();
    let damaged = scene.claim(action.id, ClaimKind::Run).await.unwrap_err();
    assert!(matches!(damaged, StoreError::Damaged { .. }), "{damaged}");
    assert_eq!(scene.row(action.id).await, action, "nothing was changed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_answer_while_the_reaper_holds_the_row_settles_what_that_left() {
    let Some(backend) = InDatabase::open().await else { return };
    let scene = Scene::new(&backend).await;
    let attempt = scene.running("k").await;
    let claimed = scene.write_as(&attempt, 1, RecoveryClass::Manual).await;
    let store = scene.store.clone();
    let end = scene.outcome_lost_of(&attempt, Some(claimed.fence), None);
    // Both at once, in either order: it is settled in time, or late.
    let reaper = tokio::spawn(async move { store.end_attempt(end).await.unwrap() });
    let recorded = scene.record(attempt.action, claimed.fence, answered(201)).await;
    let reaped = reaper.await.unwrap();
    match recorded {
        Recorded::InTime(_) => assert!(matches!(reaped, Step::Lost(_))),
        Recorded::Late(row) => assert_eq!(row.state, State::FailedRetryable),
        Recorded::Stale => panic!("an answer was dropped"),
    }
    scene.whole(attempt.action).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_written_by_hand_is_refused_by_name() {
    let Some(backend) = InDatabase::open().await else { return };
    let scene = Scene::new(&backend).await;
    let attempt = scene.running("k").await;
    scene.written(&attempt, 1).await;
    scene.succeed(&attempt).await;
    scene.awaiting("open", 1).await;
    for (by_hand, name) in [
        ("update actions set arguments = '{}'", "actions_immutable"),
        ("update actions set fingerprint = fingerprint", "actions_immutable"),
        (
            "update actions set state = 'cancelled', event_seq = event_seq + 1 where state = 'succeeded'",
            "actions_terminal_never_changes",
        ),
        (
            "update actions set state = 'cancelled' where state = 'awaiting_approval'",
            "actions_state_needs_event",
        ),
        (
            "update actions set event_seq = event_seq + 2 where state = 'awaiting_approval'",
            "actions_event_seq_has_no_gap",
        ),
        (
            "update actions set state = 'approved', event_seq = event_seq + 1 where state = 'awaiting_approval'",
            "actions_approved_as_shown",
        ),
        ("delete from actions", "actions_never_deleted"),
        ("truncate actions cascade", "actions_never_deleted"),
        ("update effects set request = '{}'", "effects_immutable"),
        ("update effects set first_sent = 1", "effects_first_sent_never_moves"),
        ("delete from effects", "effects_never_deleted"),
        ("update events set body = '{}'", "events_append_only"),
        ("delete from events", "events_append_only"),
        ("truncate events", "events_append_only"),
        ("update components set bytes = ''", "components_immutable"),
        ("update grants set source = ''", "grants_immutable"),
    ] {
        let refused = backend.beside.batch_execute(by_hand).await.unwrap_err();
        let said = refused.as_db_error().unwrap();
        assert_eq!(said.constraint(), Some(name), "{by_hand}: {}", said.message());
    }
}
