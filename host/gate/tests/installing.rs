//! Tools and grants: what is looked at before anything may run, and what a
//! change does to what waits.

use countersign_domain::action::State;
use countersign_domain::grant::Ceiling;
use countersign_gate::install::{Candidate, Consent};
use countersign_gate::{Gate, GateError};
use serde_json::json;

use crate::rig::*;

async fn try_install(rig: &Rig, bytes: std::sync::Arc<[u8]>, grant: String) -> Result<String, &'static str> {
    let installed = rig
        .host()
        .run(async move |gate: Gate| {
            let candidate = Candidate { name: None, bytes, grant: Some(grant) };
            gate.install(&tenant(), &principal("ops"), candidate, &Consent::None).await
        })
        .await;
    installed.map(|tool| format!("{} {}", tool.name, tool.version)).map_err(|error| error.code())
}

#[test]
fn what_is_no_component_or_has_no_usable_schema_or_grant_is_not_installed() {
    run(async |rig| {
        let port = rig.provider.port();
        let good = rig.shelf.put("refund", "1.0.0", refund());
        assert_eq!(try_install(rig, good.clone(), keyed().text(port)).await.unwrap(), "refund 1.0.0");
        assert_eq!(
            try_install(rig, b"junk".as_slice().into(), keyed().text(port)).await,
            Err("component_refused")
        );
        let schema = rig.shelf.put("schema", "1.0.0", refund().input(json!({"type": "nonsense"})));
        assert_eq!(try_install(rig, schema, keyed().text(port)).await, Err("component_refused"));
        let output = rig.shelf.put("output", "1.0.0", refund().output(json!({"$ref": "https://elsewhere/"})));
        assert_eq!(try_install(rig, output, keyed().text(port)).await, Err("component_refused"));
        assert_eq!(try_install(rig, good.clone(), "surprise = true".into()).await, Err("invalid_grant"));
        rig.reconfigure(|config| config.ceiling = Ceiling { unplanned: 1, ..Ceiling::default() });
        assert_eq!(
            try_install(rig, good, keyed().text(port)).await,
            Err("invalid_grant"),
            "over the ceiling"
        );
    });
}

#[test]
fn p4_a_dry_run_says_what_a_grant_would_void_and_changes_nothing() {
    run(async |rig| {
        let grant = keyed().approval("required = 1");
        rig.install("refund", &grant, refund()).await;
        let waiting = rig.propose("refund", amount(1)).await.id;
        let approved = rig.propose("refund", amount(2)).await.id;
        rig.approve(approved, "ben").await.unwrap();
        let declined = rig.propose("refund", amount(3)).await.id;
        rig.decline(declined, "ben").await.unwrap();
        let port = rig.provider.port();
        let change = async |text: String| {
            rig.host()
                .run(async move |gate: Gate| {
                    gate.grant_change(&tenant(), &tool("refund"), &text).await.unwrap()
                })
                .await
        };
        let same = change(format!("# only a comment\n{}", grant.text(port))).await;
        assert!(same.same && same.voids.is_empty());
        let other = change(keyed().approval("required = 2").text(port)).await;
        let mut voids = other.voids;
        voids.sort();
        let mut expected = vec![waiting, approved];
        expected.sort();
        assert_eq!((other.same, voids), (false, expected));
        assert_eq!(rig.row(waiting).await.state, State::AwaitingApproval);
        assert_eq!(ended(rig.execute(approved).await).state, State::Succeeded);
    });
}

#[test]
fn p4_putting_the_grant_that_is_in_force_voids_nothing() {
    run(async |rig| {
        let grant = keyed().approval("required = 1");
        rig.install("refund", &grant, refund()).await;
        let id = rig.propose("refund", amount(1)).await.id;
        rig.put_grant("refund", &grant.clone().top("# a comment\n")).await;
        rig.install("refund", &grant, refund()).await;
        assert_eq!(rig.approve(id, "ben").await.unwrap().state, State::Approved);
        assert_eq!(ended(rig.execute(id).await).state, State::Succeeded);
    });
}

#[test]
fn j05_a_version_whose_grant_asks_for_more_needs_a_yes_to_exactly_that() {
    run(async |rig| {
        let port = rig.provider.port();
        let asks = keyed().approval("required = 1");
        rig.install("refund", &asks, refund()).await;
        let id = rig.propose("refund", amount(1)).await.id;
        let bytes = rig.shelf.put("refund", "2.0.0", refund());
        let install = async |grant: Option<String>, consent: Consent| {
            let candidate = Candidate { name: None, bytes: bytes.clone(), grant };
            rig.host()
                .run(async move |gate: Gate| {
                    gate.install(&tenant(), &principal("ops"), candidate, &consent).await
                })
                .await
        };
        let wider = format!(
            "{}\n[[http]]\nhost = \"evil.example\"\nmethods = [\"POST\"]\npath = \"/**\"\n",
            asks.text(port)
        );
        let refused = install(Some(wider.clone()), Consent::None).await.unwrap_err();
        let GateError::NeedsYes(prospect) = &refused else { panic!("{refused:?}") };
        assert_eq!(refused.code(), "needs_confirmation");
        assert!(refused.to_string().contains(&prospect.confirm) && refused.to_string().contains("route"));
        assert_eq!(prospect.voids, [id]);
        assert!(prospect.difference.changes[0].after.as_deref().unwrap().contains("evil.example"));
        let old = Consent::To("0".repeat(64));
        assert!(install(Some(wider.clone()), old).await.is_err(), "a yes to something else");
        assert_eq!(rig.row(id).await.state, State::AwaitingApproval);
        // The same rights need nobody's yes, and without a grant the one in force stays.
        let tool = install(None, Consent::None).await.unwrap();
        assert_eq!((tool.version.as_str(), tool.grant_source), ("2.0.0", asks.text(port)));
        let confirm = {
            let candidate = Candidate { name: None, bytes: bytes.clone(), grant: Some(wider.clone()) };
            rig.host()
                .run(async move |gate: Gate| gate.prospect(&tenant(), &candidate).await)
                .await
                .unwrap()
                .confirm
        };
        assert_eq!(install(Some(wider.clone()), Consent::To(confirm)).await.unwrap().grant_source, wider);
        let stale = rig.approve(id, "ben").await;
        assert!(stale.is_err() || stale.unwrap().state != State::Approved, "what waited is void");
    });
}
