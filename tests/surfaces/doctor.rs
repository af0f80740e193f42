//! `countersign doctor`: beside a running host and without one, on both stores, and where
//! something is wrong. It says what, it says what to do, and it changes nothing.

use std::process::Command;

use serde_json::Value;

use crate::on_both_stores;
use crate::support::host::{BINARY, Cli};
use crate::support::smtp::Smtp;
use crate::support::{Backend, Stage};

on_both_stores! {
    beside_a_running_host_nothing_fails_and_the_host_goes_on,
    a_provider_that_is_down_fails_unless_the_network_is_not_asked,
}

fn doctor(stage: &Stage, more: &[&str]) -> Cli {
    let mut arguments = vec!["doctor"];
    arguments.extend_from_slice(more);
    stage.host.cli(&arguments)
}

/// The level of the first finding of a check, and its words.
#[track_caller]
fn finding(json: &Value, check: &str) -> (String, String) {
    let checks = json["checks"].as_array().expect("checks");
    let found = checks.iter().find(|found| found["check"] == check);
    let found = found.unwrap_or_else(|| panic!("no {check}: {json:#}"));
    let text = |name: &str| found[name].as_str().unwrap_or_default().to_owned();
    (text("level"), text("found") + &text("advice"))
}

fn beside_a_running_host_nothing_fails_and_the_host_goes_on(on: Backend) {
    let stage = Stage::on(on);
    let id = stage.approved("refund", "doctor", &stage.refund("doctor", 100));
    let told = doctor(&stage, &["--json"]);
    assert_eq!(told.code, 0, "{told:?}");
    let json = told.json();
    assert_ne!(json["level"], "fail", "{json:#}");
    for check in ["configuration", "version", "durability", "schema", "clock", "secrets"] {
        assert_ne!(finding(&json, check).0, "fail", "{json:#}");
    }
    let (level, words) = finding(&json, "provider");
    assert_eq!(level, "ok", "{words}");
    assert!(words.contains(&stage.provider.port().to_string()) && words.contains("refund"), "{words}");
    if on.is_shared() {
        assert!(finding(&json, "connections").1.contains("a host takes up to 9"), "{json:#}");
        assert!(finding(&json, "durability").1.contains("fsync"), "{json:#}");
    } else {
        let (level, words) = finding(&json, "running host");
        assert!(level == "ok" && words.contains(&format!("process {}", stage.host.pid())), "{words}");
    }
    // For people: a line per finding, and no escape but on a terminal.
    let told = doctor(&stage, &[]);
    assert!(told.out.starts_with("ok    configuration") && !told.out.contains('\u{1b}'), "{}", told.out);
    // It took nothing from the host.
    assert_eq!(stage.execute(&id).outcome(), "succeeded");
    assert_eq!(stage.host.stop().code(), Some(0));
    let told = doctor(&stage, &["--json"]);
    assert_eq!(told.code, 0, "{told:?}");
    stage.host.wake();
    assert_eq!(stage.audit(), 1);
}

fn a_provider_that_is_down_fails_unless_the_network_is_not_asked(on: Backend) {
    let stage = Stage::on(on);
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = nobody.local_addr().expect("its address").port();
    drop(nobody);
    stage.put_grant("refund", &crate::support::grants::refund(port)).expect(200);
    let told = doctor(&stage, &["--json"]);
    assert_eq!(told.code, 1, "{told:?}");
    let json = told.json();
    assert_eq!(json["level"], "fail");
    let down = json["checks"].as_array().expect("checks").iter().find(|found| {
        found["level"] == "fail" && found["found"].as_str().unwrap_or_default().contains(&port.to_string())
    });
    assert!(down.is_some_and(|found| found["advice"].is_string()), "{json:#}");
    let told = doctor(&stage, &["--json", "--offline"]);
    assert_eq!(told.code, 0, "{told:?}");
}

#[test]
fn what_serve_would_refuse_fails_with_the_same_words() {
    let stage = Stage::set();
    stage.host.stop();
    // A secret that a grant names, and that is not there any more.
    let file = stage.host.file("countersign.toml");
    std::fs::write(&file, "listen = \"127.0.0.1:0\"\n").expect("a configuration");
    let told = doctor(&stage, &["--json", "--offline"]);
    let (level, words) = finding(&told.json(), "secrets");
    assert!(told.code == 1 && level == "fail" && words.contains("provider_key (for refund)"), "{told:?}");
    // A configuration that is none.
    std::fs::write(&file, "lisen = \"x\"\n").expect("a configuration");
    let told = doctor(&stage, &[]);
    assert!(
        told.code == 1 && told.out.contains("fail  configuration") && told.out.contains("lisen"),
        "{told:?}"
    );
    // A database that cannot be reached, and a file that is no database.
    for (store, part) in
        [("postgres://u:hunter2@127.0.0.1:1/d", "d on 127.0.0.1:1"), ("sqlite:none.db", "none.db")]
    {
        std::fs::write(stage.host.file("none.db"), "no database at all".repeat(99)).expect("a file");
        std::fs::write(&file, format!("store = \"{store}\"\n")).expect("a configuration");
        let told = doctor(&stage, &["--json", "--offline"]);
        let (level, words) = finding(&told.json(), "store");
        assert!(told.code == 1 && level == "fail" && words.contains(part), "{told:?}");
        assert!(!told.out.contains("hunter2"), "{told:?}");
    }
}

#[test]
fn where_nothing_is_yet_nothing_fails_and_nothing_is_made() {
    let home = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(BINARY);
    command.args(["doctor", "--offline", "--data-dir"]).arg(home.path().join("data")).env_clear();
    let told = Cli::run(&mut command, "");
    assert_eq!(told.code, 0, "{told:?}");
    assert!(!home.path().join("data").exists(), "looking makes nothing");
}

#[test]
fn a_mail_server_is_greeted_and_nothing_more_and_what_is_none_is_said_to_be_none() {
    let smtp = Smtp::start();
    let stage = Stage::on_with(Backend::Sqlite, &smtp.section(), "30s");
    let told = doctor(&stage, &["--json"]);
    assert_eq!(told.code, 0, "{told:?}");
    let (level, words) = finding(&told.json(), "mail");
    assert!(level == "ok" && words.contains("greets") && words.contains("127.0.0.1:"), "{words}");
    let said = smtp.talks().into_iter().flat_map(|talk| talk.commands).collect::<Vec<String>>();
    assert!(said.len() == 2 && said[0].starts_with("EHLO ") && said[1] == "QUIT", "{said:?}");
    let place = smtp.section();
    let place = place.lines().find_map(|line| line.split("smtp://").nth(1)).expect("an address");
    let place = place.trim_end_matches('"');
    let provider = format!("127.0.0.1:{}", stage.provider.port());
    for (server, words) in [
        // It offers no STARTTLS; it does not speak TLS; it is no mail server; nobody is there.
        (format!("smtp://{place}"), "STARTTLS"),
        (format!("smtps://{place}"), "from its first byte"),
        (format!("smtp://{provider}"), "no mail goes out"),
        ("smtp://127.0.0.1:1".to_owned(), "not reached"),
        ("smtp://mail.invalid:587".to_owned(), "not resolved"),
    ] {
        stage.host.configure(&format!("[smtp]\nserver = \"{server}\"\nallow_private = true\n"));
        let told = doctor(&stage, &["--json"]);
        let (level, found) = finding(&told.json(), "mail");
        assert!(told.code == 1 && level == "fail" && found.contains(words), "{server}: {found}");
    }
    // Whoever does not ask the network does not ask it either.
    let told = doctor(&stage, &["--json", "--offline"]);
    assert_eq!(told.code, 0, "{told:?}");
}
