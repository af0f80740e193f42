//! What the same work costs without a product around it: three transactions an
//! action (propose; approve and claim; answer and end) on SQLite in the same
//! configuration, committed by one writer for all callers, and one POST.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use tokio::sync::oneshot;

/// One caller's step, and whom to tell when it is durable.
struct Step {
    kind: usize,
    id: u64,
    done: oneshot::Sender<()>,
}

const STATEMENTS: [&[&str]; 3] = [
    &[
        "insert into actions (id, status, body) values (?1, 'awaiting_approval', ?2)",
        "insert into events (action, seq, body) values (?1, 1, ?2)",
    ],
    &[
        "update actions set status = 'executing', body = ?2 where id = ?1 and status = 'awaiting_approval'",
        "insert into effects (action, ordinal, body) values (?1, 1, ?2)",
        "insert into events (action, seq, body) values (?1, 2, ?2)",
    ],
    &[
        "update effects set body = ?2 where action = ?1 and ordinal = 1",
        "update actions set status = 'succeeded', body = ?2 where id = ?1 and status = 'executing'",
        "insert into events (action, seq, body) values (?1, 3, ?2)",
    ],
];

/// Actions per second.
pub async fn measure(callers: usize, time: Duration, upstream: u16) -> anyhow::Result<f64> {
    let folder = tempfile::tempdir_in(std::env::var_os("COUNTERSIGN_BENCH_DIR").unwrap_or(".".into()))
        .or_else(|_| tempfile::tempdir())?;
    let connection = Connection::open(folder.path().join("bare.db"))?;
    connection.execute_batch(
        "pragma journal_mode = wal; pragma synchronous = full;
         create table actions (id integer primary key, status text not null, body text not null);
         create table effects (action integer, ordinal integer, body text, primary key (action, ordinal)) without rowid;
         create table events (action integer, seq integer, body text, primary key (action, seq)) without rowid;",
    )?;
    let (queue, steps) = mpsc::channel::<Step>();
    let writer = std::thread::spawn(move || write(&connection, &steps));
    let until = Instant::now() + time;
    let mut tasks = Vec::new();
    for caller in 0..callers as u64 {
        let queue = queue.clone();
        tasks.push(tokio::spawn(async move {
            let address = format!("127.0.0.1:{upstream}");
            let mut provider = crate::http::Connection::open(&address, "none").await?;
            let mut n = 0u64;
            while Instant::now() < until {
                let id = caller << 40 | n;
                for kind in 0..3 {
                    let (done, durable) = oneshot::channel();
                    queue.send(Step { kind, id, done })?;
                    durable.await?;
                    if kind == 1 {
                        provider.post("/v1/refunds", &[], "amount=100", 200).await?;
                    }
                }
                n += 1;
            }
            anyhow::Ok(n)
        }));
    }
    drop(queue);
    let mut total = 0;
    for task in tasks {
        total += task.await??;
    }
    writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))??;
    Ok(total as f64 / time.as_secs_f64())
}

fn write(connection: &Connection, steps: &mpsc::Receiver<Step>) -> anyhow::Result<()> {
    let body = "x".repeat(300);
    while let Ok(first) = steps.recv() {
        let mut batch = vec![first];
        batch.extend(steps.try_iter());
        connection.execute_batch("begin immediate")?;
        for step in &batch {
            for sql in STATEMENTS[step.kind] {
                connection.prepare_cached(sql)?.execute(rusqlite::params![step.id as i64, body])?;
            }
        }
        connection.execute_batch("commit")?;
        for step in batch {
            let _ = step.done.send(());
        }
    }
    Ok(())
}
