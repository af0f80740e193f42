//! A proxy between a store and its server that can lose an answer.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

use super::cluster::Cluster;

pub(crate) struct Proxy {
    folder: tempfile::TempDir,
    marker: Arc<Mutex<Option<Vec<u8>>>>,
}

const SOCKET: &str = ".s.PGSQL.5432";

impl Proxy {
    pub(crate) async fn start(cluster: &Cluster) -> Proxy {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join(SOCKET)).unwrap();
        let server = cluster.folder().join(SOCKET);
        let marker = Arc::new(Mutex::new(None));
        let armed = marker.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass(client, server.clone(), armed.clone()));
            }
        });
        Proxy { folder, marker }
    }

    pub(crate) fn url(&self, database: &str) -> String {
        format!("host='{}' user=postgres dbname={database}", self.folder.path().display())
    }

    /// The next message that has this text in it reaches the server; its answer
    /// does not come back, and the connection ends.
    pub(crate) fn swallow_answer_to(&self, text: &str) {
        *self.marker.lock().unwrap() = Some(text.as_bytes().to_vec());
    }
}

async fn pass(client: UnixStream, server: PathBuf, marker: Arc<Mutex<Option<Vec<u8>>>>) {
    let Ok(server) = UnixStream::connect(server).await else { return };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let (mut asked, mut said) = (vec![0; 65_536], vec![0; 65_536]);
    loop {
        tokio::select! {
            read = from_client.read(&mut asked) => {
                let Ok(read @ 1..) = read else { return };
                let cut = {
                    let mut marker = marker.lock().unwrap();
                    let found = marker.as_deref().is_some_and(|text| {
                        asked[..read].windows(text.len()).any(|window| window == text)
                    });
                    if found {
                        *marker = None;
                    }
                    found
                };
                if to_server.write_all(&asked[..read]).await.is_err() {
                    return;
                }
                if cut {
                    // Waits until the server has answered, and so committed.
                    let _ = from_server.read(&mut said).await;
                    return;
                }
            }
            read = from_server.read(&mut said) => {
                let Ok(read @ 1..) = read else { return };
                if to_client.write_all(&said[..read]).await.is_err() {
                    return;
                }
            }
        }
    }
}
