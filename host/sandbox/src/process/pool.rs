//! Which process a call runs in.
//!
//! A guest process belongs to one tenant from its start to its end. A tenant has
//! up to as many as the operator says (half of the processors by default); the next is
//! started when all it has are busy. There is a most for all tenants together:
//! there, an idle process of somebody else is ended to make room, and only when
//! none is idle does a call run beside another tenant's, in the process with the
//! fewest calls. (The engine keeps them apart there, as it does in any process.)
//!
//! `describe` runs in a process of its own each time: what a component says of
//! itself is what people decide by, and nothing that ran before has a hand in it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use countersign_domain::effect::EffectRecord;
use countersign_domain::id::{ComponentDigest, TenantId};
use countersign_domain::run::{Call, Ended, RunLimits, RunReport};
use countersign_domain::tool::{Manifest, Preview};

use tokio::runtime::Handle;

use super::child::{Child, Lost};
use super::handover::Handover;
use super::spawn::ProcessCommand;
use super::wire::{self, Ask, Said, Start};
use crate::config::SandboxConfig;
use crate::effect_gate::EffectGate;
use crate::error::SandboxError;
use crate::local::{DESCRIBE, preview_limits};
use crate::reconcile::ReconcileReport;

/// Guest processes of all tenants together. Each costs some ten MiB. Chosen;
/// raise it for a host that serves more tenants at the same time.
const MOST: usize = 32;

/// The guest processes of a host, and the code to give them.
pub(crate) struct Pool {
    command: ProcessCommand,
    /// Hears the processes, and makes their effects.
    runtime: Handle,
    per_tenant: usize,
    start: Start,
    children: Mutex<Vec<Arc<Child>>>,
    code: RwLock<HashMap<ComponentDigest, Arc<Handover>>>,
}

impl Pool {
    pub(crate) fn new(config: &SandboxConfig, command: ProcessCommand) -> Result<Pool, SandboxError> {
        let runtime = Handle::try_current()
            .map_err(|e| SandboxError::Engine(format!("guest processes need a runtime to be heard: {e}")))?;
        Ok(Pool {
            command,
            runtime,
            per_tenant: config.guest_processes.clamp(1, MOST),
            start: Start {
                max_runs: config.max_runs,
                max_memory: config.max_memory,
                epoch_tick_micros: u64::try_from(config.epoch_tick.as_micros()).unwrap_or(u64::MAX),
            },
            children: Mutex::default(),
            code: RwLock::default(),
        })
    }

    /// Keeps a compiled component for the processes that will run it.
    pub(crate) fn adopt(&self, component: ComponentDigest, compiled: &[u8]) -> Result<(), SandboxError> {
        let code = Handover::new(compiled)
            .map_err(|e| SandboxError::Busy(format!("the compiled component cannot be kept: {e}")))?;
        self.code.write().unwrap_or_else(PoisonError::into_inner).insert(component, Arc::new(code));
        Ok(())
    }

    pub(crate) fn is_loaded(&self, component: ComponentDigest) -> bool {
        self.code.read().unwrap_or_else(PoisonError::into_inner).contains_key(&component)
    }

    fn code(&self, component: ComponentDigest) -> Result<Arc<Handover>, Ended> {
        let code = self.code.read().unwrap_or_else(PoisonError::into_inner);
        code.get(&component)
            .cloned()
            .ok_or_else(|| Ended::Unavailable(format!("component {component} is not loaded")))
    }

    /// The process for a call of a tenant's.
    fn child(&self, tenant: &TenantId) -> Result<Arc<Child>, Ended> {
        let mut children = self.children.lock().unwrap_or_else(PoisonError::into_inner);
        children.retain(|child| !child.is_lost());
        let theirs = || children.iter().filter(|child| child.owner.as_ref() == Some(tenant));
        let least = theirs().min_by_key(|child| child.busy()).cloned();
        if let Some(child) = &least
            && (child.busy() == 0 || theirs().count() >= self.per_tenant)
        {
            return Ok(child.clone());
        }
        if children.len() >= MOST {
            match children.iter().position(|child| child.busy() == 0) {
                Some(idle) => drop(children.swap_remove(idle)),
                None => {
                    let any = least.or_else(|| children.iter().min_by_key(|child| child.busy()).cloned());
                    return any.ok_or_else(|| Ended::Unavailable("there is no guest process".to_owned()));
                }
            }
        }
        let child = self
            .start(Some(tenant.clone()))
            .map(Arc::new)
            .map_err(|e| Ended::Unavailable(format!("a guest process could not be started: {e}")))?;
        children.push(child.clone());
        Ok(child)
    }

    fn start(&self, owner: Option<TenantId>) -> std::io::Result<Child> {
        Child::start(&self.runtime, &self.command, &self.start, owner)
    }

    pub(crate) async fn describe(&self, component: ComponentDigest) -> Result<Manifest, SandboxError> {
        let code =
            self.code(component).map_err(|_| SandboxError::Busy("the component was unloaded".to_owned()))?;
        let child = self
            .start(None)
            .map_err(|e| SandboxError::Busy(format!("a guest process could not be started: {e}")))?;
        match child.ask(component, &code, Ask::Describe(component), DESCRIBE, None).await {
            Ok(Said::Manifest(said)) => wire::manifest(said),
            Ok(_) => Err(SandboxError::refused("`describe`", "it ended as something else")),
            // Nothing else ran there.
            Err(Lost { why, .. }) => {
                Err(SandboxError::refused("`describe`", format!("the process it ran in is gone: {why}")))
            }
        }
    }

    /// Asks in a process of the tenant's. Whose process dies before it asked for
    /// anything is asked again, once, in another: it was perhaps a neighbour's
    /// fault, or the process was dead already and nobody had noticed.
    async fn ask(
        &self,
        tenant: &TenantId,
        component: ComponentDigest,
        limits: RunLimits,
        gate: Option<&Arc<dyn EffectGate>>,
        ask: impl Fn() -> Ask,
    ) -> Result<Said, Ended> {
        let code = self.code(component)?;
        let mut again = true;
        loop {
            let child = self.child(tenant)?;
            match child.ask(component, &code, ask(), limits, gate.cloned()).await {
                Ok(said) => return Ok(said),
                Err(lost) if lost.asked || !again => return Err(gone(lost)),
                Err(_) => again = false,
            }
        }
    }

    pub(crate) async fn preview(&self, call: Call) -> Result<Preview, Ended> {
        let limits = preview_limits(&call);
        let ask = || Ask::Preview(call.clone().into());
        match self.ask(&call.context.tenant, call.component, limits, None, ask).await? {
            Said::Preview(said) => wire::preview(said, &limits),
            _ => Err(out_of_turn()),
        }
    }

    pub(crate) async fn invoke(&self, call: Call, gate: Arc<dyn EffectGate>) -> RunReport {
        let limits = call.limits;
        let ask = || Ask::Invoke(call.clone().into());
        match self.ask(&call.context.tenant, call.component, limits, Some(&gate), ask).await {
            Ok(Said::Report { end, log }) => {
                RunReport { ended: wire::ended(end, &limits), log: wire::log(log, &limits) }
            }
            Ok(_) => RunReport { ended: out_of_turn(), log: Vec::new() },
            Err(ended) => RunReport { ended, log: Vec::new() },
        }
    }

    pub(crate) async fn reconcile(
        &self,
        call: Call,
        effect: &EffectRecord,
        gate: Arc<dyn EffectGate>,
    ) -> ReconcileReport {
        let limits = call.limits;
        let ask = || Ask::Reconcile(call.clone().into(), Box::new(effect.clone()));
        match self.ask(&call.context.tenant, call.component, limits, Some(&gate), ask).await {
            Ok(Said::Verdict { verdict, log }) => ReconcileReport {
                verdict: verdict.map(Into::into).map_err(|end| wire::ended(end, &limits)),
                log: wire::log(log, &limits),
            },
            Ok(_) => ReconcileReport { verdict: Err(out_of_turn()), log: Vec::new() },
            Err(ended) => ReconcileReport { verdict: Err(ended), log: Vec::new() },
        }
    }
}

/// The process died. Whose fault it was is not known: several calls may have been
/// in it, and the system may have ended it. So the call was not run, and may be.
fn gone(lost: Lost) -> Ended {
    Ended::Unavailable(format!("the process it ran in is gone: {}", lost.why))
}

fn out_of_turn() -> Ended {
    Ended::Unavailable("the process it ran in ended it as another kind of call".to_owned())
}
