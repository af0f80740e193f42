//! A host: a gate on a runtime of its own, so that it can die as a process does:
//! every task of it is dropped where it stands, nothing is told to anybody.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use countersign_domain::id::Ordinal;
use countersign_domain::secret::{SecretName, SecretValue};
use countersign_gate::dispatch::{Dispatcher, DispatcherConfig, SecretStore, SystemResolver};
use countersign_gate::{Gate, GateConfig, Point, Signals};
use countersign_store::Store;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::script::{Runner, Shelf};

/// Secrets that a test can add later.
#[derive(Default)]
pub struct Safe(Mutex<HashMap<SecretName, Arc<SecretValue>>>);

impl Safe {
    pub fn put(&self, name: &str, value: &str) {
        let value = Arc::new(SecretValue::new(value.into()).unwrap());
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name.parse().unwrap(), value);
    }
}

struct Keys(Arc<Safe>);

impl SecretStore for Keys {
    fn get(&self, name: &SecretName) -> Option<Arc<SecretValue>> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }
}

/// Where an attempt is to be stopped.
#[derive(Debug, Clone, Copy)]
pub enum Stop {
    /// The n-th time that it comes past this point, from 1.
    At(Point, usize),
    /// At the n-th point of all, from 1.
    Nth(usize),
}

/// Points passed, and where to stop.
pub struct Stops {
    passed: Mutex<Vec<(Point, Option<Ordinal>)>>,
    stop: Mutex<Option<Stop>>,
    stopped: watch::Sender<bool>,
    go_on: watch::Sender<bool>,
}

impl Default for Stops {
    fn default() -> Stops {
        Stops {
            passed: Mutex::default(),
            stop: Mutex::default(),
            stopped: watch::Sender::new(false),
            go_on: watch::Sender::new(false),
        }
    }
}

impl Stops {
    /// Counted from now on.
    pub fn arm(&self, stop: Stop) {
        self.passed.lock().unwrap().clear();
        *self.stop.lock().unwrap() = Some(stop);
    }

    /// Waits until an attempt stands where it was to be stopped.
    pub async fn reached(&self) {
        self.stopped.subscribe().wait_for(|stopped| *stopped).await.unwrap();
    }

    /// Lets it go on.
    pub fn release(&self) {
        self.go_on.send_replace(true);
    }

    pub fn passed(&self) -> Vec<(Point, Option<Ordinal>)> {
        self.passed.lock().unwrap().clone()
    }
}

#[async_trait]
impl Signals for Stops {
    async fn reached(&self, point: Point, ordinal: Option<Ordinal>) {
        let stops = {
            let mut passed = self.passed.lock().unwrap();
            passed.push((point, ordinal));
            let this_point = passed.iter().filter(|(other, _)| *other == point).count();
            match *self.stop.lock().unwrap() {
                Some(Stop::At(at, n)) => at == point && n == this_point,
                Some(Stop::Nth(n)) => n == passed.len(),
                None => false,
            }
        };
        if stops {
            self.stopped.send_replace(true);
            let _ = self.go_on.subscribe().wait_for(|go_on| *go_on).await;
        }
    }
}

/// One host.
pub struct Host {
    runtime: Option<Runtime>,
    gate: Gate,
    pub stops: Arc<Stops>,
}

impl Host {
    pub fn start(
        store: Arc<dyn Store>,
        shelf: Arc<Shelf>,
        safe: Arc<Safe>,
        authority: String,
        config: GateConfig,
    ) -> Host {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("host")
            .enable_all()
            .build()
            .unwrap();
        let stops = Arc::new(Stops::default());
        let _inside = runtime.enter();
        let dispatcher =
            Dispatcher::new(DispatcherConfig::default(), Arc::new(SystemResolver), Arc::new(Keys(safe)))
                .unwrap();
        let components = Arc::new(Runner { shelf, authority, loaded: Mutex::default() });
        let gate = Gate::new(store, components, dispatcher, Some(stops.clone()), config);
        drop(_inside);
        Host { runtime: Some(runtime), gate, stops }
    }

    /// Starts something in the host.
    pub fn spawn<F, Fut, T>(&self, what: F) -> JoinHandle<T>
    where
        F: FnOnce(Gate) -> Fut,
        Fut: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        let future = what(self.gate.clone());
        self.runtime.as_ref().unwrap().spawn(future)
    }

    /// Does something in the host, and waits for it.
    pub async fn run<F, Fut, T>(&self, what: F) -> T
    where
        F: FnOnce(Gate) -> Fut,
        Fut: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        self.spawn(what).await.unwrap()
    }

    /// Dies: every task is dropped where it stands.
    pub async fn die(mut self) {
        if let Some(runtime) = self.runtime.take() {
            let _ =
                tokio::task::spawn_blocking(move || runtime.shutdown_timeout(Duration::from_secs(5))).await;
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
