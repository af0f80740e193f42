//! What is installed and who may call.

use async_trait::async_trait;
use countersign_domain::id::{ComponentDigest, GrantDigest, Principal, TenantId, ToolName};
use countersign_domain::tool::InstalledTool;
use rusqlite::{Connection, params};

use super::writer::Tx;
use super::{SqliteStore, fault, rows, sql};
use crate::StoreError;
use crate::registry::{NewPrincipal, NewTool, Pending, PrincipalRow, Registry};

#[async_trait]
impl Registry for SqliteStore {
    async fn install_tool(&self, tool: NewTool) -> Result<InstalledTool, StoreError> {
        self.inner.writer.step(true, move |tx| install(tx, &tool)).await
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
            .writer
            .step(true, move |tx| {
                let there = installed(tx.conn(), &tenant, &name, None)?;
                if there.is_none() {
                    return Err(StoreError::NotFound { what: format!("the tool {name}") });
                }
                insert_grant(tx, &tenant, grant, &source, &by)?;
                let changed = tx.run(
                    sql::PUT_GRANT_IN_FORCE,
                    params![tenant.as_str(), name.as_str(), grant.0.as_bytes()],
                )?;
                if changed > 0 {
                    tx.run(sql::MOVE_POLICY_EPOCH, params![tenant.as_str()])?;
                }
                installed(tx.conn(), &tenant, &name, None)?
                    .ok_or_else(|| StoreError::NotFound { what: format!("the tool {name}") })
            })
            .await
    }

    async fn tool(
        &self,
        tenant: &TenantId,
        name: &ToolName,
        version: Option<&str>,
    ) -> Result<Option<InstalledTool>, StoreError> {
        let (tenant, name, version) = (tenant.clone(), name.clone(), version.map(str::to_owned));
        self.inner.readers.glance(move |conn| installed(conn, &tenant, &name, version.as_deref())).await
    }

    async fn tools(&self, tenant: &TenantId) -> Result<Vec<InstalledTool>, StoreError> {
        let tenant = tenant.clone();
        self.inner
            .readers
            .read(move |conn| {
                rows::collect(conn, sql::TOOLS, params![tenant.as_str()], |_, row| rows::tool(row))
            })
            .await
    }

    async fn component(
        &self,
        tenant: &TenantId,
        digest: ComponentDigest,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let tenant = tenant.clone();
        self.inner
            .readers
            .read(move |conn| {
                let of = params![tenant.as_str(), digest.0.as_bytes()];
                Ok(rows::collect(conn, sql::COMPONENT, of, |_, row| row.get(0).map_err(fault::statement))?
                    .pop())
            })
            .await
    }

    async fn grant(&self, tenant: &TenantId, digest: GrantDigest) -> Result<Option<String>, StoreError> {
        let tenant = tenant.clone();
        self.inner
            .readers
            .read(move |conn| {
                let of = params![tenant.as_str(), digest.0.as_bytes()];
                Ok(rows::collect(conn, sql::GRANT, of, |_, row| row.get(0).map_err(fault::statement))?.pop())
            })
            .await
    }

    async fn set_paused(&self, tenant: &TenantId, name: &ToolName, paused: bool) -> Result<(), StoreError> {
        let (tenant, name) = (tenant.clone(), name.clone());
        self.inner
            .writer
            .step(true, move |tx| {
                match tx.run(sql::SET_PAUSED, params![tenant.as_str(), name.as_str(), paused])? {
                    0 => Err(StoreError::NotFound { what: format!("the tool {name}") }),
                    _ => Ok(()),
                }
            })
            .await
    }

    async fn add_principal(&self, new: NewPrincipal) -> Result<PrincipalRow, StoreError> {
        self.inner
            .writer
            .step(true, move |tx| {
                // Looked up without its tenant, so it is unique without it too;
                // the write lock is held, so nobody comes in between.
                if tx.row(sql::TOKEN_EXISTS, params![new.token_id], |_| Ok(()))?.is_some() {
                    return Err(StoreError::Conflict {
                        what: format!("a token {} is there already; make another", new.token_id),
                    });
                }
                tx.run(sql::INSERT_TENANT, params![new.tenant.as_str(), tx.now.as_micros()])?;
                tx.run(
                    sql::INSERT_PRINCIPAL,
                    params![
                        new.tenant.as_str(),
                        new.token_id,
                        new.token_hash.as_bytes(),
                        new.name.as_str(),
                        rows::json(&new.roles)?,
                        tx.now.as_micros(),
                    ],
                )?;
                Ok(PrincipalRow {
                    tenant: new.tenant,
                    token_id: new.token_id,
                    token_hash: new.token_hash,
                    name: new.name,
                    roles: new.roles,
                    created: tx.now,
                    revoked: None,
                })
            })
            .await
    }

    async fn principal(&self, token_id: &str) -> Result<Option<PrincipalRow>, StoreError> {
        let token_id = token_id.to_owned();
        self.inner
            .readers
            .glance(move |conn| {
                Ok(rows::collect(conn, sql::PRINCIPAL, params![token_id], |_, row| rows::principal(row))?
                    .pop())
            })
            .await
    }

    async fn principals(&self, tenant: &TenantId) -> Result<Vec<PrincipalRow>, StoreError> {
        let tenant = tenant.clone();
        self.inner
            .readers
            .read(move |conn| {
                rows::collect(conn, sql::PRINCIPALS, params![tenant.as_str()], |_, row| rows::principal(row))
            })
            .await
    }

    async fn pending(
        &self,
        tenant: &TenantId,
        tool: &ToolName,
        caller: &Principal,
        actor: &Principal,
    ) -> Result<Pending, StoreError> {
        let (tenant, tool, caller, actor) = (tenant.clone(), tool.clone(), caller.clone(), actor.clone());
        self.inner
            .readers
            .glance(move |conn| {
                let of = params![tenant.as_str(), tool.as_str(), caller.as_str(), actor.as_str()];
                let counted = rows::collect(conn, sql::PENDING, of, |_, row| {
                    let count = |at| row.get(at).map_err(fault::statement);
                    Ok(Pending { tenant: count(0)?, tool: count(1)?, caller: count(2)?, actor: count(3)? })
                })?;
                Ok(counted.first().copied().unwrap_or_default())
            })
            .await
    }

    async fn revoke(&self, tenant: &TenantId, token_id: &str) -> Result<(), StoreError> {
        let (tenant, token_id) = (tenant.clone(), token_id.to_owned());
        self.inner
            .writer
            .step(true, move |tx| {
                let revoked = tx.run(sql::REVOKE, params![tenant.as_str(), token_id, tx.now.as_micros()])?;
                if revoked > 0 {
                    tx.run(sql::MOVE_POLICY_EPOCH, params![tenant.as_str()])?;
                    return Ok(());
                }
                // Once more changes nothing.
                match tx.row(sql::PRINCIPAL_OF_TENANT, params![tenant.as_str(), token_id], |_| Ok(()))? {
                    Some(()) => Ok(()),
                    None => Err(StoreError::NotFound { what: format!("the token {token_id}") }),
                }
            })
            .await
    }
}

fn installed(
    conn: &Connection,
    tenant: &TenantId,
    name: &ToolName,
    version: Option<&str>,
) -> Result<Option<InstalledTool>, StoreError> {
    let of = params![tenant.as_str(), name.as_str(), version];
    Ok(rows::collect(conn, sql::TOOL, of, |_, row| rows::tool(row))?.pop())
}

/// A digest is of its content, so the same digest again is the same grant.
fn insert_grant(
    tx: &Tx<'_, '_>,
    tenant: &TenantId,
    grant: GrantDigest,
    source: &str,
    by: &Principal,
) -> Result<(), StoreError> {
    let row = params![tenant.as_str(), grant.0.as_bytes(), source, by.as_str(), tx.now.as_micros()];
    tx.run(sql::INSERT_GRANT, row).map(|_| ())
}

fn install(tx: &Tx<'_, '_>, tool: &NewTool) -> Result<InstalledTool, StoreError> {
    let (tenant, name) = (tool.tenant.as_str(), tool.name.as_str());
    let component = tool.inspection.digest;
    tx.run(sql::INSERT_TENANT, params![tenant, tx.now.as_micros()])?;
    let there: Option<[u8; 32]> =
        tx.row(sql::VERSION_COMPONENT, params![tenant, name, tool.version], |row| {
            row.get(0).map_err(fault::statement)
        })?;
    match there {
        Some(digest) if digest != *component.0.as_bytes() => {
            return Err(StoreError::Conflict {
                what: format!(
                    "version {} of {} is installed already, with another component ({}); give the new one a version \
                     of its own",
                    tool.version,
                    tool.name,
                    countersign_domain::id::Digest::from_bytes(digest)
                ),
            });
        }
        Some(_) => {}
        None => {
            tx.run(
                sql::INSERT_COMPONENT,
                params![tenant, component.0.as_bytes(), tool.bytes, tx.now.as_micros()],
            )?;
            tx.run(
                sql::INSERT_TOOL_VERSION,
                params![
                    tenant,
                    name,
                    tool.version,
                    component.0.as_bytes(),
                    rows::json(&tool.inspection)?,
                    tool.by.as_str(),
                    tx.now.as_micros(),
                ],
            )?;
        }
    }
    insert_grant(tx, &tool.tenant, tool.grant, &tool.grant_source, &tool.by)?;
    let force = params![tenant, name, tool.version, tool.grant.0.as_bytes()];
    // A name that is new changes nothing for any action that is there.
    let new_name = tx.run(sql::INSERT_TOOL, force)? > 0;
    if !new_name && tx.run(sql::PUT_IN_FORCE, force)? > 0 {
        tx.run(sql::MOVE_POLICY_EPOCH, params![tenant])?;
    }
    installed(tx.conn(), &tool.tenant, &tool.name, Some(&tool.version))?
        .ok_or_else(|| StoreError::NotFound { what: format!("the tool {} just installed", tool.name) })
}
