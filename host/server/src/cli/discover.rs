//! Finding the host and the token to speak to it with: what the caller named,
//! else what the local host left in its data directory.
//!
//! A token of the data directory goes to the address that the same directory
//! names and to no other: `--url` alone never carries it away.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use super::exit::{Exit, Problem, Stop};
use super::json::Json;
use super::text::plain;

/// Where the host is and how to speak to it. The same for every command.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Connection {
    /// The host's address, for example http://127.0.0.1:7171
    #[arg(long, env = "COUNTERSIGN_URL", global = true, value_name = "URL", help_heading = "Connection")]
    pub url: Option<String>,
    /// A file that holds the token (or the token itself in COUNTERSIGN_TOKEN)
    #[arg(
        long,
        env = "COUNTERSIGN_TOKEN_FILE",
        global = true,
        value_name = "FILE",
        help_heading = "Connection"
    )]
    pub token_file: Option<PathBuf>,
    /// Where the local host keeps its things
    #[arg(
        long,
        env = "COUNTERSIGN_DATA_DIR",
        global = true,
        value_name = "DIR",
        help_heading = "Connection"
    )]
    pub data_dir: Option<PathBuf>,
    /// Print the host's own JSON on standard output
    #[arg(long, global = true, help_heading = "Output")]
    pub json: bool,
}

/// Whose token a command needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Proposes, executes, supersedes.
    Agent,
    /// Approves and declines.
    Approver,
    /// Installs, cancels, resolves.
    Operator,
    /// Tokens.
    Admin,
    /// Looking: any will do.
    Any,
}

impl Need {
    /// Names of the token files, in the order in which they are tried.
    fn files(self) -> &'static [&'static str] {
        match self {
            Need::Agent => &["agent"],
            Need::Approver => &["approver"],
            Need::Operator => &["operator"],
            Need::Admin => &["admin"],
            Need::Any => &["agent", "approver", "operator", "admin"],
        }
    }
}

/// What was found.
#[derive(Debug, PartialEq, Eq)]
pub struct Found {
    /// Without a slash at its end.
    pub url: String,
    /// The bearer token.
    pub token: String,
    /// The local host's own file names this address: no proxy belongs between.
    pub local: bool,
}

/// A token file is one line of far less; more is some other file.
const TOKEN_AT_MOST: u64 = 4096;

/// Finds address and token. `from_environment` is the value of
/// `COUNTERSIGN_TOKEN`; a named file goes before it.
///
/// # Errors
/// Says which part is missing and how to give it.
pub fn find(connection: &Connection, need: Need, from_environment: Option<String>) -> Result<Found, Stop> {
    let directory = match &connection.data_dir {
        Some(named) => Some(named.clone()),
        None => default_data_dir(),
    };
    let given = connection.url.as_deref().map(|url| address(url, "--url")).transpose()?;
    let (url, local) = match given {
        Some(url) => {
            // Being unable to read the local host's file only means that the
            // local tokens stay here.
            let local =
                directory.as_deref().and_then(|d| local_url(d).ok()).is_some_and(|found| found == url);
            (url, local)
        }
        None => {
            let directory = directory.as_deref().ok_or_else(no_directory)?;
            (local_url(directory)?, true)
        }
    };
    let token = match (&connection.token_file, from_environment) {
        (Some(file), _) => token_in(file, "the token file could not be used")?,
        (None, Some(token)) => checked(token, "COUNTERSIGN_TOKEN")?,
        (None, None) if local => {
            let directory = directory.as_deref().ok_or_else(no_directory)?;
            local_token(directory, need)?
        }
        (None, None) => {
            return Err(Problem::here(
                Exit::Usage,
                format!("there is no token for {}", plain(&url)),
                "tokens of the local data directory are sent to the local host only",
                "name one with --token-file or COUNTERSIGN_TOKEN",
            ));
        }
    };
    Ok(Found { url, token, local })
}

/// Where `serve` keeps its things when nobody says otherwise.
pub fn default_data_dir() -> Option<PathBuf> {
    dirs::data_dir().map(|data| data.join("countersign"))
}

fn no_directory() -> Stop {
    Problem::here(
        Exit::Usage,
        "the local host's data directory is not known",
        "this user has no home directory",
        "name it with --data-dir, or name the host with --url",
    )
}

fn address(text: &str, whence: &str) -> Result<String, Stop> {
    let wrong = |why: &str| {
        Problem::here(
            Exit::Usage,
            format!("the address in {whence} cannot be used: {}", plain(text)),
            why,
            "write it like http://127.0.0.1:7171",
        )
    };
    let url: http::Uri = text.parse().map_err(|_| wrong("it is not a URL"))?;
    if !matches!(url.scheme_str(), Some("http" | "https")) {
        return Err(wrong("it must begin with http:// or https://"));
    }
    match url.authority() {
        Some(authority) if authority.as_str().contains('@') => {
            return Err(wrong("it must not hold a user name or password"));
        }
        Some(authority) if !authority.host().is_empty() => {}
        _ => return Err(wrong("it names no host")),
    }
    if url.query().is_some() {
        return Err(wrong("it must end before the `?`"));
    }
    Ok(text.trim_end_matches('/').to_owned())
}

fn local_url(directory: &Path) -> Result<String, Stop> {
    let file = directory.join("host.json");
    let text = match private_file(&file) {
        Ok(text) => text,
        Err(Unreadable::Missing) => {
            return Err(Problem::here(
                Exit::Other,
                "no host is running here",
                format!("there is no {}", shown(&file)),
                "start one with `countersign serve`, or name one with --url",
            ));
        }
        Err(other) => return Err(other.problem(&file, "the local host's address could not be read")),
    };
    let broken = |why: String| {
        Problem::here(
            Exit::Other,
            format!("{} is not what a host writes", shown(&file)),
            why,
            "start the host again with `countersign serve`, or name one with --url",
        )
    };
    let json = Json::parse(&text).map_err(|e| broken(plain(&e)))?;
    let url = json.text("url").ok_or_else(|| broken("it has no `url`".to_owned()))?;
    address(url, &shown(&file))
}

fn local_token(directory: &Path, need: Need) -> Result<String, Stop> {
    let tokens = directory.join("tokens");
    let mut first: Option<Stop> = None;
    for name in need.files() {
        let file = tokens.join(name);
        match private_file(&file) {
            Ok(token) => return checked(token, &shown(&file)),
            Err(why) => {
                first.get_or_insert_with(|| why.problem(&file, "the token this needs could not be read"));
            }
        }
    }
    Err(first.unwrap_or_else(no_directory))
}

fn token_in(file: &Path, what: &str) -> Result<String, Stop> {
    // Not refused when others can read it: the files in which containers are
    // given their secrets are often like that, and the caller named it.
    let token = read(file).map_err(|why| why.problem(file, what))?;
    checked(token, &shown(file))
}

fn checked(token: String, whence: &str) -> Result<String, Stop> {
    let token = token.trim();
    let fits = |b: u8| b.is_ascii_graphic();
    if token.is_empty() || !token.bytes().all(fits) {
        return Err(Problem::here(
            Exit::Usage,
            format!("{whence} holds no token"),
            "a token is one word of letters, digits and signs",
            "copy it again as it was printed when it was made",
        ));
    }
    Ok(token.to_owned())
}

enum Unreadable {
    Missing,
    Open(u32),
    Failed(io::Error),
    TooLong,
}

impl Unreadable {
    fn problem(&self, file: &Path, what: &str) -> Stop {
        let (why, advice) = match self {
            Unreadable::Missing => (
                format!("there is no {}", shown(file)),
                "name a token with --token-file or COUNTERSIGN_TOKEN, or start the host of this data directory"
                    .to_owned(),
            ),
            Unreadable::Open(mode) => (
                format!("{} can be read or changed by others (mode {:03o})", shown(file), mode & 0o777),
                format!("if you trust what is in it: chmod 600 {}", shown(file)),
            ),
            Unreadable::Failed(error) => (
                format!("{}: {}", shown(file), plain(&error.to_string())),
                "run this as the user who runs the host, or name a token with --token-file".to_owned(),
            ),
            Unreadable::TooLong => (
                format!("{} is longer than {TOKEN_AT_MOST} bytes", shown(file)),
                "name another file".to_owned(),
            ),
        };
        Problem::here(Exit::Other, what, why, advice)
    }
}

/// Reads a small file that only its owner may read.
fn private_file(file: &Path) -> Result<String, Unreadable> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = fs::metadata(file).map_err(missing)?.permissions().mode();
        if mode & 0o077 != 0 {
            return Err(Unreadable::Open(mode));
        }
    }
    read(file)
}

fn read(file: &Path) -> Result<String, Unreadable> {
    let mut text = String::new();
    let read = fs::File::open(file).map_err(missing)?;
    read.take(TOKEN_AT_MOST + 1).read_to_string(&mut text).map_err(Unreadable::Failed)?;
    if text.len() as u64 > TOKEN_AT_MOST {
        return Err(Unreadable::TooLong);
    }
    Ok(text)
}

fn missing(error: io::Error) -> Unreadable {
    match error.kind() {
        io::ErrorKind::NotFound => Unreadable::Missing,
        _ => Unreadable::Failed(error),
    }
}

fn shown(file: &Path) -> String {
    plain(&file.display().to_string())
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    struct Home(tempfile::TempDir);

    impl Home {
        fn new() -> Home {
            let home = Home(tempfile::tempdir().unwrap());
            fs::create_dir(home.0.path().join("tokens")).unwrap();
            home
        }

        fn file(&self, name: &str, text: &str, mode: u32) -> &Home {
            let path = self.0.path().join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            self
        }

        fn running() -> Home {
            let home = Home::new();
            home.file("host.json", r#"{"url":"http://127.0.0.1:7171","pid":1}"#, 0o600);
            for role in ["agent", "approver", "operator", "admin"] {
                home.file(&format!("tokens/{role}"), &format!("{role}-token\n"), 0o600);
            }
            home
        }

        fn find(&self, need: Need, url: Option<&str>, env: Option<&str>) -> Result<Found, String> {
            let connection = Connection {
                url: url.map(str::to_owned),
                data_dir: Some(self.0.path().to_owned()),
                ..Connection::default()
            };
            find(&connection, need, env.map(str::to_owned)).map_err(said)
        }
    }

    fn said(stop: Stop) -> String {
        match stop {
            Stop::Problem(problem) => problem.render(),
            Stop::NobodyReads => String::new(),
        }
    }

    #[test]
    fn each_role_finds_its_own_token_and_looking_takes_the_first() {
        let home = Home::running();
        for (need, token) in [
            (Need::Agent, "agent-token"),
            (Need::Approver, "approver-token"),
            (Need::Operator, "operator-token"),
            (Need::Admin, "admin-token"),
            (Need::Any, "agent-token"),
        ] {
            let found = home.find(need, None, None).unwrap();
            assert_eq!((found.token.as_str(), found.local), (token, true));
        }
        fs::remove_file(home.0.path().join("tokens/agent")).unwrap();
        assert_eq!(home.find(Need::Any, None, None).unwrap().token, "approver-token");
        assert!(home.find(Need::Agent, None, None).unwrap_err().contains("--token-file"));
    }

    #[test]
    fn no_host_says_how_to_start_one() {
        let text = Home::new().find(Need::Any, None, None).unwrap_err();
        assert!(text.contains("countersign serve") && text.contains("host.json"), "{text}");
    }

    #[test]
    fn files_that_others_can_read_are_refused() {
        for mode in [0o644, 0o640, 0o602] {
            let home = Home::running();
            home.file("host.json", r#"{"url":"http://127.0.0.1:7171"}"#, mode);
            assert!(home.find(Need::Any, None, None).unwrap_err().contains("chmod 600"));
            let home = Home::running();
            home.file("tokens/agent", "t", mode);
            assert!(home.find(Need::Agent, None, None).unwrap_err().contains("chmod 600"));
        }
    }

    #[test]
    fn a_local_token_never_goes_to_another_address() {
        let home = Home::running();
        let text = home.find(Need::Agent, Some("https://elsewhere.example"), None).unwrap_err();
        assert!(text.contains("local host only"), "{text}");
        let found = home.find(Need::Agent, Some("https://elsewhere.example/"), Some("given")).unwrap();
        assert_eq!(
            found,
            Found { url: "https://elsewhere.example".into(), token: "given".into(), local: false }
        );
        assert_eq!(
            home.find(Need::Agent, Some("http://127.0.0.1:7171/"), None).unwrap().token,
            "agent-token"
        );
    }

    #[test]
    fn a_named_token_file_goes_before_everything() {
        let home = Home::running();
        home.file("mine", " mine\n", 0o644);
        let connection = Connection {
            data_dir: Some(home.0.path().to_owned()),
            token_file: Some(home.0.path().join("mine")),
            ..Connection::default()
        };
        assert_eq!(find(&connection, Need::Admin, Some("env".into())).unwrap().token, "mine");
        assert_eq!(home.find(Need::Admin, None, Some("env")).unwrap().token, "env");
    }

    #[test]
    fn odd_addresses_and_tokens_are_named() {
        let home = Home::running();
        for url in ["127.0.0.1:7171", "ftp://x", "http://", "http://a:b@c", "http://x/?q", "http://\u{1b}[2J"]
        {
            let text = home.find(Need::Any, Some(url), Some("t")).unwrap_err();
            assert!(text.contains("--url") && !text.contains('\u{1b}'), "{text}");
        }
        for token in ["", " ", "two words", "a\u{e9}", "a\nb"] {
            assert!(home.find(Need::Any, None, Some(token)).unwrap_err().contains("COUNTERSIGN_TOKEN"));
        }
        home.file("host.json", "{}", 0o600);
        assert!(home.find(Need::Any, None, None).unwrap_err().contains("`url`"));
    }
}
