//! Fault tests on every OpenCL device of the machine, and two processes that share one.

#![allow(clippy::unwrap_used)] // A test panics on an unexpected value.

#[allow(dead_code)] // Tests of graphs do not apply to OpenCL.
#[path = "../../c_gpu/tests/bench/faults.rs"]
#[allow(clippy::module_inception)] // Its file is shared with other backends.
mod faults;

use panoply_core::Backend;
use panoply_opencl::OpenClBackend;

macro_rules! on_each_device {
    ($($test:ident,)*) => {
        $(
            #[test]
            fn $test() {
                let backend = OpenClBackend::new();
                match backend.discover() {
                    Ok(devices) => devices.iter().for_each(|device| faults::$test(&backend, device)),
                    Err(absence) => println!("skipped: {absence}"),
                }
            }
        )*
    };
}

// Graphs need kernels that read addresses from memory, which OpenCL lacks.
on_each_device! {
    out_of_memory_is_typed_and_passes,
    a_kernel_that_does_not_compile_says_where,
    a_tensor_of_an_engine_that_is_gone_is_refused,
    ops_come_back_once_and_in_order,
    a_bad_op_fails_alone,
    searches_with_other_lengths_stay_apart,
    engines_of_one_thread_do_not_mix,
    constants_share_a_kernel,
    sizes_beyond_a_kernel_are_refused,
    kernels_are_compiled_ahead,
}

#[test]
fn two_processes_share_a_device() {
    let backend = OpenClBackend::new();
    match backend.discover() {
        Ok(devices) => faults::shares_a_device(&backend, &devices[0], "faults::two_processes_share_a_device"),
        Err(absence) => println!("skipped: {absence}"),
    }
}
