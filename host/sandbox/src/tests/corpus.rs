//! The hostile components of `guest-examples/hostile`, each with what must come of it beside it:
//! refused at install, ended, or returned where it holds itself to what it was promised.
//!
//! `COUNTERSIGN_BLESS=1` writes the expectations anew, to be read before they are kept.

use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use countersign_domain::run::{Ended, RunLimits};
use wasmtime::Engine;
use wasmtime::component::{Component, Linker};

use super::rig::LIMITS;
use crate::engine::{self, Ticker};
use crate::error::SandboxError;
use crate::state::{Setting, State};
use crate::{SandboxConfig, admit, linker, run};

/// What a component of the corpus may take. Time that a busy machine needs as well.
pub(crate) const SMALL: RunLimits = RunLimits { cpu: Duration::from_secs(30), ..LIMITS };
/// What one gets that is expected to take all of it.
const SHORT: RunLimits = RunLimits { cpu: Duration::from_millis(200), ..LIMITS };

/// An engine with all that components can import, and its clock.
pub(crate) struct Bench {
    engine: Engine,
    linker: Linker<State>,
    _ticker: Ticker,
}

impl Bench {
    /// For so many runs at the same time.
    pub(crate) fn start(max_runs: u32) -> Bench {
        let config = SandboxConfig { max_runs, ..SandboxConfig::default() };
        let engine = engine::engine(&config).unwrap();
        let _ticker = Ticker::start(&engine, config.epoch_tick).unwrap();
        Bench { linker: linker::linker(&engine).unwrap(), engine, _ticker }
    }

    pub(crate) fn ready(&self, wat: &str) -> Result<Ready, SandboxError> {
        let bytes = wat::parse_str(wat).unwrap_or_else(|e| panic!("{e}"));
        admit::admit(&bytes, 64 << 20)?;
        Ok(self.unadmitted(&bytes, &self.linker).unwrap_or_else(|e| panic!("{e:?}")))
    }

    fn unadmitted(&self, bytes: &[u8], linker: &Linker<State>) -> wasmtime::Result<Ready> {
        let component = Component::from_binary(&self.engine, bytes)?;
        Ok(Ready { engine: self.engine.clone(), pre: linker.instantiate_pre(&component)? })
    }
}

/// One for all: an engine with its pool takes its time to start.
static BENCH: LazyLock<Bench> = LazyLock::new(|| Bench::start(64));

/// A component that was admitted and compiled.
#[derive(Clone)]
pub(crate) struct Ready {
    engine: Engine,
    pre: wasmtime::component::InstancePre<State>,
}

impl Ready {
    pub(crate) fn new(wat: &str) -> Result<Ready, SandboxError> {
        BENCH.ready(wat)
    }

    /// Not admitted, because it imports what `more` adds to what can be imported.
    pub(crate) fn with(wat: &str, more: impl FnOnce(&mut Linker<State>)) -> wasmtime::Result<Ready> {
        let mut linker = BENCH.linker.clone();
        more(&mut linker);
        BENCH.unadmitted(&wat::parse_str(wat).unwrap_or_else(|e| panic!("{e}")), &linker)
    }

    /// Instantiates it, and calls the export `run` if there is one.
    pub(crate) async fn run(&self, limits: RunLimits) -> Result<(), Ended> {
        self.run_as(&Setting::bare(limits)).await
    }

    pub(crate) async fn run_as(&self, setting: &Setting) -> Result<(), Ended> {
        run::run(&self.engine, setting, async |store| {
            let instance = self.pre.instantiate_async(&mut *store).await?;
            if let Ok(run) = instance.get_typed_func::<(), ()>(&mut *store, "run") {
                run.call_async(store, ()).await?;
            }
            Ok(())
        })
        .await
    }

    /// Instantiates it, and calls the export `at` with a number.
    pub(crate) async fn run_at(&self, limits: RunLimits, number: u32) -> Result<(), Ended> {
        run::run(&self.engine, &Setting::bare(limits), async |store| {
            let instance = self.pre.instantiate_async(&mut *store).await?;
            let at = instance.get_typed_func::<(u32,), ()>(&mut *store, "at")?;
            at.call_async(store, (number,)).await
        })
        .await
    }
}

fn folder() -> PathBuf {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../guest-examples/hostile").into()
}

/// The text of one component.
pub(crate) fn text(name: &str) -> String {
    let path = folder().join(format!("{name}.wat"));
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The components of a row, by the beginnings of their names.
pub(crate) fn row(prefix: &str) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder())
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.strip_suffix(".wat").map(str::to_owned))
        .filter(|name| name.starts_with(prefix))
        .collect();
    names.sort();
    assert!(!names.is_empty(), "{prefix}");
    names
}

async fn outcome(name: &str) -> String {
    let limits = if name.starts_with("a06-") { SHORT } else { SMALL };
    let ended = match Ready::new(&text(name)) {
        Ok(ready) => ready.run(limits).await,
        Err(refused) => return format!("refused at install\n{refused}\n"),
    };
    match ended {
        Ok(()) => "returned\n".to_owned(),
        Err(Ended::Trapped { why, limit: Some(limit) }) => format!("ended by the limit `{limit}`\n{why}\n"),
        Err(Ended::Trapped { why, limit: None }) => format!("ended\n{why}\n"),
        Err(other) => format!("{other:?}\n"),
    }
}

/// Holds every component of a row to what is expected of it.
#[expect(clippy::disallowed_methods, reason = "how a test binary is told anything")]
async fn hold(prefix: &str) {
    let bless = std::env::var_os("COUNTERSIGN_BLESS").is_some_and(|bless| bless == "1");
    for name in row(prefix) {
        let found = outcome(&name).await;
        let path = folder().join(format!("{name}.expected"));
        if bless {
            std::fs::write(&path, &found).unwrap();
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(found, expected, "{name}");
    }
}

macro_rules! rows {
    ($($test:ident: $prefix:literal,)*) => {
        $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                hold($prefix).await;
            }
        )*

        #[test]
        fn every_hostile_component_is_in_a_row_and_has_its_expectation() {
            let rows = [$($prefix),*];
            for name in row("") {
                assert!(rows.iter().any(|prefix| name.starts_with(prefix)), "{name}");
                assert!(folder().join(format!("{name}.expected")).is_file(), "{name}");
            }
        }
    };
}

rows! {
    a02_language_features_that_no_tool_needs_are_refused_by_name: "a02-",
    a03_memory_of_all_modules_together_ends_at_the_limit: "a03-",
    a04_tables_and_memories_end_at_their_limits: "a04-",
    a05_the_hosts_stack_is_never_the_one_that_overflows: "a05-",
    a06_endless_loops_end_wherever_they_are: "a06-",
    a07_waiting_for_ever_and_for_nothing_ends: "a07-",
    a08_the_host_takes_over_no_more_than_it_allows: "a08-",
    a09_header_lists_have_their_size: "a09-",
    a10_resources_and_handles_are_counted: "a10-",
    a11_writes_of_next_to_nothing_are_counted: "a11-",
    a12_a_flood_of_output_is_no_failure: "a12-",
    a14_components_nest_and_instantiate_within_limits: "a14-",
    a17_what_is_not_granted_does_not_link_or_ends_the_run: "a17-",
}

#[test]
fn a02_the_engine_refuses_what_the_door_refuses() {
    // The door (`admit`) and the engine are configured apart; neither is alone.
    for name in row("a02-") {
        let bytes = wat::parse_str(text(&name)).unwrap();
        assert!(Component::from_binary(&BENCH.engine, &bytes).is_err(), "{name}");
    }
}
