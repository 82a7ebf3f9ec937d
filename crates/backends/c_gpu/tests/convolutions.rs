//! Tests of the trial of a vendor's convolutions, on the emulated device.

#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use panoply_c_gpu::{EmulatedBackend, GpuBackend};
use panoply_c_gpu_testing::convolutions;
use panoply_core::{Backend, OpenOptions};

#[test]
fn a_trial_finds_sums_that_are_off() {
    let backend = match EmulatedBackend::new() {
        Ok(backend) => backend,
        Err(absence) => return println!("skipped: {absence}"),
    };
    let info = backend.discover().unwrap().remove(0);
    let mut engine = backend.open_engine(&info, &OpenOptions::default()).unwrap();
    convolutions::a_trial_finds_sums_that_are_off(engine.context_mut());
}
