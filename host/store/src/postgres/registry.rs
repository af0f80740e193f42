//! What is installed and who may call.
//!
//! Changes of what is in force take the tenant's policy lock first, which claims
//! hold together: so a claim is made before a change or under it.

use async_trait::async_trait;
use countersign_domain::id::{ComponentDigest, Digest, GrantDigest, Principal, TenantId, ToolName};
use countersign_domain::tool::InstalledTool;

use super::rows::Columns;
use super::writer::Tx;
use super::{Inner, PostgresStore, rows, sql};
use crate::StoreError;
use crate::registry::{NewPrincipal, NewTool, Pending, PrincipalRow, Registry};
use crate::rows::Columns as _;

#[async_trait]
impl Registry for PostgresStore {
    async fn install_tool(&self, tool: NewTool) -> Result<InstalledTool, StoreError> {
        self.inner
            .apart(|pg| async move {
                let mut tx = pg.begin().await?;
                let installed = install(&mut tx, &tool).await;
                end(tx, installed).await
            })
            .await
    }

    async fn put_grant(
        &self,
        tenant: &TenantId,
        name: &ToolName,
        grant: GrantDigest,
        source: &str,
        by: &Principal,
    ) -> Result<InstalledTool, StoreError> {
        let (tenant, name, source, by) = (tenant.clone(), name.clone(), source.to_owned(), by.clone());
        self.inner
            .apart(|pg| async move {
                let mut tx = pg.begin().await?;
                let put = put_grant(&mut tx, &tenant, &name, grant, &source, &by).await;
                end(tx, put).await
            })
            .await
    }

    async fn tool(
        &self,
        tenant: &TenantId,
        name: &ToolName,
        version: Option<&str>,
    ) -> Result<Option<InstalledTool>, StoreError> {
        let found = self.inner.read(sql::TOOL, &[&tenant.as_str(), &name.as_str(), &version]).await?;
        found.first().map(rows::tool).transpose()
    }

    async fn tools(&self, tenant: &TenantId) -> Result<Vec<InstalledTool>, StoreError> {
        let found = self.inner.read(sql::TOOLS, &[&tenant.as_str()]).await?;
        found.iter().map(rows::tool).collect()
    }

    async fn component(
        &self,
        tenant: &TenantId,
        digest: ComponentDigest,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let of: super::connect::Params<'_> = &[&tenant.as_str(), &digest.0.as_bytes().as_slice()];
        let found = self.inner.read(sql::COMPONENT, of).await?;
        found.first().map(|row| Columns::of(row, 0, "a component").get()).transpose()
    }

    async fn grant(&self, tenant: &TenantId, digest: GrantDigest) -> Result<Option<String>, StoreError> {
        let of: super::connect::Params<'_> = &[&tenant.as_str(), &digest.0.as_bytes().as_slice()];
        let found = self.inner.read(sql::GRANT, of).await?;
        found.first().map(|row| Columns::of(row, 0, "a grant").get()).transpose()
    }

    async fn set_paused(&self, tenant: &TenantId, name: &ToolName, paused: bool) -> Result<(), StoreError> {
        let (tenant, name) = (tenant.clone(), name.clone());
        self.inner
            .apart(|pg| async move {
                let mut tx = pg.begin().await?;
                tx.row(sql::POLICY_LOCK, &[&tenant.as_str()]).await?;
                let set = tx.run(sql::SET_PAUSED, &[&tenant.as_str(), &name.as_str(), &paused]).await;
                let set = set.and_then(|rows| if rows > 0 { Ok(()) } else { Err(no_tool(&name)) });
                end(tx, set).await
            })
            .await
    }

    async fn add_principal(&self, new: NewPrincipal) -> Result<PrincipalRow, StoreError> {
        self.inner
            .apart(|pg| async move {
                let mut tx = pg.begin().await?;
                let added = add_principal(&mut tx, new).await;
                end(tx, added).await
            })
            .await
    }

    async fn principal(&self, token_id: &str) -> Result<Option<PrincipalRow>, StoreError> {
        let found = self.inner.read(sql::PRINCIPAL, &[&rows::plain(token_id)]).await?;
        found.first().map(rows::principal).transpose()
    }

    async fn principals(&self, tenant: &TenantId) -> Result<Vec<PrincipalRow>, StoreError> {
        let found = self.inner.read(sql::PRINCIPALS, &[&tenant.as_str()]).await?;
        found.iter().map(rows::principal).collect()
    }

    async fn pending(
        &self,
        tenant: &TenantId,
        tool: &ToolName,
        caller: &Principal,
        actor: &Principal,
    ) -> Result<Pending, StoreError> {
        let of: super::connect::Params<'_> =
            &[&tenant.as_str(), &tool.as_str(), &caller.as_str(), &actor.as_str()];
        let found = self.inner.read(sql::PENDING, of).await?;
        let Some(row) = found.first() else { return Ok(Pending::default()) };
        let mut c = Columns::of(row, 0, "a count of pending actions");
        let mut count = || c.get::<i64>().map(|count| u32::try_from(count).unwrap_or(u32::MAX));
        Ok(Pending { tenant: count()?, tool: count()?, caller: count()?, actor: count()? })
    }

    async fn revoke(&self, tenant: &TenantId, token_id: &str) -> Result<(), StoreError> {
        let (tenant, token_id) = (tenant.clone(), token_id.to_owned());
        self.inner
            .apart(|pg: std::sync::Arc<Inner>| async move {
                let mut tx = pg.begin().await?;
                let revoked = revoke(&mut tx, &tenant, &token_id).await;
                end(tx, revoked).await
            })
            .await
    }
}

/// Commits what was made, or undoes what was not.
async fn end<T>(tx: Tx<'_>, made: Result<T, StoreError>) -> Result<T, StoreError> {
    match made {
        Ok(made) => tx.commit().await.map(|()| made),
        Err(error) => {
            tx.rollback().await;
            Err(error)
        }
    }
}

fn no_tool(name: &ToolName) -> StoreError {
    StoreError::NotFound { what: format!("the tool {name}") }
}

async fn installed(
    tx: &mut Tx<'_>,
    tenant: &TenantId,
    name: &ToolName,
    version: Option<&str>,
) -> Result<InstalledTool, StoreError> {
    let found = tx.row(sql::TOOL, &[&tenant.as_str(), &name.as_str(), &version]).await?;
    found.as_ref().map(rows::tool).transpose()?.ok_or_else(|| no_tool(name))
}

/// A digest is of its content, so the same digest again is the same grant.
async fn insert_grant(
    tx: &mut Tx<'_>,
    tenant: &TenantId,
    grant: GrantDigest,
    source: &str,
    by: &Principal,
) -> Result<(), StoreError> {
    let now = tx.now.as_micros();
    tx.run(
        sql::INSERT_GRANT,
        &[&tenant.as_str(), &grant.0.as_bytes().as_slice(), &source, &by.as_str(), &now],
    )
    .await
    .map(|_| ())
}

async fn put_grant(
    tx: &mut Tx<'_>,
    tenant: &TenantId,
    name: &ToolName,
    grant: GrantDigest,
    source: &str,
    by: &Principal,
) -> Result<InstalledTool, StoreError> {
    tx.row(sql::POLICY_LOCK, &[&tenant.as_str()]).await?;
    installed(tx, tenant, name, None).await?;
    insert_grant(tx, tenant, grant, source, by).await?;
    let changed = tx
        .run(sql::PUT_GRANT_IN_FORCE, &[&tenant.as_str(), &name.as_str(), &grant.0.as_bytes().as_slice()])
        .await?;
    if changed > 0 {
        tx.run(sql::MOVE_POLICY_EPOCH, &[&tenant.as_str()]).await?;
    }
    installed(tx, tenant, name, None).await
}

async fn install(tx: &mut Tx<'_>, tool: &NewTool) -> Result<InstalledTool, StoreError> {
    let (tenant, name) = (tool.tenant.as_str(), tool.name.as_str());
    let component = tool.inspection.digest;
    let now = tx.now.as_micros();
    tx.row(sql::POLICY_LOCK, &[&tenant]).await?;
    tx.run(sql::INSERT_TENANT, &[&tenant]).await?;
    let there = tx.row(sql::VERSION_COMPONENT, &[&tenant, &name, &tool.version]).await?;
    let there: Option<Digest> =
        there.as_ref().map(|row| Columns::of(row, 0, "a tool").digest()).transpose()?;
    match there {
        Some(digest) if digest != component.0 => {
            return Err(StoreError::Conflict {
                what: format!(
                    "version {} of {} is installed already, with another component ({digest}); give the new one a \
                     version of its own",
                    tool.version, tool.name,
                ),
            });
        }
        Some(_) => {}
        None => {
            tx.run(sql::INSERT_COMPONENT, &[&tenant, &component.0.as_bytes().as_slice(), &tool.bytes, &now])
                .await?;
            tx.run(
                sql::INSERT_TOOL_VERSION,
                &[
                    &tenant,
                    &name,
                    &tool.version,
                    &component.0.as_bytes().as_slice(),
                    &rows::json(&tool.inspection)?,
                    &tool.by.as_str(),
                    &now,
                ],
            )
            .await?;
        }
    }
    insert_grant(tx, &tool.tenant, tool.grant, &tool.grant_source, &tool.by).await?;
    let grant = tool.grant.0.as_bytes().as_slice();
    let force: super::connect::Params<'_> = &[&tenant, &name, &tool.version, &grant];
    // A name that is new changes nothing for any action that is there.
    let new_name = tx.run(sql::INSERT_TOOL, force).await? > 0;
    if !new_name && tx.run(sql::PUT_IN_FORCE, force).await? > 0 {
        tx.run(sql::MOVE_POLICY_EPOCH, &[&tenant]).await?;
    }
    installed(tx, &tool.tenant, &tool.name, Some(&tool.version)).await
}

async fn add_principal(tx: &mut Tx<'_>, new: NewPrincipal) -> Result<PrincipalRow, StoreError> {
    tx.row(sql::TOKEN_LOCK, &[&new.token_id]).await?;
    if tx.row(sql::TOKEN_EXISTS, &[&new.token_id]).await?.is_some() {
        return Err(StoreError::Conflict {
            what: format!("a token {} is there already; make another", new.token_id),
        });
    }
    tx.run(sql::INSERT_TENANT, &[&new.tenant.as_str()]).await?;
    tx.run(
        sql::INSERT_PRINCIPAL,
        &[
            &new.tenant.as_str(),
            &new.token_id,
            &new.token_hash.as_bytes().as_slice(),
            &new.name.as_str(),
            &rows::json(&new.roles)?,
            &tx.now.as_micros(),
        ],
    )
    .await?;
    Ok(PrincipalRow {
        tenant: new.tenant,
        token_id: new.token_id,
        token_hash: new.token_hash,
        name: new.name,
        roles: new.roles,
        created: tx.now,
        revoked: None,
    })
}

async fn revoke(tx: &mut Tx<'_>, tenant: &TenantId, token_id: &str) -> Result<(), StoreError> {
    let now = tx.now.as_micros();
    let token = rows::plain(token_id);
    tx.row(sql::POLICY_LOCK, &[&tenant.as_str()]).await?;
    if tx.run(sql::REVOKE, &[&tenant.as_str(), &token, &now]).await? > 0 {
        tx.run(sql::MOVE_POLICY_EPOCH, &[&tenant.as_str()]).await?;
        return Ok(());
    }
    // Once more changes nothing.
    match tx.row(sql::PRINCIPAL_OF_TENANT, &[&tenant.as_str(), &token]).await? {
        Some(_) => Ok(()),
        None => Err(StoreError::NotFound { what: format!("the token {token_id}") }),
    }
}
