//! What is hashed, exactly: intent, fingerprint, effect fingerprint.
//!
//! Each is SHA-256 over the canonical JSON (RFC 8785) of one flat object whose
//! first member names what it is and its version. Canonical JSON delimits its
//! members, so `("ab", "c")` and `("a", "bc")` cannot collide; the tag keeps
//! one kind of digest from ever equalling another kind.

use serde::Serialize;

use crate::canonical::CanonicalJson;
use crate::egress::Target;
use crate::id::{
    ActionId, ComponentDigest, Digest, EffectFingerprint, Fingerprint, GrantDigest, Intent, Principal,
    TenantId, ToolName,
};

fn digest_of(fields: &impl Serialize) -> Digest {
    // The structs below hold text, digests and optional text only: nothing that
    // canonicalisation could refuse.
    let text = serde_json_canonicalizer::to_vec(fields)
        .unwrap_or_else(|never| unreachable!("text-only struct did not canonicalise: {never}"));
    Digest::of(&text)
}

/// Who wants what. Compared when an idempotency key comes again; it does not
/// contain the resolved version, so an upgrade of the tool does not keep a
/// caller from its own result.
pub fn intent(
    tenant: &TenantId,
    actor: &Principal,
    tool: &ToolName,
    requested_version: Option<&str>,
    arguments: &CanonicalJson,
) -> Intent {
    #[derive(Serialize)]
    struct Fields<'a> {
        tag: &'static str,
        tenant: &'a str,
        actor: &'a str,
        tool: &'a str,
        requested_version: Option<&'a str>,
        arguments: Digest,
    }
    Intent(digest_of(&Fields {
        tag: "countersign/intent/1",
        tenant: tenant.as_str(),
        actor: actor.as_str(),
        tool: tool.as_str(),
        requested_version,
        arguments: Digest::of(arguments.as_str().as_bytes()),
    }))
}

/// Everything an approver approves.
#[derive(Debug, Clone, Copy)]
pub struct Approvable<'a> {
    /// Unique per operation: the same arguments twice need two approvals.
    pub action: ActionId,
    /// Tenant, actor, tool, requested version, arguments.
    pub intent: Intent,
    /// The version that will run.
    pub version: &'a str,
    /// The code that will run.
    pub component: ComponentDigest,
    /// What it will be allowed to do.
    pub grant: GrantDigest,
    /// Canonical text of the planned first write.
    pub plan: &'a CanonicalJson,
    /// Canonical text of the tool's own preview.
    pub preview: Option<&'a CanonicalJson>,
}

/// The fingerprint of what an approver approves.
pub fn fingerprint(what: Approvable<'_>) -> Fingerprint {
    #[derive(Serialize)]
    struct Fields<'a> {
        tag: &'static str,
        action: String,
        intent: Intent,
        version: &'a str,
        component: ComponentDigest,
        grant: GrantDigest,
        plan: Digest,
        preview: Option<Digest>,
    }
    Fingerprint(digest_of(&Fields {
        tag: "countersign/fingerprint/1",
        action: what.action.to_string(),
        intent: what.intent,
        version: what.version,
        component: what.component,
        grant: what.grant,
        plan: Digest::of(what.plan.as_str().as_bytes()),
        preview: what.preview.map(|text| Digest::of(text.as_str().as_bytes())),
    }))
}

/// The fingerprint of one HTTP call. `significant` are the headers that the
/// grant's route names, lower-case, sorted by name, as the guest set them;
/// other headers do not count (a library may reorder or add them between
/// versions without changing what happens).
pub fn http_effect(
    method: &str,
    target: &Target,
    significant: &[(String, String)],
    body: &[u8],
) -> EffectFingerprint {
    #[derive(Serialize)]
    struct Fields<'a> {
        tag: &'static str,
        kind: &'static str,
        method: &'a str,
        target: String,
        headers: &'a [(String, String)],
        body: Digest,
    }
    EffectFingerprint(digest_of(&Fields {
        tag: "countersign/effect/1",
        kind: "http",
        method,
        target: target.to_string(),
        headers: significant,
        body: Digest::of(body),
    }))
}

/// The fingerprint of a mail: over the JSON text that is shown and kept, which
/// holds sender, recipients, bodies and attachments whole.
pub fn email_effect(recorded: &[u8]) -> EffectFingerprint {
    #[derive(Serialize)]
    struct Fields {
        tag: &'static str,
        kind: &'static str,
        mail: Digest,
    }
    EffectFingerprint(digest_of(&Fields {
        tag: "countersign/effect/1",
        kind: "email",
        mail: Digest::of(recorded),
    }))
}

/// The fingerprint of a call that is malformed: it goes nowhere, but its refusal
/// is recorded, and a replay has to come to the same place.
pub fn malformed_effect(
    method: &str,
    scheme: &str,
    authority: &str,
    path: &str,
    body: &[u8],
) -> EffectFingerprint {
    #[derive(Serialize)]
    struct Fields<'a> {
        tag: &'static str,
        method: &'a str,
        scheme: &'a str,
        authority: &'a str,
        path: &'a str,
        body: Digest,
    }
    EffectFingerprint(digest_of(&Fields {
        tag: "countersign/malformed-effect/1",
        method,
        scheme,
        authority,
        path,
        body: Digest::of(body),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{ActionKey, action_id};
    use std::collections::HashSet;

    fn json(text: &str) -> CanonicalJson {
        CanonicalJson::parse(text.as_bytes(), Default::default()).unwrap()
    }

    #[test]
    fn p4_each_field_of_an_intent_counts_and_borders_between_fields_hold() {
        let make = |tenant: &str, actor: &str, tool: &str, version: Option<&str>, arguments: &str| {
            intent(
                &tenant.parse().unwrap(),
                &actor.parse().unwrap(),
                &tool.parse().unwrap(),
                version,
                &json(arguments),
            )
        };
        let all = [
            make("ab", "c", "t", None, "{}"),
            make("a", "bc", "t", None, "{}"),
            make("ab", "ct", "t", None, "{}"),
            make("ab", "c", "tt", None, "{}"),
            make("ab", "c", "t", Some("1.0.0"), "{}"),
            make("ab", "c", "t", None, r#"{"a":1}"#),
            make("ab", "c", "t", None, r#"{"a":"1"}"#),
        ];
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
        assert_eq!(
            make("ab", "c", "t", None, r#"{"a":1,"b":2}"#),
            make("ab", "c", "t", None, r#"{"b":2, "a":1.0}"#)
        );
    }

    #[test]
    fn p4_each_field_of_a_fingerprint_counts() {
        let tenant = "default".parse().unwrap();
        let digest = |text: &str| Digest::of(text.as_bytes());
        let (plan, other_plan) = (json(r#"{"p":1}"#), json(r#"{"p":2}"#));
        let base = Approvable {
            action: action_id(&tenant, &ActionKey::Key("k".into())),
            intent: Intent(digest("i")),
            version: "1.0.0",
            component: ComponentDigest(digest("c")),
            grant: GrantDigest(digest("g")),
            plan: &plan,
            preview: None,
        };
        let changed = [
            base,
            Approvable { action: action_id(&tenant, &ActionKey::Key("l".into())), ..base },
            Approvable { intent: Intent(digest("j")), ..base },
            Approvable { version: "1.0.1", ..base },
            Approvable { component: ComponentDigest(digest("d")), ..base },
            Approvable { grant: GrantDigest(digest("h")), ..base },
            Approvable { plan: &other_plan, ..base },
            Approvable { preview: Some(&plan), ..base },
        ];
        let distinct: HashSet<_> = changed.iter().map(|what| fingerprint(*what)).collect();
        assert_eq!(distinct.len(), changed.len());
        assert_eq!(fingerprint(base), fingerprint(base));
    }

    #[test]
    fn p4_each_part_of_a_call_counts() {
        let to = |path: &str| Target::parse("https", "api.example.com", path).unwrap();
        let header = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
        let all = [
            http_effect("POST", &to("/a"), &[], b"x"),
            http_effect("PUT", &to("/a"), &[], b"x"),
            http_effect("POST", &to("/b"), &[], b"x"),
            http_effect("POST", &to("/a?b"), &[], b"x"),
            http_effect("POST", &to("/a"), &[], b"y"),
            http_effect("POST", &to("/a"), &header("a", "bc"), b"x"),
            http_effect("POST", &to("/a"), &header("ab", "c"), b"x"),
        ];
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
    }
}
