//! Models: read and, where they can be read, run on zeros, within low bounds.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    panoply_ml::fuzzing::model(bytes);
});
