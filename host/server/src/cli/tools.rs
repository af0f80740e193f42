//! Tools: what a component is, what it asks for, what it may do here.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use http::Method;

use super::args::{ToolAdd, ToolVerb};
use super::client::{Reply, Send, path, query};
use super::exit::{Exit, Problem, Stop};
use super::fold::{Folder, Row, aligned, size};
use super::json::Json;
use super::session::{Session, ask, print, say};
use super::table;
use super::text::{plain, quoted};

/// Beyond this, a person at a terminal sees how far an upload is.
const WORTH_A_BAR: u64 = 1 << 20;
/// Longest grant that is read in; what the host takes is less.
const GRANT_AT_MOST: u64 = 4 << 20;

/// `countersign tool …`
pub fn run(session: &Session, verb: &ToolVerb) -> Result<Exit, Stop> {
    match verb {
        ToolVerb::Add(args) => add(session, args),
        ToolVerb::Inspect { file, grant, name } => inspect(session, file, grant.as_deref(), name.as_deref()),
        ToolVerb::Grant { name, grant, dry_run } => put_grant(session, name, grant, *dry_run),
        ToolVerb::Pause { name } => set(session, name, "pause"),
        ToolVerb::Resume { name } => set(session, name, "resume"),
        ToolVerb::List => {
            let reply = session.client.get("the tools could not be listed", &path(&["v1", "tools"]))?;
            session.print(&reply, || Ok(table::tools(&reply.json()?, session.paint)))?;
            Ok(Exit::Done)
        }
    }
}

fn add(session: &Session, args: &ToolAdd) -> Result<Exit, Stop> {
    let what = format!("{} was not installed", shown(&args.file));
    let grant = args.grant.as_deref().map(|file| grant_text(file, &what)).transpose()?;
    let send = |confirm: Option<&str>| {
        let asked = [("name", args.name.as_deref()), ("confirm", confirm)];
        upload(session, &what, &args.file, grant.as_deref(), &asked)
    };
    let reply = match send(None) {
        Err(Stop::Problem(problem)) => {
            let Some((confirm, changes)) = more_is_asked(&problem) else {
                return Err(Stop::Problem(problem));
            };
            if !args.yes {
                if session.json || !session.can_ask() {
                    say(&changes)?;
                    return Err(Stop::Problem(problem));
                }
                print(&changes)?;
                if ask("\nInstall it all the same? [yes/no] ", &["yes", "no"])? != 0 {
                    say("Nothing was installed.\n")?;
                    return Ok(Exit::Refused);
                }
            }
            send(Some(&confirm))?
        }
        other => other?,
    };
    session.print(&reply, || {
        let tool = reply.json()?;
        let name = plain(tool.text("name").unwrap_or("?"));
        let mut text = format!("{name} {}  installed\n", plain(tool.text("version").unwrap_or("?")));
        let mut rows = vec![Row::new("component", plain(tool.text("digest").unwrap_or("?")))];
        rows.push(Row::new("grant", plain(tool.text("grant_digest").unwrap_or("?"))));
        rows.extend(gets(&tool));
        text.push_str(&aligned(&rows, "  "));
        text.push_str(&warnings(&tool));
        let has_grant = tool.get("grant").and_then(|grant| grant.text("source")).is_some_and(|text| !text.is_empty());
        if !has_grant {
            text.push_str(&format!(
                "  It has no grant and reaches nothing. To give it one: countersign tool grant {name} grant.toml\n"
            ));
        }
        Ok(text)
    })?;
    Ok(Exit::Done)
}

/// Sends a component, alone or with a grant.
fn upload(
    session: &Session,
    what: &str,
    file: &Path,
    grant: Option<&str>,
    asked: &[(&str, Option<&str>)],
) -> Result<Reply, Stop> {
    let component = Component::open(file, what)?;
    let target = query(&path(&["v1", "tools"]), asked);
    let Some(grant) = grant else {
        let length = component.length;
        let mut body = component.watched(session);
        return session.client.upload(what, &target, "application/wasm", length, &mut body);
    };
    let form = Form::new(grant, what)?;
    let length = form.head.len() as u64 + component.length + form.tail.len() as u64;
    let mut body = form.head.as_bytes().chain(component.watched(session)).chain(form.tail.as_bytes());
    session.client.upload(what, &target, &form.media, length, &mut body)
}

/// If a refusal says that more is asked for than is in force: the digest of a
/// yes, and what differs, for a person.
fn more_is_asked(problem: &Problem) -> Option<(String, String)> {
    let json = Json::parse(problem.json.as_deref()?).ok()?;
    if json.text("code") != Some("needs_confirmation") {
        return None;
    }
    Some((json.text("confirm")?.to_owned(), differences(&json) + &voided(&json)))
}

/// What differs from what is in force, more first.
fn differences(json: &Json) -> String {
    let mut out = String::new();
    let mut last = None;
    for change in json.list("changes") {
        let more = change.is_true("more");
        if last.replace(more) != Some(more) {
            out.push_str(if more {
                "It would get more than it has now\n"
            } else {
                "It would also differ in\n"
            });
        }
        let name = plain(change.text("what").unwrap_or("?"));
        let side = |name: &str| change.text(name).map(|text| quoted(&shortened(text)));
        out.push_str(&match (side("before"), side("after")) {
            (Some(before), Some(after)) => format!("  {name}: {before} -> {after}\n"),
            (None, Some(after)) => format!("  {name}: new: {after}\n"),
            (Some(before), None) => format!("  {name}: no more: {before}\n"),
            (None, None) => format!("  {name}\n"),
        });
    }
    out
}

/// How many decisions would be for nothing.
fn voided(json: &Json) -> String {
    match json.list("voids").len() {
        0 => String::new(),
        n => format!("{n} pending actions would be void\n"),
    }
}

/// Schemas and descriptions are long; that they differ is what counts here.
fn shortened(text: &str) -> String {
    match text.char_indices().nth(160) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

/// A line for each import: what stands behind it.
fn gets(tool: &Json) -> Vec<Row> {
    let one = |(i, item): (usize, &Json)| {
        let (import, gets) =
            (plain(item.text("import").unwrap_or("?")), plain(item.text("gets").unwrap_or("?")));
        Row::new(if i == 0 { "imports" } else { "" }, format!("{import}: {gets}"))
    };
    tool.list("gets").iter().enumerate().map(one).collect()
}

fn inspect(session: &Session, file: &Path, grant: Option<&Path>, name: Option<&str>) -> Result<Exit, Stop> {
    let what = format!("{} cannot be installed", shown(file));
    let grant = grant.map(|file| grant_text(file, &what)).transpose()?;
    let reply = upload(session, &what, file, grant.as_deref(), &[("dry_run", Some("true")), ("name", name)])?;
    session.print(&reply, || {
        let json = reply.json()?;
        let mut text = inspection(json.get("inspection").unwrap_or(&json), gets(&json), session);
        let routes = json.get("grant").map(|grant| grant.list("routes")).unwrap_or_default();
        text.push_str(&format!("\n{}\n", session.paint.bold("What the grant lets it reach")));
        let rows: Vec<Row> =
            routes.iter().filter_map(Json::as_str).map(|route| Row::new("route", plain(route))).collect();
        text.push_str(&if rows.is_empty() { "  nothing\n".to_owned() } else { aligned(&rows, "  ") });
        if let Some(version) = json.get("in_force").and_then(|tool| tool.text("version")) {
            let title = format!("What would differ from version {}, which is in force", plain(version));
            text.push_str(&format!(
                "\n{}\n{}{}",
                session.paint.bold(&title),
                differences(&json),
                voided(&json)
            ));
        }
        Ok(text)
    })?;
    Ok(Exit::Done)
}

/// What was found in a component, then what it says of itself.
fn inspection(found: &Json, gets: Vec<Row>, session: &Session) -> String {
    // Nothing is folded: what a component may say of itself is bounded.
    let mut folder = Folder { full: true, folded: 0 };
    let mut rows = vec![
        Row::new("component", plain(found.text("digest").unwrap_or("?"))),
        Row::new("size", size(found.whole("size").unwrap_or(0))),
        Row::new("can reconcile", if found.is_true("reconciles") { "yes" } else { "no" }),
    ];
    let features: Vec<String> = found.list("features").iter().filter_map(Json::as_str).map(plain).collect();
    let features =
        if features.is_empty() { "none beyond the first version".to_owned() } else { features.join(", ") };
    rows.push(Row::new("features", features));
    rows.extend(gets);
    for (i, item) in found.list("exports").iter().filter_map(Json::as_str).enumerate() {
        rows.push(Row::new(if i == 0 { "exports" } else { "" }, plain(item)));
    }
    let mut out = session.paint.bold("What was found") + "\n" + &aligned(&rows, "  ");
    out.push_str(&warnings(found));
    if let Some(manifest) = found.get("manifest") {
        out.push_str(&format!("\n{}\n", session.paint.bold("What it says of itself (not checked)")));
        let mut rows = Vec::new();
        for name in ["name", "version", "title", "description"] {
            rows.extend(manifest.text(name).map(|text| Row::new(name, folder.text(text))));
        }
        for effect in manifest.list("effects") {
            let methods: Vec<String> =
                effect.list("methods").iter().filter_map(Json::as_str).map(plain).collect();
            let host = plain(effect.text("host").unwrap_or("?"));
            let why = quoted(effect.text("why").unwrap_or_default());
            rows.push(Row::new("wants", format!("{} {host}  {why}", methods.join(", "))));
        }
        out.push_str(&aligned(&rows, "  "));
    }
    out
}

fn warnings(tool: &Json) -> String {
    let warnings = tool.list("warnings").iter().filter_map(Json::as_str);
    warnings.map(|warning| format!("  warning: {}\n", plain(warning))).collect()
}

fn put_grant(session: &Session, name: &str, file: &Path, dry_run: bool) -> Result<Exit, Stop> {
    let what = format!("{} did not get another grant", plain(name));
    let grant = grant_text(file, &what)?;
    let target = query(&path(&["v1", "tools", name, "grant"]), &[("dry_run", dry_run.then_some("true"))]);
    let (length, mut reader) = (grant.len() as u64, grant.as_bytes());
    let body = Send::Bytes { media: "application/toml", length, reader: &mut reader };
    let within = std::time::Duration::from_secs(60);
    let reply = session.client.call(&what, Method::PUT, &target, &[], body, within)?;
    session.print(&reply, || {
        let json = reply.json()?;
        if !dry_run {
            let digest = plain(json.text("grant_digest").unwrap_or("?"));
            return Ok(format!("{}  has grant {digest}\n", plain(name)));
        }
        let voids = json.list("voids");
        let mut text = match (json.is_true("same"), voids.len()) {
            (true, _) => "It is the grant that is in force; nothing would change.\n".to_owned(),
            (false, 0) => "It differs from the grant in force. No pending action would be void.\n".to_owned(),
            (false, n) => format!("It differs from the grant in force. {n} pending actions would be void:\n"),
        };
        for id in voids.iter().filter_map(Json::as_str) {
            text.push_str(&format!("  {}\n", plain(id)));
        }
        text.push_str(&differences(&json));
        Ok(text)
    })?;
    Ok(Exit::Done)
}

fn set(session: &Session, name: &str, verb: &str) -> Result<Exit, Stop> {
    let what = format!("{} was not {verb}d", plain(name));
    let target = path(&["v1", "tools", name, verb]);
    let within = std::time::Duration::from_secs(60);
    let reply = session.client.call(&what, Method::POST, &target, &[], Send::Nothing, within)?;
    session.print(&reply, || {
        let paused = reply.json()?.is_true("paused");
        let state = if paused { "paused: nothing new starts; what runs is finished" } else { "runs again" };
        Ok(format!("{}  {state}\n", plain(name)))
    })?;
    Ok(Exit::Done)
}

fn grant_text(file: &Path, what: &str) -> Result<String, Stop> {
    let problem = |why: String| Problem::here(Exit::Usage, what, why, "name a grant, a text file in TOML");
    let mut bytes = Vec::new();
    let open =
        File::open(file).map_err(|e| problem(format!("{}: {}", shown(file), plain(&e.to_string()))))?;
    open.take(GRANT_AT_MOST + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| problem(format!("{}: {}", shown(file), plain(&e.to_string()))))?;
    if bytes.len() as u64 > GRANT_AT_MOST {
        return Err(problem(format!("{} is longer than {GRANT_AT_MOST} bytes", shown(file))));
    }
    String::from_utf8(bytes).map_err(|_| problem(format!("{} is not text in UTF-8", shown(file))))
}

fn shown(file: &Path) -> String {
    plain(&file.display().to_string())
}

/// A component on its way.
struct Component {
    file: File,
    length: u64,
}

impl Component {
    fn open(path: &Path, what: &str) -> Result<Component, Stop> {
        let problem = |why: &str| {
            Problem::here(
                Exit::Usage,
                what,
                format!("{}: {why}", shown(path)),
                "name a component, a .wasm file",
            )
        };
        let file = File::open(path).map_err(|e| problem(&plain(&e.to_string())))?;
        let found = file.metadata().map_err(|e| problem(&plain(&e.to_string())))?;
        if !found.is_file() {
            return Err(problem("it is not a file"));
        }
        if found.len() == 0 {
            return Err(problem("it is empty"));
        }
        Ok(Component { file, length: found.len() })
    }

    /// Read exactly as long as was announced, with a bar if somebody watches.
    fn watched(self, session: &Session) -> Watched<io::Take<File>> {
        let bar = session.is_watched() && self.length >= WORTH_A_BAR;
        Watched { inner: self.file.take(self.length), read: 0, length: self.length, bar, percent: None }
    }
}

/// Says beside the output how far the reading is.
struct Watched<R> {
    inner: R,
    read: u64,
    length: u64,
    bar: bool,
    percent: Option<u64>,
}

impl<R: Read> Read for Watched<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        self.read += n as u64;
        if n == 0 && self.read < self.length && !buffer.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the file became shorter while it was sent",
            ));
        }
        let percent = self.read * 100 / self.length.max(1);
        if self.bar && self.percent != Some(percent) {
            self.percent = Some(percent);
            // A bar that cannot be drawn stops nothing.
            let _ = say(&bar(percent, self.length));
        }
        Ok(n)
    }
}

fn bar(percent: u64, length: u64) -> String {
    let done = usize::try_from(percent / 5).unwrap_or(0).min(20);
    let line =
        format!("\rsending {}  [{}{}] {percent:3} %", size(length), "#".repeat(done), ".".repeat(20 - done));
    if percent >= 100 { line + "  the host compiles it\n" } else { line }
}

/// `multipart/form-data` (RFC 7578) around a component.
struct Form {
    media: String,
    head: String,
    tail: String,
}

impl Form {
    fn new(grant: &str, what: &str) -> Result<Form, Stop> {
        let mut random = [0u8; 16];
        getrandom::fill(&mut random).map_err(|e| {
            Problem::here(
                Exit::Other,
                what,
                format!("the system has no randomness: {e}"),
                "try again in a moment",
            )
        })?;
        // Random, so that nothing in a component or a grant can be taken for it.
        let boundary: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let part = |name: &str, media: &str| {
            format!(
                "--{boundary}\r\ncontent-disposition: form-data; name=\"{name}\"; filename=\"{name}\"\r\n\
                 content-type: {media}\r\n\r\n"
            )
        };
        Ok(Form {
            media: format!("multipart/form-data; boundary={boundary}"),
            head: format!(
                "{}{grant}\r\n{}",
                part("grant", "application/toml"),
                part("component", "application/wasm")
            ),
            tail: format!("\r\n--{boundary}--\r\n"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_holds_grant_and_component_between_unguessable_lines() {
        let form = Form::new("[limits]\n", "x").ok().unwrap();
        let boundary = form.media.split_once("boundary=").unwrap().1;
        assert_eq!(boundary.len(), 32);
        let whole = format!("{}WASM{}", form.head, form.tail);
        let parts: Vec<&str> = whole.split(&format!("--{boundary}")).collect();
        assert_eq!(parts.len(), 4);
        assert!(
            parts[1].ends_with("\r\n\r\n[limits]\n\r\n") && parts[1].contains("name=\"grant\""),
            "{whole}"
        );
        assert!(parts[2].ends_with("\r\n\r\nWASM\r\n") && parts[2].contains("name=\"component\""), "{whole}");
        assert_eq!(parts[3], "--\r\n");
        assert_ne!(form.media, Form::new("", "x").ok().unwrap().media);
    }

    #[test]
    fn a_file_that_is_missing_empty_or_a_folder_is_named() {
        let here = tempfile::tempdir().unwrap();
        std::fs::write(here.path().join("empty.wasm"), "").unwrap();
        for (name, why) in [("gone.wasm", "No such file"), ("empty.wasm", "empty"), ("", "not a file")] {
            match Component::open(&here.path().join(name), "x was not installed") {
                Err(Stop::Problem(problem)) => {
                    assert!(problem.why.contains(why), "{}", problem.render());
                    assert_eq!(problem.exit, Exit::Usage);
                }
                _ => panic!("{name} was opened"),
            }
        }
    }

    #[test]
    fn a_file_that_shrinks_while_it_is_sent_is_an_error() {
        let mut body = Watched { inner: &b"abc"[..], read: 0, length: 5, bar: false, percent: None };
        assert!(io::copy(&mut body, &mut io::sink()).is_err());
        let mut body = Watched { inner: &b"abc"[..], read: 0, length: 3, bar: false, percent: None };
        assert_eq!(io::copy(&mut body, &mut io::sink()).ok(), Some(3));
    }
}
