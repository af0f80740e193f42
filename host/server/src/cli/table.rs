//! Lists: one line each, columns aligned, everything escaped.

use super::json::Json;
use super::paint::Paint;
use super::show::state;
use super::text::{plain, width};
use super::time::moment;

/// Rows under a heading. The last column is as long as it is; the others are
/// padded. Cells are safe to print already.
pub fn table(heading: &[&str], rows: &[Vec<String>], paint: Paint) -> String {
    let widths: Vec<usize> = heading
        .iter()
        .enumerate()
        .map(|(i, head)| {
            rows.iter()
                .filter_map(|row| row.get(i))
                .map(|cell| width(cell))
                .max()
                .unwrap_or(0)
                .max(head.len())
        })
        .collect();
    let line = |cells: &[&str]| {
        let mut line = String::new();
        for (i, cell) in cells.iter().enumerate() {
            line.push_str(cell);
            if i + 1 < cells.len() {
                line.push_str(
                    &" ".repeat(widths.get(i).copied().unwrap_or(0).saturating_sub(width(cell)) + 2),
                );
            }
        }
        line.trim_end().to_owned()
    };
    let mut out = paint.bold(&line(heading)) + "\n";
    for row in rows {
        let cells: Vec<&str> = row.iter().map(String::as_str).collect();
        out.push_str(&line(&cells));
        out.push('\n');
    }
    out
}

/// A list of actions.
pub fn actions(page: &Json, paint: Paint) -> String {
    let rows: Vec<Vec<String>> = page
        .list("actions")
        .iter()
        .map(|action| {
            let text = |name: &str| plain(action.text(name).unwrap_or_default());
            let tool = action.get("tool").and_then(|tool| tool.text("name")).map(plain).unwrap_or_default();
            let status = state(action.text("status").unwrap_or_default());
            vec![
                text("id"),
                status,
                tool,
                text("actor"),
                moment(action.text("created_at").unwrap_or_default()),
            ]
        })
        .collect();
    if rows.is_empty() {
        return "There are no such actions.\n".to_owned();
    }
    let mut out = table(&["ACTION", "STATE", "TOOL", "FOR", "PROPOSED"], &rows, paint);
    if let Some(next) = page.text("next") {
        out.push_str(&format!("\nThere may be more: --after {}\n", plain(next)));
    }
    out
}

/// The events of an action.
pub fn events(events: &[Json], paint: Paint) -> String {
    let rows: Vec<Vec<String>> = events.iter().map(event_cells).collect();
    if rows.is_empty() {
        return "There are no events.\n".to_owned();
    }
    table(&["NO", "WHEN", "WHAT", "THEN", "BY", "DETAIL"], &rows, paint)
}

fn event_cells(event: &Json) -> Vec<String> {
    let text = |name: &str| event.text(name).unwrap_or_default();
    vec![
        event.whole("seq").map(|seq| seq.to_string()).unwrap_or_default(),
        moment(text("at")),
        state(text("event")),
        state(text("to")),
        plain(text("by")),
        detail(event),
    ]
}

/// One event of a stream, as a line.
pub fn event_line(event: &Json, with_action: bool) -> String {
    let cells = event_cells(event);
    let action =
        if with_action { format!("{}  ", plain(event.text("action").unwrap_or("?"))) } else { String::new() };
    let mut line = format!("{}  {action}{} → {}  by {}", cells[1], cells[2], cells[3], cells[4]);
    if !cells[5].is_empty() {
        line.push_str(&format!("  {}", cells[5]));
    }
    line.push('\n');
    line
}

/// The words of an event that a reader wants beside its name.
fn detail(event: &Json) -> String {
    let Some(body) = event.get("body") else { return String::new() };
    let mut parts = Vec::new();
    for name in ["reason", "why", "what", "code"] {
        if let Some(text) = body.text(name).filter(|text| !text.is_empty()) {
            parts.push(plain(text));
        }
    }
    for (name, words) in [("attempt", "attempt"), ("ordinal", "effect"), ("required", "required:")] {
        parts.extend(body.whole(name).map(|number| format!("{words} {number}")));
    }
    parts.join("; ")
}

/// The holders of tokens.
pub fn tokens(page: &Json, paint: Paint) -> String {
    let rows: Vec<Vec<String>> = page
        .list("tokens")
        .iter()
        .map(|token| {
            let text = |name: &str| plain(token.text(name).unwrap_or_default());
            let roles: Vec<String> = token.list("roles").iter().filter_map(Json::as_str).map(plain).collect();
            let until = token.text("revoked_at").map(|at| format!("revoked {}", moment(at)));
            vec![
                text("id"),
                text("name"),
                roles.join(", "),
                moment(token.text("created_at").unwrap_or_default()),
                until.unwrap_or_else(|| "valid".to_owned()),
            ]
        })
        .collect();
    if rows.is_empty() {
        return "There are no tokens.\n".to_owned();
    }
    table(&["TOKEN", "NAME", "ROLES", "MADE", "STATE"], &rows, paint)
}

/// The installed tools.
pub fn tools(page: &Json, paint: Paint) -> String {
    let rows: Vec<Vec<String>> = page
        .list("tools")
        .iter()
        .map(|tool| {
            let text = |name: &str| plain(tool.text(name).unwrap_or_default());
            let paused = if tool.is_true("paused") { "paused" } else { "ready" };
            vec![text("name"), text("version"), paused.to_owned(), text("title")]
        })
        .collect();
    if rows.is_empty() {
        return "There are no tools. To install one: countersign tool add FILE.wasm --grant grant.toml\n"
            .to_owned();
    }
    table(&["TOOL", "VERSION", "STATE", "TITLE (THE TOOL'S WORDS)"], &rows, paint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_hostile_names_stay_in_theirs() {
        let page = Json::parse(
            r#"{"actions":[
                {"id":"a","status":"awaiting_approval","tool":{"name":"t"},"actor":"x\u001b[2J\ny","created_at":"2026-10-01T12:00:00Z"},
                {"id":"bb","status":"succeeded","tool":{"name":"long"},"actor":"東京","created_at":"?"}],"next":"bb"}"#,
        )
        .unwrap();
        assert_eq!(
            actions(&page, Paint::PLAIN),
            "ACTION  STATE              TOOL  FOR            PROPOSED\n\
             a       awaiting approval  t     x\\u{1b}[2J\\ny  2026-10-01 12:00:00 UTC\n\
             bb      succeeded          long  東京           ?\n\
             \nThere may be more: --after bb\n"
        );
    }

    #[test]
    fn an_event_says_its_reason() {
        let event = Json::parse(
            r#"{"action":"a","seq":3,"at":"2026-10-01T12:00:00.1Z","event":"declined","to":"cancelled","by":"ann","body":{"fact":"declined","reason":"no\u202e"}}"#,
        )
        .unwrap();
        assert_eq!(
            event_line(&event, true),
            "2026-10-01 12:00:00 UTC  a  declined → cancelled  by ann  no\\u{202e}\n"
        );
    }
}
