//! The demo: eight scenes, every count right.

use std::process::Command;

use crate::support::BINARY;
use crate::support::host::Cli;

fn demo(arguments: &[&str]) -> Cli {
    let mut command = Command::new(BINARY);
    command.arg("demo").args(arguments).env_remove("COUNTERSIGN_HALT_AT").env("NO_COLOR", "1");
    Cli::run(&mut command, "")
}

#[test]
fn the_demo_plays_eight_scenes_and_every_count_is_right() {
    let told = demo(&[]);
    assert_eq!(told.code, 0, "{}\n{}", told.out, told.err);
    assert!(told.out.contains("Every count is right."), "{}", told.out);
    for scene in 1..=8 {
        assert!(
            told.out.lines().any(|line| line.starts_with(&format!("{scene}. "))),
            "scene {scene}: {}",
            told.out
        );
    }
    let counted: Vec<&str> = told
        .out
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("counted"))
        .map(str::trim)
        .collect();
    assert!(counted.len() >= 24, "{counted:#?}");
    assert!(counted.iter().all(|count| count.starts_with('✓')), "{counted:#?}");
    for count in [
        "1 requests in the provider's log",
        "8 agents told that it succeeded",
        "1 different results handed out",
        "2 requests in the provider's log, under one key",
        "1 refunds in the provider's log",
        "1 notifications in the provider's log",
        "0 requests outside the grant in the provider's log",
        "1 writes of the third tool in the provider's log",
    ] {
        assert!(
            counted.iter().any(|line| line.trim_start_matches('✓').trim() == count),
            "{count}: {counted:#?}"
        );
    }
    // Nothing is left behind, and no escape code is written where no terminal is.
    assert!(!told.out.contains('\u{1b}'));
}

#[test]
fn the_demo_keeps_its_logs_where_it_is_told_and_never_in_a_folder_with_something_in_it() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("mine.txt"), "mine").expect("a file");
    let told = demo(&["--keep", &folder.path().display().to_string()]);
    assert_eq!(told.code, 1, "{told:?}");
    assert!(told.err.contains("not empty"), "{}", told.err);
    assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 1);
}

#[cfg(feature = "planted-bugs")]
#[test]
fn planted_bugs_are_each_caught() {
    let sound = demo(&[]);
    assert_eq!(sound.code, 0, "with no bug planted:\n{}\n{}", sound.out, sound.err);
    let bugs = ["claim", "fingerprint", "record"];
    let told = crate::support::at_once(bugs.len(), |i| demo(&["--planted-bug", bugs[i]]));
    for (bug, told) in bugs.iter().zip(told) {
        assert_ne!(told.code, 0, "the demo did not notice the planted bug {bug}:\n{}", told.out);
        assert!(told.out.contains('✗') || told.out.contains("could not be played"), "{bug}: {}", told.out);
    }
    let unknown = demo(&["--planted-bug", "no-such-bug"]);
    assert_ne!(unknown.code, 0);
}
