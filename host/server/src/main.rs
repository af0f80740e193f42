//! Countersign: the one binary. Reads the command line and hands over.
//!
//! `serve` opens a store and runs a host ([`serve`], [`wiring`], [`http`]), and
//! [`doctor`] looks at what that host would stand on;
//! everything that asks a running host something is in [`cli`]; [`provider`] is
//! something to send to, for tests and the demo.

mod cli;
mod config;
mod demo;
mod doctor;
mod http;
mod logging;
mod metrics;
mod provider;
mod serve;
mod shutdown;
mod signals;
mod tokens;
mod webhook;
mod wiring;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Runs tools for AI agents and lets each outbound effect out once, only as it was approved.
#[derive(Debug, Parser)]
#[command(name = "countersign", version, about, propagate_version = true, after_help = HELP)]
struct CommandLine {
    #[command(flatten)]
    connection: cli::Connection,
    #[command(subcommand)]
    command: Command,
}

const HELP: &str = "Exit codes: 0 done; 1 it could not be done, and standard error says why; 2 wrong usage; \
    130 stopped at once by a second signal. Commands that ask a host have more: see their --help.\n\
    Every flag of `serve` has an environment variable (COUNTERSIGN_…), and both go before countersign.toml.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a host: the HTTP API over a store
    Serve(config::ServeArgs),
    /// Look at everything that `serve` stands on, and say what to do about it
    Doctor(doctor::DoctorArgs),
    /// Play the failures: double approvals, crashes, lost replies; every count from the provider's log
    Demo(demo::DemoArgs),
    /// A provider for tests and the demo
    #[command(hide = true)]
    Provider(provider::ProviderArgs),
    /// Compiles one component for a host; what that host starts
    #[command(hide = true)]
    CompileComponent,
    /// Runs components for a host; what that host starts
    #[command(hide = true)]
    GuestProcess,
    #[command(flatten)]
    Verb(cli::Verb),
}

fn main() -> ExitCode {
    let CommandLine { connection, command } = CommandLine::parse();
    let ran = match command {
        Command::Verb(verb) => return cli::run(verb, connection),
        Command::Demo(args) => match demo::run(&args) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::Doctor(args) => match on_runtime(doctor::run(args, connection.data_dir, connection.json)) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::Serve(args) => plant(&args).and_then(|()| on_runtime(serve::run(args, connection.data_dir))),
        Command::Provider(args) => on_runtime(provider::run(args)),
        Command::CompileComponent => countersign_sandbox::compile_component().map_err(anyhow::Error::msg),
        Command::GuestProcess => countersign_sandbox::guest_process().map_err(anyhow::Error::msg),
    };
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("countersign: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn on_runtime<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let done = runtime.block_on(work);
    // A compilation that nobody waits for any more is not waited for here.
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    done
}

/// Switches one protection off, in builds that are made for it.
#[cfg(feature = "planted-bugs")]
#[expect(unsafe_code, reason = "the environment is set before any thread is started")]
fn plant(args: &config::ServeArgs) -> anyhow::Result<()> {
    use countersign_domain::planted;
    let Some(bug) = &args.planted_bug else { return Ok(()) };
    anyhow::ensure!(
        planted::ALL.contains(&bug.as_str()),
        "there is no planted bug {bug:?}; there are {}",
        planted::ALL.join(", ")
    );
    // SAFETY: this is the only thread; it runs before any runtime is built.
    unsafe { std::env::set_var(planted::VARIABLE, bug) };
    Ok(())
}

#[cfg(not(feature = "planted-bugs"))]
fn plant(_: &config::ServeArgs) -> anyhow::Result<()> {
    Ok(())
}
