//! Guest processes and compilations for real: this test binary started again as
//! the process. What needs the whole host is in the end-to-end tests.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use countersign_domain::effect::{Effect, OutboundRequest};
use countersign_domain::run::{Ended, RunReport};
use serde_json::json;

use super::link::frame;
use super::wire::{End, FromGuest, Said};
use super::{CompileLimits, ProcessCommand};
use crate::tests::rig::{Gate, PROCESSES, call, component, digest, mode, probe, returned};
use crate::{Loaded, Sandbox, SandboxConfig, SandboxError};

/// Tells this binary to be such a process.
pub(super) const ROLE: &str = "COUNTERSIGN_TEST_PROCESS";

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
        Ok("end-of-whoever-reads") => {
            // As a reader ends that runs out of stack.
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            std::process::abort()
        }
        Ok(role @ ("watched-guest" | "opens" | "connects" | "starts" | "asks-for-sockets")) => {
            super::watched::be(role)
        }
        Ok(lie) => lies(lie),
        Err(_) => return,
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
    let report = sandbox.invoke(refund, gate.clone()).await;
    // The gate's answer is not the provider's, and the tool says so in its own words.
    assert!(matches!(report.ended, Ended::Failed(_)), "{report:?}");
    assert_eq!((gate.count(), gate.recorded()), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_component_says_what_it_is_in_a_process_of_its_own() {
    let sandbox = Sandbox::new(config()).unwrap();
    let inspection = sandbox.inspect(component("refund")).await.unwrap();
    assert_eq!((inspection.manifest.name.as_str(), inspection.reconciles), ("refund", false));
    assert!(sandbox.inspect(component("transfer")).await.unwrap().reconciles);
}

/// All that is tested of components in this process holds in guest processes.
#[test]
fn the_rooms_own_tests_hold_with_components_in_guest_processes() {
    let run = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["tests::", "--skip", "process::", "--skip", "admit::", "--skip", "fuzz::", "--quiet"])
        .env(PROCESSES, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success() && said.contains("test result: ok"), "{said}");
}

/// Within what `admit` allows, and seconds of work.
fn heavy() -> Arc<[u8]> {
    let function = format!(
        "(func (local {}) {}{})",
        "i64 ".repeat(5_000),
        "i32.const 1 if ".repeat(4_000),
        "end ".repeat(4_000)
    );
    let text = format!(
        "(component (core module {}) (instance $i) (export \"countersign:tool/tool@0.1.0\" (instance $i)))",
        function.repeat(24)
    );
    wat::parse_str(text).unwrap().into()
}

#[tokio::test(flavor = "multi_thread")]
async fn a13_a_compilation_that_takes_too_much_of_anything_is_ended_and_says_of_what() {
    let defaults = CompileLimits::default();
    let cases = [
        (CompileLimits { wall: Duration::from_millis(300), ..defaults }, "longer than 300ms"),
        (CompileLimits { cpu: Duration::from_secs(1), ..defaults }, "1s of processor time"),
        (CompileLimits { memory: 100 << 20, ..defaults }, "100 MiB of memory"),
    ];
    let heavy = heavy();
    for (compile_limits, why) in cases {
        let sandbox = Sandbox::new(SandboxConfig { compile_limits, ..config() }).unwrap();
        match sandbox.inspect(heavy.clone()).await {
            Err(error @ SandboxError::Refused { .. }) => {
                assert!(error.to_string().contains(why), "{why}: {error}");
            }
            other => panic!("{why}: {other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a13_p7_what_ends_whoever_reads_a_component_ends_a_process_and_nothing_is_read_here() {
    let reader = Some(command("end-of-whoever-reads"));
    let sandbox = Sandbox::new(SandboxConfig { compile_in: reader, ..config() }).unwrap();
    // A good one, so that whoever else read it would have taken it.
    let bytes = component("refund");
    for refused in [
        sandbox.inspect(bytes.clone()).await.map(drop),
        sandbox.load(digest(&bytes), bytes.clone()).await.map(drop),
    ] {
        let Err(error @ SandboxError::Refused { .. }) = refused else { panic!("{refused:?}") };
        assert!(error.to_string().contains("or the compiler failed on it"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a13_what_a_component_lacks_is_found_where_it_is_compiled() {
    let empty = "(component (instance $i) (export \"countersign:tool/tool@0.1.0\" (instance $i)))";
    let sandbox = Sandbox::new(config()).unwrap();
    let refused = sandbox.inspect(wat::parse_str(empty).unwrap().into()).await.unwrap_err();
    assert!(refused.to_string().contains("does not fit the interface"), "{refused}");
}

/// An effect that some call asks for.
pub(crate) fn request() -> Effect {
    Effect::Http(OutboundRequest {
        method: "POST".to_owned(),
        scheme: None,
        authority: None,
        path_with_query: None,
        headers: Vec::new(),
        body: Vec::new(),
        first_byte_timeout: None,
    })
}

/// A process that says what no honest one does, at the first call.
fn lies(lie: &str) -> Result<(), String> {
    let mut socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let mut receive = || {
        let mut head = [0; 4];
        socket.read_exact(&mut head).ok()?;
        let mut message = vec![0; u32::from_le_bytes(head) as usize];
        socket.read_exact(&mut message).ok()?;
        Some(message)
    };
    // How to start, a component, a call.
    for _ in 0..3 {
        receive().unwrap();
    }
    let ended = |id, end, log| FromGuest::Ended { id, said: Said::Report { end, log } };
    let effect = || FromGuest::Effect { id: 1, effect: request() };
    let said: Vec<Vec<u8>> = match lie {
        "another-call" => vec![frame(&ended(7, End::Stopped, Vec::new())).unwrap()],
        "another-calls-effect" => {
            vec![frame(&FromGuest::Effect { id: 7, effect: request() }).unwrap()]
        }
        "too-long" => vec![u32::MAX.to_le_bytes().to_vec()],
        "no-message" => vec![[&7u32.to_le_bytes()[..], b"garbage"].concat()],
        "two-effects-at-once" => vec![frame(&effect()).unwrap(), frame(&effect()).unwrap()],
        "hang-up" => Vec::new(),
        "flood" => vec![
            frame(&ended(
                1,
                End::Returned("{\"b\":1, \"a\":1}".to_owned()),
                vec!["x\u{1b}[2J".repeat(100); 20_000],
            ))
            .unwrap(),
        ],
        other => return Err(format!("no such lie: {other}")),
    };
    // At once, so that they are heard at once.
    socket.write_all(&said.concat()).unwrap();
    if lie != "hang-up" {
        // Until the host has had enough.
        let _ = socket.read(&mut [0; 4096]);
        let _ = socket.read(&mut [0; 4096]);
    }
    Ok(())
}

async fn lied_to(lie: &str) -> RunReport {
    let sandbox =
        Sandbox::new(SandboxConfig { guests_in: Some(command(lie)), ..SandboxConfig::default() }).unwrap();
    let bytes = component("probe");
    sandbox.load(digest(&bytes), bytes).await.unwrap();
    let gate = Gate::yes();
    let report = sandbox.invoke(probe(mode("no-effect")), gate.clone()).await;
    assert_eq!(gate.count(), gate.recorded(), "{lie}: what the gate was given it finished");
    report
}

// On one thread: nothing is answered between two things that are heard together.
#[tokio::test]
async fn a16_a_process_that_says_what_is_not_due_is_ended_and_its_call_comes_back() {
    for lie in
        ["another-call", "another-calls-effect", "too-long", "no-message", "two-effects-at-once", "hang-up"]
    {
        let report = lied_to(lie).await;
        let Ended::Unavailable(why) = &report.ended else { panic!("{lie}: {report:?}") };
        assert!(why.contains(if lie == "hang-up" { "it ended" } else { "not due" }), "{lie}: {why}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a16_what_a_process_says_of_a_run_is_bounded_and_cleaned_again() {
    let report = lied_to("flood").await;
    assert!(
        matches!(&report.ended, Ended::Returned(json) if json.as_str() == r#"{"a":1,"b":1}"#),
        "{:?}",
        report.ended
    );
    let bytes: usize = report.log.iter().map(String::len).sum();
    assert!(bytes < 300 << 10, "{bytes} bytes of log");
    assert!(!report.log.iter().any(|line| line.contains('\u{1b}')));
}

#[test]
fn a_compiler_without_a_pool_compiles_for_the_engine_that_has_one() {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let hash = |engine: wasmtime::Engine| {
        let mut hasher = DefaultHasher::new();
        engine.precompile_compatibility_hash().hash(&mut hasher);
        hasher.finish()
    };
    let config = SandboxConfig { max_runs: 1, ..SandboxConfig::default() };
    assert_eq!(hash(crate::engine::compiler().unwrap()), hash(crate::engine::engine(&config).unwrap()));
}
