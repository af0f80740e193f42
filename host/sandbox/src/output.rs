//! What a component prints and logs, kept within bounds. It goes to the run's
//! report and nowhere else: never to the host's own output, where it could be
//! taken for the host's words or for a protocol's frames.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamError, StreamResult};

use crate::bindings::tool::countersign::tool::context;
use crate::error::Halt;
use crate::state::State;

/// Bytes of one line; the rest of it is dropped and said to be.
const LINE_BYTES: usize = 4 << 10;
/// Writes of one stream, and log and progress calls together. A call costs the
/// host time whatever it carries.
const CALLS: u32 = 65_536;
/// The most that one write may carry, bytes.
const WRITE_BYTES: usize = 64 << 10;
/// Said once per stream, where it was cut off.
const TRUNCATED: &str = "… truncated: the rest is not kept";

/// Where something came from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    Stdout,
    Stderr,
    Log,
}

impl Source {
    fn label(self) -> &'static str {
        match self {
            Source::Stdout => "stdout",
            Source::Stderr => "stderr",
            Source::Log => "log",
        }
    }
}

#[derive(Default)]
struct Stream {
    /// Bytes kept.
    kept: u64,
    calls: u32,
    /// The line being printed.
    line: Vec<u8>,
    line_is_cut: bool,
    closed: bool,
}

/// The lines of one run.
pub(crate) struct Output {
    limit: u64,
    lines: Vec<String>,
    streams: [Stream; 3],
}

/// Shared by the run and by the streams in its resource table.
#[derive(Clone)]
pub(crate) struct SharedOutput(Arc<Mutex<Output>>);

impl SharedOutput {
    /// `limit`: bytes kept per source.
    pub(crate) fn new(limit: u64) -> SharedOutput {
        SharedOutput(Arc::new(Mutex::new(Output { limit, lines: Vec::new(), streams: Default::default() })))
    }

    fn lock(&self) -> MutexGuard<'_, Output> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lines, unfinished ones included.
    pub(crate) fn take(&self) -> Vec<String> {
        let mut output = self.lock();
        for source in [Source::Stdout, Source::Stderr] {
            if !output.streams[source as usize].line.is_empty() {
                output.end_line(source);
            }
        }
        std::mem::take(&mut output.lines)
    }

    pub(crate) fn stream(&self, source: Source) -> Box<dyn OutputStream> {
        Box::new(Printed { output: self.clone(), source })
    }
}

impl Output {
    /// Counts a call. False if there were too many.
    fn called(&mut self, source: Source) -> bool {
        let stream = &mut self.streams[source as usize];
        stream.calls = stream.calls.saturating_add(1);
        stream.calls <= CALLS
    }

    fn print(&mut self, source: Source, bytes: &[u8]) {
        // Before anybody looks for lines in what is not kept.
        if self.streams[source as usize].closed {
            return;
        }
        for part in bytes.split_inclusive(|b| *b == b'\n') {
            let stream = &mut self.streams[source as usize];
            if stream.closed {
                return;
            }
            let (text, ends) = match part.strip_suffix(b"\n") {
                Some(text) => (text, true),
                None => (part, false),
            };
            let room = LINE_BYTES.saturating_sub(stream.line.len());
            stream.line_is_cut |= text.len() > room;
            stream.line.extend_from_slice(&text[..text.len().min(room)]);
            if ends {
                self.end_line(source);
            }
        }
    }

    fn end_line(&mut self, source: Source) {
        let stream = &mut self.streams[source as usize];
        let line = std::mem::take(&mut stream.line);
        let cut = std::mem::take(&mut stream.line_is_cut);
        self.line(source, source.label(), &line, cut);
    }

    /// Adds a line, or the one that says that no more are added.
    fn line(&mut self, source: Source, label: &str, text: &[u8], cut: bool) {
        let limit = self.limit;
        let stream = &mut self.streams[source as usize];
        if stream.closed {
            return;
        }
        let mut line = format!("[{label}] ");
        escape(&String::from_utf8_lossy(text), &mut line);
        if cut {
            line.push_str(TRUNCATED);
        }
        if stream.kept.saturating_add(line.len() as u64) > limit {
            stream.closed = true;
            line = format!("[{label}] {TRUNCATED}");
        }
        stream.kept = stream.kept.saturating_add(line.len() as u64);
        self.lines.push(line);
    }
}

/// Control characters as `\u{…}`, so that a line is a line wherever it is shown.
fn escape(text: &str, into: &mut String) {
    for c in text.chars() {
        if c.is_control() && c != '\t' {
            into.extend(c.escape_unicode());
        } else {
            into.push(c);
        }
    }
}

/// Stdout or stderr. Takes everything at once and never waits: bytes over the
/// limit are dropped, because a tool should not fail over what it prints. Calls
/// over the limit are an error, because they are not printing.
struct Printed {
    output: SharedOutput,
    source: Source,
}

impl OutputStream for Printed {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        let mut output = self.output.lock();
        if !output.called(self.source) {
            return Err(StreamError::Closed);
        }
        output.print(self.source, &bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(WRITE_BYTES)
    }
}

#[async_trait::async_trait]
impl Pollable for Printed {
    async fn ready(&mut self) {}
}

impl context::Host for State {
    fn action(&mut self) -> wasmtime::Result<context::ActionContext> {
        let context = self.context.as_ref().ok_or(Halt::NoAction)?;
        Ok(context::ActionContext {
            action_id: context.action.to_string(),
            run_id: context.run.clone(),
            step: context.step.clone(),
            tenant: context.tenant.as_str().to_owned(),
            actor: context.actor.as_str().to_owned(),
        })
    }

    fn progress(&mut self, percent: u8, text: String) -> wasmtime::Result<()> {
        let percent = percent.min(100);
        self.say(&format!("progress {percent}%"), &text);
        Ok(())
    }

    fn log(&mut self, level: context::Level, text: String) -> wasmtime::Result<()> {
        let label = match level {
            context::Level::Debug => "debug",
            context::Level::Info => "info",
            context::Level::Warn => "warn",
            context::Level::Error => "error",
        };
        self.say(label, &text);
        Ok(())
    }
}

impl State {
    fn say(&mut self, label: &str, text: &str) {
        let mut output = self.output.lock();
        if output.called(Source::Log) {
            let kept = text.floor_char_boundary(LINE_BYTES);
            output.line(Source::Log, label, &text.as_bytes()[..kept], kept < text.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a12_a_flood_leaves_no_more_than_the_limit_and_says_so_once() {
        let output = SharedOutput::new(64 << 10);
        let mut stream = output.stream(Source::Stdout);
        for _ in 0..10_000 {
            stream.write(Bytes::from_static(&[b'x'; 1023])).unwrap();
            stream.write(Bytes::from_static(b"\n")).unwrap();
        }
        let lines = output.take();
        let bytes: usize = lines.iter().map(String::len).sum();
        assert!(bytes < (64 << 10) + 100, "{bytes}");
        assert_eq!(lines.iter().filter(|line| line.contains("truncated")).count(), 1);
        assert!(lines.last().unwrap().contains("truncated"));
    }

    #[test]
    fn a12_a_long_line_is_cut_and_marked() {
        let output = SharedOutput::new(64 << 10);
        let mut stream = output.stream(Source::Stderr);
        for _ in 0..5 {
            stream.write(Bytes::from(vec![b'x'; 1024])).unwrap();
        }
        stream.write(Bytes::from_static(b"\nnext")).unwrap();
        let lines = output.take();
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].len() < LINE_BYTES + 100 && lines[0].ends_with(TRUNCATED));
        assert_eq!(lines[1], "[stderr] next");
    }

    #[test]
    fn a11_writes_are_counted_even_when_they_carry_nothing() {
        let output = SharedOutput::new(64 << 10);
        let mut stream = output.stream(Source::Stdout);
        let refused = (0..CALLS + 10).filter(|_| stream.write(Bytes::new()).is_err()).count();
        assert_eq!(refused, 10);
        assert!(output.take().is_empty());
    }

    #[test]
    fn control_characters_never_reach_a_terminal() {
        let output = SharedOutput::new(64 << 10);
        output.stream(Source::Stdout).write(Bytes::from_static(b"a\x1b[2Jb\rc\n")).unwrap();
        assert_eq!(output.take(), ["[stdout] a\\u{1b}[2Jb\\u{d}c"]);
    }
}
