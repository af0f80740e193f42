//! The whole path on PostgreSQL, beside the action's own statements alone on the
//! same server in the same run; one host and four; and claims over a history.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::cluster::Cluster;
use crate::host::Host;
use crate::{Latencies, ROW, drive, http, statements, upstream};

/// Ended actions that claims are measured over; each is seven rows, so these are
/// seven million. `COUNTERSIGN_HISTORY` says another number.
const HISTORY: u64 = 1_000_000;

/// One host at several numbers of callers, and several hosts.
pub async fn measure() -> anyhow::Result<()> {
    let cluster = Cluster::start()?;
    let upstream = upstream::start().await?;
    whole(&cluster, &upstream).await?;
    four_hosts(&cluster, &upstream).await
}

/// The same work over nothing and over a long history. Growing it takes minutes,
/// and some 5 GB a million actions.
pub async fn measure_history() -> anyhow::Result<()> {
    let cluster = Cluster::start()?;
    let upstream = upstream::start().await?;
    history(&cluster, &upstream).await
}

async fn whole(cluster: &Cluster, upstream: &upstream::Upstream) -> anyhow::Result<()> {
    let (script, made_of) = statements_of_one(cluster, upstream).await?;
    println!("\nWhole path on PostgreSQL, {ROW:?} a row; an action is {made_of} statements of its own");
    println!(
        "| callers | statements alone/s | countersign/s | share | p50 ms | p99 ms | host CPU ms | database CPU ms \
         | transactions | flushes |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for callers in [1usize, 8, 32, 128] {
        let database = cluster.database(&format!("whole_{callers}"))?;
        let host = Arc::new(Host::start_on(Some(&cluster.url(&database)), upstream.port)?);
        let base = upstream.base();
        drive(&host, &base, callers, Instant::now() + Duration::from_millis(500), "warm").await?;
        // The rows that statements of the script refer to are there.
        let alone = cluster.pgbench(&database, &script, callers, ROW)?;
        let (commits, flushes) = cluster.counts(&database)?;
        let (cpu, database_cpu) = (host.cpu_seconds()?, cluster.cpu_seconds()?);
        let (n, latencies) = drive(&host, &base, callers, Instant::now() + ROW, "run").await?;
        let each = |before: f64, after: f64| (after - before) / n as f64;
        let (cpu, database_cpu) =
            (each(cpu, host.cpu_seconds()?) * 1e3, each(database_cpu, cluster.cpu_seconds()?) * 1e3);
        let after = cluster.counts(&database)?;
        let rate = n as f64 / ROW.as_secs_f64();
        println!(
            "| {callers} | {alone:.0} | {rate:.0} | {:.0} % | {:.2} | {:.2} | {cpu:.2} | {database_cpu:.2} | {:.1} | {:.1} |",
            100.0 * rate / alone,
            latencies.at(0.5),
            latencies.at(0.99),
            each(commits, after.0),
            each(flushes, after.1),
        );
    }
    Ok(())
}

/// What an action asks of the database, read back from its log.
async fn statements_of_one(
    cluster: &Cluster,
    upstream: &upstream::Upstream,
) -> anyhow::Result<(String, usize)> {
    let database = cluster.database("read_back")?;
    let url = cluster.url(&database);
    let host = Arc::new(Host::start_on(Some(&url), upstream.port)?);
    drive(&host, &upstream.base(), 1, Instant::now() + Duration::from_millis(300), "warm").await?;
    cluster.log_statements(&database, true)?;
    // A host that connects anew is heard.
    let heard = Arc::new(host.beside(&url)?);
    drive(&heard, &upstream.base(), 1, Instant::now() + Duration::from_millis(300), "warm-too").await?;
    let mut agent = http::Connection::open(&heard.address, &heard.agent).await?;
    let mut approver = http::Connection::open(&heard.address, &heard.approver).await?;
    let (id, _) = act(&mut agent, &mut approver, &upstream.base(), "read-back").await?;
    cluster.log_statements(&database, false)?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    statements::script(&cluster.log()?, &id, "read-back")
}

/// One action to its end; its id, and how long its execution took.
async fn act(
    agent: &mut http::Connection,
    approver: &mut http::Connection,
    base: &str,
    key: &str,
) -> anyhow::Result<(String, Duration)> {
    let body = json!({
        "tool": "refund",
        "arguments": {"payment_intent": "pi_1", "amount": 100, "currency": "eur", "api_base": base},
    });
    let action = agent.post("/v1/actions", &[("Idempotency-Key", key)], &body.to_string(), 201).await?;
    let id = action["id"].as_str().unwrap_or_default().to_owned();
    approver.post(&format!("/v1/actions/{id}/approve"), &[], "", 200).await?;
    let began = Instant::now();
    let done = agent.post(&format!("/v1/actions/{id}/execute?wait=30s"), &[], "", 200).await?;
    anyhow::ensure!(done["status"] == "succeeded", "an action ended {done}");
    Ok((id, began.elapsed()))
}

async fn four_hosts(cluster: &Cluster, upstream: &upstream::Upstream) -> anyhow::Result<()> {
    const CALLERS: usize = 32;
    println!("\n{CALLERS} callers, spread over hosts on one database");
    println!("| hosts | countersign/s | p50 ms | p99 ms | hosts' CPU ms/action |");
    println!("|---|---|---|---|---|");
    for count in [1usize, 4] {
        let url = cluster.url(&cluster.database(&format!("hosts_{count}"))?);
        let first = Host::start_on(Some(&url), upstream.port)?;
        let mut hosts = Vec::new();
        for _ in 1..count {
            hosts.push(Arc::new(first.beside(&url)?));
        }
        hosts.push(Arc::new(first));
        let mut cpu = 0.0;
        for host in &hosts {
            drive(host, &upstream.base(), 2, Instant::now() + Duration::from_millis(300), &host.address)
                .await?;
            cpu -= host.cpu_seconds()?;
        }
        let until = Instant::now() + ROW;
        let base = upstream.base();
        let label = |n: usize| format!("run-{n}");
        let labels: Vec<String> = (0..hosts.len()).map(label).collect();
        let driven = futures::future::join_all(
            hosts.iter().zip(&labels).map(|(host, label)| drive(host, &base, CALLERS / count, until, label)),
        )
        .await;
        let (mut n, mut all) = (0, Vec::new());
        for one in driven {
            let (count, latencies) = one?;
            n += count;
            all.extend(latencies.all());
        }
        for host in &hosts {
            cpu += host.cpu_seconds()?;
        }
        let latencies = Latencies::new(all);
        println!(
            "| {count} | {:.0} | {:.2} | {:.2} | {:.2} |",
            n as f64 / ROW.as_secs_f64(),
            latencies.at(0.5),
            latencies.at(0.99),
            cpu * 1000.0 / n as f64,
        );
    }
    Ok(())
}

async fn history(cluster: &Cluster, upstream: &upstream::Upstream) -> anyhow::Result<()> {
    let rows = std::env::var("COUNTERSIGN_HISTORY").ok().and_then(|n| n.parse().ok()).unwrap_or(HISTORY);
    let database = cluster.database("history")?;
    let host = Arc::new(Host::start_on(Some(&cluster.url(&database)), upstream.port)?);
    println!("\nExecution (claims, send, records) at 1 caller, over a history of ended actions");
    println!("| actions of history | rows in all tables | p50 ms | p99 ms |");
    println!("|---|---|---|---|");
    for history in [0u64, rows] {
        if history > 0 {
            grow(cluster, &database, history)?;
        }
        // Growing takes minutes, and the host closes what is silent for that long.
        let mut agent = http::Connection::open(&host.address, &host.agent).await?;
        let mut approver = http::Connection::open(&host.address, &host.approver).await?;
        let rows = cluster.sql(
            &database,
            "select (select count(*) from actions) + (select count(*) from effects) + (select count(*) from events)",
        )?;
        let mut all = Vec::new();
        for n in 0..400 {
            let key = format!("over-{history}-{n}");
            let (_, took) = act(&mut agent, &mut approver, &upstream.base(), &key).await?;
            // The first ones plan their statements.
            if n >= 100 {
                all.push(took);
            }
        }
        let latencies = Latencies::new(all);
        println!("| {history} | {} | {:.2} | {:.2} |", rows.trim(), latencies.at(0.5), latencies.at(0.99));
    }
    Ok(())
}

/// Copies of the action that was proposed last, with its effect and events; copies are
/// older than it.
fn grow(cluster: &Cluster, database: &str, rows: u64) -> anyhow::Result<()> {
    let new_id = "decode(md5(n::text), 'hex')";
    for (table, changed) in [
        ("actions", vec![("id", new_id), ("created", "o.created - n")]),
        ("effects", vec![("action_id", new_id)]),
        ("events", vec![("action_id", new_id), ("cursor", "n * 16 + o.seq - 4000000000000")]),
    ] {
        let columns = cluster.sql(
            database,
            &format!(
                "select column_name from information_schema.columns where table_schema = current_schema() and \
                 table_name = '{table}' and is_generated = 'NEVER' order by ordinal_position"
            ),
        )?;
        let columns: Vec<&str> = columns.lines().collect();
        let values: Vec<String> = columns
            .iter()
            .map(|column| {
                let new = changed.iter().find(|(name, _)| name == column);
                new.map_or_else(|| format!("o.{column}"), |(_, value)| (*value).to_owned())
            })
            .collect();
        let of = if table == "actions" { "id" } else { "action_id" };
        cluster.sql(
            database,
            &format!(
                "set synchronous_commit = off; alter table {table} disable trigger all; insert into {table} ({}) \
                 select {} from {table} o, generate_series(1, {rows}) n where o.{of} = (select id from actions where \
                 state = 'succeeded' order by created desc limit 1); alter table {table} enable trigger all",
                columns.join(", "),
                values.join(", "),
            ),
        )?;
    }
    // What a history that grew by the day has behind it, and one made in minutes has not.
    for caught_up in ["vacuum (freeze, analyze)", "checkpoint"] {
        cluster.sql(database, caught_up)?;
    }
    Ok(())
}
