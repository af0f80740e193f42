//! Configuration of `serve`: flags, then environment (`COUNTERSIGN_…`), then
//! `countersign.toml`, then defaults. The only file here that knows where a
//! value comes from. A key that is not known is an error, and so is a secret
//! that is not there: found at start, not at the first send.

mod command;
mod egress;
mod guests;
mod limits;
mod quota;
mod secret;
mod smtp;
mod store;
mod webhook;

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use countersign_domain::grant::{Ceiling, parse_duration};
use countersign_domain::secret::{SecretName, SecretValue};
use countersign_gate::dispatch::{Certificate, SmtpConfig, certificates};
use countersign_gate::quota::Quotas;
use http::Uri;
use serde::Deserialize;

pub use self::guests::GuestProcesses;
pub use self::secret::variable;
use self::secret::{Source, secret, value};
pub use self::store::StorePlace;
pub use self::webhook::Webhook;

/// Where a host listens that was not told otherwise: this machine only.
const LISTEN: &str = "127.0.0.1:7171";
/// The configuration file, in the data directory unless named.
const FILE: &str = "countersign.toml";
/// The store, in the data directory unless named.
const STORE: &str = "countersign.db";
/// Shortest and longest lease. Shorter than a second, a host that is only slow
/// is taken for dead; longer than an hour, so is one that is.
const LEASES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(3600));
/// How long attempts may go on after the host was told to stop, unless it is
/// said. Chosen: as long as the longest send by default, and as the usual
/// patience of service managers allows.
const DRAIN: Duration = Duration::from_secs(30);

/// What `serve` takes. Each flag has an environment variable; both go before
/// the file.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ServeArgs {
    /// The configuration file [default: countersign.toml in the data directory, if it is there]
    #[arg(long, env = "COUNTERSIGN_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where to listen; port 0 takes a free one and says which [default: 127.0.0.1:7171]
    #[arg(long, env = "COUNTERSIGN_LISTEN", value_name = "ADDRESS")]
    pub listen: Option<String>,
    /// How this host is reached from outside, for example `https://gate.example.com`
    #[arg(long, env = "COUNTERSIGN_PUBLIC_URL", value_name = "URL")]
    pub public_url: Option<String>,
    /// The store, sqlite:PATH or postgres://… [default: countersign.db in the data directory]
    #[arg(long, env = "COUNTERSIGN_STORE", value_name = "URL")]
    pub store: Option<String>,
    /// How long an attempt may be silent before it is taken for dead [default: 60s]
    #[arg(long, env = "COUNTERSIGN_LEASE", value_name = "TIME")]
    pub lease: Option<String>,
    /// What this host does of the work: answer callers, run what is due, or both
    #[arg(long, env = "COUNTERSIGN_ROLE", value_enum, value_name = "ROLE", default_value_t)]
    pub role: Role,
    /// The store was restored from a backup: doubt every open action before anything is sent. For one start
    #[arg(long)]
    pub after_restore: bool,
    /// Switches one protection off, to show that the tests notice
    #[cfg(feature = "planted-bugs")]
    #[arg(long, value_name = "NAME")]
    pub planted_bug: Option<String>,
}

/// Which part of the work a host does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Role {
    /// Answers callers and runs what is due
    #[default]
    All,
    /// Answers callers and runs what they ask to be run; leaves what is due to workers
    Api,
    /// Runs what is due; answers only whether it is alive
    Worker,
}

/// What the file may say. Only keys that do something.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    listen: Option<String>,
    public_url: Option<String>,
    store: Option<String>,
    data_dir: Option<PathBuf>,
    lease: Option<String>,
    guest_processes: Option<toml::Value>,
    limits: Option<limits::Limits>,
    drain: Option<String>,
    postgres: Option<store::Postgres>,
    smtp: Option<smtp::Smtp>,
    quota: Option<quota::Section>,
    egress: Option<egress::Egress>,
    /// Authorities that grants can name: PEM files.
    #[serde(default)]
    ca: BTreeMap<String, PathBuf>,
    #[serde(default)]
    webhook: Vec<webhook::Section>,
    #[serde(default)]
    secrets: BTreeMap<String, Source>,
}

/// The configuration of a host.
#[derive(Debug)]
pub struct Config {
    /// Where it listens; port 0: a free one.
    pub listen: SocketAddr,
    /// How it is reached from outside.
    pub public_url: Option<Uri>,
    /// Where the ledger is.
    pub store: StorePlace,
    /// It was restored from a backup.
    pub after_restore: bool,
    /// What this host does of the work.
    pub role: Role,
    /// Where it keeps what it needs beside the store.
    pub data_dir: PathBuf,
    /// How long attempts live.
    pub lease: Duration,
    /// In which processes components run.
    pub guest_processes: GuestProcesses,
    /// What no grant may exceed.
    pub ceiling: Ceiling,
    /// What each tenant, tool and caller may take up.
    pub quotas: Quotas,
    /// How long attempts may go on when the host is told to stop.
    pub drain: Duration,
    /// Who is asked for the names of providers; nobody named: the system's resolver.
    pub dns: Vec<SocketAddr>,
    /// Authorities, by the names that grants use.
    pub authorities: BTreeMap<String, Vec<Certificate>>,
    /// What grants may name.
    pub secrets: Vec<(SecretName, SecretValue)>,
    /// The server that mails go through; `None`: this host sends none.
    pub smtp: Option<SmtpConfig>,
    /// Files that secrets are in, by the secrets' names.
    pub secret_files: Vec<(String, PathBuf)>,
    /// Who is told when an action waits for a person.
    pub webhooks: Vec<Webhook>,
    /// What the operator should know, to be logged.
    pub warnings: Vec<String>,
}

/// Why a configuration cannot be used: which part, why, what to do.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("the configuration file {path} cannot be read")]
    Unreadable {
        /// Which.
        path: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// The file is not what it must be; the text has line and known keys.
    #[error("the configuration file {path} cannot be used: {why}")]
    File {
        /// Which.
        path: String,
        /// Line, problem, known keys.
        why: String,
    },
    /// A value is not what it must be.
    #[error("{name} = {value:?}: {why}")]
    Value {
        /// Its name in the file; flag and variable are called alike.
        name: &'static str,
        /// As given.
        value: String,
        /// What it must be.
        why: String,
    },
    /// A secret cannot be had.
    #[error("the secret {name}: {why}")]
    Secret {
        /// Its name.
        name: String,
        /// Why not, and what to do.
        why: String,
    },
    /// There is no place for the host's things.
    #[error(
        "there is no place to keep the host's data: this user has no home directory; name one with --data-dir"
    )]
    NoDataDir,
}

/// Reads the configuration. `data_dir`: as given by flag or environment.
///
/// # Errors
/// The first thing that is wrong.
pub fn load(args: &ServeArgs, data_dir: Option<PathBuf>) -> Result<Config, ConfigError> {
    let default_dir = data_dir.clone().or_else(crate::cli::default_data_dir);
    let (file, path) = match (&args.config, &default_dir) {
        (Some(path), _) => (read_file(path, true)?, path.clone()),
        (None, Some(dir)) => (read_file(&dir.join(FILE), false)?, dir.join(FILE)),
        (None, None) => (File::default(), PathBuf::from(FILE)),
    };
    let beside = path.parent().unwrap_or(Path::new("."));
    let data_dir = data_dir.or(file.data_dir.map(|dir| beside.join(dir))).or(default_dir);
    let data_dir = data_dir.ok_or(ConfigError::NoDataDir)?;
    let listen = args.listen.clone().or(file.listen).unwrap_or_else(|| LISTEN.to_owned());
    let public_url = args.public_url.clone().or(file.public_url);
    let lease = args.lease.clone().or(file.lease);
    let (mut warnings, mut secret_files) = (Vec::new(), Vec::new());
    let postgres = file.postgres.unwrap_or_default();
    let password =
        postgres.password().map(|source| value("postgres.password", source, beside, &mut warnings));
    let password_file = postgres.password().and_then(|source| source.file.as_ref());
    secret_files.extend(password_file.map(|file| ("postgres.password".to_owned(), beside.join(file))));
    let password = password.transpose()?;
    let store = match (&args.store, file.store) {
        (Some(text), _) => store::place(text, Path::new(""), postgres, password)?,
        (None, Some(text)) => store::place(&text, beside, postgres, password)?,
        (None, None) => StorePlace::Sqlite(data_dir.join(STORE)),
    };
    if args.role != Role::All && matches!(store, StorePlace::Sqlite(_)) {
        let why =
            "one host holds a file's lock, so it has to do everything: use a postgres:// store for several";
        return Err(invalid("role", format!("{:?}", args.role).to_lowercase(), why));
    }
    let guest_processes =
        file.guest_processes.as_ref().map(guests::guest_processes).transpose()?.unwrap_or_default();
    let ceiling = file.limits.unwrap_or_default().ceiling()?;
    let mut secrets = Vec::new();
    for (name, source) in file.secrets {
        secret_files.extend(source.file.as_ref().map(|file| (name.clone(), beside.join(file))));
        secrets.push(secret(name, &source, beside, &mut warnings)?);
    }
    let smtp = file.smtp.map(|smtp| smtp.read(beside, &mut warnings)).transpose()?;
    let mut webhooks = Vec::new();
    for section in file.webhook {
        let source = &section.secret;
        secret_files
            .extend(source.file.as_ref().map(|file| ("webhook.secret".to_owned(), beside.join(file))));
        let key = value("webhook.secret", source, beside, &mut warnings)?;
        webhooks.push(webhook::webhook(section, &key)?);
    }
    let listen = address(listen)?;
    if !listen.ip().is_loopback() {
        warnings.push(format!(
            "listening on {listen} without TLS: tokens and arguments can be read on the way, unless a proxy in front \
             of this host speaks TLS"
        ));
    }
    Ok(Config {
        listen,
        public_url: public_url.map(url).transpose()?,
        store,
        after_restore: args.after_restore,
        role: args.role,
        data_dir,
        lease: lease.map(lease_length).transpose()?.unwrap_or(Duration::from_secs(60)),
        guest_processes,
        ceiling,
        quotas: quota::quotas(file.quota.unwrap_or_default())?,
        drain: file.drain.map(drain_length).transpose()?.unwrap_or(DRAIN),
        dns: file.egress.unwrap_or_default().dns()?,
        authorities: authorities(file.ca, beside)?,
        secrets,
        smtp,
        secret_files,
        webhooks,
        warnings,
    })
}

fn read_file(path: &Path, named: bool) -> Result<File, ConfigError> {
    let shown = path.display().to_string();
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !named => return Ok(File::default()),
        Err(source) => return Err(ConfigError::Unreadable { path: shown, source }),
    };
    // The error's text has the line, a pointer to the place, and the known keys.
    toml::from_str(&text)
        .map_err(|error| ConfigError::File { path: shown, why: error.to_string().trim_end().to_owned() })
}

fn invalid(name: &'static str, value: String, why: impl Into<String>) -> ConfigError {
    ConfigError::Value { name, value, why: why.into() }
}

fn address(text: String) -> Result<SocketAddr, ConfigError> {
    text.parse().map_err(|_| invalid("listen", text, "an address and a port, for example \"127.0.0.1:7171\""))
}

fn url(text: String) -> Result<Uri, ConfigError> {
    let parsed = text.parse::<Uri>().ok().filter(|url| {
        let plain = url.authority().is_some_and(|authority| !authority.as_str().contains('@'));
        plain
            && matches!(url.scheme_str(), Some("http" | "https"))
            && matches!(url.path(), "" | "/")
            && url.query().is_none()
    });
    parsed.ok_or_else(|| {
        invalid("public_url", text, "a URL without path, for example \"https://gate.example.com\"")
    })
}

fn lease_length(text: String) -> Result<Duration, ConfigError> {
    let parsed = parse_duration(&text);
    match parsed {
        Ok(lease) if (LEASES.0..=LEASES.1).contains(&lease) => Ok(lease),
        Ok(_) => Err(invalid("lease", text, "a lease is 500ms to 1h")),
        Err(why) => Err(invalid("lease", text, why)),
    }
}

fn drain_length(text: String) -> Result<Duration, ConfigError> {
    match parse_duration(&text) {
        Ok(drain) if drain <= LEASES.1 => Ok(drain),
        Ok(_) => Err(invalid("drain", text, "at most 1h; what is being sent is waited for in any case")),
        Err(why) => Err(invalid("drain", text, why)),
    }
}

/// The certificates of the authorities that grants can name.
fn authorities(
    files: BTreeMap<String, PathBuf>,
    beside: &Path,
) -> Result<BTreeMap<String, Vec<Certificate>>, ConfigError> {
    let mut found = BTreeMap::new();
    for (name, file) in files {
        let file = beside.join(file);
        let wrong = |why: String| invalid("ca", format!("{name} = {}", file.display()), why);
        let pem = fs::read(&file).map_err(|error| wrong(format!("it cannot be read: {error}")))?;
        let certificates = certificates(&pem).map_err(wrong)?;
        if certificates.is_empty() {
            return Err(wrong("it has no certificate; a PEM file with BEGIN CERTIFICATE is needed".into()));
        }
        found.insert(name, certificates);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load_text(text: &str) -> Result<Config, String> {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join(FILE), text).expect("written");
        load(&ServeArgs::default(), Some(dir.path().to_owned())).map_err(|error| error.to_string())
    }

    #[test]
    fn without_any_configuration_everything_is_in_the_data_directory_on_this_machine() {
        let config = load_text("").expect("a configuration");
        assert_eq!(config.listen.to_string(), LISTEN);
        assert!(matches!(&config.store, StorePlace::Sqlite(path) if *path == config.data_dir.join(STORE)));
        assert_eq!(config.role, Role::All);
        assert_eq!(config.lease, Duration::from_secs(60));
        assert!(config.warnings.is_empty());
    }

    #[test]
    fn an_unknown_key_is_refused_with_file_line_and_the_known_keys() {
        let refused = load_text("listen = \"127.0.0.1:1\"\nlisen = \"x\"\n").expect_err("refused");
        for part in [FILE, "line 2", "lisen", "listen", "public_url", "lease"] {
            assert!(refused.contains(part), "{part}: {refused}");
        }
        let refused = load_text("[secrets]\nk = { fil = \"x\" }\n").expect_err("refused");
        assert!(refused.contains("line 2") && refused.contains("`file`"), "{refused}");
    }

    #[test]
    fn flags_go_before_the_file() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join(FILE), "listen = \"127.0.0.1:1\"\nlease = \"2s\"\n").expect("written");
        let args = ServeArgs { listen: Some("127.0.0.1:0".into()), ..ServeArgs::default() };
        let config = load(&args, Some(dir.path().to_owned())).expect("a configuration");
        assert_eq!(config.listen.port(), 0);
        assert_eq!(config.lease, Duration::from_secs(2));
    }

    #[test]
    fn a_database_on_a_server_is_taken_and_its_password_is_shown_nowhere() {
        let text =
            "store = \"postgres://u:hunter2@h/d\"\n[postgres]\nconnections = 3\ndurability = \"applied\"";
        let config = load_text(text).expect("a configuration");
        let StorePlace::Postgres(options) = &config.store else { panic!("{config:?}") };
        assert_eq!(options.connections, 3);
        assert!(!format!("{config:?}").contains("hunter2"), "{config:?}");
    }

    #[test]
    fn hosts_that_share_a_file_are_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let args = ServeArgs { role: Role::Worker, ..ServeArgs::default() };
        let refused = load(&args, Some(dir.path().to_owned())).expect_err("refused").to_string();
        assert!(refused.contains("worker") && refused.contains("postgres://"), "{refused}");
    }

    #[test]
    fn c06_a_secret_of_the_configuration_is_shown_nowhere() {
        let text = "[secrets]\nkey = { command = [\"printf\", \"sk_canary_in_debug\"] }";
        let config = load_text(text).expect("a configuration");
        assert_eq!(config.secrets.len(), 1);
        assert!(!format!("{config:?} {config:#?}").contains("canary"), "{config:?}");
    }

    #[test]
    fn a_missing_secret_is_an_error_at_start_that_names_it() {
        for text in [
            "[secrets]\nstripe_key = { file = \"/nowhere/at/all\" }",
            "[secrets]\nstripe_key = { env = \"COUNTERSIGN_TEST_UNSET\" }",
            "[secrets]\nstripe_key = {}",
            "[secrets]\nstripe_key = { file = \"a\", env = \"b\" }",
        ] {
            let refused = load_text(text).expect_err(text);
            assert!(refused.contains("stripe_key"), "{refused}");
        }
    }

    #[test]
    fn what_a_value_must_be_is_said() {
        for (text, hint) in [
            ("listen = \"here\"", "127.0.0.1:7171"),
            ("lease = \"1ms\"", "500ms"),
            ("lease = \"60\"", "ms, s, m, h, d"),
            ("store = \"mysql://x\"", "sqlite:"),
            ("store = \"mysql://u:hunter2@h/d\"", "postgres://user@host"),
            ("store = \"postgres://u:hunter2@h/d\"\n[postgres]\nconnections = 0", "1 to 64"),
            ("store = \"postgres://u:hunter2@h/d\"\n[postgres]\ndurability = \"no\"", "flushed"),
            ("[postgres]\npassword = { file = \"/nowhere\" }", "postgres.password"),
            ("public_url = \"gate.example.com/x\"", "https://gate.example.com"),
        ] {
            let refused = load_text(text).expect_err(text);
            assert!(refused.contains(hint) && !refused.contains("hunter2"), "{refused}");
        }
    }
}
