//! `[quota]`: how much of a host each tenant, tool and caller may take up.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use countersign_domain::id::TenantId;
use countersign_gate::quota::{Quota, Quotas};
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};

use super::{ConfigError, invalid};

/// As it is written. What is left out stays as it is without the file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Section {
    #[serde(default)]
    proposals_per_minute: Proposals,
    #[serde(default)]
    pending: Pending,
    #[serde(default)]
    running: Running,
    waiting: Option<u32>,
    /// The same again for single tenants.
    #[serde(default)]
    tenants: BTreeMap<String, Own>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Own {
    #[serde(default)]
    proposals_per_minute: Proposals,
    #[serde(default)]
    pending: Pending,
    #[serde(default)]
    running: Running,
    waiting: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Proposals {
    tenant: Option<u32>,
    tool: Option<u32>,
    caller: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pending {
    tenant: Option<u32>,
    tool: Option<u32>,
    caller: Option<u32>,
    actor: Option<u32>,
}

/// `{ tenant = …, tool = …, caller = … }`; or one number, which is the tenant's,
/// whichever of its tools and callers take it up.
///
/// Read by hand: serde's untagged enums do not say which key was wrong.
#[derive(Debug, Default)]
struct Running {
    tenant: Option<u32>,
    tool: Option<u32>,
    caller: Option<u32>,
}

impl<'de> Deserialize<'de> for Running {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Running, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Each {
            tenant: Option<u32>,
            tool: Option<u32>,
            caller: Option<u32>,
        }
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Running;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, or { tenant = …, tool = …, caller = … }")
            }

            fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Running, E> {
                let all = Some(u32::try_from(number).map_err(|_| E::custom("it is from 1 to 4294967295"))?);
                Ok(Running { tenant: all, tool: all, caller: all })
            }

            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Running, E> {
                self.visit_i64(i64::try_from(number).unwrap_or(i64::MAX))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Running, A::Error> {
                let Each { tenant, tool, caller } = Each::deserialize(MapAccessDeserializer::new(map))?;
                Ok(Running { tenant, tool, caller })
            }
        }
        deserializer.deserialize_any(Either)
    }
}

/// The quotas of a host.
///
/// # Errors
/// Names the key.
pub fn quotas(section: Section) -> Result<Quotas, ConfigError> {
    let Section { proposals_per_minute, pending, running, waiting, tenants } = section;
    let others = over("quota", Quota::default(), Own { proposals_per_minute, pending, running, waiting })?;
    let mut named = HashMap::new();
    for (name, own) in tenants {
        let tenant: TenantId =
            name.parse().map_err(|error| invalid("quota.tenants", name.clone(), format!("{error}")))?;
        named.insert(tenant, over("quota.tenants", others, own)?);
    }
    Ok(Quotas { others, tenants: named })
}

fn over(name: &'static str, base: Quota, own: Own) -> Result<Quota, ConfigError> {
    let Own { proposals_per_minute: proposals, pending, running, waiting } = own;
    let pick = |given: Option<u32>, base: u32| match given {
        Some(0) => Err(invalid(
            name,
            "0".into(),
            "a quota is at least 1; to stop a tool, pause it (POST /v1/tools/{name}/pause)",
        )),
        given => Ok(given.unwrap_or(base)),
    };
    Ok(Quota {
        proposals_tenant: pick(proposals.tenant, base.proposals_tenant)?,
        proposals_tool: pick(proposals.tool, base.proposals_tool)?,
        proposals_caller: pick(proposals.caller, base.proposals_caller)?,
        pending_tenant: pick(pending.tenant, base.pending_tenant)?,
        pending_tool: pick(pending.tool, base.pending_tool)?,
        pending_caller: pick(pending.caller, base.pending_caller)?,
        pending_actor: pick(pending.actor, base.pending_actor)?,
        running_tenant: pick(running.tenant, base.running_tenant)?,
        running_tool: pick(running.tool, base.running_tool)?,
        running_caller: pick(running.caller, base.running_caller)?,
        waiting: pick(waiting, base.waiting)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Quotas, String> {
        let section: Section = toml::from_str(text).map_err(|error| error.to_string())?;
        quotas(section).map_err(|error| error.to_string())
    }

    #[test]
    fn i01_a_tenant_has_its_own_and_else_everybodys_and_else_the_usual() {
        let read = read(
            "running = 8\nproposals_per_minute = { caller = 60 }\n[tenants.acme]\npending = { actor = 50 }\n",
        )
        .expect("quotas");
        let usual = Quota::default();
        let eight = Quota { running_tenant: 8, running_tool: 8, running_caller: 8, ..usual };
        assert_eq!(read.others, Quota { proposals_caller: 60, ..eight });
        let acme = read.get(&"acme".parse().expect("a tenant"));
        assert_eq!(*acme, Quota { pending_actor: 50, ..read.others });
        assert_eq!(self::read("").expect("quotas"), Quotas::of(usual));
    }

    #[test]
    fn i01_what_runs_at_once_is_one_number_or_one_each_for_tenant_tool_and_caller() {
        let usual = Quota::default();
        let read = read("running = { tool = 3 }\n[tenants.acme]\nrunning = { tenant = 9, caller = 2 }\n");
        let read = read.expect("quotas");
        let three = Quota { running_tool: 3, ..usual };
        assert_eq!(read.others, three);
        let acme = read.get(&"acme".parse().expect("a tenant"));
        assert_eq!(*acme, Quota { running_tenant: 9, running_caller: 2, ..three });
        for (text, part) in [
            ("running = { tols = 3 }", "tols"),
            ("running = -1", "from 1"),
            ("running = \"all\"", "a number, or {"),
            ("running = { caller = 0 }", "at least 1"),
            ("running = 0", "at least 1"),
        ] {
            let refused = self::read(text).expect_err(text);
            assert!(refused.contains(part), "{text}: {refused}");
        }
    }

    #[test]
    fn i01_a_quota_of_nothing_and_an_unknown_key_are_refused_by_name() {
        let refused = read("pending = { tool = 0 }").expect_err("refused");
        assert!(refused.contains("at least 1") && refused.contains("pause"), "{refused}");
        let refused = read("pending = { tols = 1 }").expect_err("refused");
        assert!(refused.contains("tols") && refused.contains("actor"), "{refused}");
        assert!(read("[tenants.\"no name\"]\nrunning = 1").is_err());
    }
}
