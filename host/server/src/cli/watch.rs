//! Following events as they happen. A connection that breaks is made again from
//! the last event that was seen, so nothing is lost and nothing comes twice.

use std::io::{BufRead, BufReader, Read as _};
use std::time::Duration;

use super::args::Watch;
use super::client::{path, query};
use super::exit::{Exit, Stop};
use super::json::Json;
use super::session::{Session, print, say};
use super::table::event_line;

const WHAT: &str = "the events could not be followed";
/// The host says that it is still there every 15 s; after three times that, the
/// connection is taken for dead.
const SILENCE: Duration = Duration::from_secs(45);
/// Between attempts to connect again: the first wait, and the longest.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Longest line of a stream. An event is a few hundred bytes.
const LINE_AT_MOST: u64 = 4 << 20;

/// `countersign watch`
pub fn watch(session: &Session, args: &Watch) -> Result<Exit, Stop> {
    let target = match &args.id {
        Some(id) => path(&["v1", "actions", id, "events"]),
        None => path(&["v1", "events"]),
    };
    let mut last = match (&args.id, args.all) {
        (None, false) => newest(session, &target)?,
        _ => None,
    };
    let mut state = None;
    let mut connected = false;
    let mut pause = PAUSE;
    loop {
        match session.client.stream(WHAT, &target, last.as_deref(), SILENCE) {
            // Nothing will ever follow what was seen.
            Ok(None) => return Ok(Exit::of_state(state.as_deref().unwrap_or_default())),
            Ok(Some(body)) => {
                if connected && pause > PAUSE {
                    say_if_watched(session, "connected again\n")?;
                }
                connected = true;
                let mut stream = Stream::new(BufReader::new(body.into_reader()));
                while let Some(event) = stream.next() {
                    pause = PAUSE;
                    let json = Json::parse(&event.data);
                    match (&json, session.json) {
                        (_, true) => print(&format!("{}\n", event.data))?,
                        (Ok(json), false) => print(&event_line(json, args.id.is_none()))?,
                        (Err(_), false) => say_if_watched(session, "an event could not be read\n")?,
                    }
                    last = event.id.or(last);
                    if args.id.is_some()
                        && let Some(to) = json.ok().as_ref().and_then(|json| json.text("to"))
                    {
                        state = Some(to.to_owned());
                        if is_last(to) {
                            return Ok(Exit::of_state(to));
                        }
                    }
                }
            }
            Err(stop) => {
                // What the host refuses once it refuses again; and who was
                // never connected is told at once.
                let passing = matches!(&stop, Stop::Problem(problem) if problem.exit == Exit::Other);
                if !connected || !passing {
                    return Err(stop);
                }
            }
        }
        if pause == PAUSE {
            say_if_watched(session, "the connection ended; connecting again\n")?;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Where the history ends now, so that only what happens from here on is shown.
fn newest(session: &Session, target: &str) -> Result<Option<String>, Stop> {
    let mut after: Option<u64> = None;
    loop {
        let from = after.map(|after| after.to_string());
        let page = query(target, &[("after", from.as_deref()), ("limit", Some("1000"))]);
        let page = session.client.get(WHAT, &page)?.json()?;
        after = page.whole("next").or(after);
        if page.list("events").len() < 1000 {
            return Ok(after.map(|after| after.to_string()));
        }
    }
}

fn is_last(state: &str) -> bool {
    matches!(state, "succeeded" | "failed_terminal" | "cancelled" | "expired")
}

fn say_if_watched(session: &Session, text: &str) -> Result<(), Stop> {
    if session.is_watched() { say(text) } else { Ok(()) }
}

/// One event of a stream.
#[derive(Debug, PartialEq, Eq)]
struct Event {
    id: Option<String>,
    data: String,
}

/// Reads `text/event-stream` (HTML, "Server-sent events") as far as the host
/// uses it: `id` and `data`, comments passed over.
struct Stream<R> {
    reader: R,
}

impl<R: BufRead> Stream<R> {
    fn new(reader: R) -> Stream<R> {
        Stream { reader }
    }

    /// The next event; `None` when the stream ends, breaks, or is not one. What
    /// came of an event before that is not an event.
    fn next(&mut self) -> Option<Event> {
        let mut id = None;
        let mut data: Vec<String> = Vec::new();
        loop {
            let mut line = Vec::new();
            let read = (&mut self.reader).take(LINE_AT_MOST).read_until(b'\n', &mut line).ok()?;
            if read == 0 || line.pop() != Some(b'\n') {
                return None;
            }
            let line = String::from_utf8(line).ok()?;
            let line = line.trim_end_matches('\r');
            if line.is_empty() {
                if !data.is_empty() {
                    return Some(Event { id, data: data.join("\n") });
                }
                continue;
            }
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                // A line feed cannot get here; NUL is refused by the standard.
                "id" if !value.contains('\0') => id = Some(value.to_owned()),
                "data" => data.push(value.to_owned()),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<Event> {
        let mut stream = Stream::new(text.as_bytes());
        std::iter::from_fn(|| stream.next()).collect()
    }

    #[test]
    fn events_are_read_whole_or_not_at_all() {
        let event = |id: Option<&str>, data: &str| Event { id: id.map(Into::into), data: data.into() };
        assert_eq!(
            read(
                ": hello\n\nid: 1\ndata: {\"a\":1}\n\nevent: x\r\ndata:b\r\ndata: c\r\n\r\nid: 3\ndata: cut"
            ),
            [event(Some("1"), "{\"a\":1}"), event(None, "b\nc")]
        );
        assert_eq!(read("id: 3\ndata: cut\n"), []);
        assert_eq!(read(""), []);
    }
}
