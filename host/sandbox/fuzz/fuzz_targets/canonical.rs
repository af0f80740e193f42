//! Canonical JSON, from any bytes. What is done with them is in the sandbox's own `fuzz`, which an
//! ordinary test replays the kept corpus through.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| countersign_sandbox::fuzz::target("canonical", data));
