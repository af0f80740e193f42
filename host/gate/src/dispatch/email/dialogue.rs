//! SMTP as a client: one command, one answer, in order, nothing ahead of time.
//!
//! Written here and not taken from a mail library, because everything hangs on
//! knowing how far a transaction came when it ended: such libraries report that
//! it failed. What the server says is read within limits, and only as a number
//! and a line of text.
//!
//! May not: say anything that has not been checked. Addresses are of the type
//! that has no room for a second command, the mail itself is one that `mime` has
//! looked over, and a login is encoded.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use countersign_domain::grant::EmailAddress;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use zeroize::Zeroizing;

use super::SmtpLogin;

/// Bytes of one answer, all its lines. RFC 5321 §4.5.3.1.5 gives a line 512;
/// some servers tell more, none tells a book.
const MAX_ANSWER: usize = 16 * 1024;
/// Characters of an answer's text that are kept.
const MAX_TEXT: usize = 500;
/// How long the farewell may take. Nothing depends on it.
const FAREWELL: std::time::Duration = std::time::Duration::from_secs(1);

/// What a conversation is held over.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// What a server said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Told {
    /// Three digits.
    pub(super) code: u16,
    /// One line, printable.
    pub(super) text: String,
}

/// Why a conversation ended before the mail was handed over.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// It broke, or the server does not speak SMTP.
    Broken(&'static str),
    /// The server does not want to speak with this host at all.
    Unwelcome(&'static str, Told),
    /// The server does not want this sender, recipient or mail.
    Refused(String, Told),
    /// The server takes mails up to this many bytes.
    TooLarge(u64),
}

/// A conversation with a server that has been introduced to.
pub(super) struct Conversation<S = Box<dyn Stream>> {
    io: S,
    /// Read, and not understood yet.
    heard: Vec<u8>,
    can: Capabilities,
}

#[derive(Debug, Default)]
struct Capabilities {
    start_tls: bool,
    /// `AUTH PLAIN`, `AUTH LOGIN`.
    plain: bool,
    login: bool,
    /// `SIZE`: named, and the most, if it said one.
    size: Option<Option<u64>>,
}

impl Conversation {
    /// Waits for the server's greeting and introduces the host.
    pub(super) async fn greeted(
        stream: impl Stream + 'static,
        hello: &str,
        by: Instant,
    ) -> Result<Conversation, Ended> {
        let mut conversation = Conversation::over(Box::new(stream) as Box<dyn Stream>);
        conversation.greeting(by).await?;
        conversation.introduce(hello, by).await?;
        Ok(conversation)
    }

    /// Introduces the host to a server that has greeted before.
    pub(super) async fn introduced(
        stream: impl Stream + 'static,
        hello: &str,
        by: Instant,
    ) -> Result<Conversation, Ended> {
        let mut conversation = Conversation::over(Box::new(stream) as Box<dyn Stream>);
        conversation.introduce(hello, by).await?;
        Ok(conversation)
    }

    /// Asks a server for TLS. A server without it hears nothing more, and one
    /// that said more than it was asked is not believed: whatever comes in plain
    /// after its answer may be anybody's.
    pub(super) async fn start_tls(stream: TcpStream, hello: &str, by: Instant) -> Result<TcpStream, Ended> {
        let mut conversation = Conversation::over(stream);
        conversation.greeting(by).await?;
        conversation.introduce(hello, by).await?;
        if !conversation.can.start_tls {
            return Err(Ended::Broken(
                "the mail server offers no STARTTLS, and without TLS it is told nothing",
            ));
        }
        let told = conversation.command("STARTTLS", by).await?;
        if told.code != 220 {
            return Err(Ended::Unwelcome("STARTTLS", told));
        }
        if !conversation.heard.is_empty() {
            return Err(Ended::Broken("the mail server spoke out of turn before TLS"));
        }
        Ok(conversation.io)
    }
}

impl<S: Stream> Conversation<S> {
    fn over(io: S) -> Conversation<S> {
        Conversation { io, heard: Vec::new(), can: Capabilities::default() }
    }

    async fn greeting(&mut self, by: Instant) -> Result<(), Ended> {
        let (told, _) = self.answer(by).await.map_err(Ended::Broken)?;
        if told.code == 220 { Ok(()) } else { Err(Ended::Unwelcome("the connection", told)) }
    }

    async fn introduce(&mut self, hello: &str, by: Instant) -> Result<(), Ended> {
        self.say(&format!("EHLO {hello}"), by).await?;
        let (told, lines) = self.answer(by).await.map_err(Ended::Broken)?;
        if told.code != 250 {
            return Err(Ended::Unwelcome("EHLO", told));
        }
        self.can = Capabilities::read(&lines);
        Ok(())
    }

    /// Logs in. Called over TLS only; the configuration sees to that.
    pub(super) async fn log_in(&mut self, login: &SmtpLogin, by: Instant) -> Result<(), Ended> {
        let SmtpLogin { user, password } = login;
        let encoded = |bytes: &[u8]| Zeroizing::new(STANDARD.encode(bytes));
        let told = if self.can.plain {
            // RFC 4616.
            let both = Zeroizing::new(format!("\0{user}\0{}", password.expose()));
            let line = Zeroizing::new(format!("AUTH PLAIN {}", *encoded(both.as_bytes())));
            self.command(&line, by).await?
        } else if self.can.login {
            let mut told = self.command("AUTH LOGIN", by).await?;
            for part in [user.as_bytes(), password.expose().as_bytes()] {
                if told.code != 334 {
                    break;
                }
                told = self.command(&encoded(part), by).await?;
            }
            told
        } else {
            return Err(Ended::Broken("the mail server offers neither AUTH PLAIN nor AUTH LOGIN"));
        };
        if told.code == 235 { Ok(()) } else { Err(Ended::Unwelcome("the login", told)) }
    }

    /// Says who sends to whom, and asks for the mail to be taken. If one
    /// recipient is refused, none gets it: the mail was approved for all.
    pub(super) async fn envelope(
        &mut self,
        from: &EmailAddress,
        recipients: &[&EmailAddress],
        bytes: u64,
        by: Instant,
    ) -> Result<(), Ended> {
        let mut mail = format!("MAIL FROM:<{from}>");
        if let Some(limit) = self.can.size {
            if let Some(limit) = limit.filter(|limit| bytes > *limit) {
                return Err(Ended::TooLarge(limit));
            }
            mail.push_str(&format!(" SIZE={bytes}"));
        }
        self.agree(&mail, "MAIL FROM", 200..300, by).await?;
        for recipient in recipients {
            let line = format!("RCPT TO:<{recipient}>");
            self.agree(&line, &line, 200..300, by).await?;
        }
        self.agree("DATA", "DATA", 354..355, by).await
    }

    async fn agree(
        &mut self,
        line: &str,
        step: &str,
        wanted: std::ops::Range<u16>,
        by: Instant,
    ) -> Result<(), Ended> {
        let told = self.command(line, by).await?;
        match told.code {
            code if wanted.contains(&code) => Ok(()),
            400..=599 => Err(Ended::Refused(step.to_owned(), told)),
            _ => Err(Ended::Broken("the mail server's answer means nothing")),
        }
    }

    /// Whether the server has hung up or spoken unasked.
    pub(super) async fn is_over(&mut self) -> bool {
        if !self.heard.is_empty() {
            return true;
        }
        let io = &mut self.io;
        poll_fn(|cx| {
            let mut byte = [0];
            let polled = Pin::new(&mut *io).poll_read(cx, &mut ReadBuf::new(&mut byte));
            Poll::Ready(polled.is_ready())
        })
        .await
    }

    /// Hands over the mail and waits for the answer to it. `text` ends with a
    /// line break and has no other than `\r\n`.
    ///
    /// # Errors
    /// There is no answer. Some part of the mail may have left, or all of it.
    pub(super) async fn hand_over(&mut self, text: &[u8], by: Instant) -> Result<Told, &'static str> {
        let ended = stuffed(text);
        let handed = async {
            self.io.write_all(&ended).await?;
            self.io.flush().await
        };
        match timeout_at(by, handed).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err("the connection ended while the mail was handed over"),
            Err(_) => return Err("the time for the send was over while the mail was handed over"),
        }
        match self.answer(by).await {
            Ok((told, _)) => Ok(told),
            Err(TIME) => Err("the mail was handed over, and no answer came in time"),
            Err(_) => Err("the mail was handed over, and the connection ended without an answer"),
        }
    }

    /// Takes leave, as servers like it.
    pub(super) async fn quit(mut self) {
        let by = Instant::now() + FAREWELL;
        let farewell = async {
            self.io.write_all(b"QUIT\r\n").await?;
            self.io.shutdown().await
        };
        // The mail is with the server whatever becomes of this.
        let _ = timeout_at(by, farewell).await;
    }

    async fn command(&mut self, line: &str, by: Instant) -> Result<Told, Ended> {
        self.say(line, by).await?;
        let (told, _) = self.answer(by).await.map_err(Ended::Broken)?;
        Ok(told)
    }

    async fn say(&mut self, line: &str, by: Instant) -> Result<(), Ended> {
        // An answer that is there before its question is not one to it.
        if !self.heard.is_empty() {
            return Err(Ended::Broken("the mail server spoke out of turn"));
        }
        let said = Zeroizing::new(format!("{line}\r\n"));
        let saying = async {
            self.io.write_all(said.as_bytes()).await?;
            self.io.flush().await
        };
        match timeout_at(by, saying).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Ended::Broken(CUT)),
            Err(_) => Err(Ended::Broken(TIME)),
        }
    }

    /// Reads one answer: its lines with their texts, and the last line's code.
    async fn answer(&mut self, by: Instant) -> Result<(Told, Vec<String>), &'static str> {
        let mut lines: Vec<String> = Vec::new();
        let mut bytes = 0;
        loop {
            let line = self.line(by, &mut bytes).await?;
            let digits = line.get(..3).filter(|digits| digits.iter().all(u8::is_ascii_digit));
            let code = digits.and_then(|digits| str::from_utf8(digits).ok()?.parse::<u16>().ok());
            let (Some(code), between) = (code, line.get(3).copied()) else { return Err(NO_SMTP) };
            lines.push(printable(line.get(4..).unwrap_or_default()));
            match between {
                Some(b'-') => {}
                None | Some(b' ') => {
                    let mut text = lines.join(" ");
                    text.truncate(text.floor_char_boundary(MAX_TEXT));
                    return Ok((Told { code, text }, lines));
                }
                Some(_) => return Err(NO_SMTP),
            }
        }
    }

    /// One line without its end. `bytes`: of this answer so far.
    async fn line(&mut self, by: Instant, bytes: &mut usize) -> Result<Vec<u8>, &'static str> {
        loop {
            if let Some(end) = self.heard.iter().position(|b| *b == b'\n') {
                let mut line: Vec<u8> = self.heard.drain(..=end).collect();
                *bytes += line.len();
                line.pop();
                if line.last() == Some(&b'\r') {
                    line.pop();
                }
                return if *bytes <= MAX_ANSWER {
                    Ok(line)
                } else {
                    Err("the mail server's answer is endless")
                };
            }
            if *bytes + self.heard.len() > MAX_ANSWER {
                return Err("the mail server's answer is endless");
            }
            let mut chunk = [0; 2048];
            match timeout_at(by, self.io.read(&mut chunk)).await {
                Ok(Ok(0) | Err(_)) => return Err(CUT),
                Ok(Ok(count)) => self.heard.extend_from_slice(&chunk[..count]),
                Err(_) => return Err(TIME),
            }
        }
    }
}

const CUT: &str = "the mail server ended the connection";
const TIME: &str = "the mail server did not answer in time";
const NO_SMTP: &str = "what answers there is no mail server";

impl Capabilities {
    /// From the lines of an answer to EHLO; the first is the server's name.
    fn read(lines: &[String]) -> Capabilities {
        let mut can = Capabilities::default();
        for line in lines.iter().skip(1) {
            let upper = line.to_ascii_uppercase();
            let mut words = upper.split_ascii_whitespace();
            match words.next() {
                Some("STARTTLS") => can.start_tls = true,
                Some("AUTH") => words.for_each(|word| match word {
                    "PLAIN" => can.plain = true,
                    "LOGIN" => can.login = true,
                    _ => {}
                }),
                // RFC 1870 §3: 0 means no fixed limit.
                Some("SIZE") => {
                    can.size = Some(words.next().and_then(|n| n.parse().ok()).filter(|n| *n > 0));
                }
                _ => {}
            }
        }
        can
    }
}

/// RFC 5321 §4.5.2: a dot at the start of a line is doubled; a dot alone ends.
fn stuffed(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + 64);
    for line in text.split_inclusive(|b| *b == b'\n') {
        if line.first() == Some(&b'.') {
            out.push(b'.');
        }
        out.extend_from_slice(line);
    }
    out.extend_from_slice(b".\r\n");
    out
}

fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn k01_a_line_that_starts_with_a_dot_never_ends_a_mail() {
        assert_eq!(stuffed(b"a\r\n.\r\n..b\r\n"), b"a\r\n..\r\n...b\r\n.\r\n");
        assert_eq!(stuffed(b".\r\n"), b"..\r\n.\r\n");
    }

    #[test]
    fn what_a_server_can_is_read_from_its_lines() {
        let lines = ["mx.example.com", "size 1000", "AUTH=LOGIN", "auth login plain", "8BITMIME"];
        let can = Capabilities::read(&lines.map(str::to_owned));
        assert_eq!((can.start_tls, can.plain, can.login, can.size), (false, true, true, Some(Some(1000))));
        let can = Capabilities::read(&["STARTTLS", "SIZE 0", "STARTTLS"].map(str::to_owned));
        assert_eq!((can.start_tls, can.size), (true, Some(None)));
        assert!(!Capabilities::read(&["STARTTLS".to_owned()]).start_tls, "that is its name");
    }
}
