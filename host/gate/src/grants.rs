//! Grants in force, parsed once. Keyed by digest, so an entry can never be
//! stale: another grant has another digest.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use countersign_domain::grant::Grant;
use countersign_domain::id::{GrantDigest, TenantId};
use countersign_store::Store;

use crate::GateError;

/// How many parsed grants are kept. Chosen: more than a host has tools; beyond
/// it the map starts over, which costs one parse per grant.
const KEPT: usize = 1024;

/// Parsed grants.
#[derive(Default)]
pub struct Grants {
    by_digest: Mutex<HashMap<GrantDigest, Arc<Grant>>>,
}

impl Grants {
    /// A grant by its digest.
    ///
    /// # Errors
    /// [`GateError::NotFound`] if the tenant has none with this digest;
    /// [`GateError::InvalidGrant`] if its stored text is not that grant any
    /// more, which only a change by hand, or an older release, can cause.
    pub async fn get(
        &self,
        store: &dyn Store,
        tenant: &TenantId,
        digest: GrantDigest,
    ) -> Result<Arc<Grant>, GateError> {
        if let Some(grant) = self.cached(digest) {
            return Ok(grant);
        }
        let source = store
            .grant(tenant, digest)
            .await?
            .ok_or_else(|| GateError::NotFound { what: format!("grant {digest}") })?;
        self.parse(digest, &source)
    }

    /// A grant whose source is at hand.
    ///
    /// # Errors
    /// As [`Grants::get`].
    pub fn parse(&self, digest: GrantDigest, source: &str) -> Result<Arc<Grant>, GateError> {
        if let Some(grant) = self.cached(digest) {
            return Ok(grant);
        }
        let grant = source.parse::<Grant>().map_err(|error| GateError::InvalidGrant(error.to_string()))?;
        if grant.digest() != digest {
            return Err(GateError::InvalidGrant(format!(
                "the stored text of grant {digest} now means grant {}: put the grant anew",
                grant.digest()
            )));
        }
        let grant = Arc::new(grant);
        let mut map = self.by_digest.lock().unwrap_or_else(PoisonError::into_inner);
        if map.len() >= KEPT {
            map.clear();
        }
        map.insert(digest, grant.clone());
        Ok(grant)
    }

    fn cached(&self, digest: GrantDigest) -> Option<Arc<Grant>> {
        self.by_digest.lock().unwrap_or_else(PoisonError::into_inner).get(&digest).cloned()
    }
}
