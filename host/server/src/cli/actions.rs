//! Actions: propose, look, execute, and what a person may want changed.

use std::io::Read as _;
use std::path::Path;
use std::time::{Duration, Instant};

use http::Method;

use super::args::{Because, Effects, Execute, List, One, Propose, Show, Supersede};
use super::client::{Reply, Send, path, query, span};
use super::exit::{Exit, Problem, Stop};
use super::json::{Json, string};
use super::session::{Session, print};
use super::text::plain;
use super::{effects, show, table};

/// The longest wait that the host is asked for at once.
const ONE_WAIT: Duration = Duration::from_secs(30);
/// Longest arguments that are read in: far over any grant's, so that the host
/// says what is too long, and a wrong file does not fill the memory.
const ARGUMENTS_AT_MOST: u64 = 16 << 20;

/// Events asked for at once: as many as the host gives.
const EVENTS: &str = "1000";

/// `countersign propose`
pub fn propose(session: &Session, args: &Propose) -> Result<Exit, Stop> {
    let what = "the action was not proposed";
    let arguments = arguments(args.args.as_deref(), args.args_file.as_deref(), what)?.ok_or_else(|| {
        Problem::here(Exit::Usage, what, "there are no arguments", "give --args or --args-file")
    })?;
    let until = Instant::now() + args.wait.unwrap_or_default();
    let wait = args.wait.map(|wait| span(wait.min(ONE_WAIT)));
    let target = query(&path(&["v1", "actions"]), &[("wait", wait.as_deref())]);
    let body = proposal(args, &arguments);
    let key: Vec<(&str, &str)> = match &args.key {
        Some(key) => vec![("idempotency-key", in_header(key, what)?)],
        None => Vec::new(),
    };
    let within = ONE_WAIT + Duration::from_secs(120);
    let mut reply = session.client.call(what, Method::POST, &target, &key, Send::Json(body), within)?;
    // Later answers do not say it: only this one knows whether it was new.
    let known_already = reply.json()?.is_true("replayed");
    if args.wait.is_some() {
        let id = id_of(&reply.json()?);
        reply = session.client.wait("the action could not be waited for", &id, reply, until, settled)?;
    }
    let action = reply.json()?;
    session.print(&reply, || {
        let mut text = summary(&action, known_already);
        text.push_str(&next_step(&action));
        Ok(text)
    })?;
    Ok(if args.wait.is_some() { Exit::of_state(status(&action)) } else { Exit::Done })
}

/// The body of a proposal. The arguments go in as the text that was given: read
/// and written again here, a doubled key would vanish before the host sees it.
fn proposal(args: &Propose, arguments: &str) -> String {
    let mut body = format!("{{\"tool\":{},\"arguments\":{arguments}", string(&args.tool));
    for (name, value) in
        [("run_id", &args.run), ("step", &args.step), ("version", &args.version), ("actor", &args.actor)]
    {
        if let Some(value) = value {
            body.push_str(&format!(",\"{name}\":{}", string(value)));
        }
    }
    if args.auto {
        body.push_str(",\"run\":\"auto\"");
    }
    body.push('}');
    body
}

/// The arguments' text, if any were given. It has to be one JSON value, so that
/// it cannot end the member it is put into and begin another; everything else
/// about it is the host's to judge.
fn arguments(given: Option<&str>, file: Option<&Path>, what: &str) -> Result<Option<String>, Stop> {
    let (text, whence) = match (given, file) {
        (Some(text), _) => (text.to_owned(), "--args".to_owned()),
        (None, Some(file)) => (read_text(file, what)?, plain(&file.display().to_string())),
        (None, None) => return Ok(None),
    };
    match serde_json::from_str::<&serde_json::value::RawValue>(&text) {
        Ok(_) => Ok(Some(text)),
        Err(error) => Err(Problem::here(
            Exit::Usage,
            what,
            format!("{whence} is not JSON: {}", plain(&error.to_string())),
            "write the arguments as one JSON value, for example '{\"amount\": 1000}'",
        )),
    }
}

fn read_text(file: &Path, what: &str) -> Result<String, Stop> {
    let mut bytes = Vec::new();
    let read = if file == Path::new("-") {
        std::io::stdin().lock().take(ARGUMENTS_AT_MOST + 1).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(file).and_then(|open| open.take(ARGUMENTS_AT_MOST + 1).read_to_end(&mut bytes))
    };
    let name = plain(&file.display().to_string());
    let problem = |why: String, advice: &str| Problem::here(Exit::Usage, what, why, advice);
    read.map_err(|e| problem(format!("{name}: {}", plain(&e.to_string())), "name a file that can be read"))?;
    if bytes.len() as u64 > ARGUMENTS_AT_MOST {
        return Err(problem(format!("{name} is longer than {ARGUMENTS_AT_MOST} bytes"), "name another file"));
    }
    String::from_utf8(bytes)
        .map_err(|e| problem(format!("{name} is not UTF-8 at byte {}", e.utf8_error().valid_up_to()), ""))
}

/// A key as a header's value.
fn in_header<'a>(key: &'a str, what: &str) -> Result<&'a str, Stop> {
    if key.bytes().all(|b| b.is_ascii_graphic() || b == b' ') && key.trim() == key {
        return Ok(key);
    }
    Err(Problem::here(
        Exit::Usage,
        what,
        "a key is one line of ASCII, without spaces at its ends",
        "use another --key, or --run and --step, which take any text",
    ))
}

/// Nothing more to wait for: it ended, needs a person to settle it, or was
/// decided and waits for its caller.
fn settled(action: &Json) -> bool {
    match status(action) {
        "awaiting_approval" | "executing" | "failed_retryable" | "proposed" => false,
        "approved" => action.text("run") != Some("auto"),
        _ => true,
    }
}

/// The state's name as the host writes it.
pub fn status(action: &Json) -> &str {
    action.text("status").unwrap_or("unknown")
}

fn id_of(action: &Json) -> String {
    action.text("id").unwrap_or_default().to_owned()
}

/// One line about an action, and why it is where it is.
fn summary(action: &Json, known_already: bool) -> String {
    let known = if known_already { " (known already; nothing was done twice)" } else { "" };
    let mut text = format!("{}  {}{known}\n", plain(&id_of(action)), show::state(status(action)));
    if let Some(error) = action.get("error") {
        let part = |name: &str| plain(error.text(name).unwrap_or_default());
        text.push_str(&format!("  {} [{}]\n", part("message"), part("code")));
    }
    text
}

/// What the caller does now.
fn next_step(action: &Json) -> String {
    let id = plain(&id_of(action));
    match status(action) {
        "awaiting_approval" => format!("  a person has to approve it: countersign approve {id}\n"),
        "approved" if action.text("run") != Some("auto") => {
            format!("  to run it: countersign execute {id}\n")
        }
        "approved" | "executing" | "failed_retryable" => {
            format!("  it runs; to follow it: countersign watch {id}\n")
        }
        "outcome_unknown" => format!("  do not propose it again; look at: countersign effects {id}\n"),
        _ => String::new(),
    }
}

/// `countersign execute`
pub fn execute(session: &Session, args: &Execute) -> Result<Exit, Stop> {
    let what = "the action was not executed";
    let until = Instant::now() + args.wait;
    let reply = loop {
        let left = until.saturating_duration_since(Instant::now());
        let wait = span(left.min(ONE_WAIT));
        let target = query(&path(&["v1", "actions", &args.id, "execute"]), &[("wait", Some(&wait))]);
        let within = ONE_WAIT + Duration::from_secs(60);
        let asked = Instant::now();
        let reply = session.client.call(what, Method::POST, &target, &[], Send::Nothing, within)?;
        if reply.status != 202 || until <= Instant::now() {
            break reply;
        }
        // Between two attempts the host has nothing to wait on; it says 202 at
        // once, and asking at once again would only be noise.
        if asked.elapsed() < Duration::from_millis(500) {
            std::thread::sleep(
                Duration::from_millis(500).min(until.saturating_duration_since(Instant::now())),
            );
        }
    };
    let action = reply.json()?;
    session.print(&reply, || {
        let mut text = summary(&action, false);
        if action.is_true("replayed") && action.get("result").is_some() {
            text.push_str("  this is the stored result; nothing was sent now\n");
        }
        if let Some(result) = action.get("result") {
            let mut folder = super::fold::Folder { full: true, folded: 0 };
            text.push_str("  result (the tool's words):\n");
            text.push_str(&super::fold::aligned(&folder.rows(result), "    "));
        }
        text.push_str(&next_step(&action));
        Ok(text)
    })?;
    Ok(Exit::of_state(status(&action)))
}

/// `countersign show`
pub fn show_one(session: &Session, args: &Show) -> Result<Exit, Stop> {
    let reply = get(session, &args.id)?;
    session.print(&reply, || Ok(show::action(&reply.json()?, &session.view(args.full)).text))?;
    Ok(Exit::Done)
}

/// An action as the host has it.
pub fn get(session: &Session, id: &str) -> Result<Reply, Stop> {
    session.client.get("the action could not be shown", &path(&["v1", "actions", id]))
}

/// `countersign list`
pub fn list(session: &Session, args: &List) -> Result<Exit, Stop> {
    let limit = args.limit.map(|limit| limit.to_string());
    let target = query(
        &path(&["v1", "actions"]),
        &[
            ("status", args.status.as_deref()),
            ("tool", args.tool.as_deref()),
            ("run_id", args.run.as_deref()),
            ("after", args.after.as_deref()),
            ("limit", limit.as_deref()),
        ],
    );
    let reply = session.client.get("the actions could not be listed", &target)?;
    session.print(&reply, || Ok(table::actions(&reply.json()?, session.paint)))?;
    Ok(Exit::Done)
}

/// `countersign decline` and `countersign cancel`
pub fn because(session: &Session, verb: &str, args: &Because) -> Result<Exit, Stop> {
    let what = if verb == "decline" { "the action was not declined" } else { "the action was not cancelled" };
    let body = format!("{{\"reason\":{}}}", string(&args.reason));
    let reply = session.client.post(what, &path(&["v1", "actions", &args.id, verb]), body)?;
    session.print(&reply, || {
        let action = reply.json()?;
        let mut text = summary(&action, false);
        if status(&action) != "cancelled" {
            text.push_str("  it was asked to stop: nothing new is sent, and what is on its way is awaited\n");
        }
        Ok(text)
    })?;
    Ok(Exit::Done)
}

/// `countersign supersede`
pub fn supersede(session: &Session, args: &Supersede) -> Result<Exit, Stop> {
    let what = "the action was not replaced";
    let body = match arguments(args.args.as_deref(), args.args_file.as_deref(), what)? {
        Some(arguments) => format!("{{\"arguments\":{arguments}}}"),
        None => "{}".to_owned(),
    };
    let reply = session.client.post(what, &path(&["v1", "actions", &args.id, "supersede"]), body)?;
    session.print(&reply, || {
        let action = reply.json()?;
        Ok(summary(&action, action.is_true("replayed")) + &next_step(&action))
    })?;
    Ok(Exit::Done)
}

/// `countersign effects`
pub fn effects(session: &Session, args: &Effects) -> Result<Exit, Stop> {
    let target = path(&["v1", "actions", &args.id, "effects"]);
    let reply = session.client.get("the effects could not be shown", &target)?;
    session.print(&reply, || Ok(effects::render(&reply.json()?, &session.view(args.full))))?;
    Ok(Exit::Done)
}

/// `countersign events`
pub fn events(session: &Session, args: &One) -> Result<Exit, Stop> {
    let target = path(&["v1", "actions", &args.id, "events"]);
    let mut events = Vec::new();
    let mut after: Option<u64> = None;
    loop {
        let from = after.map(|after| after.to_string());
        let page = query(&target, &[("after", from.as_deref()), ("limit", Some(EVENTS))]);
        let reply = session.client.get("the events could not be shown", &page)?;
        let page = reply.json()?;
        let read = page.list("events").len();
        // One page is nearly always all; where it is not, each is a line.
        if session.json && (read > 0 || after.is_none()) {
            session.print(&reply, || Ok(String::new()))?;
        }
        events.extend_from_slice(page.list("events"));
        after = page.whole("next").or(after);
        if read < EVENTS.parse().unwrap_or(usize::MAX) {
            break;
        }
    }
    if !session.json {
        print(&table::events(&events, session.paint))?;
    }
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::fake_host::{answer, session};

    fn propose_args(key: Option<&str>) -> Propose {
        Propose {
            tool: "re\"fund".into(),
            args: None,
            args_file: None,
            key: key.map(Into::into),
            run: key.is_none().then(|| "r".into()),
            step: key.is_none().then(|| "1".into()),
            version: None,
            actor: Some("a\nb".into()),
            auto: true,
            wait: None,
        }
    }

    #[test]
    fn the_arguments_reach_the_host_as_they_were_written() {
        let raw = "{ \"a\": 9007199254740993, \"a\":\t1.0 }";
        assert_eq!(
            proposal(&propose_args(None), raw),
            format!(
                "{{\"tool\":\"re\\\"fund\",\"arguments\":{raw},\"run_id\":\"r\",\"step\":\"1\",\"actor\":\"a\\nb\",\
                 \"run\":\"auto\"}}"
            )
        );
    }

    #[test]
    fn arguments_cannot_end_their_member_and_begin_another() {
        for bad in ["{},\"run\":\"auto\"", "{}}", "", "{", "\u{feff}{}", "{}\0"] {
            assert!(arguments(Some(bad), None, "x").is_err(), "{bad}");
        }
        for good in ["{}", " {\"a\":1,\"a\":2} ", "[1]", "1e400", "\"\\ud800\""] {
            assert_eq!(arguments(Some(good), None, "x").ok().flatten().as_deref(), Some(good));
        }
    }

    #[test]
    fn keys_that_no_header_can_hold_are_refused_here() {
        for bad in ["a\r\nx: y", "é", " a", "a\t"] {
            assert!(in_header(bad, "x").is_err(), "{bad:?}");
        }
        assert!(in_header("order 4711/refund", "x").is_ok());
    }

    #[test]
    fn waiting_ends_where_nobody_moves_it_without_us() {
        let at = |status: &str, run: &str| {
            settled(&Json::parse(&format!("{{\"status\":\"{status}\",\"run\":{run}}}")).unwrap())
        };
        assert!(at("approved", "null") && !at("approved", "\"auto\""));
        assert!(!at("awaiting_approval", "null") && at("outcome_unknown", "null") && at("succeeded", "null"));
    }

    #[test]
    fn execute_ends_with_what_became_of_the_action() {
        for (answers, exit) in [
            (vec![(200, "succeeded")], Exit::Done),
            (vec![(200, "failed_terminal")], Exit::Failed),
            (vec![(200, "cancelled")], Exit::Refused),
            (vec![(202, "executing"), (200, "succeeded")], Exit::Done),
        ] {
            let asked = answers.len();
            let answers =
                answers.iter().map(|(status, state)| answer(*status, &format!("{{\"status\":\"{state}\"}}")));
            let (with, served) = session(answers.collect());
            let args = Execute { id: "a1".into(), wait: Duration::from_secs(20) };
            assert_eq!(execute(&with, &args).ok(), Some(exit));
            let heads = served.join().unwrap();
            assert!(
                heads.len() == asked && heads[0].starts_with("POST /v1/actions/a1/execute?wait="),
                "{heads:?}"
            );
        }
        let (with, served) = session(vec![answer(202, r#"{"status":"executing"}"#)]);
        let args = Execute { id: "a1".into(), wait: Duration::ZERO };
        assert_eq!(execute(&with, &args).ok(), Some(Exit::Running));
        served.join().unwrap();
        let (with, served) = session(vec![answer(409, r#"{"code":"execution_in_doubt","detail":"lost"}"#)]);
        match execute(&with, &args) {
            Err(Stop::Problem(problem)) => assert_eq!(problem.exit, Exit::InDoubt),
            other => panic!("{other:?}"),
        }
        served.join().unwrap();
    }

    #[test]
    fn a_key_goes_into_its_header_and_the_wait_goes_on_until_it_is_settled() {
        let waiting = r#"{"id":"a1","status":"awaiting_approval","replayed":true}"#;
        let done = r#"{"id":"a1","status":"succeeded"}"#;
        let (with, served) = session(vec![answer(201, waiting), answer(200, done)]);
        let args = Propose {
            args: Some("{\"a\":1}".into()),
            wait: Some(Duration::from_secs(20)),
            ..propose_args(Some("k 1"))
        };
        assert_eq!(propose(&with, &args).ok(), Some(Exit::Done));
        let asked = served.join().unwrap();
        assert!(
            asked[0].starts_with("POST /v1/actions?wait=") && asked[0].contains("idempotency-key: k 1"),
            "{asked:?}"
        );
        assert!(asked[1].starts_with("GET /v1/actions/a1?wait="), "{asked:?}");
    }
}
