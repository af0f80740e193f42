//! Installing tools, and what they may do: a component is looked at before any
//! of it runs, describes itself with nothing granted, and gets a grant that an
//! operator wrote.

use std::sync::Arc;

use countersign_domain::action::State;
use countersign_domain::grant::Grant;
use countersign_domain::id::{ActionId, Principal, TenantId, ToolName};
use countersign_domain::tool::{Inspection, InstalledTool};
use countersign_store::NewTool;
use countersign_store::steps::ListActions;

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

    /// Installs a component under its own name, or the operator's, with a grant.
    ///
    /// # Errors
    /// [`GateError::ComponentRefused`], [`GateError::InvalidGrant`], and
    /// [`GateError::Conflict`] if this version is there with other code.
    pub async fn install(
        &self,
        tenant: &TenantId,
        by: &Principal,
        name: Option<ToolName>,
        bytes: Arc<[u8]>,
        grant_source: &str,
    ) -> Result<InstalledTool, GateError> {
        let grant = self.checked_grant(grant_source)?;
        let inspection = self.inspect(bytes.clone()).await?;
        let name = match name {
            Some(name) => name,
            None => inspection.manifest.name.parse().map_err(|error| {
                GateError::ComponentRefused(format!(
                    "it calls itself {:?}: {error}",
                    inspection.manifest.name
                ))
            })?,
        };
        self.inner.components.load(inspection.digest, bytes.clone()).await?;
        let tool = NewTool {
            tenant: tenant.clone(),
            name,
            version: inspection.manifest.version.clone(),
            bytes: bytes.to_vec(),
            inspection,
            grant: grant.digest(),
            grant_source: grant_source.to_owned(),
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
        let pending = ListActions {
            states: vec![State::AwaitingApproval, State::Approved],
            tool: Some(name.clone()),
            limit: 1000,
            ..ListActions::default()
        };
        let voids = if same { Vec::new() } else { self.inner.store.actions(tenant, pending).await? };
        Ok(GrantChange { same, voids: voids.into_iter().map(|action| action.id).collect() })
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
        Ok(grant)
    }
}
