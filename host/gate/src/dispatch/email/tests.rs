//! Mails to a server of our own, over real sockets. What was handed over is
//! judged by what the server noted, not by what the sender says.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use countersign_domain::effect::{Answer, Refusal};
use countersign_domain::grant::Grant;
use countersign_domain::mail::{Attachment, Mail, Mailbox, OutboundMail, check};
use countersign_domain::retry::Transport;
use countersign_domain::secret::SecretValue;
use countersign_domain::time::Timestamp;
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use super::{OutgoingMail, SmtpConfig, SmtpLogin, SmtpSecurity, judge};
use crate::dispatch::{Dispatched, Dispatcher, DispatcherConfig, Parcel, Secrets, SystemResolver};

const KEY: &str = "tool-action:00000000-0000-8000-8000-000000000001:1";
const PASSWORD: &str = "hunter2-c4n4ry-password";

/// How the server behaves.
#[derive(Clone, Default)]
struct Script {
    /// Instead of the usual answer to a command that begins with this.
    answers: Vec<(&'static str, &'static str)>,
    /// Hangs up instead of answering this.
    hangs_up_at: Option<&'static str>,
    /// Instead of 250 to the mail; `None`: hangs up.
    to_the_mail: Option<&'static str>,
    hangs_up_after_the_mail: bool,
    /// Never answers to the mail.
    silent: bool,
    /// Reads only so many lines of the mail, then hangs up.
    lines: Option<usize>,
    tls: Option<(TlsAcceptor, SmtpSecurity)>,
}

/// What the server noted.
#[derive(Debug, Default, Clone)]
struct Noted {
    commands: Vec<String>,
    /// As they came, dots still doubled.
    lines: Vec<String>,
    whole: usize,
}

impl Noted {
    fn count(&self, verb: &str) -> usize {
        self.commands.iter().filter(|line| line.starts_with(verb)).count()
    }
}

struct Sink {
    port: u16,
    noted: Arc<Mutex<Noted>>,
    ended: watch::Receiver<usize>,
}

impl Sink {
    async fn start(script: Script) -> Sink {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let noted: Arc<Mutex<Noted>> = Arc::default();
        let (ending, ended) = watch::channel(0);
        let keeps = noted.clone();
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                match script.tls.clone() {
                    Some((acceptor, SmtpSecurity::Tls)) => {
                        if let Ok(stream) = acceptor.accept(tcp).await {
                            talk(BufReader::new(stream), &script, &keeps, true).await;
                        }
                    }
                    _ => {
                        if let Some(stream) = talk(BufReader::new(tcp), &script, &keeps, true).await
                            && let Some((acceptor, _)) = &script.tls
                            && let Ok(stream) = acceptor.accept(stream.into_inner()).await
                        {
                            talk(BufReader::new(stream), &script, &keeps, false).await;
                        }
                    }
                }
                ending.send_modify(|count| *count += 1);
            }
        });
        Sink { port, noted, ended }
    }

    /// What was noted, when the conversation is over on the server's side, too.
    async fn noted(&self) -> Noted {
        self.ended.clone().wait_for(|count| *count > 0).await.unwrap();
        self.noted.lock().unwrap().clone()
    }
}

/// One conversation; gives the stream back where TLS is to follow.
async fn talk<S: AsyncRead + AsyncWrite + Unpin>(
    mut io: BufReader<S>,
    script: &Script,
    noted: &Mutex<Noted>,
    greets: bool,
) -> Option<BufReader<S>> {
    if greets {
        if script.hangs_up_at == Some("greeting") {
            return None;
        }
        let greeting =
            script.answers.iter().find(|(step, _)| *step == "greeting").map_or("220 sink", |a| a.1);
        io.write_all(format!("{greeting}\r\n").as_bytes()).await.ok()?;
    }
    loop {
        let mut line = String::new();
        if io.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        let line = line.strip_suffix("\r\n")?.to_owned();
        noted.lock().unwrap().commands.push(line.clone());
        if script.hangs_up_at.is_some_and(|at| line.starts_with(at)) {
            return None;
        }
        let own = script.answers.iter().find(|(step, _)| line.starts_with(step)).map(|(_, answer)| *answer);
        let usual = match line.split(' ').next()? {
            "EHLO" if script.tls.is_some() => "250-sink\r\n250-STARTTLS\r\n250 AUTH LOGIN PLAIN",
            "EHLO" => "250-sink\r\n250 SIZE 100000",
            "AUTH" => "235 welcome",
            "STARTTLS" => "220 go on",
            "DATA" => "354 go on",
            "QUIT" => return None,
            _ => "250 fine",
        };
        io.write_all(format!("{}\r\n", own.unwrap_or(usual)).as_bytes()).await.ok()?;
        if line == "STARTTLS" {
            return Some(io);
        }
        if line == "DATA" && own.is_none_or(|answer| answer.starts_with("354")) {
            take(&mut io, script, noted).await?;
        }
    }
}

async fn take<S: AsyncRead + AsyncWrite + Unpin>(
    io: &mut BufReader<S>,
    script: &Script,
    noted: &Mutex<Noted>,
) -> Option<()> {
    loop {
        let mut line = String::new();
        if io.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        if line == ".\r\n" {
            break;
        }
        let mut noted = noted.lock().unwrap();
        noted.lines.push(line.trim_end_matches("\r\n").to_owned());
        if script.lines.is_some_and(|most| noted.lines.len() >= most) {
            return None;
        }
    }
    noted.lock().unwrap().whole += 1;
    if script.silent {
        // Until the sender gives up.
        let mut line = String::new();
        while io.read_line(&mut line).await.is_ok_and(|count| count > 0) {}
        return None;
    }
    if script.hangs_up_after_the_mail {
        return None;
    }
    let answer = script.to_the_mail.unwrap_or("250 2.0.0 queued as 42");
    io.write_all(format!("{answer}\r\n").as_bytes()).await.ok()
}

fn config(port: u16) -> SmtpConfig {
    SmtpConfig {
        host: "127.0.0.1".parse().unwrap(),
        port,
        security: SmtpSecurity::Plain,
        hello: None,
        login: None,
        allow_private: true,
        extra_roots: vec![],
    }
}

fn sender(smtp: SmtpConfig) -> Dispatcher {
    let config = DispatcherConfig { smtp: Some(smtp), ..DispatcherConfig::default() };
    Dispatcher::new(config, Arc::new(SystemResolver), Arc::new(Secrets::default())).unwrap()
}

fn checked(asked: &OutboundMail) -> Arc<Mail> {
    let grant: Grant = "[email]\nfrom = \"billing@example.com\"\nrecipients = [\"*@example.com\", \"a@b.c\"]"
        .parse()
        .unwrap();
    Arc::new(check(asked, grant.email().unwrap()).unwrap())
}

fn asked() -> OutboundMail {
    let to = |address: &str| vec![Mailbox { name: None, address: address.into() }];
    OutboundMail {
        to: to("ada@example.com"),
        cc: to("a@b.c"),
        bcc: to("hidden@example.com"),
        subject: "Hello".into(),
        text: Some("first\n.\nMAIL FROM:<x>\nQUIT\n".into()),
        html: None,
        attachments: vec![Attachment {
            name: "dots.txt".into(),
            media_type: "text/plain".into(),
            content: b"\r\n.\r\nRSET\r\n".to_vec(),
        }],
    }
}

fn outgoing(send: Duration) -> Parcel {
    Parcel::Mail(OutgoingMail {
        mail: checked(&asked()),
        provider_key: KEY.into(),
        date: Timestamp::from_micros(1_790_000_000_000_000),
        send,
    })
}

/// Sends to a server with this script; what the sender says and the server saw.
async fn sent(script: Script) -> (Dispatched, Noted) {
    let sink = Sink::start(script).await;
    let dispatched =
        sender(config(sink.port)).post(outgoing(Duration::from_secs(20)), || async { true }).await;
    (dispatched, sink.noted().await)
}

#[track_caller]
fn transport(dispatched: Dispatched) -> Transport {
    match dispatched {
        Dispatched::Sent { transport, .. } => transport,
        refused => panic!("{refused:?}"),
    }
}

#[tokio::test]
async fn k01_a_mail_is_one_mail_one_rcpt_per_recipient_and_one_data() {
    let (dispatched, noted) = sent(Script::default()).await;
    let Transport::Answered(answer) = transport(dispatched) else { panic!() };
    assert_eq!((answer.status, answer.body.as_slice()), (250, &b"2.0.0 queued as 42"[..]));
    let id = "<tool-action.00000000-0000-8000-8000-000000000001.1@example.com>";
    assert_eq!(answer.header("message-id"), Some(id));
    assert_eq!((noted.count("MAIL"), noted.count("RCPT"), noted.count("DATA")), (1, 3, 1));
    let size = noted.lines.iter().map(|line| line.len() + 2).sum::<usize>();
    assert_eq!(
        noted.commands[1..],
        [
            format!("MAIL FROM:<billing@example.com> SIZE={size}"),
            "RCPT TO:<ada@example.com>".into(),
            "RCPT TO:<a@b.c>".into(),
            "RCPT TO:<hidden@example.com>".into(),
            "DATA".into(),
            "QUIT".into(),
        ]
    );
    assert_eq!(noted.commands[0], "EHLO [127.0.0.1]");
    assert!(noted.lines.contains(&format!("Message-ID: {id}")));
    assert!(!noted.lines.iter().any(|line| line.contains("hidden") || line.starts_with('.')));
    assert_eq!(noted.whole, 1);
}

#[tokio::test]
async fn k02_an_end_before_the_first_byte_of_the_mail_hands_nothing_over_and_is_no_doubt() {
    let answers = |step, answer| Script { answers: vec![(step, answer)], ..Script::default() };
    let hangs = |at| Script { hangs_up_at: Some(at), ..Script::default() };
    for (name, script) in [
        ("hangs up at once", hangs("greeting")),
        ("no smtp", answers("greeting", "HTTP/1.1 200 OK")),
        ("not now", answers("greeting", "421 busy")),
        ("unwelcome", answers("greeting", "554 no")),
        ("ehlo", hangs("EHLO")),
        ("mail", hangs("MAIL")),
        ("rcpt", hangs("RCPT TO:<a@b.c>")),
        ("data", hangs("DATA")),
        ("mail later", answers("MAIL", "451 later")),
        ("greylisted", answers("RCPT TO:<hidden", "450 4.2.0 greylisted")),
        ("data later", answers("DATA", "421 later")),
        ("no 354", answers("DATA", "250 what?")),
        ("more than asked", answers("DATA", "354 go on\r\n250 and I took it")),
        ("out of turn", answers("MAIL", "250 fine\r\n250 fine\r\n250 fine")),
    ] {
        let (dispatched, noted) = sent(script).await;
        assert!(matches!(transport(dispatched), Transport::NotSent(_)), "{name}");
        assert_eq!((noted.lines.len(), noted.whole), (0, 0), "{name}: {noted:?}");
    }
    for (name, script, said) in [
        ("sender", answers("MAIL", "550 5.7.1 not you"), "550 5.7.1 not you (to MAIL FROM)"),
        ("recipient", answers("RCPT TO:<a@b.c>", "550 nobody"), "550 nobody (to RCPT TO:<a@b.c>)"),
        ("data", answers("DATA", "554-no\r\n554 mail"), "554 no mail (to DATA)"),
    ] {
        let (dispatched, noted) = sent(script).await;
        assert_eq!(dispatched, Dispatched::Refused(Refusal::Rejected(said.into())), "{name}");
        assert_eq!((noted.lines.len(), noted.whole), (0, 0), "{name}: {noted:?}");
    }
    // Servers that make strangers wait do so for minutes.
    let (dispatched, _) = sent(answers("RCPT", "450 4.2.0 greylisted")).await;
    let Dispatched::Sent { retry_after: Some(rest), .. } = dispatched else { panic!("{dispatched:?}") };
    assert_eq!(rest, Duration::from_secs(60));
    let (dispatched, noted) = sent(answers("EHLO", "250-sink\r\n250 SIZE 100")).await;
    assert_eq!(dispatched, Dispatched::Refused(Refusal::BodyTooLarge(100)));
    assert_eq!(noted.count("MAIL"), 0);
}

#[tokio::test]
async fn k02_an_end_after_the_first_byte_of_the_mail_is_unknown_unless_the_server_answered_it() {
    for (name, script) in [
        ("in the middle", Script { lines: Some(3), ..Script::default() }),
        ("after the last dot", Script { hangs_up_after_the_mail: true, ..Script::default() }),
        ("no smtp", Script { to_the_mail: Some("what?"), ..Script::default() }),
        ("means nothing", Script { to_the_mail: Some("354 go on"), ..Script::default() }),
    ] {
        let (dispatched, noted) = sent(script).await;
        assert!(matches!(transport(dispatched), Transport::Lost(_)), "{name}");
        assert!(!noted.lines.is_empty() && noted.count("DATA") == 1, "{name}: {noted:?}");
    }
    for (said, status) in [("451 disk full", 451), ("552 5.3.4 too big", 552)] {
        let (dispatched, _) = sent(Script { to_the_mail: Some(said), ..Script::default() }).await;
        let answer = Answer { status, headers: vec![], body: said.as_bytes()[4..].to_vec() };
        assert_eq!(transport(dispatched), Transport::Answered(answer));
    }
}

#[tokio::test]
async fn k02_an_answer_that_never_comes_is_unknown_when_the_time_is_over() {
    let sink = Sink::start(Script { silent: true, ..Script::default() }).await;
    let dispatched =
        sender(config(sink.port)).post(outgoing(Duration::from_millis(1500)), || async { true }).await;
    let Transport::Lost(why) = transport(dispatched) else { panic!() };
    assert!(why.contains("no answer came in time"), "{why}");
    assert_eq!(sink.noted().await.whole, 1);
}

#[tokio::test]
async fn p1_whoever_looks_last_and_says_no_hands_nothing_over() {
    let sink = Sink::start(Script::default()).await;
    let dispatched =
        sender(config(sink.port)).post(outgoing(Duration::from_secs(20)), || async { false }).await;
    assert!(matches!(transport(dispatched), Transport::NotSent(_)));
    let noted = sink.noted().await;
    assert_eq!((noted.count("DATA"), noted.lines.len()), (1, 0), "it was asked at the last moment");
}

/// A certificate for loopback, as a server's and as a root.
fn certificate() -> (TlsAcceptor, rustls::pki_types::CertificateDer<'static>) {
    let key = KeyPair::generate().unwrap();
    let made = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().self_signed(&key).unwrap();
    let config =
        rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.der().clone()], PrivateKeyDer::try_from(key.serialize_der()).unwrap())
            .unwrap();
    (TlsAcceptor::from(Arc::new(config)), made.der().clone())
}

fn with_login(port: u16, security: SmtpSecurity) -> SmtpConfig {
    let password = Arc::new(SecretValue::new(PASSWORD.into()).unwrap());
    SmtpConfig { security, login: Some(SmtpLogin { user: "me".into(), password }), ..config(port) }
}

#[tokio::test]
async fn c01_a_password_is_said_inside_tls_only_and_to_the_named_server_only() {
    for security in [SmtpSecurity::Tls, SmtpSecurity::StartTls] {
        let (acceptor, root) = certificate();
        let script = Script { tls: Some((acceptor, security)), ..Script::default() };
        let sink = Sink::start(script.clone()).await;
        let mut smtp = with_login(sink.port, security);
        smtp.extra_roots = vec![root];
        let dispatched = sender(smtp).post(outgoing(Duration::from_secs(20)), || async { true }).await;
        assert!(matches!(transport(dispatched), Transport::Answered(_)));
        let noted = sink.noted().await;
        let first = noted.commands.iter().position(|line| line.starts_with("AUTH")).unwrap();
        let tls = noted.commands.iter().position(|line| line == "STARTTLS").unwrap_or(0);
        assert!(first > tls, "{noted:?}");
        assert_eq!(noted.count("AUTH PLAIN AG1lAGh1bnRlcjItYzRuNHJ5LXBhc3N3b3Jk"), 1);
        assert_eq!((noted.count("MAIL"), noted.whole), (1, 1));

        // The same server without a certificate that anybody vouches for.
        let sink = Sink::start(script).await;
        let dispatched = sender(with_login(sink.port, security))
            .post(outgoing(Duration::from_secs(20)), || async { true })
            .await;
        assert!(matches!(transport(dispatched), Transport::NotSent(_)));
        let noted = sink.noted().await;
        assert_eq!((noted.count("AUTH"), noted.count("MAIL")), (0, 0), "{noted:?}");
    }
}

#[tokio::test]
async fn k01_a_server_without_starttls_or_with_words_before_it_is_told_nothing() {
    let (acceptor, root) = certificate();
    let tls = Some((acceptor, SmtpSecurity::StartTls));
    for (name, answer) in [
        ("stripped", ("EHLO", "250-sink\r\n250 AUTH PLAIN")),
        ("refused", ("STARTTLS", "454 not now")),
        ("injected", ("STARTTLS", "220 go on\r\n250-sink\r\n250 AUTH PLAIN")),
    ] {
        let sink = Sink::start(Script { answers: vec![answer], tls: tls.clone(), ..Script::default() }).await;
        let mut smtp = with_login(sink.port, SmtpSecurity::StartTls);
        smtp.extra_roots = vec![root.clone()];
        let dispatched = sender(smtp).post(outgoing(Duration::from_secs(20)), || async { true }).await;
        assert!(matches!(transport(dispatched), Transport::NotSent(_)), "{name}");
        let noted = sink.noted().await;
        assert_eq!((noted.count("AUTH"), noted.count("MAIL")), (0, 0), "{name}: {noted:?}");
    }
}

#[tokio::test]
async fn c01_a_server_that_repeats_the_password_is_not_quoted_with_it() {
    let (acceptor, root) = certificate();
    let script = Script {
        tls: Some((acceptor, SmtpSecurity::Tls)),
        to_the_mail: Some("552 you are hunter2-c4n4ry-password, I know you"),
        ..Script::default()
    };
    let sink = Sink::start(script).await;
    let mut smtp = with_login(sink.port, SmtpSecurity::Tls);
    smtp.extra_roots = vec![root];
    assert!(!format!("{smtp:?}").contains("hunter2"));
    let dispatched = sender(smtp).post(outgoing(Duration::from_secs(20)), || async { true }).await;
    let Transport::Answered(answer) = transport(dispatched) else { panic!() };
    let said = String::from_utf8(answer.body).unwrap();
    assert_eq!(said, "you are [redacted:smtp_password], I know you");
}

#[test]
fn b02_a_mail_server_at_a_private_address_needs_the_operators_word_and_at_a_public_one_tls() {
    use SmtpSecurity::{Plain, StartTls};
    let host = "mail.example.com".parse().unwrap();
    let refused =
        |ip: &str, private, security| judge(&host, ip.parse().unwrap(), private, security).is_some();
    assert!(refused("127.0.0.1", false, StartTls) && refused("10.0.0.5", false, StartTls));
    assert!(!refused("127.0.0.1", true, Plain) && !refused("10.0.0.5", true, StartTls));
    assert!(refused("169.254.169.254", true, StartTls), "no mail server is there");
    assert!(refused("93.184.216.34", true, Plain) && !refused("93.184.216.34", false, StartTls));
}

#[tokio::test]
async fn a_host_without_a_mail_server_refuses_and_connects_nowhere() {
    let sender =
        Dispatcher::new(DispatcherConfig::default(), Arc::new(SystemResolver), Arc::new(Secrets::default()))
            .unwrap();
    let dispatched = sender.post(outgoing(Duration::from_secs(5)), || async { panic!("asked") }).await;
    let Dispatched::Refused(Refusal::NotGranted(why)) = dispatched else { panic!() };
    assert!(why.contains("[smtp]"), "{why}");
}
