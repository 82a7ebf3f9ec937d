//! Fault tests on GPUs.

use panoply_c_gpu::GpuBackend;
use panoply_c_gpu::arguments::Arguments;
use panoply_c_gpu::driver::{Address, Launch};
use panoply_c_gpu_testing::faults;
use panoply_conformance::run_one;
use panoply_core::op::compute::Map;
use panoply_core::{Backend, DeviceInfo, Engine, Error, OpenOptions, Operation, Tensor};
use panoply_kernels::c::Kernel;

use crate::CudaBackend;

/// Every GPU. If there is none, prints the reason.
fn devices() -> Vec<DeviceInfo> {
    CudaBackend::new().discover().unwrap_or_else(|absence| {
        println!("skipped: {absence}");
        Vec::new()
    })
}

fn on_each_device(test: faults::Test) {
    devices().iter().for_each(|info| test(&CudaBackend::new(), info));
}

panoply_c_gpu_testing::fault_tests!(on_each_device);

/// Set in the child process that loses its GPU.
const SPOIL: &str = "PANOPLY_TEST_SPOIL";

/// An access to an invalid address loses the context: every later op returns that error, and
/// opening the device again works or returns a reason. The driver keeps the error for the rest of
/// the process, so the test uses a child process.
#[test]
fn an_illegal_address_loses_the_device() {
    if devices().is_empty() {
        return;
    }
    let this = std::env::current_exe().unwrap();
    let name = "fault_tests::spoil_the_device";
    let child =
        std::process::Command::new(this).args(["--exact", name, "--nocapture"]).env(SPOIL, "1").output().unwrap();
    let told = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && told.contains("spoilt:"), "{told}{}", String::from_utf8_lossy(&child.stderr));
}

#[test]
fn spoil_the_device() {
    if std::env::var_os(SPOIL).is_none() {
        return println!("skipped: done in a process of its own by an_illegal_address_loses_the_device");
    }
    let backend = CudaBackend::new();
    let info = backend.discover().unwrap().remove(0);
    let mut engine = faults::open(&backend, &info);
    let wild = Kernel::generated("wild", "KERNEL wild(GLOBAL u32 *p) { *p = 1u; }".into(), "wild");
    let mut arguments = Arguments::new().address(Address(0x10));
    engine.context_mut().launch(&wild, Launch::new(1, 1), &mut arguments).unwrap();
    let values = Tensor::from_vec(vec![1.0_f32], [1]).unwrap();
    for _ in 0..2 {
        let error = run_one(&mut engine, Map::add(&values, &values).into_op().unwrap()).unwrap_err();
        assert!(matches!(error, Error::DeviceLost { .. }), "{error}");
    }
    assert!(engine.health().fault.is_some());
    drop(engine);
    match backend.open_engine(&info, &OpenOptions::default()) {
        Ok(mut again) => {
            faults::assert_works(&mut again);
            println!("spoilt: and opened again");
        }
        Err(error) => {
            assert!(matches!(error, Error::DeviceUnavailable { .. }), "{error}");
            println!("spoilt: {error}");
        }
    }
}
