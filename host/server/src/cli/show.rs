//! An action as an approver sees it: at one glance who wants to send what to
//! whom, until when; then all of it. The host's rendering of canonical bytes
//! comes first, the tool's own words come last and are labelled as such.
//!
//! Every text passes through [`super::text`]; nothing here prints one raw.

use countersign_domain::id::Digest;
use countersign_domain::time::Timestamp;

use super::fold::{Folder, Row, aligned, measure, name, size};
use super::json::Json;
use super::mail;
use super::paint::Paint;
use super::text::{plain, quoted, warnings};
use super::time::{moment, moment_from};

/// How to show it.
pub struct View {
    /// Fold nothing.
    pub full: bool,
    /// With colours or without.
    pub paint: Paint,
    /// This side's clock, for "in 14 min".
    pub now: Timestamp,
}

/// What was rendered.
pub struct Rendered {
    /// To print.
    pub text: String,
    /// How many things are folded in it.
    pub folded: usize,
}

/// An action, whole.
pub fn action(action: &Json, view: &View) -> Rendered {
    let mut folder = Folder { full: view.full, folded: 0 };
    let mut out = String::new();
    out.push_str(&glance(action, view));
    out.push_str(&shown_first(action));
    out.push_str(&plan(action, view, &mut folder));
    out.push_str(&arguments(action, view, &mut folder));
    out.push_str(&preview(action, view, &mut folder));
    out.push_str(&outcome(action, view, &mut folder));
    out.push_str(&decisions(action, view));
    if status(action) == "awaiting_approval" {
        out.push_str(&consequence(action, view));
    }
    out.push_str(&identity(action, view));
    if folder.folded > 0 {
        let (things, are) = if folder.folded == 1 { ("One value", "is") } else { ("Some values", "are") };
        out.push_str(&format!(
            "\n{things} above {are} folded. To see all: countersign show {} --full\n",
            id(action)
        ));
    }
    Rendered { text: out, folded: folder.folded }
}

/// A state's name for people.
pub fn state(name: &str) -> String {
    plain(name).replace('_', " ")
}

fn status(action: &Json) -> &str {
    action.text("status").unwrap_or("unknown")
}

fn id(action: &Json) -> String {
    plain(action.text("id").unwrap_or("?"))
}

fn heading(view: &View, words: &str) -> String {
    format!("\n{}\n", view.paint.bold(words))
}

/// Who wants to send what to whom, until when.
fn glance(action: &Json, view: &View) -> String {
    let mut out =
        format!("Action {}   {}\n\n", id(action), view.paint.state(status(action), &state(status(action))));
    let actor = plain(action.text("actor").unwrap_or("?"));
    let proposer = plain(action.text("proposer").unwrap_or("?"));
    let tool = action.get("tool");
    let tool_part = |part: &str| tool.and_then(|t| t.text(part)).map(plain).unwrap_or_default();
    let (tool_name, version) = (tool_part("name"), tool_part("version"));
    let verb = match status(action) {
        "awaiting_approval" | "approved" | "proposed" => "wants",
        _ => "wanted",
    };
    out.push_str(&format!("  {} {verb} {tool_name} {version} ", view.paint.bold(&actor)));
    let first = action.get("plan").and_then(|plan| plan.get("first_write"));
    match first {
        Some(write) => {
            let method = plain(write.text("method").unwrap_or("?"));
            let url = plain(write.text("url").unwrap_or("?"));
            out.push_str(&format!("to send\n    {} {}\n", method, view.paint.bold(&url)));
            for note in warnings(write.text("url").unwrap_or_default()) {
                out.push_str(&format!("    look twice: {note}\n"));
            }
        }
        None if may_follow(action).is_empty() && !stopped_early(action) => {
            out.push_str("to run; it sends nothing that changes anything\n");
        }
        None => out.push_str("to run; what it will send first is not known yet\n"),
    }
    for line in may_follow(action) {
        out.push_str(&format!("    {line}\n"));
    }
    if proposer != actor {
        out.push_str(&format!("  proposed by {proposer} in the name of {actor}\n"));
    }
    for note in warnings(&format!("{actor} {proposer}")) {
        out.push_str(&format!("  look twice: {note}\n"));
    }
    if let ("awaiting_approval" | "approved", Some(until)) =
        (status(action), action.get("approval").and_then(|a| a.text("expires_at")))
    {
        out.push_str(&format!("  until {}\n", moment_from(until, view.now)));
    }
    out
}

fn stopped_early(action: &Json) -> bool {
    action.get("plan").is_some_and(|plan| plan.is_true("stopped_early"))
}

/// "and up to N more to …" for each route that allows more.
fn may_follow(action: &Json) -> Vec<String> {
    let Some(plan) = action.get("plan") else { return Vec::new() };
    let and = if plan.get("first_write").is_some() { "and " } else { "" };
    plan.list("may_follow")
        .iter()
        .map(|more| {
            let to = plain(more.text("to").unwrap_or("?"));
            format!("{and}up to {} more to {to}, contents not known yet", more.whole("up_to").unwrap_or(0))
        })
        .collect()
}

/// The fields that the grant names. Never folded: these are what counts.
fn shown_first(action: &Json) -> String {
    let arguments = action.get("arguments").unwrap_or(&Json::Null);
    let mut open = Folder { full: true, folded: 0 };
    let mut rows = Vec::new();
    for field in action.list("show") {
        let pointer = field.text("pointer").unwrap_or_default();
        // Looked up here in the arguments as they were sent: a copy of a value
        // could differ from it.
        match arguments.at(pointer) {
            None => rows.push(Row::new(name(pointer), "(not in the arguments)")),
            Some(value) => rows.extend(open.rows_at(pointer, value)),
        }
    }
    if rows.is_empty() { String::new() } else { format!("\n{}", aligned(&rows, "  ")) }
}

/// The first write, exactly.
fn plan(action: &Json, view: &View, folder: &mut Folder) -> String {
    let Some(plan) = action.get("plan") else { return String::new() };
    let mut out = heading(
        view,
        match status(action) {
            "awaiting_approval" | "approved" | "proposed" => "What is sent first, exactly",
            _ => "What was to be sent first, exactly",
        },
    );
    match plan.get("first_write") {
        Some(write) => out.push_str(&request(write, folder)),
        None if stopped_early(action) => out.push_str(
            "  Not known: the tool asks for something before its first write, and its grant lets\n  nothing out \
             before approval.\n",
        ),
        None => out.push_str("  Nothing: the tool made no write.\n"),
    }
    for line in may_follow(action) {
        out.push_str(&format!("  {line}\n"));
    }
    out
}

/// A request, its headers and its body.
pub fn request(request: &Json, folder: &mut Folder) -> String {
    if let Some(mail) = request.get("mail") {
        return mail::page(mail, folder);
    }
    let method = plain(request.text("method").unwrap_or("?"));
    let mut out = format!("  {method} {}\n", plain(request.text("url").unwrap_or("?")));
    out.push_str(&message(request, folder));
    out
}

/// Headers and body of a request or an answer.
pub fn message(message: &Json, folder: &mut Folder) -> String {
    let mut out = String::new();
    for header in message.list("headers") {
        if let Json::Array(pair) = header
            && let [Json::String(name), Json::String(value)] = &pair[..]
        {
            // Long ones are folded like any value, but not quoted: nothing
            // stands behind them on their line.
            let folded = folder.text(value);
            let value = if folded == quoted(value) { plain(value) } else { folded };
            out.push_str(&format!("  {}: {value}\n", plain(name)));
        }
    }
    let body = message.text("body").unwrap_or_default();
    let bytes = message.whole("body_bytes").unwrap_or(body.len() as u64);
    if bytes == 0 {
        out.push_str("  no body\n");
        return out;
    }
    if message.text("body_encoding") == Some("base64") {
        let hash = decoded(body).map(|bytes| format!(", SHA-256 {}", Digest::of(&bytes))).unwrap_or_default();
        out.push_str(&format!("  body, {} that are not text{hash}; as base64:\n", size(bytes)));
    } else {
        out.push_str(&format!("  body, {}:\n", size(bytes)));
    }
    for line in folder.lines(body) {
        out.push_str(&format!("  {line}\n"));
    }
    for note in warnings(body) {
        out.push_str(&format!("  look twice: {note}\n"));
    }
    out
}

fn decoded(text: &str) -> Option<Vec<u8>> {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.decode(text).ok()
}

fn arguments(action: &Json, view: &View, folder: &mut Folder) -> String {
    let Some(arguments) = action.get("arguments") else { return String::new() };
    heading(view, "All arguments") + &aligned(&folder.rows(arguments), "  ")
}

/// The tool's own words, after everything that the host says.
fn preview(action: &Json, view: &View, folder: &mut Folder) -> String {
    let Some(preview) = action.get("preview") else { return String::new() };
    let mut out = heading(view, "The tool says (not checked)");
    if let Some(title) = preview.text("title") {
        out.push_str(&format!("  {}\n", folder.text(title)));
    }
    let rows: Vec<Row> = preview
        .list("fields")
        .iter()
        .map(|field| {
            let label = field.text("label").unwrap_or_default();
            let value = field.text("value").unwrap_or_default();
            let mut notes = warnings(label);
            notes.extend(warnings(value));
            Row { name: name(label), value: folder.text(value), notes }
        })
        .collect();
    out.push_str(&aligned(&rows, "  "));
    out
}

/// What became of it, as far as anything did.
fn outcome(action: &Json, view: &View, folder: &mut Folder) -> String {
    let mut rows = Vec::new();
    if let Some(error) = action.get("error") {
        rows.push(Row::new("reason", plain(error.text("code").unwrap_or("?"))));
        rows.push(Row::new("", plain(error.text("message").unwrap_or_default())));
    }
    if let Some(asked) = action.text("cancel_requested") {
        rows.push(Row::new("cancel asked", folder.text(asked)));
    }
    let count = |name: &str| action.get("effects").and_then(|e| e.whole(name)).unwrap_or(0);
    let (done, in_flight, unknown) = (count("done"), count("in_flight"), count("unknown"));
    if done + in_flight + unknown > 0 {
        let mut parts = vec![format!("{done} settled")];
        parts.extend((in_flight > 0).then(|| format!("{in_flight} on its way")));
        parts.extend((unknown > 0).then(|| view.paint.bold(&format!("{unknown} with unknown outcome"))));
        rows.push(Row::new("effects", parts.join(", ")));
    }
    if let Some(reference) = action.text("provider_reference") {
        rows.push(Row::new("provider's name for it", folder.text(reference)));
    }
    for (member, words) in
        [("supersedes", "replaces"), ("superseded_by", "replaced by"), ("compensates", "makes good")]
    {
        rows.extend(action.text(member).map(|id| Row::new(words, plain(id))));
    }
    if let Some(due) = action.text("next_attempt_at").filter(|_| status(action) == "failed_retryable") {
        rows.push(Row::new("next attempt", moment_from(due, view.now)));
    }
    let mut out = String::new();
    if !rows.is_empty() {
        out.push_str(&heading(view, "What became of it"));
        out.push_str(&aligned(&rows, "  "));
    }
    if let Some(result) = action.get("result") {
        out.push_str(&heading(view, "Result (the tool's words)"));
        out.push_str(&aligned(&folder.rows(result), "  "));
    }
    out
}

fn decisions(action: &Json, view: &View) -> String {
    let Some(approval) = action.get("approval") else { return String::new() };
    let given = approval.list("given");
    let required = approval.whole("required").unwrap_or(0);
    let mut out = String::new();
    if required > 0 || !given.is_empty() {
        out.push_str(&heading(view, &format!("Approvals: {} of {required}", given.len())));
    }
    for one in given {
        let by = plain(one.text("by").unwrap_or("?"));
        out.push_str(&format!("  {by}, {}\n", moment(one.text("at").unwrap_or_default())));
        if let Some(note) = one.text("note") {
            out.push_str(&format!("    note: {}\n", quoted(note)));
        }
    }
    out
}

/// What happens if it is approved.
fn consequence(action: &Json, view: &View) -> String {
    let mut out = heading(view, "If you approve");
    let (given, required) = action
        .get("approval")
        .map(|a| (a.list("given").len() as u64, a.whole("required").unwrap_or(1)))
        .unwrap_or((0, 1));
    let missing = required.saturating_sub(given).saturating_sub(1);
    if missing > 0 {
        out.push_str(&format!("  {missing} more must approve after you before anything is sent.\n"));
    }
    let deadline = action.text("execution_deadline").map(moment).unwrap_or_default();
    match action.text("run") {
        Some("auto") => out.push_str("  It runs by itself as soon as it is approved.\n"),
        _ => out.push_str(&format!("  It runs when its proposer asks for it, until {deadline}.\n")),
    }
    let has_plan = action.get("plan").is_some_and(|plan| plan.get("first_write").is_some());
    let more = !may_follow(action).is_empty();
    out.push_str(match (has_plan, more) {
        (true, false) => "  The request above is sent once, exactly as it stands there, and no other write.\n",
        (true, true) => {
            "  The request above is sent once, exactly as it stands there; then as many more as it says,\n  which \
             nobody sees before they are sent.\n"
        }
        (false, true) => "  Writes are sent that nobody sees before, as many and to where it says above.\n",
        (false, false) => "  No write is sent.\n",
    });
    out.push_str("  If anything above changes before that, your approval is void and nothing is sent.\n");
    out
}

fn identity(action: &Json, view: &View) -> String {
    let mut rows = Vec::new();
    let tool = action.get("tool");
    match (action.text("idempotency_key"), action.text("run_id"), action.text("step")) {
        (Some(key), ..) => rows.push(Row::new("key", quoted(key))),
        (None, Some(run), Some(step)) => {
            rows.push(Row::new("run", quoted(run)));
            rows.push(Row::new("step", quoted(step)));
        }
        _ => {}
    }
    if let Some(digest) = tool.and_then(|tool| tool.text("digest")) {
        rows.push(Row::new("component", plain(digest)));
    }
    if let Some(grant) = action.text("grant") {
        rows.push(Row::new("grant", plain(grant)));
    }
    if let Some(created) = action.text("created_at") {
        rows.push(Row::new("proposed", moment_from(created, view.now)));
    }
    if let Some(arguments) = action.get("arguments") {
        rows.push(Row::new("arguments", measure(arguments.to_string().as_bytes())));
    }
    let fingerprint = plain(action.text("fingerprint").unwrap_or("?"));
    rows.push(Row::new("fingerprint", view.paint.bold(&fingerprint)));
    format!("\n{}", aligned(&rows, "  "))
}

#[cfg(test)]
#[path = "show_tests.rs"]
mod tests;
