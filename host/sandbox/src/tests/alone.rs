//! What is measured as memory of the process, each in a process of its own: this test binary
//! started again for the one test.

use std::process::Command;
use std::time::Duration;

use countersign_domain::run::{Ended, RunLimits};
use serde_json::json;

use super::corpus::{Ready, SMALL, row, text};
use super::made;
use super::rig::{Gate, LIMITS, call_of, digest, in_processes, long, returned, told_to_use_processes};
use crate::{Sandbox, SandboxConfig};

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
    // A million empty strings, for a function that this host does not have but could.
    let strings = r#"(component
        (import "strings:strings/strings@1.0.0" (instance $it
            (export "take" (func (param "them" (list string))))))
        (core module $room (memory (export "memory") 128))
        (core instance $room (instantiate $room))
        (core func $take (canon lower (func $it "take") (memory (core memory $room "memory"))))
        (core module $m
            (import "" "take" (func $take (param i32 i32)))
            (func (export "run") (call $take (i32.const 0) (i32.const 1000000))))
        (core instance $i (instantiate $m (with "" (instance (export "take" (func $take))))))
        (func (export "run") (canon lift (core func $i "run"))))"#;
    let strings = Ready::with(strings, |linker| {
        let take = |_: wasmtime::StoreContextMut<'_, _>, (them,): (Vec<String>,)| {
            assert!(them.len() < 1_000_000);
            Ok(())
        };
        linker.instance("strings:strings/strings@1.0.0").unwrap().func_wrap("take", take).unwrap();
    });
    let large = RunLimits { memory: 128 * MIB, ..LIMITS };
    let mut cases = vec![
        (Ready::new(line).unwrap(), large, "host_call_bytes"),
        (strings.unwrap_or_else(|e| panic!("{e:?}")), LIMITS, "host_call_bytes"),
    ];
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
async fn a09_five_hundred_and_twelve_header_lists_at_their_limit_cost_thirty_two_mebibytes_at_most() {
    if !alone("a09_five_hundred_and_twelve_header_lists_at_their_limit_cost_thirty_two_mebibytes_at_most") {
        return;
    }
    let full = text("a09-many-at-the-limit");
    let lists = Ready::new(&full).unwrap();
    lists.run(SMALL).await.unwrap();
    let before = forget_the_most();
    lists.run(SMALL).await.unwrap();
    let most = most_since(before);
    assert!(most < 32 * MIB, "{most}");
    // They are as many as there may be, and as full: one more, or one byte more, is too much.
    let one_more = full.replace("(i32.const 512))))))", "(i32.const 513))))))");
    let a_byte_more = full.replace("(i32.const 791)", "(i32.const 792)");
    for (text, limited) in [(one_more, "resources"), (a_byte_more, "fields")] {
        assert_ne!(text, full);
        assert_eq!(limit(Ready::new(&text).unwrap().run(SMALL).await), limited);
    }
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
    // writes, a million of one byte, and a GiB.
    let on = |name: &str| {
        let on = text(name).replace("(if (i32.load8_u (i32.const 32)) (then (return)))", "");
        let on = on.replace("(i32.const 100000))", "(i32.const 10000000))");
        on.replace(
            "(i32.lt_u (local.get $n) (i32.const 1024))",
            "(i32.lt_u (local.get $n) (i32.const 16384))",
        )
    };
    let to_stderr =
        |text: String| text.replace("cli/stdout", "cli/stderr").replace("get-stdout", "get-stderr");
    let one_byte = |text: String| {
        let one = text.replace("(i32.const 512) (i32.const 0)", "(i32.const 512) (i32.const 1)");
        one.replace("(i32.const 10000000))", "(i32.const 1000000))")
    };
    // In that, a debug build gets to a million writes or two; to the end in the long form.
    let cpu = Duration::from_secs(if long() { 600 } else { 4 });
    let cases = [
        ("nothing to stdout", on("a11-empty-writes")),
        ("nothing to stderr", to_stderr(on("a11-empty-writes"))),
        ("nothing to a body", on("a11-empty-body-writes")),
        ("nothing to a body, waiting", on("a11-body-writes-that-wait")),
        ("a byte to stdout", on("a11-tiny-writes")),
        ("a byte to stderr", to_stderr(on("a11-tiny-writes"))),
        ("a byte to a body, waiting", one_byte(on("a11-body-writes-that-wait"))),
        ("a GiB to stdout", on("a12-flood")),
        ("a GiB to stderr", to_stderr(on("a12-flood"))),
    ];
    for (what, text) in cases {
        let ready = Ready::new(&text).unwrap();
        let few = RunLimits { cpu: Duration::from_millis(50), ..LIMITS };
        let _ = ready.run(few).await;
        let before = forget_the_most();
        // To its end, or to the end of its time: it does not matter here.
        let _ = ready.run(RunLimits { cpu, wall: cpu, ..LIMITS }).await;
        assert!(most_since(before) < 8 * MIB, "{what}: {}", most_since(before));
    }
}

/// A GiB is printed by a tool, in a sandbox as a host has it: in the host's own process, or in a
/// guest process. Gives the most that is kept of a stream.
async fn flood(sandbox: Sandbox) -> usize {
    let bytes = made::prints_a_gibibyte();
    sandbox.load(digest(&bytes), bytes.clone()).await.unwrap();
    let mut call = call_of(digest(&bytes), json!({}));
    call.limits.cpu = Duration::from_secs(1_800);
    call.limits.wall = Duration::from_secs(1_800);
    let report = sandbox.invoke(call, Gate::yes()).await;
    assert_eq!(returned(&report), json!(0));
    let of = |stream: &str| {
        let lines: Vec<&String> = report.log.iter().filter(|line| line.starts_with(stream)).collect();
        assert!(lines.last().unwrap().contains("truncated"), "{stream}");
        assert_eq!(lines.iter().filter(|line| line.contains("truncated")).count(), 1, "{stream}");
        lines.iter().map(|line| line.len()).sum::<usize>()
    };
    of("[stdout]").max(of("[stderr]"))
}

/// Where the one that is started again says how much was kept: it has nothing else to say it with.
const KEPT: &str = "COUNTERSIGN_TEST_KEPT";
/// And where it runs the tool.
const WHERE: &str = "COUNTERSIGN_TEST_WHERE";

#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::disallowed_methods, reason = "how a test binary is told anything")]
async fn a12_a_gibibyte_leaves_less_than_128_kib_also_where_the_host_has_no_standard_streams() {
    if let Some(kept) = std::env::var_os(KEPT) {
        let sandbox = match std::env::var(WHERE).as_deref() {
            Ok("here") => Sandbox::new(SandboxConfig::default()).unwrap(),
            _ => in_processes(),
        };
        return std::fs::write(kept, flood(sandbox).await.to_string()).unwrap();
    }
    if told_to_use_processes() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (log, kept) = (folder.path().join("log"), folder.path().join("kept"));
    let (some, none) = (">\"$LOG\" 2>&1", "<&- >&- 2>&-");
    for (streams, place) in [(some, "here"), (none, "elsewhere"), (some, "elsewhere"), (none, "here")]
        .into_iter()
        .take(if long() { 4 } else { 2 })
    {
        let ran = Command::new("sh")
            .args(["-c", &format!("exec \"$0\" \"$@\" {streams}")])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", "--test-threads=1"])
            .arg("tests::alone::a12_a_gibibyte_leaves_less_than_128_kib_also_where_the_host_has_no_standard_streams")
            .envs([(KEPT, &kept), ("LOG", &log)])
            .env(WHERE, place)
            .status()
            .unwrap();
        let log = std::fs::read_to_string(&log).unwrap();
        assert!(ran.success(), "{streams}: {log}");
        let kept: usize = std::fs::read_to_string(&kept).unwrap().parse().unwrap();
        assert!(kept > 32 << 10 && kept < 128 << 10, "{streams}, {place}: {kept} bytes of a stream are kept");
        assert!(log.len() < 128 << 10, "{streams}: the host's own log has {} bytes", log.len());
        std::fs::remove_file(folder.path().join("kept")).unwrap();
    }
}
