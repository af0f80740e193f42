//! Whole programs for the engine as it is configured here. The fuzzer's targets make valid ones from
//! any bytes (`fuzz/src/lib.rs`), so that it spends its time behind the door, in the compiler and in
//! what that made; an ordinary test replays the ones that are kept.
//!
//! What has to hold: what the door takes compiles, and what compiles the door takes (but for how
//! much of it there is, and for names); what runs ends within its limits, and does the same again.

use std::time::Duration;

use countersign_domain::run::{Ended, RunLimits};
use wasmtime::component::Component;
use wasmtime::{Extern, Instance, Module, Store, Val};

use super::BENCH;
use crate::state::{Setting, State};
use crate::{SandboxError, admit, linker, run};

/// What a program gets. Little time: most are over at once or never.
const LIMITS: RunLimits = RunLimits { memory: 16 << 20, cpu: Duration::from_millis(50), ..super::LIMITS };

/// A component that has the module and makes an instance of it.
fn around(module: &[u8]) -> Vec<u8> {
    let mut bytes = b"\0asm\x0d\0\x01\0\x01".to_vec();
    let mut length = module.len();
    while length >= 0x80 {
        bytes.push(length as u8 | 0x80);
        length >>= 7;
    }
    bytes.push(length as u8);
    bytes.extend_from_slice(module);
    // One core instance: of module 0, with nothing.
    bytes.extend_from_slice(&[2, 4, 1, 0, 0, 0]);
    bytes
}

/// A module without imports, of any language. True if it ran.
pub(super) fn module(bytes: &[u8]) -> bool {
    if agree(&around(bytes)).is_none() {
        return false;
    }
    let module = Module::from_binary(&BENCH.engine, bytes).expect("it compiles in a component");
    if let (Some(once), Some(again)) = (outcome(&module), outcome(&module)) {
        assert_eq!(once, again, "it does another thing the second time");
    }
    true
}

/// A component of any language, with whatever imports. True if it could have an instance.
pub(super) fn component(bytes: &[u8]) -> bool {
    let Some(component) = agree(bytes) else { return false };
    let linker = linker::linker(&BENCH.engine).expect("a linker");
    let Ok(pre) = linker.instantiate_pre(&component) else { return false };
    let setting = Setting::bare(LIMITS);
    let ended = BENCH.runtime.block_on(run::run(&BENCH.engine, &setting, async |store| {
        pre.instantiate_async(store).await.map(drop)
    }));
    ended_well(&ended);
    true
}

/// Door and engine are configured apart: neither takes what the other does not.
fn agree(bytes: &[u8]) -> Option<Component> {
    match (admit::admit(bytes, 64 << 20), Component::from_binary(&BENCH.engine, bytes)) {
        (Ok(_), Ok(component)) => Some(component),
        (Ok(_), Err(error)) => panic!("the door takes what does not compile: {error:?}"),
        // An import is known by its name, and the engine knows none.
        (Err(SandboxError::Refused { what, .. }), Ok(_)) if what.starts_with("import ") => None,
        // Of how much there is of something, the door alone keeps count, and one type is known to the
        // engine only.
        (Err(refused), Ok(_)) => {
            let refused = refused.to_string();
            let known = refused.contains("is the most") || refused.contains(admit::EXTERNREF);
            assert!(known, "the door refuses what compiles: {refused}");
            None
        }
        (Err(_), Err(_)) => None,
    }
}

fn ended_well(ended: &Result<(), Ended>) {
    match ended {
        Ok(()) => {}
        Err(Ended::Trapped { why, .. }) => assert!(!why.contains("fault of the host"), "{why}"),
        Err(other) => panic!("{other:?}"),
    }
}

/// Makes an instance, calls each of its functions with zeros, and gives all that is to be seen of
/// that. `None` if it was ended for its time, which is never twice the same.
fn outcome(module: &Module) -> Option<Vec<String>> {
    let mut seen = Vec::new();
    let setting = Setting::bare(LIMITS);
    let ended = BENCH.runtime.block_on(run::run(&BENCH.engine, &setting, async |store| {
        let instance = Instance::new_async(&mut *store, module, &[]).await?;
        for export in module.exports() {
            let Some(it) = instance.get_export(&mut *store, export.name()) else { continue };
            seen.push(format!("{} {}", export.name(), look(it, store).await?));
        }
        Ok(())
    }));
    ended_well(&ended);
    if matches!(ended, Err(Ended::Trapped { limit: Some("cpu" | "wall"), .. })) {
        return None;
    }
    seen.push(format!("{ended:?}"));
    Some(seen)
}

async fn look(it: Extern, store: &mut Store<State>) -> wasmtime::Result<String> {
    Ok(match it {
        Extern::Func(function) => {
            let ty = function.ty(&*store);
            let given: Option<Vec<Val>> = ty.params().map(|ty| Val::default_for_ty(&ty)).collect();
            let Some(given) = given else { return Ok("takes what cannot be left out".to_owned()) };
            let mut results = vec![Val::I32(0); ty.results().len()];
            match function.call_async(&mut *store, &given, &mut results).await {
                Ok(()) => results.iter().map(show).collect(),
                Err(error) => match error.downcast_ref::<wasmtime::Trap>() {
                    Some(trap) => format!("{trap:?}"),
                    None => return Err(error),
                },
            }
        }
        Extern::Memory(memory) => {
            let sum = memory.data(&*store).iter().enumerate().fold(0u64, |sum, (at, byte)| {
                if *byte == 0 { sum } else { sum.rotate_left(5) ^ (at as u64) << 8 ^ u64::from(*byte) }
            });
            format!("{} {sum:x}", memory.size(&*store))
        }
        Extern::Global(global) => show(&global.get(&mut *store)),
        Extern::Table(table) => table.size(&*store).to_string(),
        _ => String::new(),
    })
}

/// Numbers to the bit, of references only whether there is one.
fn show(value: &Val) -> String {
    match value {
        Val::I32(_) | Val::I64(_) | Val::F32(_) | Val::F64(_) | Val::V128(_) => format!("{value:?} "),
        Val::FuncRef(it) => format!("func {} ", it.is_some()),
        Val::ExternRef(it) => format!("extern {} ", it.is_some()),
        _ => "another ".to_owned(),
    }
}
