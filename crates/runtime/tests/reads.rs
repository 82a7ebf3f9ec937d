//! Reading a tensor that lies on a device: it is fetched once, for a bounded time, and never on a
//! thread that must not wait.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use panoply_conformance::virtual_device::{Fault, Script, VirtualBackend, VirtualControl};
use panoply_core::op::compute::{MatMul, Transpose};
use panoply_core::{
    Absence, Api, Backend, DeviceInfo, Engine, Error, ErrorKind, FinishedOp, Health, Item, Location, MemoryStats, Op,
    OpenOptions, Result, Support, Tensor,
};
use panoply_cpu::CpuBackend;
use panoply_runtime::{FallbackPolicy, Runtime, WorkerLimits};

use crate::support::eventually;

/// A device with memory of its own, where outputs stay.
fn backend() -> (VirtualBackend, Arc<VirtualControl>) {
    let backend = VirtualBackend::new(Arc::new(CpuBackend::new())).device(Script::new().resident());
    let control = backend.control(0).unwrap();
    (backend, control)
}

fn limits() -> WorkerLimits {
    WorkerLimits {
        op_time_max: Duration::from_millis(300),
        reopen_wait_min: Duration::from_millis(1),
        reopen_wait_max: Duration::from_millis(4),
        ..WorkerLimits::default()
    }
}

fn runtime() -> (Runtime, Arc<VirtualControl>) {
    let (backend, control) = backend();
    let builder = Runtime::builder().backend(Arc::new(backend)).limits(limits()).fallback(FallbackPolicy::None);
    (builder.build().unwrap(), control)
}

fn op() -> Transpose {
    Transpose::new(&Tensor::from_vec(vec![1.0_f32, 2.0, 3.0, 4.0], [2, 2]).unwrap())
}

/// The result of reading a tensor, once it was read.
type Answer = Option<Result<Vec<f32>>>;

#[test]
fn the_first_program_runs_unchanged_on_a_device_with_memory_of_its_own() {
    let (runtime, control) = runtime();
    let a = Tensor::from_vec(vec![1.0_f32, 2.0, 3.0, 4.0], [2, 2]).unwrap();
    let product = runtime.run(MatMul::new(&a, &a)).wait().unwrap();
    assert_eq!(product.as_slice::<f32>().unwrap(), [7.0, 10.0, 15.0, 22.0]);
    assert!(matches!(product.location(), Location::Device(_)), "it stays for the next op");
    assert_eq!(control.counters().submitted, 2, "the op, and one transfer");
    assert_eq!(product.clone().to_vec::<f32>().unwrap(), [7.0, 10.0, 15.0, 22.0]);
    let turned = product.transpose().unwrap();
    assert_eq!(turned.contiguous().unwrap().as_slice::<f32>().unwrap(), [7.0, 15.0, 10.0, 22.0]);
    assert_eq!(control.counters().submitted, 2, "what was read before is free");
    let again = runtime.run(Transpose::new(&product)).wait().unwrap();
    assert_eq!(again.as_slice::<f32>().unwrap(), [7.0, 15.0, 10.0, 22.0]);
}

#[test]
fn a_read_takes_its_turn_in_a_full_queue() {
    let (backend, _) = backend();
    let limits = WorkerLimits { queue_depth_max: 2, batch_max: 1, in_flight_max: 1, ..WorkerLimits::default() };
    let runtime = Runtime::builder().backend(Arc::new(backend)).limits(limits).build().unwrap();
    let turned: Vec<Tensor> = (0..4).map(|_| runtime.run(op()).wait().unwrap()).collect();
    std::thread::scope(|scope| {
        for tensor in &turned {
            scope.spawn(|| assert_eq!(tensor.as_slice::<f32>().unwrap(), [1.0, 3.0, 2.0, 4.0]));
        }
        let busy: Vec<_> = (0..200).map(|_| runtime.run(op())).collect();
        busy.into_iter().for_each(|pending| drop(pending.wait().unwrap()));
    });
}

#[test]
fn a_lost_or_silent_device_is_an_error_within_a_bound() {
    for fault in [Fault::Lost, Fault::Error, Fault::Hang, Fault::Forget] {
        let (runtime, control) = runtime();
        let turned = runtime.run(op()).wait().unwrap();
        control.inject(fault);
        let start = Instant::now();
        let error = turned.as_slice::<f32>().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Device, "{fault:?} gave {error}");
        assert!(start.elapsed() < Duration::from_secs(10), "{fault:?}");
        if fault != Fault::Error {
            let error = turned.as_slice::<f32>().unwrap_err();
            assert!(error.to_string().contains("lost when the device was opened again"), "{fault:?} gave {error}");
        }
        let next = runtime.run(op()).wait().unwrap();
        assert_eq!(next.as_slice::<f32>().unwrap(), [1.0, 3.0, 2.0, 4.0], "{fault:?}");
    }
}

#[test]
fn the_end_of_the_runtime_is_a_clear_error_and_what_was_read_stays() {
    let (runtime, _) = runtime();
    let (read, unread) = (runtime.run(op()).wait().unwrap(), runtime.run(op()).wait().unwrap());
    assert_eq!(read.as_slice::<f32>().unwrap(), [1.0, 3.0, 2.0, 4.0]);
    runtime.shutdown(Duration::from_secs(5));
    let expect_ended = |tensor: &Tensor| {
        let error = tensor.as_slice::<f32>().unwrap_err();
        let is_unavailable = matches!(error, Error::DeviceUnavailable { .. });
        assert!(is_unavailable && error.to_string().contains("has ended"), "{error}");
    };
    expect_ended(&unread);
    drop(runtime);
    expect_ended(&unread);
    assert_eq!(read.as_slice::<f32>().unwrap(), [1.0, 3.0, 2.0, 4.0]);
}

/// A waker that reads a tensor on the thread that calls it.
struct ReadingWaker {
    tensor: Tensor,
    answer: Mutex<Answer>,
}

impl Wake for ReadingWaker {
    fn wake(self: Arc<Self>) {
        *self.answer.lock().unwrap() = Some(self.tensor.to_vec::<f32>());
    }
}

#[test]
fn a_thread_of_the_runtime_does_not_wait_for_a_device() {
    let (runtime, control) = runtime();
    let tensor = runtime.run(op()).wait().unwrap();
    let waker = Arc::new(ReadingWaker { tensor, answer: Mutex::default() });
    control.inject(Fault::Slow(Duration::from_millis(50)));
    let mut pending = Box::pin(runtime.run(op()));
    let waking = Waker::from(Arc::clone(&waker));
    let mut context = Context::from_waker(&waking);
    assert!(Pin::as_mut(&mut pending).poll(&mut context).is_pending());
    eventually("the worker wakes the caller", || waker.answer.lock().unwrap().is_some());
    let answer = waker.answer.lock().unwrap().take();
    assert!(matches!(answer, Some(Err(Error::NotOnHost { .. }))), "{answer:?}");
    assert_eq!(waker.tensor.as_slice::<f32>().unwrap(), [1.0, 3.0, 2.0, 4.0], "another thread may");
}

/// A tensor that an engine reads in `submit`, and what that gave.
#[derive(Default)]
struct ReadInSubmit {
    tensor: Mutex<Option<Tensor>>,
    answer: Mutex<Answer>,
}

struct ReadingBackend(VirtualBackend, Arc<ReadInSubmit>);

struct ReadingEngine(Box<dyn Engine>, Arc<ReadInSubmit>);

impl Backend for ReadingBackend {
    fn api(&self) -> Api {
        self.0.api()
    }

    fn discover(&self) -> Result<Vec<DeviceInfo>, Absence> {
        self.0.discover()
    }

    fn supports(&self, device: &DeviceInfo, op: &Op) -> Support {
        self.0.supports(device, op)
    }

    fn open(&self, device: &DeviceInfo, options: &OpenOptions) -> Result<Box<dyn Engine>> {
        Ok(Box::new(ReadingEngine(self.0.open(device, options)?, Arc::clone(&self.1))))
    }
}

impl Engine for ReadingEngine {
    fn info(&self) -> &DeviceInfo {
        self.0.info()
    }

    fn submit(&mut self, batch: &mut Vec<Item>) {
        if let Some(tensor) = self.1.tensor.lock().unwrap().take() {
            *self.1.answer.lock().unwrap() = Some(tensor.to_vec::<f32>());
        }
        self.0.submit(batch);
    }

    fn poll(&mut self, finished: &mut Vec<FinishedOp>, wait_max: Duration) -> usize {
        self.0.poll(finished, wait_max)
    }

    fn memory(&mut self) -> MemoryStats {
        self.0.memory()
    }

    fn health(&mut self) -> Health {
        self.0.health()
    }
}

#[test]
fn a_read_inside_submit_fails_at_once() {
    let read = Arc::new(ReadInSubmit::default());
    let backend = ReadingBackend(backend().0, Arc::clone(&read));
    let runtime = Runtime::builder().backend(Arc::new(backend)).limits(limits()).build().unwrap();
    let turned = runtime.run(op()).wait().unwrap();
    *read.tensor.lock().unwrap() = Some(turned);
    assert_eq!(runtime.run(op()).wait().unwrap().as_slice::<f32>().unwrap(), [1.0, 3.0, 2.0, 4.0]);
    let answer = read.answer.lock().unwrap().take();
    assert!(matches!(answer, Some(Err(Error::NotOnHost { .. }))), "{answer:?}");
}
