//! The provider judged from outside: over real sockets, by its answers and by its log's file.
//!
//! It is what other tests trust, so it is tested first, and with a client that shows every byte.

mod faults;
mod idempotency;
mod input;
mod log;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::client::read_log;
use super::log::Log;
use super::serve::{Provider, Settings};
use super::wire::{Line, Mode, Rule, path_matches};

/// A provider in this process.
struct Rig {
    address: SocketAddr,
    log: PathBuf,
    server: tokio::task::JoinHandle<()>,
    fatal: mpsc::UnboundedReceiver<String>,
    folder: tempfile::TempDir,
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Rig {
    async fn start() -> Self {
        Self::start_with(Mode::Honours).await
    }

    async fn start_with(mode: Mode) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join("provider.jsonl");
        Self::on(folder, log, mode).await
    }

    async fn on(folder: tempfile::TempDir, log: PathBuf, mode: Mode) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("its number");
        let settings =
            Settings { mode, bank_mode: None, key_retention_ms: 1000 * 60 * 60, clock_advanced_ms: 0 };
        let (sender, fatal) = mpsc::unbounded_channel();
        let opened = Log::open(&log).expect("a log");
        let provider = Arc::new(Provider::new(opened, settings, sender));
        let server = tokio::spawn(async move { match provider.serve(listener).await {} });
        Self { address, log, server, fatal, folder }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("a connection")
    }

    /// Sends text and reads to the end: every byte that came, and how it ended.
    async fn exchange(&self, text: &str) -> (Vec<u8>, io::Result<()>) {
        let mut socket = self.connect().await;
        socket.write_all(text.as_bytes()).await.expect("sent");
        let mut bytes = Vec::new();
        let end = socket.read_to_end(&mut bytes).await.map(drop);
        (bytes, end)
    }

    /// One whole exchange, understood.
    async fn send(&self, text: &str) -> Reply {
        let (bytes, end) = self.exchange(text).await;
        end.expect("an end without a reset");
        Reply::parse(&bytes)
    }

    /// A refund of 100, its connection closed by the provider afterwards.
    async fn refund(&self, key: Option<&str>) -> Reply {
        self.send(&refund_text(key, "payment_intent=pi_1&amount=100")).await
    }

    async fn get(&self, target: &str) -> Reply {
        self.send(&format!("GET {target} HTTP/1.1\r\nhost: p\r\nconnection: close\r\n\r\n")).await
    }

    async fn control(&self, at: &str, body: Value) -> Reply {
        self.send(&post_text(at, "", "application/json", &body.to_string())).await
    }

    async fn fault(&self, rule: Rule) {
        let body = serde_json::to_value(rule).expect("a rule");
        let reply = self.control("/_control", body).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
    }

    async fn wait(&self, what: &str, path: &str, count: u64) {
        let reply = self.get(&format!("/_control/waiting?what={what}&path={path}&count={count}")).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
    }

    async fn release(&self) {
        let reply = self.control("/_control/release", Value::Null).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
    }

    fn events(&self, event: &str, path: &str) -> Vec<Line> {
        let mut lines = read_log(&self.log).expect("the log");
        lines.retain(|line| line.event == event && path_matches(path, &line.path));
        lines
    }

    fn effects(&self) -> usize {
        self.events("effect", "*").len()
    }
}

/// A reply with its length checked.
struct Reply {
    status: u16,
    head: String,
    text: String,
}

impl Reply {
    fn parse(bytes: &[u8]) -> Self {
        let all = String::from_utf8_lossy(bytes).into_owned();
        let (head, text) = all.split_once("\r\n\r\n").expect("a whole head");
        let head = head.to_ascii_lowercase();
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        Self { status: status.expect("a status"), head, text: text.to_owned() }
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.text).expect("JSON")
    }

    fn is_replayed(&self) -> bool {
        self.head.contains("\r\nidempotent-replayed: true")
    }
}

fn post_text(path: &str, headers: &str, kind: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: p\r\nconnection: close\r\ncontent-type: {kind}\r\n\
         content-length: {length}\r\n{headers}\r\n{body}"
    )
}

fn key_header(key: Option<&str>) -> String {
    key.map(|key| format!("idempotency-key: {key}\r\n")).unwrap_or_default()
}

fn refund_text(key: Option<&str>, form: &str) -> String {
    let kind = "application/x-www-form-urlencoded";
    post_text("/v1/refunds", &key_header(key), kind, form)
}

fn bank_text(path: &str, key: Option<&str>, body: &str) -> String {
    post_text(path, &key_header(key), "application/json", body)
}
