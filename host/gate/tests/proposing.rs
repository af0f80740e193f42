//! From a request to a row: the same again, another under the same key, what is
//! looked at before anybody is asked, and what a replaced tool changes.

use countersign_domain::action::State;
use countersign_domain::id::Digest;
use countersign_domain::plan::Plan;
use serde_json::json;

use crate::rig::*;

#[test]
fn p3_the_same_proposal_again_finds_the_same_action_and_its_result_and_sends_nothing() {
    run(async |rig| {
        rig.install("refund", &keyed(), refund()).await;
        let first = rig.try_propose(proposal("refund", amount(5), "k")).await.unwrap();
        let ran = ended(rig.execute(first.action.id).await);
        let again = rig.try_propose(proposal("refund", amount(5), "k")).await.unwrap();
        assert!(!first.replayed && again.replayed);
        assert_eq!(again.action.result, ran.result);
        assert_eq!(ran.result.unwrap().as_str(), r#"{"refund":"re_1"}"#);
        assert_eq!(rig.provider.all_requests().len(), 1);
    });
}

#[test]
fn p5_the_same_key_with_other_arguments_names_both_intents_and_makes_nothing() {
    run(async |rig| {
        rig.install("refund", &keyed(), refund()).await;
        let first = rig.try_propose(proposal("refund", amount(5), "k")).await.unwrap().action;
        let error = rig.try_propose(proposal("refund", amount(6), "k")).await.unwrap_err();
        assert_eq!(error.code(), "idempotency_key_mismatch");
        let text = error.to_string();
        assert!(text.contains(&first.intent.to_string()) && text.contains(&first.id.to_string()), "{text}");
        // Another actor, or another version asked for, is another intent, too.
        let mut other = proposal("refund", amount(5), "k");
        other.actor = principal("ann");
        assert_eq!(code(rig.try_propose(other).await), "idempotency_key_mismatch");
        let mut other = proposal("refund", amount(5), "k");
        other.version = Some("1.0.0".into());
        assert_eq!(code(rig.try_propose(other).await), "idempotency_key_mismatch");
        assert_eq!(rig.events(first.id).await.len(), 2);
    });
}

#[test]
fn p5_the_same_key_at_once_from_many_callers_makes_one_action() {
    run(async |rig| {
        rig.install("refund", &keyed(), refund()).await;
        let proposals = (0..16).map(|_| rig.try_propose(proposal("refund", amount(5), "k")));
        let all = futures::future::join_all(proposals).await;
        let new = all.iter().filter(|one| !one.as_ref().unwrap().replayed).count();
        assert_eq!(new, 1);
        let id = all[0].as_ref().unwrap().action.id;
        assert!(all.iter().all(|one| one.as_ref().unwrap().action.id == id));
        assert_eq!(rig.facts(id).await, ["proposed", "policy_allowed"]);
    });
}

#[test]
fn p5_break_21_an_upgrade_in_between_gives_the_caller_its_own_action_and_result() {
    run(async |rig| {
        rig.install("refund", &keyed(), refund()).await;
        let first = rig.propose("refund", amount(5)).await;
        let ran = ended(rig.execute(first.id).await);
        // A new version, with another grant.
        let grant = keyed().limits("effects = 7");
        rig.install_version("refund", "2.0.0", &grant, writes(1)).await;
        let again = rig.propose("refund", amount(5)).await;
        assert_eq!((again.id, &again.result), (first.id, &ran.result));
        assert_eq!(again.version, "1.0.0");
        assert_eq!(rig.provider.all_requests().len(), 1);
    });
}

#[test]
fn p4_the_plan_is_the_first_write_exactly_and_nothing_of_it_is_sent() {
    run(async |rig| {
        rig.install("refund", &keyed(), refund()).await;
        let action = rig.propose("refund", amount(5)).await;
        let plan: Plan = serde_json::from_str(action.plan.as_str()).unwrap();
        let write = plan.first_write.unwrap();
        assert_eq!(write.request.method, "POST");
        assert_eq!(write.request.url, format!("http://{}/refunds", rig.provider.address));
        assert_eq!(write.request.body, b"5");
        assert_eq!(plan.may_follow[0].up_to, 8);
        assert!(rig.provider.all_requests().is_empty());
        assert_eq!(action.state, State::Approved);
    });
}

/// Reads, then writes what it read.
fn copies() -> Script {
    Script::new(|fx| async move {
        let read = fx.get("/stock").await.json();
        let shown = fx.post("/orders", &read.to_string()).await;
        done(json!([read, shown.status()]))
    })
}

#[test]
fn reads_while_planning_are_recorded_and_not_asked_again() {
    run(async |rig| {
        rig.install("copies", &keyed(), copies()).await;
        let action = rig.propose("copies", json!({})).await;
        assert_eq!(rig.provider.requests("/stock").len(), 1);
        assert_eq!(action.effects, 1);
        let action = ended(rig.execute(action.id).await);
        assert_eq!(action.result.unwrap().as_str(), r#"[{"asked":1},200]"#);
        assert_eq!(rig.provider.requests("/stock").len(), 1);
        assert_eq!(rig.provider.count("/orders"), 1);
    });
}

#[test]
fn with_planning_none_nothing_at_all_is_sent_before_approval() {
    run(async |rig| {
        let grant = keyed().top("planning = \"none\"\n").approval("required = 1");
        rig.install("copies", &grant, copies()).await;
        let action = rig.propose("copies", json!({})).await;
        let plan: Plan = serde_json::from_str(action.plan.as_str()).unwrap();
        assert!(plan.stopped_early && plan.first_write.is_none());
        assert!(rig.provider.all_requests().is_empty());
        rig.approve(action.id, "ben").await.unwrap();
        let action = ended(rig.execute(action.id).await);
        assert_eq!(action.state, State::Succeeded);
        assert_eq!(rig.provider.all_requests().len(), 2);
    });
}

#[test]
fn p4_with_planning_none_an_unseen_write_needs_unplanned() {
    run(async |rig| {
        let grant = GrantText::default()
            .top("planning = \"none\"\n")
            .route("GET", "/**", "read", "")
            .route("POST", "/**", "manual", "");
        rig.install("copies", &grant, copies()).await;
        let action = rig.propose("copies", json!({})).await;
        let action = ended(rig.execute(action.id).await);
        assert_eq!((action.state, row_code(&action)), (State::FailedTerminal, "unplanned_effect"));
        assert_eq!(rig.provider.count("/orders"), 0);
    });
}

#[test]
fn what_fails_before_anything_was_proposed_leaves_no_row() {
    run(async |rig| {
        let picky = refund().input(json!({"type": "object", "required": ["amount"]}));
        rig.install("picky", &keyed(), picky).await;
        let error = rig.try_propose(proposal("picky", json!({}), "k")).await.unwrap_err();
        assert_eq!(error.code(), "invalid_arguments");
        assert_eq!(code(rig.try_propose(proposal("nobody", json!({}), "k")).await), "not_found");
        let small = keyed().limits("arguments = \"16B\"");
        rig.install("small", &small, refund()).await;
        let long = json!({"amount": "1234567890"});
        assert_eq!(code(rig.try_propose(proposal("small", long, "k")).await), "invalid_arguments");
        for (name, script) in [
            ("refuses", Script::new(|_| async { refused("not today") })),
            ("later", Script::new(|_| async { try_later("busy") })),
            ("traps", Script::new(|_| async { trapped("unreachable") })),
        ] {
            rig.install(name, &keyed(), script).await;
            let error = rig.try_propose(proposal(name, json!({}), "k")).await.unwrap_err();
            assert_eq!((error.code(), error.retryable()), ("planning_failed", name == "later"));
        }
        // The key is free: nothing was made under it.
        rig.install("refund", &keyed(), refund()).await;
        assert!(!rig.try_propose(proposal("refund", amount(1), "k")).await.unwrap().replayed);
    });
}

#[test]
fn a_provider_that_is_away_while_planning_makes_no_row_and_may_be_tried_again() {
    run(async |rig| {
        rig.install("copies", &keyed(), copies()).await;
        rig.provider.go_down().await;
        let error = rig.try_propose(proposal("copies", json!({}), "k")).await.unwrap_err();
        assert_eq!((error.code(), error.retryable()), ("planning_failed", true));
        rig.provider.come_back();
        assert!(!rig.try_propose(proposal("copies", json!({}), "k")).await.unwrap().replayed);
    });
}

/// Writes something else each time it runs.
fn fickle() -> Script {
    let runs = std::sync::atomic::AtomicU32::new(0);
    Script::new(move |fx| {
        let run = runs.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        async move { done(json!(fx.post("/pay", &format!("{run}")).await.status())) }
    })
}

#[test]
fn p4_a_first_write_that_is_not_the_plan_is_not_sent_and_ends_action_changed() {
    run(async |rig| {
        rig.install("fickle", &keyed(), fickle()).await;
        let action = rig.propose("fickle", json!({})).await;
        let action = ended(rig.execute(action.id).await);
        assert_eq!((action.state, row_code(&action)), (State::Cancelled, "action_changed"));
        assert!(rig.provider.all_requests().is_empty());
    });
}

fn two_payments(grant_unplanned: &str) -> (GrantText, Script) {
    let grant = GrantText::default().route("POST", "/pay", "manual", grant_unplanned);
    let script = Script::new(|fx| async move {
        let first = fx.post("/pay", "10").await.status();
        let second = fx.post("/pay", "10000").await.status();
        done(json!([first, second]))
    });
    (grant, script)
}

#[test]
fn p4_break_23_a_second_write_that_nobody_saw_is_not_sent_and_the_end_names_what_stands() {
    run(async |rig| {
        let (grant, script) = two_payments("");
        rig.install("pays", &grant, script).await;
        let action = rig.propose("pays", json!({})).await;
        let action = ended(rig.execute(action.id).await);
        assert_eq!((action.state, row_code(&action)), (State::FailedTerminal, "unplanned_effect"));
        let bodies: Vec<_> = rig.provider.acted().into_iter().map(|acted| acted.body).collect();
        assert_eq!(bodies, ["10"]);
        let message = action.error.unwrap().message;
        assert!(message.contains("effect 1: POST") && message.contains("(200)"), "{message}");
    });
}

#[test]
fn p4_unplanned_lets_as_many_more_through_as_approvers_were_told() {
    run(async |rig| {
        let (grant, script) = two_payments("unplanned = 1");
        rig.install("pays", &grant, script).await;
        let action = rig.propose("pays", json!({})).await;
        assert!(action.plan.as_str().contains(r#""up_to":1"#));
        let action = ended(rig.execute(action.id).await);
        assert_eq!(action.state, State::Succeeded);
        assert_eq!(rig.provider.count("/pay"), 2);

        let grant = GrantText::default().route("POST", "/**", "manual", "unplanned = 1");
        rig.install("three", &grant, writes(3)).await;
        let action = rig.propose("three", json!({})).await;
        let action = ended(rig.execute(action.id).await);
        assert_eq!((action.state, row_code(&action)), (State::FailedTerminal, "unplanned_effect"));
        assert_eq!((rig.provider.count("/w/2"), rig.provider.count("/w/3")), (1, 0));
    });
}

#[test]
fn more_effects_than_the_grant_allows_end_the_action() {
    run(async |rig| {
        rig.install("many", &keyed().limits("effects = 2"), writes(3)).await;
        let action = rig.propose("many", json!({})).await;
        let action = ended(rig.execute(action.id).await);
        assert_eq!((action.state, row_code(&action)), (State::FailedTerminal, "too_many_effects"));
        assert_eq!(rig.provider.acted().len(), 2);
    });
}

#[test]
fn a_result_that_does_not_fit_the_output_schema_ends_broken_and_names_what_stands() {
    run(async |rig| {
        let script = refund().output(json!({"type": "object", "required": ["receipt"]}));
        rig.install("refund", &keyed(), script).await;
        let action = rig.propose("refund", amount(5)).await;
        let action = ended(rig.execute(action.id).await);
        assert_eq!((action.state, row_code(&action)), (State::FailedTerminal, "tool_broken"));
        let message = action.error.unwrap().message;
        assert!(message.contains("receipt") && message.contains("/refunds (200)"), "{message}");
    });
}

#[test]
fn the_fingerprint_moves_with_everything_that_is_approved() {
    run(async |rig| {
        rig.install("refund", &keyed(), refund()).await;
        let mut seen = vec![rig.propose("refund", amount(5)).await.fingerprint];
        // Another key, other arguments, another grant, other code.
        seen.push(rig.try_propose(proposal("refund", amount(5), "k2")).await.unwrap().action.fingerprint);
        seen.push(rig.try_propose(proposal("refund", amount(6), "k3")).await.unwrap().action.fingerprint);
        rig.put_grant("refund", &keyed().limits("effects = 9")).await;
        seen.push(rig.try_propose(proposal("refund", amount(5), "k4")).await.unwrap().action.fingerprint);
        rig.install_version("refund", "2.0.0", &keyed().limits("effects = 9"), refund()).await;
        seen.push(rig.try_propose(proposal("refund", amount(5), "k5")).await.unwrap().action.fingerprint);
        for (n, one) in seen.iter().enumerate() {
            assert!(!seen[..n].contains(one));
        }
        assert_ne!(seen[0].0, Digest::of(b""));
    });
}
