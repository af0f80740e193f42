//! The call that both benchmarks make.

use std::sync::Arc;
use std::time::Duration;

use countersign_domain::canonical::CanonicalJson;
use countersign_domain::id::{ActionId, ComponentDigest};
use countersign_domain::run::{Call, RunContext, RunLimits};
use countersign_domain::time::Timestamp;

/// When every call began.
pub const STARTED: Timestamp = Timestamp::from_micros(1_790_000_000_000_000);

/// Of this component with these arguments, JSON.
pub fn call(component: ComponentDigest, arguments: &str) -> Call {
    Call {
        component,
        arguments: CanonicalJson::parse(arguments, Default::default()).expect("arguments are JSON"),
        context: RunContext {
            tenant: "bench".parse().expect("a tenant"),
            action: "0b5ae1f2-6c3d-8e4f-9a0b-1c2d3e4f5a6b".parse::<ActionId>().expect("an id"),
            run: None,
            step: None,
            actor: "bench".parse().expect("a principal"),
            started: STARTED,
            seed: [7; 32],
        },
        limits: RunLimits {
            memory: 64 << 20,
            cpu: Duration::from_secs(5),
            wall: Duration::from_secs(600),
            result: 256 << 10,
            log: 64 << 10,
            request_body: 1 << 20,
        },
        forbidden_headers: Arc::default(),
    }
}
