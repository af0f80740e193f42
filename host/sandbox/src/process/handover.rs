//! Compiled code on its way into a process: a file that has no name, that nobody
//! can change any more, and that all processes which run it share in memory.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
use wasmtime::component::Component;
use wasmtime::{CustomCodeMemory, Engine};

/// A compiled component, ready to be given away any number of times.
pub(crate) struct Handover(OwnedFd);

impl Handover {
    /// `compiled`: what the host's own compiler gave, authenticated.
    pub(crate) fn new(compiled: &[u8]) -> io::Result<Handover> {
        let fd = rustix::fs::memfd_create("component", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        let mut file = File::from(fd);
        file.write_all(compiled)?;
        rustix::fs::fcntl_add_seals(
            &file,
            SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL,
        )?;
        Ok(Handover(file.into()))
    }
}

impl AsFd for Handover {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The process's side: the component in a file that the host gave.
#[expect(
    unsafe_code,
    reason = "wasmtime loads machine code, and the system maps files, by unsafe functions only"
)]
pub(crate) fn component(engine: &Engine, file: &OwnedFd) -> Result<Component, String> {
    let length = rustix::fs::fstat(file).map_err(|e| e.to_string())?.st_size;
    let length = usize::try_from(length).ok().filter(|n| *n > 0).ok_or("it is empty")?;
    let seals = rustix::fs::fcntl_get_seals(file).map_err(|e| e.to_string())?;
    if !seals.contains(SealFlags::WRITE | SealFlags::SHRINK) {
        return Err("it could still be changed".to_owned());
    }
    // SAFETY: a new mapping at an address of the system's choice. The file is
    // sealed: its bytes and its length stay as they are.
    let start = unsafe {
        rustix::mm::mmap(std::ptr::null_mut(), length, ProtFlags::READ, MapFlags::PRIVATE, file, 0)
    }
    .map_err(|e| e.to_string())?;
    let start = NonNull::new(start.cast::<u8>()).ok_or("it is mapped nowhere")?;
    // SAFETY: the bytes came over the socket that the host started this process
    // with, and the host gives what its own compiler made for these settings. The
    // mapping begins at a page, cannot be written by anybody, and is never taken
    // away: components stay for as long as the process runs.
    unsafe { Component::deserialize_raw(engine, NonNull::slice_from_raw_parts(start, length)) }
        .map_err(|e| format!("{e:#}"))
}

/// Makes code in such a mapping executable. The engine does not do that by itself
/// for memory that is not its own.
pub(crate) struct Mapped;

impl Mapped {
    #[expect(unsafe_code, reason = "the system's call for it is unsafe")]
    fn protect(start: *const u8, length: usize, flags: MprotectFlags) -> wasmtime::Result<()> {
        // SAFETY: the engine names pages of a mapping that `component` made, which
        // is private to this process and is never written to.
        unsafe { rustix::mm::mprotect(start.cast_mut().cast(), length, flags) }.map_err(wasmtime::Error::from)
    }
}

impl CustomCodeMemory for Mapped {
    fn required_alignment(&self) -> usize {
        rustix::param::page_size()
    }

    fn publish_executable(&self, start: *const u8, length: usize) -> wasmtime::Result<()> {
        Mapped::protect(start, length, MprotectFlags::READ | MprotectFlags::EXEC)
    }

    fn unpublish_executable(&self, start: *const u8, length: usize) -> wasmtime::Result<()> {
        Mapped::protect(start, length, MprotectFlags::READ)
    }
}
