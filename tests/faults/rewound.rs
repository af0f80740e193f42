//! A ledger that forgot: an asynchronous standby that lacks the last claims is promoted (E02), or a
//! backup is restored. Nobody knows what was sent, and nothing is sent as if it were new.

use serde_json::json;

use crate::support::grants::{Route, grant};
use crate::support::stage::REFUNDS;
use crate::support::standby::{ASYNCHRONOUS, Pair};
use crate::support::{Backend, Host, Stage, long};
use crate::{on_both_stores, skip};

on_both_stores! {
    p2_a_restored_backup_leaves_everything_open_in_doubt_and_sends_nothing_as_if_it_were_new,
}

const LEASE: &str = "lease = \"500ms\"";
const SEND: &str = "500ms";

fn install_manual(stage: &Stage) {
    let route = Route::manual(stage.provider.port(), "/any/**");
    stage.install_probe("manual", &grant(&format!("[limits]\nsend = \"{SEND}\""), &[route]));
}

/// Actions of every standing, and what must become of them once the ledger forgot what came after.
struct Open {
    /// May be repeated; sent after the ledger's last memory.
    refund: String,
    /// May not; sent.
    manual: String,
    /// May not; not sent.
    unsent: String,
    /// Not approved yet.
    waiting: String,
    /// Ended before.
    done: String,
    result: String,
    path: String,
}

impl Open {
    fn propose(stage: &Stage, round: usize) -> Open {
        let path = format!("/any/lost-{round}");
        let arguments = json!({ "mode": "writes", "url": stage.url(&path), "bodies": ["once"] });
        let done = stage.approved("refund", "done", &stage.refund("done", 100));
        Open {
            refund: stage.approved("refund", "refund", &stage.refund("lost", 100)),
            manual: stage.approved("manual", "manual", &arguments),
            unsent: stage.approved("manual", "unsent", &arguments),
            waiting: stage.propose("refund", "waiting", &stage.refund("waiting", 100)).expect(201).id(),
            result: stage.execute(&done).raw("result"),
            done,
            path,
        }
    }

    /// Claimed, sent, recorded, acknowledged: what is forgotten next.
    fn send(&self, stage: &Stage) {
        for id in [&self.refund, &self.manual] {
            assert_eq!(stage.execute(id).outcome(), "succeeded");
        }
    }

    fn check(&self, stage: &Stage) {
        for id in [&self.refund, &self.manual, &self.unsent, &self.waiting] {
            stage.wait_for(id, &["outcome_unknown", "succeeded"]);
        }
        // What may be repeated is, under the key that the provider knows.
        assert_eq!(stage.wait_for(&self.refund, &["succeeded"]).outcome(), "succeeded");
        assert_eq!(stage.effects(REFUNDS, &self.refund).len(), 1);
        let sent = stage.requests(REFUNDS, &self.refund);
        assert!(sent.iter().all(|line| line.key == sent[0].key && line.body_sha256 == sent[0].body_sha256));
        // What may not waits for a person, whether it was sent or not.
        for (id, sends) in [(&self.manual, 1), (&self.unsent, 0)] {
            stage.execute(id).refused(409, "execution_in_doubt");
            assert_eq!(stage.counts(&self.path, id), (sends, sends));
        }
        assert_eq!(stage.counts(REFUNDS, &self.waiting), (0, 0), "nobody ever approved it");
        assert_eq!(stage.execute(&self.done).raw("result"), self.result, "what ended before stays");
        for id in [&self.refund, &self.manual, &self.unsent, &self.waiting, &self.done] {
            stage.facts(id);
        }
    }
}

#[test]
fn e02_p2_an_asynchronous_standby_that_lacks_claims_is_promoted_and_nothing_open_is_sent_as_if_it_were_new() {
    let Some(mut pair) = Pair::start(ASYNCHRONOUS) else { skip!("it needs a PostgreSQL server") };
    for round in 0..long(2, 200) {
        let database = pair.primary.database();
        let stage = Stage::over(Some(pair.url(&database)), LEASE, SEND);
        install_manual(&stage);
        let open = Open::propose(&stage, round);
        pair.catch_up();
        pair.part();
        open.send(&stage);
        pair.fail_over();
        // Under the host that lived through it, and under one that starts over what is left.
        if round % 2 == 1 {
            stage.host.kill();
            stage.host.wake();
        }
        open.check(&stage);
        stage.host.kill();
        pair.standby.sql("postgres", &format!("drop database {database} with (force)"));
        let Some(again) = pair.pair_again() else { return };
        pair = again;
    }
}

/// A backup of a stopped host's ledger.
enum Backup {
    File(Vec<u8>),
    Database { name: String },
}

impl Backup {
    fn of(on: Backend, host: &Host) -> Backup {
        match on {
            Backend::Sqlite => Backup::File(std::fs::read(host.file("countersign.db")).expect("the ledger")),
            Backend::Postgres(cluster) => {
                let (_, name) = host.store().and_then(|url| url.rsplit_once('/')).expect("a database");
                cluster.sql("postgres", &format!("create database {name}_backup template {name}"));
                Backup::Database { name: name.to_owned() }
            }
        }
    }

    fn restore(&self, on: Backend, host: &Host) {
        match (self, on) {
            (Backup::File(bytes), _) => {
                for beside in ["countersign.db-wal", "countersign.db-shm"] {
                    let _ = std::fs::remove_file(host.file(beside));
                }
                std::fs::write(host.file("countersign.db"), bytes).expect("the backup");
            }
            (Backup::Database { name }, Backend::Postgres(cluster)) => {
                cluster.sql("postgres", &format!("drop database {name} with (force)"));
                cluster.sql("postgres", &format!("alter database {name}_backup rename to {name}"));
            }
            (Backup::Database { .. }, Backend::Sqlite) => unreachable!("a database is a server's"),
        }
    }
}

fn p2_a_restored_backup_leaves_everything_open_in_doubt_and_sends_nothing_as_if_it_were_new(on: Backend) {
    let stage = Stage::on_with(on, LEASE, SEND);
    install_manual(&stage);
    let open = Open::propose(&stage, 0);
    stage.host.stop();
    let backup = Backup::of(on, &stage.host);
    stage.host.wake();
    open.send(&stage);
    let arguments = stage.refund("later", 100);
    let later = stage.approved("refund", "later", &arguments);
    let result = stage.execute(&later).raw("result");
    stage.host.stop();
    backup.restore(on, &stage.host);
    stage.host.wake_with(stage.host.command().arg("--after-restore"));
    open.check(&stage);
    // What the ledger does not know at all is proposed anew: the same action, under the same key at
    // the provider, which knows it.
    let proposed = stage.propose("refund", "later", &arguments).expect(201);
    assert_eq!(proposed.id(), later);
    stage.approve(&later, &proposed.text("/fingerprint")).expect(200);
    assert_eq!(stage.execute(&later).raw("result"), result);
    assert_eq!(stage.effects(REFUNDS, &later).len(), 1);
    // The doubt is one restore's, not every later start's.
    stage.host.kill();
    stage.host.wake();
    let fresh = stage.approved("refund", "fresh", &stage.refund("fresh", 100));
    assert_eq!(stage.execute(&fresh).outcome(), "succeeded");
    assert_eq!(stage.counts(REFUNDS, &fresh), (1, 1));
}

#[test]
fn fi_4_an_old_primary_that_comes_back_is_refused_by_hosts_that_have_used_the_new_one() {
    let Some(pair) = Pair::start(ASYNCHRONOUS) else { skip!("it needs a PostgreSQL server") };
    let stage = Stage::over(Some(pair.url(&pair.primary.database())), LEASE, SEND);
    install_manual(&stage);
    let arguments = json!({ "mode": "writes", "url": stage.url("/any/old"), "bodies": ["once"] });
    let waiting = stage.propose("manual", "old", &arguments).expect(201);
    pair.catch_up();
    pair.fail_over();
    // Proposed, approved and sent on the new primary.
    stage.wait_for(&waiting.id(), &["outcome_unknown"]);
    let new = json!({ "mode": "writes", "url": stage.url("/any/new"), "bodies": ["once"] });
    let id = stage.approved("manual", "new", &new);
    assert_eq!(stage.execute(&id).outcome(), "succeeded");
    // The old one knows nothing of it, and would let it be made again.
    pair.primary.start();
    pair.way.point_at(pair.primary.socket());
    let told = stage.propose("manual", "new", &new);
    let said = told.refused(503, "unavailable");
    assert!(said.contains("old primary"), "{said}");
    stage.start_execute(&waiting.id()).refused(503, "unavailable");
    // Where the way leads to the new one again, all is as it was.
    pair.way.point_at(pair.standby.socket());
    assert!(stage.execute(&id).is_replayed());
    assert_eq!(stage.counts("/any/new", &id), (1, 1));
    assert_eq!(stage.provider.requests("/any/old").len(), 0);
    stage.host.kill();
}
