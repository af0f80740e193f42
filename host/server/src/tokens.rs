//! Bearer tokens: how they are made, kept and recognised.
//!
//! A token is `cs_<id>_<secret>`: a public part by which it is looked up, and 32
//! random bytes. The store has the SHA-256 of the whole text and never the text;
//! a fast hash is right here, because nobody can guess 256 random bits. A token
//! is shown once and appears in no log, no `Debug` and no URL.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use countersign_domain::id::{Digest, Principal, TenantId};
use countersign_domain::role::{Role, Verb, may};
use countersign_store::{NewPrincipal, PrincipalRow, Store, StoreError};
use subtle::ConstantTimeEq as _;

/// How long a token that was looked up is taken for still valid. Chosen: saves
/// the read for callers that ask many times a second, and is far below the time
/// in which anybody acts on a revocation; one that goes through this host is
/// seen at once.
const REMEMBERED: Duration = Duration::from_millis(250);
/// Tokens remembered at most; beyond it the memory starts over.
const MOST_REMEMBERED: usize = 1024;
/// Characters of the public part: 8 random bytes in hexadecimal.
const ID_CHARACTERS: usize = 16;
/// Characters of 32 bytes in base64url without padding.
const SECRET_CHARACTERS: usize = 43;

/// The tenant of a host that was not told of any other. Its admins are the
/// host's own, and make the first tokens of other tenants.
pub const HOME_TENANT: &str = "default";

/// Names under which the host itself states facts in events. Nobody else has
/// them, or an event could be taken for the host's word.
pub const RESERVED_NAMES: &[&str] = &["worker", "reaper", "policy", "reconcile"];

/// A token's whole text.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token(cs_{}_…)", self.id())
    }
}

impl Token {
    /// A new one.
    ///
    /// # Errors
    /// If the system has no randomness to give.
    pub fn new() -> Result<Token, getrandom::Error> {
        let mut bytes = [0u8; 40];
        getrandom::fill(&mut bytes)?;
        let (id, secret) = bytes.split_at(8);
        let id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Token(format!("cs_{id}_{}", URL_SAFE_NO_PAD.encode(secret))))
    }

    /// Takes a text for a token if it has the form of one.
    pub fn parse(text: &str) -> Option<Token> {
        let (id, secret) = text.strip_prefix("cs_")?.split_at_checked(ID_CHARACTERS)?;
        let secret = secret.strip_prefix('_')?;
        let id_fits = id.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        let secret_fits = secret.len() == SECRET_CHARACTERS
            && secret.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
        (id_fits && secret_fits).then(|| Token(text.to_owned()))
    }

    /// The public part.
    pub fn id(&self) -> &str {
        &self.0[3..3 + ID_CHARACTERS]
    }

    /// What the store keeps of it.
    pub fn hash(&self) -> Digest {
        Digest::of(self.0.as_bytes())
    }

    /// The whole text: to be shown once, or sent.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

/// Who calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Whose data.
    pub tenant: TenantId,
    /// In whose name.
    pub principal: Principal,
    /// What the token is good for.
    pub roles: Vec<Role>,
    /// Public part of the token.
    pub token_id: String,
}

impl Caller {
    /// Whether the token allows it.
    pub fn may(&self, verb: Verb) -> bool {
        may(&self.roles, verb)
    }
}

/// The tokens of a host.
pub struct Tokens {
    store: Arc<dyn Store>,
    remembered: Mutex<HashMap<String, (Instant, Arc<PrincipalRow>)>>,
}

impl Tokens {
    /// Over a store.
    pub fn new(store: Arc<dyn Store>) -> Tokens {
        Tokens { store, remembered: Mutex::default() }
    }

    /// Who holds this token; `None` if nobody does, or not any more.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn caller(&self, token: &Token) -> Result<Option<Caller>, StoreError> {
        let row = match self.recall(token.id()) {
            Some(row) => row,
            None => match self.store.principal(token.id()).await? {
                None => return Ok(None),
                Some(row) => self.remember(Arc::new(row)),
            },
        };
        let same: bool = row.token_hash.as_bytes().ct_eq(token.hash().as_bytes()).into();
        if !same || row.revoked.is_some() {
            return Ok(None);
        }
        Ok(Some(Caller {
            tenant: row.tenant.clone(),
            principal: row.name.clone(),
            roles: row.roles.clone(),
            token_id: row.token_id.clone(),
        }))
    }

    /// Makes a token and stores what is kept of it.
    ///
    /// # Errors
    /// If there is no randomness, or the store cannot be written.
    pub async fn create(
        &self,
        tenant: &TenantId,
        name: &Principal,
        roles: &[Role],
    ) -> Result<(Token, PrincipalRow), StoreError> {
        let token = Token::new().map_err(|error| StoreError::Unavailable {
            what: format!("the system has no randomness: {error}"),
        })?;
        let principal = NewPrincipal {
            tenant: tenant.clone(),
            token_id: token.id().to_owned(),
            token_hash: token.hash(),
            name: name.clone(),
            roles: roles.to_vec(),
        };
        let row = self.store.add_principal(principal).await?;
        Ok((token, row))
    }

    /// Makes a token worthless, at once for this host.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] if the tenant has no such token.
    pub async fn revoke(&self, tenant: &TenantId, token_id: &str) -> Result<(), StoreError> {
        let revoked = self.store.revoke(tenant, token_id).await;
        self.remembered.lock().unwrap_or_else(PoisonError::into_inner).remove(token_id);
        revoked
    }

    fn recall(&self, token_id: &str) -> Option<Arc<PrincipalRow>> {
        let remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, row) = remembered.get(token_id)?;
        (since.elapsed() < REMEMBERED).then(|| row.clone())
    }

    fn remember(&self, row: Arc<PrincipalRow>) -> Arc<PrincipalRow> {
        let mut remembered = self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        if remembered.len() >= MOST_REMEMBERED {
            remembered.clear();
        }
        remembered.insert(row.token_id.clone(), (Instant::now(), row.clone()));
        row
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn h01_a_token_has_256_random_bits_and_shows_only_its_public_part() {
        let (one, other) = (Token::new().expect("randomness"), Token::new().expect("randomness"));
        assert_ne!(one, other);
        assert_eq!(one.reveal().len(), 3 + ID_CHARACTERS + 1 + SECRET_CHARACTERS);
        assert_eq!(Token::parse(one.reveal()).as_ref(), Some(&one));
        let shown = format!("{one:?}");
        assert!(shown.contains(one.id()) && !shown.contains(&one.reveal()[20..]), "{shown}");
    }

    #[test]
    fn what_has_not_the_form_of_a_token_is_never_looked_up() {
        let good = Token::new().expect("randomness");
        let good = good.reveal();
        let cut = &good[..good.len() - 1];
        let long = format!("{good}A");
        let upper = good.replacen("cs_", "CS_", 1);
        let spaced = format!(" {good}");
        for bad in ["", "cs_", "cs__", cut, &long, &upper, &spaced, "cs_ééééééééé_x", &good.replace('_', "'")]
        {
            assert!(Token::parse(bad).is_none(), "{bad:?}");
        }
    }
}
