//! Databases that cannot be used: at the start, and when it happens while the host runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::skip;
use crate::support::stage::{REFUNDS, install};
use crate::support::{BINARY, Host, Provider, Stage, grants, guests};

fn stopped() -> Stage {
    let stage = Stage::set();
    stage.propose("refund", "kept", &stage.refund("kept", 100)).expect(201);
    stage.host.stop();
    stage
}

fn database(host: &Host) -> PathBuf {
    host.file("countersign.db")
}

#[test]
fn a_database_of_a_newer_or_another_version_is_refused_and_left_as_it_is() {
    let stage = stopped();
    let open = || rusqlite::Connection::open(database(&stage.host)).expect("the database");
    let db = open();
    db.execute("insert into schema_migrations values (99, 'later', 'x', 0)", []).expect("a row");
    drop(db);
    let said = stage.host.refuses_to_start(&mut stage.host.command());
    assert!(
        said.contains("newer version") && said.contains("99") && said.contains("countersign.db"),
        "{said}"
    );
    let db = open();
    db.execute("delete from schema_migrations where number = 99", []).expect("the row goes");
    db.execute("update schema_migrations set checksum = 'other' where number = 1", []).expect("a change");
    drop(db);
    let said = stage.host.refuses_to_start(&mut stage.host.command());
    assert!(said.contains("another build") && said.contains("restore"), "{said}");
}

#[test]
fn a_file_that_is_no_database_and_one_that_is_cut_off_are_refused_and_not_touched() {
    let stage = stopped();
    let path = database(&stage.host);
    let whole = fs::read(&path).expect("the database");
    for (bytes, part) in [
        (b"this is not a database, but some other file of somebody's".repeat(100), "not a SQLite database"),
        (whole[..whole.len() / 3].to_vec(), "damaged"),
    ] {
        for other in ["countersign.db-wal", "countersign.db-shm"] {
            let _ = fs::remove_file(stage.host.file(other));
        }
        fs::write(&path, &bytes).expect("another file");
        let said = stage.host.refuses_to_start(&mut stage.host.command());
        assert!(said.contains(part) && said.contains("countersign.db"), "{part}: {said}");
        assert_eq!(fs::read(&path).expect("the file"), bytes, "it was not ours to change");
    }
    // The backup, restored, is as good as before.
    fs::write(&path, whole).expect("the backup");
    stage.host.wake();
    assert_eq!(stage.audit(), 1);
}

#[test]
fn a_database_that_another_process_locks_is_refused_at_start_and_503_while_it_runs() {
    let stage = stopped();
    let held = rusqlite::Connection::open(database(&stage.host)).expect("the database");
    held.execute_batch("begin exclusive").expect("the lock");
    let said = stage.host.refuses_to_start(&mut stage.host.command());
    assert!(said.contains("another process") && said.contains("countersign.db"), "{said}");
    held.execute_batch("rollback").expect("the lock goes");

    stage.host.wake();
    let id = stage.approved("refund", "locked", &stage.refund("locked", 100));
    held.execute_batch("begin immediate").expect("the write lock");
    let told = stage.propose("refund", "more", &stage.refund("more", 100));
    let said = told.refused(503, "unavailable");
    assert!(said.contains("another process"), "{said}");
    assert!(told.answer.header("retry-after").is_some() && told.json["retryable"] == true);
    stage.start_execute(&id).refused(503, "unavailable");
    assert_eq!(stage.counts(REFUNDS, &id), (0, 0), "nothing is sent while a claim cannot be made");
    // Reading goes on.
    assert_eq!(stage.action(&id).outcome(), "approved");
    held.execute_batch("rollback").expect("the lock goes");
    assert_eq!(stage.execute(&id).outcome(), "succeeded");
    assert_eq!(stage.counts(REFUNDS, &id), (1, 1));
    stage.propose("refund", "more", &stage.refund("more", 100)).expect(201);
}

/// A small file system of its own, gone with this value.
struct Small(tempfile::TempDir);

impl Small {
    /// `None` where this user may not mount any.
    fn mount(size: &str) -> Option<Small> {
        let folder = tempfile::tempdir().expect("a folder");
        let options = format!("size={size}");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(folder.path()).output();
        mounted.ok().filter(|output| output.status.success()).map(|_| Small(folder))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn read_only(&self, yes: bool) {
        let options = if yes { "remount,ro" } else { "remount,rw" };
        let done = Command::new("mount").args(["-o", options]).arg(self.path()).status();
        assert!(done.is_ok_and(|status| status.success()));
    }

    /// Takes all the room that is left.
    fn fill(&self) -> PathBuf {
        let path = self.path().join("everything");
        let mut file = fs::File::create(&path).expect("a file");
        while std::io::Write::write_all(&mut file, &[0; 4096]).is_ok() {}
        path
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["-l"]).arg(self.path()).status();
    }
}

/// A stage whose host lives on a small file system.
fn stage_on(small: &Small) -> Stage {
    let provider = Provider::start(BINARY);
    let host = Host::at(&small.path().join("data"), "");
    host.wake();
    install(&host, "", &guests::REFUND, &grants::refund(provider.port())).expect(201);
    Stage { provider, host }
}

#[test]
fn on_a_full_disk_nothing_is_acknowledged_nothing_is_sent_and_it_goes_on_when_there_is_room() {
    let Some(small) = Small::mount("24m") else { skip!("a small file system cannot be mounted here") };
    let stage = stage_on(&small);
    let kept = stage.propose("refund", "before", &stage.refund("before", 100)).expect(201);
    let id = stage.approved("refund", "approved", &stage.refund("approved", 100));
    let filler = small.fill();
    // A few pages of the log may be there to be used again; then there is no more.
    let mut acknowledged = Vec::new();
    let refused = (0..2000).find_map(|n| {
        let told = stage.propose("refund", &format!("full-{n}"), &stage.refund("full", 100));
        if told.status() == 201 {
            acknowledged.push(told.id());
            return None;
        }
        Some(told)
    });
    let refused = refused.expect("the disk is full");
    let said = refused.refused(503, "unavailable");
    assert!(said.contains("full") && said.contains("make room"), "{said}");
    let told = stage.start_execute(&id);
    assert_eq!(told.status(), 503, "{}", told.json);
    assert_eq!(stage.counts(REFUNDS, &id), (0, 0), "nothing is sent whose claim is not on the disk");
    assert_eq!(stage.action(&id).outcome(), "approved");
    fs::remove_file(filler).expect("room");
    assert_eq!(stage.execute(&id).outcome(), "succeeded");
    assert_eq!(stage.counts(REFUNDS, &id), (1, 1));
    // What was acknowledged is there, also after a kill.
    stage.host.kill_and_wake();
    for id in acknowledged.iter().chain([&kept.id()]) {
        assert_eq!(stage.action(id).outcome(), "awaiting_approval");
    }
    stage.audit();
}

#[test]
fn a_disk_that_fills_up_between_the_answer_and_its_record_leaves_it_unknown_and_then_settles_it() {
    let Some(small) = Small::mount("24m") else { skip!("a small file system cannot be mounted here") };
    let stage = stage_on(&small);
    let id = stage.approved("refund", "record", &stage.refund("record", 100));
    stage.provider.fault(crate::support::Rule::once(REFUNDS, crate::support::Fault::hold()));
    let _caller = stage.execute_unheard(&id);
    stage.provider.wait_held(1);
    let filler = small.fill();
    while stage.propose("refund", &format!("fill-{}", rand()), &stage.refund("fill", 100)).status() == 201 {}
    stage.provider.release();
    stage.provider.wait_requests(REFUNDS, 1);
    fs::remove_file(filler).expect("room");
    stage.host.kill_and_wake();
    let told = stage.execute(&id);
    assert_eq!(told.outcome(), "succeeded", "{}", told.json);
    assert_eq!(stage.effects(REFUNDS, &id).len(), 1);
    stage.facts(&id);
}

/// A number that no other key of this run has.
fn rand() -> usize {
    static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

#[test]
fn a_read_only_database_is_refused_at_start_with_what_to_do() {
    let Some(small) = Small::mount("24m") else { skip!("a small file system cannot be mounted here") };
    let stage = stage_on(&small);
    stage.host.stop();
    // The host's log is written by the test, beside the database.
    let folder = small.path().join("data");
    small.read_only(true);
    let mut command = Command::new(BINARY);
    command.args(["serve", "--listen", "127.0.0.1:0", "--data-dir"]).arg(&folder);
    let told = crate::support::host::Cli::run(&mut command, "");
    small.read_only(false);
    assert_eq!(told.code, 1, "{told:?}");
    assert!(told.err.contains("countersign"), "{}", told.err);
    assert!(
        ["Read-only", "read-only", "writable", "cannot be opened"].iter().any(|part| told.err.contains(part)),
        "{}",
        told.err
    );
    stage.host.wake();
    assert_eq!(
        stage.host.agent().get("/v1/tools").expect(200).json["tools"].as_array().map(Vec::len),
        Some(1)
    );
}
