//! Everything at once: faults, deaths, frost, cancels, replaced grants, people
//! who look things up, in an order that a seed decides. What must hold is little
//! and always the same:
//!
//! - nothing is done twice;
//! - what succeeded did each of its writes, and what is called cancelled or
//!   expired did none;
//! - in the end it ends, once everybody who is waited for has spoken.

use std::time::Duration;

use countersign_domain::action::{Action, State};
use countersign_domain::id::ActionId;
use countersign_gate::Gate;
use serde_json::json;

use crate::rig::*;
use crate::windows::try_to_tell_the_truth;

/// Chosen: some seconds on two cores.
const SEEDS: u64 = 60;

/// SplitMix64 (Steele et al. 2014): a sequence per seed, the same everywhere.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }

    fn of<T: Clone>(&mut self, choices: &[T]) -> T {
        let at = self.roll(choices.len() as u64);
        choices[usize::try_from(at).unwrap()].clone()
    }
}

const WRITES: u32 = 3;

/// Reads and writes in turn, and tries later on some answers.
fn script() -> Script {
    Script::new(|fx| async move {
        for i in 1..=WRITES {
            let read = fx.get("/stock").await;
            if read.status() == 503 {
                return try_later("the stock is not known");
            }
            match fx.post(&format!("/w/{i}"), "1").await.status() {
                200 => {}
                503 => return try_later("not now"),
                status => return refused(&format!("{status}")),
            }
        }
        done(json!("all"))
    })
}

fn grant(class: &str, dice: &mut Dice) -> GrantText {
    let on_5xx = match class {
        "provider-idempotent" => dice.of(&["repeat", "answer"]),
        // With an answer that may have acted, `try-later` would spend its
        // attempts on it: that has its own test.
        _ => "unknown",
    };
    let retention = if class == "provider-idempotent" { "key_retention = \"1h\"" } else { "" };
    GrantText::default()
        .approval("required = 0\nexpires_after = \"12h\"")
        .route("GET", "/**", "read", "")
        .route("POST", "/**", class, &format!("unplanned = 8\non_5xx = \"{on_5xx}\"\n{retention}"))
}

/// What one seed does to one action.
async fn storm(rig: &mut Rig, class: &'static str, seed: u64) -> Vec<String> {
    let mut dice = Dice(seed);
    let mut story = Vec::new();
    let text = grant(class, &mut dice);
    rig.install("storm", &text, script()).await;
    let mut asked = proposal("storm", json!({}), "k");
    asked.run_by_itself = dice.roll(2) == 0;
    let id = rig.try_propose(asked).await.unwrap().action.id;
    let mut frozen: Vec<Host> = Vec::new();
    let mut passed = Duration::ZERO;
    for _ in 0..24 {
        let what = dice.roll(100);
        story.push(format!("{what} {}", rig.row(id).await.state));
        match what {
            0..25 => {
                let path = format!("/w/{}", dice.roll(u64::from(WRITES)) + 1);
                let fault = dice.of(&[
                    Do::LoseReply,
                    Do::LoseReply,
                    Do::LoseRequest,
                    Do::Say(503, &[]),
                    Do::ActThenSay(503),
                    Do::Say(429, &[("retry-after", "1")]),
                    Do::Say(409, &[]),
                ]);
                // A write without keys that was answered is answered.
                let fits = class == "provider-idempotent" || matches!(fault, Do::LoseReply | Do::LoseRequest);
                if fits {
                    rig.provider.next(&path, fault);
                }
            }
            25..40 => {
                let by = Duration::from_secs(dice.of(&[1, 5, 30, 61, 130, 1200, 4000]));
                rig.clock.advance(by);
                passed += by;
                if passed >= Duration::from_secs(3600) && class == "provider-idempotent" {
                    // It keeps a key for an hour and not a second longer, from
                    // whenever that was: here, from the start.
                    let sent = rig.effects(id).await.into_iter().filter_map(|effect| effect.first_sent).max();
                    let row = rig.store_now().await;
                    if sent.is_some_and(|sent| row.since(sent) >= Duration::from_secs(3600)) {
                        rig.provider.forget_keys();
                    }
                }
            }
            40..60 => {
                rig.tend(false).await;
            }
            60..70 => {
                let _ = rig.attempt_briefly(id).await;
            }
            70..80 => {
                // A worker that stands still somewhere, for as long as it takes.
                let host = rig.another_host();
                host.stops.arm(Stop::Nth(usize::try_from(dice.roll(12)).unwrap() + 1));
                drop(host.spawn(async move |gate: Gate| gate.execute(&tenant(), id, Duration::ZERO).await));
                host.spawn(async move |gate: Gate| gate.tend(false).await.map(drop)).await.unwrap().unwrap();
                frozen.push(host);
            }
            80..87 => {
                if let Some(host) = frozen.pop() {
                    if dice.roll(2) == 0 {
                        host.stops.release();
                        frozen.insert(0, host);
                    } else {
                        host.die().await;
                        rig.last_words().await;
                    }
                }
            }
            87..92 => rig.another_life().await,
            92..94 => {
                let _ = rig.cancel(id).await;
            }
            94..96 => {
                rig.put_grant("storm", &text.clone().limits(&format!("effects = {}", 20 + dice.roll(9))))
                    .await
            }
            _ => {
                let action = rig.row(id).await;
                let nobody_sends = frozen.is_empty();
                if action.state == State::OutcomeUnknown && nobody_sends {
                    tell(rig, id).await;
                }
            }
        }
    }
    for host in frozen {
        host.stops.release();
        host.run(async move |gate: Gate| gate.drain().await).await;
    }
    story
}

/// A person who looks, and says what they saw; and looks again if it moved on
/// meanwhile.
async fn tell(rig: &mut Rig, id: ActionId) {
    let action = rig.quiet(id).await;
    if action.state != State::OutcomeUnknown {
        return;
    }
    match try_to_tell_the_truth(rig, &action).await {
        Ok(_) => {
            rig.settle(id).await;
        }
        Err(error) => assert!(["invalid_state", "invalid_request"].contains(&error.code()), "{error}"),
    }
}

async fn calm(rig: &mut Rig, id: ActionId) -> Action {
    rig.clock.advance(Duration::from_secs(600));
    rig.tend(false).await;
    for _ in 0..20 {
        let action = rig.settle(id).await;
        if action.state.is_terminal() {
            return action;
        }
        tell(rig, id).await;
    }
    panic!("it never ends: {:?}", rig.row(id).await);
}

fn weather(class: &'static str) {
    for seed in 0..SEEDS {
        run(async |rig| {
            let story = storm(rig, class, seed).await;
            let id = countersign_domain::key::action_id(
                &tenant(),
                &countersign_domain::key::ActionKey::Key("k".into()),
            );
            let action = calm(rig, id).await;
            let facts = rig.facts(id).await;
            let counts: Vec<usize> = (1..=WRITES).map(|i| rig.provider.count(&format!("/w/{i}"))).collect();
            let told = format!("{class}, seed {seed}: {story:?}\n{facts:?}\n{counts:?} {:?}", action.error);
            assert!(counts.iter().all(|count| *count <= 1), "twice: {told}");
            match action.state {
                State::Succeeded => assert!(counts.iter().all(|count| *count == 1), "not all: {told}"),
                State::Cancelled | State::Expired => {
                    assert!(counts.iter().all(|count| *count == 0), "not nothing: {told}");
                }
                _ => {}
            }
        });
    }
}

#[test]
fn p2_p8_p9_sixty_storms_over_keyed_writes_do_nothing_twice_and_end() {
    weather("provider-idempotent");
}

#[test]
fn p2_p8_p9_sixty_storms_over_manual_writes_do_nothing_twice_and_end() {
    weather("manual");
}
