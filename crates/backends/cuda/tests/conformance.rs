//! Every case of the suite, and larger sizes, on every GPU of this machine. If NVRTC is installed,
//! it compiles a sample of the suite's kernels for a GPU while the emulated device runs them.
//! `PANOPLY_CASES=prefix` runs the cases whose names begin with the prefix.

#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::sync::Arc;

use panoply_c_gpu::EmulatedBackend;
use panoply_c_gpu_testing::{graphs, suite};
use panoply_conformance::print_op_names;
use panoply_core::Backend;
use panoply_cuda::{CudaBackend, Nvrtc};

/// The emulated device runs every n-th case.
const SAMPLE: usize = 11;
/// The compute capability that emulated kernels are also compiled for.
const CHECKED_CAPABILITY: u32 = 90;

/// For scripts that check the ops side by side.
#[test]
fn list_of_ops() {
    print_op_names();
}

#[test]
fn every_case_on_every_gpu() {
    suite::run(&CudaBackend::new(), 1);
}

/// `PANOPLY_GRAPHS` sets the number of graphs.
#[test]
fn random_graphs_on_every_device() {
    graphs::random(&CudaBackend::new(), 300, 100);
}

#[test]
fn suite_graphs_on_every_device() {
    graphs::of_the_suite(&CudaBackend::new(), 400);
}

/// Compiles all kernels into the cache, on all CPUs, for scripts that check the ops in several
/// processes.
#[test]
fn kernels_compile_ahead() {
    let backend = CudaBackend::new();
    match backend.discover() {
        Ok(devices) => devices.iter().for_each(|device| suite::compile_ahead(&backend, device, &suite::chosen(1))),
        Err(absence) => println!("skipped: {absence}"),
    }
}

#[test]
fn emulated_kernels_compile_for_cuda() {
    let Some(nvrtc) = Nvrtc::for_capability(CHECKED_CAPABILITY) else {
        return println!("skipped: NVRTC is not installed, so that no kernel can be compiled for CUDA");
    };
    match EmulatedBackend::new() {
        Ok(backend) => suite::run(&backend.checked_by(Arc::new(nvrtc)), SAMPLE),
        Err(absence) => println!("skipped: {absence}"),
    }
}

/// Random ops of every kind. `PANOPLY_OPS=n` runs n of them and `PANOPLY_SEED=s` starts at another
/// seed. With `PANOPLY_DEVICE=required` a missing GPU is a failure.
#[test]
fn random_ops_on_every_device() {
    panoply_conformance::run_ops(&CudaBackend::new(), 400);
}
