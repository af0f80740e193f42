//! A file that cannot be written fails the step, says what to do, changes
//! nothing, and is good again once the reason is gone.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use countersign_domain::id::ActionId;

use super::{OnDisk, this_test_again, told};
use crate::StoreError;
use crate::conformance::scene::{Scene, made};
use crate::ledger::Ledger;
use crate::sqlite::{SqliteOptions, SqliteStore};
use crate::steps::Proposed;

#[tokio::test]
async fn a_lock_held_by_somebody_else_makes_a_step_unavailable_until_it_is_gone() {
    let on_disk = OnDisk::with(|options| options.busy_timeout = Duration::from_millis(20));
    let scene = Scene::new(&on_disk).await;
    let action = scene.awaiting("k", 1).await;
    let other = on_disk.by_hand();
    other.execute_batch("begin immediate").unwrap();
    let held = scene.store.approve(scene.approval(&action, "ben")).await.unwrap_err();
    assert!(matches!(&held, StoreError::Unavailable { what } if what.contains("another process")), "{held}");
    assert_eq!(scene.row(action.id).await, action, "reads go on");
    other.execute_batch("rollback").unwrap();
    made(scene.store.approve(scene.approval(&action, "ben")).await);
    scene.whole(action.id).await;
}

/// Proposes many at once until the disk is full; what was answered is there,
/// what was refused is not, and what there is stays whole.
async fn fill(scene: &Scene<'_>) -> Vec<ActionId> {
    let mut kept = Vec::new();
    for round in 0..200 {
        let mut tasks = tokio::task::JoinSet::new();
        for n in 0..8 {
            let (store, new) = (scene.store.clone(), scene.proposal(&format!("{round}-{n}"), 1).await);
            tasks.spawn(async move { (new.id, store.propose(new).await) });
        }
        let mut full = false;
        for (id, outcome) in tasks.join_all().await {
            match outcome {
                Ok(Proposed::New(_)) => kept.push(id),
                Ok(Proposed::Again(_)) => panic!("it was new"),
                Err(StoreError::CannotWrite { what }) => {
                    assert!(what.contains("make room"), "{what}");
                    assert_eq!(scene.store.action(&scene.tenant, id).await.unwrap(), None);
                    full = true;
                }
                // One of the same commit met the full disk.
                Err(StoreError::Unavailable { .. }) => {
                    assert_eq!(scene.store.action(&scene.tenant, id).await.unwrap(), None);
                }
                Err(other) => panic!("{other}"),
            }
        }
        if full {
            return kept;
        }
    }
    panic!("the disk never was full");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_database_refuses_steps_and_loses_nothing_that_was_answered() {
    let on_disk = OnDisk::with(|options| options.max_pages = Some(120));
    let scene = Scene::new(&on_disk).await;
    let kept = fill(&scene).await;
    assert!(kept.len() > 8);
    for id in &kept {
        scene.whole(*id).await;
    }
    drop(scene);
    // With room, it goes on.
    let roomy = on_disk.reopen().await.unwrap();
    let scene = Scene::new(&roomy).await;
    let first = scene.row(kept[0]).await;
    made(scene.store.approve(scene.approval(&first, "ben")).await);
    let attempt = scene.run(first.id).await;
    scene.written(&attempt, 1).await;
    scene.succeed(&attempt).await;
    for id in &kept {
        scene.whole(*id).await;
    }
}

/// A small disk of its own; `None` where this process may not mount one.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount() -> Option<SmallDisk> {
        let folder = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=1500k", "tmpfs"])
            .arg(folder.path())
            .stderr(Stdio::null())
            .status();
        mounted.is_ok_and(|status| status.success()).then(|| SmallDisk(folder))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_refuses_steps_and_loses_nothing_that_was_answered() {
    let Some(disk) = SmallDisk::mount() else {
        eprintln!("SKIPPED: only root may mount a disk that can be filled");
        return;
    };
    struct Small(SqliteStore);
    #[async_trait::async_trait]
    impl crate::conformance::Backend for Small {
        fn store(&self) -> std::sync::Arc<dyn crate::Store> {
            std::sync::Arc::new(self.0.clone())
        }
        async fn advance(&self, _: Duration) {}

        async fn lose_commits(&self) {
            unreachable!("no case here asks for it")
        }
    }
    let path = disk.0.path().join("ledger.db");
    let backend = Small(SqliteStore::open(SqliteOptions::new(&path)).unwrap());
    let scene = Scene::new(&backend).await;
    let kept = fill(&scene).await;
    for id in &kept {
        scene.whole(*id).await;
    }
    drop(scene);
    backend.0.close().await;
    drop(backend);
    let more = Command::new("mount").args(["-o", "remount,size=64m"]).arg(disk.0.path()).status().unwrap();
    assert!(more.success());
    let backend = Small(SqliteStore::open(SqliteOptions::new(&path)).unwrap());
    let scene = Scene::new(&backend).await;
    for id in &kept {
        scene.whole(*id).await;
    }
    scene.approved("with room").await;
    drop(scene);
    backend.0.close().await;
}

/// A process that is killed at any moment: each action whose proposal was
/// answered is there, and its chain is whole.
#[test]
fn what_was_answered_before_a_kill_is_there_after_it() {
    const CHILD: &str = "COUNTERSIGN_TEST_KILLED_WRITER";
    let runtime = tokio::runtime::Runtime::new().unwrap();
    if let Some(folder) = told(CHILD) {
        runtime.block_on(write_until_killed(Path::new(&folder)));
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let name = "sqlite::tests::writing::what_was_answered_before_a_kill_is_there_after_it";
    let mut answered: Vec<ActionId> = Vec::new();
    for round in 0..5 {
        let mut child = this_test_again(name, CHILD, folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let enough = 40 + 13 * round;
        let mut heard = 0;
        for line in lines {
            let line = line.unwrap();
            if let Some(id) = line.strip_prefix("ANSWERED ") {
                answered.push(id.parse().unwrap());
                heard += 1;
                if heard == enough {
                    child.kill().unwrap();
                }
            }
        }
        child.wait().unwrap();
        assert!(heard >= enough, "round {round}: the child ended by itself after {heard}");
    }
    runtime.block_on(async {
        let backend = OnDisk::open().await;
        let store = SqliteStore::open(SqliteOptions::new(folder.path().join("ledger.db"))).unwrap();
        let mut scene = Scene::new(&backend).await;
        scene.store = std::sync::Arc::new(store.clone());
        for id in &answered {
            scene.whole(*id).await;
        }
        store.close().await;
    });
}

async fn write_until_killed(folder: &Path) {
    let backend = OnDisk::open().await;
    let store = SqliteStore::open(SqliteOptions::new(folder.join("ledger.db"))).unwrap();
    let tool =
        crate::conformance::scene::new_tool(&"default".parse().unwrap(), "refund", "1.0.0", "bytes", "grant");
    let tool = crate::registry::Registry::install_tool(&store, tool).await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..4 {
        let mut scene = Scene::new(&backend).await;
        let (tool, id) = (tool.clone(), std::process::id());
        let mut templates = Vec::new();
        for n in 0..100 {
            templates.push(scene.proposal(&format!("{id}-{task}-{n}"), 1).await);
        }
        scene.tool = tool;
        let store = store.clone();
        tasks.spawn(async move {
            for mut new in templates {
                // By the time of this store, which is not the stage's.
                new.created = store.now().await.unwrap();
                let id = new.id;
                store.propose(new).await.unwrap();
                println!("ANSWERED {id}");
            }
        });
    }
    tasks.join_all().await;
}
