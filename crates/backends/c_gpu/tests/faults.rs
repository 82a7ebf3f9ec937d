//! Faults on the emulated device, with warps of 32 and of 64 lanes.

#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use panoply_c_gpu::EmulatedBackend;
use panoply_c_gpu::arguments::Arguments;
use panoply_c_gpu::driver::Launch;
use panoply_c_gpu_testing::faults;
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

fn on_each_device(test: faults::Test) {
    for backend in backends() {
        test(&backend, &backend.discover().unwrap()[0]);
    }
}

panoply_c_gpu_testing::fault_tests!(on_each_device);

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
