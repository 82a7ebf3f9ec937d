//! Models: files are parsed, and valid ones run on zeros, within low limits.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    panoply_models::fuzzing::model(bytes);
});
