//! What components make their process ask of the system, looked at without a
//! tracer, which not every container has: the same filter as ever, and under it
//! one that ends the process at the first call which opens, connects or starts
//! anything. A run that comes back has made none.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use countersign_domain::run::Ended;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};
use serde_json::json;

use super::confine::{self, Open};
use super::tests::{ROLE, command};
use crate::tests::corpus::{Ready, SMALL, row, text};
use crate::tests::rig::{Gate, call, component, digest, mode, probe, returned};
use crate::{Sandbox, SandboxConfig};

/// Address space beyond what the corpus has reserved, bytes.
const MORE: u64 = 4 << 30;

/// This process is to be ended by what it would only be refused.
static WATCHED: AtomicBool = AtomicBool::new(false);

/// Adds that filter, in a process of this file's.
pub(super) fn watch() -> Result<(), Open> {
    const CALLS: &[i64] = &[
        libc::SYS_openat,
        libc::SYS_openat2,
        libc::SYS_mkdirat,
        libc::SYS_unlinkat,
        libc::SYS_renameat2,
        libc::SYS_socket,
        libc::SYS_socketpair,
        libc::SYS_connect,
        libc::SYS_bind,
        libc::SYS_listen,
        libc::SYS_accept4,
        libc::SYS_clone,
        libc::SYS_clone3,
        libc::SYS_execve,
        libc::SYS_execveat,
        libc::SYS_kill,
        libc::SYS_ptrace,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_open,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_creat,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_vfork,
    ];
    if !WATCHED.load(Ordering::Relaxed) {
        return Ok(());
    }
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    let rules = CALLS.iter().map(|call| (*call, Vec::new())).collect();
    // Of two filters the stricter answer counts.
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::KillProcess, arch)?;
    let filter: BpfProgram = filter.try_into()?;
    Ok(seccompiler::apply_filter_all_threads(&filter)?)
}

/// This process in one of the roles of this file.
pub(super) fn be(role: &str) -> Result<(), String> {
    WATCHED.store(true, Ordering::Relaxed);
    if role != "watched-guest" {
        confine::begin().map_err(|open| open.0)?;
    }
    let shut = || confine::running(MORE).map_err(|open| open.0);
    match role {
        "watched-guest" => super::guest_process(),
        // One that has broken out of its component.
        "opens" => {
            shut()?;
            std::fs::File::open("/etc/passwd").map(drop).map_err(|error| error.to_string())
        }
        "connects" => {
            shut()?;
            std::net::TcpStream::connect("127.0.0.1:1").map(drop).map_err(|error| error.to_string())
        }
        "starts" => {
            shut()?;
            Command::new("/bin/true").status().map(drop).map_err(|error| error.to_string())
        }
        "asks-for-sockets" => {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(|error| error.to_string())?;
            // What needs files is done before.
            let ready: Vec<Ready> = ["a17-network", "a17-tcp"]
                .map(|name| Ready::new(&text(name)).expect("it is admitted"))
                .into();
            runtime.block_on(async {
                shut()?;
                for one in ready {
                    match one.run(SMALL).await {
                        Err(Ended::Trapped { limit: Some("capability"), .. }) => {}
                        other => return Err(format!("{other:?}")),
                    }
                }
                Ok(())
            })
        }
        other => Err(format!("no such role: {other}")),
    }
}

fn ended(role: &str) -> Output {
    let command = command(role);
    Command::new(command.program)
        .args(command.arguments)
        .env(ROLE, role)
        .stdin(Stdio::null())
        .output()
        .expect("this program again")
}

#[test]
fn a17_a_process_that_opens_connects_or_starts_something_does_not_live_to_tell() {
    for role in ["opens", "connects", "starts"] {
        let ended = ended(role);
        let said = String::from_utf8_lossy(&ended.stdout);
        assert_eq!(ended.status.signal(), Some(libc::SIGSYS), "{role}: {:?}: {said}", ended.status);
    }
}

#[test]
fn a17_components_that_ask_for_sockets_make_their_process_ask_for_none() {
    assert_eq!(row("a17-network").len() + row("a17-tcp").len(), 2);
    let ended = ended("asks-for-sockets");
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success(), "{:?}: {said}", ended.status);
}

#[tokio::test(flavor = "multi_thread")]
async fn a17_runs_that_try_files_or_send_make_their_process_open_connect_and_start_nothing() {
    let guests_in = Some(command("watched-guest"));
    let sandbox = Sandbox::new(SandboxConfig { guests_in, ..SandboxConfig::default() }).unwrap();
    for name in ["probe", "refund"] {
        let bytes = component(name);
        sandbox.load(digest(&bytes), bytes).await.unwrap();
    }
    for path in ["/etc/passwd", "../../etc/passwd", "/proc/self/environ", "/dev/null", "new.txt"] {
        let gate = Gate::yes();
        let report = sandbox.invoke(probe(json!({ "mode": "open-file", "text": path })), gate).await;
        let result = returned(&report);
        assert!(
            result["read"].get("Ok").is_none() && result["write"].get("Ok").is_none(),
            "{path}: {result}"
        );
    }
    for modes in [mode("env"), mode("no-effect"), mode("clocks"), json!({ "mode": "grow" })] {
        let report = sandbox.invoke(probe(modes), Gate::yes()).await;
        assert!(!matches!(report.ended, Ended::Unavailable(_)), "{report:?}");
    }
    // What is sent is sent by somebody else.
    let gate = Gate::yes();
    let refund = call("refund", json!({ "amount": 1250, "currency": "eur", "payment_intent": "pi_1" }));
    let report = sandbox.invoke(refund, gate.clone()).await;
    assert!(!matches!(report.ended, Ended::Unavailable(_)), "{report:?}");
    assert_eq!(gate.count(), 1);
    // A trap, and a preview of a stranger's words.
    let report = sandbox.invoke(probe(json!({ "mode": "trap" })), Gate::yes()).await;
    assert!(matches!(report.ended, Ended::Trapped { .. }), "{report:?}");
    let report = sandbox.invoke(probe(json!({ "mode": "recurse" })), Gate::yes()).await;
    assert!(matches!(report.ended, Ended::Trapped { .. }), "{report:?}");
}
