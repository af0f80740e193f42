//! The same arguments, seed and records: the same requests, byte for byte.

use std::sync::Arc;
use std::time::{Duration, Instant};

use countersign_domain::effect::OutboundRequest;
use serde_json::{Value, json};

use super::rig::{Gate, STARTED, invoke, mode, probe, returned, sandbox};

async fn requests(arguments: Value, seed: u8, gate: Arc<Gate>) -> Vec<OutboundRequest> {
    let mut call = probe(arguments);
    call.context.seed = [seed; 32];
    returned(&invoke(call, &gate).await);
    gate.seen.lock().unwrap().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn e10_chance_and_time_repeat_with_the_seed_and_differ_without_it() {
    let first = requests(mode("random-body"), 1, Gate::yes()).await;
    for _ in 0..20 {
        assert_eq!(requests(mode("random-body"), 1, Gate::yes()).await, first);
    }
    assert_ne!(requests(mode("random-body"), 2, Gate::yes()).await, first);
}

#[tokio::test(flavor = "multi_thread")]
async fn e10_a_slow_host_and_a_fast_one_see_the_same_requests() {
    let bodies: Vec<String> = (0..12).map(|n| "x".repeat(n * 9_000)).collect();
    let mut arguments = mode("at-once");
    arguments["bodies"] = json!(bodies);
    let fast = requests(arguments.clone(), 1, Gate::yes()).await;
    let held = Gate::held();
    held.permits.as_ref().unwrap().add_permits(3);
    let slow = tokio::spawn(requests(arguments, 1, held.clone()));
    tokio::time::sleep(Duration::from_millis(50)).await;
    held.permits.as_ref().unwrap().add_permits(100);
    assert_eq!(slow.await.unwrap(), fast);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_clock_starts_with_the_action_and_moves_with_each_reading() {
    let result = returned(&invoke(probe(json!({ "mode": "clocks", "n": 3 })), &Gate::yes()).await);
    let readings = result["readings"].as_array().unwrap();
    let wall = |n: usize| {
        let clock = &readings[n]["clock"];
        clock["seconds"].as_u64().unwrap() * 1_000_000_000 + clock["nanoseconds"].as_u64().unwrap()
    };
    let monotonic = |n: usize| readings[n]["clock"]["monotonic"].as_str().unwrap().parse::<u64>().unwrap();
    assert_eq!(wall(0), STARTED.as_micros() as u64 * 1_000);
    assert_eq!(wall(1) - wall(0), 2_000, "one reading of each clock lies between");
    assert_eq!(monotonic(1) - monotonic(0), 2_000);
    assert_eq!(result["action"]["tenant"], "acme");
    assert_eq!(result["action"]["run_id"], "run-1");
    assert_eq!(result["action"]["step"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn a07_a_sleep_takes_no_real_time_however_long_it_is() {
    sandbox().await;
    for ns in [0u64, 1, 1_000_000_000, 3_600_000_000_000, 9_007_199_254_000_000] {
        let started = Instant::now();
        let report = invoke(probe(json!({ "mode": "sleep", "ns": ns })), &Gate::yes()).await;
        let passed = returned(&report)["passed_ns"].as_u64().unwrap();
        assert!((ns..ns + 10_000).contains(&passed), "{ns}: {passed}");
        assert!(started.elapsed() < Duration::from_secs(30), "{ns}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_component_that_polls_the_clock_gets_to_its_deadline() {
    let arguments = json!({ "mode": "poll-clock", "ns": 1_000_000 });
    let readings = returned(&invoke(probe(arguments), &Gate::yes()).await)["readings"].as_u64().unwrap();
    assert!((990..1_010).contains(&readings), "{readings}");
}
