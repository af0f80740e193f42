//! Approve, decline, cancel, expire, supersede: who may, when, and who wins.

use std::time::Duration;

use countersign_domain::action::State;
use countersign_gate::Gate;
use serde_json::json;

use crate::rig::*;

const MINUTE: Duration = Duration::from_secs(60);

fn by_two() -> GrantText {
    keyed().approval("required = 2\nexpires_after = \"15m\"")
}

fn by_one() -> GrantText {
    keyed().approval("required = 1\nexpires_after = \"15m\"")
}

#[test]
fn an_action_waits_for_as_many_approvers_as_the_grant_says_and_approving_runs_nothing() {
    run(async |rig| {
        rig.install("refund", &by_two(), refund()).await;
        let action = rig.propose("refund", amount(5)).await;
        assert_eq!(action.state, State::AwaitingApproval);
        assert_eq!(code(rig.execute(action.id).await), "invalid_state");
        assert_eq!(rig.approve(action.id, "ben").await.unwrap().state, State::AwaitingApproval);
        assert_eq!(
            rig.approve(action.id, "ben").await.unwrap().state,
            State::AwaitingApproval,
            "counts once"
        );
        let approved = rig.approve(action.id, "cyd").await.unwrap();
        assert_eq!(
            (approved.state, approved.approved_fingerprint),
            (State::Approved, Some(action.fingerprint))
        );
        assert!(rig.provider.all_requests().is_empty());
        assert_eq!(rig.facts(action.id).await, ["proposed", "approval_required", "approved"]);
        assert_eq!(ended(rig.execute(action.id).await).state, State::Succeeded);
    });
}

#[test]
fn many_approvals_at_once_make_one_transition_one_event_one_effect() {
    run(async |rig| {
        for how_many in [2, 8, 50] {
            let name = format!("refund-{how_many}");
            rig.install(&name, &by_two(), refund()).await;
            let action = rig.propose(&name, amount(how_many)).await;
            let names: Vec<String> = (0..how_many).map(|n| format!("approver-{n}")).collect();
            let all = futures::future::join_all(names.iter().map(|name| rig.approve(action.id, name))).await;
            // The first two count; the rest find it approved.
            assert_eq!(all.iter().filter(|one| one.is_ok()).count(), 2);
            assert!(
                all.iter().filter_map(|one| one.as_ref().err()).all(|error| error.code() == "invalid_state")
            );
            let executes = (0..how_many).map(|_| rig.execute(action.id));
            for one in futures::future::join_all(executes).await {
                assert_eq!(ended(one).state, State::Succeeded);
            }
            assert_eq!(
                rig.facts(action.id).await,
                ["proposed", "approval_required", "approved", "claimed", "succeeded"]
            );
            let body = how_many.to_string();
            assert_eq!(rig.provider.acted().iter().filter(|acted| acted.body == body).count(), 1);
        }
    });
}

#[test]
fn nobody_decides_about_what_they_proposed_or_what_is_done_in_their_name() {
    run(async |rig| {
        rig.install("refund", &by_one(), refund()).await;
        let mut asked = proposal("refund", amount(5), "k");
        asked.actor = principal("ann");
        let action = rig.try_propose(asked).await.unwrap().action;
        for name in ["agent", "ann"] {
            assert_eq!(code(rig.approve(action.id, name).await), "not_permitted");
            assert_eq!(code(rig.decline(action.id, name).await), "not_permitted");
        }
        assert_eq!(rig.row(action.id).await.approvals.len(), 0);
        assert!(rig.approve(action.id, "ben").await.is_ok());
    });
}

#[test]
fn p4_an_approval_of_something_else_than_was_seen_is_refused() {
    run(async |rig| {
        rig.install("refund", &by_one(), refund()).await;
        let one = rig.propose("refund", amount(5)).await;
        let other = rig.propose("refund", amount(6)).await;
        let saw = Some(other.fingerprint);
        let id = one.id;
        let refused = rig
            .host()
            .run(async move |gate: Gate| gate.approve(&tenant(), id, &principal("ben"), saw, None).await)
            .await;
        assert_eq!(code(refused), "fingerprint_precondition");
        let saw = Some(one.fingerprint);
        let taken = rig
            .host()
            .run(async move |gate: Gate| gate.approve(&tenant(), id, &principal("ben"), saw, None).await)
            .await;
        assert_eq!(taken.unwrap().state, State::Approved);
    });
}

#[test]
fn approve_decline_and_cancel_at_once_leave_one_winner_and_the_rest_are_told_the_state() {
    run(async |rig| {
        rig.install("refund", &by_one(), refund()).await;
        for cents in 0..8 {
            let id = rig.propose("refund", amount(cents)).await.id;
            let (yes, no, back) =
                tokio::join!(rig.approve(id, "ben"), rig.decline(id, "cyd"), rig.cancel(id));
            let action = rig.row(id).await;
            // An approval that came first can still be taken back.
            assert!(matches!(action.state, State::Approved | State::Cancelled));
            for lost in [yes, no, back].into_iter().filter_map(Result::err) {
                assert!(matches!(lost.code(), "invalid_state"), "{lost}");
            }
            let facts = rig.facts(id).await;
            let decided =
                facts.iter().filter(|fact| ["declined", "cancelled"].contains(&fact.as_str())).count();
            assert!(decided <= 1, "{facts:?}");
        }
    });
}

#[test]
fn a_decline_says_who_and_why_and_is_final() {
    run(async |rig| {
        rig.install("refund", &by_one(), refund()).await;
        let id = rig.propose("refund", amount(5)).await.id;
        let action = rig.decline(id, "ben").await.unwrap();
        assert_eq!((action.state, row_code(&action)), (State::Cancelled, "declined"));
        assert!(action.error.unwrap().message.contains("ben declined: no"));
        assert_eq!(code(rig.approve(id, "cyd").await), "invalid_state");
        assert_eq!(code(rig.cancel(id).await), "invalid_state");
        assert_eq!(ended(rig.execute(id).await).state, State::Cancelled);
        assert!(rig.provider.all_requests().is_empty());
    });
}

#[test]
fn an_approval_at_the_last_microsecond_counts_and_one_later_expires_the_action() {
    run(async |rig| {
        rig.install("refund", &by_one(), refund()).await;
        let (early, late) = (rig.propose("refund", amount(1)).await, rig.propose("refund", amount(2)).await);
        rig.clock.advance(15 * MINUTE - TICK);
        assert_eq!(rig.approve(early.id, "ben").await.unwrap().state, State::Approved);
        rig.clock.advance(TICK);
        assert_eq!(code(rig.approve(late.id, "ben").await), "approval_expired");
        assert_eq!(rig.row(late.id).await.state, State::Expired);
        assert_eq!(rig.facts(late.id).await, ["proposed", "approval_required", "expired"]);
    });
}

#[test]
fn execution_after_the_approval_expired_sends_nothing_and_ends_expired() {
    run(async |rig| {
        rig.install("refund", &by_one(), refund()).await;
        let id = rig.propose("refund", amount(5)).await.id;
        rig.approve(id, "ben").await.unwrap();
        rig.clock.advance(15 * MINUTE);
        let action = ended(rig.execute(id).await);
        assert_eq!((action.state, row_code(&action)), (State::Expired, "approval_expired"));
        assert!(rig.provider.all_requests().is_empty());
    });
}

#[test]
fn p9_break_18_an_approval_that_nobody_gives_or_uses_is_expired_by_the_reaper() {
    run(async |rig| {
        rig.install("refund", &by_one(), refund()).await;
        let (waiting, unused) =
            (rig.propose("refund", amount(1)).await, rig.propose("refund", amount(2)).await);
        rig.approve(unused.id, "ben").await.unwrap();
        rig.clock.advance(15 * MINUTE - TICK);
        assert_eq!(rig.tend(false).await, 0);
        rig.clock.advance(TICK);
        assert_eq!(rig.tend(false).await, 2);
        for id in [waiting.id, unused.id] {
            assert_eq!(rig.row(id).await.state, State::Expired);
        }
    });
}

#[test]
fn p4_a_grant_that_changed_before_the_decision_voids_the_action() {
    run(async |rig| {
        rig.install("refund", &by_one(), refund()).await;
        let id = rig.propose("refund", amount(5)).await.id;
        rig.put_grant("refund", &by_one().limits("effects = 9")).await;
        assert_eq!(code(rig.approve(id, "ben").await), "action_changed");
        let action = rig.row(id).await;
        assert_eq!((action.state, row_code(&action)), (State::Cancelled, "action_changed"));
    });
}

#[test]
fn p4_a_tool_replaced_between_approval_and_claim_voids_the_action_and_sends_nothing() {
    run(async |rig| {
        rig.install("refund", &by_one(), refund()).await;
        let id = rig.propose("refund", amount(5)).await.id;
        rig.approve(id, "ben").await.unwrap();
        rig.install_version("refund", "2.0.0", &by_one(), refund()).await;
        let action = ended(rig.execute(id).await);
        assert_eq!((action.state, row_code(&action)), (State::Cancelled, "action_changed"));
        assert!(rig.provider.all_requests().is_empty());
    });
}

#[test]
fn superseding_twice_makes_one_new_action_and_the_old_one_names_it() {
    run(async |rig| {
        rig.install("refund", &by_one(), refund()).await;
        let old = rig.propose("refund", amount(5)).await.id;
        let supersede = async |rig: &mut Rig, cents| {
            let new = arguments(&amount(cents));
            rig.host()
                .run(async move |gate: Gate| {
                    gate.supersede(&tenant(), old, &principal("agent"), Some(new), None).await
                })
                .await
        };
        let new = supersede(rig, 6).await.unwrap();
        let again = supersede(rig, 6).await.unwrap();
        assert_eq!((new.action.id, new.replayed, again.replayed), (again.action.id, false, true));
        assert_eq!(code(supersede(rig, 7).await), "idempotency_key_mismatch", "one successor, one intent");
        let row = rig.row(old).await;
        assert_eq!((row.state, row.superseded_by), (State::Cancelled, Some(new.action.id)));
        assert_eq!((new.action.supersedes, new.action.arguments.as_str()), (Some(old), r#"{"amount":6}"#));
        // The old key keeps naming the old action.
        assert_eq!(rig.propose("refund", amount(5)).await.id, old);
    });
}

#[test]
fn superseding_with_arguments_that_do_not_fit_leaves_the_old_action_as_it_is() {
    run(async |rig| {
        let schema = json!({"type": "object", "properties": {"amount": {"type": "integer"}}});
        rig.install("refund", &by_one(), refund().input(schema)).await;
        let old = rig.propose("refund", amount(5)).await.id;
        let new = arguments(&json!({"amount": "a lot"}));
        let refused = rig
            .host()
            .run(async move |gate: Gate| {
                gate.supersede(&tenant(), old, &principal("agent"), Some(new), None).await
            })
            .await;
        assert_eq!(code(refused), "invalid_arguments");
        assert_eq!(rig.row(old).await.state, State::AwaitingApproval);
    });
}

#[test]
fn what_expired_can_be_superseded_and_what_ran_cannot() {
    run(async |rig| {
        rig.install("refund", &by_one(), refund()).await;
        let late = rig.propose("refund", amount(1)).await.id;
        rig.clock.advance(15 * MINUTE);
        rig.tend(false).await;
        let anew = rig
            .host()
            .run(async move |gate: Gate| {
                gate.supersede(&tenant(), late, &principal("agent"), None, None).await
            })
            .await
            .unwrap();
        assert_eq!(rig.row(late).await.superseded_by, Some(anew.action.id));
        let id = anew.action.id;
        rig.approve(id, "ben").await.unwrap();
        ended(rig.execute(id).await);
        let refused = rig
            .host()
            .run(async move |gate: Gate| gate.supersede(&tenant(), id, &principal("agent"), None, None).await)
            .await;
        assert_eq!(code(refused), "invalid_state");
    });
}

#[test]
fn a_paused_tool_is_not_claimed_until_it_is_resumed() {
    run(async |rig| {
        rig.install("refund", &keyed(), refund()).await;
        let id = rig.propose("refund", amount(5)).await.id;
        let pause = async |rig: &mut Rig, paused| {
            rig.host()
                .run(async move |gate: Gate| {
                    gate.set_paused(&tenant(), &tool("refund"), paused).await.unwrap()
                })
                .await;
        };
        pause(rig, true).await;
        assert_eq!(code(rig.execute(id).await), "invalid_state");
        pause(rig, false).await;
        assert_eq!(ended(rig.execute(id).await).state, State::Succeeded);
    });
}

#[test]
fn p9_what_runs_by_itself_is_run_once_it_is_approved_and_once() {
    run(async |rig| {
        rig.install("refund", &by_one(), refund()).await;
        let mut asked = proposal("refund", amount(5), "k");
        asked.run_by_itself = true;
        let id = rig.try_propose(asked).await.unwrap().action.id;
        rig.tend(false).await;
        assert_eq!(rig.row(id).await.state, State::AwaitingApproval);
        rig.approve(id, "ben").await.unwrap();
        for _ in 0..4 {
            rig.tend(false).await;
        }
        rig.until(id, |action| action.state == State::Succeeded).await;
        assert_eq!(rig.provider.count("/refunds"), 1);
    });
}

#[test]
fn p6_another_tenants_action_is_not_there() {
    run(async |rig| {
        rig.install("refund", &by_one(), refund()).await;
        let id = rig.propose("refund", amount(5)).await.id;
        let other = || "other".parse::<countersign_domain::id::TenantId>().unwrap();
        let (host, ben) = (rig.host(), principal("ben"));
        let approved =
            host.run(async move |gate: Gate| gate.approve(&other(), id, &ben, None, None).await).await;
        let ran = host.run(async move |gate: Gate| gate.execute(&other(), id, Duration::ZERO).await).await;
        let ops = principal("ops");
        let back = host.run(async move |gate: Gate| gate.cancel(&other(), id, &ops, "mine").await).await;
        let nobody = host.run(async move |gate: Gate| gate.wait(&other(), id, Duration::ZERO).await).await;
        assert_eq!([code(approved), code(ran), code(back), code(nobody)], ["not_found"; 4]);
        assert_eq!(rig.row(id).await.state, State::AwaitingApproval);
    });
}
