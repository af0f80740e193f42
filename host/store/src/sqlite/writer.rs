//! The one connection that writes, on a thread of its own, and the group
//! commit: whatever callers sent while the last commit was being flushed is
//! made in one transaction and flushed together.
//!
//! Each step runs in a savepoint, so a step that fails takes nobody with it.
//! Callers are answered after the commit, never before.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use countersign_domain::id::{ActionId, TenantId};
use countersign_domain::time::Timestamp;
use rusqlite::{Connection, Params, PrepFlags, Row, Statement};
use tokio::sync::{broadcast, oneshot};

use super::clock::Clock;
use super::lock::HostLock;
use super::opening::Memory;
use super::{fault, sql};
use crate::StoreError;
use crate::ledger::Changed;

/// The most steps in one commit. Chosen: more than any sane number of callers,
/// and small enough that the first of them does not wait for long (256 steps
/// are some 10 ms).
const LARGEST_BATCH: usize = 256;

/// Prepared statements, by where their text stands: each is a constant. Looking
/// one up by its text, as the connection's own cache does, costs more than many
/// of them.
type Statements<'c> = RefCell<HashMap<(*const u8, usize), Statement<'c>>>;

/// What a step works with: the writing connection inside its transaction.
pub(crate) struct Tx<'a, 'c> {
    conn: &'c Connection,
    statements: &'a Statements<'c>,
    /// The time of this step. The write lock is held already, so nothing that
    /// it is compared with can change before the commit.
    pub(crate) now: Timestamp,
    cursor: &'a Cell<i64>,
    changed: &'a RefCell<Vec<Changed>>,
}

/// Persistent: kept out of SQLite's small fast memory, which would otherwise be
/// full of statements that are kept, with none of it left for one that runs.
fn prepare<'c>(conn: &'c Connection, sql: &str) -> rusqlite::Result<Statement<'c>> {
    conn.prepare_with_flags(sql, PrepFlags::SQLITE_PREPARE_PERSISTENT)
}

/// Runs something with a prepared statement, which is out of its place
/// meanwhile: a statement that is used inside itself is prepared twice.
fn with_statement<'c, T>(
    conn: &'c Connection,
    statements: &Statements<'c>,
    sql: &'static str,
    work: impl FnOnce(&mut Statement<'c>) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let place = (sql.as_ptr(), sql.len());
    let kept = statements.borrow_mut().remove(&place);
    let mut statement = match kept {
        Some(statement) => statement,
        None => prepare(conn, sql).map_err(fault::statement)?,
    };
    let outcome = work(&mut statement);
    // What stays bound is memory that is held for nothing.
    statement.clear_bindings();
    statements.borrow_mut().insert(place, statement);
    outcome
}

impl Tx<'_, '_> {
    /// The first row that a statement gives, if any.
    pub(crate) fn row<T>(
        &self,
        sql: &'static str,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> Result<T, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        with_statement(self.conn, self.statements, sql, |statement| {
            let mut rows = statement.query(params).map_err(fault::statement)?;
            rows.next().map_err(fault::statement)?.map(read).transpose()
        })
    }

    /// Runs a statement that gives no rows; how many rows it changed.
    pub(crate) fn run(&self, sql: &'static str, params: impl Params) -> Result<usize, StoreError> {
        with_statement(self.conn, self.statements, sql, |statement| {
            statement.execute(params).map_err(fault::statement)
        })
    }

    /// The connection, for reading more than one row.
    pub(crate) fn conn(&self) -> &Connection {
        self.conn
    }

    /// The next cursor. One connection writes, so cursors grow in the order of
    /// commits; one whose step was undone is left out.
    pub(crate) fn next_cursor(&self) -> i64 {
        self.cursor.set(self.cursor.get() + 1);
        self.cursor.get()
    }

    /// Says, once the commit stands, that an action changed.
    pub(crate) fn changed(&self, tenant: &TenantId, action: ActionId) {
        self.changed.borrow_mut().push(Changed { tenant: tenant.clone(), action });
    }
}

/// A step that waits for its turn, with the way back to its caller.
trait Job: Send {
    fn needs_flush(&self) -> bool;
    fn run(&mut self, tx: &Tx<'_, '_>) -> Result<(), StoreError>;
    /// Sends the outcome; `Some`: the step's own outcome does not stand.
    fn answer(self: Box<Self>, undone: Option<StoreError>);
}

struct Step<F, T> {
    work: Option<F>,
    outcome: Option<Result<T, StoreError>>,
    reply: oneshot::Sender<Result<T, StoreError>>,
    flush: bool,
}

impl<F, T> Job for Step<F, T>
where
    F: FnOnce(&Tx<'_, '_>) -> Result<T, StoreError> + Send,
    T: Send,
{
    fn needs_flush(&self) -> bool {
        self.flush
    }

    fn run(&mut self, tx: &Tx<'_, '_>) -> Result<(), StoreError> {
        let Some(work) = self.work.take() else { return Ok(()) };
        // A step that panics is a bug of this room; it must not be the end of
        // everybody else's.
        let outcome = catch_unwind(AssertUnwindSafe(|| work(tx))).unwrap_or_else(|panic| {
            let what = panic
                .downcast_ref::<&str>()
                .map(|text| (*text).to_owned())
                .or_else(|| panic.downcast_ref::<String>().cloned())
                .unwrap_or_default();
            tracing::error!(what, "a step panicked; it was undone");
            Err(StoreError::Unavailable { what: format!("the step met a bug and was undone: {what}") })
        });
        let failed = outcome.as_ref().err().cloned();
        self.outcome = Some(outcome);
        failed.map_or(Ok(()), Err)
    }

    fn answer(self: Box<Self>, undone: Option<StoreError>) {
        let outcome = match (undone, self.outcome) {
            // A step that failed by itself keeps its own reason.
            (_, Some(Err(own))) => Err(own),
            (Some(error), _) => Err(error),
            (None, Some(made)) => made,
            (None, None) => Err(closed()),
        };
        // Whoever asked may be gone; what was made stays made.
        let _ = self.reply.send(outcome);
    }
}

fn closed() -> StoreError {
    StoreError::Unavailable { what: "it is shutting down".into() }
}

/// What the writer did, to be measured by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Figures {
    /// Steps that were tried.
    pub steps: u64,
    /// Transactions that were committed.
    pub commits: u64,
    /// Those of them that were flushed to the disk.
    pub flushes: u64,
}

#[derive(Debug, Default)]
struct Counters {
    steps: AtomicU64,
    commits: AtomicU64,
    flushes: AtomicU64,
}

enum Message {
    Job(Box<dyn Job>),
    Close,
}

/// The way to the writer.
#[derive(Debug)]
pub(crate) struct Writer {
    queue: Sender<Message>,
    counters: Arc<Counters>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Message::Job(_) => "Job",
            Message::Close => "Close",
        })
    }
}

impl Writer {
    /// Starts the thread. The host's lock lives as long as it does.
    pub(crate) fn start(
        conn: Connection,
        cursor: i64,
        clock: Arc<dyn Clock>,
        changes: broadcast::Sender<Changed>,
        lock: HostLock,
        memory: Memory,
    ) -> Result<Writer, StoreError> {
        let (queue, inbox) = channel();
        let counters = Arc::new(Counters::default());
        let counted = counters.clone();
        let thread = std::thread::Builder::new()
            .name("store-writer".into())
            .spawn(move || {
                let statements = Statements::default();
                let mut desk = Desk {
                    conn: &conn,
                    statements: &statements,
                    cursor: Cell::new(cursor),
                    clock,
                    changes,
                    counters: counted,
                    flushing: None,
                };
                desk.serve(&inbox);
                // Before the file is let go of.
                drop(statements);
                if let Ok(cursor) = conn.query_row(sql::LAST_CURSOR, [], |row| row.get(0)) {
                    memory.closed(cursor);
                }
                drop(conn);
                drop(lock);
            })
            .map_err(|error| StoreError::CannotOpen { what: format!("no thread for the writer: {error}") })?;
        Ok(Writer { queue, counters, thread: Mutex::new(Some(thread)) })
    }

    /// Makes a step and waits until it is committed; with `flush`, until it
    /// would survive a power failure. A caller that stops waiting undoes
    /// nothing.
    pub(crate) async fn step<T, F>(&self, flush: bool, work: F) -> Result<T, StoreError>
    where
        F: FnOnce(&Tx<'_, '_>) -> Result<T, StoreError> + Send + 'static,
        T: Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let step = Step { work: Some(work), outcome: None, reply, flush };
        self.queue.send(Message::Job(Box::new(step))).map_err(|_| closed())?;
        answer.await.unwrap_or_else(|_| Err(closed()))
    }

    pub(crate) fn figures(&self) -> Figures {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Figures {
            steps: read(&self.counters.steps),
            commits: read(&self.counters.commits),
            flushes: read(&self.counters.flushes),
        }
    }

    /// Makes what is queued, then ends the thread and lets go of the file.
    pub(crate) fn close(&self) {
        let _ = self.queue.send(Message::Close);
        let thread = self.thread.lock().map(|mut thread| thread.take()).unwrap_or_default();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

/// What the writer's thread owns.
struct Desk<'a, 'c> {
    conn: &'c Connection,
    statements: &'a Statements<'c>,
    cursor: Cell<i64>,
    clock: Arc<dyn Clock>,
    changes: broadcast::Sender<Changed>,
    counters: Arc<Counters>,
    /// How the connection is set now; `None`: as opened.
    flushing: Option<bool>,
}

impl Desk<'_, '_> {
    fn serve(&mut self, inbox: &Receiver<Message>) {
        let mut closing = false;
        while !closing {
            let Ok(first) = inbox.recv() else { break };
            let mut batch = Vec::new();
            let mut next = Some(first);
            while let Some(message) = next {
                match message {
                    Message::Job(job) => batch.push(job),
                    Message::Close => closing = true,
                }
                next = if batch.len() < LARGEST_BATCH { inbox.try_recv().ok() } else { None };
            }
            self.commit_together(batch);
        }
        // Whatever came after the word to close is told so by its reply being
        // dropped with the queue.
        let _ = self.conn.execute_batch(sql::CHECKPOINT);
    }

    fn commit_together(&mut self, batch: Vec<Box<dyn Job>>) {
        let mut waiting = batch.into_iter();
        loop {
            let rest: Vec<_> = waiting.by_ref().collect();
            if rest.is_empty() {
                return;
            }
            waiting = self.one_transaction(rest).into_iter();
        }
    }

    /// Makes as many of the steps as one transaction holds. Gives back those
    /// that were not tried because the transaction broke before them.
    fn one_transaction(&mut self, batch: Vec<Box<dyn Job>>) -> Vec<Box<dyn Job>> {
        let flush = batch.iter().any(|job| job.needs_flush());
        if let Err(error) = self.set_flushing(flush).and_then(|()| self.control(sql::BEGIN)) {
            let error = fault::statement(error);
            batch.into_iter().for_each(|job| job.answer(Some(error.clone())));
            return Vec::new();
        }
        self.counters.steps.fetch_add(batch.len() as u64, Ordering::Relaxed);
        let changed = RefCell::new(Vec::new());
        let mut made: Vec<Box<dyn Job>> = Vec::with_capacity(batch.len());
        let mut waiting = batch.into_iter();
        while let Some(mut job) = waiting.next() {
            let told = changed.borrow().len();
            match self.one_step(job.as_mut(), &changed) {
                Ok(()) => made.push(job),
                Err(error) => {
                    changed.borrow_mut().truncate(told);
                    job.answer(Some(error));
                    // A full disk or a failing one may take the whole
                    // transaction with it, and with it the steps before.
                    if self.conn.is_autocommit() {
                        let undone = StoreError::Unavailable {
                            what: "another step's failure undid this one; nothing was changed".into(),
                        };
                        made.into_iter().for_each(|job| job.answer(Some(undone.clone())));
                        return waiting.collect();
                    }
                }
            }
        }
        match self.control(sql::COMMIT) {
            Ok(()) => {
                self.counters.commits.fetch_add(1, Ordering::Relaxed);
                self.counters.flushes.fetch_add(u64::from(flush), Ordering::Relaxed);
                // Told before answered: whoever has the answer knows that
                // everybody else was told.
                for change in changed.take() {
                    // Nobody listening is no error.
                    let _ = self.changes.send(change);
                }
                made.into_iter().for_each(|job| job.answer(None));
            }
            Err(error) => {
                let error = fault::commit(error);
                tracing::error!(%error, steps = made.len(), "a commit failed");
                if !self.conn.is_autocommit() {
                    let _ = self.control(sql::ROLLBACK);
                }
                made.into_iter().for_each(|job| job.answer(Some(error.clone())));
            }
        }
        Vec::new()
    }

    fn one_step(&self, job: &mut dyn Job, changed: &RefCell<Vec<Changed>>) -> Result<(), StoreError> {
        self.control(sql::SAVEPOINT).map_err(fault::statement)?;
        let tx = Tx {
            conn: self.conn,
            statements: self.statements,
            now: self.clock.now(),
            cursor: &self.cursor,
            changed,
        };
        let outcome = job.run(&tx);
        if self.conn.is_autocommit() {
            return outcome.and(Err(StoreError::Unavailable { what: "the transaction ended early".into() }));
        }
        if outcome.is_err() {
            self.control(sql::ROLLBACK_TO_SAVEPOINT).map_err(fault::statement)?;
        }
        self.control(sql::RELEASE_SAVEPOINT).map_err(fault::statement)?;
        outcome
    }

    fn control(&self, sql: &'static str) -> Result<(), rusqlite::Error> {
        let mut kept = self.statements.borrow_mut();
        match kept.get_mut(&(sql.as_ptr(), sql.len())) {
            Some(statement) => statement.execute([]).map(|_| ()),
            None => {
                let mut statement = prepare(self.conn, sql)?;
                let outcome = statement.execute([]).map(|_| ());
                kept.insert((sql.as_ptr(), sql.len()), statement);
                outcome
            }
        }
    }

    /// Without a flush the commit is in the WAL file but perhaps not on disk.
    /// The next flushed commit calls fsync on that same file, which covers every
    /// frame written before: commits keep their order, and one that is flushed
    /// makes all earlier ones durable. A checkpoint flushes the WAL before it
    /// copies, at NORMAL as at FULL.
    ///
    /// The pragma acts while it is prepared, so it cannot be cached; it costs
    /// about two microseconds, a flush costs fifty or more.
    fn set_flushing(&mut self, flush: bool) -> rusqlite::Result<()> {
        if self.flushing != Some(flush) {
            self.conn.execute_batch(if flush { sql::FLUSH_COMMITS } else { sql::WRITE_COMMITS })?;
            self.flushing = Some(flush);
        }
        Ok(())
    }
}
