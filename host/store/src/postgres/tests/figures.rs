//! What a whole life of an action costs the server, to be run by hand:
//! `cargo test --release -p countersign-store figures -- --ignored --nocapture`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use countersign_domain::grant::RecoveryClass;

use super::cluster::Cluster;
use super::{InDatabase, PostgresOptions, PostgresStore};
use crate::conformance::scene::{Scene, answered, made};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it measures, and takes as long as it is told to"]
async fn figures_of_whole_lives_by_callers() {
    let statistics =
        ["shared_preload_libraries=pg_stat_statements", "pg_stat_statements.track=all", "autovacuum=on"];
    let Some(cluster) = Cluster::start(&statistics) else { return };
    let name = cluster.database().await;
    let store = PostgresStore::open(PostgresOptions::new(cluster.url(&name))).await.unwrap();
    let backend = InDatabase { store, beside: cluster.client(&name).await };
    backend.beside.batch_execute("create extension pg_stat_statements").await.unwrap();
    let beside = cluster.client(&name).await;
    // `Scene` borrows its backend; both last as long as the process does.
    let scene: &'static Scene<'static> = Box::leak(Box::new(Scene::new(Box::leak(Box::new(backend))).await));
    let number = Arc::new(AtomicU32::new(0));
    println!("callers  actions/s  p50 ms  p99 ms  server CPU ms/action");
    for callers in [1, 8, 32, 128] {
        let (began, cpu) = (Instant::now(), cluster.processor_time());
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..callers {
            let number = number.clone();
            tasks.spawn(async move {
                let mut took = Vec::new();
                while began.elapsed() < Duration::from_secs(5) {
                    let start = Instant::now();
                    let action =
                        scene.awaiting(&format!("k{}", number.fetch_add(1, Ordering::Relaxed)), 1).await;
                    made(scene.store.approve(scene.approval(&action, "ben")).await);
                    let attempt = scene.run(action.id).await;
                    let claimed = scene.write_as(&attempt, 1, RecoveryClass::Manual).await;
                    scene.in_time(action.id, claimed.fence, answered(200)).await;
                    scene.succeed(&attempt).await;
                    took.push(start.elapsed());
                }
                took
            });
        }
        let mut took: Vec<Duration> = tasks.join_all().await.concat();
        took.sort_unstable();
        let (many, seconds) = (took.len(), began.elapsed().as_secs_f64());
        let at = |part: usize| took[many * part / 100].as_secs_f64() * 1000.0;
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let many_f = many as f64;
        println!(
            "{callers:7}  {:9.0}  {:6.2}  {:6.2}  {:20.3}",
            many_f / seconds,
            at(50),
            at(99),
            (cluster.processor_time() - cpu) / many_f
        );
    }
    println!("  calls  min µs  mean µs  level  statement");
    let statements = "select calls, min_exec_time * 1000, mean_exec_time * 1000, toplevel,
            left(regexp_replace(query, '\\s+', ' ', 'g'), 100)
        from pg_stat_statements where calls > 20 order by total_exec_time desc limit 40";
    for row in beside.query(statements, &[]).await.unwrap() {
        let (calls, min, mean): (i64, f64, f64) = (row.get(0), row.get(1), row.get(2));
        let (top, text): (bool, &str) = (row.get(3), row.get(4));
        println!("{calls:7}  {min:6.1}  {mean:7.1}  {}  {text}", if top { "ours " } else { "inner" });
    }
}
