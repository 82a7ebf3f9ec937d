//! Pictures as inputs of models.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    panoply_inputs::fuzzing::picture(bytes);
});
