//! Tools that carry an interpreter: one in JavaScript, one in Python. They are too large to keep
//! with the sources; `guest-examples/build` makes them, and these tests run where it did.

use countersign_domain::effect::{Answer, Passage};
use countersign_domain::run::{Ended, ToolFailure};
use serde_json::{Value, json};

use super::rig::{Gate, at, call_of, component_built, digest, returned};
use crate::{Sandbox, SandboxConfig};

fn answered(n: usize, status: u16, body: &Value) -> Passage {
    let answer = Answer { status, headers: Vec::new(), body: body.to_string().into_bytes() };
    Passage::Answered { answer, at: at(n) }
}

#[tokio::test(flavor = "multi_thread")]
async fn p6_a_tool_in_javascript_is_mediated_as_any_other() {
    let Some(bytes) = component_built("issue-ticket") else { return };
    let sandbox = Sandbox::new(SandboxConfig::default()).unwrap();
    let inspection = sandbox.inspect(bytes.clone()).await.unwrap();
    assert_eq!(inspection.manifest.name.as_str(), "issue-ticket");
    let arguments = json!({ "project": "billing", "title": "Twice", "text": "charged" });
    let gate = Gate::new(|n, _| answered(n, 201, &json!({ "number": 7 })));
    let mut call = call_of(digest(&bytes), arguments.clone());
    // As every grant has it; `fetch` sets this one by itself.
    call.forbidden_headers = std::sync::Arc::new(["content-length".to_owned(), "host".to_owned()].into());
    let report = sandbox.invoke(call, gate.clone()).await;
    assert_eq!(returned(&report), json!({ "ticket": { "number": 7 } }));
    assert!(!gate.request(0).headers.iter().any(|(name, _)| name == "content-length"));
    let sent = gate.request(0);
    assert_eq!((sent.method.as_str(), gate.count()), ("POST", 1));
    assert_eq!(sent.authority.as_deref(), Some("tickets.example"));
    assert_eq!(sent.path_with_query.as_deref(), Some("/projects/billing/tickets"));
    assert_eq!(String::from_utf8(sent.body).unwrap(), r#"{"title":"Twice","text":"charged"}"#);
    let preview = sandbox.preview(call_of(digest(&bytes), arguments.clone())).await.unwrap();
    assert_eq!(preview.fields[1].value, "Twice");
    let gate = Gate::new(|n, _| answered(n, 503, &json!({})));
    let report = sandbox.invoke(call_of(digest(&bytes), arguments), gate).await;
    let Ended::Failed(ToolFailure::TryLater { after: None, .. }) = report.ended else { panic!("{report:?}") };
}

#[tokio::test(flavor = "multi_thread")]
async fn p6_a_tool_in_python_is_mediated_as_any_other() {
    let Some(bytes) = component_built("exchange-rate") else { return };
    let sandbox = Sandbox::new(SandboxConfig::default()).unwrap();
    let inspection = sandbox.inspect(bytes.clone()).await.unwrap();
    assert_eq!(inspection.manifest.name.as_str(), "exchange-rate");
    assert!(inspection.imports.iter().any(|i| i.starts_with("wasi:sockets/")), "{:?}", inspection.imports);
    let arguments = json!({ "from": "a", "to": "b", "amount": 12_000, "currency": "EUR" });
    let gate = Gate::new(|n, _| answered(n, 200, &json!({ "quote": "q", "rate": 1, "fee": 37 })));
    let report = sandbox.invoke(call_of(digest(&bytes), arguments.clone()), gate.clone()).await;
    assert_eq!(returned(&report), json!({ "rate": 1, "fee": 37 }));
    let sent = gate.request(0);
    assert_eq!((sent.method.as_str(), gate.count(), sent.body.len()), ("GET", 1, 0));
    assert_eq!(sent.path_with_query.as_deref(), Some("/quote?from=a&to=b&amount=12000&currency=EUR"));
    let preview = sandbox.preview(call_of(digest(&bytes), arguments.clone())).await.unwrap();
    assert_eq!(preview.fields[2].value, "12000 EUR");
    let gate = Gate::new(|n, _| answered(n, 403, &json!({ "error": "no" })));
    let report = sandbox.invoke(call_of(digest(&bytes), arguments), gate).await;
    let Ended::Failed(ToolFailure::Refused(why)) = report.ended else { panic!("{report:?}") };
    assert!(why.contains("403"), "{why}");
}
