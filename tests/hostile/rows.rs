//! The list of what is tried and the tests that try it, held to each other.

use std::collections::BTreeSet;
use std::fs;

use crate::support::root;

/// `A06` of `a06_…`; one test may stand for several rows. Only the letters of the list, and no
/// higher than it goes: `i64` is something else.
fn rows_of(name: &str) -> impl Iterator<Item = String> {
    name.split('_').filter_map(|part| {
        let number = part.strip_prefix(['a', 'b', 'c', 'i', 'j'])?;
        let row = number.len() == 2 && number.parse::<u8>().is_ok_and(|number| (1..=17).contains(&number));
        row.then(|| part.to_uppercase())
    })
}

/// The rows that functions of the sources are named after.
fn tried() -> BTreeSet<String> {
    let folders = [root().join("host"), root().join("tests")];
    let sources = folders.iter().flat_map(|folder| super::files_with(folder, "fn "));
    let mut found = BTreeSet::new();
    for source in sources.filter(|path| path.extension().is_some_and(|extension| extension == "rs")) {
        let text = fs::read_to_string(source).expect("a source");
        for line in text.lines().map(str::trim) {
            let function = line.strip_prefix("async fn ").or_else(|| line.strip_prefix("fn "));
            if let Some(name) = function.and_then(|line| line.split(['(', '<']).next()) {
                found.extend(rows_of(name));
            }
        }
    }
    found
}

#[test]
fn every_row_of_the_list_is_tried_and_every_try_is_in_the_list() {
    let list = fs::read_to_string(root().join("tests/hostile/README.md")).expect("the list");
    let firsts = list.lines().filter_map(|line| line.strip_prefix("| ")?.split(' ').next());
    let listed: BTreeSet<String> = firsts.flat_map(|row| rows_of(&row.to_lowercase()).last()).collect();
    assert!(listed.len() > 40, "{listed:?}");
    let tried = tried();
    let (untried, unlisted): (Vec<_>, Vec<_>) =
        (listed.difference(&tried).collect(), tried.difference(&listed).collect());
    assert!(
        untried.is_empty() && unlisted.is_empty(),
        "without a test: {untried:?}; not listed: {unlisted:?}"
    );
}
