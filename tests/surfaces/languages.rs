//! Tools in JavaScript and in Python, from install to result. Each carries an interpreter, knows
//! nothing of the host, and is mediated as any other.

use serde_json::json;

use crate::support::{Fault, Rule, Stage, guests};

#[test]
fn p6_a_javascript_tool_writes_once_as_approved_and_what_is_lost_waits_for_a_person() {
    let Some(component) = guests::built("issue-ticket") else { return };
    let stage = Stage::set();
    let grant = include_str!("../../guest-examples/issue-ticket/grant.local.toml")
        .replace("12111", &stage.provider.port().to_string());
    stage.install(&component, &grant).expect(201);
    let arguments = |project: &str| json!({ "project": project, "title": "Charged twice", "api_base": stage.url("/any") });
    let path = "/any/projects/billing/tickets";
    let proposed = stage.propose("issue-ticket", "one", &arguments("billing")).expect(201);
    let planned = proposed.text("/plan/first_write/body");
    assert_eq!(planned, r#"{"title":"Charged twice","text":""}"#);
    assert_eq!(stage.counts(path, &proposed.id()), (0, 0));
    stage.approve(&proposed.id(), &proposed.text("/fingerprint")).expect(200);
    let told = stage.execute(&proposed.id());
    assert_eq!(told.outcome(), "succeeded", "{}", told.json);
    assert_eq!(told.number("/result/ticket/n"), 1);
    let sent = stage.requests(path, &proposed.id());
    assert_eq!((sent.len(), sent[0].body.as_deref()), (1, Some(planned.as_str())));

    // `manual`: nobody sends it again but a person.
    let lost = "/any/projects/lost/tickets";
    stage.provider.fault(Rule::once(lost, Fault::LoseReply));
    let id = stage.approved("issue-ticket", "lost", &arguments("lost"));
    let told = stage.execute(&id);
    assert_eq!(told.outcome(), "execution_in_doubt", "{}", told.json);
    assert_eq!(stage.counts(lost, &id), (1, 1));
}

#[test]
fn p6_a_python_tool_reads_and_changes_nothing() {
    let Some(component) = guests::built("exchange-rate") else { return };
    let stage = Stage::set();
    let grant = include_str!("../../guest-examples/exchange-rate/grant.local.toml")
        .replace("12111", &stage.provider.port().to_string());
    let installed = stage.install(&component, &grant).expect(201);
    assert!(installed.json.to_string().contains("wasi:sockets/"), "what it imports is said");
    let arguments = json!({ "from": "DE02", "to": "FR14", "amount": 12_000, "currency": "EUR",
        "api_base": stage.provider.url() });
    let proposed = stage.propose("exchange-rate", "one", &arguments).expect(201);
    let told = match proposed.outcome().as_str() {
        "succeeded" => proposed,
        _ => stage.execute(&proposed.id()),
    };
    assert_eq!(told.outcome(), "succeeded", "{}", told.json);
    assert_eq!((told.number("/result/rate"), told.number("/result/fee")), (1, 37));
}
