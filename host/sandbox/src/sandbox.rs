//! The room's face: take a component, look at it, run it.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use countersign_domain::effect::EffectRecord;
use countersign_domain::id::{ComponentDigest, Digest};
use countersign_domain::run::{Call, Ended, RunLimits, RunReport};
use countersign_domain::tool::{Inspection, Preview};
use wasmtime::Engine;
use wasmtime::component::{Component, Linker};

use crate::admit::{self, Admitted};
use crate::bindings::reconciling::ReconcilingFacePre;
use crate::bindings::tool::FacePre;
use crate::cache::Cache;
use crate::compile;
use crate::config::SandboxConfig;
use crate::effect_gate::EffectGate;
use crate::engine::{self, Ticker};
use crate::error::SandboxError;
use crate::reconcile::{self, ReconcileReport, Verdict};
use crate::run;
use crate::state::{Setting, State};
use crate::{linker, manifest};

/// The interface that makes a component a tool.
const TOOL: &str = "countersign:tool/tool@0.1.0";
/// The interface of a tool that can say what became of a send.
const RECONCILER: &str = "countersign:tool/reconciler@0.1.0";

/// What `describe` gets. It answers from constants; interpreters need some
/// memory to start.
const DESCRIBE: RunLimits = RunLimits {
    memory: 128 << 20,
    cpu: Duration::from_secs(1),
    wall: Duration::from_secs(5),
    result: 256 << 10,
    log: 4 << 10,
    request_body: 0,
};
/// The running time of a preview. Nothing in one can wait: time is virtual and
/// every request is denied.
const PREVIEW: Duration = Duration::from_millis(100);
/// A preview that is not over by then, for want of a processor, is given up.
const PREVIEW_WALL: Duration = Duration::from_secs(1);

/// Runs components. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Sandbox(Arc<Inner>);

struct Inner {
    engine: Engine,
    linker: Linker<State>,
    cache: Option<Cache>,
    max_component_bytes: u64,
    /// Ready to instantiate, for as long as the host runs.
    tools: RwLock<HashMap<ComponentDigest, Arc<Tool>>>,
    /// Held while something is compiled: one at a time, it takes all cores.
    compiling: tokio::sync::Mutex<()>,
    _ticker: Ticker,
}

/// A linked component.
struct Tool {
    face: FacePre<State>,
    reconciling: Option<ReconcilingFacePre<State>>,
}

/// Where a component's code came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loaded {
    /// It was in memory.
    Already,
    /// Its compiled form was on disk, written by this host.
    FromCache,
    /// It was compiled.
    Compiled,
}

impl Sandbox {
    /// Starts the engine and its clock thread, and opens the cache.
    ///
    /// # Errors
    /// [`SandboxError::Engine`], [`SandboxError::CacheFolder`].
    pub fn new(config: SandboxConfig) -> Result<Sandbox, SandboxError> {
        let engine = engine::engine(&config)?;
        let linker = linker::linker(&engine).map_err(|e| SandboxError::Engine(format!("{e:#}")))?;
        let cache = match &config.cache_dir {
            Some(dir) => Some(Cache::open(dir, config.cache_key, &engine)?),
            None => None,
        };
        Ok(Sandbox(Arc::new(Inner {
            _ticker: Ticker::start(&engine, config.epoch_tick)?,
            linker,
            cache,
            max_component_bytes: config.max_component_bytes,
            tools: RwLock::default(),
            compiling: tokio::sync::Mutex::default(),
            engine,
        })))
    }

    /// Says what a component is, before anybody decides to install it: checks the
    /// bytes, compiles them, and runs `describe` with nothing granted. The
    /// component is loaded afterwards.
    ///
    /// # Errors
    /// [`SandboxError::Refused`] names what is refused, an import, a language
    /// feature or a part of the manifest. [`SandboxError::Busy`] if there is no
    /// room to run `describe`.
    pub async fn inspect(&self, bytes: Arc<[u8]>) -> Result<Inspection, SandboxError> {
        let max = self.0.max_component_bytes;
        let (digest, admitted) = {
            let bytes = bytes.clone();
            // Reading 64 MiB takes a second; the runtime's threads have others to serve.
            blocking(move || {
                let admitted = admit::admit(&bytes, max)?;
                has_tool(&admitted)?;
                Ok((ComponentDigest(Digest::of(&bytes)), admitted))
            })
            .await?
        };
        let size = bytes.len() as u64;
        self.load(digest, bytes).await?;
        let manifest = self.describe(digest).await?;
        Ok(Inspection {
            digest,
            size,
            warnings: manifest::warnings(&manifest, &admitted.imports),
            reconciles: admitted.exports.iter().any(|e| e == RECONCILER),
            imports: admitted.imports,
            exports: admitted.exports,
            manifest,
        })
    }

    async fn describe(
        &self,
        digest: ComponentDigest,
    ) -> Result<countersign_domain::tool::Manifest, SandboxError> {
        let tool =
            self.tool(digest).map_err(|_| SandboxError::Busy("the component was unloaded".to_owned()))?;
        let setting = Setting::bare(DESCRIBE);
        let said = run::run(&self.0.engine, &setting, async |store| {
            let face = tool.face.instantiate_async(&mut *store).await?;
            face.countersign_tool_tool().call_describe(store).await
        })
        .await;
        match said {
            Ok(said) => manifest::manifest(said),
            Err(Ended::Unavailable(why)) => Err(SandboxError::Busy(why)),
            Err(Ended::Trapped { why, .. }) => {
                Err(SandboxError::refused("`describe`", format!("it failed: {why}")))
            }
            // No gate is there to stop it, and it returns no failure.
            Err(other) => Err(SandboxError::refused("`describe`", format!("it ended oddly: {other:?}"))),
        }
    }

    /// Makes a component ready to run. `bytes` must have the SHA-256 `digest`: it
    /// is computed here, over the bytes that go to the compiler, each time.
    ///
    /// # Errors
    /// [`SandboxError::WrongBytes`] before anything else is done with them;
    /// [`SandboxError::Refused`] as for [`Sandbox::inspect`].
    pub async fn load(&self, digest: ComponentDigest, bytes: Arc<[u8]>) -> Result<Loaded, SandboxError> {
        if self.is_loaded(digest) {
            return Ok(Loaded::Already);
        }
        let _one_at_a_time = self.0.compiling.lock().await;
        // Somebody else may have loaded it while we waited.
        if self.is_loaded(digest) {
            return Ok(Loaded::Already);
        }
        let inner = self.0.clone();
        blocking(move || {
            let found = ComponentDigest(Digest::of(&bytes));
            if found != digest {
                return Err(SandboxError::WrongBytes { expected: digest, found });
            }
            let cached = inner.cache.as_ref().and_then(|cache| cache.load(&inner.engine, digest));
            let (component, loaded) = match cached {
                Some(component) => (component, Loaded::FromCache),
                None => {
                    has_tool(&admit::admit(&bytes, inner.max_component_bytes)?)?;
                    let component = compile::compile(&inner.engine, &bytes)?;
                    if let Some(cache) = &inner.cache {
                        cache.store(digest, &component);
                    }
                    (component, Loaded::Compiled)
                }
            };
            let tool = Arc::new(link(&inner, &component)?);
            inner.tools.write().unwrap_or_else(PoisonError::into_inner).insert(digest, tool);
            Ok(loaded)
        })
        .await
    }

    /// Whether a component is ready to run.
    pub fn is_loaded(&self, digest: ComponentDigest) -> bool {
        self.0.tools.read().unwrap_or_else(PoisonError::into_inner).contains_key(&digest)
    }

    fn tool(&self, digest: ComponentDigest) -> Result<Arc<Tool>, Ended> {
        let tools = self.0.tools.read().unwrap_or_else(PoisonError::into_inner);
        tools
            .get(&digest)
            .cloned()
            .ok_or_else(|| Ended::Unavailable(format!("component {digest} is not loaded")))
    }

    /// The tool's own words about a call. It can reach nothing: every request is
    /// denied. It has 100 ms of running time.
    ///
    /// # Errors
    /// How it ended without a preview: `Failed` with the tool's failure,
    /// `Trapped`, or `Unavailable`.
    pub async fn preview(&self, call: Call) -> Result<Preview, Ended> {
        let tool = self.tool(call.component)?;
        let mut limits = call.limits;
        limits.cpu = limits.cpu.min(PREVIEW);
        limits.wall = limits.wall.min(PREVIEW_WALL);
        let setting = Setting::of(&call, limits, None);
        let arguments = call.arguments.into_string();
        let said = run::run(&self.0.engine, &setting, async |store| {
            let face = tool.face.instantiate_async(&mut *store).await?;
            face.countersign_tool_tool().call_preview(store, &arguments).await
        })
        .await?;
        match said {
            Ok(said) => manifest::preview(said)
                .map_err(|why| Ended::Failed(countersign_domain::run::ToolFailure::Broken(why))),
            Err(failure) => Err(Ended::Failed(run::failure(failure))),
        }
    }

    /// Runs a call to its end. What it asks for goes through `gate`, one effect
    /// at a time. Returns when the gate has answered everything that it was
    /// given, even if the component was gone before.
    ///
    /// A result is JSON in canonical form and within its limit; whether it fits
    /// the tool's schema is not checked here.
    pub async fn invoke(&self, call: Call, gate: Arc<dyn EffectGate>) -> RunReport {
        let tool = match self.tool(call.component) {
            Ok(tool) => tool,
            Err(ended) => return RunReport { ended, log: Vec::new() },
        };
        let setting = Setting::of(&call, call.limits, Some(gate));
        let arguments = call.arguments.into_string();
        let said = run::run(&self.0.engine, &setting, async |store| {
            let face = tool.face.instantiate_async(&mut *store).await?;
            face.countersign_tool_tool().call_invoke(store, &arguments).await
        })
        .await;
        let ended = match said {
            Ok(said) => run::result(said, &setting.limits),
            Err(ended) => ended,
        };
        RunReport { ended, log: setting.output.take() }
    }

    /// Asks the tool what became of one of its effects. The reads that it makes
    /// go through `gate`, which lets out nothing else.
    ///
    /// A tool that does not export the reconciler gives `Unavailable`.
    pub async fn reconcile(
        &self,
        call: Call,
        effect: &EffectRecord,
        gate: Arc<dyn EffectGate>,
    ) -> ReconcileReport {
        let tool = match self.tool(call.component) {
            Ok(tool) => tool,
            Err(ended) => return ReconcileReport { verdict: Err(ended), log: Vec::new() },
        };
        let Some(reconciling) = &tool.reconciling else {
            let ended = Ended::Unavailable("the tool does not export countersign:tool/reconciler".to_owned());
            return ReconcileReport { verdict: Err(ended), log: Vec::new() };
        };
        let setting = Setting::of(&call, call.limits, Some(gate));
        let recorded = reconcile::recorded(effect);
        let arguments = call.arguments.into_string();
        let verdict: Result<Verdict, Ended> = run::run(&self.0.engine, &setting, async |store| {
            let face = reconciling.instantiate_async(&mut *store).await?;
            let reconciler = face.countersign_tool_reconciler();
            reconciler.call_reconcile(store, &arguments, &recorded).await
        })
        .await
        .map(reconcile::verdict);
        ReconcileReport { verdict, log: setting.output.take() }
    }
}

fn has_tool(admitted: &Admitted) -> Result<(), SandboxError> {
    if admitted.exports.iter().any(|e| e == TOOL) {
        return Ok(());
    }
    let exports = match admitted.exports.as_slice() {
        [] => "nothing".to_owned(),
        names => format!("`{}`", names.join("`, `")),
    };
    Err(SandboxError::refused(
        format!("export `{TOOL}`"),
        format!(
            "it is missing; the component exports {exports}. A tool exports `describe`, `preview` and `invoke` in \
             that interface; components of plain functions are not taken by this version"
        ),
    ))
}

fn link(inner: &Inner, component: &Component) -> Result<Tool, SandboxError> {
    let pre = inner.linker.instantiate_pre(component).map_err(|e| {
        SandboxError::refused("an import", format!("it does not fit what the host has: {e:#}"))
    })?;
    let misfit = |what: &'static str| {
        move |e: wasmtime::Error| {
            SandboxError::refused(format!("export `{what}`"), format!("it does not fit the interface: {e:#}"))
        }
    };
    let reconciling = match component.get_export_index(None, RECONCILER) {
        Some(_) => Some(ReconcilingFacePre::new(pre.clone()).map_err(misfit(RECONCILER))?),
        None => None,
    };
    let face = FacePre::new(pre).map_err(misfit(TOOL))?;
    Ok(Tool { face, reconciling })
}

/// Runs something slow beside the runtime's threads.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SandboxError> + Send + 'static,
) -> Result<T, SandboxError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        // Reading and compiling are the only work, so the bytes are to blame.
        Err(_) => Err(SandboxError::refused("the component", "the compiler failed on it")),
    }
}
