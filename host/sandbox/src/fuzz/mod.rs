//! What a fuzzer feeds: plain functions from bytes to nothing, which must come back whatever
//! the bytes are. The fuzzer's own targets (`fuzz/fuzz_targets`) and the test that replays the
//! kept corpus both call these.
//!
//! The host's functions are called by a component that reads its orders from the bytes: which
//! function next, and with which raw arguments (see `families`). So every value of the ABI is
//! tried, also those that no bindings generator writes.
//!
//! And whole programs are made from the bytes, for the engine as it is configured here (see
//! `generated`).

mod families;
mod generated;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use async_trait::async_trait;
use countersign_domain::canonical::{CanonicalJson, Limits};
use countersign_domain::effect::{Answer, Effect, Passage, Refusal};
use countersign_domain::grant::Grant;
use countersign_domain::id::{ActionId, ComponentDigest, Digest};
use countersign_domain::run::{Call, Ended, RunContext, RunLimits};
use countersign_domain::time::Timestamp;
use wasmtime::Engine;
use wasmtime::component::{Component, InstancePre};

use crate::effect_gate::EffectGate;
use crate::engine::{self, Ticker};
use crate::state::{Setting, State};
use crate::{SandboxConfig, admit, linker, run};

/// The names of all targets, as the folders of the corpus are called.
pub const TARGETS: &[&str] =
    &["grant", "canonical", "upload", "http", "io", "surroundings", "modules", "components"];

/// Runs the target of that name.
///
/// # Panics
/// If there is none of that name, or if what the target promises does not hold.
pub fn target(name: &str, data: &[u8]) {
    match name {
        "grant" => grant(data),
        "canonical" => canonical(data),
        "upload" => upload(data),
        "modules" => drop(generated::module(data)),
        "components" => drop(generated::component(data)),
        family => drop(host(family, data)),
    }
}

/// A grant's text: read, or refused with words.
fn grant(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match text.parse::<Grant>() {
        Ok(grant) => {
            let again = text.parse::<Grant>().expect("what was read once is read again");
            assert_eq!(grant.digest(), again.digest());
        }
        Err(refused) => assert!(!refused.to_string().is_empty()),
    }
}

/// JSON: what has a canonical form has one, and it is its own.
fn canonical(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(json) = CanonicalJson::parse(text, Limits::bytes(1 << 20)) {
        let again = CanonicalJson::parse(json.as_str(), Limits::bytes(8 << 20)).expect("it is JSON");
        assert_eq!(json.as_str(), again.as_str());
    }
}

/// A component's bytes: admitted, or refused with words. Nothing is compiled: what the compiler
/// does is in a process of its own.
fn upload(data: &[u8]) {
    if let Err(refused) = admit::admit(data, 1 << 20) {
        assert!(refused.to_string().len() < 64 << 10);
    }
}

struct Bench {
    engine: Engine,
    families: Vec<(&'static str, InstancePre<State>)>,
    runtime: tokio::runtime::Runtime,
    _ticker: Ticker,
}

static BENCH: LazyLock<Bench> = LazyLock::new(|| {
    let config = SandboxConfig { max_runs: 8, ..SandboxConfig::default() };
    let engine = engine::engine(&config).expect("the engine starts");
    let linker = linker::linker(&engine).expect("a linker");
    let families = families::ALL.iter().map(|family| {
        let bytes = wat::parse_str(family.component()).unwrap_or_else(|e| panic!("{}: {e}", family.name));
        admit::admit(&bytes, 1 << 20).unwrap_or_else(|e| panic!("{}: {e}", family.name));
        let component = Component::from_binary(&engine, &bytes).expect("it compiles");
        let pre = linker.instantiate_pre(&component).unwrap_or_else(|e| panic!("{}: {e:?}", family.name));
        (family.name, pre)
    });
    Bench {
        families: families.collect(),
        _ticker: Ticker::start(&engine, config.epoch_tick).expect("a thread"),
        runtime: tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime"),
        engine,
    }
});

/// Answers HTTP by the request's size, refuses everything else; counts.
#[derive(Default)]
struct Answers(AtomicUsize);

#[async_trait]
impl EffectGate for Answers {
    async fn submit(&self, effect: Effect) -> Passage {
        self.0.fetch_add(1, Ordering::Relaxed);
        let at = Timestamp::from_micros(1_790_000_400_000_000);
        match effect {
            Effect::Http(request) if request.body.len() % 3 != 2 => {
                let headers = vec![("x-size".to_owned(), request.body.len().to_string())];
                Passage::Answered { answer: Answer { status: 200, headers, body: request.body }, at }
            }
            _ => Passage::Refused { refusal: Refusal::NotGranted("it is not".to_owned()), at },
        }
    }
}

const LIMITS: RunLimits = RunLimits {
    memory: 4 << 20,
    cpu: Duration::from_secs(1),
    wall: Duration::from_secs(5),
    result: 1 << 10,
    log: 4 << 10,
    request_body: 64 << 10,
};

fn call() -> Call {
    Call {
        component: ComponentDigest(Digest::of(b"")),
        arguments: CanonicalJson::parse("{}", Limits::default()).expect("JSON"),
        context: RunContext {
            tenant: "fuzz".parse().expect("a tenant"),
            action: "0b5ae1f2-6c3d-8e4f-9a0b-1c2d3e4f5a6b".parse::<ActionId>().expect("an id"),
            run: None,
            step: Some("one".to_owned()),
            actor: "fuzz".parse().expect("a principal"),
            started: Timestamp::from_micros(1_790_000_000_000_000),
            seed: [7; 32],
        },
        limits: LIMITS,
        forbidden_headers: Arc::new(["authorization".to_owned()].into()),
    }
}

/// A family of the host's functions, called as the bytes say. It ends within its limits, the
/// gate is asked for what was asked for, and no call fails in the host. Gives how often the gate
/// was asked.
fn host(family: &str, data: &[u8]) -> usize {
    let (_, pre) = BENCH.families.iter().find(|(name, _)| *name == family).expect("a target");
    let data = &data[..data.len().min(4_096)];
    let gate = Arc::new(Answers::default());
    let setting = Setting::of(&call(), LIMITS, Some(gate.clone()));
    let ended = BENCH.runtime.block_on(run::run(&BENCH.engine, &setting, async |store| {
        let instance = pre.instantiate_async(&mut *store).await?;
        let run = instance.get_typed_func::<(&[u8],), ()>(&mut *store, "run")?;
        run.call_async(store, (data,)).await
    }));
    match ended {
        Ok(()) | Err(Ended::Trapped { limit: Some(_), .. }) => {}
        Err(Ended::Trapped { why, limit: None }) => assert!(!why.contains("fault of the host"), "{why}"),
        Err(other) => panic!("{other:?}"),
    }
    let log: usize = setting.output.take().iter().map(String::len).sum();
    assert!(log < 3 * (LIMITS.log as usize + 1_024), "{log}");
    gate.0.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every kept input of every target, and some that no fuzzer has to find.
    #[test]
    fn the_kept_corpus_comes_back_from_every_target() {
        let folder = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus"));
        let mut inputs = 0;
        for name in TARGETS {
            let mut kept: Vec<_> = std::fs::read_dir(folder.join(name))
                .unwrap_or_else(|e| panic!("{name}: {e}"))
                .map(|entry| entry.unwrap().path())
                .collect();
            kept.sort();
            assert!(!kept.is_empty(), "{name} has no corpus");
            for path in kept {
                target(name, &std::fs::read(&path).unwrap());
                inputs += 1;
            }
        }
        assert!(inputs >= 3 * TARGETS.len(), "{inputs}");
    }

    /// From a generator that knows the language: what it makes of its first hundred seeds
    /// (`cargo run --example keep`, in `fuzz`).
    #[test]
    fn a01_programs_made_for_the_engines_configuration_compile_end_and_do_the_same_again() {
        let ran = |name: &str, run: fn(&[u8]) -> bool| {
            let folder = format!("{}/fuzz/corpus/{name}", env!("CARGO_MANIFEST_DIR"));
            let kept = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
            kept.filter(|path| run(&std::fs::read(path).unwrap())).count()
        };
        let (modules, components) =
            (ran("modules", generated::module), ran("components", generated::component));
        assert!(modules >= 50 && components >= 5, "{modules} {components} could be run");
    }

    #[test]
    fn orders_can_make_a_whole_request_and_a_mail() {
        let kept =
            |name: &str| std::fs::read(format!("{}/fuzz/corpus/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap();
        assert_eq!(host("http", &kept("http/a-request")), 1);
        assert_eq!(host("surroundings", &kept("surroundings/mail")), 1);
    }

    /// A fuzzer that knows nothing, for every change: numbers from a small generator, always
    /// the same ones.
    #[test]
    fn a05_to_a11_orders_without_sense_to_every_function_of_the_host_end_within_limits() {
        let mut state = 0x9E37_79B9_7F4A_7C15u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for round in 0..300 {
            let data: Vec<u8> = (0..next() % 600).map(|_| (next() >> 32) as u8).collect();
            for family in families::ALL {
                host(family.name, &data);
            }
            // And each function of each family alone, with what a caller might really say.
            let family = &families::ALL[round % families::ALL.len()];
            let calls: Vec<u8> = (0..40).flat_map(|_| family.plausible(&mut next)).collect();
            host(family.name, &calls);
        }
    }

    #[test]
    fn every_function_that_a_family_lists_is_reached() {
        for family in families::ALL {
            for index in 0..family.functions.len() {
                // Orders that begin with this function: it is called, and traps or not.
                host(family.name, &[index as u8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            }
        }
    }
}
