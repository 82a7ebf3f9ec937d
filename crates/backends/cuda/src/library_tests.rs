//! Tests of cuDNN's convolutions, on every GPU.

use panoply_c_gpu::GpuBackend;
use panoply_c_gpu::context::Context;
use panoply_c_gpu_testing::convolutions;
use panoply_core::{Backend, OpenOptions};

use crate::CudaBackend;

fn on_each_gpu(test: impl Fn(&mut Context)) {
    let backend = CudaBackend::new();
    let devices = match backend.discover() {
        Ok(devices) => devices,
        Err(absence) => return println!("skipped: {absence}"),
    };
    for info in devices {
        test(backend.open_engine(&info, &OpenOptions::default()).unwrap().context_mut());
    }
}

#[test]
fn a_trial_finds_sums_that_are_off() {
    on_each_gpu(convolutions::a_trial_finds_sums_that_are_off);
}

#[test]
fn the_library_has_plans() {
    on_each_gpu(convolutions::the_library_has_plans);
}

#[test]
fn what_is_chosen_is_exact() {
    on_each_gpu(convolutions::what_is_chosen_is_exact);
}
