//! `countersign doctor`: looks at everything that `serve` would stand on, and
//! says of each thing how it is and what to do about it.
//!
//! It changes nothing: no folder is made, no database migrated, no lock taken. A
//! host that is running goes on, and is asked how it is. What needs the network
//! is in [`network`], what is on this machine in [`machine`]; the store examines
//! itself.

mod machine;
mod network;
mod print;

use std::path::PathBuf;
use std::process::ExitCode;

use countersign_domain::grant::Grant;
use countersign_domain::time::Timestamp;
use countersign_gate::dispatch::resolver;
use countersign_store::health::{Examination, Finding, Level};

use crate::config::{self, Config, ServeArgs, StorePlace};

/// What `doctor` takes: what `serve` takes, because it looks at what `serve`
/// would do.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Exit codes: 0 nothing failed (there may be warnings); 1 something did; 2 wrong usage"
)]
pub struct DoctorArgs {
    #[command(flatten)]
    serve: ServeArgs,
    /// Ask nothing of the network: no names, no providers. (The database is asked, if it is on a server.)
    #[arg(long)]
    offline: bool,
}

/// Looks at everything, prints it, and says whether anything failed.
///
/// # Errors
/// Only if the findings cannot be printed.
pub async fn run(args: DoctorArgs, data_dir: Option<PathBuf>, json: bool) -> anyhow::Result<ExitCode> {
    let findings = examine(&args, data_dir).await;
    print::findings(&findings, json)?;
    let failed = findings.iter().any(|finding| finding.level == Level::Failure);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

async fn examine(args: &DoctorArgs, data_dir: Option<PathBuf>) -> Vec<Finding> {
    let config = match config::load(&args.serve, data_dir) {
        Ok(config) => config,
        Err(error) => {
            let words = with_causes(&error);
            return vec![Finding::failure(
                "configuration",
                words,
                "correct it; everything else depends on it",
            )];
        }
    };
    let mut found =
        vec![Finding::good("configuration", format!("countersign {}", env!("CARGO_PKG_VERSION")))];
    found.extend(config.warnings.iter().map(|warning| Finding::warning("configuration", warning, "")));
    found.extend(machine::surroundings());
    found.extend(machine::data_dir(&config.data_dir));
    found.extend(machine::secret_files(&config.secret_files));
    found.push(addresses(&config));

    let store = store(&config).await;
    found.extend(store.findings);
    found.extend(store.folder.as_deref().and_then(|folder| machine::disk("disk of the store", folder)));
    if let Some(pid) = store.held_by {
        found.push(network::running_host(&config.data_dir, pid).await);
    }

    let mut grants = Vec::new();
    for granted in store.grants {
        match granted.source.parse::<Grant>() {
            Ok(grant) => grants.push((granted.tool, grant)),
            Err(error) => found.push(Finding::warning(
                "grants",
                format!("the grant of {} cannot be read: {error}", granted.tool),
                "give the tool another one: countersign tool grant",
            )),
        }
    }
    found.push(secrets(&config, &grants));
    if config.smtp.is_none()
        && let Some((tool, _)) = grants.iter().find(|(_, grant)| grant.email().is_some())
    {
        found.push(Finding::failure(
            "mail",
            format!("{tool} may send mail, and there is no [smtp] in the configuration"),
            "name the server that mail goes through; until then its mails are refused",
        ));
    }
    if args.offline {
        found.push(Finding::good("network", "not asked, as --offline says"));
    } else {
        // By whom sends have them resolved; webhooks go by the system.
        match resolver(&config.dns) {
            Ok(names) => {
                found.extend(network::providers(&grants, &*names).await);
                if let Some(smtp) = &config.smtp {
                    found.push(network::mail(smtp, &names).await);
                }
            }
            Err(error) => found.push(Finding::failure(
                "egress",
                format!("the servers of egress.dns cannot be asked: {error}"),
                "correct them, or leave them out for the system's resolver",
            )),
        }
        found.extend(network::webhooks(&config.webhooks).await);
    }
    found
}

async fn store(config: &Config) -> Examination {
    match &config.store {
        // `serve` makes this folder, and everything in it.
        StorePlace::Sqlite(path) if path.parent() == Some(&config.data_dir) && !config.data_dir.exists() => {
            let words = format!("{} is not there yet; `countersign serve` makes it", path.display());
            Examination { findings: vec![Finding::good("store", words)], ..Examination::default() }
        }
        StorePlace::Sqlite(path) => {
            let path = path.clone();
            let now = now().as_micros();
            // It opens files.
            let looked =
                tokio::task::spawn_blocking(move || countersign_store::sqlite::examine(&path, now)).await;
            looked.unwrap_or_else(|error| Examination {
                findings: vec![Finding::failure(
                    "store",
                    format!("looking at it died: {error}"),
                    "report this",
                )],
                ..Examination::default()
            })
        }
        StorePlace::Postgres(options) => countersign_store::postgres::examine(options, now).await,
    }
}

/// Secrets that tools in force need, and the ones that there are.
fn secrets(config: &Config, grants: &[(impl std::fmt::Display, Grant)]) -> Finding {
    const CHECK: &str = "secrets";
    let mut missing = Vec::new();
    for (tool, grant) in grants {
        for needed in grant.secrets() {
            if config.secrets.iter().all(|(name, _)| name != needed) {
                missing.push(format!("{needed} (for {tool})"));
            }
        }
    }
    if missing.is_empty() {
        return Finding::good(
            CHECK,
            format!("{} there, and every one that a grant names", config.secrets.len()),
        );
    }
    let advice = "name each in [secrets] of countersign.toml; until then its sends are refused";
    Finding::failure(CHECK, format!("not there: {}", missing.join(", ")), advice)
}

/// Whether people can reach what links and origins are made of.
fn addresses(config: &Config) -> Finding {
    const CHECK: &str = "address";
    let listen = config.listen;
    match &config.public_url {
        None if listen.ip().is_loopback() => {
            Finding::good(CHECK, format!("listens on {listen}, for this machine only"))
        }
        None => Finding::warning(
            CHECK,
            format!("listens on {listen} for other machines, and public_url is not set"),
            "set public_url to what they call this host; requests under other names are refused",
        ),
        Some(url) if url.scheme_str() == Some("http") && !listen.ip().is_loopback() => Finding::warning(
            CHECK,
            format!("public_url is {url}: tokens and arguments go in the clear"),
            "put a proxy that speaks TLS in front, and make public_url https",
        ),
        Some(url) => Finding::good(CHECK, format!("listens on {listen}, is reached as {url}")),
    }
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text.push_str(&format!(": {next}"));
        cause = next.source();
    }
    text
}

#[expect(clippy::disallowed_methods, reason = "the host's clock is what is compared")]
fn now() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}
