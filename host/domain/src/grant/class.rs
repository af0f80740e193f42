//! The words a grant chooses between.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::id::InvalidId;

macro_rules! words {
    ($(#[$doc:meta])* $name:ident ($what:literal) { $($(#[$vdoc:meta])* $variant:ident = $text:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum $name { $($(#[$vdoc])* #[serde(rename = $text)] $variant),* }

        impl $name {
            /// All of them.
            pub const ALL: &'static [$name] = &[$($name::$variant),*];

            /// The word in grants, in the store and on every surface.
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $text),* }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;
            fn from_str(text: &str) -> Result<$name, InvalidId> {
                match text {
                    $($text => Ok($name::$variant),)*
                    _ => Err(InvalidId { what: $what, form: concat!("one of", $(" `", $text, "`"),*) }),
                }
            }
        }
    };
}

words! {
    /// What may be done about an effect whose outcome is unknown. Chosen per
    /// route by who grants, never by the tool.
    RecoveryClass("a recovery class") {
        /// Changes nothing outside, so it may be repeated freely.
        Read = "read",
        /// The provider keeps idempotency keys: repeated with the same key while
        /// it is sure to be kept, afterwards as `Manual`.
        ProviderIdempotent = "provider-idempotent",
        /// The tool can look up what happened, with reads only.
        Verifiable = "verifiable",
        /// Only a person can say. Never repeated by itself.
        Manual = "manual",
    }
}

words! {
    /// What a 5xx answer to a write says about whether it happened.
    On5xx("an answer to 5xx") {
        /// It is an answer like any other and is given to the component. After
        /// it the provider may still have acted.
        Answer = "answer",
        /// Nothing: the outcome is unknown.
        Unknown = "unknown",
        /// Nothing, and asking again under the same key is safe. Only for
        /// `provider-idempotent`.
        Repeat = "repeat",
    }
}

words! {
    /// The shape of the idempotency key that a provider is given.
    KeyFormat("a key format") {
        /// The key as it is, readable: `tool-action:<action>:<n>`.
        Plain = "plain",
        /// Its UUID (version 5), for providers that insist on one.
        Uuid = "uuid",
        /// Its SHA-256 in hexadecimal.
        Sha256 = "sha256",
    }
}

words! {
    /// What may go out while an action is being planned, before anybody approved.
    Planning("a way of planning") {
        /// Reads, so that the first write can be shown as it will be.
        Reads = "reads",
        /// Nothing at all.
        Nothing = "none",
    }
}

impl RecoveryClass {
    /// Whether it may change something outside.
    pub const fn is_write(self) -> bool {
        !matches!(self, RecoveryClass::Read)
    }

    /// What a 5xx means where the grant does not say. An unknown read is no
    /// worry to anybody, so its 5xx is an answer.
    pub const fn default_on_5xx(self) -> On5xx {
        match self {
            RecoveryClass::Read => On5xx::Answer,
            RecoveryClass::ProviderIdempotent => On5xx::Repeat,
            RecoveryClass::Verifiable | RecoveryClass::Manual => On5xx::Unknown,
        }
    }
}
