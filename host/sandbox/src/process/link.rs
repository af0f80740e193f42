//! The socket between the host and a guest process: messages whole, in order,
//! each with its length before it, some with an open file beside it.
//!
//! A message is written by whoever has it, at once; only what the system does not
//! take at once is left to the link's own task. So nobody waits for a task to be
//! woken who only wants to say something.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::Notify;

use super::handover::Handover;

/// Bytes of a message's length.
const HEAD: usize = 4;
/// The most that is read at once.
const CHUNK: usize = 64 << 10;

/// One side's end.
pub(super) struct Link {
    stream: UnixStream,
    out: Mutex<VecDeque<Frame>>,
    more: Notify,
}

struct Frame {
    bytes: Vec<u8>,
    sent: usize,
    file: Option<Arc<Handover>>,
}

/// A message with its length before it.
pub(super) fn frame(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; HEAD];
    serde_json::to_writer(&mut bytes, message)?;
    let length = u32::try_from(bytes.len() - HEAD).map_err(|_| io::ErrorKind::InvalidData)?;
    bytes[..HEAD].copy_from_slice(&length.to_le_bytes());
    Ok(bytes)
}

impl Link {
    pub(super) fn new(stream: UnixStream) -> Link {
        Link { stream, out: Mutex::default(), more: Notify::new() }
    }

    fn out(&self) -> MutexGuard<'_, VecDeque<Frame>> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says something. Never waits; that the other side is gone shows when it is
    /// listened to.
    pub(super) fn send(&self, message: &impl Serialize, file: Option<Arc<Handover>>) -> io::Result<()> {
        let bytes = frame(message)?;
        let mut out = self.out();
        let first = out.is_empty();
        out.push_back(Frame { bytes, sent: 0, file });
        if first && !self.write(&mut out)? {
            self.more.notify_one();
        }
        Ok(())
    }

    /// Writes until everything is written (true) or the system takes no more.
    fn write(&self, out: &mut VecDeque<Frame>) -> io::Result<bool> {
        while let Some(frame) = out.front_mut() {
            let rest = &frame.bytes[frame.sent..];
            let sent = match &frame.file {
                Some(file) if frame.sent == 0 => {
                    self.stream.try_io(Interest::WRITABLE, || send_with(&self.stream, rest, file))
                }
                _ => self.stream.try_write(rest),
            };
            match sent {
                Ok(sent) => {
                    frame.sent += sent;
                    if frame.sent == frame.bytes.len() {
                        out.pop_front();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Writes what could not be written at once, for as long as the link lives.
    pub(super) async fn flush(&self) -> io::Error {
        loop {
            self.more.notified().await;
            loop {
                if let Err(error) = self.stream.writable().await {
                    return error;
                }
                match self.write(&mut self.out()) {
                    Ok(true) => break,
                    Ok(false) => {}
                    Err(error) => return error,
                }
            }
        }
    }

    /// Takes in what has come. False: the other side is gone.
    pub(super) async fn fill(&self, inbox: &mut Inbox) -> io::Result<bool> {
        loop {
            self.stream.readable().await?;
            let read = self.stream.try_io(Interest::READABLE, || inbox.receive(&self.stream));
            match read {
                Ok(0) => return Ok(false),
                Ok(_) => return Ok(true),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }
}

fn send_with(stream: &UnixStream, bytes: &[u8], file: &Handover) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [file.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&files));
    Ok(rustix::net::sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?)
}

/// What has come and was not looked at yet.
pub(super) struct Inbox {
    chunk: Box<[u8]>,
    bytes: Vec<u8>,
    start: usize,
    /// `None`: files that come along are not taken.
    files: Option<VecDeque<OwnedFd>>,
}

impl Inbox {
    pub(super) fn new(with_files: bool) -> Inbox {
        Inbox {
            chunk: vec![0; CHUNK].into(),
            bytes: Vec::new(),
            start: 0,
            files: with_files.then(VecDeque::new),
        }
    }

    fn receive(&mut self, stream: &UnixStream) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        // Without room for them the system closes the files that come along.
        let room = if self.files.is_some() { &mut space[..] } else { &mut [] };
        let mut control = RecvAncillaryBuffer::new(room);
        let mut iov = [IoSliceMut::new(&mut self.chunk)];
        let got = rustix::net::recvmsg(stream, &mut iov, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        for message in control.drain() {
            if let (RecvAncillaryMessage::ScmRights(files), Some(kept)) = (message, &mut self.files) {
                kept.extend(files);
            }
        }
        if self.start == self.bytes.len() {
            self.bytes.clear();
            self.start = 0;
            // One large message does not hold its room for ever.
            self.bytes.shrink_to(CHUNK);
        } else if self.start > CHUNK {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        self.bytes.extend_from_slice(&self.chunk[..got.bytes]);
        Ok(got.bytes)
    }

    /// The next whole message. `most` says how long it may be; it is asked before
    /// any of it is waited for.
    pub(super) fn next<T: DeserializeOwned>(
        &mut self,
        most: impl FnOnce() -> u64,
    ) -> Result<Option<T>, String> {
        let come = &self.bytes[self.start..];
        let Some((head, rest)) = come.split_first_chunk::<HEAD>() else { return Ok(None) };
        let length = u32::from_le_bytes(*head) as usize;
        // Asking has a cost, and hardly any message is that long.
        if length > CHUNK && length as u64 > most() {
            return Err(format!("a message of {length} bytes, longer than any that is due"));
        }
        let Some(message) = rest.get(..length) else { return Ok(None) };
        let message = serde_json::from_slice(message).map_err(|e| format!("a message that is none: {e}"))?;
        self.start += HEAD + length;
        Ok(Some(message))
    }

    pub(super) fn file(&mut self) -> Option<OwnedFd> {
        self.files.as_mut()?.pop_front()
    }
}
