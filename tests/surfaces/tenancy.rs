//! Another tenant's things look exactly like things that never were.

use serde_json::json;

use crate::support::{Stage, at_once};

#[test]
fn h03_every_route_answers_another_tenant_as_if_the_action_never_was() {
    let stage = Stage::set();
    let id = stage.approved("refund", "mine", &stage.refund("mine", 100));
    stage.execute(&id);
    let pending = stage.propose("refund", "pending", &stage.refund("pending", 100)).expect(201).id();
    let other = |roles: &[&str]| stage.host.new_token(&format!("other-{}", roles[0]), roles, "other");
    let (agent, approver, operator) = (other(&["agent"]), other(&["approver"]), other(&["operator"]));
    let never = "01234567-89ab-8cde-8f01-23456789abcd";
    for (token, method, verb) in [
        (&agent, "GET", ""),
        (&agent, "GET", "/effects"),
        (&agent, "GET", "/events"),
        (&agent, "GET", "/log"),
        (&agent, "POST", "/execute"),
        (&agent, "POST", "/cancel"),
        (&agent, "POST", "/supersede"),
        (&approver, "POST", "/approve"),
        (&approver, "POST", "/decline"),
        (&operator, "POST", "/resolve"),
    ] {
        let caller = stage.host.with_token(token);
        let ask = |id: &str| {
            let request = caller.request(method, &format!("/v1/actions/{id}{verb}"));
            let body = match verb {
                "/cancel" | "/decline" => json!({ "reason": "r" }),
                "/resolve" => json!({ "ordinal": 1, "outcome": "give_up", "evidence": "e" }),
                _ => json!({}),
            };
            let request =
                if method == "GET" { request } else { request.body("application/json", body.to_string()) };
            caller.send(request)
        };
        for theirs in [&id, &pending] {
            let (foreign, unknown) = (ask(theirs), ask(never));
            foreign.refused(404, "not_found");
            // Word for word the same, but for the id that was asked for.
            assert_eq!(
                foreign.answer.text().replace(theirs.as_str(), never),
                unknown.answer.text(),
                "{verb}"
            );
        }
    }
    let outsider = stage.host.with_token(&agent);
    assert_eq!(outsider.get("/v1/actions").expect(200).json["actions"], json!([]));
    assert_eq!(outsider.get("/v1/tools").expect(200).json["tools"], json!([]));
    assert_eq!(outsider.get("/v1/events").expect(200).json["events"], json!([]));
    outsider.get("/v1/tools/refund").refused(404, "not_found");
    // A cursor of one tenant shows another nothing.
    let cursor = stage.host.agent().get("/v1/events").expect(200).number("/next");
    assert_eq!(
        outsider.get(&format!("/v1/events?after={}", cursor - 1)).expect(200).json["events"],
        json!([])
    );
    let after = |id: &str| outsider.get(&format!("/v1/actions?after={id}"));
    assert_eq!(after(&id).answer.text().replace(&id, never), after(never).answer.text());
    assert_eq!(stage.action(&pending).outcome(), "awaiting_approval");
}

#[test]
fn the_same_key_of_two_tenants_is_two_actions_with_two_ids() {
    let stage = Stage::set();
    let (agent, operator) =
        (stage.host.new_token("a", &["agent"], "other"), stage.host.new_token("o", &["operator"], "other"));
    let operator = stage.host.with_token(&operator);
    let (media_type, body) = crate::support::stage::multipart(&[
        ("component", &crate::support::guests::REFUND),
        ("grant", crate::support::grants::refund(stage.provider.port()).as_bytes()),
    ]);
    operator.send(operator.request("POST", "/v1/tools").body(&media_type, body)).expect(201);
    let proposal =
        json!({ "tool": "refund", "arguments": stage.refund("same", 100), "run_id": "r", "step": "1" });
    let tokens = [stage.host.token("agent"), agent];
    let told = at_once(2, |i| stage.host.with_token(&tokens[i]).post("/v1/actions", &proposal).expect(201));
    assert_ne!(told[0].id(), told[1].id());
    assert_eq!(told.iter().filter(|told| told.text("/tenant") == "other").count(), 1);
}

#[test]
fn tokens_of_another_tenant_are_made_by_the_hosts_own_admins_only() {
    let stage = Stage::set();
    let theirs = stage.host.new_token("boss", &["admin"], "other");
    let theirs = stage.host.with_token(&theirs);
    let own = theirs.post("/v1/tokens", &json!({ "name": "x", "roles": ["agent"] })).expect(201);
    assert_eq!(own.text("/tenant"), "other");
    for tenant in ["default", "third"] {
        let body = json!({ "name": "x", "roles": ["agent"], "tenant": tenant });
        theirs.post("/v1/tokens", &body).refused(403, "not_permitted");
    }
    let listed = theirs.get("/v1/tokens").expect(200);
    assert!(listed.json["tokens"].as_array().expect("tokens").iter().all(|token| token["tenant"] == "other"));
    // Nor can they end somebody else's.
    let public = stage.host.token("agent").split('_').nth(1).expect("a public part").to_owned();
    theirs.send(theirs.request("DELETE", &format!("/v1/tokens/{public}"))).refused(404, "not_found");
    stage.host.agent().get("/v1/tools").expect(200);
}
