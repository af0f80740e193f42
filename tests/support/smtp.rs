//! A mail server on loopback that keeps every line it was told, and errs when asked to. The
//! verdict about mail is what stands in its notes.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

const PATIENCE: Duration = Duration::from_secs(60);

/// How it behaves from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// It takes every mail.
    Takes,
    /// It knows none of the recipients.
    KnowsNobody,
    /// It hangs up after so many lines of a mail.
    HangsUpIn(usize),
    /// It takes the mail and hangs up instead of saying so.
    HangsUpAfter,
    /// It takes the mail and says nothing until told otherwise.
    Holds,
}

/// What one connection told it.
#[derive(Debug, Default, Clone)]
pub struct Talk {
    /// Every command, in order.
    pub commands: Vec<String>,
    /// The lines of the mail, as they were meant.
    pub mail: Vec<String>,
    /// The mail came to its end.
    pub whole: bool,
}

impl Talk {
    /// How many commands begin like this.
    pub fn count(&self, verb: &str) -> usize {
        self.commands.iter().filter(|line| line.starts_with(verb)).count()
    }

    /// A header of the mail.
    pub fn header(&self, name: &str) -> Option<&str> {
        let head = self.mail.iter().take_while(|line| !line.is_empty());
        head.filter_map(|line| line.split_once(": ")).find(|(n, _)| *n == name).map(|(_, value)| value)
    }

    /// The base64 of the mail, part by part, decoded.
    pub fn parts(&self) -> Vec<Vec<u8>> {
        let mut parts = Vec::new();
        let mut lines = self.mail.iter();
        while lines.any(|line| line == "Content-Transfer-Encoding: base64") {
            let text: String =
                lines.by_ref().skip(1).take_while(|line| !line.starts_with("--")).cloned().collect();
            parts.push(STANDARD.decode(text).expect("base64"));
        }
        parts
    }
}

#[derive(Debug)]
struct State {
    manner: Manner,
    talks: Vec<Talk>,
}

/// The server.
pub struct Smtp {
    port: u16,
    state: Arc<(Mutex<State>, Condvar)>,
}

impl Smtp {
    /// A server that takes every mail.
    pub fn start() -> Smtp {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let state = Arc::new((Mutex::new(State { manner: Manner::Takes, talks: vec![] }), Condvar::new()));
        let shared = state.clone();
        std::thread::spawn(move || {
            for tcp in listener.incoming().map_while(Result::ok) {
                let shared = shared.clone();
                std::thread::spawn(move || {
                    let number = {
                        let mut state = lock(&shared);
                        state.talks.push(Talk::default());
                        state.talks.len() - 1
                    };
                    // A broken connection is the other side's doing.
                    let _ = talk(&tcp, number, &shared);
                    let _ = tcp.shutdown(std::net::Shutdown::Both);
                });
            }
        });
        Smtp { port, state }
    }

    /// The section of a host's configuration that names it.
    pub fn section(&self) -> String {
        let port = self.port;
        format!("[smtp]\nserver = \"smtp://127.0.0.1:{port}\"\ntls = \"off\"\nallow_private = true\n")
    }

    /// Changes its manner; lets go of what it holds.
    pub fn behave(&self, manner: Manner) {
        lock(&self.state).manner = manner;
        self.state.1.notify_all();
    }

    /// Everything it was told, by connection.
    pub fn talks(&self) -> Vec<Talk> {
        lock(&self.state).talks.clone()
    }

    /// The conversations in which a mail came to its end.
    pub fn mails(&self) -> Vec<Talk> {
        self.talks().into_iter().filter(|talk| talk.whole).collect()
    }

    /// How often it was asked to take a mail.
    pub fn asked(&self) -> usize {
        self.talks().iter().map(|talk| talk.count("DATA")).sum()
    }

    /// Waits until so many mails came to their end.
    pub fn wait_mails(&self, count: usize) {
        let (mutex, more) = &*self.state;
        let state = mutex.lock().unwrap_or_else(PoisonError::into_inner);
        let fewer = |state: &mut State| state.talks.iter().filter(|talk| talk.whole).count() < count;
        let (state, late) = more.wait_timeout_while(state, PATIENCE, fewer).expect("its notes");
        assert!(!late.timed_out(), "never {count} mails: {:#?}", state.talks);
    }
}

fn lock(state: &(Mutex<State>, Condvar)) -> MutexGuard<'_, State> {
    state.0.lock().unwrap_or_else(PoisonError::into_inner)
}

fn talk(tcp: &TcpStream, number: usize, shared: &(Mutex<State>, Condvar)) -> std::io::Result<()> {
    let mut lines = BufReader::new(tcp).lines();
    let say = |text: &str| (&*tcp).write_all(format!("{text}\r\n").as_bytes());
    say("220 sink")?;
    while let Some(line) = lines.next().transpose()? {
        let manner = {
            let mut state = lock(shared);
            state.talks[number].commands.push(line.clone());
            state.manner
        };
        match line.split([' ', ':']).next().unwrap_or_default() {
            "EHLO" => say("250 sink")?,
            "RCPT" if manner == Manner::KnowsNobody => say("550 5.1.1 nobody of that name")?,
            "QUIT" => return say("221 bye"),
            "DATA" => {
                say("354 go on")?;
                for line in lines.by_ref() {
                    let line = line?;
                    let mut state = lock(shared);
                    let manner = state.manner;
                    let talk = &mut state.talks[number];
                    if line == "." {
                        talk.whole = true;
                        break;
                    }
                    talk.mail.push(line.strip_prefix('.').unwrap_or(&line).to_owned());
                    if matches!(manner, Manner::HangsUpIn(most) if talk.mail.len() >= most) {
                        return Ok(());
                    }
                }
                if !lock(shared).talks[number].whole {
                    return Ok(());
                }
                shared.1.notify_all();
                let held = shared.1.wait_while(lock(shared), |state| state.manner == Manner::Holds);
                if held.is_ok_and(|state| state.manner == Manner::HangsUpAfter) {
                    return Ok(());
                }
                say("250 2.0.0 taken")?;
            }
            _ => say("250 fine")?,
        }
    }
    Ok(())
}
