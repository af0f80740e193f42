//! What is measured as memory of the process, each in a process of its own: this test binary
//! started again for the one test.

use std::process::Command;

use countersign_domain::run::{Ended, RunLimits};

use super::corpus::{Ready, SMALL, row, text};
use super::rig::{LIMITS, told_to_use_processes};

const ALONE: &str = "COUNTERSIGN_TEST_ALONE";

/// False in the test run, after the test has passed in a process of its own; true in there.
#[expect(clippy::disallowed_methods, reason = "how a test binary is told anything")]
pub(super) fn alone_in(file: &str, test: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    // Where all tests are run a second time for the sake of guest processes, these have nothing to add.
    if told_to_use_processes() {
        return false;
    }
    let name = format!("tests::{file}::{test}");
    let ran = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &name, "--nocapture", "--test-threads=1"])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let said = [ran.stdout, ran.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(ran.status.success() && said.contains("1 passed"), "{said}");
    false
}

fn alone(test: &str) -> bool {
    alone_in("alone", test)
}

/// Bytes of memory in use: now, and at the most since `forget_the_most`.
fn resident(line: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix(line)).unwrap();
    line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

pub(super) fn forget_the_most() -> u64 {
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    resident("VmRSS")
}

/// The most that was in use at any time since, beyond what was then.
pub(super) fn most_since(before: u64) -> u64 {
    resident("VmHWM").saturating_sub(before)
}

fn limit(ended: Result<(), Ended>) -> &'static str {
    match ended {
        Err(Ended::Trapped { limit: Some(limit), .. }) => limit,
        other => panic!("it met no limit: {other:?}"),
    }
}

pub(super) const MIB: u64 = 1 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn a03_fifty_components_at_their_memory_limit_take_no_more_than_their_limits() {
    if !alone("a03_fifty_components_at_their_memory_limit_take_no_more_than_their_limits") {
        return;
    }
    let (greedy, other) = (Ready::new(&text("a03-grow")).unwrap(), Ready::new("(component)").unwrap());
    greedy.run(LIMITS).await.unwrap();
    let before = forget_the_most();
    let runs: Vec<_> = (0..50)
        .map(|_| {
            let greedy = greedy.clone();
            tokio::spawn(async move { greedy.run(LIMITS).await })
        })
        .collect();
    other.run(LIMITS).await.unwrap();
    for run in runs {
        run.await.unwrap().unwrap();
    }
    assert!(most_since(before) < (50 * 64 + 256) * MIB, "{}", most_since(before));
}

#[tokio::test(flavor = "multi_thread")]
async fn a08_what_a_component_hands_over_costs_the_host_sixteen_mebibytes_at_most() {
    if !alone("a08_what_a_component_hands_over_costs_the_host_sixteen_mebibytes_at_most") {
        return;
    }
    // 100 MiB that the component never touched, as one line for its log.
    let line = r#"(component
        (import "countersign:tool/context@0.1.0" (instance $context
            (type $level (enum "debug" "info" "warn" "error"))
            (export "level" (type $l (eq $level)))
            (export "log" (func (param "level" $l) (param "text" string)))))
        (core module $room (memory (export "memory") 1601))
        (core instance $room (instantiate $room))
        (core func $log (canon lower (func $context "log") (memory (core memory $room "memory"))))
        (core module $m
            (import "" "log" (func $log (param i32 i32 i32)))
            (func (export "run") (call $log (i32.const 0) (i32.const 0) (i32.const 104857600))))
        (core instance $i (instantiate $m (with "" (instance (export "log" (func $log))))))
        (func (export "run") (canon lift (core func $i "run"))))"#;
    let large = RunLimits { memory: 128 * MIB, ..LIMITS };
    let mut cases = vec![(Ready::new(line).unwrap(), large, "host_call_bytes")];
    for (name, limit) in [("a08-a-million-strings", "host_call_bytes"), ("a08-random", "random")] {
        cases.push((Ready::new(&text(name)).unwrap(), LIMITS, limit));
    }
    for (ready, limits, expected) in &cases {
        assert_eq!(limit(ready.run(*limits).await), *expected);
    }
    let before = forget_the_most();
    for (ready, limits, expected) in &cases {
        assert_eq!(limit(ready.run(*limits).await), *expected);
        assert!(most_since(before) < 16 * MIB, "{expected}: {}", most_since(before));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a09_as_many_header_lists_as_there_may_be_at_their_limit_cost_thirty_two_mebibytes_at_most() {
    if !alone("a09_as_many_header_lists_as_there_may_be_at_their_limit_cost_thirty_two_mebibytes_at_most") {
        return;
    }
    let lists = Ready::new(&text("a09-many-at-the-limit")).unwrap();
    lists.run(SMALL).await.unwrap();
    let before = forget_the_most();
    lists.run(SMALL).await.unwrap();
    let most = most_since(before);
    assert!(most < 32 * MIB, "{most}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a10_a_thousand_rounds_of_what_is_never_dropped_leave_nothing_behind() {
    if !alone("a10_a_thousand_rounds_of_what_is_never_dropped_leave_nothing_behind") {
        return;
    }
    let all: Vec<Ready> = row("a10-").iter().map(|name| Ready::new(&text(name)).unwrap()).collect();
    let round = async |n: usize| {
        for _ in 0..n {
            for ready in &all {
                assert!(ready.run(SMALL).await.is_err());
            }
        }
    };
    round(50).await;
    let before = resident("VmRSS");
    round(500).await;
    let half = resident("VmRSS");
    round(500).await;
    let after = resident("VmRSS");
    assert!(after.saturating_sub(before) < 8 * MIB, "{before} {half} {after}");
    assert!(after.saturating_sub(half) < 4 * MIB, "it still grows: {before} {half} {after}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a11_a12_ten_million_writes_and_a_gibibyte_of_output_cost_eight_mebibytes_at_most() {
    if !alone("a11_a12_ten_million_writes_and_a_gibibyte_of_output_cost_eight_mebibytes_at_most") {
        return;
    }
    // As the ones in the corpus, which stop where they are told to; these go on for ten million
    // writes and a GiB.
    let on = |name: &str| {
        let on = text(name).replace("(if (i32.load8_u (i32.const 32)) (then (return)))", "");
        on.replace(
            "(i32.lt_u (local.get $n) (i32.const 1024))",
            "(i32.lt_u (local.get $n) (i32.const 16384))",
        )
    };
    for name in ["a11-empty-writes", "a11-tiny-writes", "a12-flood"] {
        let ready = Ready::new(&on(name)).unwrap();
        let few = RunLimits { cpu: std::time::Duration::from_millis(50), ..LIMITS };
        let _ = ready.run(few).await;
        let before = forget_the_most();
        // To its end, or to the end of its time: it does not matter here.
        let _ = ready.run(RunLimits { cpu: std::time::Duration::from_secs(20), ..LIMITS }).await;
        assert!(most_since(before) < 8 * MIB, "{name}: {}", most_since(before));
    }
}
