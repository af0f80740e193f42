//! What is installed and who may call: tools, components, grants, principals.

use async_trait::async_trait;
use countersign_domain::id::{ComponentDigest, Digest, GrantDigest, Principal, TenantId, ToolName};
use countersign_domain::role::Role;
use countersign_domain::time::Timestamp;
use countersign_domain::tool::{Inspection, InstalledTool};

use crate::StoreError;

/// A version of a tool, to be installed.
#[derive(Debug, Clone)]
pub struct NewTool {
    /// Whose.
    pub tenant: TenantId,
    /// Unique per tenant.
    pub name: ToolName,
    /// Unique per name.
    pub version: String,
    /// The component's bytes; their SHA-256 is `inspection.digest`.
    pub bytes: Vec<u8>,
    /// What was found in them.
    pub inspection: Inspection,
    /// Digest of the effective grant.
    pub grant: GrantDigest,
    /// TOML.
    pub grant_source: String,
    /// Who installs it.
    pub by: Principal,
}

/// A token's holder, to be added.
#[derive(Debug, Clone)]
pub struct NewPrincipal {
    /// Whose.
    pub tenant: TenantId,
    /// Public part of the token, by which it is looked up. Unique.
    pub token_id: String,
    /// SHA-256 of the whole token.
    pub token_hash: Digest,
    /// Who holds it. One principal may hold several tokens.
    pub name: Principal,
    /// What it is good for.
    pub roles: Vec<Role>,
}

/// A token's holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrincipalRow {
    /// Whose.
    pub tenant: TenantId,
    /// Public part of the token.
    pub token_id: String,
    /// SHA-256 of the whole token.
    pub token_hash: Digest,
    /// Who holds it.
    pub name: Principal,
    /// What it is good for.
    pub roles: Vec<Role>,
    /// When it was made.
    pub created: Timestamp,
    /// Since when it is worth nothing.
    pub revoked: Option<Timestamp>,
}

/// How many actions await a decision.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pending {
    /// Of the tenant.
    pub tenant: u32,
    /// Of those, the tool's.
    pub tool: u32,
    /// Of those, the ones that the caller proposed.
    pub caller: u32,
    /// Of those, the actor's.
    pub actor: u32,
}

/// What is installed and who may call. Every change of what a tool may do moves
/// the tenant's policy epoch in the same commit; claims compare it.
#[async_trait]
pub trait Registry: Send + Sync + 'static {
    /// Stores component, grant and version in one commit and makes the version
    /// current. Installing the same digest, version and grant again changes
    /// nothing and returns what is there.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] if this version is there with another digest.
    async fn install_tool(&self, tool: NewTool) -> Result<InstalledTool, StoreError>;

    /// Puts a new grant in force for all versions of a tool. The old one stays
    /// stored: actions that had a write under it go on under it.
    async fn put_grant(
        &self,
        tenant: &TenantId,
        name: &ToolName,
        grant: GrantDigest,
        source: &str,
        by: &Principal,
    ) -> Result<InstalledTool, StoreError>;

    /// One version of a tool, or the current one.
    async fn tool(
        &self,
        tenant: &TenantId,
        name: &ToolName,
        version: Option<&str>,
    ) -> Result<Option<InstalledTool>, StoreError>;

    /// All versions of all tools, by name, then newest first.
    async fn tools(&self, tenant: &TenantId) -> Result<Vec<InstalledTool>, StoreError>;

    /// A component's bytes. The caller checks their digest.
    async fn component(
        &self,
        tenant: &TenantId,
        digest: ComponentDigest,
    ) -> Result<Option<Vec<u8>>, StoreError>;

    /// A grant's source text.
    async fn grant(&self, tenant: &TenantId, digest: GrantDigest) -> Result<Option<String>, StoreError>;

    /// Stops new claims of a tool's actions, or lets them go on.
    async fn set_paused(&self, tenant: &TenantId, name: &ToolName, paused: bool) -> Result<(), StoreError>;

    /// Adds a token's holder (and the tenant, if it is new).
    async fn add_principal(&self, principal: NewPrincipal) -> Result<PrincipalRow, StoreError>;

    /// Looks a token up by its public part. The caller compares the hash, in
    /// constant time, and looks at `revoked`.
    async fn principal(&self, token_id: &str) -> Result<Option<PrincipalRow>, StoreError>;

    /// All tokens of a tenant, oldest first.
    async fn principals(&self, tenant: &TenantId) -> Result<Vec<PrincipalRow>, StoreError>;

    /// How many actions await a decision: what is used up of the tenant's, the
    /// tool's, the caller's and the actor's quota. Sees every commit before it, and reads no
    /// more rows than there are pending ones.
    async fn pending(
        &self,
        tenant: &TenantId,
        tool: &ToolName,
        caller: &Principal,
        actor: &Principal,
    ) -> Result<Pending, StoreError>;

    /// Makes a token worthless from now on, and moves the policy epoch.
    async fn revoke(&self, tenant: &TenantId, token_id: &str) -> Result<(), StoreError>;
}
