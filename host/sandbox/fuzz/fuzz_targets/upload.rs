#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| countersign_sandbox::fuzz::target("upload", data));
