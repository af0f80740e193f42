//! The provider's append-only log: what every verdict about the host is read from.
//!
//! A line is on the disk before the first byte of the answer it belongs to. One thread writes;
//! lines that arrive while it syncs share the next sync, so that many callers at once do not
//! queue for a disk flush each. Never rewrites, never truncates, never holds a secret's value:
//! the caller decides what is in a line, and gives header names only.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use tokio::sync::oneshot;

use super::wire::Line;

/// Where lines go. Dropping it ends the writer once everything handed in is written.
pub struct Log {
    /// The next sequence number and the way to the writer, together: the order of numbers is the
    /// order of lines.
    head: Mutex<Head>,
    lines: Arc<Mutex<Vec<Line>>>,
}

struct Head {
    next: u64,
    writer: mpsc::Sender<Batch>,
}

struct Batch {
    lines: Vec<Line>,
    done: oneshot::Sender<Result<(), String>>,
}

impl Log {
    /// Opens or continues the log. Lines of an earlier run count; a torn last line is left as it
    /// is and closed with a line break.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .read(true)
            .open(path)
            .with_context(|| format!("cannot open the log {} for appending", path.display()))?;
        let mut before = Vec::new();
        // A pipe or a device has nothing to continue, and may never come to an end.
        if file.metadata().is_ok_and(|meta| meta.is_file()) {
            file.read_to_end(&mut before)
                .with_context(|| format!("cannot read the log {}", path.display()))?;
        }
        if before.last().is_some_and(|last| *last != b'\n') {
            file.write_all(b"\n").with_context(|| format!("cannot write to the log {}", path.display()))?;
        }
        sync_with_folder(&file, path)
            .with_context(|| format!("cannot flush the log {} to disk", path.display()))?;
        let kept: Vec<Line> = before
            .split(|byte| *byte == b'\n')
            .filter_map(|line| serde_json::from_slice(line).ok())
            .collect();
        let next = kept.iter().map(|line| line.seq).max().unwrap_or(0) + 1;
        let lines = Arc::new(Mutex::new(kept));
        let (writer, inbox) = mpsc::channel();
        let shared = Arc::clone(&lines);
        std::thread::Builder::new()
            .name("provider-log".into())
            .spawn(move || write_all(file, &inbox, &shared))
            .context("cannot start the log's writer")?;
        Ok(Self { head: Mutex::new(Head { next, writer }), lines })
    }

    /// Numbers the lines, writes them, and returns when they are on the disk. The first line is
    /// the request the others belong to, where `about_first` says so.
    ///
    /// # Errors
    /// The log cannot be written: nothing may be answered any more.
    pub async fn append(&self, mut batch: Vec<Line>, about_first: bool) -> Result<u64, String> {
        let (done, written) = oneshot::channel();
        let first = {
            let mut head = locked(&self.head);
            let first = head.next;
            let at = now_ms();
            for line in &mut batch {
                line.seq = head.next;
                line.at = at;
                if about_first && line.seq != first {
                    line.request_seq = Some(first);
                }
                head.next += 1;
            }
            head.writer
                .send(Batch { lines: batch, done })
                .map_err(|_| "the log's writer has ended".to_owned())?;
            first
        };
        match written.await {
            Ok(result) => result.map(|()| first),
            Err(_) => Err("the log's writer has ended".into()),
        }
    }

    /// Everything that is on the disk, in order.
    pub fn lines(&self) -> Vec<Line> {
        locked(&self.lines).clone()
    }

    /// How many lines satisfy the condition.
    pub fn count(&self, wanted: impl Fn(&Line) -> bool) -> usize {
        locked(&self.lines).iter().filter(|line| wanted(line)).count()
    }
}

fn write_all(mut file: File, inbox: &mpsc::Receiver<Batch>, lines: &Mutex<Vec<Line>>) {
    while let Ok(first) = inbox.recv() {
        let mut batches = vec![first];
        batches.extend(inbox.try_iter());
        let result = write_batches(&mut file, &batches).map_err(|error| error.to_string());
        for batch in batches {
            if result.is_ok() {
                locked(lines).extend(batch.lines);
            }
            // A caller that is gone needs no word; its lines are written all the same.
            let _ = batch.done.send(result.clone());
        }
        if result.is_err() {
            return;
        }
    }
}

fn write_batches(file: &mut File, batches: &[Batch]) -> io::Result<()> {
    let mut text = Vec::new();
    for line in batches.iter().flat_map(|batch| &batch.lines) {
        serde_json::to_writer(&mut text, line)?;
        text.push(b'\n');
    }
    file.write_all(&text)?;
    file.sync_data()
}

/// A new file is only there after a crash if its folder was flushed too.
fn sync_with_folder(file: &File, path: &Path) -> io::Result<()> {
    if !file.metadata()?.is_file() {
        return Ok(());
    }
    file.sync_all()?;
    if cfg!(unix) {
        let folder = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}

#[expect(
    clippy::disallowed_methods,
    reason = "the provider stands for the world outside, which has clocks of its own"
)]
fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// A panic elsewhere must not silence the provider: what a lock guards here is always whole.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
