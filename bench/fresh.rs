//! A fresh call of the refund component with all limits on: a new store, a new
//! instance, the call, one effect answered at once, everything dropped.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use countersign_domain::canonical::CanonicalJson;
use countersign_domain::effect::{Answer, Effect, Passage};
use countersign_domain::id::{ComponentDigest, Digest};
use countersign_domain::key::{ActionKey, action_id};
use countersign_domain::run::{Call, Ended, RunContext, RunLimits};
use countersign_domain::time::Timestamp;
use countersign_sandbox::{EffectGate, Sandbox, SandboxConfig};

struct AtOnce;

#[async_trait]
impl EffectGate for AtOnce {
    async fn submit(&self, _effect: Effect) -> Passage {
        let body = br#"{"id":"re_1","object":"refund","amount":100,"currency":"eur","payment_intent":"pi_1","status":"succeeded"}"#;
        let answer = Answer { status: 200, headers: vec![], body: body.to_vec() };
        Passage::Answered { answer, at: Timestamp::from_micros(1_800_000_000_000_000) }
    }
}

/// Prints one table.
pub async fn measure() -> anyhow::Result<()> {
    const CALLS: usize = 20_000;
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../guest-examples/prebuilt/refund.wasm");
    let bytes: Arc<[u8]> = std::fs::read(path)?.into();
    let digest = ComponentDigest(Digest::of(&bytes));
    let sandbox = Sandbox::new(SandboxConfig::default())?;
    sandbox.load(digest, bytes).await?;
    let tenant = "default".parse()?;
    let arguments =
        r#"{"amount":100,"api_base":"http://127.0.0.1:1","currency":"eur","payment_intent":"pi_1"}"#;
    let call = Call {
        component: digest,
        arguments: CanonicalJson::parse(arguments, Default::default())?,
        context: RunContext {
            action: action_id(&tenant, &ActionKey::Key("fresh".into())),
            tenant,
            run: None,
            step: None,
            actor: "agent".parse()?,
            started: Timestamp::from_micros(1_800_000_000_000_000),
            seed: [7; 32],
        },
        limits: RunLimits {
            memory: 64 << 20,
            cpu: Duration::from_secs(2),
            wall: Duration::from_secs(120),
            result: 256 << 10,
            log: 64 << 10,
            request_body: 1 << 20,
        },
        forbidden_headers: Arc::new(BTreeSet::from([
            "idempotency-key".to_owned(),
            "authorization".to_owned(),
        ])),
    };
    let gate: Arc<dyn EffectGate> = Arc::new(AtOnce);
    let mut latencies = Vec::with_capacity(CALLS);
    for n in 0..CALLS + 500 {
        let began = Instant::now();
        let report = sandbox.invoke(call.clone(), gate.clone()).await;
        if n >= 500 {
            latencies.push(began.elapsed());
        }
        anyhow::ensure!(matches!(report.ended, Ended::Returned(_)), "it ended {:?}", report.ended);
    }
    let latencies = crate::Latencies::new(latencies);
    println!(
        "\nFresh call of the refund component, all limits on, one effect answered at once ({CALLS} calls)"
    );
    println!("| p50 µs | p99 µs |");
    println!("|---|---|");
    println!("| {:.0} | {:.0} |", latencies.at(0.5) * 1000.0, latencies.at(0.99) * 1000.0);
    Ok(())
}
