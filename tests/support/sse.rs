//! An event stream, read the way a browser reads one.

use std::io::BufReader;
use std::net::TcpStream;

use serde_json::Value;

use super::host::Caller;
use super::http::{read_chunk, read_head};
use super::told::Told;

/// One event.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Of the `id` field.
    pub id: String,
    /// Of the `data` field.
    pub data: Value,
}

/// An open stream.
pub struct Stream {
    reader: BufReader<TcpStream>,
    text: String,
    ended: bool,
}

impl Stream {
    /// Opens one. `after`: the id of the last event that was seen.
    ///
    /// # Errors
    /// The answer, if it is no stream.
    pub fn open(
        caller: &Caller<'_>,
        address: &str,
        target: &str,
        after: Option<&str>,
    ) -> Result<Stream, Told> {
        let mut request = caller.request("GET", target).header("Accept", "text/event-stream");
        if let Some(after) = after {
            request = request.header("Last-Event-ID", after);
        }
        let mut reader = BufReader::new(request.begin(address).expect("a connection"));
        let head = read_head(&mut reader).expect("an answer");
        if head.header("content-type") != Some("text/event-stream") {
            return Err(Told::of(head));
        }
        Ok(Stream { reader, text: String::new(), ended: false })
    }

    /// The next event; `None` when the stream ended.
    pub fn next(&mut self) -> Option<Event> {
        loop {
            if let Some((block, rest)) = self.text.split_once("\n\n") {
                let (block, rest) = (block.to_owned(), rest.to_owned());
                self.text = rest;
                let field = |name: &str| {
                    let line = block.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
                    line.map(str::to_owned)
                };
                if let (Some(id), Some(data)) = (field("id"), field("data")) {
                    assert_eq!(block.lines().count(), 2, "an event of more than two lines: {block:?}");
                    return Some(Event { id, data: serde_json::from_str(&data).expect("data is JSON") });
                }
            } else if self.ended {
                return None;
            } else {
                match read_chunk(&mut self.reader) {
                    Ok(Some(chunk)) => self.text.push_str(std::str::from_utf8(&chunk).expect("UTF-8")),
                    Ok(None) | Err(_) => self.ended = true,
                }
            }
        }
    }

    /// The next `n`.
    pub fn take(&mut self, n: usize) -> Vec<Event> {
        (0..n).map(|_| self.next().expect("one more event")).collect()
    }
}
