//! What limits, languages and waiting cost.
//!
//! `cargo bench -p countersign-sandbox --features bench --bench limits` prints a table each: a fresh
//! call with all limits on, and with none (`-- only-limits` ends there); installing, loading and
//! calling a tool in Rust, JavaScript and Python (the last two from `COUNTERSIGN_GUESTS`, see
//! `guest-examples/build`); resident memory of calls that wait for an answer. In this process: what
//! guest processes add is in `fresh_call`.

mod common;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use countersign_domain::effect::{Answer, Effect, Passage};
use countersign_domain::id::{ComponentDigest, Digest};
use countersign_domain::run::Ended;
use countersign_sandbox::{EffectGate, Loaded, Sandbox, SandboxConfig};

use common::{STARTED, call};

/// Answers at once, or never.
struct Gate(Option<&'static str>);

#[async_trait]
impl EffectGate for Gate {
    async fn submit(&self, _: Effect) -> Passage {
        match self.0 {
            Some(body) => {
                let answer = Answer { status: 200, headers: Vec::new(), body: body.as_bytes().to_vec() };
                Passage::Answered { answer, at: STARTED }
            }
            None => std::future::pending().await,
        }
    }
}

fn bytes(name: &str) -> Option<Arc<[u8]>> {
    let kept = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../guest-examples/prebuilt"));
    #[expect(clippy::disallowed_methods, reason = "how a benchmark is told anything")]
    let built = std::env::var_os("COUNTERSIGN_GUESTS").map(PathBuf::from);
    let folders = built.into_iter().chain([kept]);
    folders
        .map(|folder| folder.join(format!("{name}.wasm")))
        .find_map(|path| std::fs::read(path).ok())
        .map(Into::into)
}

fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4_096
}

fn digest(bytes: &[u8]) -> ComponentDigest {
    ComponentDigest(Digest::of(bytes))
}

/// The middle and the last hundredth, microseconds.
fn spread(mut times: Vec<Duration>) -> (f64, f64) {
    times.sort();
    let at = |share: usize| times[(times.len() - 1) * share / 100].as_secs_f64() * 1e6;
    (at(50), at(99))
}

fn main() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        limits().await;
        // The rest takes minutes.
        if std::env::args().any(|argument| argument == "only-limits") {
            return;
        }
        languages().await;
        waiting().await;
    });
}

const CALLS: usize = 10_000;

async fn limits() {
    let probe = bytes("probe").expect("the probe");
    let config = SandboxConfig::default();
    let sandboxes = [
        ("all limits on", Sandbox::new(config.clone()).expect("the engine starts")),
        #[cfg(feature = "bench")]
        ("none", Sandbox::without_limits(&config).expect("the engine starts")),
    ];
    for (_, sandbox) in &sandboxes {
        sandbox.load(digest(&probe), probe.clone()).await.expect("it loads");
    }
    let gate: Arc<dyn EffectGate> = Arc::new(Gate(Some("")));
    println!("\nFresh calls of the probe, {CALLS} each, one of each kind in turn\n");
    println!("| it | limits | p50 µs | p99 µs |\n|---|---|---|---|");
    let cases = [
        ("does nothing", r#"{"mode":"no-effect"}"#),
        ("looks through 256 KiB of fresh memory", r#"{"mode":"scan","text":"canary","n":4}"#),
    ];
    for (what, arguments) in cases {
        let call = call(digest(&probe), arguments);
        let mut times = vec![Vec::with_capacity(CALLS); sandboxes.len()];
        // In turn, so that whatever else goes on here goes on for all.
        for n in 0..CALLS * sandboxes.len() {
            let kind = n % sandboxes.len();
            let (call, gate) = (call.clone(), gate.clone());
            let begun = Instant::now();
            let report = sandboxes[kind].1.invoke(call, gate).await;
            times[kind].push(begun.elapsed());
            assert!(matches!(report.ended, Ended::Returned(_)), "{report:?}");
        }
        for ((limits, _), times) in sandboxes.iter().zip(times) {
            let (p50, p99) = spread(times);
            println!("| {what} | {limits} | {p50:.1} | {p99:.1} |");
        }
    }
}

async fn languages() {
    println!("\nTools in three languages\n");
    println!(
        "| tool | MB | install s | load from the cache ms | fresh call p50 ms | p99 ms |\n|---|---|---|---|---|---|"
    );
    let refund = r#"{"amount":1250,"currency":"eur","payment_intent":"pi_1"}"#;
    let ticket = r#"{"project":"billing","title":"Charged twice"}"#;
    let rate = r#"{"amount":1250,"currency":"EUR","from":"a","to":"b"}"#;
    for (name, language, arguments, answer) in [
        ("refund", "Rust", refund, r#"{"id":"re_1","status":"succeeded","amount":1250,"currency":"eur"}"#),
        ("issue-ticket", "JavaScript", ticket, r#"{"number":1}"#),
        ("exchange-rate", "Python", rate, r#"{"rate":1,"fee":37}"#),
    ] {
        let Some(bytes) = bytes(name) else {
            println!("| {name} ({language}) | LEFT OUT: it was not built | | | | |");
            continue;
        };
        let folder = tempfile::tempdir().expect("a folder");
        let config =
            SandboxConfig { cache_dir: Some(folder.path().join("cache")), ..SandboxConfig::default() };
        let begun = Instant::now();
        let first = Sandbox::new(config.clone()).expect("the engine starts");
        let started = begun.elapsed();
        first.inspect(bytes.clone()).await.expect("it installs");
        let installed = begun.elapsed() - started;
        drop(first);
        let sandbox = Sandbox::new(config).expect("the engine starts");
        let begun = Instant::now();
        assert_eq!(sandbox.load(digest(&bytes), bytes.clone()).await.expect("it loads"), Loaded::FromCache);
        let loaded = begun.elapsed();
        let call = call(digest(&bytes), arguments);
        let gate: Arc<dyn EffectGate> = Arc::new(Gate(Some(answer)));
        let mut times = Vec::new();
        for _ in 0..200 {
            let begun = Instant::now();
            let report = sandbox.invoke(call.clone(), gate.clone()).await;
            times.push(begun.elapsed());
            assert!(matches!(report.ended, Ended::Returned(_)), "{report:?}");
        }
        let (p50, p99) = spread(times);
        println!(
            "| {name} ({language}) | {:.1} | {:.2} | {:.1} | {:.2} | {:.2} |",
            bytes.len() as f64 / 1e6,
            installed.as_secs_f64(),
            loaded.as_secs_f64() * 1e3,
            p50 / 1e3,
            p99 / 1e3,
        );
    }
}

async fn waiting() {
    println!("\nResident memory of calls that wait for an answer\n");
    println!("| tool | waiting | MiB more | KiB each |\n|---|---|---|---|");
    let ticket = r#"{"project":"billing","title":"Charged twice"}"#;
    let refund = r#"{"amount":1250,"currency":"eur","payment_intent":"pi_1"}"#;
    let rate = r#"{"amount":1250,"currency":"EUR","from":"a","to":"b"}"#;
    for (name, arguments, many) in
        [("refund", refund, 1_000), ("issue-ticket", ticket, 50), ("exchange-rate", rate, 50)]
    {
        let Some(bytes) = bytes(name) else { continue };
        let config = SandboxConfig { max_runs: 1_100, ..SandboxConfig::default() };
        let sandbox = Sandbox::new(config).expect("the engine starts");
        sandbox.load(digest(&bytes), bytes.clone()).await.expect("it loads");
        let call = call(digest(&bytes), arguments);
        let gate: Arc<dyn EffectGate> = Arc::new(Gate(None));
        let before = resident();
        let calls: Vec<_> = (0..many)
            .map(|_| {
                let (sandbox, call, gate) = (sandbox.clone(), call.clone(), gate.clone());
                tokio::spawn(async move { sandbox.invoke(call, gate).await })
            })
            .collect();
        // Until nobody needs more: a second in which it stays as it is.
        let mut last = (resident(), Instant::now());
        while last.1.elapsed() < Duration::from_secs(1) {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let now = resident();
            if now.abs_diff(last.0) > 256 << 10 {
                last = (now, Instant::now());
            }
        }
        let more = resident().saturating_sub(before) as f64;
        println!(
            "| {name} | {many} | {:.1} | {:.0} |",
            more / f64::from(1 << 20),
            more / 1_024.0 / f64::from(many)
        );
        calls.iter().for_each(tokio::task::JoinHandle::abort);
    }
}
