//! Valid programs from any bytes: for the targets `modules` and `components`, and for the example that
//! writes those which are kept.

use arbitrary::{Arbitrary, Unstructured};
use wasm_smith::Config;

/// The language that the sandbox's engine is configured for (`../src/engine.rs`), and no more of
/// anything than its door lets in (`../src/admit.rs`). The door refuses `externref`, which goes with
/// the other references here: so most are made without any.
fn ours(references: bool) -> Config {
    Config {
        reference_types_enabled: references,
        custom_descriptors_enabled: false,
        custom_page_sizes_enabled: false,
        exceptions_enabled: false,
        gc_enabled: false,
        memory64_enabled: false,
        relaxed_simd_enabled: false,
        shared_everything_threads_enabled: false,
        tail_call_enabled: false,
        threads_enabled: false,
        wide_arithmetic_enabled: false,
        allow_start_export: true,
        export_everything: true,
        max_imports: 0,
        max_memories: 1,
        max_memory32_bytes: 8 << 20,
        max_table_elements: 20_000,
        max_tables: 4,
        min_funcs: 1,
        ..Config::default()
    }
}

/// In three of four cases in our language, in the fourth in any.
fn config(data: &mut Unstructured<'_>) -> Option<Config> {
    if data.ratio(3, 4).ok()? {
        return Some(ours(data.ratio(1, 4).ok()?));
    }
    let any = Config::arbitrary(data).ok()?;
    Some(Config { max_imports: 0, min_imports: 0, ..any })
}

/// A module without imports.
pub fn module(data: &[u8]) -> Option<Vec<u8>> {
    let mut data = Unstructured::new(data);
    let config = config(&mut data)?;
    Some(wasm_smith::Module::new(config, &mut data).ok()?.to_bytes())
}

/// A component, with whatever imports.
pub fn component(data: &[u8]) -> Option<Vec<u8>> {
    let mut data = Unstructured::new(data);
    let config = config(&mut data)?;
    Some(wasm_smith::Component::new(config, &mut data).ok()?.to_bytes())
}
