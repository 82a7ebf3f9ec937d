//! Tests of drivers that misbehave: the machine's own driver with one function changed. If there is
//! no driver, each test prints that it is skipped.

use std::ffi::{c_char, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use panoply_c_gpu::GpuBackend;
use panoply_c_gpu::compile::Compiler;
use panoply_conformance::run_one;
use panoply_core::op::compute::{Gather, Map};
use panoply_core::{Absence, Backend, DeviceInfo, Engine, Error, OpenOptions, Operation, Result, Tensor};
use panoply_kernels::c::Kernel;

use crate::OpenClBackend;
use crate::calls::{Context, LOADERS, Library};
use crate::compiler::ProgramCompiler;
use crate::platform::{DiscoveredDevice, Limits, find};
use crate::sys::{self, Functions, Handle, NoCallback, Status};
use crate::warps::Warps;

/// The machine's own functions, which the changed ones call.
static OWN: OnceLock<Functions> = OnceLock::new();

fn own() -> &'static Functions {
    OWN.get().expect("set before any function is changed")
}

/// The machine's driver with some functions changed, and its first device.
fn changed(alter: impl FnOnce(&mut Functions)) -> Option<(OpenClBackend, DeviceInfo)> {
    let library = Library::load(LOADERS).ok()?;
    let altered = library.altered(|functions| {
        OWN.get_or_init(|| *functions);
        alter(functions);
    });
    match OpenClBackend::new().with_library(&altered) {
        Ok(backend) => {
            let device = backend.discover().ok()?.remove(0);
            Some((backend, device))
        }
        Err(absence) => {
            println!("skipped: {absence}");
            None
        }
    }
}

/// The absence that results from a changed driver.
fn absence_of(alter: impl FnOnce(&mut Functions)) -> Option<Absence> {
    let library = Library::load(LOADERS).ok()?;
    if let Err(absence) = find(&library, &Limits::default()) {
        println!("skipped: {absence}");
        return None;
    }
    let altered = library.altered(|functions| {
        OWN.get_or_init(|| *functions);
        alter(functions);
    });
    find(&altered, &Limits::default()).err()
}

fn sum(engine: &mut dyn Engine, elements: usize) -> Result<Vec<f32>> {
    let ones = Tensor::from_vec(vec![1.0_f32; elements], [elements])?;
    run_one(engine, Map::add(&ones, &ones).into_op()?)?.into_tensor()?.to_vec::<f32>()
}

fn open(backend: &OpenClBackend, device: &DeviceInfo) -> panoply_c_gpu::GpuEngine {
    backend.open_engine(device, &OpenOptions::default()).unwrap()
}

#[test]
fn a_machine_without_a_loader_says_what_was_tried() {
    let absence = OpenClBackend::new().through(&["libNoSuchLoader.so.9"]).discover().unwrap_err();
    assert_eq!(absence, Absence::LibraryMissing { tried: vec!["libNoSuchLoader.so.9".to_owned()] });
}

#[test]
fn a_loader_without_drivers_is_told_apart() {
    unsafe extern "system" fn no_platforms(_: u32, _: *mut Handle, _: *mut u32) -> Status {
        sys::PLATFORM_NOT_FOUND
    }
    let Some(absence) = absence_of(|functions| functions.clGetPlatformIDs = no_platforms) else { return };
    assert!(absence.to_string().contains("found no driver"), "{absence}");
}

#[test]
fn a_platform_that_answers_errors_is_named() {
    unsafe extern "system" fn no_devices(_: Handle, _: u64, _: u32, _: *mut Handle, _: *mut u32) -> Status {
        sys::OUT_OF_RESOURCES
    }
    let Some(absence) = absence_of(|functions| functions.clGetDeviceIDs = no_devices) else { return };
    assert!(absence.to_string().contains("CL_OUT_OF_RESOURCES"), "{absence}");
}

/// Replaces one number that a device reports; other questions go to the driver.
unsafe fn told(
    device: Handle,
    what: u32,
    bytes: usize,
    value: *mut c_void,
    needed: *mut usize,
    lie: (u32, u64),
) -> Status {
    if what == lie.0 && !value.is_null() && bytes >= 8 {
        // SAFETY: the caller has room for eight bytes.
        unsafe { value.cast::<u64>().write_unaligned(lie.1) };
        return sys::SUCCESS;
    }
    // SAFETY: the arguments are the caller's own.
    unsafe { (own().clGetDeviceInfo)(device, what, bytes, value, needed) }
}

#[test]
fn a_device_with_too_small_blocks_is_left_out() {
    unsafe extern "system" fn small(
        d: Handle,
        what: u32,
        bytes: usize,
        value: *mut c_void,
        needed: *mut usize,
    ) -> Status {
        // SAFETY: the arguments are the caller's own.
        unsafe { told(d, what, bytes, value, needed, (sys::DEVICE_MAX_WORK_GROUP_SIZE, 64)) }
    }
    let Some(absence) = absence_of(|functions| functions.clGetDeviceInfo = small) else { return };
    assert!(absence.to_string().contains("at most 64 threads; 256 are needed"), "{absence}");
}

/// A driver that promises more memory than there is: the allocation fails with a typed error.
#[test]
fn a_driver_that_lies_about_its_memory() {
    unsafe extern "system" fn boast(
        d: Handle,
        what: u32,
        bytes: usize,
        value: *mut c_void,
        needed: *mut usize,
    ) -> Status {
        let lie = if what == sys::DEVICE_GLOBAL_MEM_SIZE { what } else { sys::DEVICE_MAX_MEM_ALLOC_SIZE };
        // SAFETY: the arguments are the caller's own.
        unsafe { told(d, what, bytes, value, needed, (lie, 1 << 50)) }
    }
    let Some((backend, device)) = changed(|functions| functions.clGetDeviceInfo = boast) else { return };
    let mut engine = open(&backend, &device);
    let one = Tensor::scalar(1.0_f32).unwrap().reshape([1, 1]).unwrap();
    let huge = one.broadcast_to([1 << 20, 1 << 20]).unwrap();
    let error = run_one(&mut engine, Map::add(&huge, &huge).into_op().unwrap()).unwrap_err();
    assert!(matches!(&error, Error::OutOfMemory { asked, .. } if *asked >= 1 << 42), "{error}");
    assert_eq!(sum(&mut engine, 3).unwrap(), [2.0; 3]);
}

static REFUSES_MEMORY: AtomicBool = AtomicBool::new(false);

#[test]
fn a_device_that_is_out_of_memory_works_when_it_is_not() {
    unsafe extern "system" fn refuse(
        context: Handle,
        flags: u64,
        bytes: usize,
        host: *mut c_void,
        status: *mut Status,
    ) -> Handle {
        if REFUSES_MEMORY.load(Ordering::SeqCst) {
            // SAFETY: the pointer is the caller's own.
            unsafe { status.write(sys::MEM_OBJECT_ALLOCATION_FAILURE) };
            return null_mut();
        }
        // SAFETY: the arguments are the caller's own.
        unsafe { (own().clCreateBuffer)(context, flags, bytes, host, status) }
    }
    let Some((backend, device)) = changed(|functions| functions.clCreateBuffer = refuse) else { return };
    let mut engine = open(&backend, &device);
    REFUSES_MEMORY.store(true, Ordering::SeqCst);
    let error = sum(&mut engine, 5000).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
    REFUSES_MEMORY.store(false, Ordering::SeqCst);
    assert_eq!(sum(&mut engine, 5000).unwrap(), [2.0; 5000]);
}

#[test]
fn a_kernel_that_this_driver_does_not_compile() {
    unsafe extern "system" fn fail(
        _: Handle,
        _: u32,
        _: *const Handle,
        _: *const c_char,
        _: NoCallback,
        _: *mut c_void,
    ) -> Status {
        -11
    }
    let Some((backend, device)) = changed(|functions| functions.clBuildProgram = fail) else { return };
    let mut engine = open(&backend, &device);
    // A text that is in no cache.
    let text = "KERNEL never(GLOBAL u32 *x) { *x = 20261116u; }";
    let kernel = Kernel::generated("never", text.into(), "never");
    let context = engine.context_mut();
    let place = context.scratch(4).unwrap();
    let mut arguments = panoply_c_gpu::arguments::Arguments::new().address(place);
    let error = context.launch(&kernel, panoply_c_gpu::driver::Launch::new(1, 1), &mut arguments).unwrap_err();
    assert!(matches!(&error, Error::DeviceFault { reason, .. } if reason.contains("does not compile")), "{error}");
}

static TIMED_QUEUES: AtomicUsize = AtomicUsize::new(0);

/// Queues with profiling make every launch slower with some drivers, so they are made only on
/// request.
#[test]
fn times_are_told_where_they_were_asked_for_and_cost_nothing_elsewhere() {
    unsafe extern "system" fn count(context: Handle, device: Handle, properties: u64, status: *mut Status) -> Handle {
        TIMED_QUEUES.fetch_add(usize::from(properties & sys::QUEUE_PROFILING_ENABLE != 0), Ordering::SeqCst);
        // SAFETY: the arguments are the caller's own.
        unsafe { (own().clCreateCommandQueue)(context, device, properties, status) }
    }
    let Some((backend, device)) = changed(|functions| functions.clCreateCommandQueue = count) else { return };
    let numbers = Tensor::from_vec(vec![1.0_f32; 1 << 16], [1 << 16]).unwrap();
    let time = |backend: &OpenClBackend| {
        let mut engine = open(backend, &device);
        engine.submit(&mut vec![panoply_core::Item { token: 1, op: Map::neg(&numbers).into_op().unwrap() }]);
        let mut finished = Vec::new();
        while engine.poll(&mut finished, std::time::Duration::from_millis(10)) > 0 {}
        let done = finished.pop().unwrap();
        assert!(done.result.is_ok(), "{:?}", done.result);
        done.device_time
    };
    assert_eq!((time(&backend), TIMED_QUEUES.load(Ordering::SeqCst)), (None, 0));
    let told = time(&backend.timed());
    assert!(told.is_some_and(|time| !time.is_zero()), "{told:?}");
    assert_eq!(TIMED_QUEUES.load(Ordering::SeqCst), 3);
}

static IS_LOST: AtomicBool = AtomicBool::new(false);

#[test]
fn a_lost_device_says_so_and_can_be_opened_again() {
    unsafe extern "system" fn lose(
        event: Handle,
        what: u32,
        bytes: usize,
        value: *mut c_void,
        needed: *mut usize,
    ) -> Status {
        if IS_LOST.load(Ordering::SeqCst) && what == sys::EVENT_COMMAND_EXECUTION_STATUS {
            // SAFETY: the pointer is the caller's own.
            unsafe { value.cast::<Status>().write(sys::OUT_OF_RESOURCES) };
            return sys::SUCCESS;
        }
        // SAFETY: the arguments are the caller's own.
        unsafe { (own().clGetEventInfo)(event, what, bytes, value, needed) }
    }
    let Some((backend, device)) = changed(|functions| functions.clGetEventInfo = lose) else { return };
    let mut engine = open(&backend, &device);
    assert_eq!(sum(&mut engine, 3).unwrap(), [2.0; 3]);
    IS_LOST.store(true, Ordering::SeqCst);
    let error = sum(&mut engine, 3).unwrap_err();
    assert!(matches!(error, Error::DeviceLost { .. }), "{error}");
    assert!(matches!(engine.health().fault, Some(Error::DeviceLost { .. })));
    IS_LOST.store(false, Ordering::SeqCst);
    assert!(sum(&mut engine, 3).is_err(), "an engine that lost its device does not come back by itself");
    drop(engine);
    assert_eq!(sum(&mut open(&backend, &device), 3).unwrap(), [2.0; 3]);
}

/// The first device's compiler for threads without warps, with binaries.
fn compiler() -> Option<ProgramCompiler> {
    first_compiler(false, Warps::ALONE)
}

/// The first device's compiler for these warps; its images contain only texts.
pub(crate) fn compiler_for(warps: Warps) -> Option<ProgramCompiler> {
    first_compiler(true, warps)
}

fn first_compiler(text_only: bool, warps: Warps) -> Option<ProgramCompiler> {
    let library = Library::load(LOADERS).ok()?;
    let found: Vec<DiscoveredDevice> = match find(&library, &Limits::default()) {
        Ok(found) => found,
        Err(absence) => {
            println!("skipped: {absence}");
            return None;
        }
    };
    let context = Arc::new(Context::new(&library, found[0].handle.0).unwrap());
    let mut facts = found[0].facts.clone();
    facts.text_only = text_only;
    Some(ProgramCompiler::new(&context, found[0].handle, &facts, warps))
}

/// With a cache from another driver, or a damaged one, the text in it is compiled again.
#[test]
fn a_binary_of_another_driver_costs_time_and_nothing_else() {
    let Some(compiler) = compiler() else { return };
    let text =
        Kernel::generated("own", "KERNEL own(GLOBAL u32 *x) { *x = 7u; }".into(), "own").source(compiler.target());
    let image = compiler.compile(&text).unwrap();
    assert!(image.len() > 8 + text.len(), "the driver gives binaries");
    assert!(compiler.load(&image).unwrap().kernel(c"panoply_entry_own").is_ok());
    let mut foreign = image[..8 + text.len()].to_vec();
    foreign.extend(b"made by another driver");
    assert!(compiler.load(&foreign).unwrap().kernel(c"panoply_entry_own").is_ok());
    assert!(compiler.load(&image[..20]).is_err(), "nothing is left of the text");
    assert!(compiler.identity().contains("PANOPLY") || !compiler.identity().is_empty());
}

/// Errors that only a kernel finds reach the host through words of pinned host memory: several
/// times, and for one op alone.
#[test]
fn complaints_of_kernels_reach_the_host() {
    let Some((backend, device)) = changed(|_| {}) else { return };
    let mut engine = open(&backend, &device);
    let rows = Tensor::from_vec(vec![1.0_f32, 2.0, 3.0], [3]).unwrap();
    for round in 0..3 {
        let bad = Tensor::from_vec(vec![0_i32, 9], [2]).unwrap();
        let moved = panoply_core::op::compute::Transfer::to_device(&bad, device.id).into_op().unwrap();
        let mut batch = vec![panoply_core::Item { token: 1, op: moved }];
        engine.submit(&mut batch);
        let mut finished = Vec::new();
        while finished.is_empty() {
            engine.poll(&mut finished, std::time::Duration::from_millis(10));
        }
        let resident = finished.pop().unwrap().result.unwrap().into_tensor().unwrap();
        let error = run_one(&mut engine, Gather::new(&rows, &resident, 0).into_op().unwrap()).unwrap_err();
        assert!(error.to_string().contains('9'), "round {round}: {error}");
        let good = Tensor::from_vec(vec![2_i32, 0], [2]).unwrap();
        let got = run_one(&mut engine, Gather::new(&rows, &good, 0).into_op().unwrap()).unwrap().into_tensor().unwrap();
        assert_eq!(got.to_vec::<f32>().unwrap(), [3.0, 1.0]);
    }
}
