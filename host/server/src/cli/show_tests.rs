//! Golden files: how actions look. Each has its JSON beside its text; to write
//! the texts anew after a change, run with `WRITE_GOLDEN=1` and read the diff.

use std::path::PathBuf;

use super::*;

fn golden(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/testdata")).join(name)
}

fn render(name: &str, full: bool) -> String {
    let json = std::fs::read_to_string(golden(&format!("{name}.json"))).unwrap();
    let now = serde_json::from_value("2026-10-01T12:00:00Z".into()).unwrap();
    action(&Json::parse(&json).unwrap(), &View { full, paint: Paint::PLAIN, now }).text
}

#[expect(clippy::disallowed_methods, reason = "only tests read it")]
fn check(name: &str) -> String {
    let shown = render(name, false);
    let file = golden(&format!("{name}.txt"));
    if std::env::var_os("WRITE_GOLDEN").is_some() {
        std::fs::write(&file, &shown).unwrap();
    }
    let expected = std::fs::read_to_string(&file).unwrap();
    assert_eq!(shown, expected, "{name} looks different");
    shown
}

/// D06: no byte that a terminal acts on.
fn acts_on_nothing(shown: &str) {
    for (at, c) in shown.char_indices() {
        assert!(c == '\n' || !c.is_control(), "{:x} at {at}", u32::from(c));
    }
    for byte in [0x1b, 0x07, b'\r'] {
        assert!(!shown.as_bytes().contains(&byte));
    }
}

#[test]
fn an_action_that_awaits_approval_is_seen_at_one_glance() {
    let shown = check("awaiting_action");
    // D08: the host's own rendering first, the tool's words after it.
    let at = |words: &str| shown.find(words).unwrap_or_else(|| panic!("{words} is missing"));
    assert!(at("/amount") < at("What is sent first") && at("What is sent first") < at("All arguments"));
    assert!(at("All arguments") < at("The tool says (not checked)"));
}

#[test]
fn d05_d06_hostile_text_is_shown_and_does_nothing() {
    for full in [false, true] {
        acts_on_nothing(&render("hostile_action", full));
    }
    check("hostile_action");
}

#[test]
fn an_action_that_ended_says_what_became_of_it() {
    check("ended_action");
}

#[test]
fn d07_what_is_folded_says_so_and_opens_and_what_is_shown_first_is_never_folded() {
    let long = "x".repeat(5_000) + "END";
    let json = format!(
        r#"{{"id":"a","status":"awaiting_approval","actor":"a","proposer":"a","show":[{{"pointer":"/note","value":"other"}}],
        "arguments":{{"note":"{long}","other":"{long}"}},"fingerprint":"f","approval":{{"required":1,"given":[]}}}}"#
    );
    let json = Json::parse(&json).unwrap();
    let now = Timestamp::from_micros(0);
    let shown = action(&json, &View { full: false, paint: Paint::PLAIN, now });
    assert_eq!(shown.folded, 2);
    assert!(shown.text.contains("5,003 bytes, SHA-256") && shown.text.contains("--full"));
    // Once, from the arguments themselves and not from the copy beside them.
    assert_eq!(shown.text.matches(&long).count(), 1);
    assert!(!shown.text.contains("\"other\""));
    let open = action(&json, &View { full: true, paint: Paint::PLAIN, now });
    assert_eq!((open.folded, open.text.matches(&long).count()), (0, 3));
}

#[test]
fn nothing_is_assumed_about_what_a_host_sends() {
    let now = Timestamp::from_micros(0);
    for odd in ["{}", "[]", "null", r#"{"plan":7,"show":[1,{}],"arguments":"x","approval":[],"tool":"t"}"#] {
        let shown = action(&Json::parse(odd).unwrap(), &View { full: false, paint: Paint::PLAIN, now });
        assert!(shown.text.contains("Action ?"), "{odd}");
    }
}
