//! What a component is, read from its bytes: what it imports and exports, what of
//! the language it uses, and that it is one that may be compiled at all.
//!
//! Reads what strangers wrote, as the compiler does, and so runs where the
//! compiler runs: in a process of its own, if there is one for it. A reader that
//! descends too deep, or is wrong in any way that ends a process, ends that one.

use serde::{Deserialize, Serialize};

use crate::error::SandboxError;
use crate::local::TOOL;
use crate::{admit, features};

/// Bytes of all names that a component imports and exports. Chosen: they are
/// shown to people.
const NAMES: usize = 1 << 20;

/// What was read.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Examined {
    /// Full names, in the component's order.
    pub(crate) imports: Vec<String>,
    /// Full names, in the component's order.
    pub(crate) exports: Vec<String>,
    /// Additions to the language, by the names of their proposals.
    pub(crate) features: Vec<String>,
}

impl Examined {
    /// What a process that read strangers' bytes says of them, held to the bounds
    /// again.
    pub(crate) fn checked(self) -> Result<Examined, SandboxError> {
        let all = || self.imports.iter().chain(&self.exports).chain(&self.features);
        if all().map(String::len).sum::<usize>() > 2 * NAMES
            || all().any(|name| name.contains(char::is_control))
        {
            return Err(SandboxError::refused(
                "the component",
                "what it imports and exports could not be read",
            ));
        }
        Ok(self)
    }
}

/// Reads the bytes of a tool; takes time with their length, so not on a runtime's
/// thread.
pub(crate) fn examine(bytes: &[u8], max_bytes: u64) -> Result<Examined, SandboxError> {
    let admitted = tool(bytes, max_bytes)?;
    Ok(Examined { features: features::used(bytes), imports: admitted.imports, exports: admitted.exports })
}

/// The same without looking at what of the language it uses, which reads it a few
/// times more.
pub(crate) fn tool(bytes: &[u8], max_bytes: u64) -> Result<admit::Admitted, SandboxError> {
    let admitted = admit::admit(bytes, max_bytes)?;
    let names: usize = admitted.imports.iter().chain(&admitted.exports).map(String::len).sum();
    if names > NAMES {
        let why = format!("they have {names} bytes together; {NAMES} is the most");
        return Err(SandboxError::refused("the names of its imports and exports", why));
    }
    if admitted.exports.iter().any(|e| e == TOOL) {
        return Ok(admitted);
    }
    let exports = match admitted.exports.as_slice() {
        [] => "nothing".to_owned(),
        names => format!("`{}`", names.join("`, `")),
    };
    Err(SandboxError::refused(
        format!("export `{TOOL}`"),
        format!(
            "it is missing; the component exports {exports}. A tool exports `describe`, `preview` and `invoke` in \
             that interface; components of plain functions are not taken by this version"
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a13_p7_names_by_the_mebibyte_are_refused_before_anybody_is_shown_them() {
        let name = "a".repeat(10_000);
        let exports: String = (0..110).map(|n| format!("(export \"{name}{n}\" (instance $i))")).collect();
        let bytes = wat::parse_str(format!("(component (instance $i) {exports})")).unwrap();
        let refused = examine(&bytes, 64 << 20).unwrap_err().to_string();
        assert!(refused.contains("names") && refused.contains("1048576 is the most"), "{refused}");
    }

    #[test]
    fn a16_p7_what_a_reader_says_is_bounded_and_plain_again() {
        let said = |name: &str| Examined {
            imports: Vec::new(),
            exports: vec![name.to_owned()],
            features: Vec::new(),
        };
        assert_eq!(said(TOOL).checked().unwrap().exports, [TOOL]);
        for bad in ["x\u{1b}[2J", &"x".repeat(2 * NAMES + 1)] {
            assert!(matches!(said(bad).checked(), Err(SandboxError::Refused { .. })));
        }
    }
}
