//! Kills and pauses at moments that nobody chose: whatever the host was doing, the provider's log
//! has each effect once.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::json;

use crate::on_both_stores;
use crate::support::grants::{Route, grant};
use crate::support::seed::Seed;
use crate::support::stage::REFUNDS;
use crate::support::{Backend, Fault, Mode, Rule, Stage, at_once, long};

on_both_stores! {
    p1_p2_and_p3_killed_at_random_under_load_every_effect_is_made_once_and_no_result_is_lost,
    a_host_that_stands_still_for_longer_than_its_lease_while_it_sends_sends_nothing_twice,
}

const WRITES: [&str; 4] = ["/reserve", "/transfers", "/ledger", "/notify"];

fn p1_p2_and_p3_killed_at_random_under_load_every_effect_is_made_once_and_no_result_is_lost(on: Backend) {
    let (refunds, transfers, lives) = (40, 15, long(8, 40));
    let mut seed = Seed::of_this_run("random kills");
    for round in 0..long(1, 25) {
        let stage = Stage::on(on);
        let mut ids: Vec<(String, bool)> = Vec::new();
        for n in 0..refunds {
            ids.push((
                stage.approved("refund", &format!("r{n}"), &stage.refund(&format!("k{n}"), 100 + n)),
                false,
            ));
        }
        for n in 0..transfers {
            ids.push((stage.approved("transfer", &format!("t{n}"), &stage.transfer(1_000 + n)), true));
        }
        // The host dies when the provider has acted for the n-th time, and a little later.
        let all = (refunds + 4 * transfers) as usize;
        let deaths: BTreeSet<usize> = (0..lives).map(|_| 1 + seed.below(all - 1)).collect();
        let mut results: Vec<Option<String>> = vec![None; ids.len()];
        for death in &deaths {
            let later = Duration::from_micros(seed.next() % 3_000);
            let orders: Vec<Seed> = (0..6).map(|n| seed.part(n)).collect();
            let found = std::thread::scope(|scope| {
                let callers = scope.spawn(|| {
                    at_once(orders.len(), |caller| {
                        let mut order = orders[caller].clone();
                        let mut heard = Vec::new();
                        for _ in 0..ids.len() {
                            let which = order.below(ids.len());
                            match stage.try_execute(&ids[which].0) {
                                Ok(told) if told.outcome() == "succeeded" => {
                                    heard.push((which, told.raw("result")))
                                }
                                Ok(_) => {}
                                Err(_) => break,
                            }
                        }
                        heard
                    })
                });
                stage.provider.wait_acted("*", *death as u64);
                std::thread::sleep(later);
                stage.host.kill();
                callers.join().expect("the callers")
            });
            for (which, result) in found.into_iter().flatten() {
                let known = results[which].get_or_insert_with(|| result.clone());
                assert_eq!(*known, result, "{seed:?}, round {round}: a result changed");
            }
            stage.host.wake();
        }
        for (which, (id, is_transfer)) in ids.iter().enumerate() {
            let told = stage.execute(id);
            assert_eq!(told.outcome(), "succeeded", "{seed:?}: {}", told.json);
            if let Some(known) = &results[which] {
                assert_eq!(*known, told.raw("result"), "{seed:?}: an acknowledged result was lost");
            }
            let paths: &[&str] = if *is_transfer { &WRITES } else { &[REFUNDS] };
            for path in paths {
                let sent = stage.requests(path, id);
                assert_eq!(stage.effects(path, id).len(), 1, "{seed:?}: {path} of {id}");
                assert!(
                    sent.iter()
                        .all(|line| line.key == sent[0].key && line.body_sha256 == sent[0].body_sha256)
                );
            }
            // Doubt only where a death fell between first byte and record.
            let doubts = stage.facts(id).iter().filter(|fact| *fact == "outcome_lost").count();
            assert!(doubts <= deaths.len(), "{seed:?}: {doubts} doubts in {} deaths", deaths.len());
        }
        stage.audit();
    }
}

fn a_host_that_stands_still_for_longer_than_its_lease_while_it_sends_sends_nothing_twice(on: Backend) {
    let stage = Stage::on_with(on, "lease = \"500ms\"", "2s");
    stage.provider.set_mode(Mode::Ignores);
    let route = Route::manual(stage.provider.port(), "/any/**");
    stage.install_probe("slow", &grant("[limits]\nsend = \"500ms\"", &[route]));
    stage.provider.fault(Rule::once("/any/still", Fault::hold()));
    let arguments = json!({ "mode": "writes", "url": stage.url("/any/still"), "bodies": ["once"] });
    let id = stage.approved("slow", "still", &arguments);
    let _caller = stage.execute_unheard(&id);
    stage.provider.wait_held(1);
    stage.host.stand_still();
    stage.provider.release();
    // A write's lease covers its longest send and a margin of five seconds; this is longer.
    std::thread::sleep(Duration::from_secs(6));
    stage.host.go_on();
    let told = stage.wait_for(&id, &["succeeded", "outcome_unknown"]);
    assert_eq!(stage.counts("/any/still", &id), (1, 1), "{}", told.json);
    if told.outcome() == "outcome_unknown" {
        stage.execute(&id).refused(409, "execution_in_doubt");
    }
    stage.facts(&id);
    // It lives and works.
    let id = stage.approved("refund", "after", &stage.refund("after", 100));
    assert_eq!(stage.execute(&id).outcome(), "succeeded");
}
