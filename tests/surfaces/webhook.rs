//! Webhooks: an outcome that waits for a person is told to whoever the operator named, signed, at
//! least once, until it is acknowledged; and nothing that is told is worth stealing.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use sha2::Sha256;

use crate::on_both_stores;
use crate::support::grants::{Route, grant};
use crate::support::{Backend, Fault, Mode, Rule, Stage};

on_both_stores! {
    p9_a_doubt_that_waits_for_a_person_is_told_until_it_is_acknowledged_also_after_a_kill,
}

const KEY: [u8; 32] = [42; 32];

/// What a receiver heard.
#[derive(Debug)]
struct Heard {
    id: String,
    at: String,
    signature: String,
    body: String,
}

impl Heard {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).expect("JSON")
    }

    #[track_caller]
    fn is_signed(&self) {
        let mut mac = Hmac::<Sha256>::new_from_slice(&KEY).expect("a key");
        mac.update(format!("{}.{}.{}", self.id, self.at, self.body).as_bytes());
        assert_eq!(self.signature, format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes())));
    }
}

/// Somebody at whom a webhook is pointed.
struct Receiver {
    port: u16,
    answers: Arc<AtomicU16>,
    heard: mpsc::Receiver<Heard>,
}

impl Receiver {
    /// Answers with this status until told another.
    fn start(status: u16) -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let (answers, (tell, heard)) = (Arc::new(AtomicU16::new(status)), mpsc::channel());
        let says = answers.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                let mut reader = BufReader::new(stream);
                let (mut head, mut line) = (Vec::new(), String::new());
                while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
                    head.push(line.trim_end().to_owned());
                    line.clear();
                }
                let header = |name: &str| {
                    let found = head.iter().filter_map(|line| line.split_once(": "));
                    let found = found.into_iter().find(|(found, _)| found.eq_ignore_ascii_case(name));
                    found.map(|(_, value)| value.to_owned()).unwrap_or_default()
                };
                let mut body = vec![0; header("content-length").parse().unwrap_or(0)];
                if reader.read_exact(&mut body).is_err() {
                    // A host that was killed in the middle of it.
                    continue;
                }
                let heard = Heard {
                    id: header("webhook-id"),
                    at: header("webhook-timestamp"),
                    signature: header("webhook-signature"),
                    body: String::from_utf8(body).expect("UTF-8"),
                };
                let status = says.load(Ordering::SeqCst);
                let answer = format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                let _ = reader.get_mut().write_all(answer.as_bytes());
                if tell.send(heard).is_err() {
                    return;
                }
            }
        });
        Receiver { port, answers, heard }
    }

    fn next(&self) -> Heard {
        self.heard.recv_timeout(Duration::from_secs(60)).expect("a webhook")
    }
}

fn p9_a_doubt_that_waits_for_a_person_is_told_until_it_is_acknowledged_also_after_a_kill(on: Backend) {
    let receiver = Receiver::start(500);
    let folder = tempfile::tempdir().expect("a folder");
    let key = folder.path().join("hook_key");
    std::fs::write(&key, format!("whsec_{}", STANDARD.encode(KEY))).expect("a key");
    let toml = format!(
        "{}\n[[webhook]]\nurl = \"http://127.0.0.1:{}/hook?token=canary\"\nsecret = {{ file = {:?} }}\n\
         events = [\"waits_for_person\"]",
        on.lease(),
        receiver.port,
        key.display().to_string()
    );
    let stage = Stage::on_with(on, &toml, on.send());
    stage.provider.set_mode(Mode::Ignores);
    let short = "show = [\"/mode\"]\n[limits]\nsend = \"700ms\"";
    stage.install_probe("manual", &grant(short, &[Route::manual(stage.provider.port(), "/any/**")]));
    stage.provider.fault(Rule::once("/any/hook", Fault::LoseReply));
    let write = json!({ "mode": "writes", "url": stage.url("/any/hook"), "bodies": ["canary-argument"] });
    let id = stage.approved("manual", "hook", &write);
    stage.execute(&id).refused(409, "execution_in_doubt");

    let first = receiver.next();
    first.is_signed();
    let said = first.json();
    assert_eq!((&said["type"], &said["data"]["action"]), (&json!("action.waits_for_person"), &json!(id)));
    assert_eq!((&said["data"]["status"], &said["data"]["ordinal"]), (&json!("outcome_unknown"), &json!(1)));
    assert!(said["data"]["links"]["resolve"].as_str().is_some_and(|link| link.ends_with("/resolve")));
    assert!(!first.body.contains("canary"), "no argument, no key, no token: {}", first.body);

    // Not acknowledged: it comes again, the same message, and after a kill still the same.
    let second = receiver.next();
    second.is_signed();
    assert_eq!((&second.id, &second.body), (&first.id, &first.body));
    stage.host.kill_and_wake();
    let third = receiver.next();
    third.is_signed();
    assert_eq!(third.id, first.id);
    assert_eq!(stage.action(&id).outcome(), "outcome_unknown", "telling is not settling");

    receiver.answers.store(204, Ordering::SeqCst);
    stage.host.wait_said("an action waits for a person");
    // Remembered as well: from here on it is told no more, also to those who start anew.
    let remembered = "countersign_store_step_seconds_count{step=\"announced\"} 1";
    while !stage.host.operator().get("/metrics").answer.text().contains(remembered) {}
    while receiver.heard.try_recv().is_ok() {}
    stage.host.kill_and_wake();
    stage.propose("refund", "later", &stage.refund("later", 100)).expect(201);
    let metrics = stage.host.operator().get("/metrics").answer.text();
    assert!(metrics.contains("countersign_waiting_for_person{for=\"outcome\"} 1"), "{metrics}");
    assert!(receiver.heard.try_recv().is_err(), "it was acknowledged");
    assert!(!stage.host.said().contains("token=canary"), "the URL's own secret is in no log");
}
