//! What is turned away at the door, by name.

use super::*;

fn refused(bytes: &[u8]) -> String {
    admit(bytes, 64 << 20).unwrap_err().to_string()
}

fn component(wat: &str) -> Vec<u8> {
    wat::parse_str(wat).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn a_file_that_is_no_component_is_called_what_it_is() {
    let cases: [(&[u8], &str); 8] = [
        (b"", "empty"),
        (b"\0asm\x01\0\0\0", "core WebAssembly module"),
        (b"\0asm\x0d\0\x02\0", "not known"),
        (b"\x7fELF\x02\x01\x01", "machine code"),
        (b"(component)", "text format"),
        (b"PK\x03\x04", "not a WebAssembly component"),
        (b"\0as", "not a WebAssembly component"),
        (b"\0asm\x0d\0\x01\0\xff", "component"),
    ];
    for (bytes, word) in cases {
        let error = refused(bytes);
        assert!(error.contains(word), "{word}: {error}");
    }
    let error = admit(&component("(component)"), 4).unwrap_err().to_string();
    assert!(error.contains("4 is the most"), "{error}");
}

#[test]
fn a02_what_ordinary_toolchains_use_is_taken() {
    admit(
        &component(
            "(component (core module (memory 1) (table 1 funcref)
                (func (param v128) (result v128 i32) (local.get 0) (i32.const 0))
                (func (memory.fill (i32.const 0) (i32.const 0) (i32.const 9)))
                (global (mut i32) (i32.add (i32.const 1) (i32.const 2)))
                (func (param funcref) (result i64) (i64.extend8_s (i64.const 1)))))",
        ),
        1 << 20,
    )
    .unwrap();
}

#[test]
fn a17_an_import_is_refused_by_its_full_name() {
    for import in ["wasi:keyvalue/store@0.2.0", "wasi:http/types@0.3.0", "acme:secrets/vault@1.0.0"] {
        let error = refused(&component(&format!(r#"(component (import "{import}" (instance)))"#)));
        assert!(error.contains(import), "{error}");
    }
    let admitted = admit(
        &component(r#"(component (import "wasi:io/poll@0.2.2" (instance)) (import "wasi:clocks/wall-clock@0.2.9" (instance)))"#),
        1 << 20,
    )
    .unwrap();
    assert_eq!(admitted.imports, ["wasi:io/poll@0.2.2", "wasi:clocks/wall-clock@0.2.9"]);
    let error = refused(&component(r#"(component (import "do-it" (func)))"#));
    assert!(error.contains("`do-it`"), "{error}");
}

#[test]
fn a14_components_nest_eight_deep_and_no_deeper() {
    let nested = |n: usize| component(&format!("{}{}", "(component ".repeat(n), ")".repeat(n)));
    admit(&nested(8), 1 << 20).unwrap();
    for n in [9, 100] {
        let error = refused(&nested(n));
        assert!(error.contains("components inside components"), "{error}");
    }
}

#[test]
fn a04_a14_core_instances_are_counted() {
    let many = |n: usize| {
        component(&format!("(component (core module $m) {})", "(core instance (instantiate $m))".repeat(n)))
    };
    admit(&many(32), 1 << 20).unwrap();
    for n in [33, 1_000, 10_001] {
        let error = refused(&many(n));
        assert!(error.contains("core instances"), "{error}");
    }
}

#[test]
fn a13_functions_that_are_expensive_to_compile_are_refused() {
    let function = |body: &str| component(&format!("(component (core module (func {body})))"));
    let locals = |n: usize| function(&format!("(local {})", "i64 ".repeat(n)));
    admit(&locals(10_000), 1 << 20).unwrap();
    assert!(refused(&locals(10_001)).contains("locals"));
    assert!(refused(&locals(50_000)).contains("locals"));
    let blocks = |n: usize| function(&format!("{}{}", "block ".repeat(n), "end ".repeat(n)));
    admit(&blocks(4_999), 1 << 20).unwrap();
    assert!(refused(&blocks(50_000)).contains("blocks"));
    let branches = |n: usize| function(&format!("i32.const 0 br_table {}", "0 ".repeat(n)));
    admit(&branches(20_000), 1 << 20).unwrap();
    assert!(refused(&branches(60_000)).contains("br_table"));
    assert!(refused(&function(&"nop ".repeat(7_600_000))).contains("bytes in one function"));
    let types = component(&format!("(component (core module {}))", "(type (func))".repeat(20_001)));
    assert!(refused(&types).contains("types"));
}

#[test]
fn broken_bytes_are_refused_and_never_panic() {
    let good =
        component(r#"(component (core module $m (func (export "f"))) (core instance (instantiate $m)))"#);
    for cut in 0..good.len() {
        let _ = admit(&good[..cut], 1 << 20);
        for bit in 0..8 {
            let mut flipped = good.clone();
            flipped[cut] ^= 1 << bit;
            let _ = admit(&flipped, 1 << 20);
        }
    }
}
