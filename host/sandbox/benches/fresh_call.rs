//! What a call costs that shares nothing with the one before: store, limits,
//! instance, call, teardown, and for `refund` one effect through a gate that
//! answers at once.
//!
//! `cargo bench -p countersign-sandbox --bench fresh_call` prints microseconds
//! and the resident memory of the process, first for calls in this process, then
//! for calls in guest processes (this program started again), one caller and
//! several.

mod common;

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use countersign_domain::effect::{Answer, Effect, Passage};
use countersign_domain::id::{ComponentDigest, Digest};
use countersign_domain::run::Ended;
use countersign_sandbox::{EffectGate, ProcessCommand, Sandbox, SandboxConfig};

use common::{STARTED, call};

const CALLS: usize = 20_000;

struct AtOnce;

#[async_trait]
impl EffectGate for AtOnce {
    async fn submit(&self, _: Effect) -> Passage {
        let body = br#"{"id":"re_1","status":"succeeded","amount":1250,"currency":"eur"}"#.to_vec();
        let answer = Answer { status: 200, headers: Vec::new(), body };
        Passage::Answered { answer, at: STARTED }
    }
}

fn resident_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: f64 = status.split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0.0);
    pages * 4_096.0 / f64::from(1 << 20)
}

/// The argument that makes this program a guest process.
const GUEST: &str = "guest-process";

fn main() {
    if std::env::args().nth(1).as_deref() == Some(GUEST) {
        return countersign_sandbox::guest_process().expect("a guest process");
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let _on = runtime.enter();
    let here = Sandbox::new(SandboxConfig::default()).expect("the engine starts");
    println!("in this process; resident with the engine started: {:.0} MiB", resident_mib());
    runtime.block_on(figures(here));
    let guests_in = ProcessCommand {
        program: "/proc/self/exe".into(),
        arguments: vec![GUEST.into()],
        environment: Vec::new(),
    };
    let config = SandboxConfig { guests_in: Some(guests_in), ..SandboxConfig::default() };
    println!("in guest processes");
    runtime.block_on(figures(Sandbox::new(config).expect("the sandbox starts")));
}

/// Callers at the same time, for what a call costs when there is always work.
const CALLERS: usize = 16;

async fn figures(sandbox: Sandbox) {
    let cases = [
        ("probe", r#"{"mode":"no-effect"}"#),
        ("refund", r#"{"amount":1250,"currency":"eur","payment_intent":"pi_1"}"#),
    ];
    for (name, arguments) in cases {
        let path = format!("{}/../../guest-examples/prebuilt/{name}.wasm", env!("CARGO_MANIFEST_DIR"));
        let bytes: Arc<[u8]> = std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}")).into();
        let digest = ComponentDigest(Digest::of(&bytes));
        sandbox.load(digest, bytes).await.expect("the component loads");
        let call = call(digest, arguments);
        let gate = Arc::new(AtOnce);
        let calls = CALLS;
        // On a worker of the runtime, as in the host.
        let mut times = tokio::spawn({
            let (sandbox, call, gate) = (sandbox.clone(), call.clone(), gate.clone());
            async move {
                let mut times = Vec::with_capacity(calls);
                for _ in 0..calls {
                    let (call, gate) = (call.clone(), gate.clone());
                    let started = Instant::now();
                    let report = sandbox.invoke(call, gate).await;
                    times.push(started.elapsed());
                    assert!(matches!(report.ended, Ended::Returned(_)), "{report:?}");
                }
                times
            }
        })
        .await
        .expect("the calls run");
        times.sort();
        let at = |share: usize| times[times.len() * share / 1_000].as_secs_f64() * 1e6;
        println!(
            "{name:8} p50 {:6.1} µs   p99 {:6.1} µs   p99.9 {:6.1} µs   resident {:.0} MiB",
            at(500),
            at(990),
            at(999),
            resident_mib()
        );
        let started = Instant::now();
        let callers: Vec<_> = (0..CALLERS)
            .map(|_| {
                let (sandbox, call, gate) = (sandbox.clone(), call.clone(), gate.clone());
                tokio::spawn(async move {
                    for _ in 0..CALLS / CALLERS {
                        sandbox.invoke(call.clone(), gate.clone()).await;
                    }
                })
            })
            .collect();
        for caller in callers {
            caller.await.expect("a caller");
        }
        println!("         {CALLERS} callers: {:.0} calls/s", CALLS as f64 / started.elapsed().as_secs_f64());
    }
}
