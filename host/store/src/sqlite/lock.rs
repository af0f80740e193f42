//! One host per file. SQLite itself would let two in; then each would take the
//! other's leases for over when it opens, and each has a clock of its own.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use crate::StoreError;

/// Held as long as the store is open; the operating system lets go of it when
/// the process dies, however it dies.
#[derive(Debug)]
pub(crate) struct HostLock {
    file: File,
}

impl Drop for HostLock {
    fn drop(&mut self) {
        // Said, and not left to the closing: a process that was being started
        // just now holds a copy of the file until its program runs.
        let _ = self.file.unlock();
    }
}

impl HostLock {
    /// Takes the lock that stands beside the database, `<file>.lock`.
    ///
    /// # Errors
    /// [`StoreError::CannotOpen`] naming the process that holds it.
    pub(crate) fn take(database: &Path) -> Result<HostLock, StoreError> {
        let path = lock_path(database);
        let cannot = |why: String| StoreError::CannotOpen { what: why };
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).map_err(
                |error| cannot(format!("the lock file {} cannot be opened: {error}", path.display())),
            )?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut pid = String::new();
                let _ = file.read_to_string(&mut pid);
                let pid = if pid.trim().is_empty() { "unknown".to_owned() } else { pid.trim().to_owned() };
                return Err(cannot(format!(
                    "another host (pid {pid}) holds {}: a SQLite store has one host; stop that one, or use PostgreSQL \
                     for many hosts",
                    database.display()
                )));
            }
            Err(TryLockError::Error(error)) => {
                return Err(cannot(format!("the lock file {} cannot be locked: {error}", path.display())));
            }
        }
        // For the message above; that it could not be written locks nobody out.
        let _ = file.set_len(0);
        let _ = file.rewind();
        let _ = write!(file, "{}", std::process::id());
        let _ = file.flush();
        Ok(HostLock { file })
    }
}

pub(crate) fn lock_path(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(".lock");
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_host_is_told_who_holds_the_file_and_gets_it_once_it_is_free() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger.db");
        let first = HostLock::take(&path).unwrap();
        let refused = HostLock::take(&path).unwrap_err().to_string();
        assert!(refused.contains(&format!("pid {}", std::process::id())), "{refused}");
        assert!(refused.contains("PostgreSQL"), "{refused}");
        drop(first);
        HostLock::take(&path).unwrap();
    }
}
