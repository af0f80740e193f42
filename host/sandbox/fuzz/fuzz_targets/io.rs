//! The host functions of the family `io`, called by any orders. What is done with them is in the sandbox's own `fuzz`, which an
//! ordinary test replays the kept corpus through.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| countersign_sandbox::fuzz::target("io", data));
