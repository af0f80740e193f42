//! The section `[smtp]`: the one server that this host sends mail through.
//!
//! What can be wrong is found at start: an address that is none, a password that
//! is not there, a certificate that cannot be read, and a combination that would
//! say a password in the clear.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use countersign_domain::egress::HostName;
use countersign_domain::secret::SecretValue;
use countersign_gate::dispatch::{Certificate, SmtpConfig, SmtpLogin, SmtpSecurity, certificates};
use http::Uri;
use serde::Deserialize;

use super::{ConfigError, Source, invalid, value};

/// Ports that go without saying: RFC 8314 §3.3 and RFC 6409 §3.1.
const TLS_PORT: u16 = 465;
const SUBMISSION_PORT: u16 = 587;

/// What the section may say.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Smtp {
    server: String,
    tls: Option<String>,
    user: Option<String>,
    password: Option<Source>,
    hello: Option<String>,
    #[serde(default)]
    allow_private: bool,
    ca: Option<PathBuf>,
}

impl Smtp {
    /// The server, all of it there. `beside`: the folder of the configuration.
    pub(super) fn read(self, beside: &Path, warnings: &mut Vec<String>) -> Result<SmtpConfig, ConfigError> {
        let (security, host, port) = server(&self.server)?;
        let security = match (self.tls.as_deref(), security) {
            (None | Some("required"), security) => security,
            (Some("off"), SmtpSecurity::StartTls) if self.allow_private => SmtpSecurity::Plain,
            (Some("off"), SmtpSecurity::StartTls) => {
                let why = "mail goes out without TLS only within one's own network: say allow_private = true as well";
                return Err(invalid("smtp.tls", "off".into(), why));
            }
            (Some("off"), _) => {
                let why = "smtps:// is TLS from the first byte; without TLS the server is smtp://…";
                return Err(invalid("smtp.tls", "off".into(), why));
            }
            (Some(other), _) => {
                return Err(invalid(
                    "smtp.tls",
                    other.into(),
                    "\"required\", or \"off\" towards a private address",
                ));
            }
        };
        let login = match (self.user, self.password) {
            (None, None) => None,
            (Some(user), Some(_)) if security == SmtpSecurity::Plain => {
                return Err(invalid(
                    "smtp.user",
                    user,
                    "a password is said over TLS only: leave out tls = \"off\"",
                ));
            }
            (Some(user), Some(source)) if is_plain(&user) => {
                let wrong = |why| ConfigError::Secret { name: "smtp.password".into(), why };
                let text = value("smtp.password", &source, beside, warnings)?;
                let password = SecretValue::new(text).map_err(|error| wrong(error.to_string()))?;
                Some(SmtpLogin { user, password: Arc::new(password) })
            }
            (Some(user), Some(_)) => {
                return Err(invalid(
                    "smtp.user",
                    user,
                    "1 to 255 characters, none of them a control character",
                ));
            }
            (Some(user), None) => {
                return Err(invalid(
                    "smtp.user",
                    user,
                    "a password goes with it: password = { file = \"…\" }",
                ));
            }
            (None, Some(_)) => {
                return Err(invalid("smtp.password", "…".into(), "a name goes with it: user = \"…\""));
            }
        };
        let hello = self.hello.map(|text| {
            text.parse::<HostName>().map_err(|_| {
                invalid("smtp.hello", text, "the host name by which this host introduces itself")
            })
        });
        Ok(SmtpConfig {
            host,
            port,
            security,
            hello: hello.transpose()?,
            login,
            allow_private: self.allow_private,
            extra_roots: self.ca.map(|ca| roots(&beside.join(ca))).transpose()?.unwrap_or_default(),
        })
    }
}

fn server(text: &str) -> Result<(SmtpSecurity, HostName, u16), ConfigError> {
    let wrong = || {
        let why = "\"smtps://HOST\" for TLS from the first byte, or \"smtp://HOST:587\" for STARTTLS, without a name \
                   or password in it";
        // Somebody may have written one there.
        let shown = if text.contains('@') { "…".to_owned() } else { text.to_owned() };
        invalid("smtp.server", shown, why)
    };
    let url: Uri = text.parse().map_err(|_| wrong())?;
    let (security, usual) = match url.scheme_str() {
        Some("smtps") => (SmtpSecurity::Tls, TLS_PORT),
        Some("smtp") => (SmtpSecurity::StartTls, SUBMISSION_PORT),
        _ => return Err(wrong()),
    };
    let plain = url.authority().is_some_and(|authority| !authority.as_str().contains('@'));
    if !plain || !matches!(url.path(), "" | "/") || url.query().is_some() {
        return Err(wrong());
    }
    let host: HostName = url.host().and_then(|host| host.parse().ok()).ok_or_else(wrong)?;
    match url.port_u16() {
        Some(0) => Err(wrong()),
        port => Ok((security, host, port.unwrap_or(usual))),
    }
}

fn is_plain(user: &str) -> bool {
    (1..=255).contains(&user.len()) && !user.chars().any(char::is_control)
}

fn roots(path: &Path) -> Result<Vec<Certificate>, ConfigError> {
    let wrong = |why: String| invalid("smtp.ca", path.display().to_string(), why);
    let text = fs::read(path).map_err(|error| wrong(format!("it cannot be read: {error}")))?;
    let found =
        certificates(&text).map_err(|error| wrong(format!("it is no file of PEM certificates: {error}")))?;
    if found.is_empty() {
        return Err(wrong("there is no certificate in it: -----BEGIN CERTIFICATE----- is missing".into()));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<SmtpConfig, String> {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("password"), "hunter2-canary\n").expect("written");
        let smtp: Smtp = toml::from_str(text).map_err(|error| error.to_string())?;
        smtp.read(dir.path(), &mut Vec::new()).map_err(|error| error.to_string())
    }

    #[test]
    fn tls_goes_without_saying_and_so_do_ports() {
        let config = read("server = \"smtps://mail.example.com\"").expect("a server");
        assert_eq!((config.security, config.port), (SmtpSecurity::Tls, 465));
        let config = read("server = \"smtp://mail.example.com\"").expect("a server");
        assert_eq!(
            (config.security, config.port, config.allow_private),
            (SmtpSecurity::StartTls, 587, false)
        );
        let config = read("server = \"smtp://127.0.0.1:2525\"\ntls = \"off\"\nallow_private = true");
        assert_eq!(config.expect("a server").security, SmtpSecurity::Plain);
    }

    #[test]
    fn a_password_is_read_and_never_shown() {
        let text = "server = \"smtps://mail.example.com\"\nuser = \"u\"\npassword = { file = \"password\" }";
        let config = read(text).expect("a server");
        assert_eq!(config.login.as_ref().expect("a login").password.expose(), "hunter2-canary");
        assert!(!format!("{config:?}").contains("hunter2"), "{config:?}");
    }

    #[test]
    fn what_is_wrong_is_named_with_what_to_do() {
        let login = "\nuser = \"u\"\npassword = { file = \"password\" }";
        for (text, hint) in [
            ("server = \"mail.example.com\"".to_owned(), "smtps://HOST"),
            ("server = \"https://mail.example.com\"".to_owned(), "smtps://HOST"),
            ("server = \"smtps://u:hunter2@mail.example.com\"".to_owned(), "without a name"),
            ("server = \"smtp://mail.example.com\"\ntls = \"off\"".to_owned(), "allow_private = true"),
            ("server = \"smtps://127.0.0.1\"\ntls = \"off\"\nallow_private = true".to_owned(), "smtp://"),
            ("server = \"smtp://m.example\"\ntls = \"maybe\"".to_owned(), "required"),
            (
                format!("server = \"smtp://127.0.0.1\"\ntls = \"off\"\nallow_private = true{login}"),
                "over TLS only",
            ),
            ("server = \"smtps://m.example\"\nuser = \"u\"".to_owned(), "a password goes with it"),
            ("server = \"smtps://m.example\"\npassword = { file = \"password\" }".to_owned(), "a name goes"),
            (
                "server = \"smtps://m.example\"\nuser = \"u\"\npassword = { file = \"nowhere\" }".to_owned(),
                "nowhere",
            ),
            ("server = \"smtps://m.example\"\nhello = \"not a name\"".to_owned(), "introduces"),
            ("server = \"smtps://m.example\"\nca = \"password\"".to_owned(), "no certificate"),
            ("server = \"smtps://m.example\"\nfrom = \"x\"".to_owned(), "unknown field"),
        ] {
            let refused = read(&text).expect_err(&text);
            assert!(refused.contains(hint) && !refused.contains("hunter2"), "{text}: {refused}");
        }
    }
}
