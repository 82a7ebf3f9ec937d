//! The target `repair` of `panoply_vector::fuzzing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| panoply_vector::fuzzing::repair(bytes));
