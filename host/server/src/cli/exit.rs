//! How a command ends: exit codes, and what is said when it did not work.
//! A problem says what did not work, why, and what to do about it.

use std::io;
use std::process::ExitCode;

use super::json::Json;
use super::text::plain;

/// Exit codes. They are documented in `--help` and are an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// It was done; for an action that was executed, it succeeded.
    Done = 0,
    /// Anything else: no host, no connection, a full disk.
    Other = 1,
    /// The command line was wrong (clap uses the same number).
    Usage = 2,
    /// There is no such thing, or it is another tenant's.
    NotFound = 3,
    /// The host refused, or the action is in a state where this cannot be done.
    Refused = 4,
    /// Nobody knows whether an effect happened: do not try again.
    InDoubt = 5,
    /// It runs, or waits for somebody, longer than was waited for.
    Running = 6,
    /// The action ended without a result.
    Failed = 7,
}

impl Exit {
    /// By the state an action is in, for a command that waited for its end.
    pub fn of_state(state: &str) -> Exit {
        match state {
            "succeeded" => Exit::Done,
            "outcome_unknown" => Exit::InDoubt,
            "failed_terminal" => Exit::Failed,
            "cancelled" | "expired" => Exit::Refused,
            _ => Exit::Running,
        }
    }

    /// By the code of a problem and, where it is not known, its HTTP status.
    pub fn of_problem(status: u16, code: &str) -> Exit {
        match (code, status) {
            ("execution_in_doubt" | "outcome_never_known", _) => Exit::InDoubt,
            ("not_found", _) | (_, 404) => Exit::NotFound,
            // Not about what was asked: the host cannot answer anybody now.
            ("unavailable" | "quota_exceeded", _) | (_, 429 | 500..) => Exit::Other,
            (_, 400..500) => Exit::Refused,
            _ => Exit::Other,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// Why a command stopped.
#[derive(Debug)]
pub enum Stop {
    /// Something to tell.
    Problem(Box<Problem>),
    /// Whoever read our output went away: nothing to tell, nobody to tell it.
    NobodyReads,
}

/// What did not work.
#[derive(Debug)]
pub struct Problem {
    /// What did not work, as one line.
    pub what: String,
    /// Why, as far as is known.
    pub why: String,
    /// What to do about it; empty where the reason says it already.
    pub advice: String,
    /// How the command ends.
    pub exit: Exit,
    /// The host's own words, for `--json`.
    pub json: Option<String>,
}

impl Problem {
    /// A problem found on this side of the connection. The parts are safe to
    /// print already.
    pub fn here(
        exit: Exit,
        what: impl Into<String>,
        why: impl Into<String>,
        advice: impl Into<String>,
    ) -> Stop {
        Stop::Problem(Box::new(Problem {
            what: what.into(),
            why: why.into(),
            advice: advice.into(),
            exit,
            json: None,
        }))
    }

    /// What the host answered, where it was not what was asked for.
    pub fn answered(what: &str, status: u16, body: &str) -> Stop {
        let json = Json::parse(body).ok();
        let field = |name: &str| json.as_ref().and_then(|j| j.text(name)).unwrap_or_default().to_owned();
        let code = field("code");
        let mut why = match (field("detail"), field("title")) {
            (detail, _) if !detail.is_empty() => plain(&detail),
            (_, title) if !title.is_empty() => plain(&title),
            _ => format!("the host answered with HTTP status {status} and no explanation"),
        };
        let pointer = field("pointer");
        if !pointer.is_empty() && !why.contains(&plain(&pointer)) {
            why.push_str(&format!(" (at {})", plain(&pointer)));
        }
        if !code.is_empty() {
            why.push_str(&format!(" [{}]", plain(&code)));
        }
        let mut advice = advice(&code, status).to_owned();
        if advice.is_empty() && json.as_ref().is_some_and(|j| j.is_true("retryable")) {
            advice = "try the same again in a moment".to_owned();
        }
        Stop::Problem(Box::new(Problem {
            what: what.to_owned(),
            why,
            advice,
            exit: Exit::of_problem(status, &code),
            json: json.is_some().then(|| body.to_owned()),
        }))
    }

    /// The lines for a person.
    pub fn render(&self) -> String {
        let mut lines = format!("countersign: {}\n", self.what);
        if !self.why.is_empty() {
            lines.push_str(&format!("  why: {}\n", self.why));
        }
        if !self.advice.is_empty() {
            lines.push_str(&format!("  do:  {}\n", self.advice));
        }
        lines
    }
}

/// What to do, where the host's sentence cannot know what this side has.
fn advice(code: &str, status: u16) -> &'static str {
    match (code, status) {
        ("unauthenticated", _) | (_, 401) => {
            "name a token that this host knows: --token-file, COUNTERSIGN_TOKEN, or the data directory's own"
        }
        ("not_permitted", _) | (_, 403) => {
            "use a token with the role this needs; an admin makes one with `countersign token create`"
        }
        ("not_found", _) | (_, 404) => "look at `countersign list` and `countersign tool list`",
        ("fingerprint_precondition", _) => {
            "look at the action again with `countersign show` and decide about that"
        }
        ("execution_in_doubt", _) => {
            "do not propose it again; look at `countersign effects`, and let an operator settle it with \
             `countersign resolve`"
        }
        ("component_refused", _) => {
            "a tool is a WebAssembly component; build it as the example tools are built"
        }
        ("invalid_grant", _) => "correct the grant and send it again; nothing was changed",
        ("invalid_arguments", _) => {
            "correct the arguments; `countersign tool list --json` has the tool's schema"
        }
        ("quota_exceeded", _) | (_, 429) => "wait, then try the same again",
        _ => "",
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Stop {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Stop::NobodyReads;
        }
        Problem::here(Exit::Other, "the output could not be written", plain(&error.to_string()), "")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(stop: Stop) -> Problem {
        match stop {
            Stop::Problem(problem) => *problem,
            Stop::NobodyReads => panic!("not a problem"),
        }
    }

    #[test]
    fn each_state_and_code_ends_with_its_number() {
        for (state, exit) in [
            ("succeeded", 0),
            ("outcome_unknown", 5),
            ("executing", 6),
            ("failed_retryable", 6),
            ("awaiting_approval", 6),
            ("approved", 6),
            ("failed_terminal", 7),
            ("cancelled", 4),
            ("expired", 4),
        ] {
            assert_eq!(Exit::of_state(state) as u8, exit, "{state}");
        }
        for (status, code, exit) in [
            (404, "not_found", 3),
            (404, "", 3),
            (409, "invalid_state", 4),
            (409, "execution_in_doubt", 5),
            (412, "fingerprint_precondition", 4),
            (422, "invalid_arguments", 4),
            (401, "unauthenticated", 4),
            (429, "quota_exceeded", 1),
            (503, "unavailable", 1),
            (500, "", 1),
            (302, "", 1),
        ] {
            assert_eq!(Exit::of_problem(status, code) as u8, exit, "{status} {code}");
        }
    }

    #[test]
    fn a_problem_says_what_why_and_what_to_do_and_repeats_no_escape() {
        let body = r#"{"code":"not_permitted","detail":"no\u001b[2Jpe","pointer":"/a","retryable":false}"#;
        let problem = problem(Problem::answered("the action was not approved", 403, body));
        assert_eq!(
            problem.render(),
            "countersign: the action was not approved\n  why: no\\u{1b}[2Jpe (at /a) [not_permitted]\n  \
             do:  use a token with the role this needs; an admin makes one with `countersign token create`\n"
        );
        assert_eq!(problem.json.as_deref(), Some(body));
    }

    #[test]
    fn an_answer_that_is_no_problem_is_still_explained() {
        let problem = problem(Problem::answered("no", 502, "<html>"));
        assert!(problem.render().contains("HTTP status 502"), "{}", problem.render());
        assert_eq!(problem.json, None);
    }

    #[test]
    fn a_reader_that_went_away_is_no_problem() {
        assert!(matches!(Stop::from(io::Error::from(io::ErrorKind::BrokenPipe)), Stop::NobodyReads));
    }
}
