//! `[[webhook]]`: who is told when an action waits for a person. The key is read
//! at start, like every secret, and is shown nowhere.

use std::fmt;
use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Uri;
use serde::Deserialize;

use super::{ConfigError, Source, invalid};

/// The one event so far. Named, so that a later one does not come to a receiver
/// that never asked for it.
const WAITS_FOR_PERSON: &str = "waits_for_person";

/// What may stand before a key, by the Standard Webhooks convention.
const PREFIX: &str = "whsec_";

/// How long a key may be, bytes, by the same convention.
const KEY: std::ops::RangeInclusive<usize> = 24..=64;

/// One section.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Section {
    url: String,
    pub(super) secret: Source,
    events: Option<Vec<String>>,
}

/// Somebody who is told.
#[derive(Clone)]
pub struct Webhook {
    /// Where to; `https`, or `http` on this machine.
    pub url: Uri,
    /// Signs what is sent.
    pub key: Vec<u8>,
}

/// Shows no key.
impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhook").field("host", &self.host()).finish_non_exhaustive()
    }
}

impl Webhook {
    /// The host it is at. The rest of the URL may be a secret in itself.
    pub fn host(&self) -> &str {
        self.url.host().unwrap_or("?")
    }

    /// The port it is at.
    pub fn port(&self) -> u16 {
        let usual = if self.url.scheme_str() == Some("http") { 80 } else { 443 };
        self.url.port_u16().unwrap_or(usual)
    }
}

/// Reads one. `secret`: what its source holds.
///
/// # Errors
/// Says what it must be; shows neither key nor path.
pub(super) fn webhook(section: Section, secret: &str) -> Result<Webhook, ConfigError> {
    let shown = section.url.split(['?', '#']).next().unwrap_or_default().to_owned();
    let wrong = |why: &str| invalid("webhook.url", shown.clone(), why);
    let url = section
        .url
        .parse::<Uri>()
        .map_err(|_| wrong("a URL, for example \"https://ops.example.com/hook\""))?;
    let Some(host) = url.host().map(str::to_owned) else {
        return Err(wrong("a whole URL, for example \"https://ops.example.com/hook\""));
    };
    if url.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err(wrong("no name and password in the URL: what is sent is signed instead"));
    }
    match url.scheme_str() {
        Some("https") => {}
        Some("http") if on_this_machine(&host) => {}
        _ => return Err(wrong("https; http goes to this machine only")),
    }
    for event in section.events.iter().flatten() {
        if event != WAITS_FOR_PERSON {
            return Err(invalid("webhook.events", event.clone(), format!("there is {WAITS_FOR_PERSON:?}")));
        }
    }
    if section.events.is_some_and(|events| events.is_empty()) {
        return Err(invalid("webhook.events", "[]".into(), "name an event, or leave it out for all of them"));
    }
    let key = key(secret).ok_or_else(|| ConfigError::Secret {
        name: "webhook.secret".into(),
        why: format!(
            "it is {} to {} bytes in base64, with or without {PREFIX} before them: openssl rand -base64 32 makes one",
            KEY.start(),
            KEY.end()
        ),
    })?;
    Ok(Webhook { url, key })
}

fn key(secret: &str) -> Option<Vec<u8>> {
    let text = secret.trim();
    let bytes = STANDARD.decode(text.strip_prefix(PREFIX).unwrap_or(text)).ok()?;
    KEY.contains(&bytes.len()).then_some(bytes)
}

/// Whether nobody else can listen on the way there.
fn on_this_machine(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || bare.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    fn read(toml: &str, secret: &str) -> Result<Webhook, String> {
        let section: Section = toml::from_str(toml).map_err(|error| error.to_string())?;
        webhook(section, secret).map_err(|error| error.to_string())
    }

    #[test]
    fn a_receiver_is_reached_by_tls_or_is_on_this_machine_and_its_key_is_shown_nowhere() {
        let found = read("url = \"https://ops.example.com/hook?t=1\"\nsecret = { env = \"X\" }", SECRET)
            .expect("read");
        assert_eq!((found.host(), found.port(), found.key.len()), ("ops.example.com", 443, 24));
        assert!(!format!("{found:?}").contains("t=1"), "{found:?}");
        for good in ["http://127.0.0.1:9/x", "http://[::1]:9/x", "http://localhost/x"] {
            read(&format!("url = \"{good}\"\nsecret = {{}}"), SECRET).expect(good);
        }
        for (bad, hint) in [
            ("http://ops.example.com/x", "https"),
            ("https://u:p@ops.example.com/x", "signed"),
            ("ftp://ops.example.com/", "https"),
            ("/hook", "https://ops.example.com/hook"),
        ] {
            let refused = read(&format!("url = \"{bad}\"\nsecret = {{}}"), SECRET).expect_err(bad);
            assert!(refused.contains(hint), "{refused}");
        }
    }

    #[test]
    fn a_key_that_is_none_and_an_event_that_there_is_not_are_refused_with_what_there_is() {
        let url = "url = \"https://a.example/\"\nsecret = {}";
        for bad in ["", "short", "whsec_AAAA", "not base64 but long enough to be one !!!"] {
            let refused = read(url, bad).expect_err(bad);
            assert!(refused.contains("openssl") && (bad.is_empty() || !refused.contains(bad)), "{refused}");
        }
        let refused = read(&format!("{url}\nevents = [\"lunch\"]"), SECRET).expect_err("refused");
        assert!(refused.contains("lunch") && refused.contains("waits_for_person"), "{refused}");
        read(&format!("{url}\nevents = [\"waits_for_person\"]"), SECRET).expect("read");
        assert!(read(&format!("{url}\nevents = []"), SECRET).is_err());
        assert!(read(&format!("{url}\nkey = 1"), SECRET).is_err());
    }
}
