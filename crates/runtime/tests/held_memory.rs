//! Memory that a program asks for: pinned tensors, empty tensors on a device, trimming, and the
//! limits of each device's pools.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use panoply_conformance::virtual_device::{Fault, Script, VirtualBackend, VirtualControl};
use panoply_core::op::compute::{Map, Reduce};
use panoply_core::{Api, DType, DeviceId, Error, Location, MemoryLimits, OpenOptions, Tensor};
use panoply_cpu::CpuBackend;
use panoply_runtime::{BuildError, Builder, RunOptions, Runtime, WorkerLimits};

use crate::support::eventually;

const FIRST: DeviceId = DeviceId { api: Api::SIMULATED, index: 0 };
const SECOND: DeviceId = DeviceId { api: Api::SIMULATED, index: 1 };
const CPU: DeviceId = DeviceId { api: Api::CPU, index: 0 };

/// Two devices with memory of their own.
fn virtual_devices() -> (Builder, Arc<VirtualControl>) {
    let backend = VirtualBackend::new(Arc::new(CpuBackend::new()));
    let backend = backend.device(Script::new().resident()).device(Script::new().resident());
    let control = backend.control(0).unwrap();
    (Runtime::builder().backend(Arc::new(backend)), control)
}

fn cpu(memory: MemoryLimits) -> Runtime {
    let options = OpenOptions { memory, threads: Some(1), ..OpenOptions::default() };
    Runtime::builder().backend(Arc::new(CpuBackend::new())).open_options(options).build().unwrap()
}

#[test]
fn pinned_tensors_are_zeroes_to_be_filled() {
    let (builder, _) = virtual_devices();
    let runtime = builder.build().unwrap();
    let mut batch = runtime.pinned(FIRST, DType::F32, [2, 3]).unwrap();
    assert_eq!((batch.location(), batch.as_slice::<f32>().unwrap()), (Location::Host, &[0.0; 6][..]));
    for round in 1..4 {
        batch.as_mut_slice::<f32>().unwrap().fill(round as f32);
        let sum = runtime.run(Reduce::sum(&batch)).wait().unwrap();
        assert_eq!(sum.as_slice::<f32>().unwrap(), [6.0 * round as f32]);
        eventually("the op has let its input go", || batch.as_mut_slice::<f32>().is_ok());
    }
    let _other = batch.clone();
    let shared = batch.as_mut_slice::<f32>().unwrap_err().to_string();
    assert!(shared.contains("memory that nothing else holds"), "{shared}");
    assert_eq!(runtime.pinned(FIRST, DType::U8, [0]).unwrap().elements(), 0);
    let unknown = runtime.pinned(CPU, DType::F32, [1]).unwrap_err();
    assert!(matches!(unknown, Error::NoSuchDevice { .. }), "{unknown}");
}

#[test]
fn empty_tensors_lie_on_their_device_and_are_zeroes() {
    let (builder, control) = virtual_devices();
    let runtime = builder.build().unwrap();
    let empty = runtime.empty_on(FIRST, DType::I32, [4, 4]).unwrap();
    assert_eq!((empty.location(), control.counters().live_bytes), (Location::Device(FIRST), 64));
    assert!(empty.is_contiguous());
    assert_eq!(empty.as_slice::<i32>().unwrap(), [0; 16]);
    drop(empty);
    let on_cpu = cpu(MemoryLimits::default()).empty_on(CPU, DType::F32, [3]).unwrap();
    assert_eq!(on_cpu.as_slice::<f32>().unwrap(), [0.0; 3]);
}

#[test]
fn each_device_has_its_own_limit() {
    let (builder, _) = virtual_devices();
    let limits = |bytes| MemoryLimits { device_bytes_max: Some(bytes), ..MemoryLimits::default() };
    let options = OpenOptions { memory: limits(1000), ..OpenOptions::default() };
    let runtime = builder.open_options(options).memory_of(SECOND, limits(100)).build().unwrap();
    assert!(runtime.empty_on(FIRST, DType::U8, [500]).is_ok());
    let kept = runtime.empty_on(SECOND, DType::U8, [60]).unwrap();
    let refused = runtime.empty_on(SECOND, DType::U8, [50]).unwrap_err();
    assert!(matches!(&refused, Error::OutOfMemory { asked: 50, free: 40, largest: 40, .. }), "{refused}");
    drop(kept);
    assert!(runtime.empty_on(SECOND, DType::U8, [50]).is_ok());
}

#[test]
fn limits_that_permit_nothing_or_contradict_each_other_are_refused() {
    let build = |memory| Runtime::builder().open_options(OpenOptions { memory, ..OpenOptions::default() }).build();
    let none = MemoryLimits { device_bytes_max: Some(0), ..MemoryLimits::default() };
    let refused = build(none).err().unwrap();
    assert!(matches!(&refused, BuildError::BadLimit { what: "memory.device_bytes_max", .. }), "{refused}");
    let (device_bytes_max, pool_bytes_max) = (Some(10), Some(11));
    let refused = build(MemoryLimits { device_bytes_max, pool_bytes_max, pinned_bytes_max: None }).err().unwrap();
    assert!(matches!(&refused, BuildError::Contradiction { .. }), "{refused}");
    let (builder, _) = virtual_devices();
    assert!(builder.memory_of(FIRST, none).build().is_err());
}

#[test]
fn trimming_frees_what_the_pools_cache() {
    let runtime = cpu(MemoryLimits::default());
    let large = Tensor::zeros(DType::F32, [1 << 18]).unwrap();
    drop(runtime.run(Map::neg(&large)).wait().unwrap());
    assert!(runtime.trim(CPU).unwrap() >= 1 << 20);
    assert_eq!(runtime.trim(CPU).unwrap(), 0);
    let runtime = cpu(MemoryLimits { pool_bytes_max: Some(0), ..MemoryLimits::default() });
    drop(runtime.run(Map::neg(&large)).wait().unwrap());
    assert_eq!(runtime.trim(CPU).unwrap(), 0, "nothing was cached");
    runtime.shutdown(Duration::from_secs(5));
    assert_eq!(runtime.trim(CPU).unwrap_err(), Error::ShuttingDown);
}

#[test]
fn requests_are_answered_between_ops_and_bounded_by_time() {
    let (builder, control) = virtual_devices();
    let limits = WorkerLimits { op_time_max: Duration::from_millis(300), ..WorkerLimits::default() };
    let runtime = builder.limits(limits).build().unwrap();
    let input = Tensor::zeros(DType::F32, [4]).unwrap();
    let busy: Vec<_> = (0..50).map(|_| runtime.run_with(Map::neg(&input), RunOptions::require(FIRST))).collect();
    assert!(runtime.pinned(FIRST, DType::F32, [4]).is_ok());
    busy.into_iter().for_each(|pending| drop(pending.wait().unwrap()));
    // The worker does not come back from the driver's call for longer than a caller waits.
    control.inject(Fault::Block(Duration::from_secs(2)));
    let blocking = runtime.run_with(Map::neg(&input), RunOptions::require(FIRST));
    let refused = runtime.pinned(FIRST, DType::F32, [4]);
    assert!(refused.is_ok() || matches!(refused, Err(Error::Timeout { .. })), "{refused:?}");
    assert!(blocking.wait().is_err());
}

/// A waker that asks for memory on the thread that calls it.
struct AskingWaker {
    runtime: Arc<Runtime>,
    answers: std::sync::Mutex<Vec<Error>>,
}

impl Wake for AskingWaker {
    fn wake(self: Arc<Self>) {
        let asked = [
            self.runtime.pinned(FIRST, DType::F32, [4]).err(),
            self.runtime.empty_on(FIRST, DType::F32, [4]).err(),
            self.runtime.trim(FIRST).err(),
        ];
        *self.answers.lock().unwrap() = asked.into_iter().flatten().collect();
    }
}

#[test]
fn a_thread_of_the_runtime_is_refused_at_once() {
    let (builder, control) = virtual_devices();
    let runtime = Arc::new(builder.build().unwrap());
    let waker = Arc::new(AskingWaker { runtime: Arc::clone(&runtime), answers: Default::default() });
    control.inject(Fault::Slow(Duration::from_millis(50)));
    let mut pending =
        Box::pin(runtime.run_with(Map::neg(&Tensor::zeros(DType::F32, [4]).unwrap()), RunOptions::require(FIRST)));
    let waking = Waker::from(Arc::clone(&waker));
    let mut context = Context::from_waker(&waking);
    assert!(pending.as_mut().poll(&mut context).is_pending());
    eventually("the worker wakes the caller", || waker.answers.lock().unwrap().len() == 3);
    for error in &*waker.answers.lock().unwrap() {
        assert!(error.to_string().contains("a thread of a runtime"), "{error}");
    }
}
