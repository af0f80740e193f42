//! A way to the provider that breaks at a chosen byte: so many bytes of a request go up, or so
//! many of its answer come down, and then the connection ends. Which, the path says
//! (`/keyed/cut-up-17`), and only the first time that it comes by.

use std::collections::HashSet;
use std::io::{ErrorKind, Read, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

/// The way.
pub struct Cutter {
    port: u16,
}

/// Where a path says that it breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    /// After so many bytes of the request.
    Up(usize),
    /// After so many bytes of the answer.
    Down(usize),
}

fn cut_of(path: &str) -> Option<Cut> {
    let (_, cut) = path.split_once("/cut-")?;
    let (way, bytes) = cut.split_once('-')?;
    let bytes = bytes.parse().ok()?;
    match way {
        "up" => Some(Cut::Up(bytes)),
        "down" => Some(Cut::Down(bytes)),
        _ => None,
    }
}

impl Cutter {
    /// A way to this address.
    pub fn to(address: String) -> Cutter {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let seen = Arc::new(Mutex::new(HashSet::new()));
        // Ends with the process.
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (address, seen) = (address.clone(), seen.clone());
                std::thread::spawn(move || drop(serve(client, &address, &seen)));
            }
        });
        Cutter { port }
    }

    /// Its port, for a grant.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `http://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

fn serve(mut client: TcpStream, address: &str, seen: &Mutex<HashSet<String>>) -> std::io::Result<()> {
    client.set_nodelay(true)?;
    loop {
        let Some(request) = whole_message(&mut client)? else { return Ok(()) };
        let line = String::from_utf8_lossy(&request);
        let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
        let first = seen.lock().unwrap_or_else(PoisonError::into_inner).insert(path.clone());
        let cut = cut_of(&path).filter(|_| first);
        let mut server = TcpStream::connect(address)?;
        if let Some(Cut::Up(bytes)) = cut {
            server.write_all(&request[..bytes.min(request.len())])?;
            server.shutdown(Shutdown::Both)?;
            return client.shutdown(Shutdown::Both);
        }
        server.write_all(&request)?;
        let answer = whole_message(&mut server)?.unwrap_or_default();
        if let Some(Cut::Down(bytes)) = cut {
            client.write_all(&answer[..bytes.min(answer.len())])?;
            return client.shutdown(Shutdown::Both);
        }
        client.write_all(&answer)?;
    }
}

/// A request or an answer with a length, as it comes; `None` at the end of the connection.
fn whole_message(from: &mut TcpStream) -> std::io::Result<Option<Vec<u8>>> {
    let mut message = Vec::new();
    let mut piece = [0; 4096];
    loop {
        if let Some(end) = message.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&message[..end]).to_lowercase();
            let length =
                head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
            if message.len() >= end + 4 + length.unwrap_or(0usize) {
                return Ok(Some(message));
            }
        }
        match from.read(&mut piece) {
            Ok(0) if message.is_empty() => return Ok(None),
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => message.extend_from_slice(&piece[..read]),
            Err(error) => return Err(error),
        }
    }
}
