//! A provider and a host with the three tools, and the verbs that most tests use. The verdict is
//! asked of the provider's log, by action: provider keys carry the action's id.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use countersign_domain::event::{Event, EventBody, verify};
use countersign_domain::id::{ActionId, Digest, TenantId};
use countersign_domain::time::Timestamp;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::backend::Backend;
use super::host::{BINARY, Host};
use super::http::Request;
use super::provider::{Line, Provider};
use super::told::Told;
use super::{grants, guests};

/// How long an action may take to get where a test waits for it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where the refund tool writes.
pub const REFUNDS: &str = "/v1/refunds";

/// Provider and host.
pub struct Stage {
    /// The world outside.
    pub provider: Provider,
    /// What is under test.
    pub host: Host,
}

impl Stage {
    /// Both running, with refund, transfer and probe under their usual grants.
    pub fn set() -> Stage {
        Stage::on(Backend::Sqlite)
    }

    /// The same on this store. Where nobody knows that a worker is gone before its lease is, leases
    /// are short, and so are sends, which they cover.
    pub fn on(store: Backend) -> Stage {
        Stage::on_with(store, store.lease(), store.send())
    }

    /// The same with more of the host's configuration, for what is left to the reaper while the
    /// host lives, and with grants that say how long a send may take.
    pub fn on_with(store: Backend, toml: &str, send: &str) -> Stage {
        Stage::over(store.new_store(), toml, send)
    }

    /// The same over a ledger that is there: `postgres://…`.
    pub fn over(store: Option<String>, toml: &str, send: &str) -> Stage {
        let provider = Provider::start(BINARY);
        let host = Host::asleep_over(store, toml);
        host.wake();
        let stage = Stage { host, provider };
        let port = stage.provider.port();
        for (component, grant) in [
            (&guests::REFUND, grants::refund(port)),
            (&guests::TRANSFER, grants::transfer(port)),
            (&guests::PROBE, grants::probe(port)),
        ] {
            stage.install(component, &grants::sending_for(&grant, send)).expect(201);
        }
        stage
    }

    /// Installs a component with a grant.
    pub fn install(&self, component: &[u8], grant: &str) -> Told {
        install(&self.host, "", component, grant)
    }

    /// Installs the probe once more under another name, with a grant of its own.
    pub fn install_probe(&self, name: &str, grant: &str) {
        install(&self.host, &format!("?name={name}"), &guests::PROBE, grant).expect(201);
    }

    /// A URL at the provider.
    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.provider.url())
    }

    /// Arguments of a refund; the payment names it.
    pub fn refund(&self, payment: &str, amount: u64) -> Value {
        json!({ "payment_intent": format!("pi_{payment}"), "amount": amount, "currency": "eur",
            "api_base": self.provider.url() })
    }

    /// Arguments of a transfer.
    pub fn transfer(&self, amount: u64) -> Value {
        json!({ "from": "DE02120300000000202051", "to": "FR1420041010050500013M02606", "amount": amount,
            "currency": "eur", "api_base": self.provider.url() })
    }

    /// Proposes, as the agent.
    pub fn propose(&self, tool: &str, key: &str, arguments: &Value) -> Told {
        let agent = self.host.agent();
        let body = json!({ "tool": tool, "arguments": arguments }).to_string();
        agent.send(
            agent
                .request("POST", "/v1/actions")
                .header("Idempotency-Key", key)
                .body("application/json", body),
        )
    }

    /// Approves, as the approver, what has this fingerprint.
    pub fn approve(&self, id: &str, fingerprint: &str) -> Told {
        let approver = self.host.approver();
        let request = approver.request("POST", &format!("/v1/actions/{id}/approve"));
        approver.send(request.header("If-Match", &format!("\"{fingerprint}\"")))
    }

    /// Proposes something new and approves it; its id.
    #[track_caller]
    pub fn approved(&self, tool: &str, key: &str, arguments: &Value) -> String {
        let proposed = self.propose(tool, key, arguments).expect(201);
        assert_eq!(proposed.outcome(), "awaiting_approval", "{}", proposed.json);
        self.approve(&proposed.id(), &proposed.text("/fingerprint")).expect(200);
        proposed.id()
    }

    /// Executes, as the agent, and waits for the result.
    pub fn execute(&self, id: &str) -> Told {
        self.try_execute(id).unwrap_or_else(|error| panic!("no answer: {error}"))
    }

    /// Executes on a host that may be killed meanwhile.
    pub fn try_execute(&self, id: &str) -> std::io::Result<Told> {
        let agent = self.host.agent();
        agent.try_send(agent.request("POST", &format!("/v1/actions/{id}/execute?wait=60s")))
    }

    /// Asks for the execution and does not read the answer. Dropped, the caller hangs up; before
    /// the host has heard it, that takes the request back.
    pub fn execute_unheard(&self, id: &str) -> TcpStream {
        let agent = self.host.agent();
        let request: Request = agent.request("POST", &format!("/v1/actions/{id}/execute?wait=60s"));
        request.begin(&self.host.address()).expect("a connection")
    }

    /// Executes without waiting for the result.
    pub fn start_execute(&self, id: &str) -> Told {
        self.host.agent().post_nothing(&format!("/v1/actions/{id}/execute?wait=0s"))
    }

    /// The action as it stands.
    pub fn action(&self, id: &str) -> Told {
        self.host.agent().get(&format!("/v1/actions/{id}")).expect(200)
    }

    /// Waits until the action is in one of these states.
    #[track_caller]
    pub fn wait_for(&self, id: &str, states: &[&str]) -> Told {
        let until = Instant::now() + PATIENCE;
        loop {
            let told = self.host.agent().get(&format!("/v1/actions/{id}?wait=1s")).expect(200);
            if states.contains(&told.outcome().as_str()) {
                return told;
            }
            assert!(Instant::now() < until, "still not {states:?}: {}", told.json);
        }
    }

    /// Cancels, as the agent.
    pub fn cancel(&self, id: &str) -> Told {
        self.host.agent().post(&format!("/v1/actions/{id}/cancel"), &json!({ "reason": "not any more" }))
    }

    /// Says, as the operator, what came of an effect.
    pub fn resolve(&self, id: &str, word: Value) -> Told {
        self.host.operator().post(&format!("/v1/actions/{id}/resolve"), &word)
    }

    /// Replaces a tool's grant.
    pub fn put_grant(&self, tool: &str, grant: &str) -> Told {
        let operator = self.host.operator();
        let request = operator.request("PUT", &format!("/v1/tools/{tool}/grant"));
        operator.send(request.body("application/toml", grant))
    }

    /// The ledger of an action.
    pub fn ledger(&self, id: &str) -> Vec<Value> {
        let told = self.host.agent().get(&format!("/v1/actions/{id}/effects")).expect(200);
        told.json["effects"].as_array().cloned().expect("effects")
    }

    /// What the provider received for an action at a path.
    pub fn requests(&self, path: &str, id: &str) -> Vec<Line> {
        of_action(self.provider.requests(path), id)
    }

    /// What the provider did for an action at a path: the verdict.
    pub fn effects(&self, path: &str, id: &str) -> Vec<Line> {
        of_action(self.provider.effects(path), id)
    }

    /// Requests and effects of an action at a path, counted.
    pub fn counts(&self, path: &str, id: &str) -> (usize, usize) {
        (self.requests(path, id).len(), self.effects(path, id).len())
    }

    /// The names of an action's events, after its whole chain was verified.
    #[track_caller]
    pub fn facts(&self, id: &str) -> Vec<String> {
        let events = verified_events(&self.host, id);
        events.iter().map(|event| body(event).fact.name().to_owned()).collect()
    }

    /// Verifies the chain of every action that the host has; how many there are.
    #[track_caller]
    pub fn audit(&self) -> usize {
        let ids = all_actions(&self.host);
        ids.iter().for_each(|id| drop(verified_events(&self.host, id)));
        ids.len()
    }
}

/// Installs a component on a host; `query` begins with a question mark, or is empty.
pub fn install(host: &Host, query: &str, component: &[u8], grant: &str) -> Told {
    let operator = host.operator();
    let (media_type, body) = multipart(&[("component", component), ("grant", grant.as_bytes())]);
    operator.send(operator.request("POST", &format!("/v1/tools{query}")).body(&media_type, body))
}

/// A multipart body of these parts, with its media type.
pub fn multipart(parts: &[(&str, &[u8])]) -> (String, Vec<u8>) {
    const BORDER: &str = "countersign-test-4b1d9c07";
    let mut body = Vec::new();
    for (name, bytes) in parts {
        let head = format!(
            "--{BORDER}\r\nContent-Disposition: form-data; name=\"{name}\"; filename=\"{name}\"\r\n\r\n"
        );
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(bytes);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(format!("--{BORDER}--\r\n").as_bytes());
    (format!("multipart/form-data; boundary={BORDER}"), body)
}

/// The ids of all actions, newest first.
pub fn all_actions(host: &Host) -> Vec<String> {
    let mut found = Vec::new();
    let mut target = "/v1/actions?limit=200".to_owned();
    loop {
        let page = host.agent().get(&target).expect(200);
        for action in page.json["actions"].as_array().expect("actions") {
            found.push(action["id"].as_str().expect("an id").to_owned());
        }
        match page.json["next"].as_str() {
            Some(next) => target = format!("/v1/actions?limit=200&after={next}"),
            None => return found,
        }
    }
}

/// An action's events, after its whole chain was verified to lead to where its row is.
#[track_caller]
pub fn verified_events(host: &Host, id: &str) -> Vec<Event> {
    let action: ActionId = id.parse().expect("an id");
    let tenant: TenantId = "default".parse().expect("a tenant");
    let row = || host.agent().get(&format!("/v1/actions/{id}")).expect(200).text("/status");
    let mut state = row();
    loop {
        let events = events(host, id);
        let after = row();
        if after != state {
            // The reaper moved it on between the two questions.
            state = after;
            continue;
        }
        if let Err(broken) = verify(&tenant, action, &events, state.parse().expect("a state")) {
            panic!("action {id}: {broken}");
        }
        return events;
    }
}

/// An action's events as the domain knows them, from what the host shows.
fn events(host: &Host, id: &str) -> Vec<Event> {
    #[derive(Deserialize)]
    struct Page {
        events: Vec<Shown>,
    }
    // The body stays the text that was hashed.
    #[derive(Deserialize)]
    struct Shown {
        cursor: i64,
        action: ActionId,
        seq: u32,
        at: Timestamp,
        body: Box<RawValue>,
        hash: Digest,
    }
    let told = host.agent().get(&format!("/v1/actions/{id}/events?limit=1000")).expect(200);
    let page: Page = serde_json::from_slice(&told.answer.body).expect("events");
    let tenant: TenantId = "default".parse().expect("a tenant");
    let event = |shown: Shown| Event {
        cursor: shown.cursor,
        tenant: tenant.clone(),
        action: shown.action,
        seq: shown.seq,
        at: shown.at,
        body: shown.body.get().to_owned(),
        hash: shown.hash,
    };
    page.events.into_iter().map(event).collect()
}

/// What an event says.
pub fn body(event: &Event) -> EventBody {
    serde_json::from_str(&event.body).expect("an event's body")
}

fn of_action(mut lines: Vec<Line>, id: &str) -> Vec<Line> {
    lines.retain(|line| line.key.as_deref().is_some_and(|key| key.contains(id)));
    lines
}
