//! What is installed and who may call.

use std::time::Duration;

use countersign_domain::id::{Digest, GrantDigest, Principal};
use countersign_domain::role::Role;

use super::Backend;
use super::scene::{Scene, new_tool, principal};
use crate::steps::NewAction;
use crate::{NewPrincipal, NewTool, Pending, StoreError};

fn grant(text: &str) -> GrantDigest {
    GrantDigest(Digest::of(text.as_bytes()))
}

pub async fn installing_makes_a_version_current_and_installing_it_again_changes_nothing(
    backend: &dyn Backend,
) {
    let scene = Scene::new(backend).await;
    let first = scene.tool.clone();
    assert!(first.current && !first.paused);
    assert_eq!(first.grant_source, "grant");
    assert_eq!(first.inspection.manifest.title, "Refund");
    scene.advance(Duration::from_secs(1)).await;
    let again = new_tool(&scene.tenant, "refund", "1.0.0", "bytes", "grant");
    assert_eq!(scene.store.install_tool(again).await.unwrap(), first);
    let (store, name) = (&scene.store, &first.name);
    assert_eq!(store.tool(&scene.tenant, name, None).await.unwrap(), Some(first.clone()));
    assert_eq!(store.tool(&scene.tenant, name, Some("1.0.0")).await.unwrap(), Some(first.clone()));
    assert_eq!(store.tool(&scene.tenant, name, Some("9.9.9")).await.unwrap(), None);
    assert_eq!(store.tool(&"other".parse().unwrap(), name, None).await.unwrap(), None);
    assert_eq!(store.component(&scene.tenant, first.component).await.unwrap(), Some(b"bytes".to_vec()));
    assert_eq!(store.component(&"other".parse().unwrap(), first.component).await.unwrap(), None);
}

pub async fn a_version_with_other_bytes_is_a_conflict(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let other = new_tool(&scene.tenant, "refund", "1.0.0", "other bytes", "grant");
    let refused = scene.store.install_tool(other).await.unwrap_err();
    assert!(matches!(refused, StoreError::Conflict { .. }), "{refused}");
    assert!(refused.to_string().contains("1.0.0") && refused.to_string().contains("refund"), "{refused}");
    assert_eq!(scene.store.tools(&scene.tenant).await.unwrap(), std::slice::from_ref(&scene.tool));
}

pub async fn a_new_version_and_a_new_grant_move_the_policy_epoch(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let epoch = scene.tool.policy_epoch;
    scene.advance(Duration::from_secs(1)).await;
    let newer = new_tool(&scene.tenant, "refund", "2.0.0", "other bytes", "grant");
    let newer = scene.store.install_tool(newer).await.unwrap();
    assert_eq!((newer.current, newer.policy_epoch), (true, epoch + 1));
    let old = scene.store.tool(&scene.tenant, &newer.name, Some("1.0.0")).await.unwrap().unwrap();
    assert!(!old.current);
    let by = principal("olga");
    let put =
        |source: &'static str| scene.store.put_grant(&scene.tenant, &newer.name, grant(source), source, &by);
    let changed = put("other grant").await.unwrap();
    assert_eq!((changed.grant, changed.policy_epoch), (grant("other grant"), epoch + 2));
    assert_eq!(changed.grant_source, "other grant");
    assert_eq!(put("other grant").await.unwrap(), changed, "the same again is no change");
    let all = scene.store.tools(&scene.tenant).await.unwrap();
    let versions: Vec<_> = all.iter().map(|tool| (tool.version.as_str(), tool.current, tool.grant)).collect();
    assert_eq!(versions, [("2.0.0", true, grant("other grant")), ("1.0.0", false, grant("other grant"))]);
}

pub async fn a_new_name_moves_no_policy_epoch(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let action = scene.approved("k").await;
    let another = new_tool(&scene.tenant, "transfer", "1.0.0", "transfer", "grant");
    let another = scene.store.install_tool(another).await.unwrap();
    assert_eq!(another.policy_epoch, scene.tool.policy_epoch, "nothing that was approved has changed");
    scene.run(action.id).await;
}

pub async fn an_older_version_can_be_put_back_in_force(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let newer: NewTool = new_tool(&scene.tenant, "refund", "2.0.0", "other bytes", "grant");
    let newer = scene.store.install_tool(newer).await.unwrap();
    let back = new_tool(&scene.tenant, "refund", "1.0.0", "bytes", "grant");
    let back = scene.store.install_tool(back).await.unwrap();
    assert!(back.current);
    assert_eq!(back.policy_epoch, newer.policy_epoch + 1);
    assert_eq!(back.installed, scene.tool.installed);
}

pub async fn an_old_grant_stays_readable(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    scene.change_policy().await;
    let read = |digest| scene.store.grant(&scene.tenant, digest);
    assert_eq!(read(scene.tool.grant).await.unwrap().as_deref(), Some("grant"));
    assert_eq!(read(grant("never put")).await.unwrap(), None);
}

pub async fn pausing_moves_no_policy_epoch(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let paused = |paused| scene.store.set_paused(&scene.tenant, &scene.tool.name, paused);
    paused(true).await.unwrap();
    let tool = scene.store.tool(&scene.tenant, &scene.tool.name, None).await.unwrap().unwrap();
    assert!(tool.paused);
    assert_eq!(tool.policy_epoch, scene.tool.policy_epoch);
    paused(false).await.unwrap();
    assert!(!scene.store.tool(&scene.tenant, &scene.tool.name, None).await.unwrap().unwrap().paused);
}

fn token(scene: &Scene<'_>, id: &str) -> NewPrincipal {
    NewPrincipal {
        tenant: scene.tenant.clone(),
        token_id: id.into(),
        token_hash: Digest::of(id.as_bytes()),
        name: principal("ben"),
        roles: vec![Role::Approver, Role::Operator],
    }
}

pub async fn tokens_are_found_by_their_public_part_and_revoked_once(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let action = scene.awaiting("k", 1).await;
    let added = scene.store.add_principal(token(&scene, "t1")).await.unwrap();
    scene.advance(Duration::from_secs(1)).await;
    let second = scene.store.add_principal(token(&scene, "t2")).await.unwrap();
    assert_eq!(scene.store.principal("t1").await.unwrap(), Some(added.clone()));
    assert_eq!(scene.store.principal("t3").await.unwrap(), None);
    assert_eq!(scene.store.principals(&scene.tenant).await.unwrap(), [added.clone(), second.clone()]);
    assert_eq!((added.revoked, added.roles.as_slice()), (None, &[Role::Approver, Role::Operator][..]));

    scene.store.revoke(&scene.tenant, "t1").await.unwrap();
    let at = scene.now().await;
    scene.advance(Duration::from_secs(1)).await;
    scene.store.revoke(&scene.tenant, "t1").await.unwrap();
    assert_eq!(
        scene.store.principal("t1").await.unwrap().unwrap().revoked,
        Some(at),
        "the first time counts"
    );
    let epoch = scene.store.tool(&scene.tenant, &scene.tool.name, None).await.unwrap().unwrap().policy_epoch;
    assert_eq!(epoch, scene.tool.policy_epoch + 1, "and moves the epoch once");
    super::scene::lost(scene.store.approve(scene.approval(&action, "ben")).await);
}

pub async fn a_token_id_is_unique_across_tenants(backend: &dyn Backend) {
    let (one, other) = (Scene::of(backend, "one").await, Scene::of(backend, "other").await);
    let added = one.store.add_principal(token(&one, "t1")).await.unwrap();
    for scene in [&one, &other] {
        let refused = scene.store.add_principal(token(scene, "t1")).await.unwrap_err();
        assert!(matches!(refused, StoreError::Conflict { .. }), "{refused}");
    }
    assert_eq!(one.store.principal("t1").await.unwrap(), Some(added));
    assert!(matches!(other.store.revoke(&other.tenant, "t1").await, Err(StoreError::NotFound { .. })));
}

pub async fn what_is_not_there_is_said_to_be_missing(backend: &dyn Backend) {
    let scene = Scene::new(backend).await;
    let nothing = "nothing".parse().unwrap();
    let by = principal("olga");
    for missing in [
        scene.store.set_paused(&scene.tenant, &nothing, true).await,
        scene.store.put_grant(&scene.tenant, &nothing, grant("g"), "g", &by).await.map(|_| ()),
        scene.store.revoke(&scene.tenant, "t1").await,
    ] {
        let missing = missing.unwrap_err();
        assert!(matches!(missing, StoreError::NotFound { .. }), "{missing}");
    }
    assert_eq!(
        scene.store.grant(&scene.tenant, grant("g")).await.unwrap(),
        None,
        "and nothing is left behind"
    );
}

pub async fn p7_what_awaits_a_decision_is_counted_by_tenant_tool_and_actor(backend: &dyn Backend) {
    let (scene, other) = (Scene::of(backend, "one").await, Scene::of(backend, "other").await);
    let (tool, actor) = (&scene.tool.name, principal("agent"));
    let nobody = principal("nobody");
    let count = async |tool, caller: &Principal, actor: &Principal| {
        scene.store.pending(&scene.tenant, tool, caller, actor).await.unwrap()
    };
    assert_eq!(count(tool, &actor, &actor).await, Pending::default());
    other.awaiting("theirs", 1).await;
    scene.approved("decided").await;
    let one = scene.awaiting("one", 1).await;
    let another = NewAction { actor: principal("somebody"), ..scene.proposal("two", 1).await };
    scene.propose(another).await;
    // Proposed for somebody else, it is its proposer's all the same.
    let all = Pending { tenant: 2, tool: 2, caller: 2, actor: 1 };
    assert_eq!(count(tool, &one.proposer, &one.actor).await, all);
    assert_eq!(count(tool, &nobody, &one.actor).await, Pending { caller: 0, ..all });
    assert_eq!(
        count(&"another-tool".parse().unwrap(), &nobody, &nobody).await,
        Pending { tenant: 2, tool: 0, caller: 0, actor: 0 }
    );
}
