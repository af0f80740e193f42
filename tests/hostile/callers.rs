//! Callers that are not who they say, look where nothing is theirs, came too late, or are slow on
//! purpose.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::on_both_stores;
use crate::support::host::BINARY;
use crate::support::http::Request;
use crate::support::sse::Stream;
use crate::support::stage::{REFUNDS, multipart};
use crate::support::{Backend, Host, Stage, Told, grants, guests, is_set, long, root};

on_both_stores! {
    h04_what_somebody_approved_whose_token_was_revoked_since_is_not_executed,
    i04_another_tenants_place_in_its_events_shows_nothing_of_them_and_hides_nothing_of_ones_own,
}

fn h04_what_somebody_approved_whose_token_was_revoked_since_is_not_executed(on: Backend) {
    let stage = Stage::on(on);
    let token = stage.host.new_token("leaver", &["approver"], "default");
    let proposed = stage.propose("refund", "left", &stage.refund("left", 100)).expect(201);
    let id = proposed.id();
    let leaver = stage.host.with_token(&token);
    let request = leaver.request("POST", &format!("/v1/actions/{id}/approve"));
    let saw = format!("\"{}\"", proposed.text("/fingerprint"));
    assert_eq!(leaver.send(request.header("If-Match", &saw)).expect(200).outcome(), "approved");
    let public = token.split('_').nth(1).expect("its public part");
    let admin = stage.host.admin();
    admin.send(admin.request("DELETE", &format!("/v1/tokens/{public}"))).expect(204);
    let told = stage.execute(&id);
    assert_ne!(told.outcome(), "succeeded", "{}", told.json);
    assert_eq!(stage.action(&id).ending(), "cancelled action_changed");
    assert_eq!(stage.counts(REFUNDS, &id), (0, 0));
    // Proposed anew and approved by somebody who is still there, it is.
    let id = stage.approved("refund", "again", &stage.refund("left", 100));
    assert_eq!(stage.execute(&id).outcome(), "succeeded");
}

fn i04_another_tenants_place_in_its_events_shows_nothing_of_them_and_hides_nothing_of_ones_own(on: Backend) {
    let stage = Stage::on(on);
    let theirs = stage.approved("refund", "theirs", &stage.refund("theirs", 100));
    stage.execute(&theirs);
    let address = stage.host.address();
    let new_token = |role: &str| stage.host.new_token(&format!("other-{role}"), &[role], "other");
    let operator = stage.host.with_token(&new_token("operator"));
    let refund = grants::refund(stage.provider.port());
    let (media, body) = multipart(&[("component", &guests::REFUND), ("grant", refund.as_bytes())]);
    operator.send(operator.request("POST", "/v1/tools").body(&media, body)).expect(201);
    let agent = new_token("agent");
    let agent = stage.host.with_token(&agent);
    // Of an action of another's there is no stream, from whatever event on.
    for after in [None, Some("1")] {
        let target = format!("/v1/actions/{theirs}/events");
        let refused = Stream::open(&agent, &address, &target, after).err().expect("no stream");
        assert_eq!(refused.status(), 404);
    }
    // Whatever number of theirs a stream goes on from, what comes is one's own.
    let cursors: Vec<String> = stage.host.agent().get("/v1/events?limit=1000").expect(200).json["events"]
        .as_array()
        .expect("events")
        .iter()
        .map(|event| event["cursor"].to_string())
        .collect();
    assert!(cursors.len() >= 5, "{cursors:?}");
    for after in [cursors[0].as_str(), cursors[2].as_str(), cursors[cursors.len() - 1].as_str()] {
        let key = format!("own-{after}");
        let mut stream = Stream::open(&agent, &address, "/v1/events", Some(after))
            .unwrap_or_else(|told| panic!("no stream: {}", told.status()));
        let proposal =
            json!({ "tool": "refund", "arguments": stage.refund(&key, 100), "run_id": "r", "step": key });
        let own = agent.post("/v1/actions", &proposal).expect(201).id();
        loop {
            let event = stream.next().expect("an event");
            assert_eq!(event.data["tenant"].as_str().unwrap_or("other"), "other", "{}", event.data);
            assert_ne!(event.data["action"], json!(theirs));
            if event.data["action"] == json!(own) {
                break;
            }
        }
    }
}

#[test]
fn h01_no_source_compares_a_token_in_a_time_that_tells_how_much_of_it_was_right() {
    fn lines(folder: &Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                lines(&path, found);
            } else if path.extension().is_some_and(|end| end == "rs") {
                let text = std::fs::read_to_string(&path).expect("a source");
                // Tests compare what they like.
                let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
                found.extend(text.lines().map(|line| format!("{}: {line}", path.display())));
            }
        }
    }
    let mut all = Vec::new();
    lines(&root().join("host/server/src"), &mut all);
    for room in ["gate", "store"] {
        lines(&root().join("host").join(room).join("src"), &mut all);
    }
    all.retain(|line| {
        !line.contains("/conformance/") && !line.contains("/tests/") && !line.contains("/fake_host")
    });
    let compares = |line: &&String| line.contains(" == ") || line.contains(" != ") || line.contains(".eq(");
    let secret =
        |line: &&String| ["token_hash", ".reveal()", "token.hash"].iter().any(|part| line.contains(part));
    let found: Vec<&String> = all.iter().filter(secret).filter(compares).collect();
    assert!(found.is_empty(), "{found:#?}");
    let right: Vec<&String> = all.iter().filter(|line| line.contains(".ct_eq(")).collect();
    assert!(right.iter().any(|line| line.contains("token_hash")), "{right:#?}");
}

#[test]
fn h03_the_command_line_and_streams_say_of_anothers_action_what_they_say_of_none() {
    let stage = Stage::set();
    let id = stage.propose("refund", "mine", &stage.refund("mine", 100)).expect(201).id();
    let never = "01234567-89ab-8cde-8f01-23456789abcd";
    let token = stage.host.new_token("outsider", &["agent", "approver", "operator"], "other");
    let outsider = stage.host.with_token(&token);
    let address = stage.host.address();
    let stream = |id: &str| {
        let target = format!("/v1/actions/{id}/events");
        let refused = outsider.send(outsider.request("GET", &target).header("Accept", "text/event-stream"));
        refused.refused(404, "not_found");
        refused.answer.text().replace(id, never)
    };
    assert_eq!(stream(&id), stream(never));
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("token");
    std::fs::write(&file, &token).expect("the token");
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("a mode");
    let run = |words: &[&str], id: &str| {
        let words = words.iter().map(|word| if *word == "ID" { id } else { word });
        let mut command = std::process::Command::new(BINARY);
        command.args(words).arg("--url").arg(format!("http://{address}")).arg("--token-file").arg(&file);
        let told = command.env_clear().env("HOME", folder.path()).output().expect("the command line");
        let said = [told.stdout, told.stderr].concat();
        (told.status.code(), String::from_utf8_lossy(&said).replace(id, never))
    };
    for words in [
        &["show", "ID"][..],
        &["watch", "ID"],
        &["approve", "ID", "--yes"],
        &["decline", "ID", "--reason", "r"],
        &["execute", "ID"],
        &["reconcile", "ID"],
    ] {
        let (theirs, none) = (run(words, &id), run(words, never));
        assert_ne!(theirs.0, Some(0), "{words:?}: {theirs:?}");
        assert_eq!(theirs, none, "{words:?}");
    }
    assert_eq!(stage.action(&id).outcome(), "awaiting_approval");
}

#[test]
fn h03_how_long_an_answer_takes_does_not_tell_anothers_action_from_none() {
    let stage = Stage::set();
    let id = stage.propose("refund", "mine", &stage.refund("mine", 100)).expect(201).id();
    let token = stage.host.new_token("outsider", &["agent"], "other");
    let outsider = stage.host.with_token(&token);
    let never = "01234567-89ab-8cde-8f01-23456789abcd";
    let mut took = [Vec::new(), Vec::new()];
    // In turn, so that what else this machine does is in both.
    for n in 0..long(2_000, 20_000) {
        let which = n % 2;
        let begun = Instant::now();
        outsider.get(&format!("/v1/actions/{}", [id.as_str(), never][which])).refused(404, "not_found");
        took[which].push(begun.elapsed());
    }
    let [theirs, none] = took.map(|mut took| {
        took.sort();
        took[took.len() / 2]
    });
    let apart = theirs.abs_diff(none);
    eprintln!("another tenant's {theirs:?}, none {none:?}");
    assert!(apart < Duration::from_millis(1), "another tenant's {theirs:?}, none {none:?}");
}

#[test]
fn h05_a_thousand_connections_that_send_a_byte_in_ten_seconds_are_closed_and_keep_nobody_waiting() {
    let host = Host::start();
    let address = host.address();
    let mut slow: Vec<TcpStream> = (0..1_000)
        .map(|_| {
            let mut socket = TcpStream::connect(&address).expect("a connection");
            socket.write_all(b"G").expect("a byte");
            socket.set_nonblocking(true).expect("a socket");
            socket
        })
        .collect();
    let begun = Instant::now();
    // Where other tests run at the same time, what is waited for is the processor.
    let at_once = Duration::from_secs(if is_set("COUNTERSIGN_TESTS_ALONE") { 1 } else { 5 });
    let mut second = false;
    while !slow.is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(15), "{} are still open", slow.len());
        if !second && begun.elapsed() > Duration::from_secs(9) {
            second = true;
            // Those that are closed by now say so.
            slow.iter_mut().for_each(|socket| drop(socket.write_all(b"E")));
        }
        let asked = Instant::now();
        let answer = Request::new("GET", "/healthz").send(&address).expect("an answer");
        assert_eq!(answer.status, 200);
        assert!(asked.elapsed() < at_once, "{:?}", asked.elapsed());
        slow.retain_mut(|socket| match socket.read(&mut [0; 512]) {
            Ok(0) => false,
            Ok(_) => true,
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        });
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(begun.elapsed() > Duration::from_secs(5), "they had their time: {:?}", begun.elapsed());
}

#[test]
fn h05_a_body_over_its_limit_a_head_over_its_and_a_compressed_one_are_refused() {
    let host = Host::start();
    let agent = host.agent();
    let body = |bytes: usize| format!("{{\"tool\":\"{}\"}}", "x".repeat(bytes));
    let post = |body: String| {
        let request = agent.request("POST", "/v1/actions").header("Idempotency-Key", "k");
        agent.send(request.body("application/json", body))
    };
    post(body(1 << 20)).refused(413, "too_large");
    post(body(1 << 10)).refused(400, "invalid_request");
    // Without a length, too.
    let chunk = "x".repeat(60 << 10);
    let chunks: String = (0..20).map(|_| format!("{:x}\r\n{chunk}\r\n", chunk.len())).collect();
    let told = Told::of(
        agent
            .request("POST", "/v1/actions")
            .header("Idempotency-Key", "k")
            .header("Transfer-Encoding", "chunked")
            .body("application/json", format!("{chunks}0\r\n\r\n"))
            .send(&host.address())
            .expect("an answer"),
    );
    told.refused(413, "too_large");
    for bytes in [8 << 10, 20 << 10] {
        let request = Request::new("GET", "/healthz").header("X-Long", &"x".repeat(bytes));
        let status = request.send(&host.address()).map_or(0, |answer| answer.status);
        assert_eq!(status == 200, bytes < 16 << 10, "{bytes} bytes of header: {status}");
    }
    let zipped = agent.request("POST", "/v1/actions").header("Content-Encoding", "gzip");
    agent.send(zipped.body("application/json", "{}")).refused(415, "invalid_request");
}
