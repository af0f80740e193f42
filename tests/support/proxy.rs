//! A way to a PostgreSQL server on which things get lost: a statement before it arrives, or the
//! reply to one that was committed. It reads so much of the protocol that it knows which statement
//! passes: the text comes once, when the statement is prepared, and from then on only its name.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loses {
    /// The statement, before the server sees it.
    Statement,
    /// The reply, after the server has committed.
    Reply,
    /// Nothing at all, for ever: the connection stands still.
    Patience,
}

/// Which statement a loss is for, and what is lost.
#[derive(Debug, Clone)]
pub struct Loss {
    /// A part of the statement's text.
    pub marker: &'static str,
    /// What.
    pub loses: Loses,
    /// How many of them pass first.
    pub after: usize,
    /// How often.
    pub times: usize,
}

/// A claim of an action, or of one that is to be repeated.
pub const ACTION_CLAIM: &str = "attempt = a.attempt + 1";
/// A claim of a write, or of one that is repeated.
pub const WRITE_CLAIM: &str = "in_flight = $5::bigint,";
/// The record of what came of a send.
pub const RECORD: &str = "a.in_flight = $5::bigint and";
/// Telling other hosts.
pub const WAKE_UP: &str = "pg_notify";
/// Whatever changes an action.
pub const STEP: &str = "update actions a set";

/// The way.
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    target: Mutex<PathBuf>,
    losses: Mutex<Vec<Loss>>,
    fired: AtomicUsize,
    open: Mutex<Vec<(TcpStream, UnixStream)>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Proxy {
    /// A way to the server behind this socket.
    pub fn to(socket: PathBuf) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let shared = Arc::new(Shared {
            target: Mutex::new(socket),
            losses: Mutex::default(),
            fired: AtomicUsize::new(0),
            open: Mutex::default(),
        });
        let accepts = shared.clone();
        // Ends with the process.
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let target = locked(&accepts.target).clone();
                let Ok(server) = UnixStream::connect(target) else {
                    let _ = client.shutdown(Shutdown::Both);
                    continue;
                };
                let _ = client.set_nodelay(true);
                pass(&accepts, client, server);
            }
        });
        Proxy { port, shared }
    }

    /// How a host reaches a database by it.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}?sslmode=disable", self.port)
    }

    /// Leads to another server from now on; who is connected is cut off.
    pub fn point_at(&self, socket: PathBuf) {
        *locked(&self.shared.target) = socket;
        self.cut();
    }

    /// Cuts every connection.
    pub fn cut(&self) {
        for (client, server) in locked(&self.shared.open).drain(..) {
            let _ = client.shutdown(Shutdown::Both);
            let _ = server.shutdown(Shutdown::Both);
        }
    }

    /// Loses something, in turn with what it was told to lose before.
    pub fn lose(&self, loss: Loss) {
        locked(&self.shared.losses).push(loss);
    }

    /// Loses nothing more.
    pub fn lose_nothing(&self) {
        locked(&self.shared.losses).clear();
    }

    /// How often something was lost.
    pub fn lost(&self) -> usize {
        self.shared.fired.load(Ordering::Relaxed)
    }
}

impl Shared {
    /// What is to be lost of a statement that passes.
    fn loss_of(&self, text: &str) -> Option<Loses> {
        let mut losses = locked(&self.losses);
        let at = losses.iter().position(|loss| text.contains(loss.marker))?;
        let loss = &mut losses[at];
        if loss.after > 0 {
            loss.after -= 1;
            return None;
        }
        let loses = loss.loses;
        loss.times = loss.times.saturating_sub(1);
        if loss.times == 0 {
            losses.remove(at);
        }
        self.fired.fetch_add(1, Ordering::Relaxed);
        Some(loses)
    }
}

fn pass(shared: &Arc<Shared>, client: TcpStream, server: UnixStream) {
    let copies = (client.try_clone(), server.try_clone());
    let (Ok(client_too), Ok(server_too)) = copies else { return };
    if let (Ok(client), Ok(server)) = (client.try_clone(), server.try_clone()) {
        locked(&shared.open).push((client, server));
    }
    let swallow = Arc::new(AtomicBool::new(false));
    let (watched, shared) = (swallow.clone(), shared.clone());
    std::thread::spawn(move || {
        let _ = upwards(&shared, client, server, &swallow);
    });
    std::thread::spawn(move || {
        let _ = downwards(client_too, server_too, &watched);
    });
}

/// From the host to the server, message by message.
fn upwards(
    shared: &Shared,
    mut client: TcpStream,
    mut server: UnixStream,
    swallow: &AtomicBool,
) -> std::io::Result<()> {
    let mut texts: HashMap<Vec<u8>, String> = HashMap::new();
    let mut started = false;
    let mut waiting: Vec<u8> = Vec::new();
    let mut piece = vec![0; 65_536];
    loop {
        let read = client.read(&mut piece)?;
        if read == 0 {
            return server.shutdown(Shutdown::Write);
        }
        waiting.extend_from_slice(&piece[..read]);
        let mut at = 0;
        let mut lost = None;
        // The first message has no kind, only a length.
        while let Some(length) = length_at(&waiting, at + usize::from(started)) {
            let whole = length + usize::from(started);
            if waiting.len() < at + whole {
                break;
            }
            if started {
                let body = &waiting[at + 5..at + whole];
                lost = lost.or_else(|| passing(shared, waiting[at], body, &mut texts));
            }
            started = true;
            at += whole;
        }
        match lost {
            Some(Loses::Statement) => {
                let _ = client.shutdown(Shutdown::Both);
                return server.shutdown(Shutdown::Both);
            }
            Some(Loses::Patience) => {
                // Neither an answer nor an end: until somebody cuts it.
                while client.read(&mut piece)? > 0 {}
                return server.shutdown(Shutdown::Both);
            }
            Some(Loses::Reply) => swallow.store(true, Ordering::SeqCst),
            None => {}
        }
        server.write_all(&waiting[..at])?;
        waiting.drain(..at);
    }
}

/// The length of a message, which counts itself but not its kind.
fn length_at(bytes: &[u8], at: usize) -> Option<usize> {
    let four: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(u32::from_be_bytes(four) as usize)
}

/// Whether something of this message is to be lost.
fn passing(shared: &Shared, kind: u8, body: &[u8], texts: &mut HashMap<Vec<u8>, String>) -> Option<Loses> {
    let mut parts = body.split(|byte| *byte == 0);
    match kind {
        // A statement is prepared: name, text.
        b'P' => {
            let (name, text) = (parts.next()?, parts.next()?);
            texts.insert(name.to_vec(), String::from_utf8_lossy(text).into_owned());
            None
        }
        // It is run: portal, name.
        b'B' => shared.loss_of(texts.get(parts.nth(1)?)?),
        _ => None,
    }
}

/// From the server to the host.
fn downwards(mut client: TcpStream, mut server: UnixStream, swallow: &AtomicBool) -> std::io::Result<()> {
    let mut piece = vec![0; 65_536];
    loop {
        let read = server.read(&mut piece)?;
        if read == 0 {
            return client.shutdown(Shutdown::Both);
        }
        if swallow.load(Ordering::SeqCst) {
            // The server has answered, and so committed.
            let _ = client.shutdown(Shutdown::Both);
            return server.shutdown(Shutdown::Both);
        }
        client.write_all(&piece[..read])?;
    }
}
