//! Where the rooms meet. The gate becomes the sandbox's way out and the sandbox
//! the gate's way to run components; neither knows the other, and nothing here
//! decides anything.

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use async_trait::async_trait;
use countersign_domain::effect::{Effect, EffectRecord, Passage};
use countersign_domain::id::ComponentDigest;
use countersign_domain::lease::LeaseTerms;
use countersign_domain::run::{Call, RunReport};
use countersign_domain::tool::{Inspection, Preview};
use countersign_gate::dispatch::{Dispatcher, DispatcherConfig, Secrets, resolver};
use countersign_gate::{ComponentError, Components, Effects, Gate, GateConfig, LookupReport, Verdict};
use countersign_sandbox::{EffectGate, ProcessCommand, Sandbox, SandboxConfig, SandboxError};
use countersign_store::health::Census;
use countersign_store::postgres::PostgresStore;
use countersign_store::sqlite::{SqliteOptions, SqliteStore};
use countersign_store::{Store, StoreError};

use crate::config::{Config, GuestProcesses, StorePlace};
use crate::metrics::{Metrics, Observed};
use crate::signals;
use crate::webhook::Webhooks;

/// Bytes of the key that authenticates compiled components.
const CACHE_KEY_BYTES: usize = 32;

/// The rooms of a running host, wired.
pub struct Host {
    /// All the rules.
    pub gate: Gate,
    /// To be closed last.
    pub store: OpenStore,
    /// What passes through both, counted.
    pub metrics: Arc<Metrics>,
    /// Who is told of what waits for a person.
    pub webhooks: Webhooks,
}

/// The store that the configuration names. Clones share it.
#[derive(Clone)]
pub enum OpenStore {
    /// A file; this host holds its lock, so every lease in it is over.
    Sqlite(SqliteStore),
    /// A database that other hosts may use, too.
    Postgres(PostgresStore),
}

impl OpenStore {
    async fn open(place: &StorePlace, after_restore: bool) -> anyhow::Result<OpenStore> {
        Ok(match place {
            StorePlace::Sqlite(path) => {
                let options = SqliteOptions { after_restore, ..SqliteOptions::new(path) };
                OpenStore::Sqlite(SqliteStore::open(options)?)
            }
            StorePlace::Postgres(options) => {
                let mut options = options.as_ref().clone();
                options.after_restore |= after_restore;
                OpenStore::Postgres(PostgresStore::open(options).await?)
            }
        })
    }

    /// Whether no other host can run what is in it.
    pub fn is_held_alone(&self) -> bool {
        matches!(self, OpenStore::Sqlite(_))
    }

    fn shared(&self) -> Arc<dyn Store> {
        match self {
            OpenStore::Sqlite(store) => Arc::new(store.clone()),
            OpenStore::Postgres(store) => Arc::new(store.clone()),
        }
    }

    /// How many actions stand where, now.
    async fn census(&self) -> Result<Census, StoreError> {
        match self {
            OpenStore::Sqlite(store) => store.census().await,
            OpenStore::Postgres(store) => store.census().await,
        }
    }

    /// Makes what was begun, and lets go.
    pub async fn close(&self) {
        match self {
            OpenStore::Sqlite(store) => store.close().await,
            OpenStore::Postgres(store) => store.close(),
        }
    }
}

/// Opens the store and wires everything over it. Needs a runtime.
///
/// # Errors
/// The first thing that does not open: what, where, what to do.
pub async fn open(config: &mut Config) -> anyhow::Result<Host> {
    no_core_dump();
    let store = OpenStore::open(&config.store, config.after_restore).await?;
    let counted = store.clone();
    let metrics = Arc::new(Metrics::new(Some(Box::new(move || {
        let counted = counted.clone();
        Box::pin(async move { counted.census().await })
    }))));
    let sandbox = Sandbox::new(SandboxConfig {
        cache_dir: Some(config.data_dir.join("components")),
        cache_key: cache_key(&config.data_dir.join("components.key"))?,
        ..processes(config.guest_processes)
    })?;
    let secrets = Secrets::new(std::mem::take(&mut config.secrets));
    let dispatcher = Dispatcher::new(
        DispatcherConfig {
            smtp: config.smtp.take(),
            authorities: std::mem::take(&mut config.authorities),
            ..DispatcherConfig::default()
        },
        resolver(&config.dns).context("the servers of egress.dns cannot be asked")?,
        Arc::new(secrets),
    )?;
    let webhooks = Webhooks::new(std::mem::take(&mut config.webhooks), metrics.clone());
    let gate = Gate::new(
        Arc::new(Observed::new(store.shared(), metrics.clone())),
        Arc::new(SandboxComponents(sandbox)),
        dispatcher,
        signals::from_environment()?,
        GateConfig {
            owner: owner(),
            announce: Some(Arc::new(webhooks.clone())),
            lease: LeaseTerms { length: config.lease, ..LeaseTerms::default() },
            ceiling: config.ceiling.clone(),
            quotas: config.quotas.clone(),
            ..GateConfig::default()
        },
    );
    Ok(Host { gate, store, metrics, webhooks })
}

/// The sandbox's processes: this program again, under names that its command
/// line does not show. With nothing of this one's environment, where secrets may
/// be.
fn processes(guests: GuestProcesses) -> SandboxConfig {
    let this = |role: &str| ProcessCommand {
        // The program that runs, also when its file was replaced meanwhile.
        program: "/proc/self/exe".into(),
        arguments: vec![role.into()],
        environment: planted(),
    };
    let defaults = SandboxConfig::default();
    SandboxConfig {
        compile_in: Some(this("compile-component")),
        guests_in: (guests != GuestProcesses::Off).then(|| this("guest-process")),
        guest_processes: match guests {
            GuestProcesses::Off => defaults.guest_processes,
            GuestProcesses::PerTenant(count) => count,
        },
        ..defaults
    }
}

/// The one bug that is there to be noticed goes along.
#[cfg(feature = "planted-bugs")]
fn planted() -> Vec<(std::ffi::OsString, std::ffi::OsString)> {
    use countersign_domain::planted::VARIABLE;
    crate::config::variable(VARIABLE).map(|bug| (VARIABLE.into(), bug.into())).into_iter().collect()
}

#[cfg(not(feature = "planted-bugs"))]
fn planted() -> Vec<(std::ffi::OsString, std::ffi::OsString)> {
    Vec::new()
}

/// This process holds secrets: what is left of it when it crashes is no file.
fn no_core_dump() {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, setrlimit};
        // Lowering a limit is always allowed; were it not, dumps are as before.
        let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    }
}

/// Who holds a lease, for people who look: this process, on this machine.
fn owner() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{} pid {}", name.trim(), std::process::id())
}

/// The key that authenticates compiled components: made once, readable by the
/// owner only. Whoever can write it and the folder can run code in the host;
/// both are the host's own user.
fn cache_key(path: &Path) -> anyhow::Result<[u8; CACHE_KEY_BYTES]> {
    let mut key = [0u8; CACHE_KEY_BYTES];
    match fs::File::open(path) {
        Ok(file) => {
            let mut found = Vec::new();
            file.take(CACHE_KEY_BYTES as u64 + 1)
                .read_to_end(&mut found)
                .with_context(|| format!("the key {} cannot be read", path.display()))?;
            key = found.try_into().map_err(|_| {
                anyhow::anyhow!(
                    "{} is not a key of {CACHE_KEY_BYTES} bytes; delete it, and a new one is made",
                    path.display()
                )
            })?;
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            getrandom::fill(&mut key).context("the system has no randomness")?;
            write_private(path, &key)?;
        }
        Err(error) => {
            return Err(error).with_context(|| format!("the key {} cannot be read", path.display()));
        }
    }
    Ok(key)
}

/// Writes a file that only its owner may read, whole or not at all.
///
/// # Errors
/// Names the file.
pub fn write_private(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    let draft = path.with_extension("new");
    let write = || {
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(true);
        #[cfg(unix)]
        {
            use std::os::unix::fs::OpenOptionsExt as _;
            options.mode(0o600);
        }
        // A draft that was left behind may be readable by others.
        let _ = fs::remove_file(&draft);
        let mut file = options.open(&draft)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&draft, path)
    };
    write().with_context(|| format!("{} cannot be written", path.display()))
}

/// The sandbox, in the gate's words.
struct SandboxComponents(Sandbox);

/// The gate, in the sandbox's words.
struct WayOut(Arc<dyn Effects>);

#[async_trait]
impl EffectGate for WayOut {
    async fn submit(&self, effect: Effect) -> Passage {
        self.0.submit(effect).await
    }
}

#[async_trait]
impl Components for SandboxComponents {
    async fn inspect(&self, bytes: Arc<[u8]>) -> Result<Inspection, ComponentError> {
        self.0.inspect(bytes).await.map_err(refused)
    }

    fn is_loaded(&self, component: ComponentDigest) -> bool {
        self.0.is_loaded(component)
    }

    async fn load(&self, component: ComponentDigest, bytes: Arc<[u8]>) -> Result<(), ComponentError> {
        self.0.load(component, bytes).await.map(drop).map_err(refused)
    }

    async fn preview(&self, call: Call) -> Option<Preview> {
        self.0.preview(call).await.ok()
    }

    async fn invoke(&self, call: Call, effects: Arc<dyn Effects>) -> RunReport {
        self.0.invoke(call, Arc::new(WayOut(effects))).await
    }

    async fn reconcile(&self, call: Call, effect: &EffectRecord, effects: Arc<dyn Effects>) -> LookupReport {
        let report = self.0.reconcile(call, effect, Arc::new(WayOut(effects))).await;
        let verdict = report.verdict.map(|said| match said {
            countersign_sandbox::Verdict::Done(answer) => Verdict::Done(answer),
            countersign_sandbox::Verdict::NotDone => Verdict::NotDone,
            countersign_sandbox::Verdict::Unknown => Verdict::Unknown,
        });
        LookupReport { verdict, log: report.log }
    }
}

fn refused(error: SandboxError) -> ComponentError {
    match error {
        SandboxError::Refused { .. } | SandboxError::WrongBytes { .. } => {
            ComponentError::Refused(error.to_string())
        }
        SandboxError::Engine(_) | SandboxError::CacheFolder { .. } | SandboxError::Busy(_) => {
            ComponentError::Unavailable(error.to_string())
        }
    }
}
