//! What a process of the sandbox can still do: use the memory it is given, talk
//! over the one socket it has, and end. It shuts itself in, before it reads
//! anything that is not from the host.
//!
//! The list below says what is *allowed*; every other call of the system fails
//! with `EPERM`. On it are what the engine, its allocator and the runtime use
//! while components run. Not on it, and so out of reach of a component that broke
//! out of the engine: to open, make or rename a file; to make a socket or connect
//! one; to start a program or a process; to look at or signal another; to mount,
//! trace, or load anything into the kernel.
//!
//! Not kept away: spending processor time, and reading this process's own memory,
//! which has in it the calls that run here.

use std::collections::BTreeMap;
use std::os::fd::RawFd;

use rustix::process::{DumpableBehavior, Resource, Rlimit, Signal};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, SeccompRule, TargetArch};

/// Files that may be open at once: the socket, the runtime's own, and one per
/// core module for the image of its memory. Chosen; raise it if one host runs
/// more than a thousand modules.
const FILES: u64 = 1_024;

/// What a process that runs components may ask of the system.
const RUNNING: &[i64] = &[
    // The socket, and the runtime's wake-ups.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_recvmsg,
    libc::SYS_recvfrom,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_shutdown,
    libc::SYS_close,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_ppoll,
    // Memory, and images of memory in nameless files.
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_memfd_create,
    libc::SYS_ftruncate,
    libc::SYS_fstat,
    libc::SYS_lseek,
    libc::SYS_fcntl,
    // Which pages of the pool were written to; the file is open already.
    libc::SYS_ioctl,
    // Threads that are there already: waiting, time, signals of the engine.
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_gettimeofday,
    libc::SYS_getrandom,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_tgkill,
    libc::SYS_membarrier,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_exit,
    libc::SYS_exit_group,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_time,
];

/// What a process that compiles asks for beyond that: threads of its own.
const COMPILING: &[i64] = &[libc::SYS_prctl, libc::SYS_sched_getparam, libc::SYS_sched_getscheduler];

/// Why a process does not run: it could not be shut in.
#[derive(Debug)]
pub(crate) struct Open(pub(crate) String);

impl<E: std::fmt::Display> From<E> for Open {
    fn from(error: E) -> Open {
        Open(error.to_string())
    }
}

/// The first thing in such a process: closes what it was left open by mistake,
/// ends with whoever started it, and leaves no image of its memory.
pub(crate) fn begin() -> Result<(), Open> {
    close_strays()?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // No core file, no tracer of the same user, and /proc/<pid> belongs to root.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    limit(Resource::Core, 0)?;
    limit(Resource::Nofile, FILES)
}

/// For a process that compiles: bounds on all that it may use, and no system.
pub(crate) fn compiling(cpu: std::time::Duration, memory: u64) -> Result<(), Open> {
    // Others go first. A compilation may take long, and nobody waits for it who
    // does not know that.
    let _ = rustix::process::nice(10);
    limit(Resource::As, memory)?;
    // The first is a signal that says what it is about, the second the end.
    let seconds = cpu.as_secs().max(1);
    let cpu = Rlimit { current: Some(seconds), maximum: Some(seconds.saturating_add(2)) };
    rustix::process::setrlimit(Resource::Cpu, cpu)?;
    shut(&[RUNNING, COMPILING].concat(), true)
}

/// For a process that runs components, when its engine and its threads are there:
/// memory beyond what the pool has reserved, bytes, and no system.
pub(crate) fn running(more: u64) -> Result<(), Open> {
    // The host goes first, and with it everybody whose component asks for an
    // effect or is done: what only computes has the time that nobody else wants.
    let _ = rustix::process::nice(10);
    // The pool takes address space for all the memory that its runs may ever
    // have, so only what comes on top of it says anything.
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages = statm.split(' ').next().and_then(|n| n.parse::<u64>().ok());
    let pages = pages.ok_or_else(|| Open("its own size is not known".to_owned()))?;
    let size = pages.saturating_mul(rustix::param::page_size() as u64);
    limit(Resource::As, size.saturating_add(more))?;
    limit(Resource::Nproc, 0)?;
    // Before the other: after that nobody may add one.
    #[cfg(test)]
    super::watched::watch()?;
    shut(RUNNING, false)
}

fn limit(resource: Resource, most: u64) -> Result<(), Open> {
    Ok(rustix::process::setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?)
}

/// Allows these calls and no other, to every thread, for good.
fn shut(allowed: &[i64], threads: bool) -> Result<(), Open> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = allowed.iter().map(|call| (*call, Vec::new())).collect();
    if threads {
        rules.insert(libc::SYS_clone, vec![thread_only()?]);
        rules.insert(libc::SYS_clone3, Vec::new());
    }
    let no = SeccompAction::Errno(libc::EPERM as u32);
    let filter: BpfProgram = SeccompFilter::new(rules, no, SeccompAction::Allow, arch)?.try_into()?;
    if threads {
        // What clone3 is asked for stands in memory, where a filter cannot look.
        // Where there is none, clone is used.
        let rules = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
        let none = SeccompAction::Errno(libc::ENOSYS as u32);
        let filter: BpfProgram = SeccompFilter::new(rules, SeccompAction::Allow, none, arch)?.try_into()?;
        seccompiler::apply_filter_all_threads(&filter)?;
    }
    Ok(seccompiler::apply_filter_all_threads(&filter)?)
}

/// `clone` for a thread of this process, not for a process.
fn thread_only() -> Result<SeccompRule, Open> {
    use seccompiler::{SeccompCmpArgLen, SeccompCmpOp, SeccompCondition};
    let flag = libc::CLONE_THREAD as u64;
    Ok(SeccompRule::new(vec![SeccompCondition::new(
        0,
        SeccompCmpArgLen::Qword,
        SeccompCmpOp::MaskedEq(flag),
        flag,
    )?])?)
}

/// Closes every file but the three standard ones. What this program opens is
/// closed by itself when it starts another; what it was given by whoever started
/// it need not be.
fn close_strays() -> Result<(), Open> {
    let mut open = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let number = entry?.file_name().to_string_lossy().parse::<RawFd>();
        open.extend(number.ok().filter(|number| *number > 2));
    }
    for number in open {
        // The folder's own is closed by now; it says so, and that is all.
        if std::fs::symlink_metadata(format!("/proc/self/fd/{number}")).is_ok() {
            close(number);
        }
    }
    Ok(())
}

#[expect(unsafe_code, reason = "a number that no value of this program stands for")]
fn close(number: RawFd) {
    // SAFETY: called before anything was opened in this process, so that no value
    // owns the number; what the system opened for its own start is not used again.
    unsafe { rustix::io::close(number) };
}
