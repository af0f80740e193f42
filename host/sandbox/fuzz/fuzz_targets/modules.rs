//! Modules in the engine's language and in others, made from any bytes. What is done with them is in the
//! sandbox's own `fuzz`, which an ordinary test replays the kept corpus through.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Some(made) = countersign_sandbox_fuzz::module(data) {
        countersign_sandbox::fuzz::target("modules", &made);
    }
});
