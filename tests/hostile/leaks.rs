//! What a host says and holds while something goes wrong, or while a secret is in its hands: its
//! log at its most talkative, a panic's output, the memory of the processes beside it.

use serde_json::json;

use super::processes;
use super::secrets::forms;
use crate::support::dns::{Dns, at};
use crate::support::{Fault, Rule, SECRET, Stage};

/// What is where in a process's memory: whether any of it that can be read holds this text. `None`:
/// nobody may look.
fn memory_holds(pid: u32, text: &str) -> Option<bool> {
    use std::os::unix::fs::FileExt as _;
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    let memory = std::fs::File::open(format!("/proc/{pid}/mem")).ok()?;
    let mut looked = 0;
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let (Some(range), Some(rights)) = (words.next(), words.next()) else { continue };
        let Some((from, to)) = range.split_once('-') else { continue };
        let at = |text: &str| u64::from_str_radix(text, 16).expect("an address");
        // Kernel pages, and what nobody can have written a secret into.
        if !rights.starts_with("rw") || line.contains("[v") {
            continue;
        }
        let (mut from, to) = (at(from), at(to));
        let mut bytes = vec![0; 1 << 20];
        while from < to {
            let wanted = usize::try_from(to - from).map_or(bytes.len(), |left| left.min(bytes.len()));
            let Ok(read @ 1..) = memory.read_at(&mut bytes[..wanted], from) else { break };
            looked += read;
            if String::from_utf8_lossy(&bytes[..read]).contains(text) {
                return Some(true);
            }
            // The next piece begins where a text over the border would.
            let overlap = if (read as u64) < to - from { text.len().min(read - 1) } else { 0 };
            from += (read - overlap) as u64;
        }
    }
    (looked > 0).then_some(false)
}

#[test]
fn c06_while_a_secret_is_being_sent_no_guest_process_has_it_in_its_memory() {
    let stage = Stage::set();
    stage.provider.fault(Rule::once("/v1/refunds", Fault::hold()));
    let id = stage.approved("refund", "held", &stage.refund("held", 100));
    stage.start_execute(&id);
    stage.provider.wait_held(1);
    // The provider has it, so the host sent it; the component waits for its answer.
    let guests = processes::guests_of(&stage.host);
    assert!(!guests.is_empty());
    // The search finds what is there: the host reads it from its file and holds it.
    if memory_holds(stage.host.pid(), SECRET) != Some(true) {
        stage.provider.release();
        crate::skip!("the memory of another process cannot be read here");
    }
    for pid in guests {
        assert_eq!(memory_holds(pid, SECRET), Some(false), "guest process {pid}");
        let environment = std::fs::read(format!("/proc/{pid}/environ")).expect("its environment");
        assert!(environment.is_empty());
    }
    stage.provider.release();
    assert_eq!(stage.wait_for(&id, &["succeeded"]).outcome(), "succeeded");
}

#[test]
fn c02_no_way_to_fail_shows_what_was_sent_however_much_the_host_says() {
    // A server that speaks no TLS, one that nobody resolves, one that hangs up with a reset.
    let resets = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = resets.local_addr().expect("its address").port();
    std::thread::spawn(move || {
        for stream in resets.incoming().flatten() {
            // Bytes that nobody has read make the end a reset; a request that had no time to come
            // makes it an end. Both are ways to fail.
            drop(stream);
        }
    });
    let dns = Dns::start();
    dns.say("gone.example", at(&["127.0.0.1"]));
    let toml = format!("[egress]\ndns = [\"{}\"]\n", dns.address());
    let stage = Stage::over(None, &toml, "30s");
    stage.host.stop();
    let mut command = stage.host.command();
    stage.host.wake_with(command.env("COUNTERSIGN_LOG", "trace"));
    let route = |host: &str, scheme: &str| {
        format!(
            "[[http]]\nhost = \"{host}\"\nport = {port}\nscheme = \"{scheme}\"\nallow_private = true\n\
             methods = [\"POST\"]\npath = \"/**\"\nrecovery = \"manual\"\n[http.headers]\n\
             Authorization = \"Bearer {{{{secret:provider_key}}}}\"\n"
        )
    };
    let cases = [
        ("tls", "gone.example", "https"),
        ("dns", "nowhere.example", "http"),
        ("reset", "gone.example", "http"),
    ];
    for (tool, host, scheme) in cases {
        stage.install_probe(tool, &route(host, scheme));
        let url = format!("{scheme}://{host}:{port}/x?token=query-canary-77");
        let id = stage.approved(
            tool,
            tool,
            &json!({ "mode": "writes", "url": url, "bodies": ["body-canary-78"] }),
        );
        stage.start_execute(&id);
        let told = stage.wait_for(&id, &["failed_retryable", "failed_terminal", "outcome_unknown"]);
        let error = told.json["error"].to_string()
            + &stage.host.agent().get(&format!("/v1/actions/{id}/log")).answer.text();
        for canary in ["canary", SECRET, "InternalError", "internal-error"] {
            assert!(!error.contains(canary), "{tool}: {error}");
        }
    }
    // And one that succeeds.
    let id = stage.approved("refund", "good", &stage.refund("good", 100));
    assert_eq!(stage.execute(&id).outcome(), "succeeded");
    stage.host.stop();
    let said = stage.host.said();
    assert!(said.contains("TRACE") && said.contains("gone.example"), "it did say much: {} bytes", said.len());
    for canary in forms().into_iter().chain(["query-canary-77".into(), "body-canary-78".into()]) {
        let line = said.lines().find(|line| line.contains(&canary));
        assert_eq!(line, None, "{canary} in what the host said");
    }
}

#[cfg(debug_assertions)]
#[test]
fn c03_a_host_that_panics_with_a_secret_in_its_hands_says_nothing_of_it() {
    use super::files_with;
    use crate::support::stage::REFUNDS;

    let stage = Stage::set();
    let id = stage.approved("refund", "panics", &stage.refund("panics", 100));
    stage.host.stop();
    // Where the request is written out whole, secret and all, and its first byte is next.
    let mut command = stage.host.command();
    command.envs([
        ("COUNTERSIGN_PANIC_AT", "before-first-byte"),
        ("RUST_BACKTRACE", "full"),
        ("COUNTERSIGN_LOG", "trace"),
    ]);
    stage.host.wake_with(&mut command);
    stage.start_execute(&id);
    stage.host.wait_said("panicked at");
    stage.wait_for(&id, &["failed_retryable", "outcome_unknown", "running"]);
    stage.host.kill();
    let said = stage.host.said();
    assert!(said.contains("panicked at") && said.contains("stack backtrace"), "{said}");
    for form in forms() {
        assert!(!said.contains(&form), "{form} in what it said");
        let found = files_with(stage.host.folder(), &form);
        assert!(found.iter().all(|path| *path == stage.host.file("provider_key")), "{form}: {found:?}");
    }
    assert_eq!(stage.requests(REFUNDS, &id).len(), 0);
    stage.host.wake();
    let told = stage.wait_for(&id, &["succeeded", "outcome_unknown"]);
    assert!(stage.requests(REFUNDS, &id).len() <= 1, "{}", told.json);
}
