//! The command line: asks a running host over HTTP and prints what it says. It
//! holds no rule and opens no store; what it sends, anybody could send.
//!
//! Read in this order: [`args`] (what can be asked), [`discover`] (whom, and
//! with which token), [`client`] (how), then a verb: [`actions`], [`decide`],
//! [`resolve`], [`watch`], [`tools`], [`tokens`]. Everything that is printed goes
//! through [`text`], which lets nothing from outside move, hide or colour
//! anything; [`show`] is what an approver decides by.

mod actions;
mod args;
mod client;
mod decide;
mod discover;
mod effects;
mod exit;
#[cfg(test)]
mod fake_host;
mod fold;
mod json;
mod mail;
mod paint;
mod resolve;
mod session;
mod show;
mod table;
mod text;
mod time;
mod tokens;
mod tools;
mod watch;

use std::process::ExitCode;

pub use args::Verb;
pub use discover::{Connection, default_data_dir};
pub use paint::Paint;
pub use text::plain;

use self::args::ToolVerb;
use self::discover::Need;
use self::exit::{Exit, Stop};
use self::session::{Session, lines, print, say};

/// Does what was asked, prints what came of it, and says how it went. Blocking.
pub fn run(verb: Verb, connection: Connection) -> ExitCode {
    let json = connection.json;
    match perform(&verb, &connection) {
        Ok(exit) => exit.into(),
        // As a pipe's writer should end when its reader has seen enough.
        Err(Stop::NobodyReads) => ExitCode::SUCCESS,
        Err(Stop::Problem(problem)) => {
            // There is nobody left to tell if even this cannot be written.
            let _ = match problem.json.as_deref().filter(|_| json) {
                Some(body) => print(&lines(body)),
                None => say(&problem.render()),
            };
            problem.exit.into()
        }
    }
}

fn perform(verb: &Verb, connection: &Connection) -> Result<Exit, Stop> {
    let session = &Session::open(connection, need(verb))?;
    match verb {
        Verb::Tool(verb) => tools::run(session, verb),
        Verb::Propose(args) => actions::propose(session, args),
        Verb::List(args) => actions::list(session, args),
        Verb::Show(args) => actions::show_one(session, args),
        Verb::Watch(args) => watch::watch(session, args),
        Verb::Approve(args) => decide::approve(session, args),
        Verb::Decline(args) => actions::because(session, "decline", args),
        Verb::Cancel(args) => actions::because(session, "cancel", args),
        Verb::Supersede(args) => actions::supersede(session, args),
        Verb::Execute(args) => actions::execute(session, args),
        Verb::Reconcile(args) => resolve::reconcile(session, args),
        Verb::Resolve(args) => resolve::resolve(session, args),
        Verb::Token(verb) => tokens::run(session, verb),
        Verb::Events(args) => actions::events(session, args),
        Verb::Effects(args) => actions::effects(session, args),
    }
}

/// Whose token each verb takes out of the local data directory.
fn need(verb: &Verb) -> Need {
    match verb {
        Verb::Propose(_) | Verb::Supersede(_) | Verb::Execute(_) => Need::Agent,
        Verb::Approve(_) | Verb::Decline(_) => Need::Approver,
        Verb::Tool(ToolVerb::List) => Need::Any,
        Verb::Tool(_) | Verb::Cancel(_) | Verb::Reconcile(_) | Verb::Resolve(_) => Need::Operator,
        Verb::Token(_) => Need::Admin,
        Verb::List(_) | Verb::Show(_) | Verb::Watch(_) | Verb::Events(_) | Verb::Effects(_) => Need::Any,
    }
}
