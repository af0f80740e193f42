//! A component that takes more than it is given, by the probe.

use std::time::{Duration, Instant};

use countersign_domain::run::{Ended, ToolFailure};
use serde_json::json;

use super::rig::{
    Gate, component, digest, in_processes, invoke, limit, mode, probe, returned, told_to_use_processes,
};
use crate::{Sandbox, SandboxConfig};

#[tokio::test(flavor = "multi_thread")]
async fn a03_memory_grow_stops_at_the_limit() {
    let report = invoke(probe(json!({ "mode": "grow" })), &Gate::yes()).await;
    let pages = returned(&report)["pages"].as_u64().unwrap();
    // 1,024 pages less what the component started with.
    assert!((900..1_024).contains(&pages), "{pages}");
    let mut small = probe(json!({ "mode": "grow" }));
    small.limits.memory = 8 << 20;
    let pages = returned(&invoke(small, &Gate::yes()).await)["pages"].as_u64().unwrap();
    assert!((50..128).contains(&pages), "{pages}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a03_a_component_that_starts_over_the_limit_does_not_start() {
    let mut call = probe(mode("no-effect"));
    call.limits.memory = 64 << 10;
    let report = invoke(call, &Gate::yes()).await;
    assert_eq!(limit(&report), "memory");
}

#[tokio::test(flavor = "multi_thread")]
async fn a05_endless_recursion_is_a_trap() {
    let report = invoke(probe(json!({ "mode": "recurse" })), &Gate::yes()).await;
    assert_eq!(limit(&report), "stack");
    returned(&invoke(probe(mode("no-effect")), &Gate::yes()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a06_an_endless_loop_ends_with_its_running_time() {
    let mut call = probe(json!({ "mode": "spin" }));
    call.limits.cpu = Duration::from_millis(100);
    let sandbox = super::rig::sandbox().await;
    let started = Instant::now();
    let report = sandbox.invoke(call, Gate::yes()).await;
    assert_eq!(limit(&report), "cpu");
    assert!(started.elapsed() >= Duration::from_millis(100));
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a06_waiting_for_an_answer_is_not_running() {
    let gate = Gate::held();
    let mut call = probe(mode("forbidden-host"));
    call.limits.cpu = Duration::from_secs(1);
    let running = tokio::spawn({
        let gate = gate.clone();
        async move { invoke(call, &gate).await }
    });
    gate.arrived.acquire().await.unwrap().forget();
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    gate.permits.as_ref().unwrap().add_permits(1);
    returned(&running.await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a06_an_endless_loop_does_not_keep_a_thread_from_others() {
    let mut call = probe(json!({ "mode": "spin" }));
    call.limits.cpu = Duration::from_secs(3);
    super::rig::sandbox().await;
    let spinning = tokio::spawn(async move { invoke(call, &Gate::yes()).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    tokio::spawn(async { returned(&invoke(probe(mode("no-effect")), &Gate::yes()).await) }).await.unwrap();
    assert!(!spinning.is_finished(), "the other call waited for the loop to end");
    assert_eq!(limit(&spinning.await.unwrap()), "cpu");
}

#[tokio::test(flavor = "multi_thread")]
async fn a06_a_loop_with_a_request_in_hand_sends_nothing() {
    let gate = Gate::yes();
    let mut call = probe(mode("spin-in-flight"));
    call.limits.cpu = Duration::from_millis(100);
    assert_eq!(limit(&invoke(call, &gate).await), "cpu");
    assert_eq!(gate.count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a07_polling_nothing_is_a_trap() {
    let report = invoke(probe(json!({ "mode": "poll-nothing" })), &Gate::yes()).await;
    assert!(matches!(report.ended, Ended::Trapped { .. }), "{:?}", report.ended);
}

#[tokio::test(flavor = "multi_thread")]
async fn a08_a_host_call_takes_over_four_mebibytes_at_most() {
    let report = invoke(probe(json!({ "mode": "big-log", "n": 3 << 20 })), &Gate::yes()).await;
    returned(&report);
    let report = invoke(probe(json!({ "mode": "big-log", "n": 8 << 20 })), &Gate::yes()).await;
    assert_eq!(limit(&report), "host_call_bytes");
    let report = invoke(probe(json!({ "mode": "random-bomb", "n": 65_536 })), &Gate::yes()).await;
    returned(&report);
    let report = invoke(probe(json!({ "mode": "random-bomb", "n": 65_537 })), &Gate::yes()).await;
    assert_eq!(limit(&report), "random");
}

#[tokio::test(flavor = "multi_thread")]
async fn a09_a_header_bomb_ends_the_run_and_nothing_else() {
    for arguments in [json!({ "mode": "header-bomb" }), json!({ "mode": "header-bomb", "size": 204_800 })] {
        assert_eq!(limit(&invoke(probe(arguments), &Gate::yes()).await), "fields");
    }
    let few = json!({ "mode": "header-bomb", "n": 20 });
    assert_eq!(returned(&invoke(probe(few), &Gate::yes()).await)["from_list"], "accepted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a10_resources_are_counted() {
    for mode in ["many-handles", "many-pollables"] {
        returned(&invoke(probe(json!({ "mode": mode, "n": 200 })), &Gate::yes()).await);
        let report = invoke(probe(json!({ "mode": mode, "n": 100_000 })), &Gate::yes()).await;
        assert_eq!(limit(&report), "resources", "{mode}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a11_writes_of_nothing_are_counted() {
    for mode in ["empty-writes", "tiny-writes"] {
        let mut call = probe(json!({ "mode": mode, "n": 200_000 }));
        call.limits.cpu = Duration::from_secs(30);
        let report = invoke(call, &Gate::yes()).await;
        let refused = returned(&report)["refused"].as_u64().unwrap();
        assert_eq!(refused, 2 * (200_000 - 65_536), "{mode}");
        let kept: usize = report.log.iter().map(String::len).sum();
        assert!(kept < 3 * (64 << 10), "{kept}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a12_a_log_flood_is_cut_per_stream() {
    let report = invoke(probe(json!({ "mode": "log-flood", "n": 8 << 20 })), &Gate::yes()).await;
    assert_eq!(returned(&report)["refused"], 0, "what a tool prints is not worth its failure");
    let kept: usize = report.log.iter().map(String::len).sum();
    assert!(kept < 3 * (65 << 10), "{kept}");
    assert_eq!(report.log.iter().filter(|line| line.contains("truncated")).count(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_component_says_is_in_the_report_with_its_source() {
    let report = invoke(probe(json!({ "mode": "log", "text": "hello" })), &Gate::yes()).await;
    let mut lines = report.log.clone();
    lines.sort();
    let expected = [
        "[debug] hello",
        "[error] hello",
        "[info] hello",
        "[progress 0%] hello",
        "[progress 100%] hello",
        "[progress 50%] hello",
        "[stderr] hello",
        "[stdout] hello",
        "[warn] hello",
    ];
    assert_eq!(lines, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn f05_a_result_is_bounded_and_json() {
    let mut at_limit = probe(json!({ "mode": "big-result", "n": 1_000 }));
    at_limit.limits.result = 1_000;
    returned(&invoke(at_limit, &Gate::yes()).await);
    let mut over = probe(json!({ "mode": "big-result", "n": 1_001 }));
    over.limits.result = 1_000;
    assert_eq!(limit(&invoke(over, &Gate::yes()).await), "result");
    match invoke(probe(mode("bad-json")), &Gate::yes()).await.ended {
        Ended::Failed(ToolFailure::Broken(why)) => assert!(why.contains("JSON"), "{why}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_keep_their_kind() {
    let ended = async |mode: &str| invoke(probe(json!({ "mode": mode, "n": 5 })), &Gate::yes()).await.ended;
    assert!(matches!(ended("invalid-arguments").await, Ended::Failed(ToolFailure::InvalidArguments(_))));
    assert!(matches!(ended("refused").await, Ended::Failed(ToolFailure::Refused(_))));
    assert!(matches!(ended("broken").await, Ended::Failed(ToolFailure::Broken(_))));
    assert!(matches!(ended("try-later").await, Ended::Failed(ToolFailure::TryLater { after: Some(5), .. })));
    assert!(matches!(ended("trap").await, Ended::Trapped { limit: None, .. }));
    assert!(matches!(ended("exit").await, Ended::Trapped { limit: None, .. }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a17_there_is_nothing_around_a_component() {
    let result = returned(&invoke(probe(json!({ "mode": "env" })), &Gate::yes()).await);
    assert_eq!(result, json!({ "variables": [], "arguments": [], "folders": [], "stdin": 0 }));
    let result =
        returned(&invoke(probe(json!({ "mode": "open-file", "text": "/etc/passwd" })), &Gate::yes()).await);
    assert!(result["read"]["Err"].is_string() && result["write"]["Err"].is_string(), "{result}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a15_memory_of_an_earlier_run_is_never_seen() {
    let canary = "canary-5f0c1d";
    for _ in 0..30 {
        invoke(probe(json!({ "mode": "canary", "text": canary })), &Gate::yes()).await;
        let result = returned(&invoke(probe(json!({ "mode": "scan", "text": canary })), &Gate::yes()).await);
        assert_eq!((result["hits"].as_u64(), result["not_zero"].as_u64()), (Some(0), Some(0)));
        assert!(result["bytes"].as_u64().unwrap() > 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a14_a_full_sandbox_says_so_and_recovers() {
    let sandbox = Sandbox::new(SandboxConfig { max_runs: 2, ..SandboxConfig::default() }).unwrap();
    let bytes = component("probe");
    sandbox.load(digest(&bytes), bytes).await.unwrap();
    let gate = Gate::held();
    let running: Vec<_> = (0..2)
        .map(|_| {
            let (sandbox, gate) = (sandbox.clone(), gate.clone());
            tokio::spawn(async move { sandbox.invoke(probe(mode("forbidden-host")), gate).await })
        })
        .collect();
    gate.arrived.acquire_many(2).await.unwrap().forget();
    let report = sandbox.invoke(probe(mode("no-effect")), Gate::yes()).await;
    assert!(matches!(report.ended, Ended::Unavailable(_)), "{:?}", report.ended);
    gate.permits.as_ref().unwrap().add_permits(2);
    for run in running {
        returned(&run.await.unwrap());
    }
    returned(&sandbox.invoke(probe(mode("no-effect")), Gate::yes()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a14_a_thousand_waiting_calls_of_one_tenant_keep_no_other_waiting() {
    if told_to_use_processes() {
        return;
    }
    let sandbox = in_processes();
    let bytes = component("probe");
    sandbox.load(digest(&bytes), bytes).await.unwrap();
    let call = |tenant: &str, arguments| {
        let mut call = probe(arguments);
        call.context.tenant = tenant.parse().unwrap();
        call
    };
    let gate = Gate::held();
    let waiting: Vec<_> = (0..1_000)
        .map(|_| {
            let (sandbox, gate) = (sandbox.clone(), gate.clone());
            let call = call("many", mode("forbidden-host"));
            tokio::spawn(async move { sandbox.invoke(call, gate).await })
        })
        .collect();
    gate.arrived.acquire_many(1_000).await.unwrap().forget();
    // What is held is held; the other tenant's goes from its start to its end meanwhile.
    returned(&sandbox.invoke(call("other", mode("no-effect")), Gate::yes()).await);
    assert_eq!(gate.recorded(), 0);
    gate.permits.as_ref().unwrap().add_permits(1_000);
    for run in waiting {
        returned(&run.await.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a07_waiting_runs_keep_no_thread() {
    let gate = Gate::held();
    let waiting: Vec<_> = (0..64)
        .map(|_| {
            let gate = gate.clone();
            tokio::spawn(async move { invoke(probe(mode("forbidden-host")), &gate).await })
        })
        .collect();
    gate.arrived.acquire_many(64).await.unwrap().forget();
    for _ in 0..20 {
        returned(&invoke(probe(mode("no-effect")), &Gate::yes()).await);
    }
    assert_eq!(gate.recorded(), 0);
    gate.permits.as_ref().unwrap().add_permits(64);
    for run in waiting {
        returned(&run.await.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a07_calls_given_up_at_any_moment_leave_the_engine_whole() {
    super::rig::sandbox().await;
    let modes = ["spin", "work", "writes", "grow", "log-flood", "recurse", "truncated-body", "sleep"];
    for round in 0..1_000u64 {
        let mut arguments = mode(modes[round as usize % modes.len()]);
        arguments["bodies"] = json!(["a", "b", "c"]);
        arguments["n"] = json!(100_000);
        arguments["ns"] = json!(1_000_000);
        let run = tokio::spawn(async move { invoke(probe(arguments), &Gate::yes()).await });
        // Not a wait for anything: the moment is what is tried out.
        tokio::time::sleep(Duration::from_micros(round * 37 % 6_000)).await;
        run.abort();
        let _ = run.await;
    }
    returned(&invoke(probe(mode("no-effect")), &Gate::yes()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a03_runs_at_their_limit_do_not_take_from_others() {
    let greedy: Vec<_> = (0..10)
        .map(|_| {
            tokio::spawn(async { returned(&invoke(probe(json!({ "mode": "grow" })), &Gate::yes()).await) })
        })
        .collect();
    returned(&invoke(probe(mode("no-effect")), &Gate::yes()).await);
    for run in greedy {
        assert!(run.await.unwrap()["pages"].as_u64().unwrap() > 900);
    }
}

/// Resident memory of this process, bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    status.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4_096
}

#[tokio::test(flavor = "multi_thread")]
async fn a10_what_a_run_took_is_given_back() {
    let round = async |n: u32| {
        for _ in 0..n {
            for mode in ["many-handles", "many-pollables"] {
                let report = invoke(probe(json!({ "mode": mode, "n": 100_000 })), &Gate::yes()).await;
                assert_eq!(limit(&report), "resources");
            }
            invoke(probe(json!({ "mode": "grow" })), &Gate::yes()).await;
        }
    };
    round(20).await;
    let before = resident();
    round(100).await;
    // 100 rounds took 6 GiB one after the other. Other tests run meanwhile, with
    // ten runs of 64 MiB at most.
    let grown = resident().saturating_sub(before);
    assert!(grown < 1 << 30, "{grown} bytes more");
}
