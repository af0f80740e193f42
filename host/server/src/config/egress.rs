//! `[egress]`: by whom the names of providers are resolved.

use std::net::{IpAddr, SocketAddr};

use serde::Deserialize;

use super::{ConfigError, invalid};

/// Where servers of names listen, unless it is said (RFC 1035 §4.2).
const PORT: u16 = 53;

/// How many may be named. Chosen: with one that answers and one that is down there is
/// nothing left to win, and each that is down takes its time.
const MOST: usize = 4;

/// The section.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Egress {
    dns: Option<Vec<String>>,
}

impl Egress {
    /// The servers that are asked for names; none: the system's resolver.
    ///
    /// # Errors
    /// The first that is no address to ask.
    pub fn dns(&self) -> Result<Vec<SocketAddr>, ConfigError> {
        let Some(texts) = &self.dns else { return Ok(Vec::new()) };
        if texts.is_empty() {
            let why = "name a server, for example [\"10.0.0.53\"], or leave it out for the system's resolver";
            return Err(invalid("egress.dns", "[]".into(), why));
        }
        if texts.len() > MOST {
            return Err(invalid("egress.dns", format!("{} servers", texts.len()), format!("at most {MOST}")));
        }
        texts.iter().map(|text| server(text)).collect()
    }
}

/// An address, with or without a port. A name would have to be resolved first.
fn server(text: &str) -> Result<SocketAddr, ConfigError> {
    let parsed = text.parse::<SocketAddr>().ok().or_else(|| {
        let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let ip: IpAddr = bare.unwrap_or(text).parse().ok()?;
        (bare.is_none() || ip.is_ipv6()).then(|| SocketAddr::new(ip, PORT))
    });
    match parsed {
        Some(at) if at.port() == 0 || at.ip().is_unspecified() || at.ip().is_multicast() => {
            Err(invalid("egress.dns", text.to_owned(), "nobody can be asked there"))
        }
        Some(at) => Ok(at),
        None => {
            let why = "an address, with or without a port, for example \"10.0.0.53\" or \"[fd00::53]:5353\"";
            Err(invalid("egress.dns", text.to_owned(), why))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<String>, String> {
        let egress: Egress = toml::from_str(text).map_err(|error| error.to_string())?;
        let servers = egress.dns().map_err(|error| error.to_string())?;
        Ok(servers.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn servers_of_names_are_addresses_and_their_port_is_the_usual_one_unless_it_is_said() {
        assert_eq!(read(""), Ok(Vec::new()));
        let text = "dns = [\"10.0.0.53\", \"10.0.0.54:5353\", \"fd00::53\", \"[fd00::54]:54\"]";
        let expected = ["10.0.0.53:53", "10.0.0.54:5353", "[fd00::53]:53", "[fd00::54]:54"];
        assert_eq!(read(text), Ok(expected.map(str::to_owned).to_vec()));
        assert_eq!(read("dns = [\"[::1]\"]"), Ok(vec!["[::1]:53".to_owned()]));
    }

    #[test]
    fn what_is_no_server_of_names_is_refused_with_what_one_is() {
        for (bad, hint) in [
            ("dns = []", "system's resolver"),
            ("dns = [\"dns.example\"]", "10.0.0.53"),
            ("dns = [\"\"]", "10.0.0.53"),
            ("dns = [\"10.0.0.53\", \"10.0.0\"]", "\"10.0.0\""),
            ("dns = [\"10.0.0.53:0\"]", "nobody"),
            ("dns = [\"10.0.0.53:70000\"]", "10.0.0.53"),
            ("dns = [\"[10.0.0.53]\"]", "10.0.0.53"),
            ("dns = [\"https://dns.example/\"]", "10.0.0.53"),
            ("dns = [\"0.0.0.0\"]", "nobody"),
            ("dns = [\"ff02::fb\"]", "nobody"),
            ("dns = [\"10.0.0.1\", \"10.0.0.2\", \"10.0.0.3\", \"10.0.0.4\", \"10.0.0.5\"]", "at most 4"),
            ("dns = \"10.0.0.53\"", "sequence"),
            ("dsn = [\"10.0.0.53\"]", "dns"),
        ] {
            let refused = read(bad).expect_err(bad);
            assert!(refused.contains(hint), "{bad}: {refused}");
        }
    }
}
