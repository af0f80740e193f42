//! Sending a mail: one mail, one connection, one transaction, once.
//!
//! `mime` writes the mail, `dialogue` speaks SMTP (RFC 5321), and this file says
//! how a conversation is come by and what its end means. The one fact that
//! everything rests on is whether a byte of the mail itself was handed over,
//! after the server's 354. Before that nothing has happened at the server,
//! whatever was said. From the first such byte on, only the server's own answer
//! to the whole says what became of it.
//!
//! There is no pool, no queue and no second try in here. Not checked: that the
//! server delivers what it took.

mod dialogue;
mod mime;
#[cfg(test)]
mod tests;

use std::fmt;
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use countersign_domain::effect::Refusal;
use countersign_domain::egress::{HostName, address};
use countersign_domain::mail::{self, Mail};
use countersign_domain::retry::Transport;
use countersign_domain::secret::{Redactor, SecretName, SecretValue};
use countersign_domain::time::Timestamp;
use rustls::pki_types::CertificateDer;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

use super::why::NotSent;
use super::{Dispatched, DispatcherError, Inner, LONGEST_SEND, connect, tls};
use dialogue::{Conversation, Ended, Told};

/// When a server that said "not now" is asked again. Chosen: those that make
/// strangers wait do so for one to five minutes; attempts are few, and a rest
/// much longer than this outlives approvals.
const NOT_NOW: Duration = Duration::from_secs(60);

/// The server that mails go through.
#[derive(Debug, Clone)]
pub struct SmtpConfig {
    /// Its name; its certificate has to be for it.
    pub host: HostName,
    /// Its port.
    pub port: u16,
    /// How the connection is kept private.
    pub security: SmtpSecurity,
    /// As whom the host introduces itself; `None`: by its address.
    pub hello: Option<HostName>,
    /// How it logs in, if the server wants that. Never without TLS.
    pub login: Option<SmtpLogin>,
    /// Whether the server may be at a loopback or private address.
    pub allow_private: bool,
    /// Roots beside the bundled ones, DER, for this server alone.
    pub extra_roots: Vec<CertificateDer<'static>>,
}

/// How the connection to a mail server is kept private.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SmtpSecurity {
    /// TLS from the first byte (`smtps://`).
    Tls,
    /// STARTTLS, and nothing is said to a server that has none.
    StartTls,
    /// None. Taken only towards an address that is not public.
    Plain,
}

/// A name and a password.
#[derive(Clone)]
pub struct SmtpLogin {
    /// The name.
    pub user: String,
    /// The password, wiped when the last copy of the configuration goes.
    pub password: Arc<SecretValue>,
}

impl fmt::Debug for SmtpLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SmtpLogin").field("user", &self.user).field("password", &"[redacted]").finish()
    }
}

/// One mail, ready but for what only the sender adds.
#[derive(Debug, Clone)]
pub struct OutgoingMail {
    /// Checked against the grant it goes out under.
    pub mail: Arc<Mail>,
    /// Its `Message-ID` follows from this.
    pub provider_key: String,
    /// When this send was claimed.
    pub date: Timestamp,
    /// The longest that the send may take.
    pub send: Duration,
}

/// What a component is told that has a grant for mail, on a host that has none.
pub(super) fn no_server() -> Refusal {
    Refusal::NotGranted("this host sends no mail: its configuration has no section [smtp]".to_owned())
}

/// The sender of mails.
pub(super) struct Mailer {
    config: SmtpConfig,
    connector: TlsConnector,
    redactor: Option<Redactor>,
}

/// Why there is no answer to a mail.
enum Failed {
    /// It must not be sent.
    Refused(Refusal),
    /// No byte of the mail left.
    NotSent { why: String, again: Option<Duration> },
    /// Some byte of it may have left.
    Lost(&'static str),
}

impl From<NotSent> for Failed {
    fn from(why: NotSent) -> Failed {
        Failed::NotSent { why: why.to_string(), again: None }
    }
}

impl Mailer {
    pub(super) fn new(config: SmtpConfig) -> Result<Mailer, DispatcherError> {
        let connector = tls::connector(&config.extra_roots)?;
        let name = "smtp_password".parse::<SecretName>().ok();
        let redactor = name
            .zip(config.login.as_ref())
            .map(|(name, login)| Redactor::new(std::iter::once((&name, &*login.password))));
        Ok(Mailer { config, connector, redactor })
    }

    /// Sends a mail. `before_first_byte` is asked when the server is ready for
    /// the mail itself.
    pub(super) async fn send<F, Fut>(
        &self,
        inner: &Inner,
        outgoing: OutgoingMail,
        before_first_byte: F,
    ) -> Dispatched
    where
        F: FnOnce() -> Fut,
        Fut: Future<Output = bool>,
    {
        let sent = |transport, retry_after| Dispatched::Sent { transport, retry_after };
        match self.try_send(inner, &outgoing, before_first_byte).await {
            Ok(answer) => sent(Transport::Answered(answer), None),
            Err(Failed::Refused(refusal)) => Dispatched::Refused(refusal),
            Err(Failed::NotSent { why, again }) => sent(Transport::NotSent(why), again),
            Err(Failed::Lost(why)) if countersign_domain::planted::on("lost-mail-is-not-sent") => {
                sent(Transport::NotSent(why.to_owned()), None)
            }
            Err(Failed::Lost(why)) => sent(Transport::Lost(why.to_owned()), None),
        }
    }

    async fn try_send<F, Fut>(
        &self,
        inner: &Inner,
        outgoing: &OutgoingMail,
        before_first_byte: F,
    ) -> Result<countersign_domain::effect::Answer, Failed>
    where
        F: FnOnce() -> Fut,
        Fut: Future<Output = bool>,
    {
        let OutgoingMail { mail, provider_key, date, send } = outgoing;
        let started = Instant::now();
        let end = started + (*send).min(LONGEST_SEND);
        let message_id = mail::message_id(provider_key, &mail.from);
        let text = mime::write(mail, &message_id, *date);
        if !mime::is_clean(&text) {
            return Err(Failed::Refused(Refusal::InvalidMail("it cannot be written as a mail".to_owned())));
        }
        let mut conversation = self.open(inner, end.min(started + inner.config.connect), end).await?;
        if let Some(login) = &self.config.login {
            conversation.log_in(login, end).await.map_err(|ended| self.before(ended))?;
        }
        conversation
            .envelope(&mail.from, &mail.recipients(), text.len() as u64, end)
            .await
            .map_err(|ended| self.before(ended))?;
        match timeout_at(end, before_first_byte()).await {
            Ok(true) => {}
            Ok(false) => return Err(NotSent::Withdrawn.into()),
            Err(_) => return Err(NotSent::NoTimeLeft.into()),
        }
        // Asked now and not before the envelope: this is the last moment at
        // which going back leaves nothing behind.
        if conversation.is_over().await {
            return Err(NotSent::Broken.into());
        }
        let told = conversation.hand_over(&text, end).await.map_err(Failed::Lost)?;
        conversation.quit().await;
        let said = self.words(&told);
        match told.code {
            200..=299 => Ok(mail::accepted(&message_id, &said)),
            400..=599 => Ok(countersign_domain::effect::Answer {
                status: told.code,
                headers: Vec::new(),
                body: said.into_bytes(),
            }),
            _ => Err(Failed::Lost("the mail server's answer to the mail means nothing")),
        }
    }

    /// Opens a conversation and ends it again.
    pub(super) async fn greet(&self, inner: &Inner) -> Result<(), String> {
        let by = Instant::now() + inner.config.connect;
        match self.open(inner, by, by).await {
            Ok(conversation) => {
                conversation.quit().await;
                Ok(())
            }
            Err(Failed::Refused(refusal)) => Err(refusal.to_string()),
            Err(Failed::NotSent { why, .. }) => Err(why),
            Err(Failed::Lost(why)) => Err(why.to_owned()),
        }
    }

    /// A conversation with the server, introduced and private. `by`: when there
    /// has to be a connection; servers that let strangers wait do it after that.
    async fn open(&self, inner: &Inner, by: Instant, end: Instant) -> Result<Conversation, Failed> {
        let SmtpConfig { host, port, security, allow_private, .. } = &self.config;
        let addresses = connect::addresses(host, &*inner.resolver, by).await?;
        for ip in &addresses {
            if let Some(refusal) = judge(host, *ip, *allow_private, *security) {
                return Err(Failed::Refused(refusal));
            }
        }
        let tcp = connect::connect_tcp(&addresses, *port, by).await?;
        tcp.set_nodelay(true).map_err(|_| NotSent::Broken)?;
        let hello = match (&self.config.hello, tcp.local_addr()) {
            (Some(name), _) => name.to_string(),
            // RFC 5321 §4.1.3.
            (None, Ok(own)) if own.ip().to_canonical().is_ipv4() => {
                format!("[{}]", own.ip().to_canonical())
            }
            (None, Ok(own)) => format!("[IPv6:{}]", own.ip()),
            (None, Err(_)) => return Err(NotSent::Broken.into()),
        };
        let before = |ended| self.before(ended);
        match security {
            SmtpSecurity::Tls => {
                let stream = self.encrypt(tcp, by).await?;
                Conversation::greeted(stream, &hello, end).await.map_err(before)
            }
            SmtpSecurity::Plain => Conversation::greeted(tcp, &hello, end).await.map_err(before),
            SmtpSecurity::StartTls => {
                let tcp = Conversation::start_tls(tcp, &hello, end).await.map_err(before)?;
                let stream = self.encrypt(tcp, end).await?;
                // What was said before may have been said by anybody.
                Conversation::introduced(stream, &hello, end).await.map_err(before)
            }
        }
    }

    async fn encrypt(
        &self,
        tcp: TcpStream,
        by: Instant,
    ) -> Result<tokio_rustls::client::TlsStream<TcpStream>, NotSent> {
        let name = tls::server_name(&self.config.host).ok_or(NotSent::Certificate)?;
        match timeout_at(by, self.connector.connect(name, tcp)).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(connect::handshake_error(&error)),
            Err(_) => Err(NotSent::HandshakeTimeout),
        }
    }

    /// What an end before the mail itself means: nothing was sent. A server that
    /// refuses for good is quoted to the component; one that says "not now" is
    /// asked again.
    fn before(&self, ended: Ended) -> Failed {
        match ended {
            Ended::Broken(why) => Failed::NotSent { why: why.to_owned(), again: None },
            Ended::TooLarge(limit) => Failed::Refused(Refusal::BodyTooLarge(limit)),
            // About the host, not about this mail: its operator's to mend. Without
            // the words, which may repeat what it was told to log in.
            Ended::Unwelcome(step, told) => Failed::NotSent {
                why: format!("the mail server answered {step} with {}", told.code),
                again: Some(NOT_NOW),
            },
            Ended::Refused(step, told) if told.code >= 500 => {
                let said = self.words(&told);
                Failed::Refused(Refusal::Rejected(format!("{} {said} (to {step})", told.code)))
            }
            Ended::Refused(step, told) => Failed::NotSent {
                why: format!("the mail server answered {step} with {} {}", told.code, self.words(&told)),
                again: Some(NOT_NOW),
            },
        }
    }

    /// The server's words, without the password, should it have said that.
    fn words(&self, told: &Told) -> String {
        match &self.redactor {
            Some(redactor) => redactor.redact_text(&told.text).into_owned(),
            None => told.text.clone(),
        }
    }
}

/// Whether this address must not be connected to.
fn judge(host: &HostName, ip: IpAddr, allow_private: bool, security: SmtpSecurity) -> Option<Refusal> {
    if let Some(range) = address::refused(ip, allow_private) {
        return Some(Refusal::AddressProhibited(format!("the mail server {host} is at {ip}: {range}")));
    }
    if security == SmtpSecurity::Plain && address::blocked(ip).is_none() {
        let why = "a public address is spoken to over TLS only";
        return Some(Refusal::AddressProhibited(format!("the mail server {host} is at {ip}: {why}")));
    }
    None
}
