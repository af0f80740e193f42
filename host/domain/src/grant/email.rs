//! Who a tool may write to, and as whom.

use std::fmt;
use std::str::FromStr;

use super::RecoveryClass;
use crate::egress::HostName;

/// One mailbox: a dot-atom, `@`, a host name. Neither quoted local parts, nor
/// comments, nor display names: what cannot be written here cannot smuggle a
/// second recipient or an SMTP command.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EmailAddress {
    local: String,
    domain: HostName,
}

impl EmailAddress {
    /// Before the `@`, as it was written.
    pub fn local(&self) -> &str {
        &self.local
    }

    /// After the `@`, in its one spelling.
    pub fn domain(&self) -> &HostName {
        &self.domain
    }
}

impl FromStr for EmailAddress {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<EmailAddress, &'static str> {
        let (local, domain) = text.rsplit_once('@').ok_or("an address has an @")?;
        let atom = |part: &str| {
            // RFC 5322 §3.2.3 atext.
            !part.is_empty()
                && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-/=?^_`{|}~".contains(&b))
        };
        // RFC 5321 §4.5.3.1: 64 octets before the @, 254 in all.
        if local.len() > 64 || text.len() > 254 || !local.split('.').all(atom) {
            return Err(
                "before the @ stand letters, digits, single dots and !#$%&'*+-/=?^_`{|}~, at most 64",
            );
        }
        let domain: HostName = domain.parse().map_err(|_| "after the @ stands a host name")?;
        if domain.ip().is_some() {
            return Err("after the @ stands a host name, not an address");
        }
        Ok(EmailAddress { local: local.to_owned(), domain })
    }
}

impl fmt::Display for EmailAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.local, self.domain)
    }
}

/// Which recipients are meant.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RecipientPattern {
    /// One mailbox; case does not count.
    Address(EmailAddress),
    /// `*@example.com`: everybody at exactly this host.
    Everybody(HostName),
}

impl RecipientPattern {
    /// Whether this recipient is meant.
    pub fn matches(&self, recipient: &EmailAddress) -> bool {
        match self {
            RecipientPattern::Address(address) => {
                address.domain == recipient.domain && address.local.eq_ignore_ascii_case(&recipient.local)
            }
            RecipientPattern::Everybody(domain) => *domain == recipient.domain,
        }
    }
}

impl FromStr for RecipientPattern {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<RecipientPattern, &'static str> {
        let Some(domain) = text.strip_prefix("*@") else {
            return match text.contains('*') {
                // A star is allowed in a mailbox, and nobody means that by it.
                true => Err("a pattern is one address, or *@ and one host name"),
                false => text.parse().map(RecipientPattern::Address),
            };
        };
        // By the rules for addresses, with anybody in front.
        let anybody: EmailAddress = format!("x@{domain}").parse()?;
        Ok(RecipientPattern::Everybody(anybody.domain))
    }
}

impl fmt::Display for RecipientPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RecipientPattern::Address(address) => write!(f, "{address}"),
            RecipientPattern::Everybody(domain) => write!(f, "*@{domain}"),
        }
    }
}

/// The `[email]` section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmailGrant {
    /// Whose mail it is; the tool has no say in it.
    pub from: EmailAddress,
    /// Where answers go, if not to `from`; the tool has no say in it either.
    pub reply_to: Option<EmailAddress>,
    /// Who may be written to; every recipient has to match one.
    pub recipients: Vec<RecipientPattern>,
    /// Bytes of one mail: bodies and attachments together, before encoding.
    pub size: u64,
    /// Mails beyond the planned write, contents not known to the approver, who
    /// is told this number.
    pub unplanned: u32,
    /// Always [`RecoveryClass::Manual`]: SMTP has neither keys nor lookup.
    pub recovery: RecoveryClass,
}

impl EmailGrant {
    /// Whether this recipient may be written to.
    pub fn permits(&self, recipient: &EmailAddress) -> bool {
        self.recipients.iter().any(|pattern| pattern.matches(recipient))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p6_an_address_is_one_mailbox_and_nothing_more() {
        for good in ["a@example.com", "first.last+tag@Example.COM", "o'neil@mail.example", "a@localhost"] {
            let address: EmailAddress = good.parse().unwrap();
            assert_eq!(address.to_string().parse(), Ok(address), "{good}");
        }
        let long = format!("{}@example.com", "a".repeat(65));
        for bad in [
            "",
            "a",
            "@example.com",
            "a@",
            "a@b@example.com",
            ".a@example.com",
            "a.@example.com",
            "a..b@example.com",
            "a b@example.com",
            "\"a\r\nRCPT TO:<x@evil>\"@b.c",
            "\"a b\"@example.com",
            "a@example.com, x@evil.example",
            "A <a@example.com>",
            "a@[127.0.0.1]",
            "a@127.0.0.1",
            "a@exa mple.com",
            "a(c)@example.com",
            "é@example.com",
            "a@b.c\r\nBcc: x@evil",
            "a@example.com\0",
            &long,
        ] {
            assert!(bad.parse::<EmailAddress>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn p6_recipients_match_by_mailbox_or_by_exact_host() {
        let matches = |pattern: &str, address: &str| {
            pattern.parse::<RecipientPattern>().unwrap().matches(&address.parse().unwrap())
        };
        assert!(matches("*@example.com", "Anyone@EXAMPLE.com"));
        assert!(matches("ops@example.com", "Ops@example.com"));
        assert!(!matches("ops@example.com", "oops@example.com"));
        for other in ["a@mail.example.com", "a@evilexample.com", "a@example.com.evil.net"] {
            assert!(!matches("*@example.com", other), "{other}");
        }
        for bad in ["*", "*@", "*@*", "*@*.example.com", "ops*@example.com", "example.com"] {
            assert!(bad.parse::<RecipientPattern>().is_err(), "{bad}");
        }
    }
}
