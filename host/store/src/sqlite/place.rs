//! Where a database may live: on a disk of this machine. SQLite's WAL shares
//! memory between processes and trusts locks and flushes, none of which a
//! network file system promises.

use std::path::Path;

use crate::StoreError;

/// File systems by `f_type` of `statfs(2)`, from `linux/magic.h` and the kernel
/// sources of each.
const SHARED: &[(u32, &str)] = &[
    (0x0000_6969, "NFS"),
    (0xFF53_4D42, "CIFS"),
    (0x0000_517B, "SMB"),
    (0xFE53_4D42, "SMB2"),
    (0x6573_5546, "FUSE"),
    (0x0102_1997, "9p"),
    (0x5346_414F, "AFS"),
    (0x7375_7245, "Coda"),
    (0x00C3_6400, "Ceph"),
    (0x0BD0_0BD0, "Lustre"),
    (0x0116_1970, "GFS2"),
    (0x7461_636F, "OCFS2"),
];

fn shared_file_system(f_type: u32) -> Option<&'static str> {
    SHARED.iter().find(|(magic, _)| *magic == f_type).map(|(_, name)| *name)
}

/// Refuses a folder on a file system that other machines may share.
///
/// # Errors
/// [`StoreError::CannotOpen`] naming the file system.
pub(crate) fn check(folder: &Path) -> Result<(), StoreError> {
    #[cfg(target_os = "linux")]
    {
        let found = rustix::fs::statfs(folder).map_err(|error| StoreError::CannotOpen {
            what: format!("the folder {} cannot be examined: {error}", folder.display()),
        })?;
        // The kernel's type is a 32-bit number, whatever width statfs gives it.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a 32-bit magic number")]
        judge(folder, found.f_type as u32)?;
    }
    #[cfg(not(target_os = "linux"))]
    let _ = folder;
    Ok(())
}

fn judge(folder: &Path, f_type: u32) -> Result<(), StoreError> {
    match shared_file_system(f_type) {
        None => Ok(()),
        Some(name) => Err(StoreError::CannotOpen {
            what: format!(
                "{} is on {name}: SQLite can lose commits on a file system that other machines may share; put the \
                 store on a local disk, or use PostgreSQL",
                folder.display()
            ),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_file_systems_are_refused_by_name_and_local_ones_are_not() {
        let folder = Path::new("/data");
        for (magic, name) in
            [(0x6969, "NFS"), (0xFF53_4D42, "CIFS"), (0x6573_5546, "FUSE"), (0x0102_1997, "9p")]
        {
            let refused = judge(folder, magic).unwrap_err().to_string();
            assert!(
                refused.contains(name) && refused.contains("/data") && refused.contains("PostgreSQL"),
                "{refused}"
            );
        }
        // ext4, XFS, btrfs, tmpfs, overlayfs, ZFS
        for local in [0xEF53, 0x5846_5342, 0x9123_683E, 0x0102_1994, 0x794C_7630, 0x2FC1_2FC1] {
            judge(folder, local).unwrap();
        }
        check(tempfile::tempdir().unwrap().path()).unwrap();
    }
}
