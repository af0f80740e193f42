//! An effect: one outbound call inside an action, the smallest unit with a
//! consequence outside. Here are its messages (what a component asks for, what
//! it is told) and its row in the ledger.
//!
//! The messages are serialisable, because the sandbox that asks and the gate
//! that answers need not share a process.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::grant::RecoveryClass;
use crate::id::{AttemptId, EffectFingerprint, InvalidId, Ordinal, SendNumber};
use crate::mail::OutboundMail;
use crate::time::Timestamp;

/// Header names and values in order. Names are lower-case. A value stands for
/// bytes: each character is one byte, U+0000–U+00FF (ISO 8859-1), so that what
/// a provider sent is replayed exactly.
pub type Headers = Vec<(String, String)>;

/// What a component asks the host to send: the untrusted parts, as it gave
/// them, the body whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutboundRequest {
    /// Any method the component named.
    pub method: String,
    /// Any scheme the component named; `None` if it named none.
    pub scheme: Option<String>,
    /// Host and port as one text; `None` if it named none.
    pub authority: Option<String>,
    /// Path and query as one text; `None` if it named none.
    pub path_with_query: Option<String>,
    /// As the component set them, names lower-cased.
    pub headers: Headers,
    /// The whole body; it is never sent before the component has finished it.
    #[serde(with = "base64_bytes")]
    pub body: Vec<u8>,
    /// The longest wait for the answer's first byte that the component asked
    /// for. It can only shorten the grant's own limit.
    pub first_byte_timeout: Option<Duration>,
}

/// An outbound call of one of the kinds a component can import.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Effect {
    /// Through `wasi:http/outgoing-handler`.
    Http(OutboundRequest),
    /// Through `countersign:tool/email`.
    Email(OutboundMail),
}

/// What a provider answered, whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// HTTP status, 200–599 (1xx never gets here).
    pub status: u16,
    /// As received, less hop-by-hop headers, secrets redacted.
    pub headers: Headers,
    /// Whole, secrets redacted, never decompressed.
    #[serde(with = "base64_bytes")]
    pub body: Vec<u8>,
}

impl Answer {
    /// 2xx or 3xx: the provider did, or pointed to, what was asked.
    pub fn is_success(&self) -> bool {
        (200..400).contains(&self.status)
    }

    /// The first value of a header, by lower-case name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }
}

/// Why a call was definitely not made. What the component is told is the
/// variant; the text is for the ledger and for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "refusal", content = "why", rename_all = "snake_case")]
pub enum Refusal {
    /// No route of the grant matches, or the request is malformed.
    #[error("the grant does not allow it: {0}")]
    NotGranted(String),
    /// The name resolved to an address that is not to be reached.
    #[error("the address is not to be reached: {0}")]
    AddressProhibited(String),
    /// The body is longer than the route allows.
    #[error("the request body is over the route's limit of {0} bytes")]
    BodyTooLarge(u64),
    /// An equal write of the same action may already have happened.
    #[error("an equal write of this action may already have happened: {0}")]
    MayHaveHappened(String),
    /// The action made all the effects its grant allows.
    #[error("the action made the {0} effects its grant allows")]
    TooMany(u32),
    /// The grant does not name this recipient of a mail.
    #[error("the grant does not allow mail to {0}")]
    RecipientNotGranted(String),
    /// The mail is none, or says in a header what cannot stand there.
    #[error("it is not a valid mail: {0}")]
    InvalidMail(String),
    /// The mail server refused the sender or a recipient, so the mail itself was
    /// not handed over.
    #[error("the mail server said no before it was given the mail: {0}")]
    Rejected(String),
}

/// What the gate lets the sandbox know. There is no variant that says "send it
/// yourself", and none that says "nobody knows": in doubt a component is
/// stopped, and entered again when the doubt is settled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "passage", rename_all = "snake_case")]
pub enum Passage {
    /// The recorded answer.
    Answered {
        /// Whole, as it stands in the ledger.
        answer: Answer,
        /// The instant of the record: the component's clock from here on.
        at: Timestamp,
    },
    /// A definite refusal; it is recorded and will be replayed.
    Refused {
        /// What the component is told.
        refusal: Refusal,
        /// The instant of the record: the component's clock from here on.
        at: Timestamp,
    },
    /// No answer will come: end the component.
    Stopped,
}

macro_rules! text_enum {
    ($(#[$doc:meta])* $name:ident ($what:literal) { $($(#[$vdoc:meta])* $variant:ident = $text:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum $name { $($(#[$vdoc])* $variant),* }

        impl $name {
            /// All of them, in the order of the text above.
            pub const ALL: &'static [$name] = &[$($name::$variant),*];

            /// The name on every surface and in the store.
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
                    _ => Err(InvalidId { what: $what, form: concat!("one of", $(" ", $text),*) }),
                }
            }
        }
    };
}
pub(crate) use text_enum;

text_enum! {
    /// Which import an effect came through.
    EffectKind("an effect kind") {
        /// An HTTP request.
        Http = "http",
        /// A mail.
        Email = "email",
    }
}

text_enum! {
    /// What the ledger knows about an effect.
    EffectStatus("an effect status") {
        /// Claimed, and perhaps sent. Put here by a write claim or a repeat
        /// claim; taken away by its record, or by the end of its attempt.
        InFlight = "in_flight",
        /// A definite answer stands, whatever its HTTP status.
        Succeeded = "succeeded",
        /// It definitely did not happen: refused, or no byte of it was written,
        /// or a provider or person said so.
        Failed = "failed",
        /// It was perhaps sent, and nobody knows what came of it.
        Unknown = "unknown",
    }
}

/// The terms under which an effect was claimed, fixed in its row: what may be
/// done about it later is decided by these, not by what a grant says by then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// What may be done about an unknown outcome.
    pub class: RecoveryClass,
    /// How long the provider keeps an idempotency key, less the margin.
    pub key_window: Duration,
    /// The status by which the provider says that an equal key is being worked on.
    pub in_flight_status: u16,
    /// An answer that carries this header (lower-case) is definite.
    pub replay_header: Option<String>,
    /// What a 5xx means.
    pub on_5xx: crate::grant::On5xx,
    /// The longest one send may take, connect to last byte.
    pub send: Duration,
    /// How long after the commit that made it unknown a "did not happen" is not
    /// accepted from anybody.
    pub settle: Duration,
}

/// The request as it stands in the ledger and on every surface. Secrets stand
/// in it by name only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedRequest {
    /// Upper-case.
    pub method: String,
    /// The rebuilt URL.
    pub url: String,
    /// As the component set them.
    pub headers: Headers,
    /// As the component sent it.
    #[serde(with = "base64_bytes")]
    pub body: Vec<u8>,
}

/// Who says what came of an unknown effect, and why they are believed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// A principal, or `reconcile`.
    pub by: String,
    /// When it was written down.
    pub at: Timestamp,
    /// `happened` or `did_not_happen`.
    pub outcome: String,
    /// Their words, or the provider's recorded answers.
    pub evidence: serde_json::Value,
}

/// The row of an effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EffectRecord {
    /// Its place within the action.
    pub ordinal: Ordinal,
    /// Which import.
    pub kind: EffectKind,
    /// Whether it may change something outside (the grant says which may).
    pub write: bool,
    /// The terms of its claim.
    pub terms: Terms,
    /// What was asked, exactly.
    pub fingerprint: EffectFingerprint,
    /// What was asked, to be shown.
    pub request: RecordedRequest,
    /// Writes of class `provider-idempotent`, and every write that a provider
    /// may look up: the key it got. Reads and refusals have none.
    pub provider_key: Option<String>,
    /// What is known.
    pub status: EffectStatus,
    /// The attempt that claimed or recorded it last.
    pub attempt: AttemptId,
    /// How many times it was sent; 0 for a refusal.
    pub send: SendNumber,
    /// When this effect's key was first sent; the start of the key window. A
    /// component's own retry inherits it from the write it repeats.
    pub first_sent: Option<Timestamp>,
    /// When the last send was claimed.
    pub last_sent: Option<Timestamp>,
    /// Some earlier send of it may have arrived. Once true, only a success, the
    /// replay header, a lookup or a person settles it.
    pub may_have_arrived: bool,
    /// The commit that made it `unknown`; `settle` runs from here.
    pub unknown_since: Option<Timestamp>,
    /// The answer; present if and only if `succeeded`, except for an effect
    /// that a person resolved as happened and that has no answer.
    pub answer: Option<Answer>,
    /// The refusal that the component was shown. Then it is final.
    pub refusal: Option<Refusal>,
    /// `try-later` asked for this to be asked again. A read or refusal that is
    /// set aside is not replayed; a write that is set aside is repeated.
    pub set_aside: bool,
    /// How an unknown was settled.
    pub evidence: Option<Evidence>,
    /// When the answer, refusal or failure was recorded.
    pub recorded_at: Option<Timestamp>,
}

impl EffectRecord {
    /// A write stands when it was sent and did not definitely fail.
    pub fn stands(&self) -> bool {
        self.write && self.status != EffectStatus::Failed
    }

    /// Nobody knows yet what came of it.
    pub fn is_open(&self) -> bool {
        matches!(self.status, EffectStatus::InFlight | EffectStatus::Unknown)
    }

    /// The last instant, exclusive, at which its key may be sent again; `None`
    /// if it was never sent or its class does not repeat.
    pub fn window_ends(&self) -> Option<Timestamp> {
        match (self.terms.class, self.first_sent) {
            (RecoveryClass::ProviderIdempotent, Some(first)) => Some(first.plus(self.terms.key_window)),
            _ => None,
        }
    }
}

/// Bytes as standard base64 text in JSON.
pub mod base64_bytes {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use serde::{Deserialize as _, Deserializer, Serializer};

    /// As base64 text.
    pub fn serialize<S: Serializer>(bytes: &[u8], s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&STANDARD.encode(bytes))
    }

    /// From base64 text.
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(d)?;
        STANDARD.decode(text).map_err(serde::de::Error::custom)
    }
}
