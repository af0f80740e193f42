//! The components under test: those kept with the sources, or those that were just built.

use std::path::PathBuf;
use std::sync::LazyLock;

/// The folder that holds them: `COUNTERSIGN_GUESTS`, else the kept ones.
pub fn folder() -> PathBuf {
    match std::env::var_os("COUNTERSIGN_GUESTS").filter(|folder| !folder.is_empty()) {
        Some(folder) => folder.into(),
        None => super::root().join("guest-examples/prebuilt"),
    }
}

/// Where a guest's file is.
pub fn path(name: &str) -> PathBuf {
    folder().join(format!("{name}.wasm"))
}

fn load(name: &str) -> Vec<u8> {
    let path = path(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub static REFUND: LazyLock<Vec<u8>> = LazyLock::new(|| load("refund"));
pub static SEND_EMAIL: LazyLock<Vec<u8>> = LazyLock::new(|| load("send_email"));
pub static TRANSFER: LazyLock<Vec<u8>> = LazyLock::new(|| load("transfer"));
pub static PROBE: LazyLock<Vec<u8>> = LazyLock::new(|| load("probe"));

/// The same component as another version: the text that its manifest gives, changed in place.
/// Names of interfaces carry a version too; those stand behind an `@`.
pub fn as_version(component: &[u8], version: &str) -> Vec<u8> {
    const WAS: &[u8] = b"0.1.0";
    assert_eq!(version.len(), WAS.len(), "a text of another length would move everything");
    let mut changed = component.to_vec();
    let places: Vec<usize> = (1..component.len() - WAS.len())
        .filter(|at| component[*at..].starts_with(WAS) && component[at - 1] != b'@')
        .collect();
    assert_eq!(places.len(), 1, "the manifest's version is not the only one");
    changed[places[0]..places[0] + WAS.len()].copy_from_slice(version.as_bytes());
    changed
}

/// A tool that is too large to be kept with the sources, if it was built. Else the test that
/// wanted it is skipped, aloud.
pub fn built(name: &str) -> Option<Vec<u8>> {
    let found = std::fs::read(path(name)).ok();
    if found.is_none() {
        let folder = folder().display().to_string();
        super::skipped(&format!("{name}.wasm is not in {folder}; `guest-examples/build` makes it"));
    }
    found
}
