//! A database that is looked at from outside, empty and in use.

use countersign_domain::action::State;
use countersign_domain::time::Timestamp;

use super::InDatabase;
use super::cluster;
use crate::health::{Level, OPEN_STATES};
use crate::postgres::{PostgresOptions, examine};

fn now() -> Timestamp {
    #[expect(clippy::disallowed_methods, reason = "what is compared is this machine's clock")]
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    Timestamp::from_micros(i64::try_from(since.as_micros()).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_is_examined_before_and_after_its_first_host_and_is_not_changed_by_it() {
    let Some(cluster) = cluster::shared() else { return };
    let name = "nobody_was_here_yet";
    cluster.client("postgres").await.batch_execute(&format!("create database {name}")).await.unwrap();
    let options = PostgresOptions::new(cluster.url(name));
    for _ in 0..2 {
        let found = examine(&options, now).await;
        let level = |check: &str| found.findings.iter().find(|finding| finding.check == check).unwrap().level;
        assert!(found.findings.iter().all(|finding| finding.level != Level::Failure), "{found:?}");
        assert_eq!(level("schema"), Level::Warning, "looking migrates nothing: {found:?}");
        assert_eq!((level("version"), level("clock")), (Level::Good, Level::Good), "{found:?}");
        assert!(found.folder.as_ref().is_some_and(|folder| folder.is_dir()), "{found:?}");
    }
    let nowhere = PostgresOptions::new(cluster.url("no_such_database"));
    let found = examine(&nowhere, now).await;
    assert!(found.findings.iter().any(|finding| finding.level == Level::Failure), "{found:?}");

    let Some(backend) = InDatabase::open().await else { return };
    let found = examine(&PostgresOptions::new(cluster.url(backend.name())), now).await;
    let schema = found.findings.iter().find(|finding| finding.check == "schema").unwrap();
    assert_eq!(schema.level, Level::Good, "{found:?}");
    let connections = found.findings.iter().find(|finding| finding.check == "connections").unwrap();
    assert!(connections.found.contains("a host takes up to 9"), "{connections:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_census_reads_an_index_and_no_further_than_it_counts() {
    let Some(backend) = InDatabase::open().await else { return };
    let census = backend.store.census().await.unwrap();
    assert_eq!(census.open.iter().map(|(state, _)| *state).collect::<Vec<State>>(), OPEN_STATES);
    let explain = format!("explain {}", crate::health::CENSUS);
    backend.beside.batch_execute("set enable_seqscan = off; set enable_bitmapscan = off").await.unwrap();
    let plan: Vec<String> =
        backend.beside.query(&explain, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    let plan = plan.join("\n");
    assert!(plan.contains("actions_by_state") && plan.contains("Limit"), "{plan}");
    assert!(!plan.contains("Seq Scan on actions"), "{plan}");
}
