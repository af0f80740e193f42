//! Where secrets come from: a file, a variable of the environment, or what a
//! command prints. Read once, at start; one that is not there is an error then.

use std::fs;
use std::path::{Path, PathBuf};

use countersign_domain::secret::{SecretError, SecretName, SecretValue};
use serde::Deserialize;

use super::{ConfigError, command};

/// Where a secret's value is: exactly one of the three.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Source {
    pub(super) file: Option<PathBuf>,
    pub(super) env: Option<String>,
    pub(super) command: Option<Vec<String>>,
}

/// A secret under its name.
pub(super) fn secret(
    name: String,
    source: &Source,
    beside: &Path,
    warnings: &mut Vec<String>,
) -> Result<(SecretName, SecretValue), ConfigError> {
    let parsed: SecretName = name
        .parse()
        .map_err(|error: SecretError| ConfigError::Secret { name: name.clone(), why: error.to_string() })?;
    let text = value(&name, source, beside, warnings)?;
    let value =
        SecretValue::new(text).map_err(|error| ConfigError::Secret { name, why: error.to_string() })?;
    Ok((parsed, value))
}

/// What a secret's file or variable holds.
pub(super) fn value(
    name: &str,
    source: &Source,
    beside: &Path,
    warnings: &mut Vec<String>,
) -> Result<String, ConfigError> {
    let wrong = |why: String| ConfigError::Secret { name: name.to_owned(), why };
    match (&source.file, &source.env, &source.command) {
        (None, None, Some(words)) => command::printed(words, beside).map_err(wrong),
        (Some(file), None, None) => {
            let file = beside.join(file);
            warnings.extend(readable_by_all(&file).then(|| {
                format!(
                    "the secret {name} is in {}, which every user of this machine can read",
                    file.display()
                )
            }));
            fs::read_to_string(&file)
                .map_err(|error| wrong(format!("{} cannot be read: {error}", file.display())))
        }
        (None, Some(variable), None) => self::variable(variable)
            .ok_or_else(|| wrong(format!("the environment variable {variable} is not set"))),
        _ => Err(wrong("say where it is: { file = \"…\" }, { env = \"…\" } or { command = [\"…\"] }".into())),
    }
}

/// A variable of the environment; an empty one counts as not set.
#[expect(clippy::disallowed_methods, reason = "the one place that reads the environment, but for clap")]
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

#[cfg(unix)]
fn readable_by_all(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    fs::metadata(file).is_ok_and(|found| found.permissions().mode() & 0o004 != 0)
}

#[cfg(not(unix))]
fn readable_by_all(_: &Path) -> bool {
    false
}
