//! The host's own log, on standard error: text on a terminal, JSON lines
//! anywhere else. What somebody else wrote can stand in it, so every control
//! character goes out escaped: an event is one line, whatever is in it.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write};

use tracing_subscriber::EnvFilter;

use crate::config::variable;

/// The variable that says what is logged, as `tracing` filters are written.
const FILTER: &str = "COUNTERSIGN_LOG";

/// Begins to log.
///
/// # Errors
/// If [`FILTER`] is no filter.
pub fn start() -> anyhow::Result<()> {
    let wanted = variable(FILTER).unwrap_or_else(|| "info".to_owned());
    let filter = EnvFilter::try_new(&wanted).map_err(|error| {
        anyhow::anyhow!("{FILTER}={wanted:?} is no log filter: {error}; try \"info\" or \"debug\"")
    })?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| Escaped(io::stderr()))
        .with_ansi(false);
    let started = if io::stderr().is_terminal() {
        lines.with_target(false).try_init()
    } else {
        lines.json().flatten_event(true).with_current_span(false).with_span_list(false).try_init()
    };
    started.map_err(|error| anyhow::anyhow!("the log cannot be started: {error}"))
}

/// Escapes what is written to it; one write is one event.
struct Escaped<W>(W);

impl<W: Write> Write for Escaped<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        self.0.write_all(one_line(&String::from_utf8_lossy(event)).as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// The text with its control characters as `\u00XX`, but for the line break at
/// its end. (Inside JSON such characters stand in strings only, where this is
/// their escape.)
fn one_line(event: &str) -> String {
    let (text, end) = match event.strip_suffix('\n') {
        Some(text) => (text, "\n"),
        None => (event, ""),
    };
    let mut out = String::with_capacity(event.len());
    for c in text.chars() {
        if c.is_control() || is_directional(c) {
            // Writing to a String cannot fail.
            let _ = write!(out, "\\u{:04x}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    out.push_str(end);
    out
}

/// Characters that change the direction of what follows, and line separators.
fn is_directional(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{61c}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g03_nothing_in_an_event_begins_another_line_or_moves_a_terminal() {
        let hostile = "actor=a\n{\"event\":\"approved\"}\r\u{1b}[2J\u{9b}2J\u{202e}x\n";
        let line = one_line(hostile);
        assert_eq!(line.matches('\n').count(), 1);
        assert!(!line.contains(['\r', '\u{1b}', '\u{9b}', '\u{202e}']), "{line:?}");
        assert!(line.contains("\\u000a{") && line.contains("\\u009b"), "{line:?}");
    }
}
