//! What is installed is what was looked at: other bytes do not run, nothing comes from elsewhere,
//! and no update gets more than the one before it without somebody's yes.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use crate::support::grants::{self, Route, grant};
use crate::support::host::Cli;
use crate::support::stage::install;
use crate::support::{Host, Provider, Stage, guests, root};

/// A stage whose compiled components are its own, to be broken.
fn apart() -> Stage {
    let provider = Provider::start(crate::support::BINARY);
    let host = Host::asleep("");
    std::fs::remove_file(host.file("components")).expect("the link to what other tests compiled");
    host.wake();
    let stage = Stage { host, provider };
    stage.install(&guests::REFUND, &grants::refund(stage.provider.port())).expect(201);
    stage
}

fn files(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).expect("the folder").flatten().map(|entry| entry.path()).collect()
}

fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).expect("the file");
    let at = at.min(bytes.len() - 1);
    bytes[at] ^= 1;
    std::fs::write(path, bytes).expect("the file");
}

#[test]
fn j01_a_flipped_bit_in_the_cache_is_compiled_anew_and_one_in_the_store_does_not_run() {
    let stage = apart();
    let id = stage.approved("refund", "before", &stage.refund("before", 100));
    assert_eq!(stage.execute(&id).outcome(), "succeeded");
    stage.host.stop();
    let cached = files(&stage.host.file("components"));
    assert!(!cached.is_empty(), "there is a compiled form to break");
    for file in &cached {
        flip(file, std::fs::metadata(file).map_or(0, |found| found.len() as usize / 2));
    }
    stage.host.wake();
    let id = stage.approved("refund", "cache", &stage.refund("cache", 100));
    assert_eq!(stage.execute(&id).outcome(), "succeeded", "from the component's own bytes again");
    assert_eq!(stage.counts("/v1/refunds", &id), (1, 1));

    // Now the bytes themselves, by somebody who can write to the database.
    let waiting = stage.approved("refund", "waiting", &stage.refund("waiting", 100));
    stage.host.stop();
    std::fs::remove_dir_all(stage.host.file("components")).expect("the cache");
    let database = rusqlite::Connection::open(stage.host.file("countersign.db")).expect("the ledger");
    database.execute_batch("drop trigger components_immutable").expect("the trigger's end");
    let mut bytes: Vec<u8> =
        database.query_row("select bytes from components", [], |row| row.get(0)).expect("the component");
    bytes[5000] ^= 1;
    database.execute("update components set bytes = ?1", [bytes]).expect("the bit");
    drop(database);
    let before = stage.provider.log().len();
    stage.host.wake();
    let told = stage.execute(&waiting);
    assert_ne!(told.outcome(), "succeeded", "{}", told.json);
    let told = stage.propose("refund", "store", &stage.refund("store", 100));
    assert_ne!(told.status(), 201, "{}", told.json);
    assert!(told.answer.text().contains("digest") || told.answer.text().contains("bytes"), "{}", told.json);
    assert_eq!(stage.provider.log().len(), before, "nothing was sent");
}

#[test]
fn j01_machine_code_is_not_a_component() {
    let stage = apart();
    let compiled = files(&stage.host.file("components"));
    let mut uploads: Vec<Vec<u8>> =
        compiled.iter().map(|file| std::fs::read(file).expect("a compiled form")).collect();
    // As it is kept, and from where its ELF header begins.
    for bytes in uploads.clone() {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\x7fELF") {
            uploads.push(bytes[at..].to_vec());
        }
    }
    uploads.push(std::fs::read("/proc/self/exe").expect("a program")[..1 << 20].to_vec());
    uploads.push(b"\0asm\x01\0\0\0".to_vec());
    for bytes in uploads {
        install(&stage.host, "?name=machine", &bytes, "").refused(422, "component_refused");
    }
    stage.host.operator().get("/v1/tools/machine").expect(404);
}

#[test]
fn j04_every_crate_comes_from_the_registry_and_the_lock_file_is_held_to() {
    let lock = std::fs::read_to_string(root().join("Cargo.lock")).expect("the lock file");
    let sources: Vec<&str> = lock.lines().filter_map(|line| line.strip_prefix("source = ")).collect();
    assert!(sources.len() > 100, "{}", sources.len());
    for source in &sources {
        assert_eq!(*source, "\"registry+https://github.com/rust-lang/crates.io-index\"");
    }
    let checksums = lock.lines().filter(|line| line.starts_with("checksum = ")).count();
    assert_eq!(checksums, sources.len(), "each with its checksum");
    let own = lock.lines().filter(|line| line.starts_with("name = ")).count() - sources.len();
    assert_eq!(own, 5, "only the rooms have no source");

    // A lock file that lacks a crate is not mended in silence.
    let folder = tempfile::tempdir().expect("a folder");
    std::os::unix::fs::symlink(root().join("host"), folder.path().join("host")).expect("a link");
    std::fs::copy(root().join("Cargo.toml"), folder.path().join("Cargo.toml")).expect("the manifest");
    let metadata = || {
        let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
        let mut command = Command::new(cargo);
        command
            .args(["metadata", "--locked", "--offline", "--format-version", "1"])
            .current_dir(folder.path());
        let output = command.output().expect("cargo");
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    std::fs::write(folder.path().join("Cargo.lock"), &lock).expect("the lock file");
    let (fits, said) = metadata();
    assert!(fits, "{said}");
    let without: Vec<&str> =
        lock.split("\n\n").filter(|package| !package.contains("name = \"anyhow\"\n")).collect();
    std::fs::write(folder.path().join("Cargo.lock"), without.join("\n\n")).expect("the lock file");
    let (fits, said) = metadata();
    assert!(!fits && said.contains("--locked"), "{said}");
}

#[test]
fn j05_a_version_that_wants_more_is_listed_and_waits_for_a_yes_to_exactly_that() {
    let stage = Stage::set();
    let port = stage.provider.port();
    let usual = grants::refund(port);
    let waiting = stage.propose("refund", "old", &stage.refund("old", 100)).expect(201);
    let newer = guests::as_version(&guests::REFUND, "0.2.0");
    let wider = usual.clone() + &grant("", &[Route::manual(port, "/other/**")]);
    let try_install = |query: &str, grant: &str| install(&stage.host, query, &newer, grant);

    // A host more, and a weaker claim about repeating.
    let lax = usual
        .replace("provider-idempotent", "manual")
        .replace("replay_header = \"Idempotent-Replayed\"\n", "");
    for (asks, what) in [(&wider, "/other/**"), (&lax, "manual")] {
        let told = try_install("", asks);
        let said = told.clone().refused(409, "needs_confirmation");
        assert!(said.contains("refund") && said.contains("confirm="), "{said}");
        let more: Vec<String> = told.json["changes"]
            .as_array()
            .expect("what differs")
            .iter()
            .filter(|change| change["more"] == true)
            .map(|change| change.to_string())
            .collect();
        assert!(more.iter().any(|change| change.contains(what)), "{what}: {more:?}");
        assert_eq!(told.json["voids"], json!([waiting.id()]));
    }
    // More imports: another component under the same name.
    let told = install(&stage.host, "?name=refund", &guests::as_version(&guests::PROBE, "0.3.0"), &usual);
    told.clone().refused(409, "needs_confirmation");
    assert!(
        told.json["changes"].as_array().expect("changes").iter().any(|change| change["what"] == "imports"
            && change["more"] == true
            && change["before"].is_null()),
        "{}",
        told.json
    );
    // A yes to one thing is no yes to another.
    let (yes, other) = (try_install("", &wider).text("/confirm"), try_install("", &lax).text("/confirm"));
    assert_ne!(yes, other);
    try_install(&format!("?confirm={other}"), &wider).refused(409, "needs_confirmation");
    let tool = stage.host.operator().get("/v1/tools/refund").expect(200);
    assert_eq!(tool.text("/version"), "0.1.0", "nothing was installed so far");
    let features = tool.json["features"].as_array().expect("what of the language it uses");
    assert!(features.contains(&json!("bulk-memory")) && !features.contains(&json!("simd")), "{features:?}");
    let in_force = tool.text("/grant_digest");
    let told = try_install(&format!("?confirm={yes}"), &wider).expect(201);
    assert_eq!(told.text("/version"), "0.2.0");
    // What waited under the old one is void.
    let told = stage.approve(&waiting.id(), &waiting.text("/fingerprint"));
    assert_eq!(told.status(), 409, "{}", told.json);
    // Less is nobody's worry, and no grant at all leaves the one in force.
    install(&stage.host, "", &guests::as_version(&guests::REFUND, "0.4.0"), &usual).expect(201);
    let operator = stage.host.operator();
    let newest = guests::as_version(&guests::REFUND, "0.5.0");
    let told = operator.send(operator.request("POST", "/v1/tools").body("application/wasm", newest));
    assert_eq!(told.expect(201).text("/grant_digest"), in_force);
}

#[test]
fn j05_the_command_line_shows_what_an_update_would_get_and_installs_it_only_with_yes() {
    let stage = Stage::set();
    let port = stage.provider.port();
    let folder = tempfile::tempdir().expect("a folder");
    let (component, wider) = (folder.path().join("new.wasm"), folder.path().join("wider.toml"));
    std::fs::write(&component, guests::as_version(&guests::REFUND, "0.2.0")).expect("a component");
    let text = grants::refund(port) + &grant("", &[Route::manual(port, "/other/**")]);
    std::fs::write(&wider, text).expect("a grant");
    let run = |arguments: &[&str]| -> Cli {
        let paths = [component.display().to_string(), wider.display().to_string()];
        let mut all = vec!["tool"];
        all.extend(arguments.iter().map(|word| match *word {
            "COMPONENT" => paths[0].as_str(),
            "GRANT" => paths[1].as_str(),
            other => other,
        }));
        stage.host.cli(&all)
    };
    let shown = run(&["inspect", "COMPONENT", "--grant", "GRANT"]);
    assert_eq!(shown.code, 0, "{}", shown.err);
    for part in [
        "wasi:http/outgoing-handler",
        "approved and recorded",
        "features",
        "bulk-memory",
        "provider_key",
        "/other/**",
        "It would get more than it has now",
        "0.1.0",
    ] {
        assert!(shown.out.contains(part), "{part}: {}", shown.out);
    }
    let refused = run(&["add", "COMPONENT", "--grant", "GRANT"]);
    assert_eq!(refused.code, 4, "{refused:?}");
    assert!(
        refused.err.contains("/other/**") && refused.err.contains("needs_confirmation"),
        "{}",
        refused.err
    );
    assert_eq!(stage.host.operator().get("/v1/tools/refund").text("/version"), "0.1.0");
    let added = run(&["add", "COMPONENT", "--grant", "GRANT", "--yes"]);
    assert_eq!(added.code, 0, "{added:?}");
    assert_eq!(stage.host.operator().get("/v1/tools/refund").text("/version"), "0.2.0");
}
