//! A file that cannot be opened says why, where, and what to do.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;

use countersign_domain::action::State;

use super::{OnDisk, options, this_test_again, told};
use crate::conformance::scene::{Scene, lost};
use crate::sqlite::{ManualClock, SqliteOptions, SqliteStore};
use crate::steps::ClaimKind;
use crate::{Ledger as _, StoreError};

fn refused(options: SqliteOptions) -> String {
    match SqliteStore::open(options) {
        Err(StoreError::CannotOpen { what }) => what,
        other => panic!("it was opened, or failed as something else: {other:?}"),
    }
}

#[tokio::test]
async fn a_second_host_of_one_file_is_told_who_holds_it() {
    let on_disk = OnDisk::open().await;
    let what = refused(SqliteOptions::new(on_disk.path()));
    assert!(what.contains(&format!("pid {}", std::process::id())), "{what}");
    assert!(what.contains("PostgreSQL"), "{what}");
    on_disk.store.close().await;
    SqliteStore::open(SqliteOptions::new(on_disk.path())).unwrap();
}

#[tokio::test]
async fn what_was_committed_is_there_after_closing_and_opening() {
    let on_disk = OnDisk::open().await;
    let scene = Scene::new(&on_disk).await;
    let attempt = scene.running("k").await;
    scene.written(&attempt, 1).await;
    let (before, tenant) = (scene.row(attempt.action).await, scene.tenant.clone());
    drop(scene);
    let again = on_disk.reopen().await.unwrap();
    let scene = Scene::new(&again).await;
    assert_eq!(scene.whole(attempt.action).await, before);
    // Cursors go on where they were.
    let last = scene.store.events(&tenant, 0, 100).await.unwrap().last().unwrap().cursor;
    scene.approved("next").await;
    assert!(scene.store.events(&tenant, last, 100).await.unwrap().iter().all(|event| event.cursor > last));
    scene.succeed(&attempt).await;
}

#[tokio::test]
async fn a_database_of_a_newer_version_is_refused() {
    let on_disk = OnDisk::open().await;
    on_disk
        .by_hand()
        .execute_batch("insert into schema_migrations values (99, 'from_the_future', 'x', 0)")
        .unwrap();
    let Err(StoreError::CannotOpen { what }) = on_disk.reopen().await else { panic!("it was opened") };
    for part in ["newer version", "99", "from_the_future", "backup", "ledger.db"] {
        assert!(what.contains(part), "{part} is not in: {what}");
    }
}

#[tokio::test]
async fn a_database_of_another_build_is_refused() {
    let on_disk = OnDisk::open().await;
    on_disk.by_hand().execute_batch("update schema_migrations set checksum = 'x' where number = 1").unwrap();
    let Err(StoreError::CannotOpen { what }) = on_disk.reopen().await else { panic!("it was opened") };
    assert!(what.contains("migration 1 (ledger)") && what.contains("another build"), "{what}");
}

#[test]
fn what_is_no_database_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(&folder, &ManualClock::default());
    let text = "Dear diary, ".repeat(1000);
    std::fs::write(&options.path, &text).unwrap();
    let what = refused(options.clone());
    assert!(what.contains("not a SQLite database") && what.contains("ledger.db"), "{what}");
    assert_eq!(std::fs::read_to_string(&options.path).unwrap(), text);
}

#[tokio::test]
async fn a_file_that_was_cut_off_is_refused() {
    let on_disk = OnDisk::open().await;
    Scene::new(&on_disk).await.approved("k").await;
    let path = on_disk.path();
    on_disk.store.close().await;
    let whole = std::fs::metadata(&path).unwrap().len();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(whole / 2).unwrap();
    let Err(StoreError::CannotOpen { what }) = on_disk.reopen().await else { panic!("it was opened") };
    assert!(what.contains("damaged or cut off") || what.contains("malformed"), "{what}");
    assert!(what.contains("restore a backup"), "{what}");
}

#[tokio::test]
async fn a_file_with_garbage_in_it_says_so_when_it_is_read() {
    let on_disk = OnDisk::open().await;
    let scene = Scene::new(&on_disk).await;
    let mut ids = Vec::new();
    for n in 0..50 {
        ids.push(scene.approved(&format!("k{n}")).await.id);
    }
    drop(scene);
    let path = on_disk.path();
    on_disk.store.close().await;
    // All but the header and the schema.
    let mut bytes = std::fs::read(&path).unwrap();
    let from = bytes.len() / 3;
    bytes[from..].iter_mut().for_each(|byte| *byte = 0xa5);
    std::fs::write(&path, bytes).unwrap();
    let tenant = "default".parse().unwrap();
    let outcome = match on_disk.reopen().await {
        Err(error) => Err(error),
        Ok(again) => {
            let store = again.store.clone();
            let mut outcome = Ok(());
            for id in ids {
                use crate::ledger::Ledger;
                outcome = outcome.and(store.action(&tenant, id).await.map(|_| ()));
            }
            outcome
        }
    };
    assert!(
        matches!(outcome, Err(StoreError::Damaged { .. } | StoreError::CannotOpen { .. })),
        "garbage was taken for rows: {outcome:?}"
    );
}

#[test]
fn a_folder_that_is_not_there_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let what = refused(SqliteOptions::new(folder.path().join("nowhere/ledger.db")));
    assert!(what.contains("nowhere") && what.contains("make it"), "{what}");
}

/// Root may write everything, so the test goes on as somebody else.
#[tokio::test]
async fn a_file_that_may_not_be_written_is_refused_with_what_to_do() {
    const CHILD: &str = "COUNTERSIGN_TEST_READ_ONLY_FILE";
    if let Some(path) = told(CHILD) {
        println!("REFUSED: {}", refused(SqliteOptions::new(path)));
        return;
    }
    let on_disk = OnDisk::open().await;
    let path = on_disk.path();
    on_disk.store.close().await;
    let _ = std::fs::remove_file(on_disk.folder.path().join("ledger.db.lock"));
    let mode = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(on_disk.folder.path(), 0o777);
    mode(&path, 0o444);
    let name = "sqlite::tests::opening::a_file_that_may_not_be_written_is_refused_with_what_to_do";
    let mut again = this_test_again(name, CHILD, &path);
    if rustix::process::geteuid().is_root() {
        again.uid(65_534).gid(65_534);
    }
    let output = match again.output() {
        Ok(output) => output,
        Err(error) => {
            // The folder of this binary is closed to others: nothing to run as them.
            assert!(told("COUNTERSIGN_TESTS_REQUIRE_ALL").is_none(), "cannot run as another user: {error}");
            eprintln!("SKIPPED: the test binary cannot be run as another user: {error}");
            return;
        }
    };
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("REFUSED: ") && said.contains("writable for this user"), "{said}");
    mode(&path, 0o644);
}

#[tokio::test]
async fn a_file_that_another_process_holds_while_it_is_opened_is_refused() {
    let on_disk = OnDisk::open().await;
    let path = on_disk.path();
    on_disk.store.close().await;
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("begin immediate").unwrap();
    let mut impatient = SqliteOptions::new(&path);
    impatient.busy_timeout = std::time::Duration::from_millis(20);
    let what = refused(impatient.clone());
    assert!(what.contains("another process holds"), "{what}");
    other.execute_batch("rollback").unwrap();
    SqliteStore::open(impatient).unwrap();
}

#[tokio::test]
async fn break_35_a_copy_that_is_put_back_is_found_out_and_only_that() {
    let on_disk = OnDisk::open().await;
    let scene = Scene::new(&on_disk).await;
    let action = scene.approved("k").await;
    drop(scene);
    let copy = on_disk.path().with_extension("copy");
    // However often it is opened and closed, nothing was lost.
    let mut on_disk = on_disk.reopen().await.unwrap();
    assert_eq!(on_disk.store.doubt_rewound(10).await.unwrap(), 0);
    on_disk.store.close().await;
    std::fs::copy(on_disk.path(), &copy).unwrap();
    on_disk = on_disk.reopen().await.unwrap();
    assert_eq!(on_disk.store.doubt_rewound(10).await.unwrap(), 0);
    let scene = Scene::new(&on_disk).await;
    let attempt = scene.run(action.id).await;
    scene.write(&attempt, 1).await;
    drop(scene);
    on_disk.store.close().await;
    std::fs::copy(&copy, on_disk.path()).unwrap();
    let on_disk = on_disk.reopen().await.unwrap();
    let scene = Scene::new(&on_disk).await;
    lost(scene.claim(action.id, ClaimKind::Run).await);
    assert_eq!(scene.store.doubt_rewound(10).await.unwrap(), 1);
    assert_eq!(scene.whole(action.id).await.state, State::OutcomeUnknown);
    drop(scene);
    // A host that dies half-way through leaves it to the next.
    let again = on_disk.reopen().await.unwrap();
    assert_eq!(again.store.doubt_rewound(10).await.unwrap(), 0);
}

#[tokio::test]
async fn break_35_an_operator_says_what_no_file_remembers_and_a_half_done_doubting_is_gone_on_with() {
    let on_disk = OnDisk::open().await;
    let scene = Scene::new(&on_disk).await;
    for n in 0..3 {
        scene.approved(&format!("k{n}")).await;
    }
    drop(scene);
    on_disk.store.close().await;
    let OnDisk { store, clock, folder } = on_disk;
    drop(store);
    std::fs::remove_file(folder.path().join("ledger.db.opening")).unwrap();
    let told = SqliteOptions { after_restore: true, ..options(&folder, &clock) };
    let on_disk = OnDisk { store: SqliteStore::open(told).unwrap(), clock, folder };
    assert_eq!(on_disk.store.doubt_rewound(2).await.unwrap(), 2);
    let on_disk = on_disk.reopen().await.unwrap();
    assert_eq!(on_disk.store.doubt_rewound(2).await.unwrap(), 1);
    assert_eq!(on_disk.store.doubt_rewound(2).await.unwrap(), 0);
}
