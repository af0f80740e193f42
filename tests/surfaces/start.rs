//! Starts that must not happen: configuration, addresses, folders. Each refusal names the thing,
//! says why, and what to do.

use std::fs;
use std::net::TcpListener;
use std::process::Command;

use crate::support::host::{BINARY, Cli};
use crate::support::{Host, Stage};

#[test]
fn a_configuration_that_is_wrong_is_refused_with_its_name_and_the_right_form() {
    for (toml, parts) in [
        ("lisen = \"x\"", vec!["countersign.toml", "line 2", "lisen", "listen"]),
        ("lease = \"1ms\"", vec!["lease", "1ms", "500ms"]),
        ("lease = 60", vec!["lease", "line 2"]),
        ("store = \"mysql://h/d\"", vec!["store", "mysql", "sqlite:"]),
        ("store = \"postgres://u:hunter2@127.0.0.1:1/d\"", vec!["d on 127.0.0.1:1", "cannot be reached"]),
        ("store = \"postgres://u@h/d\"\n[postgres]\nconnections = 0", vec!["connections", "1 to 64"]),
        ("store = \"postgres://u@h/d?sslmode=no\"", vec!["postgres://user:password@host:5432/database"]),
        ("public_url = \"gate.example.com\"", vec!["public_url", "https://gate.example.com"]),
        ("[secret]\nx = 1", vec!["line 2", "secret"]),
        ("store = \"sqlite:no/such/folder/x.db\"", vec!["no/such/folder"]),
        ("not toml at all", vec!["countersign.toml", "line 2"]),
    ] {
        let host = Host::asleep(toml);
        let said = host.refuses_to_start(&mut host.command());
        for part in parts {
            assert!(said.contains(part), "{toml}: {part}: {said}");
        }
        assert!(!said.contains("hunter2") && !said.contains("panicked"), "{said}");
    }
}

#[test]
fn a_secret_that_is_not_there_is_an_error_at_start_and_not_an_empty_header_later() {
    let host = Host::asleep("");
    fs::remove_file(host.file("provider_key")).expect("the secret goes");
    let said = host.refuses_to_start(&mut host.command());
    assert!(said.contains("provider_key") && said.contains("cannot be read"), "{said}");
    fs::write(host.file("provider_key"), "two\nlines\n").expect("a secret");
    let said = host.refuses_to_start(&mut host.command());
    assert!(said.contains("provider_key") && !said.contains("two"), "{said}");
    let toml = "listen = \"127.0.0.1:0\"\n[secrets]\nprovider_key = { env = \"NO_SUCH_VARIABLE_AT_ALL\" }\n";
    fs::write(host.file("countersign.toml"), toml).expect("a configuration");
    let said = host.refuses_to_start(&mut host.command());
    assert!(said.contains("NO_SUCH_VARIABLE_AT_ALL"), "{said}");
    // Set, it starts.
    host.wake_with(host.command().env("NO_SUCH_VARIABLE_AT_ALL", "a value of some length"));
}

#[test]
fn flags_go_before_the_environment_and_both_before_the_file() {
    let host = Host::asleep("");
    fs::write(host.file("countersign.toml"), "listen = \"here\"\n").expect("a configuration");
    let said = host.refuses_to_start(&mut host.command());
    assert!(said.contains("here"), "{said}");
    let said = host.refuses_to_start(host.command().env("COUNTERSIGN_LISTEN", "there"));
    assert!(said.contains("there"), "{said}");
    host.wake_with(host.command().env("COUNTERSIGN_LISTEN", "there").args(["--listen", "127.0.0.1:0"]));
    host.agent().get("/v1/tools").expect(200);
    host.kill();
    let missing = host.file("no-such.toml");
    let said = host.refuses_to_start(host.command().arg("--config").arg(&missing));
    assert!(said.contains("no-such.toml"), "{said}");
}

#[cfg(debug_assertions)]
#[test]
fn a_point_to_halt_at_that_does_not_exist_is_refused_with_those_that_do() {
    let host = Host::asleep("");
    let said = host.refuses_to_start(host.command().env("COUNTERSIGN_HALT_AT", "after-lunch"));
    assert!(said.contains("after-lunch") && said.contains("after-answer"), "{said}");
}

#[test]
fn a_port_in_use_is_said_with_the_address_and_what_to_do() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("its address").to_string();
    let host = Host::asleep("");
    let said = host.refuses_to_start(host.command().args(["--listen", &address]));
    assert!(said.contains(&address) && said.contains("--listen"), "{said}");
}

#[test]
fn a_data_directory_that_cannot_be_made_is_said() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    fs::write(&file, "").expect("a file");
    let mut command = Command::new(BINARY);
    command.args(["serve", "--listen", "127.0.0.1:0", "--config"]).arg(&file);
    command.arg("--data-dir").arg(file.join("data"));
    let told = Cli::run(&mut command, "");
    assert_eq!(told.code, 1, "{told:?}");
    assert!(told.err.contains("file/data") && told.err.contains("--data-dir"), "{}", told.err);
}

#[test]
fn a_key_of_compiled_components_that_is_none_is_refused_and_a_forged_component_is_compiled_anew() {
    let host = Host::asleep("");
    fs::write(host.file("components.key"), "short").expect("a key");
    let said = host.refuses_to_start(&mut host.command());
    assert!(said.contains("components.key") && said.contains("delete"), "{said}");

    // A folder of its own this time: what is in it will be damaged.
    let stage = Stage::set();
    stage.host.stop();
    let shared = stage.host.file("components");
    let own = stage.host.file("own-components");
    fs::create_dir(&own).expect("a folder");
    for entry in fs::read_dir(&shared).expect("compiled components").flatten() {
        let mut bytes = fs::read(entry.path()).expect("a compiled component");
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(own.join(entry.file_name()), bytes).expect("a damaged one");
    }
    fs::remove_file(&shared).expect("the link");
    fs::rename(&own, &shared).expect("the damaged folder");
    stage.host.wake();
    let id = stage.approved("refund", "forged", &stage.refund("forged", 100));
    assert_eq!(stage.execute(&id).outcome(), "succeeded");
    assert!(stage.host.said().contains("not ours"), "{}", stage.host.said());
}

#[test]
fn wrong_usage_is_2_and_says_how_it_is_used() {
    for arguments in
        [vec!["frobnicate"], vec!["serve", "--no-such-flag"], vec!["propose"], vec!["approve"], vec![]]
    {
        let mut command = Command::new(BINARY);
        command.args(&arguments);
        let told = Cli::run(&mut command, "");
        assert_eq!(told.code, 2, "{arguments:?}: {told:?}");
        assert!(told.err.contains("Usage"), "{}", told.err);
    }
    for arguments in [["--help"], ["--version"]] {
        let mut command = Command::new(BINARY);
        let told = Cli::run(command.args(arguments), "");
        assert_eq!(told.code, 0);
        assert!(told.out.contains("countersign"));
        assert!(!told.out.contains("planted"), "no release build knows of planted bugs");
    }
}
