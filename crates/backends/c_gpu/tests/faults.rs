//! Faults on the emulated device, with warps of 32 and of 64 lanes.

#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

#[path = "bench/faults.rs"]
#[allow(clippy::module_inception)] // Its file is shared with other backends.
mod faults;

use panoply_c_gpu::EmulatedBackend;
use panoply_c_gpu::arguments::Arguments;
use panoply_c_gpu::driver::Launch;
use panoply_core::Backend;
use panoply_kernels::c::Kernel;

/// The devices that the tests run on. If there are none, prints the reason.
fn backends() -> Vec<EmulatedBackend> {
    match EmulatedBackend::new() {
        Ok(backend) => vec![backend.clone(), backend.wide_warps()],
        Err(absence) => {
            println!("skipped: the emulated device: {absence}");
            Vec::new()
        }
    }
}

macro_rules! on_each_device {
    ($($test:ident,)*) => {
        $(
            #[test]
            fn $test() {
                for backend in backends() {
                    faults::$test(&backend, &backend.discover().unwrap()[0]);
                }
            }
        )*
    };
}

on_each_device! {
    out_of_memory_is_typed_and_passes,
    a_kernel_that_does_not_compile_says_where,
    a_tensor_of_an_engine_that_is_gone_is_refused,
    ops_come_back_once_and_in_order,
    equal_ops_run_together,
    equal_maps_are_one_launch,
    a_bad_op_fails_alone,
    searches_with_other_lengths_stay_apart,
    engines_of_one_thread_do_not_mix,
    constants_share_a_kernel,
    sizes_beyond_a_kernel_are_refused,
    kernels_are_compiled_ahead,
}

/// Set in the child process whose kernel uses a misaligned address.
const MISALIGN: &str = "PANOPLY_TEST_MISALIGN";

/// x86 reads from any address, GPUs do not: the emulated device is as strict as a GPU and ends the
/// process.
#[test]
fn the_emulated_device_finds_misaligned_addresses() {
    let this = std::env::current_exe().unwrap();
    let name = "faults::read_a_misaligned_address";
    let child =
        std::process::Command::new(this).args(["--exact", name, "--nocapture"]).env(MISALIGN, "1").output().unwrap();
    let told = String::from_utf8_lossy(&child.stdout);
    if told.contains("skipped: the emulated device") {
        return println!("{told}");
    }
    let complaint = String::from_utf8_lossy(&child.stderr);
    assert!(told.contains("aligned: fine") && complaint.contains("misaligned: a thread of block 0,0,0"), "{complaint}");
}

#[test]
fn read_a_misaligned_address() {
    if std::env::var_os(MISALIGN).is_none() {
        return println!("skipped: done in a process of its own by the_emulated_device_finds_misaligned_addresses");
    }
    let text = "KERNEL wide(GLOBAL u32 *p) { *(GLOBAL u32x4 *)p = *(GLOBAL const u32x4 *)(p + 4); }";
    let wide = Kernel::generated("wide", text.into(), "wide");
    for backend in backends() {
        let mut engine = faults::open(&backend, &backend.discover().unwrap()[0]);
        let context = engine.context_mut();
        let address = context.scratch(256).unwrap();
        context.launch(&wide, Launch::new(1, 1), &mut Arguments::new().address(address)).unwrap();
        println!("aligned: fine");
        let _ = context.launch(&wide, Launch::new(1, 1), &mut Arguments::new().address(address + 4));
    }
}
