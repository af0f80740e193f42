//! The command line against a real host: what it prints, where, and how it ends. The transcript
//! is a golden file; `COUNTERSIGN_BLESS=1` writes it anew, to be read before it is kept.

use std::collections::HashMap;
use std::fs;

use crate::support::host::Cli;
use crate::support::{Fault, Rule, Stage, grants, guests, is_set, root};

/// Replaces what differs from run to run by something of the same length, so that columns stay
/// where they are.
struct Normal {
    hashes: HashMap<String, String>,
    replace: Vec<(String, String)>,
}

impl Normal {
    fn of(stage: &Stage) -> Normal {
        let machine = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let replace = vec![
            (stage.provider.port().to_string(), "12111".to_owned()),
            (stage.host.address(), "127.0.0.1:7171".to_owned()),
            (format!("{} pid {}", machine.trim(), stage.host.pid()), "pid 1".to_owned()),
            (format!("pid {}", stage.host.pid()), "pid 1".to_owned()),
            (stage.host.folder().display().to_string(), "DATA".to_owned()),
            (guests::folder().display().to_string(), "GUESTS".to_owned()),
        ];
        Normal { hashes: HashMap::new(), replace }
    }

    fn text(&mut self, text: &str) -> String {
        let mut text = text.to_owned();
        for (from, to) in &self.replace {
            text = text.replace(from, to);
        }
        let mut out = String::new();
        let mut rest = text.as_str();
        while let Some(start) = rest.find(|c: char| c.is_ascii_alphanumeric()) {
            out.push_str(&rest[..start]);
            rest = &rest[start..];
            let end =
                rest.find(|c: char| !(c.is_ascii_alphanumeric() || "-:.".contains(c))).unwrap_or(rest.len());
            out.push_str(&self.word(&rest[..end]));
            rest = &rest[end..];
        }
        out.push_str(rest);
        out
    }

    fn word(&mut self, word: &str) -> String {
        let hex = |text: &str| text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        let (bare, tail) = word.split_at(word.trim_end_matches([':', '.']).len());
        let bytes = bare.as_bytes();
        let is_time = bytes.len() == 8 && bytes[2] == b':' && bytes[5] == b':';
        let is_date = bytes.len() == 10 && bytes[4] == b'-' && bytes[7] == b'-' && bare.starts_with("20");
        let replaced = match bare {
            _ if bare.len() == 64 && hex(bare) => {
                let next = format!("{:064}", self.hashes.len() + 1);
                self.hashes.entry(bare.to_owned()).or_insert(next).clone()
            }
            _ if bare.len() == 16 && hex(bare) && bare.bytes().any(|b| b.is_ascii_digit()) => "0".repeat(16),
            _ if bare.starts_with("20") && bare.contains('T') && bare.ends_with('Z') => {
                "2026-01-01T00:00:00Z".to_owned()
            }
            _ if is_date => "2026-01-01".to_owned(),
            _ if is_time => "00:00:00".to_owned(),
            _ => bare.to_owned(),
        };
        replaced + tail
    }
}

/// Columns parted by two spaces, however wide they were.
fn squeezed(line: &str) -> String {
    line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect::<Vec<_>>().join("  ")
}

/// What depends on how fast the test runs, or on the day.
fn without_distances(line: &str) -> String {
    if line.contains(" (in ") || line.ends_with(" ago)") {
        let (before, _) = line.rsplit_once(" (").expect("a distance in brackets");
        return format!("{before} (some time away)");
    }
    match line.split_once("date: ") {
        Some((before, _)) => format!("{before}date: some day"),
        None => line.to_owned(),
    }
}

struct Transcript {
    normal: Normal,
    text: String,
}

impl Transcript {
    fn run(&mut self, stage: &Stage, arguments: &[&str]) -> Cli {
        let told = stage.host.cli(arguments);
        self.note(arguments, &told);
        told
    }

    fn note(&mut self, arguments: &[&str], told: &Cli) {
        let words: Vec<String> = arguments
            .iter()
            .map(|word| {
                if word.contains([' ', '{', '"']) || word.is_empty() {
                    format!("'{word}'")
                } else {
                    (*word).to_owned()
                }
            })
            .collect();
        let mut block = format!("$ countersign {}\n", words.join(" "));
        for (line, mark) in
            told.out.lines().map(|line| (line, "")).chain(told.err.lines().map(|line| (line, "! ")))
        {
            let line = without_distances(line);
            // A column of this table is as wide as a process's number is long.
            let line = if arguments[0] == "events" { squeezed(&line) } else { line };
            block.push_str(&format!("{mark}{line}\n"));
        }
        block.push_str(&format!("= {}\n\n", told.code));
        self.text.push_str(&self.normal.text(&block));
    }

    fn hold_against(&self, name: &str) {
        let path = root().join("tests/surfaces/golden").join(name);
        if is_set("COUNTERSIGN_BLESS") {
            fs::create_dir_all(path.parent().expect("a folder")).expect("the folder");
            fs::write(&path, &self.text).expect("the golden file");
            return;
        }
        let kept = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        for (number, (found, expected)) in (1..).zip(self.text.lines().zip(kept.lines())) {
            assert_eq!(found, expected, "line {number} of {name}; the whole transcript:\n{}", self.text);
        }
        assert_eq!(self.text.lines().count(), kept.lines().count(), "{}", self.text);
    }
}

/// A stage without tools, for a host that somebody has just started.
fn bare_stage() -> Stage {
    let provider = crate::support::Provider::start(crate::support::BINARY);
    Stage { host: crate::support::Host::start(), provider }
}

#[test]
fn every_verb_prints_what_its_transcript_says_and_ends_with_its_code() {
    let stage = bare_stage();
    let mut script = Transcript { normal: Normal::of(&stage), text: String::new() };
    let grant = stage.host.file("refund.toml");
    fs::write(&grant, grants::refund(stage.provider.port())).expect("a grant");
    let (grant, component) = (grant.display().to_string(), guests::path("refund").display().to_string());
    let arguments = |payment: &str, amount: u64| stage.refund(payment, amount).to_string();

    script.run(&stage, &["list"]);
    script.run(&stage, &["tool", "list"]);
    // What is found in it depends on the toolchain that built it.
    let told = stage.host.cli(&["tool", "inspect", &component]);
    assert!(told.code == 0 && told.out.contains("wasi:http/outgoing-handler@0.2"), "{told:?}");
    assert!(told.out.contains("What it says of itself (not checked)"), "{told:?}");
    script.run(&stage, &["tool", "add", &component, "--grant", &grant]);
    script.run(&stage, &["tool", "list"]);

    let told =
        script.run(&stage, &["propose", "refund", "--key", "order-1", "--args", &arguments("1", 1250)]);
    assert_eq!(told.code, 0, "{told:?}");
    let id =
        stage.host.cli(&["list", "--json"]).json()["actions"][0]["id"].as_str().expect("an id").to_owned();
    script.run(&stage, &["propose", "refund", "--key", "order-1", "--args", &arguments("1", 1250)]);
    script.run(&stage, &["propose", "refund", "--key", "order-1", "--args", &arguments("1", 9900)]);
    script.run(&stage, &["list"]);
    script.run(&stage, &["show", &id]);
    script.run(&stage, &["execute", &id]);
    script.run(&stage, &["approve", &id]);
    script.run(&stage, &["approve", &id, "--fingerprint", &"0".repeat(64)]);
    script.run(&stage, &["approve", &id, "--yes", "--note", "agreed on the phone"]);
    script.run(&stage, &["execute", &id]);
    script.run(&stage, &["execute", &id]);
    script.run(&stage, &["effects", &id]);
    script.run(&stage, &["events", &id]);
    script.run(&stage, &["cancel", &id, "--reason", "too late"]);

    script.run(&stage, &["propose", "refund", "--run", "r-7", "--step", "2", "--args", &arguments("2", 500)]);
    let second = stage.host.cli(&["list", "--run", "r-7", "--json"]).json()["actions"][0]["id"]
        .as_str()
        .expect("an id")
        .to_owned();
    script.run(&stage, &["decline", &second, "--reason", "not ours to refund"]);
    script.run(&stage, &["supersede", &second, "--args", &arguments("2", 50)]);
    script.run(&stage, &["list", "--status", "cancelled"]);
    script.run(&stage, &["tool", "grant", "refund", &grant, "--dry-run"]);
    script.run(&stage, &["tool", "pause", "refund"]);
    script.run(&stage, &["tool", "resume", "refund"]);

    script.run(&stage, &["propose", "refund", "--key", "bad", "--args", "{\"amount\":\"x\"}"]);
    script.run(&stage, &["propose", "refund", "--key", "bad", "--args", "not json"]);
    script.run(&stage, &["propose", "nothing", "--key", "bad", "--args", "{}"]);
    script.run(&stage, &["show", "00000000-0000-8000-8000-000000000000"]);
    script.run(&stage, &["list", "--status", "done"]);
    script.run(&stage, &["token", "list"]);
    script.hold_against("verbs.txt");
}

#[test]
fn an_outcome_in_doubt_ends_5_and_is_resolved_from_the_command_line() {
    let stage = bare_stage();
    let mut script = Transcript { normal: Normal::of(&stage), text: String::new() };
    let grant =
        grants::grant("show = [\"/mode\"]", &[grants::Route::manual(stage.provider.port(), "/any/**")]);
    crate::support::stage::install(&stage.host, "", &guests::PROBE, &grant).expect(201);
    stage.provider.fault(Rule::once("/any/*", Fault::LoseReply));
    let arguments = serde_json::json!({ "mode": "writes", "url": stage.url("/any/doubt"), "bodies": ["x"] });
    let id = stage.approved("probe", "doubt", &arguments);
    assert_eq!(script.run(&stage, &["execute", &id]).code, 5);
    script.run(&stage, &["effects", &id]);
    script.run(
        &stage,
        &["resolve", &id, "--ordinal", "1", "--send", "1", "--did-not-happen", "--evidence", "asked"],
    );
    let answer = stage.host.file("answer.txt");
    fs::write(
        &answer,
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{\"seen\":\"in their log\"}",
    )
    .expect("an answer");
    let answer = answer.display().to_string();
    script.run(
        &stage,
        &["resolve", &id, "--ordinal", "1", "--happened", "--answer-file", &answer, "--evidence", "line 7"],
    );
    assert_eq!(stage.wait_for(&id, &["succeeded"]).outcome(), "succeeded");
    script.run(&stage, &["execute", &id]);
    script.run(&stage, &["resolve", &id, "--ordinal", "1", "--give-up", "--evidence", "late"]);
    script.hold_against("doubt.txt");
    assert_eq!(stage.counts("/any/doubt", &id), (1, 1));
}

#[test]
fn json_is_the_hosts_own_and_goes_to_standard_output_alone() {
    let stage = Stage::set();
    let arguments = stage.refund("json", 100).to_string();
    let told = stage.host.cli(&["propose", "refund", "--key", "json", "--args", &arguments, "--json"]);
    assert_eq!((told.code, told.err.as_str()), (0, ""), "{told:?}");
    let id = told.json()["id"].as_str().expect("an id").to_owned();
    let shown = stage.host.cli(&["show", &id, "--json"]);
    assert_eq!(shown.json(), stage.action(&id).json);
    for verb in
        [vec!["list"], vec!["tool", "list"], vec!["effects", &id], vec!["events", &id], vec!["token", "list"]]
    {
        let told = stage.host.cli(&[verb.clone(), vec!["--json"]].concat());
        assert_eq!(told.code, 0, "{verb:?}: {told:?}");
        for line in told.out.lines() {
            let _: serde_json::Value =
                serde_json::from_str(line).unwrap_or_else(|error| panic!("{verb:?}: {error}"));
        }
    }
    // A problem is JSON as well.
    let told = stage.host.cli(&["show", "00000000-0000-8000-8000-000000000000", "--json"]);
    assert_eq!(told.code, 3, "{told:?}");
    let problem = if told.out.trim().is_empty() { &told.err } else { &told.out };
    let problem: serde_json::Value =
        serde_json::from_str(problem.trim()).unwrap_or_else(|error| panic!("{error}: {told:?}"));
    assert_eq!(problem["code"], "not_found");
}

#[test]
fn without_a_host_a_token_or_a_right_it_says_what_to_do() {
    let stage = bare_stage();
    let other = tempfile::tempdir().expect("a folder");
    let folder = other.path().display().to_string();
    let told = stage.host.cli(&["list", "--data-dir", &folder]);
    assert_eq!(told.code, 1, "{told:?}");
    assert!(
        told.err.contains("no host is running") && told.err.contains("countersign serve"),
        "{}",
        told.err
    );
    // The tokens of this folder go to the host of this folder and to nobody else.
    let told = stage.host.cli(&["list", "--url", "http://127.0.0.1:9"]);
    assert_eq!(told.code, 2, "{told:?}");
    assert!(told.err.contains("--token-file"), "{}", told.err);
    let agent = stage.host.token("agent");
    let told = stage.host.cli_with(&["tool", "pause", "refund"], &[("COUNTERSIGN_TOKEN", &agent)], "");
    assert_eq!(told.code, 4, "{told:?}");
    assert!(told.err.contains("not_permitted") && !told.err.contains(&agent), "{}", told.err);
    let told = stage.host.cli_with(&["list"], &[("COUNTERSIGN_TOKEN", "cs_wrong")], "");
    assert_eq!(told.code, 4, "{told:?}");
    assert!(told.err.contains("unauthenticated"), "{}", told.err);
    stage.host.kill();
    let told = stage.host.cli(&["list"]);
    assert_eq!(told.code, 1, "{told:?}");
    assert!(!told.err.is_empty() && !told.err.contains("panicked"), "{}", told.err);
}

#[test]
fn d05_and_d06_what_an_agent_wrote_never_reaches_the_terminal_as_control_characters() {
    let stage = Stage::set();
    let evil = "pay\u{202e}evil \u{1b}]52;c;aGk=\u{7} \u{1b}[2J\r \u{9b}2J \u{200b}\u{e0041} \u{1b}]8;;https://evil\u{7}";
    let arguments =
        serde_json::json!({ "mode": "echo", "text": evil, "url": "https://xn--80ak6aa92e.example/" });
    let id = stage.propose("probe", "evil-\u{61}", &arguments).expect(201).id();
    stage
        .host
        .agent()
        .post(&format!("/v1/actions/{id}/cancel"), &serde_json::json!({ "reason": evil }))
        .expect(200);
    for verb in [
        vec!["show", &id],
        vec!["show", &id, "--full"],
        vec!["list"],
        vec!["events", &id],
        vec!["effects", &id],
        vec!["execute", &id],
    ] {
        let told = stage.host.cli(&verb);
        for text in [&told.out, &told.err] {
            let bad: Vec<char> = text
                .chars()
                .filter(|c| (c.is_control() && *c != '\n') || "\u{202e}\u{200b}\u{e0041}".contains(*c))
                .collect();
            assert!(bad.is_empty(), "{verb:?}: {bad:?} in {text:?}");
        }
    }
    let shown = stage.host.cli(&["show", &id]).out;
    assert!(shown.contains("\\u{202e}") && shown.contains("\\u{1b}"), "{shown}");
}
