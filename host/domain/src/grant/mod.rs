//! The grant: what the platform team lets one tool do.
//!
//! A TOML text per tool. It is the only authority a tool has: its hosts, its
//! methods, its secrets, its limits, what may be repeated. A tool says nothing
//! in it, and its digest is part of what an approver approves.
//!
//! Read `mod.rs` for what a grant is, `parse.rs` and `route.rs` for how it is
//! written and what goes without saying, `class.rs` for the words it chooses
//! between, `effective.rs` for what is hashed, `ceiling.rs` for what no grant of
//! a host may exceed.
//!
//! Every complaint about a text says its line, what is wrong and what to do.
//! Nothing here resolves a secret or a name.

mod ceiling;
mod class;
mod effective;
mod email;
mod error;
mod headers;
mod parse;
mod pointer;
mod read;
mod route;
#[cfg(test)]
mod tests;
mod units;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

pub use ceiling::Ceiling;
pub use class::{KeyFormat, On5xx, Planning, RecoveryClass};
pub use email::{EmailAddress, EmailGrant, RecipientPattern};
pub use error::GrantError;
pub use pointer::JsonPointer;
pub use units::{parse_duration, parse_size, show_duration, show_size};

use crate::canonical::CanonicalJson;
use crate::egress::{EgressRefusal, HostPattern, Method, Mismatch, PathPattern, Scheme, Target};
use crate::id::{Digest, GrantDigest};
use crate::secret::{HeaderTemplate, SecretName};

/// Longest grant text. Chosen: some hundred routes.
pub const MAX_GRANT_BYTES: usize = 64 * 1024;

/// A grant that was read and found consistent. Immutable.
#[derive(Debug, Clone)]
pub struct Grant {
    approval: Approval,
    show: Vec<JsonPointer>,
    planning: Planning,
    limits: Limits,
    http: Vec<HttpRoute>,
    email: Option<EmailGrant>,
    source: String,
    effective: CanonicalJson,
}

/// The `[approval]` section: what needs a person when no policy says otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Approval {
    /// Distinct approvers needed, 0–5; 0 lets actions run unattended.
    pub required: u8,
    /// How long after its proposal an action can still be approved, and begin
    /// its first write. At most 24 h.
    pub expires_after: Duration,
    /// How long after its proposal an action can still begin any write. At
    /// least `expires_after`, at most 30 days.
    pub execution_deadline: Duration,
}

/// The `[limits]` section: what one call of the tool may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of linear memory, over all memories.
    pub memory: u64,
    /// The component's own CPU time.
    pub cpu: Duration,
    /// The whole call, sends included.
    pub wall: Duration,
    /// One send, from connect to the last byte of the answer. At most `wall`.
    pub send: Duration,
    /// Effects of one action, reads included.
    pub effects: u32,
    /// Bytes of canonical arguments.
    pub arguments: u64,
    /// Bytes of the canonical result.
    pub result: u64,
    /// Bytes of log and of standard output.
    pub log: u64,
}

/// One `[[http]]` route: one host, one port, some methods, some paths, and the
/// terms of all calls that match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpRoute {
    /// Which hosts. Exact wherever `headers` holds a secret.
    pub host: HostPattern,
    /// 1–65535.
    pub port: u16,
    /// `http` only with `allow_private`.
    pub scheme: Scheme,
    /// At least one. The class covers all of them.
    pub methods: BTreeSet<Method>,
    /// Which paths.
    pub path: PathPattern,
    /// What may be done about an unknown outcome.
    pub recovery: RecoveryClass,
    /// The header that carries the provider key, lower-case; `None`: no key is
    /// sent. Always there for `provider-idempotent`, never for `read`.
    pub idempotency_header: Option<String>,
    /// The shape of the provider key.
    pub key_format: KeyFormat,
    /// How long the provider keeps a key after its first use, as it documents.
    /// The host subtracts its own margin.
    pub key_retention: Duration,
    /// The 4xx status by which the provider says that an equal key is being
    /// worked on at this moment.
    pub in_flight_status: u16,
    /// An answer that carries this header (lower-case) is the provider's stored
    /// answer, and definite.
    pub replay_header: Option<String>,
    /// What a 5xx means.
    pub on_5xx: On5xx,
    /// Writes to this route beyond the planned one, contents not known to the
    /// approver, who is told this number.
    pub unplanned: u32,
    /// Where in the answer the provider's own reference stands.
    pub reference: Option<JsonPointer>,
    /// Headers of the component that are part of what is approved and compared,
    /// lower-case.
    pub significant_headers: BTreeSet<String>,
    /// Bytes of one request body.
    pub request_body: u64,
    /// Bytes of one answer's body.
    pub response_body: u64,
    /// Whether loopback and private addresses may be connected to.
    pub allow_private: bool,
    /// The operator's name of the authority that the server's certificate has to
    /// be from, and no other; `None`: any that is trusted publicly.
    pub ca: Option<String>,
    /// Headers that the host sets, lower-case; the component never sees them.
    pub headers: BTreeMap<String, HeaderTemplate>,
}

impl Grant {
    /// Who has to approve, until when.
    pub fn approval(&self) -> &Approval {
        &self.approval
    }

    /// Arguments that the host shows first, in this order.
    pub fn show(&self) -> &[JsonPointer] {
        &self.show
    }

    /// What may go out while planning.
    pub fn planning(&self) -> Planning {
        self.planning
    }

    /// What one call may use.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The routes, in the order in which they are tried.
    pub fn http(&self) -> &[HttpRoute] {
        &self.http
    }

    /// Whether, as whom and to whom the tool may write mail.
    pub fn email(&self) -> Option<&EmailGrant> {
        self.email.as_ref()
    }

    /// The text it was read from, comments and all.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// All it says, defaults filled in, as canonical JSON: durations in
    /// milliseconds, sizes in bytes, secrets by name. Two texts that mean the
    /// same have the same.
    pub fn effective(&self) -> &CanonicalJson {
        &self.effective
    }

    /// SHA-256 of [`Grant::effective`]. White space, comments, the order of keys
    /// and spelled-out defaults do not change it; the order of routes does.
    pub fn digest(&self) -> GrantDigest {
        GrantDigest(Digest::of(self.effective.as_str().as_bytes()))
    }

    /// The first route that allows this call, with its index.
    ///
    /// # Errors
    /// [`EgressRefusal::NotGranted`], naming what the closest route did not match.
    pub fn route(&self, method: Method, target: &Target) -> Result<(usize, &HttpRoute), EgressRefusal> {
        let mut closest = Mismatch::Host;
        for (index, route) in self.http.iter().enumerate() {
            match route.mismatch(method, target) {
                None => return Ok((index, route)),
                Some(mismatch) => closest = closest.max(mismatch),
            }
        }
        Err(EgressRefusal::NotGranted { method, target: target.to_string(), mismatch: closest })
    }

    /// Every secret that some header needs.
    pub fn secrets(&self) -> BTreeSet<&SecretName> {
        self.http.iter().flat_map(HttpRoute::secrets).collect()
    }

    /// Every authority that some route names.
    pub fn authorities(&self) -> BTreeSet<&str> {
        self.http.iter().filter_map(|route| route.ca.as_deref()).collect()
    }

    /// Names, lower-case, of headers that the tool may not set on any request:
    /// the union over its routes, since it sets headers before it says where a
    /// request goes.
    pub fn forbidden_headers(&self) -> BTreeSet<String> {
        headers::forbidden(self.http.iter().flat_map(HttpRoute::host_set_headers))
    }
}

impl PartialEq for Grant {
    /// Whether two grants allow the same; their texts may differ.
    fn eq(&self, other: &Grant) -> bool {
        self.effective == other.effective
    }
}

impl Eq for Grant {}

impl HttpRoute {
    /// The first thing that keeps this route from allowing a call.
    fn mismatch(&self, method: Method, target: &Target) -> Option<Mismatch> {
        if !self.host.matches(target.host()) {
            Some(Mismatch::Host)
        } else if self.port != target.port() {
            Some(Mismatch::Port)
        } else if self.scheme != target.scheme() {
            Some(Mismatch::Scheme)
        } else if !self.methods.contains(&method) {
            Some(Mismatch::Method)
        } else if !target.path_matches(&self.path) {
            Some(Mismatch::Path)
        } else {
            None
        }
    }

    /// The secrets its headers need.
    pub fn secrets(&self) -> impl Iterator<Item = &SecretName> {
        self.headers.values().flat_map(HeaderTemplate::secrets)
    }

    /// Names, lower-case, of headers that a request to this route may not carry
    /// when it comes from the tool.
    pub fn forbidden_headers(&self) -> BTreeSet<String> {
        headers::forbidden(self.host_set_headers())
    }

    fn host_set_headers(&self) -> impl Iterator<Item = &str> {
        self.headers.keys().chain(&self.idempotency_header).map(String::as_str)
    }
}

impl fmt::Display for HttpRoute {
    /// `POST, PUT https://api.example.com:8443/v1/*`: for people, as one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let methods: Vec<&str> = self.methods.iter().map(|method| method.as_str()).collect();
        write!(f, "{} {}://{}", methods.join(", "), self.scheme, self.host)?;
        if self.port != self.scheme.default_port() {
            write!(f, ":{}", self.port)?;
        }
        write!(f, "{}", self.path)
    }
}
