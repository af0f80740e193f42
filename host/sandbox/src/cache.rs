//! Compiled components on disk. What is loaded from here runs as machine code, so
//! a file counts only if this host wrote it: every file carries
//! an HMAC-SHA-256 over the component's digest, the engine's version and settings,
//! and the content, checked over the whole file before any of it is looked at.
//!
//! Anything else than a good file is as if there were none: it is compiled again.
//! Files of other engines stay until somebody empties the folder.

use std::fs;
use std::hash::{Hash, Hasher};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use countersign_domain::id::{ComponentDigest, Digest};
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest as _, Sha256};
use wasmtime::Engine;

use crate::error::SandboxError;

/// Bytes of the code at the start of a file.
const CODE: usize = 32;

/// A private folder of compiled components.
pub(crate) struct Cache {
    dir: PathBuf,
    key: [u8; 32],
    engine: Digest,
    written: AtomicU64,
}

impl Cache {
    pub(crate) fn open(dir: &Path, key: [u8; 32], engine: &Engine) -> Result<Cache, SandboxError> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .map_err(|source| SandboxError::CacheFolder { path: dir.to_owned(), source })?;
        let mut hasher = Sha256Hasher(Sha256::new());
        engine.precompile_compatibility_hash().hash(&mut hasher);
        let engine = Digest::from_bytes(hasher.0.finalize().into());
        Ok(Cache { dir: dir.to_owned(), key, engine, written: AtomicU64::new(0) })
    }

    fn path(&self, digest: ComponentDigest) -> PathBuf {
        let engine = self.engine.to_string();
        self.dir.join(format!("{digest}-{}.compiled", &engine[..16]))
    }

    fn mac(&self, digest: ComponentDigest, content: &[u8]) -> Hmac<Sha256> {
        // HMAC pads a short key with zeros; done here, the length is in the type.
        let mut block = [0; 64];
        block[..self.key.len()].copy_from_slice(&self.key);
        let mut mac = Hmac::<Sha256>::new(&block.into());
        // Fixed lengths before the content: nothing can move across the borders.
        mac.update(b"countersign compiled component 1");
        mac.update(digest.0.as_bytes());
        mac.update(self.engine.as_bytes());
        mac.update(content);
        mac
    }

    /// The compiled form of a component, if this host wrote one.
    pub(crate) fn load(&self, digest: ComponentDigest) -> Option<Vec<u8>> {
        let path = self.path(digest);
        let mut file = match fs::read(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return None,
            Err(e) => {
                tracing::warn!(path = %path.display(), error = %e, "a compiled component cannot be read");
                return None;
            }
        };
        let (code, content) = file.split_at_checked(CODE)?;
        if self.mac(digest, content).verify_slice(code).is_err() {
            tracing::warn!(path = %path.display(), "a compiled component is not ours; compiling again");
            return None;
        }
        file.drain(..CODE);
        Some(file)
    }

    /// Keeps a compiled form. A failure costs the next start a compilation.
    pub(crate) fn store(&self, digest: ComponentDigest, compiled: &[u8]) {
        let path = self.path(digest);
        if let Err(e) = self.write(digest, &path, compiled) {
            tracing::warn!(path = %path.display(), error = %e, "a compiled component is not kept");
        }
    }

    fn write(&self, digest: ComponentDigest, path: &Path, content: &[u8]) -> io::Result<()> {
        // A name that no other process takes: whole files only, under the real one.
        let number = self.written.fetch_add(1, Ordering::Relaxed);
        let part = self.dir.join(format!("{digest}-{}-{number}.part", std::process::id()));
        let mut file =
            fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
        let written = file
            .write_all(&self.mac(digest, content).finalize().into_bytes())
            .and_then(|()| file.write_all(content))
            .and_then(|()| fs::rename(&part, path));
        if written.is_err() {
            // The error that matters is the one that is returned.
            let _ = fs::remove_file(&part);
        }
        written
    }
}

/// SHA-256 in the shape that `Hash` wants: wasmtime gives its settings only so.
struct Sha256Hasher(Sha256);

impl Hasher for Sha256Hasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        let digest = self.0.clone().finalize();
        u64::from_le_bytes([
            digest[0], digest[1], digest[2], digest[3], digest[4], digest[5], digest[6], digest[7],
        ])
    }
}
