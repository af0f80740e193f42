//! The queue of faults, and the ways of answering that no HTTP library would agree to.
//!
//! Decides which rule meets a request and writes bytes to a socket. What a request does, and what
//! is logged about it, is not its business.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::net::TcpStream;

use super::message::Answer;
use super::stripe;
use super::wire::{Fault, Rule};

/// The rules in the order they were given. The first live one that matches fires.
#[derive(Default)]
pub struct Faults {
    queue: Vec<Standing>,
    last_id: u64,
}

struct Standing {
    id: u64,
    rule: Rule,
    fired: u64,
}

impl Standing {
    fn is_live(&self) -> bool {
        self.rule.times.is_none_or(|times| self.fired < times)
    }
}

/// A rule that has just fired.
#[derive(Clone, Debug)]
pub struct Fired {
    /// Its number in the queue's history.
    pub id: u64,
    /// Whether the business is to be done.
    pub act: bool,
    /// What goes wrong.
    pub fault: Fault,
}

impl Faults {
    /// Adds a rule at the end and returns its id, from 1.
    pub fn add(&mut self, rule: Rule) -> u64 {
        self.last_id += 1;
        self.queue.push(Standing { id: self.last_id, rule, fired: 0 });
        self.last_id
    }

    /// Forgets all rules; ids go on.
    pub fn clear(&mut self) {
        self.queue.clear();
    }

    /// Takes one firing of the first live rule for this request, if it is of the wanted kind: a
    /// reset before reading is decided earlier than everything else.
    pub fn take(&mut self, method: &str, path: &str, before_read: bool) -> Option<Fired> {
        let standing = self
            .queue
            .iter_mut()
            .find(|standing| standing.is_live() && standing.rule.matches.covers(method, path))?;
        if (standing.rule.fault == Fault::ResetBeforeRead) != before_read {
            return None;
        }
        standing.fired += 1;
        Some(Fired { id: standing.id, act: standing.rule.act, fault: standing.rule.fault.clone() })
    }

    /// Whether a new connection's request line must be looked at before it is read.
    pub fn may_reset_before_read(&self) -> bool {
        self.queue.iter().any(|standing| standing.is_live() && standing.rule.fault == Fault::ResetBeforeRead)
    }

    /// For `GET /_control`: each rule as it was given, with its id and how often it fired.
    pub fn show(&self) -> Vec<Value> {
        self.queue
            .iter()
            .map(|standing| {
                let mut map = Map::from(standing.rule.clone());
                map.insert("id".into(), standing.id.into());
                map.insert("fired".into(), standing.fired.into());
                Value::Object(map)
            })
            .collect()
    }
}

/// What a `status` rule answers.
pub fn status_answer(code: u16, headers: &[(String, String)], body: Option<&Value>) -> Answer {
    let mut answer = match body {
        None => {
            let (kind, text) = match code {
                401 => ("invalid_request_error", "Invalid API Key provided"),
                429 => ("rate_limit_error", "Too many requests, try again later"),
                _ if code < 500 => ("invalid_request_error", "Refused by a fault rule"),
                _ => ("api_error", "Something went wrong on our end"),
            };
            stripe::error(code, kind, None, text, None)
        }
        Some(Value::String(text)) => Answer {
            status: code,
            headers: vec![("Content-Type".into(), "text/plain; charset=utf-8".into())],
            body: text.clone().into(),
        },
        Some(json) => Answer::json(code, json),
    };
    for (name, value) in headers {
        answer.headers.retain(|(other, _)| !other.eq_ignore_ascii_case(name));
        answer.headers.push((name.clone(), value.clone()));
    }
    answer
}

/// What is answered where a rule kept the business from being done and brings no answer itself.
pub fn not_done() -> Answer {
    Answer::json(
        500,
        &json!({ "error": { "message": "A fault rule kept this from being done", "type": "api_error" } }),
    )
}

/// Sends an answer the way the fault wants it. Errors mean that the caller went away first.
pub async fn send_raw(socket: &Arc<TcpStream>, fault: &Fault, answer: &Answer) -> io::Result<()> {
    let length = answer.body.len() as u64;
    match fault {
        Fault::ResetAtByte { n } => {
            let mut whole = answer.head(Some(length)).into_bytes();
            whole.extend_from_slice(&answer.body);
            whole.truncate(usize::try_from(*n).unwrap_or(usize::MAX));
            write_all(socket, &whole).await?;
            if whole.len() > 32 * 1024 {
                // A reset throws away what has not crossed yet; more than a first window may
                // still be here.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            socket.set_zero_linger()
        }
        Fault::Drip { ms, n } => {
            let mut whole = answer.head(Some(length)).into_bytes();
            whole.extend_from_slice(&answer.body);
            for piece in whole.chunks(usize::try_from(*n).unwrap_or(usize::MAX)) {
                tokio::time::sleep(Duration::from_millis(*ms)).await;
                write_all(socket, piece).await?;
            }
            Ok(())
        }
        Fault::Truncate { n } => {
            let part = n.unwrap_or(length / 2).min(length);
            write_all(socket, answer.head(Some(length)).as_bytes()).await?;
            let part = usize::try_from(part).unwrap_or(usize::MAX);
            write_all(socket, answer.body.get(..part).unwrap_or(&answer.body)).await
        }
        Fault::BigBody { bytes, chunked } => {
            let bytes = (*bytes).max(length);
            let head = answer.head((!chunked).then_some(bytes));
            write_all(socket, head.as_bytes()).await?;
            write_body(socket, &answer.body, *chunked).await?;
            let padding = [b' '; 16 * 1024];
            let mut left = bytes - length;
            while left > 0 {
                let size = usize::try_from(left).unwrap_or(usize::MAX).min(padding.len());
                let piece = padding.get(..size).unwrap_or(&padding);
                write_body(socket, piece, *chunked).await?;
                left -= piece.len() as u64;
            }
            match chunked {
                true => write_all(socket, b"0\r\n\r\n").await,
                false => Ok(()),
            }
        }
        Fault::Raw { body } => write_all(socket, body.as_bytes()).await,
        Fault::Continues { n, code } => {
            for _ in 0..*n {
                write_all(socket, format!("HTTP/1.1 {code} Interim\r\n\r\n").as_bytes()).await?;
            }
            Ok(())
        }
        Fault::ResetBeforeRead => socket.set_zero_linger(),
        Fault::LoseReply | Fault::Delay { .. } | Fault::Hold { .. } | Fault::Status { .. } => Ok(()),
    }
}

async fn write_body(socket: &TcpStream, piece: &[u8], chunked: bool) -> io::Result<()> {
    if !chunked {
        return write_all(socket, piece).await;
    }
    write_all(socket, format!("{:x}\r\n", piece.len()).as_bytes()).await?;
    write_all(socket, piece).await?;
    write_all(socket, b"\r\n").await
}

async fn write_all(socket: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        socket.writable().await?;
        match socket.try_write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
