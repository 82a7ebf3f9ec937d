//! Every case of the suite, and larger sizes, on every GPU and accelerator of this machine that has
//! an OpenCL driver. Processors run a sample: their drivers compile each kernel once for each block
//! size, so the whole suite would take long. `PANOPLY_CASES=prefix` runs all cases whose names
//! begin so, an empty prefix all of them.

#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use panoply_c_gpu::GpuBackend;
use panoply_c_gpu_testing::{graphs, suite};
use panoply_conformance::print_op_names;
use panoply_core::{Backend, DeviceInfo};
use panoply_opencl::{Limits, OpenClBackend};

/// Processors run every n-th case. With the limits of a small device, which change a few families
/// only, they run fewer.
const SAMPLE: usize = 97;
const LIMITED_SAMPLE: usize = 331;

/// Calls `test` with the devices that are processors, or with those that are not. If there are
/// none, prints the reason.
fn on_devices(backend: &OpenClBackend, processors: bool, test: impl Fn(&dyn GpuBackend, &DeviceInfo)) {
    let devices = match backend.discover() {
        Ok(devices) => devices,
        Err(absence) => return println!("skipped: {absence}"),
    };
    let chosen: Vec<&DeviceInfo> = devices.iter().filter(|device| device.runs_on_cores == processors).collect();
    if chosen.is_empty() {
        println!("skipped: no OpenCL driver for a {}", if processors { "processor" } else { "GPU" });
    }
    chosen.into_iter().for_each(|device| test(backend, device));
}

/// For scripts that check the ops side by side.
#[test]
fn list_of_ops() {
    print_op_names();
}

#[test]
fn every_case_on_every_gpu() {
    on_devices(&OpenClBackend::new(), false, |backend, device| suite::check(backend, device, &suite::chosen(1)));
}

/// `PANOPLY_GRAPHS` sets the number of graphs.
#[test]
fn random_graphs_on_every_device() {
    graphs::random(&OpenClBackend::new(), 20, 4);
}

#[test]
fn suite_graphs_on_every_device() {
    graphs::of_the_suite(&OpenClBackend::new(), 12);
}

/// Compiles all kernels into the cache, on all CPUs, for scripts that check the ops in several
/// processes.
#[test]
fn kernels_compile_ahead() {
    on_devices(&OpenClBackend::new(), false, |backend, device| {
        suite::compile_ahead(backend, device, &suite::chosen(1))
    });
}

#[test]
fn a_sample_of_cases_on_every_processor() {
    on_devices(&OpenClBackend::new(), true, |backend, device| suite::check(backend, device, &suite::chosen(SAMPLE)));
}

/// With the smallest limits under which kernels run, ops take other paths and give the same
/// answers.
#[test]
fn a_sample_of_cases_within_small_limits() {
    let small = Limits { shared_bytes_max: Some(32 << 10), block_threads_max: Some(256), ..Limits::default() };
    let backend = OpenClBackend::new().limited(small);
    on_devices(&backend, true, |backend, device| suite::check(backend, device, &suite::chosen(LIMITED_SAMPLE)));
}

/// A device without f64 refuses the ops that need it, and runs all others correctly.
#[test]
fn a_sample_of_cases_without_f64() {
    let backend = OpenClBackend::new().limited(Limits { without_f64: true, ..Limits::default() });
    on_devices(&backend, true, |backend, device| suite::check(backend, device, &suite::chosen(LIMITED_SAMPLE)));
}

/// A processor split into two devices, which give the same answers.
#[test]
fn parts_of_a_processor_are_devices() {
    let backend = OpenClBackend::new().limited(Limits { units: Some(1), ..Limits::default() });
    let whole = OpenClBackend::new();
    on_devices(&whole, true, |_, device| {
        let units = device.compute_units.unwrap();
        let parts = backend.discover().unwrap();
        if units > 1 && parts.len() == 1 {
            return println!("skipped: {} is not divided by its driver", device.name);
        }
        assert!(parts.len() as u32 >= units, "{parts:?}");
        assert!(parts.iter().all(|part| part.compute_units == Some(1) || !part.runs_on_cores), "{parts:?}");
        let cases: Vec<_> = suite::chosen(1).into_iter().filter(|case| case.name.starts_with("map/f32/add")).collect();
        parts.iter().take(2).for_each(|part| suite::check(&backend, part, &cases[..1]));
    });
}

/// Random ops of every kind. `PANOPLY_OPS=n` runs n of them and `PANOPLY_SEED=s` starts at another
/// seed. With `PANOPLY_DEVICE=required` a missing GPU is a failure.
#[test]
fn random_ops_on_every_device() {
    panoply_conformance::run_ops(&OpenClBackend::new(), 40);
}
