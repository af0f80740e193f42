//! Components and callers that want more than they are given. Each test carries the number of
//! the threat it stands for.

mod beside;
mod callers;
mod corpus;
#[cfg(debug_assertions)]
mod deaths;
mod egress;
mod headers;
mod installs;
mod leaks;
mod limits;
mod names;
mod processes;
mod quotas;
mod rows;
mod secrets;
mod surroundings;

use std::path::{Path, PathBuf};

/// Every file below a folder that contains this text, links to elsewhere left out.
pub fn files_with(folder: &Path, text: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder").flatten() {
            let path = entry.path();
            let kind = entry.file_type().expect("a kind");
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_file()
                && std::fs::read(&path).is_ok_and(|bytes| contains(&bytes, text.as_bytes()))
            {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Whether these bytes are somewhere in those.
pub fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}
