//! Secrets at the last moment: looked up after everything else about a request
//! has been decided, put into headers, and looked for in the answer.
//!
//! Who holds the values is behind [`SecretStore`]; nothing here logs, displays
//! or returns one. Rendered headers are wiped after the send as far as they are
//! ours: the copies in the HTTP library's and the kernel's buffers are freed,
//! not wiped.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use countersign_domain::secret::{HeaderTemplate, Redactor, SecretError, SecretName, SecretValue};
use zeroize::Zeroizing;

/// Where values come from: a map that the server loads from its configuration.
/// Asked for every send, so that a rotated value is used at once.
pub trait SecretStore: Send + Sync {
    /// The value of that name now; `None` if none is configured. Answers from
    /// memory: it is called between two steps of a send.
    fn get(&self, name: &SecretName) -> Option<Arc<SecretValue>>;
}

/// The plain store: a map, fixed at start.
#[derive(Debug, Default)]
pub struct Secrets(HashMap<SecretName, Arc<SecretValue>>);

impl Secrets {
    /// A store of exactly these.
    pub fn new(values: impl IntoIterator<Item = (SecretName, SecretValue)>) -> Secrets {
        Secrets(values.into_iter().map(|(name, value)| (name, Arc::new(value))).collect())
    }
}

impl SecretStore for Secrets {
    fn get(&self, name: &SecretName) -> Option<Arc<SecretValue>> {
        self.0.get(name).cloned()
    }
}

/// The values that one send needs, looked up once, so that the header and the
/// redactor of its answer agree even while a value is rotated.
pub(super) struct Resolved(Vec<(SecretName, Arc<SecretValue>)>);

impl Resolved {
    /// All secrets of these templates.
    ///
    /// # Errors
    /// [`SecretError::Missing`].
    pub(super) fn all<'t>(
        templates: impl IntoIterator<Item = &'t HeaderTemplate>,
        store: &dyn SecretStore,
    ) -> Result<Resolved, SecretError> {
        let mut found: Vec<(SecretName, Arc<SecretValue>)> = Vec::new();
        for name in templates.into_iter().flat_map(HeaderTemplate::secrets) {
            if !found.iter().any(|(known, _)| known == name) {
                let value = store.get(name).ok_or_else(|| SecretError::Missing(name.clone()))?;
                found.push((name.clone(), value));
            }
        }
        Ok(Resolved(found))
    }

    /// One header's value.
    ///
    /// # Errors
    /// [`SecretError::NotForHeaders`].
    pub(super) fn render(&self, template: &HeaderTemplate) -> Result<Zeroizing<String>, SecretError> {
        template.render(|name| self.0.iter().find(|(known, _)| known == name).map(|(_, value)| &**value))
    }

    fn is_same_as(&self, other: &Resolved) -> bool {
        self.0.len() == other.0.len()
            && self.0.iter().zip(&other.0).all(|(a, b)| a.0 == b.0 && Arc::ptr_eq(&a.1, &b.1))
    }
}

/// Redactors by what they look for. Building one takes longer than a local
/// send, and a route's secrets rarely change.
#[derive(Default)]
pub(super) struct Redactors(Mutex<Vec<(Resolved, Arc<Redactor>)>>);

impl Redactors {
    /// Sets of secrets remembered. Chosen: more than a host has routes with
    /// secrets; the oldest goes first, and only time is lost.
    const REMEMBERED: usize = 64;

    /// The redactor for an answer to a request that was made with these;
    /// `None` if there are none.
    pub(super) fn for_answer_to(&self, sent: Resolved) -> Option<Arc<Redactor>> {
        if sent.0.is_empty() {
            return None;
        }
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, redactor)) = known.iter().find(|(secrets, _)| secrets.is_same_as(&sent)) {
            return Some(redactor.clone());
        }
        let redactor = Arc::new(Redactor::new(sent.0.iter().map(|(name, value)| (name, &**value))));
        // A rotated value's redactor holds the old value: it goes with it.
        known.retain(|(secrets, _)| {
            !secrets.0.iter().map(|(name, _)| name).eq(sent.0.iter().map(|(name, _)| name))
        });
        if known.len() == Self::REMEMBERED {
            known.remove(0);
        }
        known.push((sent, redactor.clone()));
        Some(redactor)
    }
}

impl fmt::Debug for Redactors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Redactors")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(value: &Arc<SecretValue>) -> Resolved {
        Resolved(vec![("key".parse().unwrap(), value.clone())])
    }

    #[test]
    fn c06_a_rotated_value_gets_its_own_redactor_and_the_old_one_is_forgotten() {
        let value = |text: &str| Arc::new(SecretValue::new(text.to_owned()).unwrap());
        let (old, new) = (value("old-value-1"), value("new-value-2"));
        let redactors = Redactors::default();
        let first = redactors.for_answer_to(resolved(&old)).unwrap();
        assert!(Arc::ptr_eq(&first, &redactors.for_answer_to(resolved(&old)).unwrap()));
        let second = redactors.for_answer_to(resolved(&new)).unwrap();
        assert_eq!(second.redact_text("new-value-2"), "[redacted:key]");
        assert_eq!(redactors.0.lock().unwrap().len(), 1);
        assert!(redactors.for_answer_to(Resolved(vec![])).is_none());
    }
}
