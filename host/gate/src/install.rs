//! Installing tools, and what they may do: a component is looked at before any
//! of it runs, describes itself with nothing granted, and gets a grant that an
//! operator wrote. What asks for more than is in force needs a yes to exactly
//! that ([`Consent`]).

use std::sync::Arc;

use countersign_domain::action::State;
use countersign_domain::grant::Grant;
use countersign_domain::id::{ActionId, Principal, TenantId, ToolName};
use countersign_domain::tool::{Inspection, InstalledTool};
use countersign_store::NewTool;
use countersign_store::steps::ListActions;

use crate::difference::Difference;
use crate::propose::compile_schema;
use crate::{Gate, GateError};

/// The grant of a tool that came without one: a person approves each action,
/// and nothing can be reached.
pub const NO_GRANT: &str = "";

/// What a grant would change.
#[derive(Debug, Clone)]
pub struct GrantChange {
    /// It means what the grant in force means.
    pub same: bool,
    /// Actions that await a decision or their start and would be void.
    pub voids: Vec<ActionId>,
    /// What it would change, part by part.
    pub difference: Difference,
}

/// What an operator said about what an installation asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Consent {
    /// Nothing yet: what asks for more is not installed.
    #[default]
    None,
    /// Yes, to the difference with this digest.
    To(String),
}

/// A component that somebody wants to install.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// The operator's name for it; `None`: its own.
    pub name: Option<ToolName>,
    /// The component.
    pub bytes: Arc<[u8]>,
    /// TOML. `None`: the grant in force stays, and a tool that is new gets none.
    pub grant: Option<String>,
}

/// What installing a candidate would do.
#[derive(Debug, Clone)]
pub struct Prospect {
    /// The name it would have.
    pub name: ToolName,
    /// What was found in it.
    pub inspection: Inspection,
    /// The grant it would run under.
    pub grant: Grant,
    /// The version in force now.
    pub before: Option<InstalledTool>,
    /// What would differ from it; nothing for a tool that is new.
    pub difference: Difference,
    /// What a yes is said to.
    pub confirm: String,
    /// Actions that would be void.
    pub voids: Vec<ActionId>,
}

impl Prospect {
    /// Whether it is not installed without a yes.
    pub fn needs_yes(&self) -> bool {
        self.before.is_some() && self.difference.asks_for_more()
    }
}

/// What a component gets where it imports this interface, in words.
pub fn what_it_gets(import: &str) -> &'static str {
    let interface = import.split('@').next().unwrap_or(import);
    match interface {
        "wasi:http/outgoing-handler" => {
            "requests to the routes of its grant, each one held, approved and recorded by the host"
        }
        "wasi:http/types" => "the words of HTTP, and no traffic",
        "wasi:cli/environment" => "no variables and no arguments",
        "wasi:cli/stdin" => "an input that is at its end",
        "wasi:cli/stdout" | "wasi:cli/stderr" => "the action's log, up to its limit",
        "wasi:cli/exit" => "its own end",
        "wasi:random/random" | "wasi:random/insecure" | "wasi:random/insecure-seed" => {
            "numbers of the action's own seed, the same in every replay"
        }
        "countersign:tool/context" => "the action it runs for: id, tenant, actor, attempt",
        "countersign:tool/email" => "mail to the recipients of its grant, each one approved and recorded",
        "countersign:tool/tool" => "the types of its own exports",
        _ => match interface.split('/').next() {
            Some("wasi:clocks") => "the action's own clock, the same in every replay",
            Some("wasi:io") => "streams and waiting, inside the sandbox",
            Some("wasi:filesystem") => "no folder and no file",
            Some("wasi:sockets") => "nothing: using it ends the run",
            Some("wasi:cli") => "no terminal",
            _ => "nothing",
        },
    }
}

impl Gate {
    /// Whether this host has a server to send mail through.
    pub fn sends_mail(&self) -> bool {
        self.inner.dispatcher.sends_mail()
    }

    /// Looks at a component without installing it.
    ///
    /// # Errors
    /// [`GateError::ComponentRefused`] names the import or feature.
    pub async fn inspect(&self, bytes: Arc<[u8]>) -> Result<Inspection, GateError> {
        let inspection = self.inner.components.inspect(bytes).await?;
        let manifest = &inspection.manifest;
        for (which, schema) in
            [("input", Some(&manifest.input_schema)), ("output", manifest.output_schema.as_ref())]
        {
            let Some(schema) = schema else { continue };
            compile_schema(schema).map_err(|why| {
                GateError::ComponentRefused(format!("its {which} schema is not usable: {why}"))
            })?;
        }
        Ok(inspection)
    }

    /// Says what installing a component would do, and installs nothing.
    ///
    /// # Errors
    /// [`GateError::ComponentRefused`], [`GateError::InvalidGrant`].
    pub async fn prospect(&self, tenant: &TenantId, candidate: &Candidate) -> Result<Prospect, GateError> {
        let given = candidate.grant.as_deref().map(|source| self.checked_grant(source)).transpose()?;
        let inspection = self.inspect(candidate.bytes.clone()).await?;
        let name = match &candidate.name {
            Some(name) => name.clone(),
            None => inspection.manifest.name.parse().map_err(|error| {
                GateError::ComponentRefused(format!(
                    "it calls itself {:?}: {error}",
                    inspection.manifest.name
                ))
            })?,
        };
        let before = self.inner.store.tool(tenant, &name, None).await?;
        let in_force = match &before {
            Some(tool) => Some(self.inner.grants.parse(tool.grant, &tool.grant_source)?),
            None => None,
        };
        let grant = match (given, &in_force) {
            (Some(grant), _) => grant,
            (None, Some(in_force)) => Grant::clone(in_force),
            (None, None) => self.checked_grant(NO_GRANT)?,
        };
        let (difference, voids) = match (&before, &in_force) {
            (Some(tool), Some(in_force)) => {
                let difference =
                    Difference::between((Some(&tool.inspection), in_force), (Some(&inspection), &grant));
                let same = tool.component == inspection.digest && tool.grant == grant.digest();
                (difference, if same { Vec::new() } else { self.pending_of(tenant, &name).await? })
            }
            _ => (Difference::default(), Vec::new()),
        };
        let confirm =
            difference.digest(&inspection.digest.to_string(), &grant.digest().to_string()).to_string();
        Ok(Prospect { name, inspection, grant, before, difference, confirm, voids })
    }

    /// Installs a component under its own name, or the operator's, with a grant.
    ///
    /// # Errors
    /// [`GateError::ComponentRefused`], [`GateError::InvalidGrant`],
    /// [`GateError::NeedsYes`] if it asks for more than what is in force and
    /// nobody said yes to that, and [`GateError::Conflict`] if this version is
    /// there with other code.
    pub async fn install(
        &self,
        tenant: &TenantId,
        by: &Principal,
        candidate: Candidate,
        consent: &Consent,
    ) -> Result<InstalledTool, GateError> {
        let prospect = self.prospect(tenant, &candidate).await?;
        // The same version with other code is refused by the store, whoever says
        // yes to what it would get.
        let version = &prospect.inspection.manifest.version;
        let there = self.inner.store.tool(tenant, &prospect.name, Some(version)).await?;
        let is_taken = there.is_some_and(|tool| tool.component != prospect.inspection.digest);
        if !is_taken && prospect.needs_yes() && *consent != Consent::To(prospect.confirm.clone()) {
            return Err(GateError::NeedsYes(Box::new(prospect)));
        }
        let Prospect { name, inspection, grant, .. } = prospect;
        self.inner.components.load(inspection.digest, candidate.bytes.clone()).await?;
        let tool = NewTool {
            tenant: tenant.clone(),
            name,
            version: inspection.manifest.version.clone(),
            bytes: candidate.bytes.to_vec(),
            inspection,
            grant: grant.digest(),
            grant_source: grant.source().to_owned(),
            by: by.clone(),
        };
        Ok(self.inner.store.install_tool(tool).await?)
    }

    /// Puts a new grant in force. Pending approvals under the old one are void.
    ///
    /// # Errors
    /// [`GateError::InvalidGrant`], [`GateError::NotFound`].
    pub async fn put_grant(
        &self,
        tenant: &TenantId,
        by: &Principal,
        name: &ToolName,
        source: &str,
    ) -> Result<InstalledTool, GateError> {
        let grant = self.checked_grant(source)?;
        Ok(self.inner.store.put_grant(tenant, name, grant.digest(), source, by).await?)
    }

    /// Says what a grant would change, and changes nothing.
    ///
    /// # Errors
    /// [`GateError::InvalidGrant`], [`GateError::NotFound`].
    pub async fn grant_change(
        &self,
        tenant: &TenantId,
        name: &ToolName,
        source: &str,
    ) -> Result<GrantChange, GateError> {
        let grant = self.checked_grant(source)?;
        let tool = self.inner.store.tool(tenant, name, None).await?;
        let tool = tool.ok_or_else(|| GateError::NotFound { what: format!("tool {name}") })?;
        let same = tool.grant == grant.digest();
        let in_force = self.inner.grants.parse(tool.grant, &tool.grant_source)?;
        let difference = Difference::between((None, &in_force), (None, &grant));
        let voids = if same { Vec::new() } else { self.pending_of(tenant, name).await? };
        Ok(GrantChange { same, voids, difference })
    }

    /// Actions of a tool that a change of it would void.
    async fn pending_of(&self, tenant: &TenantId, name: &ToolName) -> Result<Vec<ActionId>, GateError> {
        let pending = ListActions {
            states: vec![State::AwaitingApproval, State::Approved],
            tool: Some(name.clone()),
            limit: 1000,
            ..ListActions::default()
        };
        let found = self.inner.store.actions(tenant, pending).await?;
        Ok(found.into_iter().map(|action| action.id).collect())
    }

    /// Stops new claims of a tool's actions, or lets them go on.
    ///
    /// # Errors
    /// [`GateError::NotFound`].
    pub async fn set_paused(
        &self,
        tenant: &TenantId,
        name: &ToolName,
        paused: bool,
    ) -> Result<(), GateError> {
        self.inner.store.set_paused(tenant, name, paused).await?;
        self.inner.nudge.notify_one();
        Ok(())
    }

    fn checked_grant(&self, source: &str) -> Result<Grant, GateError> {
        let grant = source.parse::<Grant>().map_err(|error| GateError::InvalidGrant(error.to_string()))?;
        grant
            .within(&self.inner.config.ceiling)
            .map_err(|error| GateError::InvalidGrant(error.to_string()))?;
        if let Some(name) = self.inner.dispatcher.lacks_authority(&grant) {
            return Err(GateError::InvalidGrant(format!(
                "the grant names the authority {name:?}, which this host does not have; an operator adds it: [ca] in \
                 countersign.toml"
            )));
        }
        Ok(grant)
    }
}
