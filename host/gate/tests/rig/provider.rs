//! Something outside that acts: a small HTTP server over real sockets with a
//! log. The log is the verdict of the tests, not what the gate says of itself.
//!
//! It honours idempotency keys and does as it is told for the next request to a
//! path ([`Do`]). It shares nothing with the gate but the socket.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What the provider does about the next request to a path.
#[derive(Debug, Clone)]
pub enum Do {
    /// Acts, once per key, and answers.
    Act,
    /// Acts, and the answer never arrives.
    LoseReply,
    /// Does nothing, and no answer arrives.
    LoseRequest,
    /// Does nothing and answers this, with these headers.
    Say(u16, &'static [(&'static str, &'static str)]),
    /// Acts and answers this.
    ActThenSay(u16),
    /// Waits to be released, then does that.
    Hold(Box<Do>),
    /// Acts, waits to be released, then answers.
    HoldAnswer,
}

/// A request as it arrived.
#[derive(Debug, Clone)]
pub struct Seen {
    pub method: String,
    pub path: String,
    pub body: String,
    pub key: Option<String>,
}

/// Something that the provider did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acted {
    pub path: String,
    pub body: String,
}

#[derive(Default)]
struct State {
    next: HashMap<String, VecDeque<Do>>,
    seen: Vec<Seen>,
    acted: Vec<Acted>,
    /// By key: the answer that was stored.
    keys: HashMap<String, String>,
}

struct Shared {
    state: Mutex<State>,
    held: watch::Sender<usize>,
    released: watch::Sender<usize>,
}

/// A provider, listening. Ends with the runtime of its test.
pub struct Provider {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    serving: JoinHandle<()>,
    /// Bound and never listening: while the provider is down, nobody else gets
    /// its port, and connections to it are refused.
    _reserved: TcpSocket,
}

impl Provider {
    pub async fn start() -> Provider {
        let reserved = bound(SocketAddr::from(([127, 0, 0, 1], 0)));
        let address = reserved.local_addr().unwrap();
        let listener = bound(address).listen(1024).unwrap();
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            held: watch::Sender::new(0),
            released: watch::Sender::new(0),
        });
        let serving = tokio::spawn(serve(listener, shared.clone()));
        Provider { address, shared, serving, _reserved: reserved }
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.lock()
    }

    /// Says what to do about the next request to this path that nothing was
    /// said about yet.
    pub fn next(&self, path: &str, what: Do) {
        self.state().next.entry(path.to_owned()).or_default().push_back(what);
    }

    /// Forgets all keys, as a provider does after a while.
    pub fn forget_keys(&self) {
        self.state().keys.clear();
    }

    /// Connections are refused from now on.
    pub async fn go_down(&mut self) {
        self.serving.abort();
        let _ = (&mut self.serving).await;
    }

    /// Listens again where it listened before.
    pub fn come_back(&mut self) {
        let listener = bound(self.address).listen(1024).unwrap();
        self.serving = tokio::spawn(serve(listener, self.shared.clone()));
    }

    /// Everything it did, in order.
    pub fn acted(&self) -> Vec<Acted> {
        self.state().acted.clone()
    }

    /// How often it acted on a path.
    pub fn count(&self, path: &str) -> usize {
        self.state().acted.iter().filter(|acted| acted.path == path).count()
    }

    /// The requests to a path, in order.
    pub fn requests(&self, path: &str) -> Vec<Seen> {
        self.state().seen.iter().filter(|seen| seen.path == path).cloned().collect()
    }

    /// Every request.
    pub fn all_requests(&self) -> Vec<Seen> {
        self.state().seen.clone()
    }

    /// Waits until so many requests are held.
    pub async fn holds(&self, how_many: usize) {
        let mut held = self.shared.held.subscribe();
        held.wait_for(|held| *held >= how_many).await.unwrap();
    }

    /// Lets go of all that are held.
    pub fn release(&self) {
        self.shared.released.send_modify(|count| *count += 1);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn hold(&self) {
        let mut released = self.released.subscribe();
        let before = *released.borrow_and_update();
        self.held.send_modify(|count| *count += 1);
        let _ = released.wait_for(|count| *count > before).await;
        self.held.send_modify(|count| *count -= 1);
    }

    /// Acts, once per key. The stored answer, and whether it is stored.
    fn act(&self, seen: &Seen) -> (String, bool) {
        let mut state = self.lock();
        if let Some(answer) = seen.key.as_ref().and_then(|key| state.keys.get(key)) {
            return (answer.clone(), true);
        }
        state.acted.push(Acted { path: seen.path.clone(), body: seen.body.clone() });
        let answer = format!("{{\"id\":\"re_{}\"}}", state.acted.len());
        if let Some(key) = &seen.key {
            state.keys.insert(key.clone(), answer.clone());
        }
        (answer, false)
    }
}

fn bound(address: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseport(true).unwrap();
    socket.bind(address).unwrap();
    socket
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { return };
        let shared = shared.clone();
        // A task of its own: going down does not cut what is being answered.
        tokio::spawn(async move {
            let _ = answer(stream, &shared).await;
        });
    }
}

async fn answer(mut stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    let Some(seen) = read_request(&mut stream).await? else { return Ok(()) };
    let mut what = {
        let mut state = shared.lock();
        state.seen.push(seen.clone());
        state.next.get_mut(&seen.path).and_then(VecDeque::pop_front).unwrap_or(Do::Act)
    };
    while let Do::Hold(then) = what {
        shared.hold().await;
        what = *then;
    }
    let plain = |status: u16| format!("HTTP/1.1 {status} Said\r\nconnection: close\r\ncontent-length: 2\r\n");
    let reply = match what {
        Do::LoseRequest => return Ok(()),
        Do::Say(status, headers) => {
            let more: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
            format!("{}{more}\r\n{{}}", plain(status))
        }
        Do::ActThenSay(status) => {
            shared.act(&seen);
            format!("{}\r\n{{}}", plain(status))
        }
        Do::LoseReply => {
            shared.act(&seen);
            return Ok(());
        }
        // Whether it ever acted on the path behind that.
        Do::Act if seen.method == "GET" && seen.path.starts_with("/look/") => {
            let of = &seen.path["/look".len()..];
            let acted = shared.lock().acted.iter().any(|acted| acted.path == of);
            let (status, body) =
                if acted { ("200 OK", "{\"id\":\"re_looked_up\"}") } else { ("404 Not Found", "{}") };
            let length = body.len();
            format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}")
        }
        Do::Act | Do::HoldAnswer | Do::Hold(_) if seen.method == "GET" => {
            let how_often = shared.lock().seen.iter().filter(|other| other.path == seen.path).count();
            let body = format!("{{\"asked\":{how_often}}}");
            let length = body.len();
            format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}")
        }
        Do::Act | Do::HoldAnswer | Do::Hold(_) => {
            let (body, replayed) = shared.act(&seen);
            if matches!(what, Do::HoldAnswer) {
                shared.hold().await;
            }
            let mark = if replayed { "idempotent-replayed: true\r\n" } else { "" };
            let length = body.len();
            format!("HTTP/1.1 200 OK\r\nconnection: close\r\n{mark}content-length: {length}\r\n\r\n{body}")
        }
    };
    stream.write_all(reply.as_bytes()).await?;
    stream.shutdown().await
}

async fn read_request(stream: &mut TcpStream) -> std::io::Result<Option<Seen>> {
    let mut bytes = Vec::new();
    let mut buffer = [0u8; 4096];
    let head_end = loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        match stream.read(&mut buffer).await? {
            0 => return Ok(None),
            read => bytes.extend_from_slice(&buffer[..read]),
        }
    };
    let head = String::from_utf8_lossy(&bytes[..head_end]).into_owned();
    let header = |wanted: &str| {
        head.lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(name, _)| name.eq_ignore_ascii_case(wanted))
            .map(|(_, value)| value.trim().to_owned())
    };
    let length: usize = header("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
    while bytes.len() < head_end + length {
        match stream.read(&mut buffer).await? {
            0 => return Ok(None),
            read => bytes.extend_from_slice(&buffer[..read]),
        }
    }
    let mut first = head.split_whitespace();
    Ok(Some(Seen {
        method: first.next().unwrap_or_default().to_owned(),
        path: first.next().unwrap_or_default().to_owned(),
        body: String::from_utf8_lossy(&bytes[head_end..head_end + length]).into_owned(),
        key: header("idempotency-key"),
    }))
}
