//! The provider's side breaks: at every byte of an exchange, with answers that come too late, too
//! long, too often or not at all (FI-6). Whatever it does, what may be repeated is made once, and
//! what may not is sent once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;

use crate::on_both_stores;
use crate::support::campaign::{Kind, Load};
use crate::support::cutter::Cutter;
use crate::support::grants::{Route, grant, sending_for};
use crate::support::seed::Seed;
use crate::support::stage::REFUNDS;
use crate::support::{Backend, Fault, Rule, Stage, at_once, long};

on_both_stores! {
    fi_6_upstream_faults_at_random_make_what_may_be_repeated_once_and_send_what_may_not_once,
    tls_that_is_broken_off_is_not_sent_and_tried_again,
}

/// Bytes of an exchange: head and body up, head and body down.
const UP: usize = 2_600;
const DOWN: usize = 600;

#[test]
fn fi_6_a_connection_that_breaks_at_each_byte_of_an_exchange_leaves_one_effect_or_one_honest_doubt() {
    let mut seed = Seed::of_this_run("cut at each byte");
    let stage = Stage::set();
    let cutter = Cutter::to(stage.provider.address());
    let head = "show = [\"/mode\"]\n[limits]\nsend = \"5s\"";
    let routes = [Route::idempotent(cutter.port(), "/keyed/**"), Route::manual(cutter.port(), "/any/**")];
    stage.install_probe("cut", &grant(head, &routes));
    let step = long(53, 1);
    let phase = seed.below(step);
    let cuts: Vec<String> = (phase..UP)
        .step_by(step)
        .map(|n| format!("cut-up-{n}"))
        .chain((phase..DOWN).step_by(step.min(23)).map(|n| format!("cut-down-{n}")))
        .flat_map(|cut| [format!("/keyed/{cut}"), format!("/any/{cut}")])
        .collect();
    let next = AtomicUsize::new(0);
    let doubts = at_once(4, |_| {
        let mut doubts = 0;
        while let Some(path) = cuts.get(next.fetch_add(1, Ordering::Relaxed)) {
            let body = "x".repeat(2_000);
            let arguments =
                json!({ "mode": "writes", "url": format!("{}{path}", cutter.url()), "bodies": [body] });
            let repeatable = path.starts_with("/keyed/");
            if repeatable && path.contains("-up-") {
                // The first one never came whole. The repeat is told that it is being worked on,
                // which settles nothing.
                stage.provider.fault(Rule::once(path, Fault::status(409)));
            }
            let id = stage.approved("cut", path, &arguments);
            let told = stage.execute(&id);
            let effects = stage.effects(path, &id).len();
            // What came in part only is in the log as well, without a key where the head was cut.
            let whole = stage
                .requests(path, &id)
                .into_iter()
                .filter(|line| line.outcome.as_deref() != Some("incomplete"));
            if repeatable {
                assert_eq!(told.outcome(), "succeeded", "{path}: {}", told.json);
                assert_eq!(told.json["result"]["answers"][0]["status"], 200, "{path}: {}", told.json);
                assert_eq!(effects, 1, "{path}");
            } else {
                assert!(whole.count() <= 1 && effects <= 1, "{path}: sent again");
                let outcome = told.outcome();
                let honest = ["succeeded", "execution_in_doubt"].contains(&outcome.as_str());
                assert!(honest, "{path}: {}", told.json);
                assert!(effects == 1 || outcome != "succeeded", "{path}: it was not made");
                doubts += usize::from(outcome == "execution_in_doubt");
            }
            stage.facts(&id);
        }
        doubts
    });
    let doubts: usize = doubts.into_iter().sum();
    eprintln!("{} cuts, {doubts} doubts where nothing may be repeated", cuts.len());
    assert!(doubts > cuts.len() / 4, "hardly anything was cut");
}

fn fi_6_upstream_faults_at_random_make_what_may_be_repeated_once_and_send_what_may_not_once(on: Backend) {
    let seed = Seed::of_this_run("upstream faults");
    let stage = Stage::on_with(on, on.lease(), "2s");
    let route = Route::manual(stage.provider.port(), "/any/**");
    stage.install_probe("manual", &grant("[limits]\nsend = \"2s\"", &[route]));
    let load = Load {
        stage: &stage,
        hosts: vec![&stage.host],
        kinds: &[Kind::Refund, Kind::Manual],
        callers: 8,
        seed: seed.clone(),
    };
    let before = resident(stage.host.pid());
    let mut faults = 0;
    let items = load.during(|| {
        let mut order = seed.part(7);
        for _ in 0..long(60, 5_000) {
            let fault = match order.below(12) {
                0 => Fault::ResetAtByte { n: order.below(700) as u64 },
                1 => Fault::status(500),
                2 => Fault::status(503),
                3 => Fault::Drip { ms: 2, n: 16 },
                4 => Fault::LoseReply,
                5 => Fault::Continues { n: 5, code: 100 },
                6 => Fault::BigBody { bytes: 64 << 20, chunked: order.below(2) == 0 },
                7 => Fault::Truncate { n: None },
                8 => Fault::ResetBeforeRead,
                9 => Fault::Raw { body: "HTTP/9.9 what\r\n\r\n".into() },
                10 => Fault::delay(order.below(2_500) as u64),
                _ => Fault::status(429),
            };
            let path = if order.below(2) == 0 { REFUNDS } else { "/any/*" };
            let acts = matches!(fault, Fault::Status { .. }) && order.below(2) == 0;
            let rule = Rule::once(path, fault);
            stage.provider.fault(if acts { rule.acting(true) } else { rule });
            faults += 1;
            std::thread::sleep(Duration::from_millis(20 + order.below(100) as u64));
        }
    });
    stage.provider.clear_faults();
    let mut table = load.judge(&items, &[], |kind| kind == Kind::Manual);
    table.kills = faults;
    let table = table.hold("upstream faults", &seed, Duration::from_secs(1));
    assert!(table.actions > 15 && table.doubts > 3, "a run without load or faults shows nothing: {table}");
    let grown = resident(stage.host.pid()).saturating_sub(before) >> 20;
    assert!(grown < 4 * 32, "{faults} faults, and the host grew by {grown} MiB");
}

/// Resident memory of a process, in bytes.
fn resident(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or_default() << 10
}

fn tls_that_is_broken_off_is_not_sent_and_tried_again(on: Backend) {
    use std::io::{Read as _, Write as _};
    let stage = Stage::on(on);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("its address").port();
    // Heard in full or in part, answered with a part of a handshake, and hung up on.
    let heard = std::thread::spawn(move || {
        let mut heard = Vec::new();
        for (round, peer) in listener.incoming().flatten().take(3).enumerate() {
            let (mut peer, mut hello) = (peer, vec![0; 4096]);
            let read = peer.read(&mut hello).unwrap_or(0);
            heard.push(hello[..read].to_vec());
            let _ = peer.write_all(&[22, 3, 3, 0, 100, 2, 0, 0][..round * 4]);
        }
        heard
    });
    let route = grant("", &[Route::manual(port, "/any/**")]).replace("\"http\"", "\"https\"");
    stage.install_probe("tls", &sending_for(&route, on.send()));
    let url = format!("https://127.0.0.1:{port}/any/secret-path");
    let id =
        stage.approved("tls", "tls", &json!({ "mode": "writes", "url": url, "bodies": ["secret-body"] }));
    stage.start_execute(&id);
    for hello in heard.join().expect("the listener") {
        // Nothing of the request was in it.
        assert_eq!(hello.first(), Some(&22), "a TLS handshake");
        assert!(!hello.windows(6).any(|window| window == b"secret"), "something of the request was sent");
    }
    let told = stage.wait_for(&id, &["failed_retryable"]);
    assert_eq!(told.text("/error/code"), "not_sent", "{}", told.json);
    assert_eq!(stage.ledger(&id)[0]["status"], "failed");
    stage.cancel(&id);
    stage.wait_for(&id, &["cancelled", "failed_terminal"]);
    stage.facts(&id);
}
