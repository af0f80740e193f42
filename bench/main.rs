//! The figures, each measured on the real thing: the release binary over HTTP,
//! with a provider that answers at once in this process.
//!
//! `cargo bench --bench figures -- [whole|postgres|history|replay|fresh|memory]`; without a
//! word, all of them. `bench/README.md` says what each one is and what was measured.

#![expect(clippy::disallowed_methods, reason = "where to measure is told by the environment")]

mod bare;
mod cluster;
mod fresh;
mod host;
mod http;
mod postgres;
mod statements;
mod upstream;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use host::Host;

/// How long each row is measured. Chosen: long enough for a few thousand
/// actions, short enough that a whole table takes a minute.
const ROW: Duration = Duration::from_secs(5);

fn main() -> anyhow::Result<()> {
    let which: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let wanted = |name: &str| which.is_empty() || which.iter().any(|word| word == name);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        if wanted("fresh") {
            // On a worker's own thread, as in the host: the thread that waits for
            // the runtime would pay for a hop between threads at each effect.
            tokio::spawn(fresh::measure()).await??;
        }
        if wanted("whole") {
            whole().await?;
        }
        if wanted("postgres") {
            postgres::measure().await?;
        }
        if wanted("history") {
            postgres::measure_history().await?;
        }
        if wanted("replay") {
            replay().await?;
        }
        if wanted("memory") {
            memory().await?;
        }
        anyhow::Ok(())
    })
}

/// Propose, approve, execute with one POST, result durable: beside the bare
/// statements, on the same disk, row by row in the same run.
async fn whole() -> anyhow::Result<()> {
    let upstream = upstream::start().await?;
    println!(
        "\nWhole path through HTTP (propose, approve, execute, one POST, result durable), {ROW:?} a row"
    );
    println!("| callers | bare/s | countersign/s | share | p50 ms | p99 ms | host CPU ms/action |");
    println!("|---|---|---|---|---|---|---|");
    for callers in [1usize, 8, 64] {
        let bare = bare::measure(callers, ROW, upstream.port).await?;
        let host = Arc::new(Host::start(upstream.port)?);
        let (n, latencies, cpu) = load(&host, &upstream, callers, ROW).await?;
        let rate = n as f64 / ROW.as_secs_f64();
        println!(
            "| {callers} | {bare:.0} | {rate:.0} | {:.0} % | {:.2} | {:.2} | {:.2} |",
            100.0 * rate / bare,
            latencies.at(0.5),
            latencies.at(0.99),
            cpu * 1000.0 / n as f64,
        );
    }
    Ok(())
}

async fn load(
    host: &Arc<Host>,
    upstream: &upstream::Upstream,
    callers: usize,
    time: Duration,
) -> anyhow::Result<(u64, Latencies, f64)> {
    // Once before the clock starts: caches, connections, the first pages.
    let base = upstream.base();
    let warm = Instant::now() + Duration::from_millis(500);
    drive(host, &base, callers, warm, "warm").await?;
    let cpu = host.cpu_seconds()?;
    let (n, latencies) = drive(host, &base, callers, Instant::now() + time, "run").await?;
    Ok((n, latencies, host.cpu_seconds()? - cpu))
}

async fn drive(
    host: &Arc<Host>,
    base: &str,
    callers: usize,
    until: Instant,
    label: &str,
) -> anyhow::Result<(u64, Latencies)> {
    let counter = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for caller in 0..callers {
        let (host, base, counter, label) = (host.clone(), base.to_owned(), counter.clone(), label.to_owned());
        tasks.push(tokio::spawn(async move {
            let mut agent = http::Connection::open(&host.address, &host.agent).await?;
            let mut approver = http::Connection::open(&host.address, &host.approver).await?;
            let mut latencies = Vec::new();
            let mut n = 0u64;
            while Instant::now() < until {
                let began = Instant::now();
                let key = format!("{label}-{callers}-{caller}-{n}");
                let body = json!({
                    "tool": "refund",
                    "arguments": {"payment_intent": "pi_1", "amount": 100, "currency": "eur", "api_base": base},
                });
                let action = agent.post("/v1/actions", &[("Idempotency-Key", &key)], &body.to_string(), 201).await?;
                let id = action["id"].as_str().unwrap_or_default().to_owned();
                let etag = format!("\"{}\"", action["fingerprint"].as_str().unwrap_or_default());
                approver.post(&format!("/v1/actions/{id}/approve"), &[("If-Match", &etag)], "", 200).await?;
                let done = agent.post(&format!("/v1/actions/{id}/execute?wait=30s"), &[], "", 200).await?;
                anyhow::ensure!(done["status"] == "succeeded", "an action ended {done}");
                latencies.push(began.elapsed());
                n += 1;
            }
            counter.fetch_add(n, Ordering::Relaxed);
            anyhow::Ok(latencies)
        }));
    }
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await??);
    }
    Ok((counter.load(Ordering::Relaxed), Latencies::new(all)))
}

/// Asking again for an action that is finished.
async fn replay() -> anyhow::Result<()> {
    let upstream = upstream::start().await?;
    let host = Arc::new(Host::start(upstream.port)?);
    drive(&host, &upstream.base(), 1, Instant::now() + Duration::from_millis(200), "finished").await?;
    println!("\nAsking again for a finished action, through HTTP");
    println!("| callers | answers/s | p50 ms | p99 ms |");
    println!("|---|---|---|---|");
    for callers in [1usize, 8, 64] {
        let until = Instant::now() + ROW;
        let mut tasks = Vec::new();
        for _ in 0..callers {
            let (host, base) = (host.clone(), upstream.base());
            tasks.push(tokio::spawn(async move {
                let mut agent = http::Connection::open(&host.address, &host.agent).await?;
                let body = json!({
                    "tool": "refund",
                    "arguments": {"payment_intent": "pi_1", "amount": 100, "currency": "eur", "api_base": base},
                })
                .to_string();
                let key = [("Idempotency-Key", "finished-1-0-0")];
                let action = agent.post("/v1/actions", &key, &body, 200).await?;
                let path = format!("/v1/actions/{}/execute", action["id"].as_str().unwrap_or_default());
                let mut latencies = Vec::new();
                while Instant::now() < until {
                    let began = Instant::now();
                    let done = agent.post(&path, &[], "", 200).await?;
                    anyhow::ensure!(done["replayed"] == true, "it was run again: {done}");
                    latencies.push(began.elapsed());
                }
                anyhow::Ok(latencies)
            }));
        }
        let mut all = Vec::new();
        for task in tasks {
            all.extend(task.await??);
        }
        let rate = all.len() as f64 / ROW.as_secs_f64();
        let latencies = Latencies::new(all);
        println!("| {callers} | {rate:.0} | {:.2} | {:.2} |", latencies.at(0.5), latencies.at(0.99));
    }
    Ok(())
}

/// What 10,000 actions that wait for a person cost in memory.
async fn memory() -> anyhow::Result<()> {
    const PENDING: u64 = 10_000;
    let upstream = upstream::start().await?;
    let host = Arc::new(Host::start(upstream.port)?);
    let idle = host.resident_bytes()?;
    let mut agent = http::Connection::open(&host.address, &host.agent).await?;
    let base = upstream.base();
    for n in 0..PENDING {
        let body = json!({
            "tool": "refund",
            "arguments": {"payment_intent": "pi_1", "amount": 100, "currency": "eur", "api_base": base},
        });
        agent
            .post("/v1/actions", &[("Idempotency-Key", &format!("pending-{n}"))], &body.to_string(), 201)
            .await?;
        if n == 999 {
            println!("\nMemory of the host's process (resident)");
            println!("| pending actions | MiB |");
            println!("|---|---|");
            println!("| 0 | {:.1} |", idle as f64 / 1048576.0);
            println!("| 1,000 | {:.1} |", host.resident_bytes()? as f64 / 1048576.0);
        }
    }
    println!("| {PENDING} | {:.1} |", host.resident_bytes()? as f64 / 1048576.0);
    Ok(())
}

/// Latencies of one row.
pub struct Latencies(Vec<Duration>);

impl Latencies {
    /// From single measurements.
    pub fn new(mut all: Vec<Duration>) -> Latencies {
        all.sort_unstable();
        Latencies(all)
    }

    /// All of them.
    pub fn all(self) -> Vec<Duration> {
        self.0
    }

    /// The quantile, in milliseconds.
    pub fn at(&self, quantile: f64) -> f64 {
        let index = ((self.0.len() as f64 * quantile) as usize).min(self.0.len().saturating_sub(1));
        self.0.get(index).map_or(f64::NAN, |duration| duration.as_secs_f64() * 1000.0)
    }
}
