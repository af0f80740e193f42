//! What is on this machine: folders, files, disks, and what the kernel allows.

use std::fs::{self, Metadata};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use countersign_store::health::Finding;
use rustix::process::{Resource, geteuid, getrlimit};

/// Free bytes under which a disk is said to be nearly full, and is said to be.
/// Chosen: a busy host writes a gigabyte in an hour or so; 64 MiB is its log of
/// changes alone.
const FREE: (u64, u64) = (1 << 30, 64 << 20);

/// Memory mappings that one process may have: the kernel's default, and what
/// the engine's pool was measured to be content with.
const MAPPINGS: u64 = 65_530;

/// Open files that one process needs: a connection each of callers, providers
/// and the database, and some of its own.
const FILES: u64 = 8192;

/// What the kernel allows.
pub(super) fn surroundings() -> Vec<Finding> {
    let mut found = Vec::new();
    let mappings = fs::read_to_string("/proc/sys/vm/max_map_count").ok();
    if let Some(mappings) = mappings.and_then(|text| text.trim().parse::<u64>().ok()) {
        let words = format!("a process may have {mappings} memory mappings (vm.max_map_count)");
        found.push(if mappings < MAPPINGS {
            Finding::warning(
                "kernel",
                words,
                format!("sysctl vm.max_map_count={MAPPINGS}, or fewer runs at once fit"),
            )
        } else {
            Finding::good("kernel", words)
        });
    }
    let files = getrlimit(Resource::Nofile).current;
    let words = files.map_or("without a limit".to_owned(), |files| files.to_string());
    let words = format!("a process may open {words} files (ulimit -n)");
    found.push(if files.is_some_and(|files| files < FILES) {
        let advice =
            format!("raise it to {FILES} or more (LimitNOFILE= of a service); each connection takes one");
        Finding::warning("open files", words, advice)
    } else {
        Finding::good("open files", words)
    });
    found
}

/// The data directory, and the disk that it is on.
pub(super) fn data_dir(folder: &Path) -> Vec<Finding> {
    const CHECK: &str = "data directory";
    let shown = folder.display();
    let Ok(about) = fs::metadata(folder) else {
        let above = folder.ancestors().find(|above| above.is_dir());
        let mut found =
            vec![Finding::good(CHECK, format!("{shown} is not there yet; `countersign serve` makes it"))];
        found.extend(above.and_then(|above| disk("disk of the data directory", above)));
        return found;
    };
    let mut found = vec![private(CHECK, folder, &about, "chmod 700")];
    for name in ["tokens", "components.key"] {
        let path = folder.join(name);
        if let Ok(about) = fs::metadata(&path) {
            let finding =
                private(CHECK, &path, &about, if about.is_dir() { "chmod 700" } else { "chmod 600" });
            // One line is enough where all is well.
            found.extend(Some(finding).filter(|finding| !finding.advice.is_empty()));
        }
    }
    found.extend(disk("disk of the data directory", folder));
    found
}

fn private(check: &'static str, path: &Path, about: &Metadata, cure: &str) -> Finding {
    let (mode, shown) = (about.permissions().mode(), path.display());
    let user = geteuid().as_raw();
    if !about.is_dir() && !about.is_file() {
        return Finding::failure(
            check,
            format!("{shown} is neither a folder nor a file"),
            "name another one",
        );
    }
    if about.uid() != user && user != 0 {
        return Finding::failure(
            check,
            format!("{shown} belongs to user {}, and this is user {user}", about.uid()),
            "run as its owner, or name another one",
        );
    }
    if mode & 0o077 != 0 {
        return Finding::warning(
            check,
            format!("{shown} is open to other users of this machine (mode {:o})", mode & 0o777),
            format!("{cure} {shown}"),
        );
    }
    Finding::good(check, format!("{shown} is its owner's only"))
}

/// The files that secrets are in.
pub(super) fn secret_files(files: &[(String, PathBuf)]) -> Vec<Finding> {
    let open = files.iter().filter_map(|(name, file)| {
        let about = fs::metadata(file).ok()?;
        let mode = about.permissions().mode();
        // Whether everybody may read it, the configuration has said already.
        (mode & 0o070 != 0 && mode & 0o004 == 0).then(|| {
            let words =
                format!("the secret {name} can be read or changed by the group of {}", file.display());
            Finding::warning(
                "secrets",
                words,
                format!("chmod 600 {}, unless that group is meant", file.display()),
            )
        })
    });
    open.collect()
}

/// How much room is left. `None`: the system does not say.
pub(super) fn disk(check: &'static str, folder: &Path) -> Option<Finding> {
    let about = rustix::fs::statvfs(folder).ok()?;
    let (free, all) =
        (about.f_bavail.saturating_mul(about.f_frsize), about.f_blocks.saturating_mul(about.f_frsize));
    let words = format!("{} MiB of {} MiB free at {}", free >> 20, all >> 20, folder.display());
    Some(judge_disk(check, free, words))
}

fn judge_disk(check: &'static str, free: u64, words: String) -> Finding {
    match free {
        _ if free < FREE.1 => Finding::failure(check, words, "make room: a full disk stops every step"),
        _ if free < FREE.0 => Finding::warning(check, words, "make room before it is full"),
        _ => Finding::good(check, words),
    }
}

#[cfg(test)]
mod tests {
    use countersign_store::health::Level;

    use super::*;

    #[test]
    fn a_disk_fails_before_it_is_full_and_warns_before_that() {
        let level = |free| judge_disk("disk", free, String::new()).level;
        assert_eq!(
            [level(1 << 20), level(512 << 20), level(2 << 30)],
            [Level::Failure, Level::Warning, Level::Good]
        );
        let here = tempfile::tempdir().expect("a folder");
        assert!(disk("disk", here.path()).is_some_and(|finding| finding.found.contains("MiB free")));
    }

    #[test]
    fn what_others_may_enter_or_read_is_said_with_the_command_that_closes_it() {
        let here = tempfile::tempdir().expect("a folder");
        let set =
            |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
        set(here.path(), 0o700);
        assert!(
            data_dir(here.path())
                .iter()
                .all(|finding| finding.level == Level::Good || finding.check.starts_with("disk"))
        );
        set(here.path(), 0o755);
        let found = data_dir(here.path());
        assert!(found[0].level == Level::Warning && found[0].advice.starts_with("chmod 700"), "{found:?}");
        let file = here.path().join("secret");
        fs::write(&file, "x").expect("a file");
        for (mode, warnings) in [(0o600, 0), (0o640, 1), (0o644, 0)] {
            set(&file, mode);
            assert_eq!(secret_files(&[("k".into(), file.clone())]).len(), warnings, "{mode:o}");
        }
    }
}
