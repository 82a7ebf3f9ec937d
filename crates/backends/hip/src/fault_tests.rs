//! Fault tests through the test library: HIP's C functions over an emulated device, or over CUDA.

#[path = "../tests/test_library/mod.rs"]
mod test_library;

use std::sync::OnceLock;
use std::time::Duration;

use panoply_c_gpu::GpuBackend;
pub(crate) use panoply_c_gpu_testing::faults;
use panoply_conformance::run_one;
use panoply_core::op::compute::{Map, Transfer};
use panoply_core::{
    Absence, Backend, DType, DeviceInfo, Engine, Error, Item, OpenOptions, Operation, Result, Shape, Tensor,
};

use crate::HipBackend;
pub(crate) use test_library::{TestLibrary, is_cuda};

/// The test library, loaded for the whole process because its settings belong to threads.
pub(crate) fn library() -> &'static TestLibrary {
    static LIBRARY: OnceLock<TestLibrary> = OnceLock::new();
    LIBRARY.get_or_init(TestLibrary::open)
}

pub(crate) fn through() -> HipBackend {
    HipBackend::new().through(library().path())
}

/// Every device behind the library. Prints the reason if there is none.
fn devices() -> Vec<DeviceInfo> {
    through().discover().unwrap_or_else(|absence| {
        println!("skipped: {absence}");
        Vec::new()
    })
}

fn on_each_device(test: faults::Test) {
    devices().iter().for_each(|info| test(&through(), info));
}

panoply_c_gpu_testing::fault_tests!(on_each_device);

fn sum(engine: &mut dyn Engine, elements: usize) -> Result<Vec<f32>> {
    let ones = Tensor::from_vec(vec![1.0_f32; elements], [elements])?;
    run_one(engine, Map::add(&ones, &ones).into_op()?)?.into_tensor()?.to_vec::<f32>()
}

#[test]
fn a_machine_without_the_library_says_what_was_tried() {
    let absence = HipBackend::new().through("libNoSuchRuntime.so.9").discover().unwrap_err();
    assert_eq!(absence, Absence::LibraryMissing { tried: vec!["libNoSuchRuntime.so.9".to_owned()] });
    let info = DeviceInfo::new("rocm:0".parse().unwrap(), "none", panoply_core::DeviceKind::DiscreteGpu);
    let opened = HipBackend::new().through("libNoSuchRuntime.so.9").open_engine(&info, &OpenOptions::default());
    assert!(matches!(opened.err(), Some(Error::DeviceUnavailable { .. })));
}

#[test]
fn a_gpu_knows_the_node_that_it_is_on() {
    let found = devices();
    let Some(address) = found.first().and_then(|info| info.pci_address) else { return println!("skipped: no device") };
    let system = std::env::temp_dir().join(format!("panoply-hip-{}", std::process::id()));
    let folder = system.join(format!("bus/pci/devices/{address}"));
    std::fs::create_dir_all(&folder).unwrap();
    for (text, node) in [("1\n", Some(1)), ("-1\n", None)] {
        std::fs::write(folder.join("numa_node"), text).unwrap();
        let device = through().in_system(&system).discover().unwrap().remove(0);
        assert_eq!((device.pci_address, device.numa_node), (Some(address), node));
    }
    std::fs::remove_dir_all(&system).unwrap();
}

#[test]
#[cfg(target_os = "linux")]
fn a_library_that_lacks_functions_is_told() {
    let Err(Absence::NoDevice { reason }) = HipBackend::new().through("libc.so.6").discover() else {
        panic!("C's library is not HIP's")
    };
    assert_eq!(reason, "the library libc.so.6 lacks hipInit, so it is not HIP's runtime");
}

#[test]
fn no_device_is_an_absence() {
    for (function, status) in [("hipGetDeviceCount", 100), ("hipInit", 100), ("hipInit", 101)] {
        library().fail(function, status, 1);
        let Err(Absence::NoDevice { reason }) = through().discover() else { panic!("{function} answered {status}") };
        assert!(reason.starts_with("the runtime shows none") && reason.contains("Device"), "{reason}");
    }
    library().fail("hipInit", 304, 1);
    assert!(matches!(through().discover(), Err(Absence::Denied { .. })));
    library().fail("hipDeviceGetAttribute", 1, 1);
    assert!(matches!(through().discover(), Err(Absence::NoDevice { .. })));
}

/// An empty architecture name is refused when the engine is opened.
#[test]
fn a_device_that_kernels_cannot_be_written_for_is_not_opened() {
    let Some(info) = devices().into_iter().next().filter(|_| !is_cuda()) else {
        return println!("skipped: over CUDA the architecture is the GPU's");
    };
    library().architecture("");
    let error = through().open_engine(&info, &OpenOptions::default()).err().unwrap();
    library().architecture("gfx90a");
    assert!(matches!(&error, Error::DeviceUnavailable { reason, .. } if reason.contains("architecture")), "{error}");
    assert!(through().open_engine(&info, &OpenOptions::default()).is_ok());
}

/// A stream, device or memory query that fails while an engine is opened causes an error and leaks
/// nothing.
#[test]
fn an_engine_that_does_not_open_leaves_nothing() {
    let Some(info) = devices().into_iter().next() else { return };
    let before = library().live();
    for function in ["hipSetDevice", "hipStreamCreateWithFlags", "hipMemGetInfo"] {
        library().fail(function, 1, 1);
        let error = through().open_engine(&info, &OpenOptions::default()).err();
        assert!(error.is_some(), "{function} failed");
        assert_eq!(library().live(), before, "{function} failed");
    }
}

#[test]
fn everything_is_given_back() {
    let Some(info) = devices().into_iter().next() else { return };
    let before = library().live();
    let mut engine = faults::open(&through(), &info);
    assert_eq!(sum(&mut engine, 100_000).unwrap(), [2.0; 100_000]);
    assert!(library().live() > before);
    drop(engine);
    assert_eq!(library().live(), before);
}

/// A GPU without memory of its own reads pinned tensors in place; another one gets a copy.
#[test]
fn an_integrated_gpu_reads_pinned_memory_where_it_is() {
    let Some(info) = devices().into_iter().next().filter(|_| !is_cuda()) else {
        return println!("skipped: over CUDA the GPU is what it is");
    };
    for (is_integrated, copied) in [(false, 400_000), (true, 0)] {
        library().integrated(is_integrated);
        let mut engine = faults::open(&through(), &info);
        library().integrated(false);
        let mut memory = engine.pinned(400_000).unwrap();
        memory.bytes_mut().fill(0x3f);
        let tensor = Tensor::from_host(DType::F32, Shape::new([100_000]).unwrap(), memory.freeze()).unwrap();
        let op = Map::neg(&tensor).into_op().unwrap();
        engine.submit(&mut vec![Item { token: 1, op }]);
        let mut finished = Vec::new();
        while engine.poll(&mut finished, Duration::from_secs(1)) > 0 {}
        let done = finished.pop().unwrap();
        assert_eq!(done.bytes_moved, copied, "integrated: {is_integrated}");
        let negated = Transfer::to_host(&done.result.unwrap().into_tensor().unwrap()).into_op().unwrap();
        let negated = run_one(&mut engine, negated).unwrap().into_tensor().unwrap();
        assert_eq!(negated.as_slice::<f32>().unwrap()[99_999], -f32::from_le_bytes([0x3f; 4]));
        // A tensor that is not pinned is copied by both.
        assert_eq!(sum(&mut engine, 100_000).unwrap(), [2.0; 100_000]);
    }
}

/// Calls that fail without harming the device: the op returns an error, and the next one succeeds.
#[test]
fn a_call_that_fails_is_one_ops_fault() {
    let Some(info) = devices().into_iter().next() else { return };
    // A code object that does not load is compiled and loaded once more, so these calls must fail
    // twice.
    for (function, times, elements) in
        [("hipModuleLoadData", 2, 3), ("hipModuleGetFunction", 2, 3), ("hipMemcpyHtoDAsync", 1, 50_000)]
    {
        let mut engine = faults::open(&through(), &info);
        library().fail(function, 500, times);
        let error = sum(&mut engine, elements).unwrap_err();
        assert!(matches!(error, Error::DeviceFault { .. }), "{function}: {error}");
        assert_eq!(sum(&mut engine, 3).unwrap(), [2.0; 3], "{function}");
    }
}

/// The runtime refuses a cached code object of another driver: the kernel is compiled again.
#[test]
fn a_kernel_of_another_driver_costs_time_and_nothing_else() {
    const INVALID_IMAGE: i32 = 200;
    const NO_BINARY_FOR_GPU: i32 = 209;
    let Some(info) = devices().into_iter().next() else { return };
    for status in [INVALID_IMAGE, NO_BINARY_FOR_GPU] {
        let mut engine = faults::open(&through(), &info);
        let compiled = engine.context_mut().compile_queue().compiled();
        library().fail("hipModuleLoadData", status, 1);
        assert_eq!(sum(&mut engine, 3).unwrap(), [2.0; 3], "{status}");
        assert!(engine.context_mut().compile_queue().compiled() > compiled, "{status}: nothing was compiled");
    }
}

#[test]
fn two_processes_share_a_device() {
    let Some(info) = devices().into_iter().next() else { return };
    faults::shares_a_device(&through(), &info, "fault_tests::two_processes_share_a_device");
}

#[test]
fn memory_that_the_driver_refuses_is_told() {
    let Some(info) = devices().into_iter().next() else { return };
    let mut engine = faults::open(&through(), &info);
    // The pool releases its cached memory and retries, so several calls must fail.
    library().fail("hipMalloc", 2, 8);
    let error = sum(&mut engine, 1 << 20).unwrap_err();
    assert!(matches!(&error, Error::OutOfMemory { place, asked, .. } if place == "rocm:0" && *asked > 0), "{error}");
    let tries = (0..8).take_while(|_| sum(&mut engine, 1 << 20).is_err()).count();
    assert!(tries < 8, "memory is there again");
    faults::assert_works(&mut engine);
}

/// A lost device returns an error for every op until it is opened again.
#[test]
fn a_lost_device_is_told_and_opened_again() {
    let Some(info) = devices().into_iter().next() else { return };
    for status in [719, 700, 999] {
        let mut engine = faults::open(&through(), &info);
        faults::assert_works(&mut engine);
        library().fail("hipModuleLaunchKernel", status, 1);
        let error = sum(&mut engine, 3).unwrap_err();
        assert!(matches!(error, Error::DeviceLost { .. }), "{error}");
        assert!(engine.health().fault.is_some());
        drop(engine);
        faults::assert_works(&mut faults::open(&through(), &info));
    }
}

/// The error appears when the op's completion is queried, as on a GPU.
#[test]
fn a_device_that_is_lost_under_way_is_told() {
    let Some(info) = devices().into_iter().next() else { return };
    let mut engine = faults::open(&through(), &info);
    faults::assert_works(&mut engine);
    library().fail("hipEventQuery", 719, 1);
    let error = sum(&mut engine, 3).unwrap_err();
    assert!(matches!(error, Error::DeviceLost { .. }), "{error}");
    drop(engine);
    faults::assert_works(&mut faults::open(&through(), &info));
}

/// A compiler failure that is not about the source is a device fault.
#[test]
fn a_compiler_that_fails_is_the_devices_fault() {
    let Some(info) = devices().into_iter().next() else { return };
    let mut engine = faults::open(&through(), &info);
    let kernel = panoply_kernels::c::Kernel::generated("fresh", "KERNEL fresh(void) { }".into(), "fresh");
    library().fail("hiprtcCreateProgram", 5, 1);
    let launch = panoply_c_gpu::driver::Launch::new(1, 1);
    let mut arguments = panoply_c_gpu::arguments::Arguments::new();
    let told = engine.context_mut().launch(&kernel, launch, &mut arguments);
    // If the kernel is cached, the compiler is not called.
    if let Err(error) = told {
        assert!(matches!(&error, Error::DeviceFault { reason, .. } if reason.contains("does not compile")), "{error}");
    }
    faults::assert_works(&mut engine);
}
