//! However long the history is, a hot statement reads only what it is about.

use tokio_postgres::Client;

use super::{InDatabase, cluster};
use crate::conformance::scene::Scene;
use crate::postgres::sql;

/// Rows of history. The nightly form has more.
#[expect(clippy::disallowed_methods, reason = "how the tests are run")]
fn history() -> i64 {
    std::env::var("COUNTERSIGN_HISTORY").ok().and_then(|text| text.parse().ok()).unwrap_or(50_000)
}

/// Copies of an action that ended, with its effect and its events.
async fn copy(client: &Client, table: &str, changed: &[(&str, &str)]) {
    let columns: Vec<String> = client
        .query(
            "select column_name::text from information_schema.columns
             where table_schema = current_schema() and table_name = $1 and is_generated = 'NEVER'",
            &[&table],
        )
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();
    let values: Vec<String> = columns
        .iter()
        .map(|column| {
            let changed = changed.iter().find(|(name, _)| name == column);
            changed.map_or_else(|| format!("o.{column}"), |(_, value)| (*value).to_owned())
        })
        .collect();
    client
        .batch_execute(&format!(
            "alter table {table} disable trigger user;
             insert into {table} ({}) select {} from {table} o, generate_series(1, {}) n;
             alter table {table} enable trigger user",
            columns.join(", "),
            values.join(", "),
            history()
        ))
        .await
        .unwrap();
}

/// Everything that is run once or more for every action, or polled.
const HOT: &[(&str, &str)] = &[
    ("APPROVE", sql::APPROVE),
    ("TRANSITION", sql::TRANSITION),
    ("REQUEST_CANCEL", sql::REQUEST_CANCEL),
    ("POSTPONE", sql::POSTPONE),
    ("CLAIM_TO_RUN", sql::CLAIM_TO_RUN),
    ("CLAIM_TO_REPEAT", sql::CLAIM_TO_REPEAT),
    ("HEARTBEAT", sql::HEARTBEAT),
    ("CLAIM_WRITE", sql::CLAIM_WRITE),
    ("CLAIM_WRITE_IN_PLACE", sql::CLAIM_WRITE_IN_PLACE),
    ("REPEAT_WRITE", sql::REPEAT_WRITE),
    ("RECORD_SETTLED", sql::RECORD_SETTLED),
    ("RECORD_SETTLED_IN_PLACE", sql::RECORD_SETTLED_IN_PLACE),
    ("RECORD", sql::RECORD),
    ("RECORD_LATE", sql::RECORD_LATE),
    ("END_ATTEMPT", sql::END_ATTEMPT),
    ("RESOLVE", sql::RESOLVE),
    ("INSERT_ACTION", sql::INSERT_ACTION),
    ("ACTION", sql::ACTION),
    ("EFFECTS", sql::EFFECTS),
    ("UNKNOWN_EFFECTS", sql::UNKNOWN_EFFECTS),
    ("EFFECTS_WITH_HISTORY", sql::EFFECTS_WITH_HISTORY),
    ("EVENTS_OF_ACTION", sql::EVENTS_OF_ACTION),
    ("EVENTS", sql::EVENTS),
    ("LOG", sql::LOG),
    ("LIST", sql::LIST),
    ("LIST_BY_STATE", sql::LIST_BY_STATE),
    ("LIST_BY_TOOL", sql::LIST_BY_TOOL),
    ("LIST_BY_RUN", sql::LIST_BY_RUN),
    ("DUE", sql::DUE),
    ("TOOL", sql::TOOL),
    ("PRINCIPAL", sql::PRINCIPAL),
];

/// Of each table, what narrows a look at it to one action.
const OWN: &[(&str, &str)] = &[
    ("actions", "(id = "),
    ("effects", "(action_id = "),
    ("events", "(action_id = "),
    ("approvals", "(action_id = "),
];

/// Read along an index, and so in order and no further than they are asked.
fn is_a_list(name: &str) -> bool {
    ["LIST", "DUE", "EVENTS"].contains(&name) || name.starts_with("LIST_BY")
}

async fn check(client: &Client, when: &str) {
    for (name, statement) in HOT {
        let prepared = client.prepare(statement).await.unwrap();
        let nulls = vec!["null"; prepared.params().len()].join(", ");
        client.batch_execute(&format!("prepare hot as {statement}")).await.unwrap();
        let plan: Vec<String> = client
            .query(&format!("explain (costs off) execute hot({nulls})"), &[])
            .await
            .unwrap()
            .iter()
            .map(|row| row.get(0))
            .collect();
        client.batch_execute("deallocate hot").await.unwrap();
        let all = plan.join("\n");
        for (table, own) in OWN {
            for (n, line) in plan.iter().enumerate() {
                let Some((how, what)) = line.split_once(" on ") else { continue };
                let scan = how.contains("Scan") && what.split(' ').next() == Some(table);
                // Approvals are copied by no history here; a table of nothing may
                // be read as a whole.
                if !scan || is_a_list(name) || when.contains("scan") && *table == "approvals" {
                    continue;
                }
                let narrow = plan[n..]
                    .iter()
                    .skip(1)
                    .take(1)
                    .any(|cond| cond.contains("Index Cond") && cond.contains(own));
                assert!(narrow, "{when}, {name} looks at more of {table} than one action's:\n{all}");
            }
        }
        assert!(!plan.iter().any(|line| line.contains("Seq Scan on actions")), "{when}, {name}:\n{all}");
        if is_a_list(name) {
            let sorts = plan.iter().any(|line| line.trim_start_matches(['-', '>', ' ']).starts_with("Sort"));
            assert!(!sorts, "{when}, {name} sorts what an index has in order:\n{all}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_hot_statement_uses_an_index_however_short_or_long_the_history_is() {
    let Some(backend) = InDatabase::open().await else { return };
    let scene = Scene::new(&backend).await;
    let client = cluster::shared().unwrap().client(backend.name()).await;
    // As the store's connections are.
    client.batch_execute(sql::SETTINGS).await.unwrap();
    client.batch_execute("set synchronous_commit = off").await.unwrap();
    // Plans are made while nothing is there, and kept until somebody analyses.
    check(&client, "empty").await;

    let attempt = scene.running("k").await;
    scene.written(&attempt, 1).await;
    scene.succeed(&attempt).await;
    let id = "decode(md5(n::text), 'hex')";
    let run = [("id", id), ("created", "o.created - n"), ("run", "'run-' || n / 10"), ("step", "n::text")];
    copy(&client, "actions", &run).await;
    copy(&client, "effects", &[("action_id", id)]).await;
    copy(&client, "events", &[("action_id", id), ("cursor", "n * 16 + o.seq - 1000000000000")]).await;
    check(&client, "grown").await;
    client.batch_execute("analyze").await.unwrap();
    check(&client, "analysed").await;
    // Nor does it need what forbids a scan.
    client.batch_execute("set enable_seqscan = on; set enable_bitmapscan = on").await.unwrap();
    check(&client, "analysed, and free to scan").await;
}
