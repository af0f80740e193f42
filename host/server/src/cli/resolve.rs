//! What came of an effect whose outcome nobody knows: the provider is asked, or a
//! person says. The answer that the tool is to see in that case comes from a
//! file: as the host takes it, or as `curl -i` prints it.

use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::actions::status;
use super::args::{One, Resolve};
use super::client::{Send, path};
use super::exit::{Exit, Problem, Stop};
use super::json::{Json, string};
use super::session::Session;
use super::show;
use super::text::plain;
use super::time::moment;

const WHAT: &str = "the effect was not settled";
/// The longest answer that is read in; what the host takes is less.
const ANSWER_AT_MOST: u64 = 16 << 20;

/// Headers that are about one connection and not about the answer. What `curl`
/// prints is unchunked already.
const OF_THE_CONNECTION: [&str; 5] = ["connection", "keep-alive", "transfer-encoding", "trailer", "upgrade"];

/// `countersign resolve`
pub fn resolve(session: &Session, args: &Resolve) -> Result<Exit, Stop> {
    let outcome = match (args.happened, args.did_not_happen) {
        (true, _) => "happened",
        (_, true) => "did_not_happen",
        _ => "give_up",
    };
    let mut body = format!(
        "{{\"ordinal\":{},\"outcome\":\"{outcome}\",\"evidence\":{}",
        args.ordinal,
        string(&args.evidence)
    );
    if let Some(send) = args.send {
        body.push_str(&format!(",\"send\":{send}"));
    }
    if let Some(file) = &args.answer_file {
        let shown = plain(&file.display().to_string());
        let answer = read(file).and_then(|bytes| answer(&bytes)).map_err(|why| {
            Problem::here(
                Exit::Usage,
                WHAT,
                format!("{shown}: {why}"),
                "give what `curl -i` printed, or JSON: {\"status\": 200, \"headers\": [[\"name\", \"value\"]], \"body\": base64}",
            )
        })?;
        body.push_str(&format!(",\"answer\":{answer}"));
    }
    body.push('}');
    let reply = session.client.post(WHAT, &path(&["v1", "actions", &args.id, "resolve"]), body)?;
    session.print(&reply, || {
        let action = reply.json()?;
        let id = plain(action.text("id").unwrap_or_default());
        let mut text = format!("{id}  {}\n", show::state(status(&action)));
        if status(&action) == "failed_retryable" {
            text.push_str(&format!("  it goes on by itself; to follow it: countersign watch {id}\n"));
        }
        Ok(text)
    })?;
    Ok(Exit::Done)
}

/// `countersign reconcile`
pub fn reconcile(session: &Session, args: &One) -> Result<Exit, Stop> {
    let target = path(&["v1", "actions", &args.id, "reconcile"]);
    let what = "the provider was not asked";
    // As long as a tool may take over it.
    let within = Duration::from_secs(300);
    let reply = session.client.call(what, http::Method::POST, &target, &[], Send::Nothing, within)?;
    let action = reply.json()?;
    session.print(&reply, || Ok(looked(&action)))?;
    Ok(match status(&action) {
        "outcome_unknown" => Exit::InDoubt,
        _ => Exit::Done,
    })
}

/// What was found, effect by effect, and where that leads.
fn looked(action: &Json) -> String {
    let id = plain(action.text("id").unwrap_or_default());
    let mut text = String::new();
    for lookup in action.list("lookups") {
        let ordinal = lookup.whole("ordinal").unwrap_or(0);
        let found = match lookup.text("found").unwrap_or_default() {
            "happened" => "it happened; the answer is recorded".to_owned(),
            "did_not_happen" => "it did not happen; it may be sent again".to_owned(),
            "too_early" => {
                let at = moment(lookup.text("again_at").unwrap_or_default());
                format!("it did not happen so far, and may still arrive; ask again from {at}")
            }
            "overtaken" => "somebody else settled it first".to_owned(),
            _ => format!("nothing was found out: {}", plain(lookup.text("why").unwrap_or_default())),
        };
        text.push_str(&format!("  effect {ordinal}: {found}\n"));
    }
    let next = match status(action) {
        "failed_retryable" => format!("  it goes on by itself; to follow it: countersign watch {id}\n"),
        "outcome_unknown" => {
            format!("  still in doubt; ask again, or look yourself: countersign effects {id}\n")
        }
        _ => String::new(),
    };
    format!("{id}  {}\n{text}{next}", show::state(status(action)))
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let open = std::fs::File::open(file).map_err(|e| plain(&e.to_string()))?;
    open.take(ANSWER_AT_MOST + 1).read_to_end(&mut bytes).map_err(|e| plain(&e.to_string()))?;
    if bytes.len() as u64 > ANSWER_AT_MOST {
        return Err(format!("it is longer than {ANSWER_AT_MOST} bytes"));
    }
    Ok(bytes)
}

/// An answer as the host takes it.
fn answer(bytes: &[u8]) -> Result<String, String> {
    if bytes.starts_with(b"HTTP/") {
        return from_http(bytes);
    }
    let text = std::str::from_utf8(bytes).map_err(|_| "it is neither JSON nor an HTTP answer".to_owned())?;
    match Json::parse(text) {
        // As it is: what is wrong inside is the host's to say.
        Ok(Json::Object(_)) => Ok(text.to_owned()),
        Ok(_) => Err("it is JSON, but not an object".to_owned()),
        Err(why) => Err(format!("it is neither an HTTP answer nor JSON: {}", plain(&why))),
    }
}

fn from_http(bytes: &[u8]) -> Result<String, String> {
    let mut rest = bytes;
    loop {
        let (head, body) = split_head(rest).ok_or("its head has no end: an empty line is missing")?;
        let mut lines = head.split('\n').map(|line| line.trim_end_matches('\r'));
        let status: u16 = lines
            .next()
            .and_then(|line| line.split(' ').nth(1))
            .and_then(|code| code.parse().ok())
            .ok_or("its first line has no status")?;
        // An interim answer comes before the one that counts.
        if (100..200).contains(&status) && body.starts_with(b"HTTP/") {
            rest = body;
            continue;
        }
        let mut headers = Vec::new();
        for line in lines.filter(|line| !line.is_empty()) {
            let (name, value) =
                line.split_once(':').ok_or_else(|| format!("{} is no header", show_line(line)))?;
            let name = name.to_ascii_lowercase();
            if !OF_THE_CONNECTION.contains(&name.as_str()) {
                headers.push(format!("[{},{}]", string(&name), string(value.trim())));
            }
        }
        return Ok(format!(
            "{{\"status\":{status},\"headers\":[{}],\"body\":\"{}\"}}",
            headers.join(","),
            STANDARD.encode(body)
        ));
    }
}

fn show_line(line: &str) -> String {
    super::text::quoted(&line.chars().take(60).collect::<String>())
}

/// The head as text, each byte one character as the ledger keeps header values,
/// and what follows the empty line.
fn split_head(bytes: &[u8]) -> Option<(String, &[u8])> {
    let crlf = bytes.windows(4).position(|w| w == b"\r\n\r\n").map(|at| (at, at + 4));
    let lf = bytes.windows(2).position(|w| w == b"\n\n").map(|at| (at, at + 2));
    let (end, begin) = match (crlf, lf) {
        (Some(a), Some(b)) => {
            if a.0 < b.0 {
                a
            } else {
                b
            }
        }
        (a, b) => a.or(b)?,
    };
    let head = bytes.get(..end)?.iter().map(|b| char::from(*b)).collect();
    Some((head, bytes.get(begin..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_lookup_found_is_said_effect_by_effect_with_what_to_do_next() {
        let said = |status: &str, lookups: &str| {
            let text = format!(r#"{{"id":"a1","status":"{status}","lookups":[{lookups}]}}"#);
            looked(&Json::parse(&text).unwrap())
        };
        assert_eq!(
            said("failed_retryable", r#"{"ordinal":2,"found":"happened","again_at":null,"why":null}"#),
            "a1  failed retryable\n  effect 2: it happened; the answer is recorded\n  it goes on by itself; to follow \
             it: countersign watch a1\n"
        );
        let early = r#"{"ordinal":1,"found":"too_early","again_at":"2026-10-01T12:00:00Z","why":null}"#;
        let nothing = r#"{"ordinal":3,"found":"nothing","again_at":null,"why":"it \u001b trapped"}"#;
        assert_eq!(
            said("outcome_unknown", &format!("{early},{nothing}")),
            "a1  outcome unknown\n  effect 1: it did not happen so far, and may still arrive; ask again from \
             2026-10-01 12:00:00 UTC\n  effect 3: nothing was found out: it \\u{1b} trapped\n  still in doubt; ask \
             again, or look yourself: countersign effects a1\n"
        );
    }

    #[test]
    fn what_curl_printed_becomes_the_answer_byte_for_byte() {
        let printed = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\nContent-Type: a/b\r\nTransfer-Encoding: chunked\r\n\
            X: \xe9\r\n\r\n{\"id\":\"re_1\"}\r\n\xff";
        assert_eq!(
            answer(printed).unwrap(),
            format!(
                r#"{{"status":201,"headers":[["content-type","a/b"],["x","é"]],"body":"{}"}}"#,
                STANDARD.encode(b"{\"id\":\"re_1\"}\r\n\xff")
            )
        );
        assert_eq!(answer(b"HTTP/2 204 \n\n").unwrap(), r#"{"status":204,"headers":[],"body":""}"#);
    }

    #[test]
    fn json_goes_as_it_is_and_anything_else_is_named() {
        let json = r#"{"status":200,"body":"e30="}"#;
        assert_eq!(answer(json.as_bytes()).unwrap(), json);
        for bad in [
            &b""[..],
            b"[]",
            b"\xff",
            b"hello",
            b"HTTP/1.1 200 OK\r\nno end",
            b"HTTP/1.1\r\n\r\n",
            b"HTTP/1.1 200\nx\n\n",
        ] {
            assert!(answer(bad).is_err(), "{bad:?}");
        }
    }
}
