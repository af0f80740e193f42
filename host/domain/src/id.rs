//! Names of things: one newtype each, so that an ordinal is never an attempt
//! number and one digest is never compared with another kind of digest.
//!
//! Nothing here makes an id out of randomness: what is random is made outside
//! and handed in.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

/// Why a text is not the id it was taken for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} must be {form}")]
pub struct InvalidId {
    /// What was expected, for example `"an action id"`.
    pub what: &'static str,
    /// The form it has to have.
    pub form: &'static str,
}

/// A SHA-256 digest. Text form: 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of some bytes.
    pub fn of(bytes: &[u8]) -> Digest {
        Digest(Sha256::digest(bytes).into())
    }

    /// A digest that was computed elsewhere.
    pub const fn from_bytes(bytes: [u8; 32]) -> Digest {
        Digest(bytes)
    }

    /// The 32 raw bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = InvalidId;
    fn from_str(text: &str) -> Result<Digest, InvalidId> {
        let mut bytes = [0u8; 32];
        let lower = !text.bytes().any(|b| b.is_ascii_uppercase());
        match hex::decode_to_slice(text, &mut bytes) {
            Ok(()) if lower => Ok(Digest(bytes)),
            _ => Err(InvalidId { what: "a SHA-256 digest", form: "64 lower-case hexadecimal digits" }),
        }
    }
}

impl Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Digest, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

macro_rules! digest_newtype {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Digest);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;
            fn from_str(text: &str) -> Result<$name, InvalidId> {
                text.parse().map($name)
            }
        }
    };
}

digest_newtype! {
    /// Who wants what: see [`crate::fingerprint::intent`].
    Intent
}
digest_newtype! {
    /// Everything an approver approves: see [`crate::fingerprint::fingerprint`].
    Fingerprint
}
digest_newtype! {
    /// One outbound call, exactly: see [`crate::fingerprint::http_effect`].
    EffectFingerprint
}
digest_newtype! {
    /// The bytes of a component.
    ComponentDigest
}
digest_newtype! {
    /// What a grant grants, defaults filled in.
    GrantDigest
}

/// A tenant. 1–64 characters of `a–z 0–9 _ -`, the first a letter or digit.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TenantId(String);

impl TenantId {
    /// The text form.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for TenantId {
    type Err = InvalidId;
    fn from_str(text: &str) -> Result<TenantId, InvalidId> {
        let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-';
        let fits = (1..=64).contains(&text.len())
            && text.bytes().all(inner)
            && text.as_bytes()[0].is_ascii_alphanumeric();
        if fits {
            Ok(TenantId(text.to_owned()))
        } else {
            Err(InvalidId {
                what: "a tenant",
                form: "1–64 characters of a–z, 0–9, _ and -, not starting with _ or -",
            })
        }
    }
}

/// A principal (who holds a token), or the actor somebody acts for.
/// 1–128 visible ASCII characters: it is shown to approvers, so nothing that
/// could look like something else.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Principal(String);

impl Principal {
    /// The text form.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Principal {
    type Err = InvalidId;
    fn from_str(text: &str) -> Result<Principal, InvalidId> {
        if (1..=128).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic()) {
            Ok(Principal(text.to_owned()))
        } else {
            Err(InvalidId { what: "a principal", form: "1–128 visible ASCII characters without spaces" })
        }
    }
}

/// A tool's name. 1–128 characters of `A–Z a–z 0–9 _ . -`, so that no two
/// names can look alike.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ToolName(String);

impl ToolName {
    /// The text form.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ToolName {
    type Err = InvalidId;
    fn from_str(text: &str) -> Result<ToolName, InvalidId> {
        let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
        if (1..=128).contains(&text.len()) && text.bytes().all(inner) {
            Ok(ToolName(text.to_owned()))
        } else {
            Err(InvalidId {
                what: "a tool name", form: "1–128 characters of A–Z, a–z, 0–9, _, . and -"
            })
        }
    }
}

macro_rules! text_newtype {
    ($($name:ident),*) => { $(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl TryFrom<String> for $name {
            type Error = InvalidId;
            fn try_from(text: String) -> Result<$name, InvalidId> {
                text.parse()
            }
        }
        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0
            }
        }
    )* };
}
text_newtype!(TenantId, Principal, ToolName);

/// An action. UUID version 8, a pure function of tenant and action key (see
/// [`crate::key::action_id`]): an action proposed again after its row was lost
/// has the same id, hence the same provider keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ActionId(pub Uuid);

/// One worker's go at an action. Random, so that a claim which was lost in a
/// crash before it was flushed cannot be mistaken for the next one, although
/// both carry the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AttemptId(pub Uuid);

macro_rules! uuid_newtype {
    ($($name:ident = $what:literal),*) => { $(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
        impl FromStr for $name {
            type Err = InvalidId;
            fn from_str(text: &str) -> Result<$name, InvalidId> {
                // Only the hyphenated form: one id, one spelling.
                match Uuid::try_parse(text) {
                    Ok(id) if text.len() == 36 => Ok($name(id)),
                    _ => Err(InvalidId { what: $what, form: "a UUID like 0b5ae1f2-6c3d-8e4f-9a0b-1c2d3e4f5a6b" }),
                }
            }
        }
    )* };
}
uuid_newtype!(ActionId = "an action id", AttemptId = "an attempt id");

macro_rules! counter_newtype {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u32);

        impl $name {
            /// The one after this.
            pub const fn next(self) -> $name {
                $name(self.0 + 1)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

counter_newtype! {
    /// The place of an effect within its action, from 1, in the order in which
    /// the component asked. Never moves.
    Ordinal
}
counter_newtype! {
    /// How many times an effect was sent, from 1.
    SendNumber
}
counter_newtype! {
    /// How many times an action was claimed, from 1.
    AttemptNumber
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_deceive_or_break_a_log_line_are_refused() {
        for bad in ["", "a b", "ev\u{0430}l", "a\nb", "a\u{202e}b", "\u{1b}[2J", &"x".repeat(129)] {
            assert!(bad.parse::<Principal>().is_err(), "{bad:?}");
            assert!(bad.parse::<ToolName>().is_err(), "{bad:?}");
            assert!(bad.parse::<TenantId>().is_err(), "{bad:?}");
        }
        assert!("sеnd".parse::<ToolName>().is_err(), "a Cyrillic letter in the middle");
    }

    #[test]
    fn an_id_has_one_spelling() {
        let id = "0b5ae1f2-6c3d-8e4f-9a0b-1c2d3e4f5a6b";
        assert_eq!(id.parse::<ActionId>().unwrap().to_string(), id);
        assert!(id.replace('-', "").parse::<ActionId>().is_err());
        assert!(format!("{{{id}}}").parse::<ActionId>().is_err());
        let digest = Digest::of(b"x").to_string();
        assert!(digest.to_uppercase().parse::<Digest>().is_err());
        assert_eq!(digest.parse::<Digest>().unwrap().to_string(), digest);
    }
}
