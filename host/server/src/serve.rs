//! `countersign serve`: opens everything, says where it listens, and stops in
//! good order.

use std::fs;
use std::io::{IsTerminal as _, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use countersign_domain::id::{Principal, TenantId};
use countersign_domain::role::Role;
use countersign_store::Store;
use serde_json::json;
use tokio::net::TcpListener;

use crate::config::{Config, Role as Duty, ServeArgs};
use crate::http::{self, Allowed, App};
use crate::tokens::{HOME_TENANT, Tokens};
use crate::wiring::{self, write_private};
use crate::{config, logging, shutdown};

/// Serves until told to stop.
///
/// # Errors
/// Whatever keeps the host from starting: what, where, what to do.
pub async fn run(args: ServeArgs, data_dir: Option<PathBuf>) -> anyhow::Result<()> {
    logging::start()?;
    let mut config = config::load(&args, data_dir)?;
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    private_folder(&config.data_dir)?;
    let stopping = shutdown::watch().context("signals cannot be handled")?;
    let secrets = config.secrets.iter().map(|(name, _)| name.clone()).collect();
    let host = wiring::open(&mut config).await?;
    let listener = TcpListener::bind(config.listen).await.with_context(|| {
        format!(
            "cannot listen on {}; another process may be there: choose another with --listen",
            config.listen
        )
    })?;
    let address = listener.local_addr().context("the own address is not known")?;
    let allowed = Allowed::new(address, config.public_url.as_ref());
    let app = App::new(host.gate.clone(), allowed, secrets, stopping.clone(), host.metrics.clone());
    let made = first_tokens(&app.tokens, &**host.gate.store(), &config).await?;
    let address_file = AddressFile::write(&config.data_dir, address)?;
    say(address, &made, &config.data_dir);

    let tending = tokio::spawn({
        let gate = host.gate.clone();
        let (alone, works) = (host.store.is_held_alone(), config.role != Duty::Api);
        async move {
            if works {
                gate.keep_tending(alone).await;
            }
        }
    });
    let delivering = host.webhooks.start();
    let gate = host.gate.clone();
    let drain = config.drain;
    let drained = async move { gate.drain_within(drain).await };
    http::listener::serve(listener, http::router(app, config.role != Duty::Worker), stopping, drained).await;
    let _ = tending.await;
    // What was not acknowledged yet stands in the ledger.
    drop(delivering);
    host.store.close().await;
    drop(address_file);
    tracing::info!("stopped");
    Ok(())
}

/// Says where, and at the first start with which tokens. The line that begins
/// with `listening on` is an interface.
fn say(address: SocketAddr, made: &[(Role, String)], data_dir: &Path) {
    let mut out = std::io::stdout();
    let mut text = String::new();
    if !made.is_empty() {
        let tokens = data_dir.join("tokens");
        text.push_str(&format!("tokens of this host are in {} (readable by you only)\n", tokens.display()));
        // What is not a terminal is kept: by a service manager, by a container's
        // log. Tokens do not belong there.
        if out.is_terminal() {
            text.push_str("they are shown here once:\n");
            for (role, token) in made {
                text.push_str(&format!("  {role:<9} {token}\n"));
            }
        }
    }
    text.push_str(&format!("listening on {}\n", url(address)));
    // Nobody may be reading; the host runs all the same.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// The address at which this machine reaches the host.
fn url(address: SocketAddr) -> String {
    let reached = match address {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => (Ipv4Addr::LOCALHOST, v4.port()).into(),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => (Ipv6Addr::LOCALHOST, v6.port()).into(),
        other => other,
    };
    format!("http://{reached}")
}

/// Makes a folder that only its owner may enter, if it is not there.
fn private_folder(path: &Path) -> anyhow::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::DirBuilderExt as _;
        builder.mode(0o700);
    }
    builder.create(path).with_context(|| {
        format!("the folder {} cannot be made; name another with --data-dir", path.display())
    })
}

/// One token per role, for roles that nobody of the host's own tenant ever had
/// under the role's name. A revoked one is not made again.
async fn first_tokens(
    tokens: &Tokens,
    store: &dyn Store,
    config: &Config,
) -> anyhow::Result<Vec<(Role, String)>> {
    let tenant: TenantId = HOME_TENANT.parse()?;
    let known = store.principals(&tenant).await?;
    let folder = config.data_dir.join("tokens");
    private_folder(&folder)?;
    let mut made = Vec::new();
    for role in Role::ALL {
        let name: Principal = role.as_str().parse()?;
        if known.iter().any(|row| row.name == name) {
            continue;
        }
        let (token, _) = tokens.create(&tenant, &name, &[*role]).await?;
        write_private(&folder.join(role.as_str()), format!("{}\n", token.reveal()).as_bytes())?;
        made.push((*role, token.reveal().to_owned()));
    }
    Ok(made)
}

/// `host.json`: how the command line finds a running host. Gone when it stops.
struct AddressFile(PathBuf);

impl AddressFile {
    fn write(data_dir: &Path, address: SocketAddr) -> anyhow::Result<AddressFile> {
        let path = data_dir.join("host.json");
        let content = json!({ "url": url(address), "pid": std::process::id() });
        write_private(&path, content.to_string().as_bytes())?;
        Ok(AddressFile(path))
    }
}

impl Drop for AddressFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
