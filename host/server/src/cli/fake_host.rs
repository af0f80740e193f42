//! For tests: something that answers like a host, once per answer, and keeps
//! what it was asked.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::thread::{self, JoinHandle};

use super::client::Client;
use super::discover::Found;
use super::paint::Paint;
use super::session::Session;

/// An answer in JSON.
pub fn answer(status: u16, body: &str) -> String {
    format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
}

/// Gives these answers in order, one per connection; what was asked, head and
/// body, comes out of the thread.
pub fn host(answers: Vec<String>) -> (Client, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let served = thread::spawn(move || {
        let mut asked = Vec::new();
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let (mut head, mut length) = (String::new(), 0);
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).unwrap();
                if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                head.push_str(&line);
                if line == "\r\n" || line.is_empty() {
                    break;
                }
            }
            if head.contains("100-continue") {
                stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").unwrap();
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            asked.push(head + &String::from_utf8(body).unwrap());
            stream.write_all(answer.as_bytes()).unwrap();
        }
        asked
    });
    (Client::new(Found { url, token: "secret".into(), local: true }), served)
}

/// A session with it.
pub fn session(answers: Vec<String>) -> (Session, JoinHandle<Vec<String>>) {
    let (client, served) = host(answers);
    (Session { client, json: true, paint: Paint::PLAIN }, served)
}
