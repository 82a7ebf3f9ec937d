//! Every case of the suite, and larger sizes, on every AMD GPU of this machine.
//!
//! The test library runs a sample of the suite, or all of it if the library runs on CUDA. If hiprtc
//! is installed, a sample of the suite's kernels is compiled for AMD's GPUs, or all of them with
//! `PANOPLY_HIP_KERNELS=all`. `PANOPLY_CASES=prefix` runs the cases whose names begin with the
//! prefix.

#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.
#![allow(unsafe_code)] // The test library is a C library.

use crate::test_library::{TestLibrary, is_cuda};
use panoply_c_gpu::GpuBackend;
use panoply_c_gpu_testing::{graphs, suite, vectors};
use panoply_conformance::{few_or_all, print_op_names};
use panoply_core::{Backend, OpenOptions};
use panoply_hip::{HipBackend, Hiprtc};

/// The emulated device runs every n-th case, and fewer in a short run. With narrow warps, which
/// differ in a few families only, it runs fewer as well.
const SAMPLE: usize = 401;
const SHORT_SAMPLE: usize = 797;
const NARROW_SAMPLE: usize = 1201;
/// hiprtc gets the kernels of every n-th case.
const COMPILED_SAMPLE: usize = 997;
/// Architectures that kernels are compiled for if hiprtc knows them, with the lanes of their warps.
const ARCHITECTURES: [(&str, u32); 4] = [("gfx90a", 64), ("gfx942", 64), ("gfx1030", 32), ("gfx1100", 32)];

/// For scripts that check the ops side by side.
#[test]
fn list_of_ops() {
    print_op_names();
}

/// AMD's GPUs, or NVIDIA's behind the test library.
fn gpus() -> HipBackend {
    if is_cuda() { HipBackend::new().through(TestLibrary::open().path()) } else { HipBackend::new() }
}

#[test]
fn every_case_on_every_gpu() {
    suite::run(&gpus(), 1);
}

#[test]
fn every_published_vector_on_every_device() {
    vectors::run(&gpus());
}

#[test]
fn thousands_of_messages_are_signed_on_every_device() {
    vectors::sign(&gpus(), 5000);
}

/// `PANOPLY_GRAPHS` sets the number of graphs.
#[test]
fn random_graphs_on_every_device() {
    graphs::random(&gpus(), 300, 100);
}

#[test]
fn suite_graphs_on_every_device() {
    graphs::of_the_suite(&gpus(), 400);
}

/// Compiles all kernels into the cache, on all CPUs, for scripts that check the ops in several
/// processes.
#[test]
fn kernels_compile_ahead() {
    let backend = gpus();
    match backend.discover() {
        Ok(devices) => devices.iter().for_each(|device| suite::compile_ahead(&backend, device, &suite::chosen(1))),
        Err(absence) => println!("skipped: {absence}"),
    }
}

#[test]
fn cases_through_the_test_library() {
    emulated(None, few_or_all(SHORT_SAMPLE, SAMPLE));
}

#[test]
fn cases_with_narrow_warps_through_the_test_library() {
    emulated(Some("gfx1100"), NARROW_SAMPLE);
}

/// Runs every n-th case on the emulated device, which is gfx90a unless `architecture` is given.
fn emulated(architecture: Option<&str>, step: usize) {
    if is_cuda() {
        return println!("skipped: the device is CUDA's, on which every_case_on_every_gpu runs");
    }
    let library = TestLibrary::open();
    architecture.into_iter().for_each(|name| library.architecture(name));
    suite::run(&HipBackend::new().through(library.path()), step);
}

/// Architectures that this machine's hiprtc may not know. The clang that `PANOPLY_HIP_CLANG` names
/// compiles each kernel before the emulated device runs it.
#[test]
fn kernels_compile_by_clang() {
    if std::env::var_os("PANOPLY_HIP_CLANG").is_none() {
        return println!("skipped: PANOPLY_HIP_CLANG names no clang");
    }
    for architecture in ["gfx942", "gfx1100"] {
        emulated(Some(architecture), COMPILED_SAMPLE);
    }
}

/// Writes the text of every kernel that the suite needs, for each architecture, to the folder that
/// `PANOPLY_HIP_KERNELS_OUT` names, for `cargo xtask check-kernels`. No kernel is run.
#[test]
fn kernels_are_written_out() {
    if std::env::var_os("PANOPLY_HIP_KERNELS_OUT").is_none() {
        return println!("skipped: PANOPLY_HIP_KERNELS_OUT names no folder");
    }
    let (cases, library) = (suite::chosen(1), TestLibrary::open());
    for (architecture, _) in ARCHITECTURES {
        library.architecture(architecture);
        let backend = HipBackend::new().through(library.path());
        let device = backend.discover().unwrap().remove(0);
        suite::compile_ahead(&backend, &device, &cases);
    }
}

/// The device is emulated, but the compiler is hiprtc itself. Its binaries are not loaded.
#[test]
fn kernels_compile_for_amd() {
    let is_all = std::env::var("PANOPLY_HIP_KERNELS").is_ok_and(|wanted| wanted == "all");
    if is_cuda() {
        return println!("skipped: the device is CUDA's");
    }
    let cases = suite::chosen(if is_all { 1 } else { COMPILED_SAMPLE });
    let library = TestLibrary::open();
    for (architecture, lanes) in ARCHITECTURES {
        if let Err(absence) = Hiprtc::for_architecture(architecture, lanes) {
            println!("skipped: {architecture}: {absence}");
            continue;
        }
        library.architecture(architecture);
        let backend = HipBackend::new().through(library.path()).compiled_here();
        let device = backend.discover().unwrap().remove(0);
        let mut engine = backend.open_engine(&device, &OpenOptions::default()).unwrap();
        let mut ops = cases.iter().map(|case| &case.op).filter(|op| backend.supports(&device, op).is_yes());
        let mut kernels = 0;
        engine.compile_ahead(&mut ops, &mut |_, total| kernels = total);
        let queue = engine.context_mut().compile_queue();
        let (failed, fresh) = (queue.failed(), queue.compiled());
        println!("{architecture}: {kernels} kernels, {fresh} of them compiled now, {} failed", failed.len());
        assert!(failed.is_empty() && kernels > 0, "{failed:#?}");
    }
}

/// Random ops of every kind. `PANOPLY_OPS=n` runs n of them and `PANOPLY_SEED=s` starts at another
/// seed. With `PANOPLY_DEVICE=required` a missing GPU is a failure.
#[test]
fn random_ops_on_every_device() {
    panoply_conformance::run_ops(&gpus(), 400);
}
