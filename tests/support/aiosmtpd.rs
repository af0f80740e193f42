//! A mail server that others wrote and use: `aiosmtpd`, in a process of its own, keeping what it
//! takes in a mailbox that Python's `email` package reads back. Ours in [`smtp`](super::smtp) errs
//! on purpose; this one says whether what we speak is what the world speaks.

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Debian's own interpreter, which has Debian's package; then whichever there is.
const PYTHONS: [&str; 2] = ["/usr/bin/python3", "python3"];

/// Reads every mail of a mailbox: its headers as sent, and each part decoded.
const READ: &str = r#"
import email, email.policy, json, mailbox, sys
mails = []
for message in mailbox.Maildir(sys.argv[1], factory=None):
    m = email.message_from_bytes(message.as_bytes(), policy=email.policy.SMTP)
    parts = [{"type": p.get_content_type(), "name": p.get_filename(), "hex": p.get_payload(decode=True).hex()}
             for p in m.walk() if not p.is_multipart()]
    defects = [str(d) for p in m.walk() for d in p.defects]
    mails.append({"headers": [[k, str(v)] for k, v in m.items()], "parts": parts, "defects": defects})
json.dump(mails, sys.stdout)
"#;

/// A running one.
pub struct Aiosmtpd {
    python: &'static str,
    child: Child,
    folder: tempfile::TempDir,
    port: u16,
}

impl Aiosmtpd {
    /// Starts one; `None`, and said so, where it is not installed.
    pub fn start() -> Option<Aiosmtpd> {
        let has_it = |python: &&str| {
            let asked = Command::new(python).args(["-c", "import aiosmtpd"]).stderr(Stdio::null()).status();
            asked.is_ok_and(|status| status.success())
        };
        let Some(python) = PYTHONS.into_iter().find(has_it) else {
            super::skipped("no aiosmtpd for Python; install the package python3-aiosmtpd");
            return None;
        };
        let folder = tempfile::tempdir().expect("a folder");
        // Free a moment ago; who takes it meanwhile makes the start fail, loudly.
        let port =
            TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
        let child = Command::new(python)
            .args(["-m", "aiosmtpd", "-n", "-l", &format!("127.0.0.1:{port}")])
            .args(["-c", "aiosmtpd.handlers.Mailbox"])
            .arg(folder.path().join("mails"))
            .stdout(Stdio::null())
            .spawn()
            .expect("aiosmtpd");
        let server = Aiosmtpd { python, child, folder, port };
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(began.elapsed() < Duration::from_secs(60), "aiosmtpd did not start");
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(server)
    }

    /// How a host is told of it.
    pub fn section(&self) -> String {
        format!("[smtp]\nserver = \"smtp://127.0.0.1:{}\"\ntls = \"off\"\nallow_private = true", self.port)
    }

    /// What it took, as Python reads it.
    pub fn mails(&self) -> Vec<Value> {
        let mails: &Path = &self.folder.path().join("mails");
        let read = Command::new(self.python).args(["-c", READ]).arg(mails).output().expect("python");
        assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
        serde_json::from_slice(&read.stdout).expect("a list of mails")
    }
}

impl Drop for Aiosmtpd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
