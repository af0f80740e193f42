//! HTTP as bytes: one request per connection, every header as the test wrote it. A client
//! library would refuse to send half of what the surfaces have to be shown.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

/// How long a test waits for an answer before it counts as failed: longer than the longest wait
/// that a host can be asked for.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// What came back.
#[derive(Debug, Clone)]
pub struct Answer {
    /// HTTP status; 0 if the connection ended without one.
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    /// Decoded from chunks where it came in some.
    pub body: Vec<u8>,
}

impl Answer {
    /// The first header of that name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// A request as it goes out.
#[derive(Debug, Clone)]
pub struct Request {
    method: String,
    target: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Request {
    /// With nothing but the line.
    pub fn new(method: &str, target: &str) -> Request {
        Request { method: method.into(), target: target.into(), headers: Vec::new(), body: Vec::new() }
    }

    /// With one more header; twice the same name means twice on the wire.
    pub fn header(mut self, name: &str, value: &str) -> Request {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// With a body of this type, unless a type was set already.
    pub fn body(mut self, media_type: &str, body: impl Into<Vec<u8>>) -> Request {
        self.body = body.into();
        if self.has("content-type") { self } else { self.header("Content-Type", media_type) }
    }

    fn has(&self, name: &str) -> bool {
        self.headers.iter().any(|(known, _)| known.eq_ignore_ascii_case(name))
    }

    fn bytes(&self, address: &str) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, self.target);
        if !self.has("host") {
            head.push_str(&format!("Host: {address}\r\n"));
        }
        if !self.has("connection") {
            head.push_str("Connection: close\r\n");
        }
        if !self.has("content-length") && !self.has("transfer-encoding") {
            head.push_str(&format!("Content-Length: {}\r\n", self.body.len()));
        }
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        [head.into_bytes(), self.body.clone()].concat()
    }

    /// Writes it to a connection that is there, and reads nothing.
    ///
    /// # Errors
    /// What broke the connection.
    pub fn write(&self, to: &mut TcpStream) -> std::io::Result<()> {
        let address = to.peer_addr()?.to_string();
        to.write_all(&self.bytes(&address))
    }

    /// Sends it and reads the whole answer.
    ///
    /// # Errors
    /// What broke the connection: a host that was killed, for instance.
    pub fn send(&self, address: &str) -> std::io::Result<Answer> {
        read_answer(BufReader::new(self.begin(address)?))
    }

    /// Sends it and leaves the answer to the caller, or to nobody.
    ///
    /// # Errors
    /// If there is no connection.
    pub fn begin(&self, address: &str) -> std::io::Result<TcpStream> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        match stream.write_all(&self.bytes(address)) {
            // Answered before it read everything: too large, most likely.
            Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {}
            other => other?,
        }
        Ok(stream)
    }
}

/// Sends bytes that need not be HTTP, and reads what there is until the other side closes.
pub fn raw(address: &str, bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(bytes)?;
    let _ = stream.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    Ok(answer)
}

/// Status line and headers.
pub fn read_head(reader: &mut impl BufRead) -> std::io::Result<Answer> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| std::io::Error::new(ErrorKind::UnexpectedEof, "no answer"))?;
    let mut headers = Vec::new();
    loop {
        line.clear();
        reader.read_line(&mut line)?;
        match line.trim_end().split_once(':') {
            Some((name, value)) => headers.push((name.to_ascii_lowercase(), value.trim().to_owned())),
            None => return Ok(Answer { status, headers, body: Vec::new() }),
        }
    }
}

fn read_answer(mut reader: impl BufRead) -> std::io::Result<Answer> {
    let mut answer = read_head(&mut reader)?;
    if answer.header("transfer-encoding").is_some() {
        while let Some(chunk) = read_chunk(&mut reader)? {
            answer.body.extend(chunk);
        }
    } else if let Some(length) = answer.header("content-length").and_then(|text| text.parse().ok()) {
        answer.body = vec![0; length];
        reader.read_exact(&mut answer.body)?;
    } else {
        reader.read_to_end(&mut answer.body)?;
    }
    Ok(answer)
}

/// The next chunk of a chunked body; `None` at its end.
pub fn read_chunk(reader: &mut impl BufRead) -> std::io::Result<Option<Vec<u8>>> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let length = usize::from_str_radix(line.trim_end(), 16)
        .map_err(|_| std::io::Error::new(ErrorKind::UnexpectedEof, "cut in the middle of a chunked body"))?;
    let mut chunk = vec![0; length + 2];
    reader.read_exact(&mut chunk)?;
    chunk.truncate(length);
    Ok((length > 0).then_some(chunk))
}
