//! The protocol as a state-space model: claims, leases, the reaper, recovery,
//! explored whole within small budgets.
//!
//! Two workers, one or two effects, people who approve, cancel and say what they
//! found, a reaper, a provider that recognises keys for a while or does not;
//! replies that are lost, workers that crash, freeze and wake, times that pass,
//! a policy that changes, a database that forgets. Transitions, replay and
//! judgement are the domain's own functions; the conditions of claims and
//! records are written down here once more, as the store's statements have them,
//! and no test holds the two together: a condition changed there has to be
//! changed here.
//!
//! What it cannot see: bytes, times as numbers, more than one action, what a
//! person is shown. A worker makes one send per effect and attempt, as ours do,
//! so an answer to another send of the same attempt does not come up.
//!
//! With `COUNTERSIGN_LONG=1` budgets are larger: some fifty million states,
//! minutes with optimisation and gigabytes of memory.
//!
//! Read `state`, then `steps` and the files that it names, then
//! `properties` (the promises) and `plants` (tempting rules, each of which has
//! to be found).

mod around;
mod attempt;
mod claims;
mod plants;
mod properties;
mod provider;
mod recovery;
mod replay;
mod scenario;
mod search;
mod send;
mod state;
mod steps;

use properties::Promise;
use search::{Counterexample, Explored, explore};
use state::World;
use steps::Model;

/// Larger budgets, for hours and not seconds.
#[expect(
    clippy::disallowed_methods,
    reason = "the long form is asked for from outside, like any test setting"
)]
fn long() -> bool {
    std::env::var_os("COUNTERSIGN_LONG").is_some_and(|value| value == "1")
}

fn told(found: &Counterexample) -> String {
    let mut text = format!("{:?}: {}\n", found.broken.promise, found.broken.how);
    for (n, step) in found.steps.iter().enumerate() {
        text.push_str(&format!("  {:>2} {step:?}\n", n + 1));
    }
    let World { state, effects, keys, .. } = found.last;
    for (effect, key) in effects.iter().zip(keys) {
        let status = effect.status.map_or("not there", |status| status.as_str());
        text.push_str(&format!(
            "     effect {status} {:?}, the provider acted {}\n",
            effect.answer, key.acts
        ));
    }
    text.push_str(&format!("     the action {state}\n"));
    text
}

#[test]
fn p1_p2_p3_p8_p9_hold_in_every_reachable_state() {
    let (mut states, mut transitions, mut broken) = (0, 0, String::new());
    for scenario in scenario::ALL {
        let scenario = if long() { scenario.long() } else { scenario.deeper() };
        let Explored { states: seen, transitions: taken, depth, found } =
            explore(&Model::new(scenario, None));
        println!("{seen:>9} states {taken:>9} steps, depth {depth:>3}: {}", scenario.name);
        states += seen;
        transitions += taken;
        if let Some(found) = found {
            broken.push_str(&format!("{}: {}", scenario.name, told(&found)));
        }
    }
    println!("{states:>9} states {transitions:>9} steps in all");
    assert!(broken.is_empty(), "{broken}");
}

#[test]
fn every_tempting_rule_breaks_the_promise_that_it_is_known_to_break() {
    let mut wrong = String::new();
    for (plant, promise, length, scenario) in plants::ALL {
        let explored = explore(&Model::new(scenario::named(scenario), Some(*plant)));
        let (found, steps): (Option<Promise>, usize) = match &explored.found {
            Some(found) => (Some(found.broken.promise), found.steps.len()),
            None => (None, 0),
        };
        println!("{:>9} states: {plant:?} breaks {found:?} in {steps} steps", explored.states);
        if (found, steps) != (Some(*promise), *length) {
            let what = explored.found.as_ref().map_or("nothing was found\n".to_owned(), told);
            wrong.push_str(&format!("{plant:?}, expected {promise:?} in {length} steps; {what}\n"));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn what_is_left_out_of_a_state_hides_nothing() {
    for name in ["keys, and an approval that ends", "lookups", "try later, no keys"] {
        let whole = Model { reduced: false, ..Model::new(scenario::named(name), None) };
        let explored = explore(&whole);
        println!("{:>9} states with nothing left out: {name}", explored.states);
        assert!(explored.found.is_none(), "{name}: {}", explored.found.as_ref().map_or(String::new(), told));
    }
}
