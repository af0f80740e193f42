//! The processes that components are compiled and run in: what such a process can be found to
//! hold, and what becomes of everybody else when one dies. The verdict about effects is the
//! provider's log.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::http::Request;
use crate::support::stage::{REFUNDS, install};
use crate::support::{Fault, Host, Provider, Rule, SECRET, Stage, Told, at_once, grants, guests};

const PATIENCE: Duration = Duration::from_secs(60);

/// The processes of a host in this role.
pub(super) fn processes(host: &Host, role: &str) -> Vec<u32> {
    let parent = format!("PPid:\t{}", host.pid());
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
        if read("status").lines().any(|line| line == parent) && read("cmdline").contains(role) {
            found.push(pid);
        }
    }
    found.sort_unstable();
    found
}

/// The processes that components run in.
pub(super) fn guests_of(host: &Host) -> Vec<u32> {
    processes(host, "guest-process")
}

fn lives(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// Sends a signal until the process is gone: the first SIGSEGV only takes away the engine's
/// handler, which knows that no component was at fault.
pub(super) fn kill(pid: u32, signal: &str) {
    let until = Instant::now() + PATIENCE;
    while lives(pid) {
        assert!(Instant::now() < until, "{pid} outlives SIG{signal}");
        let sent =
            std::process::Command::new("kill").args([&format!("-{signal}"), &pid.to_string()]).status();
        sent.expect("the command kill");
    }
}

pub(super) fn healthz(host: &Host) -> Duration {
    let begun = Instant::now();
    let answer = Request::new("GET", "/healthz").send(&host.address()).expect("an answer");
    assert_eq!(answer.status, 200);
    begun.elapsed()
}

/// Executes until it is over: an attempt that lost its process is followed by another.
#[track_caller]
pub(super) fn finish(stage: &Stage, id: &str) -> Told {
    let until = Instant::now() + PATIENCE;
    loop {
        let told = stage.execute(id);
        if told.outcome() == "succeeded" {
            return told;
        }
        assert!(Instant::now() < until, "it does not succeed: {}", told.json);
    }
}

#[test]
fn a16_c06_a_guest_process_holds_no_secret_no_file_and_can_do_next_to_nothing() {
    let provider = Provider::start(crate::support::BINARY);
    let host = Host::asleep("");
    // The host's own environment has a secret in it, as one with { env = … } has.
    host.wake_with(host.command().env("PROVIDER_KEY", SECRET));
    install(&host, "", &guests::PROBE, &grants::probe(provider.port())).expect(201);
    let stage = Stage { provider, host };
    let id = stage.approved("probe", "one", &json!({ "mode": "no-effect" }));
    assert_eq!(stage.execute(&id).outcome(), "succeeded");
    let found = guests_of(&stage.host);
    assert!(!found.is_empty(), "components run in processes of their own");
    for pid in found {
        // Whoever may not read these files finds no secret there either; root may.
        for name in ["environ", "cmdline"] {
            let Ok(bytes) = std::fs::read(format!("/proc/{pid}/{name}")) else { continue };
            let text = String::from_utf8_lossy(&bytes);
            assert!(!text.contains(SECRET) && !text.contains("PROVIDER_KEY"), "{name}: {text}");
            assert!(name == "cmdline" || text.is_empty(), "{name}: {text}");
        }
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("its status");
        for line in ["Seccomp:\t2", "NoNewPrivs:\t1"] {
            assert!(status.lines().any(|found| found == line), "{line}: {status}");
        }
        let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).expect("its limits");
        let core = limits.lines().find(|line| line.starts_with("Max core file size")).expect("a line");
        assert_eq!(core.split_whitespace().filter(|word| *word == "0").count(), 2, "{core}");
        let open: Vec<PathBuf> = std::fs::read_dir(format!("/proc/{pid}/fd"))
            .expect("its files")
            .filter_map(|file| std::fs::read_link(file.ok()?.path()).ok())
            .collect();
        for file in &open {
            let file = file.to_string_lossy();
            let known = file.starts_with("socket:")
                || file.starts_with("anon_inode:")
                || file.starts_with("/memfd:")
                || file == "/dev/null"
                || file.ends_with("/pagemap");
            assert!(known, "{file} among {open:?}");
        }
    }
}

#[test]
fn a16_p2_and_p3_a_guest_process_that_dies_in_any_phase_takes_nothing_with_it() {
    let stage = Stage::set();
    for signal in ["SEGV", "ABRT", "KILL"] {
        // While the tool is run to find out what it would write, a read of its held.
        let key = format!("planning-{signal}");
        stage.provider.fault(Rule::once("/quote", Fault::hold()));
        let arguments = stage.transfer(1_000);
        std::thread::scope(|scope| {
            let proposing = scope.spawn(|| stage.propose("transfer", &key, &arguments));
            stage.provider.wait_held(1);
            guests_of(&stage.host).into_iter().for_each(|pid| kill(pid, signal));
            healthz(&stage.host);
            stage.provider.release();
            let told = proposing.join().expect("the caller");
            assert!([201, 422, 503].contains(&told.status()), "{}", told.json);
        });

        // While a write is under way; the others' calls go on in the meantime.
        let id =
            stage.approved("refund", &format!("write-{signal}"), &stage.refund(&format!("w{signal}"), 7));
        stage.provider.fault(Rule::once(REFUNDS, Fault::hold()));
        stage.start_execute(&id);
        stage.provider.wait_held(1);
        guests_of(&stage.host).into_iter().for_each(|pid| kill(pid, signal));
        healthz(&stage.host);
        let other = stage.approved("probe", &format!("other-{signal}"), &json!({ "mode": "no-effect" }));
        assert_eq!(stage.execute(&other).outcome(), "succeeded");
        stage.provider.release();
        let first = finish(&stage, &id);
        assert_eq!(stage.counts(REFUNDS, &id), (1, 1), "after SIG{signal} in the middle of a write");
        assert_eq!(stage.execute(&id).raw("result"), first.raw("result"));

        // Between two writes: the first was answered, the second is under way.
        let id = stage.approved("transfer", &format!("between-{signal}"), &stage.transfer(2_000));
        stage.provider.fault(Rule::once("/ledger", Fault::hold()));
        stage.start_execute(&id);
        stage.provider.wait_held(1);
        guests_of(&stage.host).into_iter().for_each(|pid| kill(pid, signal));
        stage.provider.release();
        finish(&stage, &id);
        for path in ["/reserve", "/transfers", "/ledger", "/notify"] {
            assert_eq!(stage.counts(path, &id), (1, 1), "{path} after SIG{signal}");
        }

        // Between two calls: nobody notices.
        guests_of(&stage.host).into_iter().for_each(|pid| kill(pid, signal));
        let id = stage.approved("refund", &format!("idle-{signal}"), &stage.refund(&format!("i{signal}"), 8));
        finish(&stage, &id);
        assert_eq!(stage.counts(REFUNDS, &id), (1, 1));
    }
    stage.audit();
}

#[test]
fn a16_p7_a_guest_process_that_dies_leaves_another_tenants_call_alone() {
    let stage = Stage::set();
    let host = &stage.host;
    let id = stage.approved("refund", "mine", &stage.refund("mine", 5));
    let before = guests_of(host);
    // The same tool in another tenant, its write held.
    let operator = host.new_token("operator-2", &["operator"], "other");
    let agent = host.new_token("agent-2", &["agent"], "other");
    let approver = host.new_token("approver-2", &["approver"], "other");
    let (media_type, body) = crate::support::stage::multipart(&[
        ("component", &guests::REFUND),
        ("grant", grants::refund(stage.provider.port()).as_bytes()),
    ]);
    let operator = host.with_token(&operator);
    operator.send(operator.request("POST", "/v1/tools").body(&media_type, body)).expect(201);
    let agent = host.with_token(&agent);
    let body = json!({ "tool": "refund", "arguments": stage.refund("theirs", 6) }).to_string();
    let request = agent.request("POST", "/v1/actions").header("Idempotency-Key", "theirs");
    let proposed = agent.send(request.body("application/json", body)).expect(201);
    let approver = host.with_token(&approver);
    let request = approver.request("POST", &format!("/v1/actions/{}/approve", proposed.id()));
    approver.send(request.header("If-Match", &format!("\"{}\"", proposed.text("/fingerprint")))).expect(200);
    let theirs: Vec<u32> = guests_of(host).into_iter().filter(|pid| !before.contains(pid)).collect();
    assert!(!theirs.is_empty(), "another tenant's calls run in another process: {before:?}");
    stage.provider.fault(Rule::once(REFUNDS, Fault::hold()));
    std::thread::scope(|scope| {
        let executing = scope.spawn(|| {
            agent.send(agent.request("POST", &format!("/v1/actions/{}/execute?wait=60s", proposed.id())))
        });
        stage.provider.wait_held(1);
        before.iter().for_each(|pid| kill(*pid, "SEGV"));
        finish(&stage, &id);
        assert!(theirs.iter().all(|pid| lives(*pid)));
        stage.provider.release();
        let told = executing.join().expect("the caller");
        assert_eq!(told.outcome(), "succeeded", "{}", told.json);
    });
    assert_eq!(stage.counts(REFUNDS, &proposed.id()), (1, 1));
}

#[test]
fn a13_a_component_that_makes_compilers_work_is_refused_by_name_while_the_host_answers() {
    let stage = Stage::set();
    let function = |body: String| {
        wat::parse_str(format!("(component (core module (func {body})))")).expect("a component")
    };
    let bomb = format!(
        "(local {}) {}{}",
        "i64 ".repeat(5_000),
        "local.get 0 i32.wrap_i64 if ".repeat(20_000),
        "end ".repeat(20_000)
    );
    let types = format!("(component (core module {}))", "(type (func))".repeat(1_000_000));
    let cases = [
        ("blocks", function(bomb)),
        ("bytes in one function", function("nop ".repeat(7_600_000))),
        ("blocks", function(format!("{}{}", "block ".repeat(50_000), "end ".repeat(50_000)))),
        ("br_table", function(format!("i32.const 0 br_table {}", "0 ".repeat(1_000_000)))),
        ("types", wat::parse_str(types).expect("a component")),
        ("locals", function(format!("(local {})", "i64 ".repeat(50_000)))),
    ];
    let grant = grants::probe(stage.provider.port());
    let memory = || resident(stage.host.pid());
    let before = memory();
    for (limit, component) in &cases {
        std::thread::scope(|scope| {
            let installing = scope.spawn(|| install(&stage.host, "", component, &grant));
            let mut slowest = Duration::ZERO;
            while !installing.is_finished() {
                slowest = slowest.max(healthz(&stage.host));
            }
            let told = installing.join().expect("the caller");
            assert_eq!(told.status(), 422, "{}", told.json);
            let said = told.json.to_string();
            assert!(said.contains("component_refused") && said.contains(limit), "{limit}: {said}");
            // A tenth of a second where nothing else runs; this machine may be shared.
            assert!(slowest < Duration::from_secs(1), "an answer took {slowest:?} meanwhile");
        });
    }
    let grown = memory().saturating_sub(before);
    assert!(grown < 128 << 20, "the host holds {} MiB more than before", grown >> 20);
    assert_eq!(processes(&stage.host, "compile-component"), [] as [u32; 0]);
    let id = stage.approved("refund", "after", &stage.refund("after", 100));
    assert_eq!(stage.execute(&id).outcome(), "succeeded");
}

#[test]
fn a16_with_guest_processes_off_everything_else_is_as_before() {
    let stage = Stage::over(None, "guest_processes = \"off\"", "5s");
    let told = at_once(4, |n| {
        let id = stage.approved("refund", &format!("off-{n}"), &stage.refund(&format!("off{n}"), 9));
        stage.execute(&id)
    });
    assert!(told.iter().all(|told| told.outcome() == "succeeded"));
    assert_eq!(guests_of(&stage.host), [] as [u32; 0]);
}

/// Bytes of memory that a process has in use now.
fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}
