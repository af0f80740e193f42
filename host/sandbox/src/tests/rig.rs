//! One sandbox for all tests, calls with defaults, and a gate that writes down
//! what it is asked.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use countersign_domain::canonical::CanonicalJson;
use countersign_domain::effect::{Answer, Effect, OutboundRequest, Passage};
use countersign_domain::id::{ActionId, ComponentDigest, Digest};
use countersign_domain::run::{Call, Ended, RunContext, RunLimits, RunReport};
use countersign_domain::time::Timestamp;
use serde_json::{Value, json};
use tokio::sync::{OnceCell, Semaphore};

use crate::{EffectGate, Sandbox, SandboxConfig};

/// 2026-09-21T13:20:00Z.
pub(crate) const STARTED: Timestamp = Timestamp::from_micros(1_790_000_400_000_000);

/// The example component of that name.
pub(crate) fn component(name: &str) -> Arc<[u8]> {
    let path = format!("{}/../../guest-examples/prebuilt/{name}.wasm", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}")).into()
}

/// A component that is not kept with the sources, from the folder of those just built. `None`, and
/// said aloud, where there is none; where everything has to be there, that is a failure.
#[expect(clippy::disallowed_methods, reason = "how a test binary is told anything")]
pub(crate) fn component_built(name: &str) -> Option<Arc<[u8]>> {
    let found = std::env::var_os("COUNTERSIGN_GUESTS")
        .and_then(|folder| std::fs::read(std::path::Path::new(&folder).join(format!("{name}.wasm"))).ok());
    if found.is_none() {
        let why = format!("{name}.wasm is not in COUNTERSIGN_GUESTS; `guest-examples/build` makes it");
        let all = std::env::var_os("COUNTERSIGN_TESTS_REQUIRE_ALL").is_some_and(|all| all == "1");
        assert!(!all, "this test may not be skipped here: {why}");
        eprintln!("SKIPPED: {why}");
    }
    found.map(Into::into)
}

pub(crate) fn digest(bytes: &[u8]) -> ComponentDigest {
    ComponentDigest(Digest::of(bytes))
}

/// The sandbox that the tests share, with these components loaded.
pub(crate) async fn sandbox() -> Sandbox {
    static SHARED: OnceCell<Sandbox> = OnceCell::const_new();
    SHARED
        .get_or_init(|| async {
            let sandbox = match told_to_use_processes() {
                true => in_processes(),
                false => Sandbox::new(SandboxConfig::default()).unwrap(),
            };
            for name in ["probe", "refund", "transfer"] {
                let bytes = component(name);
                sandbox.load(digest(&bytes), bytes).await.unwrap();
            }
            sandbox
        })
        .await
        .clone()
}

/// Set, all the room's tests run their components in guest processes.
pub(crate) const PROCESSES: &str = "COUNTERSIGN_TEST_GUESTS_IN_PROCESSES";

/// Whether the tests were told to use them. A test that has its own engine, or its own guest
/// processes, has nothing to add there.
#[expect(clippy::disallowed_methods, reason = "how a test binary is told anything")]
pub(crate) fn told_to_use_processes() -> bool {
    std::env::var_os(PROCESSES).is_some()
}

/// Whether there is time: the same tests, with the numbers that need it.
#[expect(clippy::disallowed_methods, reason = "how a test binary is told anything")]
pub(crate) fn long() -> bool {
    std::env::var_os("COUNTERSIGN_LONG").is_some_and(|long| long == "1")
}

/// A sandbox with guest processes.
pub(crate) fn in_processes() -> Sandbox {
    // Each test has a runtime of its own, and the sandbox outlives it.
    let runtime = Box::leak(Box::new(tokio::runtime::Runtime::new().unwrap()));
    let _on = runtime.enter();
    let guests_in = Some(crate::process::tests::command("guest"));
    Sandbox::new(SandboxConfig { guests_in, ..SandboxConfig::default() }).unwrap()
}

pub(crate) const LIMITS: RunLimits = RunLimits {
    memory: 64 << 20,
    cpu: Duration::from_secs(5),
    wall: Duration::from_secs(60),
    result: 256 << 10,
    log: 64 << 10,
    request_body: 1 << 20,
};

/// A call of an example component.
pub(crate) fn call(name: &str, arguments: Value) -> Call {
    call_of(digest(&component(name)), arguments)
}

/// A call of a component.
pub(crate) fn call_of(component: ComponentDigest, arguments: Value) -> Call {
    Call {
        component,
        arguments: CanonicalJson::of(&arguments).unwrap(),
        context: RunContext {
            tenant: "acme".parse().unwrap(),
            action: "0b5ae1f2-6c3d-8e4f-9a0b-1c2d3e4f5a6b".parse::<ActionId>().unwrap(),
            run: Some("run-1".to_owned()),
            step: None,
            actor: "ada".parse().unwrap(),
            started: STARTED,
            seed: [7; 32],
        },
        limits: LIMITS,
        forbidden_headers: Arc::default(),
    }
}

/// A call of the probe.
pub(crate) fn probe(arguments: Value) -> Call {
    call("probe", arguments)
}

/// Arguments of a mode that calls somebody.
pub(crate) fn mode(mode: &str) -> Value {
    json!({ "mode": mode, "url": "https://api.example/v1/things", "body": "hello" })
}

pub(crate) async fn invoke(call: Call, gate: &Arc<Gate>) -> RunReport {
    sandbox().await.invoke(call, gate.clone()).await
}

/// The result that a run returned.
pub(crate) fn returned(report: &RunReport) -> Value {
    match &report.ended {
        Ended::Returned(json) => json.value(),
        other => panic!("it did not return: {other:?}; {:?}", report.log),
    }
}

/// The limit that a run met.
pub(crate) fn limit(report: &RunReport) -> &'static str {
    match &report.ended {
        Ended::Trapped { limit: Some(limit), .. } => limit,
        other => panic!("it met no limit: {other:?}"),
    }
}

type Decide = dyn Fn(usize, &OutboundRequest) -> Passage + Send + Sync;

/// Writes down, perhaps waits, answers.
pub(crate) struct Gate {
    decide: Box<Decide>,
    pub(crate) seen: Mutex<Vec<OutboundRequest>>,
    pub(crate) recorded: AtomicUsize,
    running: AtomicUsize,
    pub(crate) most_at_once: AtomicUsize,
    /// One permit per answer, where a test wants to hold them back.
    pub(crate) permits: Option<Semaphore>,
    /// Tells the test that a request has arrived.
    pub(crate) arrived: Semaphore,
}

impl Gate {
    fn build(permits: Option<Semaphore>, decide: Box<Decide>) -> Arc<Gate> {
        Arc::new(Gate {
            decide,
            seen: Mutex::default(),
            recorded: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            most_at_once: AtomicUsize::new(0),
            permits,
            arrived: Semaphore::new(0),
        })
    }

    /// Decides by the number of the request, from 0.
    pub(crate) fn new(
        decide: impl Fn(usize, &OutboundRequest) -> Passage + Send + Sync + 'static,
    ) -> Arc<Gate> {
        Gate::build(None, Box::new(decide))
    }

    /// Answers everything with 200 and a small body.
    pub(crate) fn yes() -> Arc<Gate> {
        Gate::new(|n, _| answered(n, 200, "ok"))
    }

    /// As `yes`, but each answer waits for a permit.
    pub(crate) fn held() -> Arc<Gate> {
        Gate::build(Some(Semaphore::new(0)), Box::new(|n, _| answered(n, 200, "ok")))
    }

    pub(crate) fn count(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    pub(crate) fn recorded(&self) -> usize {
        self.recorded.load(Ordering::SeqCst)
    }

    pub(crate) fn request(&self, n: usize) -> OutboundRequest {
        self.seen.lock().unwrap()[n].clone()
    }
}

/// The answer to request `n`, recorded `n + 1` seconds after the start.
pub(crate) fn answered(n: usize, status: u16, body: &str) -> Passage {
    let headers = vec![("content-type".to_owned(), "text/plain".to_owned())];
    Passage::Answered { answer: Answer { status, headers, body: body.into() }, at: at(n) }
}

pub(crate) fn at(n: usize) -> Timestamp {
    STARTED.plus(Duration::from_secs(n as u64 + 1))
}

#[async_trait]
impl EffectGate for Gate {
    async fn submit(&self, effect: Effect) -> Passage {
        let Effect::Http(request) = effect else { panic!("no mail here") };
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_at_once.fetch_max(running, Ordering::SeqCst);
        let n = {
            let mut seen = self.seen.lock().unwrap();
            seen.push(request.clone());
            seen.len() - 1
        };
        self.arrived.add_permits(1);
        if let Some(permits) = &self.permits {
            permits.acquire().await.unwrap().forget();
        }
        tokio::task::yield_now().await;
        let passage = (self.decide)(n, &request);
        self.recorded.fetch_add(1, Ordering::SeqCst);
        self.running.fetch_sub(1, Ordering::SeqCst);
        passage
    }
}
