//! Somebody with the file in their hands: the database refuses what it can,
//! and what was forced past it is found.

use countersign_domain::event::{BrokenChain, Event, verify};
use rusqlite::Connection;

use super::OnDisk;
use crate::conformance::scene::{Scene, made};

/// What a statement by hand is refused with.
fn refused(conn: &Connection, statement: &str) -> String {
    match conn.execute_batch(statement) {
        Ok(()) => panic!("it was let through: {statement}"),
        Err(error) => error.to_string(),
    }
}

#[tokio::test]
async fn what_never_changes_is_held_by_named_triggers_and_constraints() {
    let on_disk = OnDisk::open().await;
    let scene = Scene::new(&on_disk).await;
    let attempt = scene.running("running").await;
    scene.written(&attempt, 1).await;
    let done = scene.running("done").await;
    scene.succeed(&done).await;
    let awaiting = scene.awaiting("awaiting", 2).await;
    made(scene.store.approve(scene.approval(&awaiting, "ben")).await);
    let conn = on_disk.by_hand();
    conn.execute_batch("pragma foreign_keys = on").unwrap();

    for column in [
        "arguments = '{}'",
        "plan = '{}'",
        "fingerprint = zeroblob(32)",
        "intent = zeroblob(32)",
        "actor = 'eve'",
        "approval_expires = 9e15",
        "policy_epoch = 99",
        "approvals_required = 0",
        "tool_version = '0'",
        "component_digest = zeroblob(32)",
        "grant_digest = zeroblob(32)",
        "seed = zeroblob(32)",
        "id = zeroblob(16)",
        "tenant_id = 'other'",
        "action_key = '[]'",
        "preview = null",
        "proposer = 'eve'",
        "created = 0",
    ] {
        let said = refused(&conn, &format!("update actions set {column}"));
        assert_eq!(said, "actions_immutable", "{column}");
    }
    for (statement, name) in [
        (
            "update actions set state = 'approved' where state = 'awaiting_approval'",
            "actions_state_needs_event",
        ),
        (
            "update actions set state = 'approved', event_seq = event_seq + 1 where state = 'awaiting_approval'",
            "actions_approved_as_shown",
        ),
        (
            "update actions set state = 'approved', event_seq = event_seq + 1, approved_at = 1,
                approved_fingerprint = zeroblob(32) where state = 'awaiting_approval'",
            "actions_approved_as_shown",
        ),
        (
            "update actions set state = 'failed_retryable', event_seq = event_seq + 1 where state = 'succeeded'",
            "actions_terminal_never_changes",
        ),
        ("update actions set result = '{}' where state = 'succeeded'", "actions_terminal_never_changes"),
        ("update actions set result = '{}' where state = 'executing'", "actions_result_iff_succeeded"),
        ("update actions set lease_expires = null where state = 'executing'", "actions_lease_iff_executing"),
        (
            "update actions set state = 'cancelled', event_seq = event_seq + 1, attempt_id = null,
                lease_expires = null, lease_owner = null where state = 'executing'",
            "actions_undone_has_no_writes",
        ),
        (
            "update actions set state = 'paid', event_seq = event_seq + 1 where state = 'executing'",
            "actions_state",
        ),
        (
            "update actions set event_seq = event_seq + 2 where state = 'executing'",
            "actions_event_seq_has_no_gap",
        ),
        ("update actions set attempts_left = -1 where state = 'executing'", "actions_counts"),
        ("update actions set unknown_effects = 1 where state = 'awaiting_approval'", "actions_"),
        ("delete from actions", "actions_never_deleted"),
        ("update events set body = '{}'", "events_append_only"),
        ("delete from events", "events_append_only"),
        ("update approvals set approver = 'eve'", "approvals_immutable"),
        ("delete from approvals", "approvals_never_deleted"),
        ("update effects set fingerprint = zeroblob(32)", "effects_immutable"),
        ("update effects set class = 'provider-idempotent'", "effects_immutable"),
        ("update effects set provider_key = 'another'", "effects_immutable"),
        ("update effects set first_sent = first_sent + 1", "effects_first_sent_never_moves"),
        ("update effects set status = 'perhaps'", "effects_status"),
        ("update effects set status = 'unknown', answer = null", "effects_unknown_has_since"),
        ("update effects set status = 'failed'", "effects_answer_only_if_succeeded"),
        ("delete from effects", "effects_never_deleted"),
        ("update components set bytes = zeroblob(9)", "components_immutable"),
        ("update grants set source = 'all = true'", "grants_immutable"),
        ("delete from grants", "FOREIGN KEY"),
        ("delete from components", "FOREIGN KEY"),
    ] {
        let said = refused(&conn, statement);
        assert!(said.contains(name), "{statement}\nsaid {said} instead of {name}");
    }
    for id in [attempt.action, done.action, awaiting.id] {
        scene.whole(id).await;
    }
}

#[tokio::test]
async fn two_writes_of_one_action_are_never_in_flight() {
    let on_disk = OnDisk::open().await;
    let scene = Scene::new(&on_disk).await;
    let attempt = scene.running("k").await;
    scene.written(&attempt, 1).await;
    scene.write(&attempt, 2).await;
    let conn = on_disk.by_hand();
    let said = refused(&conn, "update effects set status = 'in_flight', answer = null where ordinal = 1");
    assert!(said.contains("effects.tenant_id, effects.action_id"), "{said}");
}

#[tokio::test]
async fn an_event_forced_past_the_triggers_is_found_by_its_chain() {
    let on_disk = OnDisk::open().await;
    let scene = Scene::new(&on_disk).await;
    let attempt = scene.running("k").await;
    scene.succeed(&attempt).await;
    let row = scene.row(attempt.action).await;
    let whole = scene.events(attempt.action).await;
    let conn = on_disk.by_hand();
    conn.execute_batch(
        "drop trigger events_append_only_u; drop trigger events_append_only_d; create table kept as select * from events;",
    )
    .unwrap();
    let check = |events: &[Event]| verify(&scene.tenant, attempt.action, events, row.state);
    assert_eq!(check(&whole), Ok(()));
    for (tampering, found) in [
        (
            "update events set body = replace(body, 'policy', 'nobody') where seq = 2",
            BrokenChain::Changed { seq: 2 },
        ),
        ("update events set at = at + 1 where seq = 3", BrokenChain::Changed { seq: 3 }),
        ("delete from events where seq = 2", BrokenChain::Gap { expected: 2, found: 3 }),
        ("delete from events where seq = 1", BrokenChain::Gap { expected: 1, found: 2 }),
        (
            "delete from events where seq = 4",
            BrokenChain::Row { row: row.state, event: countersign_domain::action::State::Executing },
        ),
        (
            "update events set seq = -seq where seq in (2, 3); update events set seq = 5 + seq where seq < 0",
            BrokenChain::Changed { seq: 2 },
        ),
        (
            "insert into events select tenant_id, action_id, 5, cursor + 9, at, body, hash from events where seq = 4",
            BrokenChain::Changed { seq: 5 },
        ),
        ("delete from events", BrokenChain::Empty),
    ] {
        conn.execute_batch(tampering).unwrap();
        assert_eq!(check(&scene.events(attempt.action).await), Err(found), "{tampering}");
        conn.execute_batch("delete from events; insert into events select * from kept").unwrap();
    }
    assert_eq!(check(&scene.events(attempt.action).await), Ok(()));
}

#[tokio::test]
async fn nothing_is_linked_on_to_a_chain_whose_end_was_cut_off() {
    let on_disk = OnDisk::open().await;
    let scene = Scene::new(&on_disk).await;
    let attempt = scene.running("k").await;
    let before = scene.row(attempt.action).await;
    let conn = on_disk.by_hand();
    conn.execute_batch("drop trigger events_append_only_d; delete from events where seq = 3").unwrap();
    let said = scene.store.end_attempt(scene.success_of(&attempt, "{}").await).await.unwrap_err();
    assert!(matches!(&said, crate::StoreError::Damaged { what } if what.contains("event 3")), "{said}");
    assert_eq!(scene.row(attempt.action).await, before, "nothing was changed");
}

#[tokio::test]
async fn a_row_that_is_not_what_it_must_be_is_damaged_and_not_a_guess() {
    let on_disk = OnDisk::open().await;
    let scene = Scene::new(&on_disk).await;
    let attempt = scene.running("k").await;
    scene.written(&attempt, 1).await;
    let conn = on_disk.by_hand();
    conn.execute_batch("drop trigger effects_immutable; update effects set terms = '{\"class\":\"all\"}'")
        .unwrap();
    let said = scene.store.effects(&scene.tenant, attempt.action, false).await.unwrap_err().to_string();
    assert!(said.contains("effect") && said.contains("terms"), "{said}");
}
