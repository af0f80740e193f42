//! The README's first action, word for word: what stands there has to work.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::skip;
use crate::support::host::Cli;
use crate::support::{BINARY, Host, Provider, root};

/// The command lines of the section, continued lines joined, comments taken off.
fn commands() -> Vec<String> {
    let readme = fs::read_to_string(root().join("README.md")).expect("the README");
    let section = readme.split("## Your first action").nth(1).expect("the section");
    let section = section.split("\n## ").next().expect("its end");
    let blocks: Vec<&str> = section.split("```").skip(1).step_by(2).collect();
    let text = blocks.join("\n").replace("\\\n", " ");
    let commands = text
        .lines()
        .filter(|line| ["countersign ", "curl ", "grep "].iter().any(|verb| line.starts_with(verb)));
    commands.map(|line| line.split(" #").next().expect("a line").trim().to_owned()).collect()
}

fn shell(line: &str, folder: &Path, data: &Path) -> Cli {
    let mut command = Command::new("sh");
    let binaries = Path::new(BINARY).parent().expect("a folder").display().to_string();
    let path = format!("{binaries}:{}", std::env::var_os("PATH").expect("a path").to_string_lossy());
    command.args(["-ec", line]).current_dir(folder).env("PATH", path).env("COUNTERSIGN_DATA_DIR", data);
    Cli::run(&mut command, "")
}

#[test]
fn the_readmes_first_action_works_as_it_stands_there() {
    let provider = Provider::start(BINARY);
    let host = Host::start();
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["guest-examples/prebuilt", "guest-examples/refund"] {
        fs::create_dir_all(folder.path().join(name)).expect("a folder");
    }
    let grant = fs::read_to_string(root().join("guest-examples/refund/grant.local.toml")).expect("the grant");
    let grant = grant.replace("12111", &provider.port().to_string());
    fs::write(folder.path().join("guest-examples/refund/grant.local.toml"), grant).expect("the grant");
    fs::copy(
        crate::support::guests::path("refund"),
        folder.path().join("guest-examples/prebuilt/refund.wasm"),
    )
    .expect("the tool");

    let has_curl = Command::new("curl").arg("--version").output().is_ok_and(|output| output.status.success());
    let commands = commands();
    assert!(commands.iter().any(|line| line.starts_with("countersign provider ")));
    assert!(commands.len() >= 10, "{commands:#?}");
    let mut id = String::new();
    for command in &commands {
        // Both run already, with a free port each.
        if command.starts_with("countersign provider") || command.starts_with("countersign serve") {
            continue;
        }
        if command.starts_with("curl") && !has_curl {
            skip!("there is no curl; the lines with it were not run");
        }
        let mut line = command
            .replace("12111", &provider.port().to_string())
            .replace("127.0.0.1:7171", &host.address())
            .replace("TOKENS", &host.file("tokens").display().to_string())
            .replace("provider.log", &provider.log_path().display().to_string())
            .replace(" ID", &format!(" {id}"))
            .replace("/ID/", &format!("/{id}/"));
        if line.starts_with("countersign approve") {
            // A person is asked; there is none here.
            line.push_str(" --yes");
        }
        let told = shell(&line, folder.path(), host.folder());
        assert_eq!(told.code, 0, "{command}\n{told:?}");
        if line.starts_with("countersign propose")
            || line.contains("/v1/actions -H")
            || line.contains("/v1/actions  -H")
        {
            let listed = host.agent().get("/v1/actions?limit=1").expect(200);
            id = listed.text("/actions/0/id");
        }
        if line.starts_with("grep") {
            assert_eq!(told.out.trim(), "1", "one refund so far");
        }
        if line.starts_with("curl") {
            let answer: serde_json::Value =
                serde_json::from_str(&told.out).unwrap_or_else(|error| panic!("{error}: {told:?}"));
            assert!(answer.get("code").is_none(), "{command}: {answer}");
        }
    }
    let expected = if has_curl { 2 } else { 1 };
    assert_eq!(provider.effects("/v1/refunds").len(), expected);
    assert_eq!(host.agent().get(&format!("/v1/actions/{id}")).expect(200).outcome(), "succeeded");
}
