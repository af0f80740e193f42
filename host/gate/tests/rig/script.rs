//! Components without wasm: a script stands in for a component. It runs from its
//! start at every attempt, like one, and reaches the outside only through the
//! gate.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use countersign_domain::canonical::CanonicalJson;
use countersign_domain::effect::{Answer, Effect, EffectRecord, OutboundRequest, Passage, Refusal};
use countersign_domain::id::{ComponentDigest, Digest};
use countersign_domain::run::{Call, Ended, RunReport, ToolFailure};
use countersign_domain::tool::{Inspection, Manifest, Preview};
use countersign_gate::{ComponentError, Components, Effects, LookupReport, Verdict};
use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio::sync::Notify;

type Body = Arc<dyn Fn(Fx) -> BoxFuture<'static, Ended> + Send + Sync>;
type Lookup = Arc<dyn Fn(Fx, EffectRecord) -> BoxFuture<'static, Result<Verdict, Ended>> + Send + Sync>;

/// What a component is instead of bytes of wasm.
#[derive(Clone)]
pub struct Script {
    body: Body,
    lookup: Option<Lookup>,
    pub input_schema: Value,
    pub output_schema: Option<Value>,
}

impl Script {
    pub fn new<F, Fut>(body: F) -> Script
    where
        F: Fn(Fx) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Ended> + Send + 'static,
    {
        Script {
            body: Arc::new(move |fx| Box::pin(body(fx))),
            lookup: None,
            input_schema: json!({"type": "object"}),
            output_schema: None,
        }
    }

    /// It can say what became of a send.
    pub fn reconciling<F, Fut>(mut self, lookup: F) -> Script
    where
        F: Fn(Fx, EffectRecord) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Verdict, Ended>> + Send + 'static,
    {
        self.lookup = Some(Arc::new(move |fx, effect| Box::pin(lookup(fx, effect))));
        self
    }

    pub fn output(mut self, schema: Value) -> Script {
        self.output_schema = Some(schema);
        self
    }

    pub fn input(mut self, schema: Value) -> Script {
        self.input_schema = schema;
        self
    }
}

/// What a script may do.
#[derive(Clone)]
pub struct Fx {
    pub call: Call,
    effects: Arc<dyn Effects>,
    authority: String,
    stopped: Arc<Notify>,
}

/// What a script is shown of an effect.
#[derive(Debug, Clone, PartialEq)]
pub enum Shown {
    Answer(Answer),
    Refused(Refusal),
}

impl Shown {
    pub fn status(&self) -> u16 {
        match self {
            Shown::Answer(answer) => answer.status,
            Shown::Refused(_) => 0,
        }
    }

    pub fn json(&self) -> Value {
        match self {
            Shown::Answer(answer) => serde_json::from_slice(&answer.body).unwrap_or(Value::Null),
            Shown::Refused(_) => Value::Null,
        }
    }
}

impl Fx {
    pub fn arguments(&self) -> Value {
        self.call.arguments.value()
    }

    pub async fn post(&self, path: &str, body: &str) -> Shown {
        self.send("POST", path, body).await
    }

    pub async fn get(&self, path: &str) -> Shown {
        self.send("GET", path, "").await
    }

    /// Asks for an effect. When the gate stops the run, this never returns: the
    /// run ends instead, as a sandbox ends it.
    pub async fn send(&self, method: &str, path: &str, body: &str) -> Shown {
        let request = OutboundRequest {
            method: method.into(),
            scheme: Some("http".into()),
            authority: Some(self.authority.clone()),
            path_with_query: Some(path.into()),
            headers: vec![("content-type".into(), "application/json".into())],
            body: body.as_bytes().to_vec(),
            first_byte_timeout: None,
        };
        match self.effects.submit(Effect::Http(request)).await {
            Passage::Answered { answer, .. } => Shown::Answer(answer),
            Passage::Refused { refusal, .. } => Shown::Refused(refusal),
            Passage::Stopped => {
                self.stopped.notify_one();
                std::future::pending().await
            }
        }
    }
}

pub fn done(result: Value) -> Ended {
    Ended::Returned(CanonicalJson::of(&result).unwrap())
}

pub fn refused(why: &str) -> Ended {
    Ended::Failed(ToolFailure::Refused(why.into()))
}

pub fn try_later(why: &str) -> Ended {
    Ended::Failed(ToolFailure::TryLater { reason: why.into(), after: None })
}

pub fn trapped(why: &str) -> Ended {
    Ended::Trapped { why: why.into(), limit: None }
}

/// The usual tool: one write, the answer is the result.
pub fn refund() -> Script {
    Script::new(|fx| async move {
        let amount = fx.arguments()["amount"].to_string();
        let shown = fx.post("/refunds", &amount).await;
        if shown.status() != 200 {
            return refused(&format!("the provider said {}", shown.status()));
        }
        done(json!({"refund": shown.json()["id"]}))
    })
}

/// The usual tool, which can ask its provider what became of a refund.
pub fn looked_up_refund() -> Script {
    refund().reconciling(|fx, effect| async move {
        let path = format!("/look{}", effect.request.url.split_once("/refunds").map_or("", |_| "/refunds"));
        let shown = fx.get(&path).await;
        let Shown::Answer(answer) = &shown else { return Ok(Verdict::Unknown) };
        Ok(match answer.status {
            200 => Verdict::Done(answer.clone()),
            404 => Verdict::NotDone,
            _ => Verdict::Unknown,
        })
    })
}

/// `n` writes in a row to paths of their own.
pub fn writes(n: u32) -> Script {
    Script::new(move |fx| async move {
        let mut ids = Vec::new();
        for i in 1..=n {
            let shown = fx.post(&format!("/w/{i}"), &i.to_string()).await;
            if shown.status() != 200 {
                return refused("no");
            }
            ids.push(shown.json()["id"].clone());
        }
        done(json!(ids))
    })
}

/// All scripts of a test, by the digest of their name: what stands where a
/// sandbox stands. Survives the death of hosts, like files on a disk.
#[derive(Default)]
pub struct Shelf(Mutex<HashMap<ComponentDigest, (String, Script)>>);

impl Shelf {
    /// Puts a script where its bytes can be installed from.
    pub fn put(&self, name: &str, version: &str, script: Script) -> Arc<[u8]> {
        let bytes = format!("{name} {version}").into_bytes();
        let digest = ComponentDigest(Digest::of(&bytes));
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(digest, (format!("{name} {version}"), script));
        Arc::from(bytes)
    }

    /// Takes a script away, as a disk that fails does.
    pub fn lose(&self, name: &str, version: &str) {
        let digest = ComponentDigest(Digest::of(format!("{name} {version}").as_bytes()));
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&digest);
    }

    fn get(&self, digest: ComponentDigest) -> Option<(String, Script)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&digest).cloned()
    }
}

/// Whoever runs scripts, in one host.
pub struct Runner {
    pub shelf: Arc<Shelf>,
    pub authority: String,
    pub loaded: Mutex<HashSet<ComponentDigest>>,
}

#[async_trait]
impl Components for Runner {
    async fn inspect(&self, bytes: Arc<[u8]>) -> Result<Inspection, ComponentError> {
        let digest = ComponentDigest(Digest::of(&bytes));
        let (name, script) =
            self.shelf.get(digest).ok_or_else(|| ComponentError::Refused("it is no component".into()))?;
        let (name, version) = name.split_once(' ').unwrap();
        Ok(Inspection {
            digest,
            size: bytes.len() as u64,
            imports: vec!["wasi:http/outgoing-handler@0.2.0".into()],
            exports: vec!["countersign:tool/tool@0.1.0".into()],
            features: vec!["bulk-memory".into()],
            reconciles: script.lookup.is_some(),
            manifest: Manifest {
                name: name.into(),
                version: version.into(),
                title: name.into(),
                description: name.into(),
                input_schema: script.input_schema,
                output_schema: script.output_schema,
                effects: vec![],
            },
            warnings: vec![],
        })
    }

    fn is_loaded(&self, component: ComponentDigest) -> bool {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner).contains(&component)
    }

    async fn load(&self, component: ComponentDigest, bytes: Arc<[u8]>) -> Result<(), ComponentError> {
        if ComponentDigest(Digest::of(&bytes)) != component {
            return Err(ComponentError::Refused("other bytes".into()));
        }
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner).insert(component);
        Ok(())
    }

    async fn preview(&self, _: Call) -> Option<Preview> {
        None
    }

    async fn invoke(&self, call: Call, effects: Arc<dyn Effects>) -> RunReport {
        let Some((_, script)) = self.shelf.get(call.component) else {
            return RunReport { ended: Ended::Unavailable("not on the shelf".into()), log: vec![] };
        };
        let stopped = Arc::new(Notify::new());
        let fx = Fx { call, effects, authority: self.authority.clone(), stopped: stopped.clone() };
        let ended = tokio::select! {
            biased;
            () = stopped.notified() => Ended::Stopped,
            ended = (script.body)(fx) => ended,
        };
        RunReport { ended, log: vec![] }
    }

    async fn reconcile(&self, call: Call, effect: &EffectRecord, effects: Arc<dyn Effects>) -> LookupReport {
        let lookup = self.shelf.get(call.component).and_then(|(_, script)| script.lookup);
        let Some(lookup) = lookup else {
            return LookupReport { verdict: Err(Ended::Unavailable("it cannot say".into())), log: vec![] };
        };
        let stopped = Arc::new(Notify::new());
        let fx = Fx { call, effects, authority: self.authority.clone(), stopped: stopped.clone() };
        let verdict = tokio::select! {
            biased;
            () = stopped.notified() => Err(Ended::Stopped),
            verdict = lookup(fx, effect.clone()) => verdict,
        };
        LookupReport { verdict, log: vec![] }
    }
}
