//! Starting a process of the sandbox's own, and knowing when it is over.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

/// How this program is started again as a process of the sandbox's own. The
/// process finds one socket as its standard input and nothing else.
#[derive(Debug, Clone)]
pub struct ProcessCommand {
    /// The program. `/proc/self/exe` is the running one, also after its file was
    /// replaced by a newer one.
    pub program: PathBuf,
    /// What tells it to be such a process.
    pub arguments: Vec<OsString>,
    /// Its whole environment. Nothing is inherited.
    pub environment: Vec<(OsString, OsString)>,
}

impl ProcessCommand {
    pub(crate) fn start(&self, socket: OwnedFd, more: &[(&str, String)]) -> std::io::Result<Child> {
        let mut command = Command::new(&self.program);
        command
            .arg0("countersign")
            .args(&self.arguments)
            .env_clear()
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .envs(more.iter().map(|(name, value)| (name, value)))
            .current_dir("/")
            // What is typed at the host's terminal is for the host: it stops in
            // good order, and its guests with it.
            .process_group(0)
            .stdin(Stdio::from(socket))
            // What it would print is not read by anybody: a component may have
            // written it.
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.spawn()
    }
}

/// A process that can be killed while it is one, and not after: its number may be
/// somebody else's by then.
#[derive(Clone, Default)]
pub(crate) struct Running(Arc<Mutex<Standing>>);

#[derive(Default)]
struct Standing {
    pid: Option<Pid>,
    /// Killed before it was started.
    doomed: bool,
    /// How it ended, in words.
    end: Option<String>,
}

impl Running {
    fn lock(&self) -> MutexGuard<'_, Standing> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// SIGKILL, if it is still there.
    pub(crate) fn kill(&self) {
        let mut standing = self.lock();
        standing.doomed = true;
        if let Some(pid) = standing.pid {
            // It may have ended, and is kept for us to look at: no other has its number.
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }

    /// How it ended, once it has.
    pub(crate) fn end(&self) -> Option<String> {
        self.lock().end.clone()
    }

    /// Starts the process and waits for its end, on this thread. The system kills
    /// the process when the thread that started it ends; so that thread is this
    /// one, and it ends with the process.
    pub(crate) fn run(&self, start: impl FnOnce() -> std::io::Result<Child>) -> Option<ExitStatus> {
        let mut child = match start() {
            Ok(child) => child,
            Err(error) => {
                self.lock().end = Some(format!("it could not be started: {error}"));
                return None;
            }
        };
        let pid = Pid::from_child(&child);
        {
            let mut standing = self.lock();
            standing.pid = Some(pid);
            if standing.doomed {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
        }
        // Waits and leaves it as it is; then nobody can kill it any more; then it
        // is cleared away.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while let Err(rustix::io::Errno::INTR) = rustix::process::waitid(WaitId::Pid(pid), options) {}
        let mut standing = self.lock();
        standing.pid = None;
        let status = child.wait().ok();
        standing.end = Some(status.map_or_else(|| "its end was not seen".to_owned(), |s| s.to_string()));
        status
    }
}
