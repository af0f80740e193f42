//! Reading and compiling a component in a process that does nothing else: the
//! host's side, which waits so long and no longer, and the process's.
//!
//! A compiler can be made to work for hours by a file of some kilobytes, and
//! cannot be told to stop; and whatever reads such a file can be wrong about it.
//! `admit` refuses the shapes that are known for it; here is what holds for the
//! others: processor time, memory and time on the clock, and a process whose end
//! is nobody else's.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::confine::{self, Open};
use super::link::frame;
use super::spawn::{ProcessCommand, Running};
use super::wire::Objection;
use crate::error::SandboxError;
use crate::examine::Examined;
use crate::{compile, engine, examine};

/// Bytes of the compiled form that are taken. Chosen: some twenty times those of
/// the largest component.
const MOST: u64 = 1 << 30;
/// Threads of one compilation. More are little faster, and each takes address
/// space of what it may have.
const THREADS: usize = 4;

/// What one compilation may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompileLimits {
    /// Processor time over all its threads, in whole seconds. 40 s: a component
    /// with a JavaScript or Python engine in it takes 15 s.
    pub cpu: Duration,
    /// On the clock, from its start.
    pub wall: Duration,
    /// Address space, bytes.
    pub memory: u64,
}

impl Default for CompileLimits {
    fn default() -> CompileLimits {
        CompileLimits { cpu: Duration::from_secs(40), wall: Duration::from_secs(180), memory: 2 << 30 }
    }
}

/// Bytes of a reply, without the compiled form. Names come with it, which `examine`
/// bounds; in JSON a character may take six.
const REPLY: usize = 16 << 20;

#[derive(Serialize, Deserialize)]
struct Ask {
    task: Task,
    max_bytes: u64,
    cpu_seconds: u64,
    memory: u64,
}

/// What to do with the bytes.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum Task {
    Examine,
    Compile,
}

impl Task {
    fn doing(self) -> &'static str {
        match self {
            Task::Examine => "reading it",
            Task::Compile => "compiling it",
        }
    }
}

#[derive(Serialize, Deserialize)]
enum Reply {
    Examined(Examined),
    /// So many bytes follow.
    Compiled(u64),
    Refused(Objection),
}

/// What came of it.
enum Done {
    Examined(Examined),
    Compiled(Vec<u8>),
}

/// Reads bytes in a process; blocks until it has, or may no longer.
pub(crate) fn examine(
    command: &ProcessCommand,
    limits: CompileLimits,
    bytes: &[u8],
    max_bytes: u64,
) -> Result<Examined, SandboxError> {
    match run(command, limits, Task::Examine, bytes, max_bytes)? {
        Done::Examined(examined) => examined.checked(),
        Done::Compiled(_) => Err(not_what_was_asked()),
    }
}

/// Reads and compiles bytes in a process; blocks until it has, or may no longer.
pub(crate) fn compile(
    command: &ProcessCommand,
    limits: CompileLimits,
    bytes: &[u8],
    max_bytes: u64,
) -> Result<Vec<u8>, SandboxError> {
    match run(command, limits, Task::Compile, bytes, max_bytes)? {
        Done::Compiled(compiled) => Ok(compiled),
        Done::Examined(_) => Err(not_what_was_asked()),
    }
}

fn not_what_was_asked() -> SandboxError {
    SandboxError::Busy("the compiler answered something else than it was asked".to_owned())
}

fn run(
    command: &ProcessCommand,
    limits: CompileLimits,
    task: Task,
    bytes: &[u8],
    max_bytes: u64,
) -> Result<Done, SandboxError> {
    let until = Instant::now() + limits.wall;
    let busy = |e: io::Error| SandboxError::Busy(format!("the compiler could not be started: {e}"));
    let (ours, theirs) = UnixStream::pair().map_err(busy)?;
    let process = Running::default();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let waiting = {
        let (process, command) = (process.clone(), command.clone());
        let threads = [("RAYON_NUM_THREADS", cores.min(THREADS).to_string())];
        std::thread::Builder::new()
            .name("compiling".to_owned())
            .stack_size(128 << 10)
            .spawn(move || process.run(|| command.start(theirs.into(), &threads)))
            .map_err(busy)?
    };
    let ask = Ask { task, max_bytes, cpu_seconds: limits.cpu.as_secs(), memory: limits.memory };
    let said = talk(&ours, &ask, limits.wall, bytes, until);
    // Whether it was done or not: it has nothing more to do.
    if said.is_err() && Instant::now() < until {
        // It hung up; it is ending, and how says why.
        drop(ours);
    } else {
        process.kill();
    }
    let ended = waiting.join().ok().flatten();
    match said {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(objection)) => Err(objection.into()),
        Err(_) if Instant::now() >= until => {
            Err(too_much(format!("{} takes longer than {:?}", task.doing(), limits.wall)))
        }
        Err(_) => Err(explain(task, ended, limits, process.end())),
    }
}

/// Gives it the bytes, takes what comes back.
fn talk(
    mut socket: &UnixStream,
    ask: &Ask,
    wall: Duration,
    bytes: &[u8],
    until: Instant,
) -> io::Result<Result<Done, Objection>> {
    socket.set_write_timeout(Some(wall))?;
    socket.write_all(&frame(ask)?)?;
    socket.write_all(bytes)?;
    socket.shutdown(std::net::Shutdown::Write)?;
    let mut head = [0; 4];
    read(socket, &mut head, until)?;
    let mut reply = vec![0; (u32::from_le_bytes(head) as usize).min(REPLY)];
    read(socket, &mut reply, until)?;
    match serde_json::from_slice(&reply)? {
        Reply::Refused(objection) => Ok(Err(objection)),
        Reply::Examined(examined) => Ok(Ok(Done::Examined(examined))),
        Reply::Compiled(length) if length > MOST => Err(io::ErrorKind::InvalidData.into()),
        Reply::Compiled(length) => {
            let mut compiled = vec![0; usize::try_from(length).map_err(|_| io::ErrorKind::InvalidData)?];
            read(socket, &mut compiled, until)?;
            Ok(Ok(Done::Compiled(compiled)))
        }
    }
}

fn read(mut socket: &UnixStream, mut into: &mut [u8], until: Instant) -> io::Result<()> {
    while !into.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        socket.set_read_timeout(Some(left))?;
        match socket.read(into) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => into = &mut into[read..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Which limit it met, from how it ended.
fn explain(
    task: Task,
    ended: Option<ExitStatus>,
    limits: CompileLimits,
    end: Option<String>,
) -> SandboxError {
    let Some(ended) = ended else {
        return SandboxError::Busy(format!("the compiler did not run: {}", end.unwrap_or_default()));
    };
    match (ended.signal(), ended.code()) {
        (Some(libc::SIGXCPU), _) => {
            too_much(format!("{} takes more than {:?} of processor time", task.doing(), limits.cpu))
        }
        // Memory that is not there ends in the one; a thread for which there is
        // none, or a fault of the compiler's, in the other, a panic.
        (Some(libc::SIGABRT), _) | (_, Some(101)) => too_much(format!(
            "{} needs more than {} MiB of memory, or the compiler failed on it",
            task.doing(),
            limits.memory >> 20
        )),
        // Not by us: by the system, for want of memory, or by a person.
        (Some(libc::SIGKILL), _) => SandboxError::Busy("the compiler was killed; try again".to_owned()),
        // It did not get as far as the component.
        (_, Some(1)) => SandboxError::Busy("the compiler could not be shut in on this system".to_owned()),
        _ => SandboxError::refused("the component", format!("the compiler failed on it ({ended})")),
    }
}

fn too_much(why: String) -> SandboxError {
    SandboxError::refused(
        "the component",
        format!(
            "{why}, which is more than a component may; smaller functions with fewer locals and blocks take less"
        ),
    )
}

/// Reads or compiles the one component that comes in at standard input, a socket,
/// and writes back what it is, or its compiled form. Call it first thing in a process: it closes
/// files that it does not know.
///
/// # Errors
/// It could not be shut in, or the host is not there; in words.
pub fn compile_component() -> Result<(), String> {
    serve().map_err(|Open(why)| why)
}

fn serve() -> Result<(), Open> {
    confine::begin()?;
    let mut socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut head = [0; 4];
    socket.read_exact(&mut head)?;
    let mut ask = vec![0; u32::from_le_bytes(head).min(1 << 16) as usize];
    socket.read_exact(&mut ask)?;
    let ask: Ask = serde_json::from_slice(&ask)?;
    confine::compiling(Duration::from_secs(ask.cpu_seconds), ask.memory)?;
    let mut bytes = Vec::new();
    socket.read_to_end(&mut bytes)?;
    let done = match ask.task {
        Task::Examine => examine::examine(&bytes, ask.max_bytes).map(Done::Examined),
        Task::Compile => examine::tool(&bytes, ask.max_bytes)
            .and_then(|_| compile::compile(&engine::compiler()?, &bytes))
            .map(Done::Compiled),
    };
    match done {
        Ok(Done::Examined(examined)) => socket.write_all(&frame(&Reply::Examined(examined))?)?,
        Ok(Done::Compiled(compiled)) => {
            socket.write_all(&frame(&Reply::Compiled(compiled.len() as u64))?)?;
            socket.write_all(&compiled)?;
        }
        Err(error) => socket.write_all(&frame(&Reply::Refused(error.into()))?)?,
    }
    Ok(())
}
