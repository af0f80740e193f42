//! A provider for the tests and the demo: something outside that acts, and can misbehave.
//!
//! It runs as a process of its own and shares nothing with the rest of Countersign but the
//! binary: its log is the verdict about the host, so it must not be able to agree with the host
//! by accident. It may not use any other room, and keeps no secret's value.
//!
//! Reading order: `wire` (what can be asked of it), `connection` and `serve` (the order of
//! things), `business`, `stripe` and `bank` (what it does), `keys`, `faults`, `log`. `client` is
//! for its users.
//!
//! ```text
//! countersign provider --listen 127.0.0.1:0 --log provider.jsonl
//! listening on http://127.0.0.1:40123
//! ```

mod bank;
mod business;
pub mod client;
mod connection;
mod control;
mod faults;
mod keys;
mod log;
mod message;
mod serve;
mod socket;
mod stripe;
#[cfg(test)]
mod tests;
pub mod wire;

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};

use self::log::Log;
use self::serve::{Provider, Settings};
use self::wire::Mode;

/// Stripe's own: keys can be removed once they are at least a day old.
const RETENTION_MS: u64 = 24 * 60 * 60 * 1000;

/// Short enough for a test to wait out, long enough for a repeat to arrive within.
const FORGETS_RETENTION_MS: u64 = 60 * 1000;

/// A provider to test tools and the host against: acts, logs, and fails in chosen ways.
#[derive(Clone, Debug, clap::Args)]
pub struct ProviderArgs {
    /// Where to listen; port 0 takes a free one and says which
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,

    /// The log, one JSON object a line, appended to and flushed before every answer
    #[arg(long, value_name = "FILE")]
    pub log: PathBuf,

    /// How long a key is kept, from its first use: 24h, 60s, 500ms [default: 24h; 60s where the
    /// mode is `forgets`]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub key_retention: Option<Duration>,

    /// What keys are worth: `honours` them, `ignores` them, or `forgets` them after a minute
    #[arg(long, value_name = "MODE", default_value = "honours")]
    pub mode: Mode,

    /// The same for the bank's paths alone [default: as --mode]
    #[arg(long, value_name = "MODE")]
    pub bank_mode: Option<Mode>,

    /// End when the standard input closes, and so with whoever started this
    #[arg(long)]
    pub until_stdin_closes: bool,
}

/// Listens, says where, and serves until it is told to end.
///
/// # Errors
/// The log cannot be opened or written, the address cannot be listened on.
pub async fn run(args: ProviderArgs) -> anyhow::Result<()> {
    let log = Log::open(&args.log)?;
    let listener = TcpListener::bind(args.listen).await.with_context(|| {
        format!("cannot listen on {}; choose another address, or port 0 for a free one", args.listen)
    })?;
    let address = listener.local_addr().context("cannot tell the own address")?;
    let modes = [Some(args.mode), args.bank_mode];
    let usual = match modes.contains(&Some(Mode::Forgets)) {
        true => FORGETS_RETENTION_MS,
        false => RETENTION_MS,
    };
    let settings = Settings {
        mode: args.mode,
        bank_mode: args.bank_mode,
        key_retention_ms: args
            .key_retention
            .map_or(usual, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
        clock_advanced_ms: 0,
    };
    let (fatal, mut ended) = mpsc::unbounded_channel();
    let provider = Arc::new(Provider::new(log, settings, fatal));
    let end = end_signal(args.until_stdin_closes)?;
    {
        let mut out = std::io::stdout().lock();
        writeln!(out, "listening on http://{address}")
            .and_then(|()| out.flush())
            .context("cannot say where it listens")?;
    }
    tokio::select! {
        never = provider.serve(listener) => match never {},
        Some(error) = ended.recv() => Err(anyhow!(
            "cannot write the log {}: {error}; nothing more is answered",
            args.log.display()
        )),
        () = end => Ok(()),
    }
}

/// Resolves at SIGTERM, SIGINT or, if asked for, the end of the standard input.
fn end_signal(until_stdin_closes: bool) -> anyhow::Result<impl Future<Output = ()>> {
    let (closed, stdin) = oneshot::channel();
    if until_stdin_closes {
        std::thread::Builder::new()
            .name("provider-stdin".into())
            .spawn(move || {
                let mut input = std::io::stdin().lock();
                let mut piece = [0; 1024];
                while matches!(input.read(&mut piece), Ok(read) if read > 0) {}
                let _ = closed.send(());
            })
            .context("cannot watch the standard input")?;
    }
    #[cfg(unix)]
    let mut terminate = {
        use tokio::signal::unix::{SignalKind, signal};
        signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?
    };
    Ok(async move {
        #[cfg(unix)]
        let terminated = async move {
            terminate.recv().await;
        };
        #[cfg(not(unix))]
        let terminated = std::future::pending::<()>();
        tokio::select! {
            () = terminated => {}
            _ = tokio::signal::ctrl_c() => {}
            Ok(()) = stdin => {}
        }
    })
}

/// `24h`, `15m`, `60s`, `500ms`, `7d`.
fn parse_time(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit_ms: u64 = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60 * 1000,
        "h" => 60 * 60 * 1000,
        "d" => 24 * 60 * 60 * 1000,
        _ => return Err("a whole number and one of ms, s, m, h, d, such as 24h".into()),
    };
    number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(unit_ms))
        .map(Duration::from_millis)
        .ok_or_else(|| "a whole number and one of ms, s, m, h, d, such as 24h".into())
}
