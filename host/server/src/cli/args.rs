//! The command line: what each verb takes. Only the form is checked here; what
//! is allowed is the host's to say.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser as Text;
use clap::{ArgGroup, Args, Subcommand};

/// What the exit codes mean, for `--help`.
pub const EXIT_CODES: &str = "Exit codes: 0 done, or the action succeeded; 2 wrong usage; 3 not found; \
    4 refused, or not possible in this state; 5 the outcome is in doubt: do not try again; \
    6 still running or waiting; 7 the action failed; 1 anything else";

/// What can be asked of a running host.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Install tools and say what they may do
    #[command(subcommand)]
    Tool(ToolVerb),
    /// Propose an action
    #[command(after_help = EXIT_CODES)]
    Propose(Propose),
    /// List actions, newest first
    List(List),
    /// Show an action: what would be sent, by whom, until when
    Show(Show),
    /// Follow what happens, to one action or to all
    #[command(after_help = EXIT_CODES)]
    Watch(Watch),
    /// Approve an action, exactly as it was shown
    #[command(after_help = EXIT_CODES)]
    Approve(Approve),
    /// Decline an action
    Decline(Because),
    /// Take an action back
    Cancel(Because),
    /// Replace an action by a new one that has to be approved anew
    Supersede(Supersede),
    /// Run an approved action, or join whoever runs it
    #[command(after_help = EXIT_CODES)]
    Execute(Execute),
    /// Ask the provider, through the tool, what came of an action whose outcome is unknown
    #[command(after_help = EXIT_CODES)]
    Reconcile(One),
    /// Say what came of an effect whose outcome is unknown
    Resolve(Resolve),
    /// Make, list and revoke tokens
    #[command(subcommand)]
    Token(TokenVerb),
    /// Every transition of an action
    Events(One),
    /// Every outbound call of an action
    Effects(Effects),
}

/// `countersign tool …`
#[derive(Debug, Subcommand)]
pub enum ToolVerb {
    /// Install a tool
    Add(ToolAdd),
    /// List the installed tools
    List,
    /// Say what a component is and asks for, without installing it
    Inspect {
        /// The component
        #[arg(value_name = "FILE.wasm")]
        file: PathBuf,
        /// The grant it would get, TOML; without one, the grant in force
        #[arg(long, value_name = "grant.toml")]
        grant: Option<PathBuf>,
        /// Its name here, in place of the one it gives itself
        #[arg(long, value_parser = Text::new())]
        name: Option<String>,
    },
    /// Give a tool another grant
    Grant {
        /// Its name
        #[arg(value_parser = Text::new())]
        name: String,
        /// The grant, TOML
        #[arg(value_name = "grant.toml")]
        grant: PathBuf,
        /// Only say what would change, and which pending actions it would void
        #[arg(long)]
        dry_run: bool,
    },
    /// Stop new runs of a tool
    Pause {
        /// Its name
        #[arg(value_parser = Text::new())]
        name: String,
    },
    /// Let a paused tool run again
    Resume {
        /// Its name
        #[arg(value_parser = Text::new())]
        name: String,
    },
}

/// `countersign tool add`
#[derive(Debug, Args)]
pub struct ToolAdd {
    /// The component
    #[arg(value_name = "FILE.wasm")]
    pub file: PathBuf,
    /// What it may do, TOML; without one a new tool may reach nothing, and one that is there keeps its grant
    #[arg(long, value_name = "grant.toml")]
    pub grant: Option<PathBuf>,
    /// Its name here, in place of the one it gives itself
    #[arg(long, value_parser = Text::new())]
    pub name: Option<String>,
    /// Install it also if it gets more than it has now, without being asked
    #[arg(long)]
    pub yes: bool,
}

/// `countersign propose`
#[derive(Debug, Args)]
#[command(
    // `--version` is the tool's here.
    disable_version_flag = true,
    group = ArgGroup::new("what").required(true).args(["args", "args_file"]),
    group = ArgGroup::new("which").required(true).args(["key", "run"])
)]
pub struct Propose {
    /// The tool
    #[arg(value_parser = Text::new())]
    pub tool: String,
    /// The arguments, JSON
    #[arg(long, value_name = "JSON")]
    pub args: Option<String>,
    /// A file with the arguments; `-` is standard input
    #[arg(long, value_name = "FILE")]
    pub args_file: Option<PathBuf>,
    /// The idempotency key: with the same one, the same action is found again
    #[arg(long, value_parser = Text::new(), conflicts_with_all = ["run", "step"])]
    pub key: Option<String>,
    /// The caller's run; with --step in place of a key
    #[arg(long, value_parser = Text::new(), requires = "step")]
    pub run: Option<String>,
    /// The step within the run
    #[arg(long, value_parser = Text::new(), requires = "run")]
    pub step: Option<String>,
    /// A version of the tool other than the current one
    #[arg(long, value_parser = Text::new())]
    pub version: Option<String>,
    /// Whom it is for, if not for the token's owner
    #[arg(long, value_parser = Text::new())]
    pub actor: Option<String>,
    /// Run it as soon as it is approved
    #[arg(long)]
    pub auto: bool,
    /// Wait this long for a decision, or with --auto for the result
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub wait: Option<Duration>,
}

/// `countersign list`
#[derive(Debug, Args)]
pub struct List {
    /// Only those in this state
    #[arg(long, value_parser = Text::new())]
    pub status: Option<String>,
    /// Only those of this tool
    #[arg(long, value_parser = Text::new())]
    pub tool: Option<String>,
    /// Only those of this run
    #[arg(long, value_parser = Text::new())]
    pub run: Option<String>,
    /// At most so many
    #[arg(long)]
    pub limit: Option<u32>,
    /// Go on where an earlier list ended
    #[arg(long, value_name = "CURSOR", value_parser = Text::new())]
    pub after: Option<String>,
}

/// `countersign show`
#[derive(Debug, Args)]
pub struct Show {
    /// The action
    #[arg(value_parser = Text::new())]
    pub id: String,
    /// Fold nothing, however long
    #[arg(long)]
    pub full: bool,
}

/// A verb that takes an action and nothing else.
#[derive(Debug, Args)]
pub struct One {
    /// The action
    #[arg(value_parser = Text::new())]
    pub id: String,
}

/// `countersign effects`
#[derive(Debug, Args)]
pub struct Effects {
    /// The action
    #[arg(value_parser = Text::new())]
    pub id: String,
    /// Fold nothing, however long
    #[arg(long)]
    pub full: bool,
}

/// `countersign watch`
#[derive(Debug, Args)]
pub struct Watch {
    /// The action; without one, all that happens from now on
    #[arg(value_parser = Text::new())]
    pub id: Option<String>,
    /// Without an action: from the beginning, not from now
    #[arg(long, conflicts_with = "id")]
    pub all: bool,
}

/// `countersign approve`
#[derive(Debug, Args)]
pub struct Approve {
    /// The action
    #[arg(value_parser = Text::new())]
    pub id: String,
    /// A word to keep with the approval
    #[arg(long)]
    pub note: Option<String>,
    /// The fingerprint of what was seen; without a terminal this or --yes is needed
    #[arg(long, value_parser = fingerprint)]
    pub fingerprint: Option<String>,
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
}

/// `countersign decline` and `countersign cancel`
#[derive(Debug, Args)]
pub struct Because {
    /// The action
    #[arg(value_parser = Text::new())]
    pub id: String,
    /// Why; it is kept and shown to the caller
    #[arg(long, value_parser = Text::new())]
    pub reason: String,
}

/// `countersign supersede`
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").args(["args", "args_file"]))]
pub struct Supersede {
    /// The action to replace
    #[arg(value_parser = Text::new())]
    pub id: String,
    /// New arguments, JSON; without them the same again
    #[arg(long, value_name = "JSON")]
    pub args: Option<String>,
    /// A file with the new arguments; `-` is standard input
    #[arg(long, value_name = "FILE")]
    pub args_file: Option<PathBuf>,
}

/// `countersign execute`
#[derive(Debug, Args)]
pub struct Execute {
    /// The action
    #[arg(value_parser = Text::new())]
    pub id: String,
    /// Wait this long for the result
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "30s")]
    pub wait: Duration,
}

/// `countersign resolve`
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("outcome").required(true).args(["happened", "did_not_happen", "give_up"]))]
pub struct Resolve {
    /// The action
    #[arg(value_parser = Text::new())]
    pub id: String,
    /// Which of its effects, as `countersign effects` numbers them
    #[arg(long, value_name = "N")]
    pub ordinal: u32,
    /// It happened; give the answer that the tool is to see, unless it is a mail
    #[arg(long)]
    pub happened: bool,
    /// It did not happen, and may be sent again
    #[arg(long)]
    pub did_not_happen: bool,
    /// Nobody will ever know; the action ends
    #[arg(long)]
    pub give_up: bool,
    /// The provider's answer: what `curl -i` printed, or JSON {"status", "headers", "body" as base64}
    #[arg(long, value_name = "FILE", conflicts_with_all = ["did_not_happen", "give_up"])]
    pub answer_file: Option<PathBuf>,
    /// How you know; kept under your name
    #[arg(long, value_parser = Text::new())]
    pub evidence: String,
    /// Which send of the effect this is about, as `countersign effects` says; refused if it was sent again since.
    /// Needed with --did-not-happen
    #[arg(long, value_name = "N", required_if_eq("did_not_happen", "true"))]
    pub send: Option<u32>,
}

/// `countersign token …`
#[derive(Debug, Subcommand)]
pub enum TokenVerb {
    /// Make a token; it is printed once
    Create {
        /// The name of whoever will hold it, kept with everything they do
        #[arg(value_parser = Text::new())]
        name: String,
        /// What it is good for: agent, approver, operator, admin
        #[arg(long = "role", required = true, value_name = "ROLE", value_parser = Text::new())]
        roles: Vec<String>,
        /// Whose; the default tenant if not named
        #[arg(long, value_parser = Text::new())]
        tenant: Option<String>,
    },
    /// List tokens, not their secrets
    List,
    /// End a token at once
    Revoke {
        /// Its public part, as `countersign token list` prints it
        #[arg(value_parser = Text::new())]
        id: String,
    },
}

/// A length of time: `500ms`, `30s`, `5m`; without a unit, seconds.
fn time(text: &str) -> Result<Duration, String> {
    let wrong =
        || format!("`{}` is no length of time; write it like 30s, 500ms or 5m", text.escape_default());
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    let millis = match &text[digits.len()..] {
        "ms" => number,
        "s" | "" => number.saturating_mul(1_000),
        "m" => number.saturating_mul(60_000),
        "h" => number.saturating_mul(3_600_000),
        _ => return Err(wrong()),
    };
    // Longer than an action can live, and no timer overflows.
    if millis > 31 * 24 * 3_600_000 {
        return Err("longer than 31 days; no action lives so long".to_owned());
    }
    Ok(Duration::from_millis(millis))
}

fn fingerprint(text: &str) -> Result<String, String> {
    let is_hex = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
    if text.len() == 64 && text.bytes().all(is_hex) {
        Ok(text.to_owned())
    } else {
        Err("a fingerprint is 64 lower-case hexadecimal digits, as `countersign show` prints it".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser};

    use super::*;
    use crate::cli::Connection;

    #[derive(Debug, Parser)]
    #[command(version, propagate_version = true)]
    struct Line {
        #[command(flatten)]
        connection: Connection,
        #[command(subcommand)]
        verb: Verb,
    }

    fn parse(line: &str) -> Result<Line, clap::error::ErrorKind> {
        Line::try_parse_from(std::iter::once("countersign").chain(line.split_whitespace()))
            .map_err(|e| e.kind())
    }

    #[test]
    fn the_command_line_is_consistent() {
        Line::command().debug_assert();
    }

    #[test]
    fn what_is_needed_is_asked_for() {
        let full = "0123456789abcdef".repeat(4);
        for good in [
            "propose refund --args {} --key k",
            "propose refund --args-file - --run r --step 1 --auto --wait 30s --version 1.0.0 --actor a",
            "approve id",
            "approve id --yes --note fine --json",
            "resolve id --ordinal 1 --happened --answer-file a.txt --evidence seen",
            "resolve id --ordinal 1 --happened --evidence log",
            "resolve id --ordinal 1 --give-up --evidence none --send 2",
            "resolve id --ordinal 1 --did-not-happen --evidence asked --send 2",
            "reconcile id --json",
            "token create ci --role agent --role operator",
            "tool add x.wasm --grant g.toml --name refund",
            "tool grant refund g.toml --dry-run",
            "list --status approved --tool t --run r",
            "watch",
            "watch id --url http://h",
            "execute id --wait 5",
            &format!("approve id --fingerprint {full}"),
        ] {
            parse(good).unwrap_or_else(|kind| panic!("{good}: {kind:?}"));
        }
        for bad in [
            "propose refund --args {}",
            "propose refund --key k",
            "propose refund --args {} --run r",
            "propose refund --args {} --step s",
            "propose refund --args {} --key k --run r --step s",
            "propose refund --args {} --args-file f --key k",
            "propose refund --args {} --key k --wait soon",
            "approve id --fingerprint abc",
            "decline id",
            "cancel id",
            "resolve id --ordinal 1 --evidence e",
            "resolve id --ordinal 1 --happened --give-up --evidence e",
            "resolve id --ordinal 1 --did-not-happen --answer-file a --evidence e",
            "resolve id --ordinal 1 --did-not-happen",
            "resolve id --ordinal 1 --did-not-happen --evidence e",
            "reconcile",
            "token create ci",
            "tool add",
            "events",
            "frobnicate",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_have_units() {
        assert_eq!(time("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(time("30"), Ok(Duration::from_secs(30)));
        assert_eq!(time("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(time("2m"), Ok(Duration::from_secs(120)));
        for bad in ["", "s", "-1s", "1.5s", "10d", "1 s", "99999999999999999999s", "900h"] {
            assert!(time(bad).is_err(), "{bad}");
        }
    }
}
