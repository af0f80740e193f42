//! Colour, only for terminals whose owner did not say no.

use std::io::IsTerminal;

/// With colours or without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Paint(bool);

impl Paint {
    /// Never any.
    pub const PLAIN: Paint = Paint(false);

    /// For something that is written to: colour on a terminal, unless
    /// `NO_COLOR` is set to anything (no-color.org) or the terminal has none.
    #[expect(
        clippy::disallowed_methods,
        reason = "terminals are described by the environment, for every command alike"
    )]
    pub fn of(stream: &impl IsTerminal) -> Paint {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let dumb = set("TERM").is_some_and(|term| term == "dumb");
        Paint(stream.is_terminal() && set("NO_COLOR").is_none() && !dumb)
    }

    /// What matters most.
    pub fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    /// A state, by how much it needs somebody.
    pub fn state(self, state: &str, text: &str) -> String {
        let code = match state {
            "succeeded" => "32",
            "outcome_unknown" | "failed_terminal" => "1;31",
            "awaiting_approval" => "1;33",
            _ => "1",
        };
        self.with(code, text)
    }

    /// It is right.
    pub fn good(self, text: &str) -> String {
        self.with("32", text)
    }

    /// It is wrong.
    pub fn bad(self, text: &str) -> String {
        self.with("31", text)
    }

    fn with(self, code: &str, text: &str) -> String {
        if self.0 { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_colour_leaves_the_text_alone() {
        assert_eq!(Paint::PLAIN.state("succeeded", "succeeded"), "succeeded");
        assert_eq!(Paint(true).bold("x"), "\u{1b}[1mx\u{1b}[0m");
    }
}
