//! What a component's bytes must be before they reach the compiler: a component,
//! not too large, in the language that the engine speaks, importing what links.
//! Each refusal names the part, so that somebody who has only the bytes can act.
//!
//! Compiling costs far more than reading: 273 KiB of chosen bytes took 56 s and
//! 1.4 GB. The limits here take the edge off (one pass over the code); they do
//! not bound it; nor can what reads here be sure of itself. Where components come
//! from strangers, both happen in a process of its own with a time and a memory
//! limit (see `examine`).

use wasmparser::{Encoding, Instance, Operator, Parser, Payload, Validator, WasmFeatures};

use crate::error::SandboxError;
use crate::{limits, linker};

mod counts;
use counts::Counts;

/// Components inside components, the outermost counted.
const DEPTH: usize = 8;
/// Bytes of one function. Chosen; raise it if an interpreter's main loop needs it.
const FUNCTION_BYTES: usize = 2 << 20;
/// Locals of one function; the format allows 50,000.
const LOCALS: u64 = 10_000;
/// Blocks inside blocks. Chosen; a switch has one per case.
const NESTING: usize = 5_000;
/// Targets of one `br_table`.
const BRANCHES: u32 = 20_000;

/// The language that the engine is configured for (see `engine`), spelled out so
/// that nothing joins it by a default. Without `externref`, which the engine would
/// take: a component can get none to hold, and one that has a place for it takes a
/// collector's heap from the pool, which has one for everybody.
pub(crate) const LANGUAGE: WasmFeatures = WasmFeatures::WASM2
    .union(WasmFeatures::EXTENDED_CONST)
    .union(WasmFeatures::COMPONENT_MODEL)
    .difference(WasmFeatures::GC_TYPES);

/// What is not in it, by the name under which it is refused.
const OUTSIDE: &[(&str, WasmFeatures)] = &[
    ("memory64", WasmFeatures::MEMORY64),
    ("threads and shared memory", WasmFeatures::THREADS),
    ("multi-memory", WasmFeatures::MULTI_MEMORY),
    ("exceptions", WasmFeatures::EXCEPTIONS.union(WasmFeatures::LEGACY_EXCEPTIONS)),
    ("tail-call", WasmFeatures::TAIL_CALL),
    ("relaxed-simd", WasmFeatures::RELAXED_SIMD),
    ("function-references", WasmFeatures::FUNCTION_REFERENCES),
    (EXTERNREF, WasmFeatures::GC_TYPES),
    ("gc", WasmFeatures::GC.union(WasmFeatures::FUNCTION_REFERENCES).union(WasmFeatures::GC_TYPES)),
    ("stack-switching", WasmFeatures::STACK_SWITCHING.union(WasmFeatures::WASM3)),
    ("custom-page-sizes", WasmFeatures::CUSTOM_PAGE_SIZES),
    ("memory-control", WasmFeatures::MEMORY_CONTROL),
    ("wide-arithmetic", WasmFeatures::WIDE_ARITHMETIC),
    ("shared-everything-threads", WasmFeatures::SHARED_EVERYTHING_THREADS.union(WasmFeatures::WASM3)),
    ("component-model async (WASI 0.3: async functions, streams, futures)", ASYNC),
    ("component-model values", WasmFeatures::CM_VALUES),
    ("component-model fixed-length lists", WasmFeatures::CM_FIXED_LENGTH_LISTS),
    ("component-model maps", WasmFeatures::CM_MAP),
    ("component-model gc", WasmFeatures::CM_GC.union(WasmFeatures::WASM3)),
];

/// What the door alone refuses, by the name in its refusal.
pub(crate) const EXTERNREF: &str = "externref";

const ASYNC: WasmFeatures = WasmFeatures::CM_ASYNC
    .union(WasmFeatures::CM_ASYNC_STACKFUL)
    .union(WasmFeatures::CM_MORE_ASYNC_BUILTINS)
    .union(WasmFeatures::CM_THREADING)
    .union(WasmFeatures::CM_ERROR_CONTEXT);

/// A component that may be compiled.
#[derive(Debug)]
pub(crate) struct Admitted {
    /// Full names, in the component's order.
    pub(crate) imports: Vec<String>,
    /// Full names, in the component's order.
    pub(crate) exports: Vec<String>,
}

/// Reads the bytes; takes time with their length, so not on a runtime's thread.
pub(crate) fn admit(bytes: &[u8], max_bytes: u64) -> Result<Admitted, SandboxError> {
    is_component(bytes, max_bytes)?;
    let admitted = walk(bytes)?;
    if let Err(error) = Validator::new_with_features(LANGUAGE).validate_all(bytes) {
        return Err(refuse_invalid(bytes, &error));
    }
    for import in &admitted.imports {
        if let Some(why) = linker::why_not(import) {
            return Err(SandboxError::refused(format!("import `{import}`"), why));
        }
    }
    Ok(admitted)
}

/// From its length and first bytes: what is obvious is said before anybody reads on.
pub(crate) fn is_component(bytes: &[u8], max_bytes: u64) -> Result<(), SandboxError> {
    let refuse = |why: &str| Err(SandboxError::refused("the file", why));
    if bytes.is_empty() {
        return refuse("it is empty");
    }
    if bytes.len() as u64 > max_bytes {
        return refuse(&format!("it has {} bytes; {max_bytes} is the most", bytes.len()));
    }
    match bytes {
        [0, b'a', b's', b'm', 0x0d, 0, 1, 0, ..] => Ok(()),
        [0, b'a', b's', b'm', 1, 0, 0, 0, ..] => refuse(
            "it is a core WebAssembly module, not a component; build it for wasm32-wasip2, or wrap it with \
             `wasm-tools component new`",
        ),
        [0, b'a', b's', b'm', ..] => refuse("it is WebAssembly of a version that is not known here"),
        [0x7f, b'E', b'L', b'F', ..] => {
            refuse("it is machine code (a program, or a component that was compiled before); give the .wasm")
        }
        [b'(', ..] => refuse("it is the text format; turn it into bytes with `wasm-tools parse`"),
        _ => refuse("it is not a WebAssembly component"),
    }
}

/// The parts that count, without judging whether they fit together.
fn walk(bytes: &[u8]) -> Result<Admitted, SandboxError> {
    let mut counts = Counts::default();
    let mut admitted = Admitted { imports: Vec::new(), exports: Vec::new() };
    let mut depth = 0;
    let mut instances = 0;
    let mut tables = 0;
    // What each open level is: a component or a module.
    let mut open = Vec::new();
    for payload in Parser::new(0).parse_all(bytes) {
        let payload = payload.map_err(broken)?;
        counts.see(bytes, &payload)?;
        match payload {
            Payload::Version { encoding, .. } => {
                open.push(encoding);
                // Of one module, and modules are not in one another.
                tables = 0;
                depth += usize::from(encoding == Encoding::Component);
                if depth > DEPTH {
                    return Err(too_much("components inside components", depth as u64, DEPTH as u64));
                }
            }
            Payload::End(_) => {
                depth -= usize::from(open.pop() == Some(Encoding::Component));
            }
            Payload::InstanceSection(section) => {
                for instance in section {
                    instances += u64::from(matches!(instance.map_err(broken)?, Instance::Instantiate { .. }));
                }
                if instances > u64::from(limits::INSTANCES) {
                    return Err(too_much("core instances", instances, u64::from(limits::INSTANCES)));
                }
            }
            Payload::TableSection(section) => {
                tables += u64::from(section.count());
                if tables > u64::from(limits::TABLES_PER_MODULE) {
                    return Err(too_much("tables in one module", tables, limits::TABLES_PER_MODULE.into()));
                }
                for table in section {
                    let elements = table.map_err(broken)?.ty.initial;
                    if elements > limits::TABLE_ELEMENTS as u64 {
                        return Err(too_much(
                            "elements in one table",
                            elements,
                            limits::TABLE_ELEMENTS as u64,
                        ));
                    }
                }
            }
            Payload::CodeSectionEntry(body) => function(&body)?,
            Payload::ComponentImportSection(section) if open.len() == 1 => {
                for import in section {
                    admitted.imports.push(import.map_err(broken)?.name.name.to_owned());
                }
            }
            Payload::ComponentExportSection(section) if open.len() == 1 => {
                for export in section {
                    admitted.exports.push(export.map_err(broken)?.name.name.to_owned());
                }
            }
            _ => {}
        }
    }
    Ok(admitted)
}

/// What makes one function expensive to compile.
fn function(body: &wasmparser::FunctionBody<'_>) -> Result<(), SandboxError> {
    let broken = |e: wasmparser::BinaryReaderError| SandboxError::refused("a function", e.to_string());
    let bytes = body.range().len();
    if bytes > FUNCTION_BYTES {
        return Err(too_much("bytes in one function", bytes as u64, FUNCTION_BYTES as u64));
    }
    let mut locals = 0;
    for group in body.get_locals_reader().map_err(broken)? {
        locals += u64::from(group.map_err(broken)?.0);
    }
    if locals > LOCALS {
        return Err(too_much("locals in one function", locals, LOCALS));
    }
    let mut nesting: usize = 0;
    let mut operators = body.get_operators_reader().map_err(broken)?;
    while !operators.eof() {
        match operators.read().map_err(broken)? {
            Operator::Block { .. } | Operator::Loop { .. } | Operator::If { .. } => {
                nesting += 1;
                if nesting > NESTING {
                    return Err(too_much("blocks inside blocks", nesting as u64, NESTING as u64));
                }
            }
            Operator::End => nesting = nesting.saturating_sub(1),
            Operator::BrTable { targets } if targets.len() > BRANCHES => {
                return Err(too_much("targets of one br_table", targets.len().into(), BRANCHES.into()));
            }
            _ => {}
        }
    }
    Ok(())
}

fn broken(error: wasmparser::BinaryReaderError) -> SandboxError {
    SandboxError::refused("the component", error.to_string())
}

fn too_much(what: &str, has: u64, most: u64) -> SandboxError {
    SandboxError::refused(what, format!("it has {has}; {most} is the most"))
}

/// Names the language feature without which the bytes would have been valid up
/// to here, if there is one.
fn refuse_invalid(bytes: &[u8], error: &wasmparser::BinaryReaderError) -> SandboxError {
    let without = OUTSIDE.iter().find(|(_, feature)| {
        match Validator::new_with_features(LANGUAGE.union(*feature)).validate_all(bytes) {
            Ok(_) => true,
            // Another feature, further on: this one was missing first.
            Err(next) => next.offset() > error.offset(),
        }
    });
    match without {
        Some((name, _)) => SandboxError::refused(
            format!("WebAssembly feature `{name}`"),
            format!("tools cannot use it; switch it off in the toolchain ({error})"),
        ),
        None => SandboxError::refused("the component", format!("it is not valid: {error}")),
    }
}

#[cfg(test)]
pub(crate) mod tests;
