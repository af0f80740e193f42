//! Guest processes and compilations for real: this test binary started again as
//! the process. What needs the whole host is in the end-to-end tests.

use std::sync::Arc;
use std::time::{Duration, Instant};

use countersign_domain::run::Ended;
use serde_json::json;

use super::{CompileLimits, ProcessCommand};
use crate::tests::rig::{Gate, call, component, digest, mode, probe, returned};
use crate::{Loaded, Sandbox, SandboxConfig, SandboxError};

/// Tells this binary to be such a process.
const ROLE: &str = "COUNTERSIGN_TEST_PROCESS";

/// This test binary as a process of the sandbox's own.
pub(crate) fn command(role: &str) -> ProcessCommand {
    ProcessCommand {
        program: std::env::current_exe().unwrap(),
        arguments: ["--exact", "process::tests::entry", "--nocapture", "--test-threads=1"]
            .map(Into::into)
            .into(),
        environment: vec![(ROLE.into(), role.into())],
    }
}

/// Not a test, unless it is told what to be.
#[test]
#[expect(clippy::disallowed_methods, reason = "how a test binary is told anything")]
fn entry() {
    let ended = match std::env::var(ROLE).as_deref() {
        Ok("guest") => super::guest_process(),
        Ok("compile") => super::compile_component(),
        _ => return,
    };
    std::process::exit(i32::from(ended.is_err()));
}

fn config() -> SandboxConfig {
    SandboxConfig {
        compile_in: Some(command("compile")),
        guests_in: Some(command("guest")),
        ..SandboxConfig::default()
    }
}

async fn sandbox(names: &[&str]) -> Sandbox {
    let sandbox = Sandbox::new(config()).unwrap();
    for name in names {
        let bytes = component(name);
        assert_eq!(sandbox.load(digest(&bytes), bytes).await.unwrap(), Loaded::Compiled);
    }
    sandbox
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_in_a_guest_process_ends_as_it_does_here() {
    let sandbox = sandbox(&["probe", "refund"]).await;
    let report = sandbox.invoke(probe(mode("no-effect")), Gate::yes()).await;
    returned(&report);
    let gate = Gate::yes();
    let refund = call("refund", json!({ "amount": 1250, "currency": "eur", "payment_intent": "pi_1" }));
    let begun = Instant::now();
    let report = sandbox.invoke(refund, gate.clone()).await;
    eprintln!("{report:?} {:?}", begun.elapsed());
    assert_eq!((gate.count(), gate.recorded()), (1, 1));
}
