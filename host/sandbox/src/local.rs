//! Components in this process: linked, ready to instantiate, run. The host has
//! one of these where guests run in its own process; otherwise each guest process
//! has one, and the host has none.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use countersign_domain::effect::EffectRecord;
use countersign_domain::id::ComponentDigest;
use countersign_domain::run::{Call, Ended, RunLimits, RunReport, ToolFailure};
use countersign_domain::tool::{Manifest, Preview};
use wasmtime::Engine;
use wasmtime::component::{Component, Linker};

use crate::bindings::reconciling::ReconcilingFacePre;
use crate::bindings::tool::FacePre;
use crate::config::SandboxConfig;
use crate::effect_gate::EffectGate;
use crate::engine::Ticker;
use crate::error::SandboxError;
use crate::reconcile::{self, ReconcileReport, Verdict};
use crate::run;
use crate::state::{Setting, State};
use crate::{linker, manifest};

/// The interface that makes a component a tool.
pub(crate) const TOOL: &str = "countersign:tool/tool@0.1.0";
/// The interface of a tool that can say what became of a send.
pub(crate) const RECONCILER: &str = "countersign:tool/reconciler@0.1.0";

/// What `describe` gets. It answers from constants; interpreters need some
/// memory to start.
pub(crate) const DESCRIBE: RunLimits = RunLimits {
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

/// The limits of a preview of a call.
pub(crate) fn preview_limits(call: &Call) -> RunLimits {
    let limits = call.limits;
    RunLimits { cpu: limits.cpu.min(PREVIEW), wall: limits.wall.min(PREVIEW_WALL), ..limits }
}

/// An engine, and what was linked for it.
pub(crate) struct Local {
    engine: Engine,
    linker: Linker<State>,
    /// Ready to instantiate, for as long as the process runs.
    tools: RwLock<HashMap<ComponentDigest, Arc<Tool>>>,
    _ticker: Ticker,
    #[cfg(feature = "bench")]
    pub(crate) unlimited: bool,
}

/// A linked component.
struct Tool {
    face: FacePre<State>,
    reconciling: Option<ReconcilingFacePre<State>>,
}

impl Local {
    /// Starts the engine's clock thread.
    pub(crate) fn new(engine: Engine, config: &SandboxConfig) -> Result<Local, SandboxError> {
        Ok(Local {
            linker: linker::linker(&engine).map_err(|e| SandboxError::Engine(format!("{e:#}")))?,
            tools: RwLock::default(),
            _ticker: Ticker::start(&engine, config.epoch_tick)?,
            engine,
            #[cfg(feature = "bench")]
            unlimited: false,
        })
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Links a compiled component; it can be run afterwards.
    pub(crate) fn adopt(&self, digest: ComponentDigest, component: &Component) -> Result<(), SandboxError> {
        let tool = Arc::new(link(&self.linker, component)?);
        self.tools.write().unwrap_or_else(PoisonError::into_inner).insert(digest, tool);
        Ok(())
    }

    pub(crate) fn is_loaded(&self, digest: ComponentDigest) -> bool {
        self.tools.read().unwrap_or_else(PoisonError::into_inner).contains_key(&digest)
    }

    fn tool(&self, digest: ComponentDigest) -> Result<Arc<Tool>, Ended> {
        let tools = self.tools.read().unwrap_or_else(PoisonError::into_inner);
        tools
            .get(&digest)
            .cloned()
            .ok_or_else(|| Ended::Unavailable(format!("component {digest} is not loaded")))
    }

    pub(crate) async fn describe(&self, digest: ComponentDigest) -> Result<Manifest, SandboxError> {
        let tool =
            self.tool(digest).map_err(|_| SandboxError::Busy("the component was unloaded".to_owned()))?;
        let setting = Setting::bare(DESCRIBE);
        let said = run::run(&self.engine, &setting, async |store| {
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

    pub(crate) async fn preview(&self, call: Call) -> Result<Preview, Ended> {
        let tool = self.tool(call.component)?;
        let setting = Setting::of(&call, preview_limits(&call), None);
        let arguments = call.arguments.into_string();
        let said = run::run(&self.engine, &setting, async |store| {
            let face = tool.face.instantiate_async(&mut *store).await?;
            face.countersign_tool_tool().call_preview(store, &arguments).await
        })
        .await?;
        match said {
            Ok(said) => manifest::preview(said).map_err(|why| Ended::Failed(ToolFailure::Broken(why))),
            Err(failure) => Err(Ended::Failed(run::failure(failure))),
        }
    }

    pub(crate) async fn invoke(&self, call: Call, gate: Arc<dyn EffectGate>) -> RunReport {
        let tool = match self.tool(call.component) {
            Ok(tool) => tool,
            Err(ended) => return RunReport { ended, log: Vec::new() },
        };
        let setting = Setting::of(&call, call.limits, Some(gate));
        #[cfg(feature = "bench")]
        let setting = Setting { unlimited: self.unlimited, ..setting };
        let arguments = call.arguments.into_string();
        let said = run::run(&self.engine, &setting, async |store| {
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

    pub(crate) async fn reconcile(
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
        let verdict: Result<Verdict, Ended> = run::run(&self.engine, &setting, async |store| {
            let face = reconciling.instantiate_async(&mut *store).await?;
            let reconciler = face.countersign_tool_reconciler();
            reconciler.call_reconcile(store, &arguments, &recorded).await
        })
        .await
        .map(reconcile::verdict);
        ReconcileReport { verdict, log: setting.output.take() }
    }
}

/// Whether a component fits what the host has.
pub(crate) fn fits(engine: &Engine, component: &Component) -> Result<(), SandboxError> {
    let linker = linker::linker(engine).map_err(|e| SandboxError::Engine(format!("{e:#}")))?;
    link(&linker, component).map(drop)
}

fn link(linker: &Linker<State>, component: &Component) -> Result<Tool, SandboxError> {
    let pre = linker.instantiate_pre(component).map_err(|e| {
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
