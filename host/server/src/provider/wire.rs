//! What travels between the provider and whoever drives it: fault rules, settings, log lines.
//!
//! Only shapes, no behaviour beyond reading and writing them. The end-to-end tests include this
//! file by path next to `client.rs`, so it may depend on `serde` and `serde_json` and nothing else.
#![allow(
    dead_code,
    reason = "the provider, the demo and the tests each use a different part of these shapes"
)]

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// How the provider treats the keys it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// A key is good for its retention: a repeat is answered from the first answer.
    Honours,
    /// Keys are remembered for lookup only: every request acts.
    Ignores,
    /// Like `honours`, but for a minute unless a retention is given.
    Forgets,
}

impl std::str::FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "honours" => Ok(Self::Honours),
            "ignores" => Ok(Self::Ignores),
            "forgets" => Ok(Self::Forgets),
            _ => Err("one of honours, ignores, forgets".into()),
        }
    }
}

/// Which requests a rule is for. A path ending in `*` matches by what stands before it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Match {
    /// `POST`, compared exactly; absent matches all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// Without the query; absent matches all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

impl Match {
    /// Whether a request with this method and path is meant.
    pub fn covers(&self, method: &str, path: &str) -> bool {
        self.method.as_deref().is_none_or(|wanted| wanted == method)
            && self.path.as_deref().is_none_or(|pattern| path_matches(pattern, path))
    }
}

/// `"/v1/*"` matches everything below, `"/v1/refunds"` only itself.
pub fn path_matches(pattern: &str, path: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => path.starts_with(prefix),
        None => path == pattern,
    }
}

/// One way to misbehave. In JSON: `{"fault":"delay","ms":200}`, fields beside the name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "fault", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Fault {
    /// Act, then close without a byte of an answer.
    LoseReply,
    /// Wait before answering; with `before`, wait before acting.
    Delay {
        /// Milliseconds.
        ms: u64,
        /// Act only after the wait, whether or not the caller is still there.
        #[serde(default)]
        before: bool,
        /// The key counts as finished during the wait: a repeat is replayed, not "in flight".
        #[serde(default)]
        settled: bool,
    },
    /// Another answer than the real one. Does not act unless the rule says so.
    Status {
        /// HTTP status, 200 to 599.
        code: u16,
        /// Added to the answer; `Retry-After`, for instance.
        #[serde(default)]
        headers: BTreeMap<String, String>,
        /// A string is sent as it is, other JSON as JSON; absent is an error in the API's shape.
        #[serde(default)]
        body: Option<Value>,
    },
    /// Send the first `n` bytes of the answer, head included, then reset the connection.
    ResetAtByte {
        /// From 0; more than the answer has means: all of it, then the reset.
        n: u64,
    },
    /// Reset without reading the request. Never acts.
    ResetBeforeRead,
    /// Act and say nothing until released; with `before`, act at the release.
    Hold {
        /// Act only when released, whether or not the caller is still there.
        #[serde(default)]
        before: bool,
        /// The key counts as finished while held: a repeat is replayed, not "in flight".
        #[serde(default)]
        settled: bool,
    },
    /// Send the answer in small pieces.
    Drip {
        /// Milliseconds before each piece.
        ms: u64,
        /// Bytes in a piece.
        #[serde(default = "one")]
        n: u64,
    },
    /// Interim answers before the real one.
    Continues {
        /// How many.
        n: u64,
        /// Which, 100 to 199 but not 101.
        #[serde(default = "continue_code")]
        code: u16,
    },
    /// Promise the whole body, send a part of it, close.
    Truncate {
        /// Body bytes sent; absent is half.
        #[serde(default)]
        n: Option<u64>,
    },
    /// The real answer, its body padded with spaces: still JSON, only too much of it.
    BigBody {
        /// Size of the body.
        bytes: u64,
        /// Without a length the reader could refuse by.
        #[serde(default)]
        chunked: bool,
    },
    /// These bytes instead of an HTTP answer, then close.
    Raw {
        /// Sent as it is.
        body: String,
    },
}

fn one() -> u64 {
    1
}

fn continue_code() -> u16 {
    100
}

impl Fault {
    /// Act, then keep the caller waiting until released; a repeat is told "in flight".
    pub fn hold() -> Self {
        Self::Hold { before: false, settled: false }
    }

    /// Act, then answer this late.
    pub fn delay(ms: u64) -> Self {
        Self::Delay { ms, before: false, settled: false }
    }

    /// Answer this status in the API's error shape, without acting.
    pub fn status(code: u16) -> Self {
        Self::Status { code, headers: BTreeMap::new(), body: None }
    }

    /// The name it has in JSON.
    pub fn name(&self) -> &'static str {
        match self {
            Self::LoseReply => "lose-reply",
            Self::Delay { .. } => "delay",
            Self::Status { .. } => "status",
            Self::ResetAtByte { .. } => "reset-at-byte",
            Self::ResetBeforeRead => "reset-before-read",
            Self::Hold { .. } => "hold",
            Self::Drip { .. } => "drip",
            Self::Continues { .. } => "continues",
            Self::Truncate { .. } => "truncate",
            Self::BigBody { .. } => "big-body",
            Self::Raw { .. } => "raw",
        }
    }

    fn check(&self) -> Result<(), String> {
        match self {
            Self::Status { code, headers, .. } => {
                if !(200..=599).contains(code) {
                    return Err(format!("`code` {code} is no final HTTP status (200 to 599)"));
                }
                let bad = |text: &str| text.chars().any(|c| c.is_control() || !c.is_ascii());
                match headers.iter().find(|(k, v)| k.is_empty() || bad(k) || bad(v)) {
                    Some((name, _)) => Err(format!("header `{name}` cannot be sent")),
                    None => Ok(()),
                }
            }
            Self::Continues { code, .. } if !(100..=199).contains(code) || *code == 101 => {
                Err(format!("`code` {code} is no interim HTTP status"))
            }
            Self::Drip { n: 0, .. } => Err("`n` must be at least 1".into()),
            _ => Ok(()),
        }
    }
}

/// A fault, whom it meets and how often. The first live rule that matches a request fires.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Map<String, Value>", into = "Map<String, Value>")]
pub struct Rule {
    /// Which requests.
    pub matches: Match,
    /// How many of them; none is every one. Absent in JSON means one, `null` every one.
    pub times: Option<u64>,
    /// Whether the business is done. Absent: yes, but for `status` and `reset-before-read`.
    pub act: bool,
    /// What goes wrong.
    pub fault: Fault,
}

impl Rule {
    /// The next `times` requests to this path.
    pub fn times(path: &str, times: u64, fault: Fault) -> Self {
        let act = !matches!(fault, Fault::Status { .. } | Fault::ResetBeforeRead);
        Self { matches: Match { method: None, path: Some(path.to_owned()) }, times: Some(times), act, fault }
    }

    /// The next request to this path.
    pub fn once(path: &str, fault: Fault) -> Self {
        Self::times(path, 1, fault)
    }

    /// Every request to this path, until the rules are cleared.
    pub fn always(path: &str, fault: Fault) -> Self {
        Self { times: None, ..Self::once(path, fault) }
    }

    /// Only requests with this method.
    pub fn method(mut self, method: &str) -> Self {
        self.matches.method = Some(method.to_owned());
        self
    }

    /// Whether the business is done although, or because, the fault fires.
    pub fn acting(mut self, act: bool) -> Self {
        self.act = act;
        self
    }
}

impl TryFrom<Map<String, Value>> for Rule {
    type Error = String;

    fn try_from(mut map: Map<String, Value>) -> Result<Self, String> {
        // Every way to misbehave has its own fields; what is left after the common ones is its.
        let matches = match map.remove("match") {
            None => Match::default(),
            Some(value) => serde_json::from_value(value).map_err(|e| format!("rule, `match`: {e}"))?,
        };
        let times = match map.remove("times") {
            None => Some(1),
            Some(Value::Null) => None,
            Some(value) => {
                Some(value.as_u64().ok_or("rule, `times`: a count from 0, or null for every time")?)
            }
        };
        let act = match map.remove("act") {
            None => None,
            Some(Value::Bool(act)) => Some(act),
            Some(_) => return Err("rule, `act`: true or false".into()),
        };
        let fault: Fault = serde_json::from_value(Value::Object(map)).map_err(|e| format!("rule: {e}"))?;
        fault.check().map_err(|e| format!("rule `{}`: {e}", fault.name()))?;
        if act == Some(true) && fault == Fault::ResetBeforeRead {
            return Err("rule `reset-before-read` reads nothing, so it cannot act".into());
        }
        let usual = Self::times("", 0, fault);
        Ok(Self { matches, times, act: act.unwrap_or(usual.act), fault: usual.fault })
    }
}

impl From<Rule> for Map<String, Value> {
    fn from(rule: Rule) -> Self {
        // A fault is always a JSON object: it has at least its name.
        let mut map = match serde_json::to_value(&rule.fault) {
            Ok(Value::Object(map)) => map,
            _ => Map::new(),
        };
        let matches = serde_json::to_value(&rule.matches).unwrap_or_default();
        map.insert("match".into(), matches);
        map.insert("times".into(), rule.times.into());
        map.insert("act".into(), rule.act.into());
        map
    }
}

/// A change to the running provider: the body of `POST /_control`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Change {
    /// Forget all rules first.
    pub clear: bool,
    /// Added at the end of the queue.
    pub rules: Vec<Rule>,
    /// For everything, unless `bank_mode` says otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// For the bank's paths alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bank_mode: Option<Mode>,
    /// How long a key is kept from its first use, milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_retention_ms: Option<u64>,
}

/// One line of the log. Absent fields do not apply to that event.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Line {
    /// From 1, without a gap.
    pub seq: u64,
    /// Milliseconds since 1970, the provider's wall clock.
    pub at: u64,
    /// `request`, `effect`, `fault`, or `malformed` for a connection that spoke no HTTP.
    pub event: String,
    /// Which connection, from 1 in each run of the provider.
    pub connection: u64,
    /// As received.
    pub method: String,
    /// Without the query.
    pub path: String,
    /// After the question mark.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query: Option<String>,
    /// The idempotency key.
    pub key: Option<String>,
    /// Lower-case hexadecimal, of the whole body.
    pub body_sha256: String,
    /// Size of the body; of what came of it, where it was cut short.
    pub body_bytes: u64,
    /// The body where it is text of at most 64 KiB.
    pub body: Option<String>,
    /// Whether there was an `Authorization` header. Its value is never written.
    pub authorization_present: bool,
    /// The first 12 hexadecimal digits of that value's SHA-256: enough to tell two apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authorization_sha256: Option<String>,
    /// Header names, lower case, once per value; the order means nothing.
    pub headers: Vec<String>,
    /// Requests: `fresh`, `replayed`, `in-flight`, `key-reused`, `withheld` (a rule kept it from
    /// acting), `incomplete`, `too-large`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    /// Requests: answered from what the key had stored; nothing was done.
    pub replayed: bool,
    /// Requests: the business's answer, before any fault; absent where it comes after a wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Effects: its id at the provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect_id: Option<String>,
    /// Effects: `refund`, `reservation`, `transfer`, `ledger-entry`, `notice`, `any`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Effects and faults: the `seq` of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_seq: Option<u64>,
    /// Faults: which.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// Faults: the rule's id, as `GET /_control` shows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<u64>,
    /// What was wrong, for `malformed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}
