//! What a store holds: one run's worlds, made for it and gone with it.

use std::sync::Arc;

use countersign_domain::run::{Call, RunContext, RunLimits};
use countersign_domain::time::Timestamp;
use wasmtime::component::ResourceTable;
use wasmtime::{Engine, Store, UpdateDeadline};
use wasmtime_wasi::filesystem::{WasiFilesystemCtx, WasiFilesystemCtxView};
use wasmtime_wasi::sockets::{WasiSocketsCtx, WasiSocketsCtxView};
use wasmtime_wasi_http::WasiHttpCtx;

use crate::clocks::{Chance, VirtualClock};
use crate::effect_gate::EffectGate;
use crate::http::Hooks;
use crate::limits::{self, CpuAccount, Limiter};
use crate::outbox::{InFlight, SharedOutbox};
use crate::output::SharedOutput;

/// The data of a store.
pub(crate) struct State {
    pub(crate) table: ResourceTable,
    pub(crate) outbox: SharedOutbox,
    pub(crate) in_flight: InFlight,
    /// `None`: every request is denied.
    pub(crate) gate: Option<Arc<dyn EffectGate>>,
    pub(crate) clock: Arc<VirtualClock>,
    pub(crate) chance: Chance,
    pub(crate) output: SharedOutput,
    /// `None`: in `describe`.
    pub(crate) context: Option<RunContext>,
    pub(crate) hooks: Hooks,
    pub(crate) http: WasiHttpCtx,
    pub(crate) limiter: Limiter,
    /// Empty and never filled: for resources that nobody can get hold of.
    files: WasiFilesystemCtx,
    sockets: WasiSocketsCtx,
}

impl State {
    pub(crate) fn files(&mut self) -> WasiFilesystemCtxView<'_> {
        WasiFilesystemCtxView { ctx: &mut self.files, table: &mut self.table }
    }

    pub(crate) fn sockets(&mut self) -> WasiSocketsCtxView<'_> {
        WasiSocketsCtxView { ctx: &mut self.sockets, table: &mut self.table }
    }
}

/// What a run is given, and the parts that outlive its store.
pub(crate) struct Setting {
    pub(crate) limits: RunLimits,
    pub(crate) context: Option<RunContext>,
    pub(crate) forbidden_headers: Arc<std::collections::BTreeSet<String>>,
    pub(crate) gate: Option<Arc<dyn EffectGate>>,
    pub(crate) outbox: SharedOutbox,
    pub(crate) in_flight: InFlight,
    pub(crate) output: SharedOutput,
    pub(crate) cpu: Arc<CpuAccount>,
    /// For a benchmark of what the limits cost.
    #[cfg(feature = "bench")]
    pub(crate) unlimited: bool,
}

impl Setting {
    /// For a call of an action.
    pub(crate) fn of(call: &Call, limits: RunLimits, gate: Option<Arc<dyn EffectGate>>) -> Setting {
        Setting::new(limits, Some(call.context.clone()), call.forbidden_headers.clone(), gate)
    }

    /// For `describe`: no action, nothing granted.
    pub(crate) fn bare(limits: RunLimits) -> Setting {
        Setting::new(limits, None, Arc::default(), None)
    }

    fn new(
        limits: RunLimits,
        context: Option<RunContext>,
        forbidden_headers: Arc<std::collections::BTreeSet<String>>,
        gate: Option<Arc<dyn EffectGate>>,
    ) -> Setting {
        Setting {
            context,
            forbidden_headers,
            gate,
            outbox: SharedOutbox::new(limits.request_body),
            in_flight: InFlight::default(),
            output: SharedOutput::new(limits.log),
            cpu: Arc::new(CpuAccount::new(limits.cpu)),
            limits,
            #[cfg(feature = "bench")]
            unlimited: false,
        }
    }

    /// False in one benchmark.
    pub(crate) fn limited(&self) -> bool {
        #[cfg(feature = "bench")]
        if self.unlimited {
            return false;
        }
        true
    }

    /// A store with every limit set.
    pub(crate) fn store(&self, engine: &Engine) -> Store<State> {
        let (started, seed) = match &self.context {
            Some(context) => (context.started, context.seed),
            None => (Timestamp::from_micros(0), [0; 32]),
        };
        let mut table = ResourceTable::new();
        let mut http = WasiHttpCtx::new();
        if self.limited() {
            table.set_max_capacity(limits::RESOURCES);
            http.set_field_size_limit(limits::FIELDS_BYTES);
        }
        let state = State {
            table,
            outbox: self.outbox.clone(),
            in_flight: self.in_flight.clone(),
            gate: self.gate.clone(),
            clock: Arc::new(VirtualClock::new(started)),
            chance: Chance::new(seed),
            output: self.output.clone(),
            context: self.context.clone(),
            hooks: Hooks::new(self.forbidden_headers.clone()),
            http,
            limiter: Limiter::new(self.limits.memory),
            files: WasiFilesystemCtx::default(),
            sockets: WasiSocketsCtx::default(),
        };
        let mut store = Store::new(engine, state);
        if !self.limited() {
            return store;
        }
        store.limiter(|state| &mut state.limiter);
        store.set_hostcall_fuel(limits::HOST_CALL_BYTES);
        store.set_max_component_handles(limits::HANDLES);
        // An unset deadline would end it at once. The callback does not touch the
        // store; it yields, so that no component holds a thread of the runtime
        // for longer than a tick.
        let cpu = self.cpu.clone();
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(move |_| {
            cpu.check()?;
            Ok(UpdateDeadline::Yield(1))
        });
        store
    }
}
