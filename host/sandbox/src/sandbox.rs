//! The room's face: take a component, look at it, run it. What runs, runs in this
//! process (`local`) or in processes of the room's own (`process`); who asks cannot
//! tell.

use std::sync::Arc;

use countersign_domain::effect::EffectRecord;
use countersign_domain::id::{ComponentDigest, Digest};
use countersign_domain::run::{Call, Ended, RunReport};
use countersign_domain::tool::{Inspection, Manifest, Preview};
use tokio::sync::Semaphore;
use wasmtime::Engine;

use crate::cache::Cache;
use crate::config::SandboxConfig;
use crate::effect_gate::EffectGate;
use crate::error::SandboxError;
use crate::examine::{self, Examined};
use crate::local::{Local, RECONCILER};
use crate::process::{self, CompileLimits, Pool, ProcessCommand};
use crate::reconcile::ReconcileReport;
use crate::{admit, compile, engine, manifest};

/// Components that are compiled at the same time, and as many are read. Each may
/// take a minute of all processors; with one, whoever installs such a component
/// keeps everybody else from installing anything.
const COMPILATIONS: usize = 2;

/// Runs components. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Sandbox(Arc<Inner>);

struct Inner {
    runner: Runner,
    compiler: Compiler,
    cache: Option<Cache>,
    max_component_bytes: u64,
    examinations: Semaphore,
    compilations: Semaphore,
}

/// Where components run.
enum Runner {
    Here(Local),
    Elsewhere(Pool),
}

/// Where components are read and compiled.
enum Compiler {
    Here(Engine),
    Elsewhere(ProcessCommand, CompileLimits),
}

impl Compiler {
    fn examine(&self, bytes: &[u8], max_bytes: u64) -> Result<Examined, SandboxError> {
        match self {
            Compiler::Here(_) => examine::examine(bytes, max_bytes),
            Compiler::Elsewhere(command, limits) => process::examine(command, *limits, bytes, max_bytes),
        }
    }

    /// The bytes are read again: that they may be compiled is known where they are.
    fn compile(&self, bytes: &[u8], max_bytes: u64) -> Result<Vec<u8>, SandboxError> {
        match self {
            Compiler::Here(engine) => {
                examine::tool(bytes, max_bytes)?;
                compile::compile(engine, bytes)
            }
            Compiler::Elsewhere(command, limits) => process::compile(command, *limits, bytes, max_bytes),
        }
    }
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
    /// Starts the engine and its clock thread, unless components run in processes
    /// of their own, and opens the cache. Those processes are started when they
    /// are needed, and heard on the runtime in which this is called.
    ///
    /// # Errors
    /// [`SandboxError::Engine`], [`SandboxError::CacheFolder`].
    pub fn new(config: SandboxConfig) -> Result<Sandbox, SandboxError> {
        let compiler = engine::compiler()?;
        let cache = match &config.cache_dir {
            Some(dir) => Some(Cache::open(dir, config.cache_key, &compiler)?),
            None => None,
        };
        let runner = match &config.guests_in {
            Some(command) => Runner::Elsewhere(Pool::new(&config, command.clone())?),
            None => Runner::Here(Local::new(engine::engine(&config)?, &config)?),
        };
        Ok(Sandbox(Arc::new(Inner {
            runner,
            compiler: match config.compile_in {
                Some(command) => Compiler::Elsewhere(command, config.compile_limits),
                None => Compiler::Here(compiler),
            },
            cache,
            max_component_bytes: config.max_component_bytes,
            examinations: Semaphore::new(COMPILATIONS),
            compilations: Semaphore::new(COMPILATIONS),
        })))
    }

    /// The same in this process, and without any limit on what runs: neither epochs nor a count of
    /// memory, handles, bytes or time. For a benchmark of what those cost.
    ///
    /// # Errors
    /// [`SandboxError::Engine`].
    #[cfg(feature = "bench")]
    pub fn without_limits(config: &SandboxConfig) -> Result<Sandbox, SandboxError> {
        let engine = engine::unlimited(config)?;
        let mut local = Local::new(engine.clone(), config)?;
        local.unlimited = true;
        Ok(Sandbox(Arc::new(Inner {
            runner: Runner::Here(local),
            compiler: Compiler::Here(engine),
            cache: None,
            max_component_bytes: config.max_component_bytes,
            examinations: Semaphore::new(COMPILATIONS),
            compilations: Semaphore::new(COMPILATIONS),
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
        admit::is_component(&bytes, max)?;
        let Ok(turn) = self.0.examinations.acquire().await else {
            return Err(SandboxError::Busy("the host is stopping".to_owned()));
        };
        let (inner, given) = (self.0.clone(), bytes.clone());
        // Reading 64 MiB takes a second; the runtime's threads have others to serve.
        let (digest, examined) =
            blocking(move || Ok((ComponentDigest(Digest::of(&given)), inner.compiler.examine(&given, max)?)))
                .await?;
        drop(turn);
        let size = bytes.len() as u64;
        self.load(digest, bytes).await?;
        let manifest = self.describe(digest).await?;
        Ok(Inspection {
            digest,
            size,
            warnings: manifest::warnings(&manifest, &examined.imports),
            reconciles: examined.exports.iter().any(|e| e == RECONCILER),
            imports: examined.imports,
            exports: examined.exports,
            features: examined.features,
            manifest,
        })
    }

    async fn describe(&self, digest: ComponentDigest) -> Result<Manifest, SandboxError> {
        match &self.0.runner {
            Runner::Here(local) => local.describe(digest).await,
            Runner::Elsewhere(pool) => pool.describe(digest).await,
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
        let (inner, given) = (self.0.clone(), bytes.clone());
        let cached = blocking(move || {
            let found = ComponentDigest(Digest::of(&given));
            if found != digest {
                return Err(SandboxError::WrongBytes { expected: digest, found });
            }
            // Read before anybody's compilation is waited for.
            let Some(compiled) = inner.cache.as_ref().and_then(|cache| cache.load(digest)) else {
                return Ok(false);
            };
            let adopted = inner.adopt(digest, &compiled);
            if let Err(error) = &adopted {
                tracing::warn!(%digest, %error, "a compiled component does not load; compiling again");
            }
            Ok(adopted.is_ok())
        })
        .await?;
        if cached {
            return Ok(Loaded::FromCache);
        }
        let Ok(_turn) = self.0.compilations.acquire().await else {
            return Err(SandboxError::Busy("the host is stopping".to_owned()));
        };
        // Somebody else may have loaded it while we waited.
        if self.is_loaded(digest) {
            return Ok(Loaded::Already);
        }
        let inner = self.0.clone();
        blocking(move || {
            admit::is_component(&bytes, inner.max_component_bytes)?;
            let compiled = inner.compiler.compile(&bytes, inner.max_component_bytes)?;
            if let Some(cache) = &inner.cache {
                cache.store(digest, &compiled);
            }
            inner.adopt(digest, &compiled)?;
            Ok(Loaded::Compiled)
        })
        .await
    }

    /// Whether a component is ready to run.
    pub fn is_loaded(&self, digest: ComponentDigest) -> bool {
        match &self.0.runner {
            Runner::Here(local) => local.is_loaded(digest),
            Runner::Elsewhere(pool) => pool.is_loaded(digest),
        }
    }

    /// The tool's own words about a call. It can reach nothing: every request is
    /// denied. It has 100 ms of running time.
    ///
    /// # Errors
    /// How it ended without a preview: `Failed` with the tool's failure,
    /// `Trapped`, or `Unavailable`.
    pub async fn preview(&self, call: Call) -> Result<Preview, Ended> {
        match &self.0.runner {
            Runner::Here(local) => local.preview(call).await,
            Runner::Elsewhere(pool) => pool.preview(call).await,
        }
    }

    /// Runs a call to its end. What it asks for goes through `gate`, one effect
    /// at a time. Returns when the gate has answered everything that it was
    /// given, even if the component was gone before.
    ///
    /// A result is JSON in canonical form and within its limit; whether it fits
    /// the tool's schema is not checked here.
    pub async fn invoke(&self, call: Call, gate: Arc<dyn EffectGate>) -> RunReport {
        match &self.0.runner {
            Runner::Here(local) => local.invoke(call, gate).await,
            Runner::Elsewhere(pool) => pool.invoke(call, gate).await,
        }
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
        match &self.0.runner {
            Runner::Here(local) => local.reconcile(call, effect, gate).await,
            Runner::Elsewhere(pool) => pool.reconcile(call, effect, gate).await,
        }
    }
}

impl Inner {
    /// Takes over what the compiler gave.
    fn adopt(&self, digest: ComponentDigest, compiled: &[u8]) -> Result<(), SandboxError> {
        match &self.runner {
            Runner::Here(local) => local.adopt(digest, &compile::component(local.engine(), compiled)?),
            Runner::Elsewhere(pool) => pool.adopt(digest, compiled),
        }
    }
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
