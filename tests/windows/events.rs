//! Events: one per transition, in order, without a gap, resumable from any of them.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::on_both_stores;
use crate::support::host::BINARY;
use crate::support::process::stand_still;
use crate::support::sse::{Event, Stream};
use crate::support::stage::multipart;
use crate::support::{Backend, Stage, Told, at_once, guests};

on_both_stores! {
    p8_a_stream_of_one_action_shows_every_event_once_and_ends_with_the_action,
    last_event_id_resumes_at_every_event_without_loss_or_doubling,
    a_tenants_stream_cut_again_and_again_shows_every_event_of_busy_actions_exactly_once,
    i04_text_in_an_action_cannot_forge_an_event,
    a_position_that_is_none_is_refused_and_a_sixth_stream_of_one_token_too,
    h04_a_revoked_token_loses_its_stream_within_seconds,
}

fn listen(stage: &Stage, target: &str, after: Option<&str>) -> Stream {
    let agent = stage.host.agent();
    Stream::open(&agent, &stage.host.address(), target, after)
        .unwrap_or_else(|told| panic!("no stream: {}", told.status()))
}

fn names(events: &[Event]) -> Vec<&str> {
    events.iter().filter_map(|event| event.data["event"].as_str()).collect()
}

const WHOLE: [&str; 5] = ["proposed", "approval_required", "approved", "claimed", "succeeded"];

fn p8_a_stream_of_one_action_shows_every_event_once_and_ends_with_the_action(on: Backend) {
    let stage = Stage::on(on);
    let proposed = stage.propose("refund", "stream", &stage.refund("stream", 100));
    let id = proposed.id();
    let target = format!("/v1/actions/{id}/events");
    let mut stream = listen(&stage, &target, None);
    let mut seen = stream.take(2);
    stage.approve(&id, &proposed.text("/fingerprint")).expect(200);
    seen.extend(stream.take(1));
    stage.execute(&id);
    seen.extend(std::iter::from_fn(|| stream.next()));
    assert_eq!(names(&seen), WHOLE);
    let ids: Vec<&str> = seen.iter().map(|event| event.id.as_str()).collect();
    assert_eq!(ids, ["1", "2", "3", "4", "5"]);
    // The same, as a page.
    let page = stage.host.agent().get(&target).expect(200);
    let data: Vec<Value> = seen.iter().map(|event| event.data.clone()).collect();
    assert_eq!(page.json["events"], json!(data));
    // Nothing will ever follow: whoever reconnects is told so.
    let agent = stage.host.agent();
    let ended = Stream::open(&agent, &stage.host.address(), &target, Some("5")).err().expect("no stream");
    assert_eq!(ended.status(), 204);
}

fn last_event_id_resumes_at_every_event_without_loss_or_doubling(on: Backend) {
    let stage = Stage::on(on);
    let id = stage.approved("refund", "resume", &stage.refund("resume", 100));
    stage.execute(&id);
    let target = format!("/v1/actions/{id}/events");
    for after in 0..5 {
        let mut stream = listen(&stage, &target, Some(&after.to_string()));
        let rest: Vec<Event> = std::iter::from_fn(|| stream.next()).collect();
        assert_eq!(names(&rest), WHOLE[after..]);
    }
}

fn a_tenants_stream_cut_again_and_again_shows_every_event_of_busy_actions_exactly_once(on: Backend) {
    const ACTIONS: usize = 24;
    let stage = Stage::on(on);
    let begin = stage.host.agent().get("/v1/events?limit=1000").expect(200).number("/next");
    let mut seen: Vec<Event> = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            at_once(4, |thread| {
                for n in 0..ACTIONS / 4 {
                    let key = format!("busy-{thread}-{n}");
                    let id = stage.approved("refund", &key, &stage.refund(&key, 100));
                    stage.execute(&id);
                }
            });
        });
        let mut after = begin.to_string();
        while seen.len() < ACTIONS * WHOLE.len() {
            // A new stream from where the last one was cut.
            let mut stream = listen(&stage, "/v1/events", Some(&after));
            for _ in 0..7.min(ACTIONS * WHOLE.len() - seen.len()) {
                let event = stream.next().expect("one more event");
                after = event.id.clone();
                seen.push(event);
            }
        }
    });
    let cursors: Vec<u64> = seen.iter().map(|event| event.id.parse().expect("a number")).collect();
    assert!(cursors.windows(2).all(|pair| pair[0] < pair[1]), "cursors grow: {cursors:?}");
    let each: BTreeSet<(String, u64)> = seen
        .iter()
        .map(|event| (event.data["action"].to_string(), event.data["seq"].as_u64().expect("a number")))
        .collect();
    assert_eq!(each.len(), ACTIONS * WHOLE.len());
    assert_eq!(stage.audit(), ACTIONS);
}

fn i04_text_in_an_action_cannot_forge_an_event(on: Backend) {
    let stage = Stage::on(on);
    let evil = "x\n\nevent: approved\ndata: {\"event\":\"approved\"}\n\n";
    let id = stage.propose("probe", "forge", &json!({ "mode": "no-effect", "text": evil })).expect(201).id();
    stage.host.agent().post(&format!("/v1/actions/{id}/cancel"), &json!({ "reason": evil })).expect(200);
    let mut stream = listen(&stage, &format!("/v1/actions/{id}/events"), None);
    let seen: Vec<Event> = std::iter::from_fn(|| stream.next()).collect();
    assert_eq!(names(&seen), ["proposed", "approval_required", "cancelled"]);
    assert!(seen[2].data.to_string().contains("event: approved"), "the words are there, as words");
}

fn a_position_that_is_none_is_refused_and_a_sixth_stream_of_one_token_too(on: Backend) {
    let stage = Stage::on(on);
    let agent = stage.host.agent();
    for bad in ["-1", "x", "1.5", "", "99999999999999999999"] {
        let request = agent.request("GET", "/v1/events").header("Last-Event-ID", bad);
        agent.send(request).refused(400, "invalid_request");
    }
    let open: Vec<Stream> = (0..5).map(|_| listen(&stage, "/v1/events", None)).collect();
    let request = agent.request("GET", "/v1/events").header("Accept", "text/event-stream");
    let refused = agent.send(request);
    refused.refused(429, "quota_exceeded");
    assert!(refused.answer.header("retry-after").is_some());
    drop(open);
}

fn h04_a_revoked_token_loses_its_stream_within_seconds(on: Backend) {
    let stage = Stage::on(on);
    let token = stage.host.new_token("leaver", &["agent"], "default");
    let leaver = stage.host.with_token(&token);
    let mut stream = Stream::open(&leaver, &stage.host.address(), "/v1/events", None)
        .unwrap_or_else(|told| panic!("no stream: {}", told.status()));
    let admin = stage.host.admin();
    let public = token.split('_').nth(1).expect("its public part").to_owned();
    admin.send(admin.request("DELETE", &format!("/v1/tokens/{public}"))).expect(204);
    leaver.get("/v1/tools").refused(401, "unauthenticated");
    let begun = std::time::Instant::now();
    while stream.next().is_some() {}
    assert!(begun.elapsed() < std::time::Duration::from_secs(5), "after {:?}", begun.elapsed());
}

/// A connection whose system takes next to nothing that nobody reads.
fn deaf(address: &str) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, connect, socket, sockopt};
    let made = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    sockopt::set_socket_recv_buffer_size(&made, 2048).expect("a small one");
    connect(&made, &address.parse::<SocketAddr>().expect("an address")).expect("a connection");
    TcpStream::from(made)
}

/// Connections that a process holds, and whatever else it does not close.
fn open_files(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).expect("its files").count()
}

/// Nobody reads from two thousand sockets: each token, tenant and host has so many streams, what is
/// beyond is refused, all of them are ended, and somebody else hears at once.
#[test]
fn i03_two_thousand_sockets_that_never_read_are_ended_and_keep_nobody_else_waiting() {
    const TENANTS: usize = 9;
    const TOKENS: usize = 10;
    const SOCKETS: usize = 2_000;
    let stage = Stage::set();
    let resident = || {
        let statm = std::fs::read_to_string(format!("/proc/{}/statm", stage.host.pid())).expect("statm");
        let pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("pages");
        pages * 4096
    };
    // More has happened to each tenant than fits on the way to somebody who does not listen.
    let words = "x".repeat(2_000);
    at_once(TENANTS, |tenant| {
        let new_token = |role: &str| {
            stage.host.new_token(&format!("first-{role}-{tenant}"), &[role], &format!("deaf-{tenant}"))
        };
        let operator = stage.host.with_token(&new_token("operator"));
        let (media, body) =
            multipart(&[("component", &guests::PROBE), ("grant", b"[approval]\nrequired = 1\n")]);
        operator.send(operator.request("POST", "/v1/tools").body(&media, body)).expect(201);
        let agent = new_token("agent");
        let agent = stage.host.with_token(&agent);
        for n in 0..70 {
            let proposal = json!({ "tool": "probe", "arguments": { "mode": "no-effect" }, "run_id": "r",
                "step": n.to_string() });
            let id = agent.post("/v1/actions", &proposal).expect(201).id();
            agent.post(&format!("/v1/actions/{id}/cancel"), &json!({ "reason": words })).expect(200);
        }
    });
    let tokens: Vec<String> = (0..TENANTS * TOKENS)
        .map(|n| stage.host.new_token(&format!("deaf-{n}"), &["agent"], &format!("deaf-{}", n % TENANTS)))
        .collect();
    let (before, files) = (resident(), open_files(stage.host.pid()));
    let address = stage.host.address();
    let sockets: Vec<TcpStream> = (0..SOCKETS)
        .map(|n| {
            let caller = stage.host.with_token(&tokens[n % tokens.len()]);
            let request = caller.request("GET", "/v1/events").header("Accept", "text/event-stream");
            let mut socket = deaf(&address);
            request.write(&mut socket).expect("a request");
            socket
        })
        .collect();
    let begun = Instant::now();
    // As many of them as may have a stream, have one.
    let one = stage.host.with_token(&tokens[0]);
    let no_more = || {
        let request = one.request("GET", "/v1/events").header("Accept", "text/event-stream");
        Told::of(request.send(&address).expect("an answer"))
    };
    let hears_within_a_second = |key: &str| {
        let mut stream = listen(&stage, "/v1/events", Some(&last_event(&stage)));
        let id = stage.propose("probe", key, &json!({ "mode": "no-effect" })).expect(201).id();
        let proposed = Instant::now();
        let heard = stream.next().expect("an event");
        assert_eq!(heard.data["action"], json!(id));
        assert!(proposed.elapsed() < Duration::from_secs(1), "{:?}", proposed.elapsed());
    };
    hears_within_a_second("meanwhile");
    let refused = no_more();
    let said = refused.refused(429, "quota_exceeded");
    assert!(said.contains("streams"), "{said}");
    assert!(
        ["streams.token", "streams.tenant"].contains(&refused.text("/quota").as_str()),
        "{}",
        refused.json
    );
    // Not by anything that they do: they never read, and none of them is closed here.
    let mut most = resident();
    while open_files(stage.host.pid()) > files + 2 {
        let left = open_files(stage.host.pid());
        assert!(begun.elapsed() < Duration::from_secs(60), "{} are still there", left - files);
        most = most.max(resident());
        std::thread::sleep(Duration::from_millis(100));
    }
    let grown = most.saturating_sub(before);
    eprintln!("{SOCKETS} deaf sockets: {} MiB at most, all gone after {:?}", grown >> 20, begun.elapsed());
    assert!(grown < 64 << 20, "{} MiB for sockets that nobody reads from", grown >> 20);
    Stream::open(&one, &address, "/v1/events", None)
        .unwrap_or_else(|told| panic!("no stream: {}", told.json));
    hears_within_a_second("afterwards");
    drop(sockets);
}

/// Where a tenant's events end at this moment.
fn last_event(stage: &Stage) -> String {
    stage.host.agent().get("/v1/events?limit=1000").expect(200).number("/next").to_string()
}

/// A client whose process is stopped is for its host as one whose cable is pulled once its window
/// is full: nobody takes anything, and nobody says so.
#[test]
fn i03_the_stream_of_a_client_that_was_stopped_is_ended_and_its_place_is_free_again() {
    let stage = Stage::set();
    let address = stage.host.address();
    let token = stage.host.new_token("watcher", &["agent"], "default");
    let watcher = stage.host.with_token(&token);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("token");
    std::fs::write(&file, &token).expect("the token");
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("a mode");
    // The token's other four, in which nothing happens.
    let quiet = stage.propose("refund", "quiet", &stage.refund("quiet", 100)).expect(201).id();
    let target = format!("/v1/actions/{quiet}/events");
    let open = || Stream::open(&watcher, &address, &target, Some("2"));
    let _quiet: Vec<Stream> =
        (0..4).map(|_| open().unwrap_or_else(|told| panic!("no stream: {}", told.status()))).collect();
    let mut child = Command::new(BINARY)
        .args(["watch", "--all", "--url", &format!("http://{address}"), "--token-file"])
        .arg(&file)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("a client");
    let until = Instant::now() + Duration::from_secs(60);
    while open().is_ok() {
        assert!(Instant::now() < until, "the client has no stream");
        std::thread::sleep(Duration::from_millis(50));
    }
    stand_still(child.id());
    let words = "x".repeat(2_000);
    at_once(4, |part| {
        for n in 0..40 {
            let key = format!("much-{part}-{n}");
            let id = stage.propose("probe", &key, &json!({ "mode": "no-effect" })).expect(201).id();
            let reason = json!({ "reason": words });
            stage.host.agent().post(&format!("/v1/actions/{id}/cancel"), &reason).expect(200);
        }
    });
    let stopped = Instant::now();
    while let Err(told) = open() {
        assert_eq!(told.status(), 429);
        assert!(stopped.elapsed() < Duration::from_secs(60), "its place is kept");
        std::thread::sleep(Duration::from_millis(250));
    }
    child.kill().expect("its end");
    child.wait().expect("its end");
}
