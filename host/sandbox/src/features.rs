//! Which of the language's later additions a component really uses, for whoever
//! decides about installing it: an engine's code for each of them is code that
//! the component can reach.
//!
//! Found out by leaving one out: bytes that are valid, and are not without it,
//! use it. What a toolchain writes into a section about its target's features is
//! its word and not looked at.

use wasmparser::{Validator, WasmFeatures};

use crate::admit::LANGUAGE;

/// Additions to the first version of WebAssembly that tools may use, by the names
/// of their proposals.
const ADDITIONS: &[(&str, WasmFeatures)] = &[
    ("mutable-globals", WasmFeatures::MUTABLE_GLOBAL),
    ("sign-extension", WasmFeatures::SIGN_EXTENSION),
    ("nontrapping-float-to-int", WasmFeatures::SATURATING_FLOAT_TO_INT),
    ("multi-value", WasmFeatures::MULTI_VALUE),
    ("bulk-memory", WasmFeatures::BULK_MEMORY),
    ("reference-types", WasmFeatures::REFERENCE_TYPES),
    ("simd", WasmFeatures::SIMD),
    ("extended-const", WasmFeatures::EXTENDED_CONST),
];

/// What bytes that were admitted use. Reads them once for each addition that they
/// do not use, and up to the first use of each that they do.
pub(crate) fn used(bytes: &[u8]) -> Vec<String> {
    let without = |feature: WasmFeatures| {
        Validator::new_with_features(LANGUAGE.difference(feature)).validate_all(bytes).is_ok()
    };
    ADDITIONS.iter().filter(|(_, feature)| !without(*feature)).map(|(name, _)| (*name).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(module: &str) -> Vec<String> {
        let bytes = wat::parse_str(format!("(component (core module {module}))")).expect("a component");
        Validator::new_with_features(LANGUAGE).validate_all(&bytes).expect("it is admitted");
        used(&bytes)
    }

    #[test]
    fn a_component_uses_what_it_is_not_valid_without_and_nothing_else() {
        assert_eq!(of("(func (result i32) i32.const 7)"), [""; 0]);
        for (name, module) in [
            ("mutable-globals", "(global (export \"g\") (mut i32) (i32.const 0))"),
            ("sign-extension", "(func (param i32) (result i32) local.get 0 i32.extend8_s)"),
            ("nontrapping-float-to-int", "(func (param f32) (result i32) local.get 0 i32.trunc_sat_f32_s)"),
            ("multi-value", "(func (result i32 i32) i32.const 1 i32.const 2)"),
            ("bulk-memory", "(memory 1) (func i32.const 0 i32.const 0 i32.const 0 memory.fill)"),
            ("reference-types", "(func (result funcref) ref.null func)"),
            ("simd", "(func (result v128) v128.const i64x2 1 2)"),
            ("extended-const", "(global i32 (i32.add (i32.const 1) (i32.const 2)))"),
        ] {
            assert_eq!(of(module), [name], "{module}");
        }
        assert_eq!(
            of("(func (result v128 i32) v128.const i64x2 1 2 i32.const 1 i32.extend8_s)"),
            ["sign-extension", "multi-value", "simd"]
        );
        // In a component within a component, too.
        let inner =
            wat::parse_str("(component (component (core module (func (result funcref) ref.null func))))")
                .expect("one");
        assert_eq!(used(&inner), ["reference-types"]);
    }
}
