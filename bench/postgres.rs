//! The whole path on PostgreSQL.

use std::sync::Arc;

use crate::host::Host;
use crate::{ROW, load, upstream};

/// One table.
pub async fn measure() -> anyhow::Result<()> {
    let upstream = upstream::start().await?;
    let url = std::env::var("COUNTERSIGN_BENCH_POSTGRES")?;
    println!("| callers | countersign/s | p50 ms | p99 ms | host CPU ms/action |");
    println!("|---|---|---|---|---|");
    for callers in [1usize, 8, 32, 128] {
        let database = format!("bench_{callers}_{}", std::process::id());
        std::process::Command::new("psql").args([&format!("{url}/postgres"), "-qc", &format!("create database {database}")]).status()?;
        let host = Arc::new(Host::start_on(Some(&format!("{url}/{database}")), upstream.port)?);
        let (n, latencies, cpu) = load(&host, &upstream, callers, ROW).await?;
        let rate = n as f64 / ROW.as_secs_f64();
        println!(
            "| {callers} | {rate:.0} | {:.2} | {:.2} | {:.2} |",
            latencies.at(0.5),
            latencies.at(0.99),
            cpu * 1000.0 / n as f64,
        );
    }
    Ok(())
}
