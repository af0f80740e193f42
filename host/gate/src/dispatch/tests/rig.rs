//! A raw TCP upstream that keeps every byte it was sent, and senders to try on
//! it. The verdict of a test is what the upstream saw, not what we say we sent.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use countersign_domain::effect::{Answer, Headers};
use countersign_domain::egress::Target;
use countersign_domain::grant::Grant;
use countersign_domain::retry::Transport;
use countersign_domain::secret::{SecretName, SecretValue};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::dispatch::{Dispatched, Dispatcher, DispatcherConfig, Outgoing, Resolver, Secrets, SlowestPace};
use crate::request::Route;

pub(super) const SECRET: &str = "sk_test_c4n4ry+/value";
pub(super) const KEY: &str = "tool-action:00000000-0000-8000-8000-000000000001:1";
pub(super) const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// What the upstream saw: the bytes of each connection, in order of arrival.
#[derive(Clone, Default)]
pub(super) struct Seen(Arc<Mutex<Vec<Vec<u8>>>>);

impl Seen {
    pub(super) fn connections(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    pub(super) fn bytes(&self, connection: usize) -> Vec<u8> {
        self.0.lock().unwrap()[connection].clone()
    }

    pub(super) fn text(&self, connection: usize) -> String {
        String::from_utf8(self.bytes(connection)).unwrap()
    }

    pub(super) fn all_bytes(&self) -> usize {
        self.0.lock().unwrap().iter().map(Vec::len).sum()
    }
}

/// One connection at the upstream; notes what it reads.
pub(super) struct Peer<S = TcpStream> {
    pub(super) io: S,
    seen: Seen,
    number: usize,
    read: usize,
}

impl<S: AsyncRead + Unpin> Peer<S> {
    /// Reads at most `limit` bytes; 0 at the end.
    pub(super) async fn read(&mut self, limit: usize) -> io::Result<usize> {
        let mut buffer = vec![0; limit];
        let count = self.io.read(&mut buffer).await?;
        self.seen.0.lock().unwrap()[self.number].extend_from_slice(&buffer[..count]);
        self.read += count;
        Ok(count)
    }

    /// Reads exactly this many bytes, or to the end.
    pub(super) async fn read_exactly(&mut self, count: usize) {
        let until = self.read + count;
        while self.read < until && self.read(until - self.read).await.is_ok_and(|got| got > 0) {}
    }

    /// Reads one whole request: its head, and as much body as it announces.
    pub(super) async fn read_request(&mut self) -> Option<Vec<u8>> {
        let start = self.read;
        loop {
            let all = self.seen.bytes(self.number);
            let request = &all[start..];
            if let Some(end) = find(request, b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&request[..end]).to_ascii_lowercase();
                let length = head
                    .lines()
                    .find_map(|line| line.strip_prefix("content-length: "))
                    .map_or(0, |length| length.parse::<usize>().unwrap());
                if request.len() >= end + 4 + length {
                    return Some(request.to_vec());
                }
            }
            if self.read(64 * 1024).await.ok()? == 0 {
                return None;
            }
        }
    }

    pub(super) async fn read_to_end(&mut self) {
        while self.read(64 * 1024).await.is_ok_and(|got| got > 0) {}
    }

    pub(super) fn over<T>(self, io: T) -> Peer<T> {
        Peer { io, seen: self.seen, number: self.number, read: self.read }
    }
}

impl Peer<TcpStream> {
    /// Goes away with a reset, not with an orderly end.
    pub(super) fn reset(self) {
        self.io.set_zero_linger().unwrap();
    }

    /// The connection below, to put TLS on; what TLS reads is not noted.
    pub(super) fn take(self) -> (TcpStream, Peer<tokio::io::Empty>) {
        (self.io, Peer { io: tokio::io::empty(), seen: self.seen, number: self.number, read: 0 })
    }
}

pub(super) fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

/// A server on loopback that treats every connection by one script.
pub(super) struct Upstream {
    pub(super) address: SocketAddr,
    pub(super) seen: Seen,
    connections: watch::Receiver<usize>,
    ended: watch::Receiver<usize>,
    task: tokio::task::JoinHandle<()>,
}

impl Upstream {
    pub(super) async fn start<F, Fut>(script: F) -> Upstream
    where
        F: Fn(Peer) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Seen::default();
        let (arrived, connections) = watch::channel(0);
        let (ending, ended) = watch::channel(0);
        let ending = Arc::new(ending);
        let noted = seen.clone();
        let task = tokio::spawn(async move {
            while let Ok((io, _)) = listener.accept().await {
                let number = {
                    let mut all = noted.0.lock().unwrap();
                    all.push(Vec::new());
                    all.len() - 1
                };
                arrived.send_replace(number + 1);
                let script = script(Peer { io, seen: noted.clone(), number, read: 0 });
                let ending = ending.clone();
                tokio::spawn(async move {
                    script.await;
                    ending.send_modify(|count| *count += 1);
                });
            }
        });
        Upstream { address, seen, connections, ended, task }
    }

    /// Answers every request with these bytes, on one connection for as many
    /// as come.
    pub(super) async fn answering(answer: &[u8]) -> Upstream {
        let answer = Bytes::copy_from_slice(answer);
        Upstream::start(move |mut peer| {
            let answer = answer.clone();
            async move {
                while peer.read_request().await.is_some() {
                    if peer.io.write_all(&answer).await.is_err() {
                        return;
                    }
                }
            }
        })
        .await
    }

    /// Answers the first request on each connection, then ends it.
    pub(super) async fn answering_once(answer: &[u8]) -> Upstream {
        let answer = Bytes::copy_from_slice(answer);
        Upstream::start(move |mut peer| {
            let answer = answer.clone();
            async move {
                if peer.read_request().await.is_some() && peer.io.write_all(&answer).await.is_ok() {
                    peer.io.shutdown().await.ok();
                    peer.read_to_end().await;
                }
            }
        })
        .await
    }

    pub(super) async fn arrived(&self, count: usize) {
        self.connections.clone().wait_for(|have| *have >= count).await.unwrap();
    }

    /// Until this many scripts are through: what they saw is then all.
    pub(super) async fn ended(&self, count: usize) {
        self.ended.clone().wait_for(|have| *have >= count).await.unwrap();
    }

    pub(super) fn port(&self) -> u16 {
        self.address.port()
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A resolver that answers from a list and counts.
#[derive(Default)]
pub(super) struct Names {
    known: Mutex<HashMap<String, Vec<Vec<IpAddr>>>>,
    pub(super) asked: Mutex<usize>,
}

impl Names {
    /// One name; each element is one answer, given in turn and the last for good.
    pub(super) fn of(name: &str, answers: Vec<Vec<IpAddr>>) -> Names {
        Names { known: Mutex::new(HashMap::from([(name.to_owned(), answers)])), asked: Mutex::new(0) }
    }

    /// Several names.
    pub(super) fn knowing<const N: usize>(names: [(&str, Vec<Vec<IpAddr>>); N]) -> Names {
        let known = names.map(|(name, answers)| (name.to_owned(), answers)).into();
        Names { known: Mutex::new(known), asked: Mutex::new(0) }
    }

    pub(super) fn at(name: &str, ip: &str) -> Names {
        Names::of(name, vec![vec![ip.parse().unwrap()]])
    }
}

#[async_trait]
impl Resolver for Names {
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        *self.asked.lock().unwrap() += 1;
        let mut known = self.known.lock().unwrap();
        let answers = known.get_mut(host).ok_or(io::ErrorKind::NotFound)?;
        Ok(if answers.len() > 1 { answers.remove(0) } else { answers[0].clone() })
    }
}

/// Short enough for tests, long enough for a busy machine where they must not strike.
pub(super) fn config() -> DispatcherConfig {
    DispatcherConfig {
        connect: Duration::from_secs(5),
        slowest: SlowestPace::default(),
        ..Default::default()
    }
}

pub(super) fn sender(config: DispatcherConfig, names: Names) -> Dispatcher {
    let secrets = [("key".parse::<SecretName>().unwrap(), SecretValue::new(SECRET.to_owned()).unwrap())];
    Dispatcher::new(config, Arc::new(names), Arc::new(Secrets::new(secrets))).unwrap()
}

pub(super) fn plain_sender() -> Dispatcher {
    sender(config(), Names::default())
}

/// The grant of most tests: one route over plain HTTP to this port.
pub(super) fn grant(host: &str, port: u16, more: &str) -> String {
    format!(
        "[limits]\nsend = \"5s\"\n\n[[http]]\nhost = \"{host}\"\nport = {port}\nscheme = \"http\"\n\
         methods = [\"GET\", \"HEAD\", \"POST\", \"PUT\", \"PATCH\", \"DELETE\"]\npath = \"/**\"\n\
         allow_private = true\n{more}"
    )
}

pub(super) const IDEMPOTENT: &str = "recovery = \"provider-idempotent\"\nidempotency_header = \"Idempotency-Key\"\n[http.headers]\n\
     Authorization = \"Bearer {{secret:key}}\"\n";
pub(super) const MANUAL: &str = "recovery = \"manual\"\n";

/// A request under a grant's text.
pub(super) fn outgoing(
    grant: &str,
    method: &str,
    url: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Outgoing {
    let grant = Arc::new(grant.parse::<Grant>().unwrap_or_else(|error| panic!("{error}\n{grant}")));
    let (target, method) = (Target::from_url(url).unwrap(), method.parse().unwrap());
    let (index, route) = grant.route(method, &target).unwrap();
    let terms = crate::request::terms(&grant, route);
    Outgoing {
        route: Route { index, target, method, terms },
        grant,
        headers: headers
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .collect::<Headers>(),
        body: Bytes::copy_from_slice(body),
        provider_key: Some(KEY.to_owned()),
        tenant: "default".parse().unwrap(),
        tool: "refund".parse().unwrap(),
        first_byte_timeout: None,
    }
}

/// A POST of `{"a":1}` to an upstream.
pub(super) fn post(upstream: &Upstream, more: &str) -> Outgoing {
    let url = format!("http://127.0.0.1:{}/v1/refunds?x=1", upstream.port());
    outgoing(
        &grant("127.0.0.1", upstream.port(), more),
        "POST",
        &url,
        &[("content-type", "application/json")],
        b"{\"a\":1}",
    )
}

pub(super) async fn send(sender: &Dispatcher, outgoing: Outgoing) -> Dispatched {
    sender.send(outgoing, || async { true }).await
}

/// The verdict in a word, for tables.
pub(super) fn fate(dispatched: &Dispatched) -> &'static str {
    match dispatched {
        Dispatched::Refused(_) => "refused",
        Dispatched::Sent { transport: Transport::NotSent(_), .. } => "not sent",
        Dispatched::Sent { transport: Transport::Answered(_), .. } => "answered",
        Dispatched::Sent { transport: Transport::Lost(_), .. } => "lost",
    }
}

pub(super) fn why(dispatched: &Dispatched) -> &str {
    match dispatched {
        Dispatched::Sent { transport: Transport::NotSent(why) | Transport::Lost(why), .. } => why,
        other => panic!("no reason in {other:?}"),
    }
}

pub(super) fn answer(dispatched: Dispatched) -> Answer {
    match dispatched {
        Dispatched::Sent { transport: Transport::Answered(answer), .. } => answer,
        other => panic!("no answer: {other:?}"),
    }
}
