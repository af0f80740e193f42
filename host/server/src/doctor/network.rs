//! What has to be reached: the running host, and everything that grants and
//! webhooks name. Names are resolved and connected to, and nothing is said over
//! the connections: that somebody listens is all that can be asked without
//! doing something. Only the mail server, which greets by itself, is answered:
//! what is on its port, and whether its certificate is right, shows in that.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use countersign_domain::egress::address;
use countersign_domain::grant::Grant;
use countersign_gate::dispatch::{
    Dispatcher, DispatcherConfig, Resolver, Secrets, SmtpConfig, SmtpSecurity, SystemResolver,
};
use countersign_store::health::{Finding, Level};
use futures::future::join_all;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::config::Webhook;

/// How long each may take. Chosen: a provider that is not there by then would
/// not be there for a send, either, which has two seconds more.
const PATIENCE: Duration = Duration::from_secs(3);

/// The host that holds the store, in its own words.
pub(super) async fn running_host(data_dir: &Path, pid: u32) -> Finding {
    const CHECK: &str = "running host";
    let file = data_dir.join("host.json");
    let said = std::fs::read_to_string(&file).ok().and_then(|text| serde_json::from_str::<Value>(&text).ok());
    let Some(url) = said.as_ref().and_then(|said| said["url"].as_str()).map(str::to_owned) else {
        return Finding::warning(
            CHECK,
            format!("process {pid} holds the store, and {} does not say where it listens", file.display()),
            "name its data directory with --data-dir to ask it",
        );
    };
    let asked = url.clone();
    let answer = tokio::task::spawn_blocking(move || ready(&asked)).await;
    match answer {
        Ok(Ok(200)) => Finding::good(CHECK, format!("process {pid} holds the store, and is ready at {url}")),
        Ok(Ok(status)) => Finding::failure(
            CHECK,
            format!("process {pid} holds the store, and says that it is not ready ({status}) at {url}"),
            "read its log",
        ),
        Ok(Err(why)) => Finding::failure(
            CHECK,
            format!("process {pid} holds the store, and does not answer at {url}: {why}"),
            "read its log; stop it if it hangs, and start it again",
        ),
        Err(_) => {
            Finding::warning(CHECK, format!("process {pid} holds the store; asking it died"), "report this")
        }
    }
}

fn ready(url: &str) -> Result<u16, String> {
    let config = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .proxy(None)
        .timeout_global(Some(PATIENCE));
    let answer = config.build().new_agent().get(format!("{url}/readyz")).call();
    answer.map(|answer| answer.status().as_u16()).map_err(|error| error.to_string())
}

/// Every host that a grant in force names.
pub(super) async fn providers(
    grants: &[(impl std::fmt::Display, Grant)],
    names: &dyn Resolver,
) -> Vec<Finding> {
    let mut named: BTreeMap<(String, u16), Place> = BTreeMap::new();
    let mut patterns = Vec::new();
    for (tool, grant) in grants {
        for route in grant.http() {
            let host = route.host.to_string();
            if !route.host.is_exact() {
                patterns.push(format!("{host} (for {tool})"));
                continue;
            }
            let place = named.entry((host, route.port)).or_default();
            place.private |= route.allow_private;
            if !place.tools.contains(&tool.to_string()) {
                place.tools.push(tool.to_string());
            }
        }
    }
    let mut found = join_all(named.into_iter().map(|((host, port), place)| async move {
        let what = format!("{host}:{port} (for {})", place.tools.join(", "));
        reach("provider", &what, &host, port, Some(place.private), names).await
    }))
    .await;
    if !patterns.is_empty() {
        found.push(Finding::good("provider", format!("not asked, being patterns: {}", patterns.join(", "))));
    }
    found
}

#[derive(Default)]
struct Place {
    tools: Vec<String>,
    private: bool,
}

/// Every receiver of webhooks.
pub(super) async fn webhooks(webhooks: &[Webhook]) -> Vec<Finding> {
    join_all(webhooks.iter().map(|webhook| async move {
        let (host, port) = (webhook.host().trim_matches(['[', ']']).to_owned(), webhook.port());
        reach("webhook", &format!("{host}:{port}"), &host, port, None, &SystemResolver).await
    }))
    .await
}

/// The server that mail goes through.
pub(super) async fn mail(smtp: &SmtpConfig, names: &Arc<dyn Resolver>) -> Finding {
    const CHECK: &str = "mail";
    let (host, port) = (smtp.host.as_str(), smtp.port);
    let what = format!("{host}:{port}");
    let reached = reach(CHECK, &what, host, port, Some(smtp.allow_private), &**names).await;
    if reached.level != Level::Good {
        return reached;
    }
    // By the code that sends mails, so that what it would not do is not called good.
    let sender = Dispatcher::new(
        DispatcherConfig { smtp: Some(smtp.clone()), ..DispatcherConfig::default() },
        names.clone(),
        Arc::new(Secrets::new(Vec::new())),
    );
    let greeted = match sender {
        Ok(sender) => sender.greet_mail_server().await.unwrap_or(Ok(())),
        Err(error) => Err(error.to_string()),
    };
    let (how, advice) = match smtp.security {
        SmtpSecurity::Tls => (
            "over TLS",
            "see that this port speaks TLS from its first byte (one that begins in the clear is smtp://…:587), and that \
             its certificate is for this name; `ca` in [smtp] names an authority of one's own",
        ),
        SmtpSecurity::StartTls => (
            "over STARTTLS",
            "see that this is a mail server's port and offers STARTTLS (one that speaks TLS from its first byte is \
             smtps://…), and that its certificate is for this name; `ca` in [smtp] names an authority of one's own",
        ),
        SmtpSecurity::Plain => {
            ("without TLS", "see that this is a mail server's port, and read that server's log")
        }
    };
    match greeted {
        Ok(()) => Finding::good(CHECK, format!("{what} greets {how}; it was not logged in to")),
        Err(why) => {
            Finding::failure(CHECK, format!("{what} is reached, and no mail goes out: {why}"), advice)
        }
    }
}

/// `judged`: addresses are held to what sends to them are held to, private ones
/// allowed or not.
async fn reach(
    check: &'static str,
    what: &str,
    host: &str,
    port: u16,
    judged: Option<bool>,
    names: &dyn Resolver,
) -> Finding {
    let bare = host.trim_matches(['[', ']']);
    let resolved = match bare.parse() {
        Ok(ip) => Ok(Ok(vec![ip])),
        Err(_) => timeout(PATIENCE, names.resolve(bare)).await,
    };
    let addresses = match resolved {
        Ok(Ok(addresses)) => addresses,
        Ok(Err(error)) => {
            return Finding::failure(
                check,
                format!("{what}: its name is not resolved ({error})"),
                "look at the name, and at who resolves it: egress.dns, or this machine's resolver",
            );
        }
        Err(_) => {
            return Finding::failure(
                check,
                format!("{what}: its name is not resolved within {PATIENCE:?}"),
                "look at who resolves it: egress.dns, or this machine's resolver",
            );
        }
    };
    if let Some(private) = judged {
        let refused = addresses.iter().find_map(|found| Some((found, address::refused(*found, private)?)));
        if let Some((ip, range)) = refused {
            return Finding::failure(
                check,
                format!("{what} is at {ip}, and nothing is sent there: {range}"),
                "correct the name; a provider in one's own network needs allow_private in the grant",
            );
        }
    }
    let mut why = "it has no address".to_owned();
    for place in addresses {
        match timeout(PATIENCE, TcpStream::connect(SocketAddr::new(place, port))).await {
            Ok(Ok(_)) => return Finding::good(check, format!("{what} is reached")),
            Ok(Err(error)) => why = error.to_string(),
            Err(_) => why = format!("no answer within {PATIENCE:?}"),
        }
    }
    Finding::failure(
        check,
        format!("{what} is not reached: {why}"),
        "see whether it is up, and whether a firewall lets this machine out to it",
    )
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn who_listens_is_reached_and_who_does_not_is_said_to_be_missing() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("its address").port();
        assert_eq!(
            reach("provider", "x", "127.0.0.1", port, Some(true), &SystemResolver).await.level,
            Level::Good
        );
        let refused = reach("provider", "x", "127.0.0.1", port, Some(false), &SystemResolver).await;
        assert!(refused.level == Level::Failure && refused.advice.contains("allow_private"), "{refused:?}");
        drop(listener);
        assert_eq!(
            reach("webhook", "x", "127.0.0.1", port, None, &SystemResolver).await.level,
            Level::Failure
        );
    }

    #[tokio::test]
    async fn a_host_that_left_no_address_is_a_warning_and_one_that_does_not_answer_a_failure() {
        let here = tempfile::tempdir().expect("a folder");
        assert_eq!(running_host(here.path(), 7).await.level, Level::Warning);
        let text = r#"{"url":"http://127.0.0.1:1","pid":7}"#;
        std::fs::write(here.path().join("host.json"), text).expect("a file");
        assert_eq!(running_host(here.path(), 7).await.level, Level::Failure);
    }
}
