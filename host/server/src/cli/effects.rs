//! The ledger of an action: every outbound call it made, what was asked, what
//! was answered, and what is not known.

use super::fold::{Folder, Row, aligned};
use super::json::Json;
use super::show::{View, message, request, state};
use super::text::{plain, quoted};
use super::time::{moment, moment_from};

/// All effects of an action.
pub fn render(page: &Json, view: &View) -> String {
    let effects = page.list("effects");
    if effects.is_empty() {
        return "This action has made no outbound call.\n".to_owned();
    }
    let mut folder = Folder { full: view.full, folded: 0 };
    let parts: Vec<String> = effects.iter().map(|effect| one(effect, view, &mut folder)).collect();
    let mut out = parts.join("\n");
    if folder.folded > 0 {
        let action = plain(page.text("action").unwrap_or("ID"));
        out.push_str(&format!("\nWhat is folded above opens with: countersign effects {action} --full\n"));
    }
    out
}

fn one(effect: &Json, view: &View, folder: &mut Folder) -> String {
    let number = |name: &str| effect.whole(name).unwrap_or(0);
    let status = effect.text("status").unwrap_or("unknown");
    let kind = if effect.is_true("write") { "write" } else { "read" };
    let title = format!("Effect {}: {kind}, {}", number("ordinal"), state(status));
    let mut out = view.paint.bold(&title) + "\n";
    if let Some(asked) = effect.get("request") {
        out.push_str(&request(asked, folder));
    }
    let mut rows = Vec::new();
    let mut time = |name: &str, words: &str| {
        if let Some(at) = effect.text(name) {
            rows.push(Row::new(words, moment(at)));
        }
    };
    time("first_sent_at", "first sent");
    if number("send") > 1 {
        time("last_sent_at", "last sent");
    }
    rows.push(Row::new("sends", number("send").to_string()));
    if let Some(key) = effect.text("provider_key") {
        rows.push(Row::new("provider key", quoted(key)));
    }
    if effect.is_true("write") {
        rows.push(Row::new("recovery", plain(effect.text("recovery").unwrap_or("?"))));
    }
    if let Some(refusal) = effect.text("refusal") {
        rows.push(Row::new("refused", plain(refusal)));
    }
    if let Some(evidence) = effect.get("evidence") {
        let part = |name: &str| plain(evidence.text(name).unwrap_or("?"));
        rows.push(Row::new("settled by", format!("{}: {}", part("by"), state(&part("outcome")))));
        if let Some(words) = evidence.get("evidence") {
            rows.push(Row::new("evidence", folder.value(words)));
        }
    }
    if status == "unknown" {
        rows.extend(unknown(effect, view));
    }
    out.push_str(&aligned(&rows, "  "));
    if let Some(answer) = effect.get("answer") {
        out.push_str(&format!("  answered with status {}\n", answer.whole("status").unwrap_or(0)));
        for line in message(answer, folder).lines() {
            out.push_str(&format!("  {line}\n"));
        }
    }
    out
}

/// What an operator who has to settle it wants to know.
fn unknown(effect: &Json, view: &View) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut time = |name: &str, words: &str| {
        if let Some(at) = effect.text(name) {
            rows.push(Row::new(words, moment_from(at, view.now)));
        }
    };
    time("unknown_since", "unknown since");
    time("key_window_ends_at", "may be repeated until");
    time("settles_at", "\"did not happen\" from");
    let ordinal = effect.whole("ordinal").unwrap_or(0);
    let send = effect.whole("send").unwrap_or(0);
    rows.push(Row::new(
        "to settle it",
        format!("look at the provider, then: countersign resolve ID --ordinal {ordinal} --send {send} …"),
    ));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::paint::Paint;

    #[test]
    fn an_unknown_effect_says_how_it_is_settled_and_shows_no_escape() {
        let page = Json::parse(
            r#"{"action":"a1","effects":[{"ordinal":1,"kind":"http","write":true,"status":"unknown","recovery":"manual",
            "request":{"method":"POST","url":"https://a.example/x","headers":[["x","\u001b[2J"]],"body":"a\rb","body_encoding":"utf-8","body_bytes":3},
            "provider_key":"tool-action:a1:1","send":2,"first_sent_at":"2026-10-01T12:00:00Z","last_sent_at":"2026-10-01T12:01:00Z",
            "unknown_since":"2026-10-01T12:02:00Z","settles_at":"2026-10-01T12:03:00Z"}]}"#,
        )
        .unwrap();
        let now = serde_json::from_value("2026-10-01T12:02:30Z".into()).unwrap();
        let shown = render(&page, &View { full: false, paint: Paint::PLAIN, now });
        assert_eq!(
            shown,
            "Effect 1: write, unknown\n  POST https://a.example/x\n  x: \\u{1b}[2J\n  body, 3 bytes:\n  | a\\rb\n  \
             first sent             2026-10-01 12:00:00 UTC\n  last sent              2026-10-01 12:01:00 UTC\n  \
             sends                  2\n  provider key           \"tool-action:a1:1\"\n  \
             recovery               manual\n  unknown since          2026-10-01 12:02:00 UTC (30 s ago)\n  \
             \"did not happen\" from  2026-10-01 12:03:00 UTC (in 30 s)\n  \
             to settle it           look at the provider, then: countersign resolve ID --ordinal 1 --send 2 …\n"
        );
    }
}
