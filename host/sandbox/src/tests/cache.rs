//! The cache of compiled components: used when it is ours, ignored otherwise.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::rig::{Gate, component, digest, mode, probe, returned};
use crate::{Loaded, Sandbox, SandboxConfig};

fn config(dir: &Path, key: u8) -> SandboxConfig {
    SandboxConfig { cache_dir: Some(dir.to_owned()), cache_key: [key; 32], ..SandboxConfig::default() }
}

async fn load(dir: &Path, key: u8) -> Loaded {
    let sandbox = Sandbox::new(config(dir, key)).unwrap();
    let bytes = component("probe");
    let loaded = sandbox.load(digest(&bytes), bytes.clone()).await.unwrap();
    assert_eq!(sandbox.load(digest(&bytes), bytes).await.unwrap(), Loaded::Already);
    returned(&sandbox.invoke(probe(mode("no-effect")), Gate::yes()).await);
    loaded
}

fn only_file(dir: &Path) -> PathBuf {
    let files: Vec<_> = fs::read_dir(dir).unwrap().map(|f| f.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    files[0].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn j01_a_compiled_form_is_loaded_only_if_this_host_wrote_it() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("compiled");
    assert_eq!(load(&dir, 1).await, Loaded::Compiled);
    assert_eq!(load(&dir, 1).await, Loaded::FromCache);
    let path = only_file(&dir);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(&dir).unwrap().permissions().mode() & 0o777, 0o700);

    // Another key is another host.
    assert_eq!(load(&dir, 2).await, Loaded::Compiled);
    assert_eq!(load(&dir, 2).await, Loaded::FromCache);

    // One bit anywhere: in the code, at the start, in the middle, at the end.
    let good = fs::read(&path).unwrap();
    for place in [0, 31, 32, good.len() / 2, good.len() - 1] {
        let mut bad = good.clone();
        bad[place] ^= 1;
        fs::write(&path, bad).unwrap();
        assert_eq!(load(&dir, 2).await, Loaded::Compiled, "byte {place}");
    }
    for short in [0, 10, 32, good.len() - 1] {
        fs::write(&path, &good[..short]).unwrap();
        assert_eq!(load(&dir, 2).await, Loaded::Compiled, "{short} bytes");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn j01_the_compiled_form_of_another_component_does_not_pass_for_this_one() {
    let dir = tempfile::tempdir().unwrap();
    let (probe, refund) = (component("probe"), component("refund"));
    let sandbox = Sandbox::new(config(dir.path(), 1)).unwrap();
    sandbox.load(digest(&refund), refund.clone()).await.unwrap();
    let path = only_file(dir.path());
    let name = path.file_name().unwrap().to_str().unwrap();
    let renamed = name.replace(&digest(&refund).to_string(), &digest(&probe).to_string());
    fs::rename(&path, dir.path().join(renamed)).unwrap();
    assert_eq!(sandbox.load(digest(&probe), probe).await.unwrap(), Loaded::Compiled);
}
