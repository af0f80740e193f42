//! A tool asks its provider what became of a send: not too early, by reads only,
//! and believed as far as the provider's answers go.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use countersign_domain::action::{Action, State, WaitsFor};
use countersign_domain::effect::{Answer, EffectStatus};
use countersign_domain::id::{ActionId, Ordinal};
use countersign_gate::reconciler::{Found, Reconciled};
use countersign_gate::resolve::Word;
use countersign_gate::{Announce, Gate, GateError, Verdict};

use crate::rig::*;

/// A refund of a tool that can look, whose reply was lost.
async fn in_doubt(rig: &mut Rig, script: Script, fault: Do) -> Action {
    rig.install("refund", &unkeyed("verifiable"), script).await;
    rig.provider.next("/refunds", fault);
    let id = rig.propose("refund", amount(5)).await.id;
    let action = rig.attempt(id).await;
    assert_eq!(action.state, State::OutcomeUnknown);
    action
}

/// The time until its sends have settled, and a look at what is due then.
async fn settled(rig: &Rig, id: ActionId) {
    let settle = rig.effects(id).await[0].terms.settle;
    rig.clock.advance(settle);
    rig.tend(false).await;
}

async fn reconcile(rig: &Rig, id: ActionId) -> Result<Reconciled, GateError> {
    rig.host().run(async move |gate: Gate| gate.reconcile(&tenant(), id, &principal("ops")).await).await
}

fn looks(rig: &Rig) -> usize {
    rig.provider.requests("/look/refunds").len()
}

#[test]
fn a_lost_reply_is_looked_up_once_its_send_has_settled_and_one_effect_was_made() {
    run(async |rig| {
        let action = in_doubt(rig, looked_up_refund(), Do::LoseReply).await;
        // It rests first, then it waits for the send to settle, at no price.
        for _ in 0..3 {
            let row = rig.row(action.id).await;
            rig.clock.advance(row.next_attempt.unwrap().since(rig.store_now().await));
            if rig.store_now().await < settles(rig, action.id).await {
                rig.tend(false).await;
            }
        }
        assert_eq!(looks(rig), 0, "nobody asks before that");
        assert_eq!(rig.row(action.id).await.repeats_left, action.repeats_left);
        let action = rig.settle(action.id).await;
        assert_eq!(action.state, State::Succeeded);
        assert!(action.repeats_left < 10, "a look has its price");
        assert_eq!(action.result.unwrap().as_str(), r#"{"refund":"re_looked_up"}"#);
        assert_eq!(rig.provider.requests("/refunds").len(), 1);
        let evidence = rig.effects(action.id).await[0].evidence.clone().unwrap();
        assert_eq!((evidence.by.as_str(), evidence.outcome.as_str()), ("reconcile", "happened"));
        let asked = &evidence.evidence["asked"][0];
        assert_eq!((asked["method"].as_str(), asked["status"].as_u64()), (Some("GET"), Some(200)));
        assert!(asked["url"].as_str().unwrap().ends_with("/look/refunds"));
        let facts = rig.facts(action.id).await;
        assert_eq!(facts[facts.len() - 3..], ["found_done", "claimed", "succeeded"]);
    });
}

async fn settles(rig: &Rig, id: ActionId) -> countersign_domain::time::Timestamp {
    let effect = rig.effects(id).await.remove(0);
    effect.unknown_since.unwrap().plus(effect.terms.settle)
}

#[test]
fn what_the_provider_does_not_have_is_sent_once_more() {
    run(async |rig| {
        let id = in_doubt(rig, looked_up_refund(), Do::LoseRequest).await.id;
        assert_eq!(rig.settle(id).await.state, State::Succeeded);
        assert_eq!((rig.provider.requests("/refunds").len(), rig.provider.count("/refunds")), (2, 1));
        assert_eq!(rig.effects(id).await[0].evidence.clone().unwrap().outcome, "did_not_happen");
    });
}

#[test]
fn p2_a_word_that_no_answer_of_the_provider_carries_settles_nothing() {
    run(async |rig| {
        let made_up = refund().reconciling(|_, _| async { Ok(Verdict::NotDone) });
        let id = in_doubt(rig, made_up, Do::LoseReply).await.id;
        settled(rig, id).await;
        let action = rig.settle(id).await;
        assert_eq!((action.state, action.repeats_left), (State::OutcomeUnknown, 0));
        assert_eq!(action.waits_for(), Some(WaitsFor::Person));
        assert_eq!(rig.provider.requests("/refunds").len(), 1);
    });
}

#[test]
fn an_answer_that_says_nothing_about_what_the_provider_has_carries_no_word() {
    run(async |rig| {
        let trusting = refund().reconciling(|fx, _| async move {
            fx.get("/look/refunds").await;
            Ok(Verdict::NotDone)
        });
        rig.provider.next("/look/refunds", Do::Say(401, &[]));
        rig.provider.next("/look/refunds", Do::Say(503, &[]));
        let id = in_doubt(rig, trusting, Do::LoseRequest).await.id;
        settled(rig, id).await;
        rig.until(id, |action| action.repeats_left == 9).await;
        // The third time it was really answered: not there.
        assert_eq!(rig.settle(id).await.state, State::Succeeded);
        assert_eq!((looks(rig), rig.provider.count("/refunds")), (3, 1));
    });
}

#[test]
fn p6_a_lookup_gets_out_nothing_but_reads() {
    run(async |rig| {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let shown = seen.clone();
        let writing = refund().reconciling(move |fx, effect| {
            let shown = shown.clone();
            async move {
                let answer = fx.post("/refunds", "once more").await;
                shown.lock().unwrap().push((answer.status(), effect.provider_key.clone()));
                Ok(Verdict::Unknown)
            }
        });
        let id = in_doubt(rig, writing, Do::LoseReply).await.id;
        settled(rig, id).await;
        rig.settle(id).await;
        // The last one of them may still be under way.
        rig.host().run(async move |gate: Gate| gate.drain().await).await;
        assert_eq!(rig.provider.requests("/refunds").len(), 1);
        let seen = seen.lock().unwrap().clone();
        assert_eq!(seen.len(), 10);
        assert!(seen.iter().all(|(status, key)| *status == 0 && key.is_some()), "{seen:?}");
        assert_eq!(rig.effects(id).await.len(), 1, "a lookup's calls are none of the action's");
    });
}

#[test]
fn a_cancel_stops_repeats_and_not_lookups() {
    run(async |rig| {
        for (fault, state) in [(Do::LoseReply, State::FailedTerminal), (Do::LoseRequest, State::Cancelled)] {
            let name = state.as_str().replace('_', "-");
            rig.install(&name, &unkeyed("verifiable"), looked_up_refund()).await;
            rig.provider.next("/refunds", fault);
            // The second: nothing of this kind was made yet.
            if state == State::Cancelled {
                rig.provider.next("/look/refunds", Do::Say(404, &[]));
            }
            let id = rig.propose(&name, amount(5)).await.id;
            assert_eq!(rig.attempt(id).await.state, State::OutcomeUnknown);
            rig.cancel(id).await.unwrap();
            let before = rig.provider.requests("/refunds").len();
            let action = rig.settle(id).await;
            assert_eq!((action.state, row_code(&action)), (state, "cancelled"));
            assert_eq!(rig.provider.requests("/refunds").len(), before);
        }
    });
}

#[test]
fn an_operator_asks_at_once_and_after_the_budget_is_spent() {
    run(async |rig| {
        rig.reconfigure(|config| config.repeats = 1);
        let id = in_doubt(rig, looked_up_refund(), Do::LoseRequest).await.id;
        let Reconciled { found, .. } = reconcile(rig, id).await.unwrap();
        assert_eq!(found, [(Ordinal(1), Found::TooEarly(settles(rig, id).await))]);
        assert_eq!(rig.row(id).await.state, State::OutcomeUnknown);
        // The one lookup of its budget meets a provider that is not there.
        rig.provider.next("/look/refunds", Do::Say(503, &[]));
        settled(rig, id).await;
        let action = rig.settle(id).await;
        assert_eq!((action.state, action.repeats_left), (State::OutcomeUnknown, 0));
        // It may still be under way: then it is this one that the provider fails.
        let wait = async {
            while looks(rig) < 2 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(LONG, wait).await.expect("nobody looked");
        let Reconciled { action, found } = reconcile(rig, id).await.unwrap();
        assert_eq!(
            (found.as_slice(), action.state),
            ([(Ordinal(1), Found::NotDone)].as_slice(), State::FailedRetryable)
        );
        let evidence = rig.effects(id).await[0].evidence.clone().unwrap();
        assert_eq!(
            (evidence.by.as_str(), evidence.evidence["at_the_request_of"].as_str()),
            ("reconcile", Some("ops"))
        );
        assert_eq!(rig.settle(id).await.state, State::Succeeded);
        assert_eq!(code(reconcile(rig, id).await), "invalid_state");
    });
}

#[test]
fn an_operator_is_told_where_no_lookup_can_help() {
    run(async |rig| {
        rig.provider.next("/refunds", Do::LoseReply);
        rig.install("manual", &unkeyed("manual"), looked_up_refund()).await;
        let id = rig.propose("manual", amount(1)).await.id;
        rig.attempt(id).await;
        let why = reconcile(rig, id).await.unwrap_err().to_string();
        assert!(why.contains("`verifiable`") && why.contains("resolve"), "{why}");
        rig.install("mute", &unkeyed("verifiable"), refund()).await;
        rig.provider.next("/refunds", Do::LoseReply);
        let id = rig.propose("mute", amount(2)).await.id;
        rig.attempt(id).await;
        let why = reconcile(rig, id).await.unwrap_err().to_string();
        assert!(why.contains("reconciler"), "{why}");
        // Nor does a worker ask what cannot say: it waits for a person at once.
        let action = rig.left_to_a_person(id).await;
        assert_eq!(action.repeats_left, 10);
    });
}

#[test]
fn p2_a_person_who_says_so_while_somebody_looks_wins_and_the_lookup_says_nothing() {
    run(async |rig| {
        let id = in_doubt(rig, looked_up_refund(), Do::LoseReply).await.id;
        let settle = rig.effects(id).await[0].terms.settle;
        rig.clock.advance(settle);
        rig.provider.next("/look/refunds", Do::Hold(Box::new(Do::Say(404, &[]))));
        let looking =
            rig.host().spawn(async move |gate: Gate| gate.reconcile(&tenant(), id, &principal("ops")).await);
        rig.provider.holds(1).await;
        let answer = Answer { status: 200, headers: vec![], body: br#"{"id":"told"}"#.to_vec() };
        rig.resolve(id, 1, Word::Happened(answer)).await.unwrap();
        rig.provider.release();
        let Reconciled { found, .. } = looking.await.unwrap().unwrap();
        assert_eq!(found, [(Ordinal(1), Found::Overtaken)]);
        assert_eq!(rig.settle(id).await.result.unwrap().as_str(), r#"{"refund":"told"}"#);
        assert_eq!(rig.provider.requests("/refunds").len(), 1);
    });
}

#[test]
fn p9_a_host_that_dies_while_it_looks_leaves_the_look_to_another() {
    run(async |rig| {
        let id = in_doubt(rig, looked_up_refund(), Do::LoseReply).await.id;
        rig.provider.next("/look/refunds", Do::Hold(Box::new(Do::Act)));
        settled(rig, id).await;
        rig.provider.holds(1).await;
        rig.another_life().await;
        assert_eq!(rig.effects(id).await[0].status, EffectStatus::Unknown);
        assert_eq!(rig.settle(id).await.state, State::Succeeded);
        rig.provider.release();
        assert!(looks(rig) > 1, "another looked");
        assert_eq!(rig.provider.count("/refunds"), 1);
    });
}

/// What was told, and whether telling fails.
#[derive(Debug, Default)]
struct Told {
    words: Mutex<Vec<(ActionId, Option<Ordinal>, String)>>,
    fails: std::sync::atomic::AtomicBool,
    heard: tokio::sync::Notify,
}

#[async_trait]
impl Announce for Told {
    async fn waits_for_person(&self, action: &Action, at: Option<Ordinal>, why: &str) -> Result<(), String> {
        let fails = self.fails.load(std::sync::atomic::Ordering::SeqCst);
        self.words.lock().unwrap().push((action.id, at, why.to_owned()));
        self.heard.notify_one();
        match fails {
            true => Err("nobody is there".into()),
            false => Ok(()),
        }
    }
}

async fn until_announced(rig: &Rig, id: ActionId) {
    let wait = async {
        while rig.row(id).await.announced.is_none() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, wait).await.expect("nobody was told");
}

#[test]
fn p9_what_waits_for_a_person_is_announced_once_and_again_until_somebody_was_told() {
    run(async |rig| {
        let told = Arc::new(Told::default());
        let hook = told.clone();
        rig.reconfigure(|config| config.announce = Some(hook));
        told.fails.store(true, std::sync::atomic::Ordering::SeqCst);
        rig.install("refund", &unkeyed("manual"), refund()).await;
        rig.provider.next("/refunds", Do::LoseReply);
        let id = rig.propose("refund", amount(5)).await.id;
        let action = rig.attempt(id).await;
        rig.clock.advance(action.next_attempt.unwrap().since(rig.store_now().await));
        rig.tend(false).await;
        rig.tend(false).await;
        told.heard.notified().await;
        assert_eq!(rig.row(id).await.announced, None, "nobody was");
        // The host dies over it; the next one tells again.
        told.fails.store(false, std::sync::atomic::Ordering::SeqCst);
        rig.another_life().await;
        rig.tend(false).await;
        until_announced(rig, id).await;
        for _ in 0..3 {
            rig.clock.advance(Duration::from_secs(3600));
            rig.tend(false).await;
        }
        let words = told.words.lock().unwrap().clone();
        assert_eq!(words.len(), 2, "{words:?}");
        assert!(
            words
                .iter()
                .all(|(of, at, why)| *of == id && *at == Some(Ordinal(1)) && why.contains("effect 1"))
        );
    });
}
