//! A request as received and an answer as it will be sent, apart from any socket.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::wire::Line;

/// Bodies above this are refused with 413: far above anything the host lets out.
pub const BODY_LIMIT: u64 = 16 * 1024 * 1024;

/// Longer bodies are in the log by hash and size only.
const LOGGED_BODY: usize = 64 * 1024;

/// One request, its body complete unless it says otherwise.
#[derive(Clone)]
pub struct Received {
    /// Which connection it came on, from 1.
    pub connection: u64,
    /// As received.
    pub method: String,
    /// Without the query.
    pub path: String,
    /// After the question mark.
    pub query: Option<String>,
    /// All of them, values included: never handed to the log.
    pub headers: HeaderMap,
    /// What came of the body.
    pub body: Bytes,
}

impl Received {
    /// The idempotency key, if exactly one was sent. Two of them would mean that two parties
    /// set it; `key_count` tells.
    pub fn key(&self) -> Option<String> {
        self.header("idempotency-key")
    }

    /// How many idempotency keys were sent.
    pub fn key_count(&self) -> usize {
        self.headers.get_all("idempotency-key").iter().count()
    }

    /// A header's first value as text, wrong UTF-8 replaced.
    pub fn header(&self, name: &str) -> Option<String> {
        self.headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
    }

    /// What must be equal when a key comes again.
    pub fn fingerprint(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        for part in [self.method.as_bytes(), self.path.as_bytes()] {
            hash.update(part);
            hash.update([0]);
        }
        hash.update(&self.body);
        hash.finalize().into()
    }

    /// A log line about it. Header names, no header values; the two exceptions are the
    /// idempotency key and a hash prefix of `Authorization`.
    pub fn line(&self, event: &str) -> Line {
        let authorization = self.headers.get(http::header::AUTHORIZATION);
        let text = std::str::from_utf8(&self.body).ok();
        Line {
            event: event.to_owned(),
            connection: self.connection,
            method: self.method.clone(),
            path: self.path.clone(),
            query: self.query.clone(),
            key: self.key(),
            body_sha256: hex::encode(Sha256::digest(&self.body)),
            body_bytes: self.body.len() as u64,
            body: text.filter(|text| text.len() <= LOGGED_BODY).map(str::to_owned),
            authorization_present: authorization.is_some(),
            authorization_sha256: authorization.map(hash_prefix),
            headers: self.headers.iter().map(|(name, _)| name.to_string()).collect(),
            ..Line::default()
        }
    }
}

fn hash_prefix(value: &HeaderValue) -> String {
    let mut digest = hex::encode(Sha256::digest(value.as_bytes()));
    digest.truncate(12);
    digest
}

/// One answer. `Content-Length` is added when it is sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// HTTP status, final.
    pub status: u16,
    /// In this order, names as they are sent.
    pub headers: Vec<(String, String)>,
    /// Whole.
    pub body: Bytes,
}

impl Answer {
    /// JSON, compact.
    pub fn json(status: u16, body: &Value) -> Self {
        Self {
            status,
            headers: vec![("Content-Type".into(), "application/json".into())],
            body: Bytes::from(body.to_string()),
        }
    }

    /// With one more header.
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The head as it goes on the wire where hyper does not write it. `length` none means chunked.
    pub fn head(&self, length: Option<u64>) -> String {
        let status = http::StatusCode::from_u16(self.status).ok();
        let reason = status.and_then(|s| s.canonical_reason()).unwrap_or("Status");
        let mut head = format!("HTTP/1.1 {} {reason}\r\n", self.status);
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        match length {
            Some(length) => head.push_str(&format!("Content-Length: {length}\r\n")),
            None => head.push_str("Transfer-Encoding: chunked\r\n"),
        }
        head.push_str("Connection: close\r\n\r\n");
        head
    }
}
