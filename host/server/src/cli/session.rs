//! One command on its way: the connection, and where its output goes.

use std::io::{self, IsTerminal as _, Write as _};

use super::client::{Client, Reply};
use super::discover::{Connection, Need, find};
use super::exit::Stop;
use super::paint::Paint;
use super::show::View;
use super::time::now;

/// What every verb works with.
pub struct Session {
    /// To the host.
    pub client: Client,
    /// The host's own JSON instead of text.
    pub json: bool,
    /// For standard output.
    pub paint: Paint,
}

impl Session {
    /// Finds the host and the token that the verb needs.
    #[expect(
        clippy::disallowed_methods,
        reason = "a token must not stand in the arguments, where every user can read it"
    )]
    pub fn open(connection: &Connection, need: Need) -> Result<Session, Stop> {
        let from_environment = std::env::var_os("COUNTERSIGN_TOKEN").filter(|token| !token.is_empty());
        // What is not text is no token, and is said to be none.
        let from_environment = from_environment.map(|token| token.to_string_lossy().into_owned());
        let found = find(connection, need, from_environment)?;
        let paint = if connection.json { Paint::PLAIN } else { Paint::of(&io::stdout()) };
        Ok(Session { client: Client::new(found), json: connection.json, paint })
    }

    /// How actions are shown.
    pub fn view(&self, full: bool) -> View {
        View { full, paint: self.paint, now: now() }
    }

    /// Prints the host's JSON where that is asked for, else the text.
    pub fn print(&self, reply: &Reply, text: impl FnOnce() -> Result<String, Stop>) -> Result<(), Stop> {
        if self.json { print(&lines(&reply.body)) } else { print(&text()?) }
    }

    /// Whether a person sits in front of this, to read and to answer.
    pub fn can_ask(&self) -> bool {
        io::stdin().is_terminal() && io::stdout().is_terminal() && io::stderr().is_terminal()
    }

    /// Whether a person watches what is said beside the output.
    pub fn is_watched(&self) -> bool {
        io::stderr().is_terminal()
    }
}

/// Text with a line feed at its end.
pub fn lines(text: &str) -> String {
    if text.is_empty() || text.ends_with('\n') { text.to_owned() } else { format!("{text}\n") }
}

/// To standard output.
pub fn print(text: &str) -> Result<(), Stop> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Beside the output, to whoever watches.
pub fn say(text: &str) -> Result<(), Stop> {
    let mut out = io::stderr().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Asks until one of the answers is given; the end of the input is the last.
pub fn ask(question: &str, answers: &[&str]) -> Result<usize, Stop> {
    loop {
        say(question)?;
        let mut line = String::new();
        if io::stdin().read_line(&mut line)? == 0 {
            say("\n")?;
            return Ok(answers.len() - 1);
        }
        let given = line.trim().to_lowercase();
        if let Some(which) = answers.iter().position(|answer| *answer == given) {
            return Ok(which);
        }
        say(&format!("Please answer one of: {}\n", answers.join(", ")))?;
    }
}
