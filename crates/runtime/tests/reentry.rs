//! Foreign code that calls back into the runtime, or does not return, at every place where the
//! runtime calls it: no thread waits for ever.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::cell::RefCell;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use panoply_conformance::virtual_device::{Fault, Script, VirtualBackend, VirtualControl};
use panoply_core::op::compute::Transpose;
use panoply_core::{
    Absence, Api, Backend, Describe, DeviceId, DeviceInfo, Engine, Error, Op, OpenOptions, Operation, PartMut, PartRef,
    Result, Support, Tensor, Value,
};
use panoply_cpu::CpuBackend;
use panoply_runtime::{FallbackPolicy, Pending, RunOptions, Runtime, WorkerLimits};

mod handles;

fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(12), "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A callback during the search for devices.
type Hook = Box<dyn Fn() + Send>;

/// A virtual device whose backend calls a hook during the search for devices, and claims that the
/// last device knows extension ops.
struct HookedBackend {
    inner: VirtualBackend,
    hook: Arc<Mutex<Option<Hook>>>,
}

impl Backend for HookedBackend {
    fn api(&self) -> Api {
        self.inner.api()
    }

    fn discover(&self) -> Result<Vec<DeviceInfo>, Absence> {
        let hook = self.hook.lock().unwrap().take();
        hook.into_iter().for_each(|hook| hook());
        self.inner.discover()
    }

    fn supports(&self, device: &DeviceInfo, op: &Op) -> Support {
        match op {
            Op::Extension(_) if device.id.index == 1 => Support::Yes,
            op => self.inner.supports(device, op),
        }
    }

    fn open(&self, device: &DeviceInfo, options: &OpenOptions) -> Result<Box<dyn Engine>> {
        self.inner.open(device, options)
    }
}

struct World {
    runtime: Arc<Runtime>,
    first: Arc<VirtualControl>,
    hook: Arc<Mutex<Option<Hook>>>,
}

fn world(devices: u32, limits: WorkerLimits) -> World {
    let inner = (0..devices)
        .fold(VirtualBackend::new(Arc::new(CpuBackend::new())), |all, _| all.device(Script::new().resident()));
    let (first, hook) = (inner.control(0).unwrap(), Arc::default());
    let backend = Arc::new(HookedBackend { inner, hook: Arc::clone(&hook) });
    let limits = WorkerLimits { reopen_wait_min: Duration::from_millis(1), ..limits };
    let builder = Runtime::builder().backend(backend).limits(limits).fallback(FallbackPolicy::None);
    World { runtime: Arc::new(builder.build().unwrap()), first, hook }
}

fn op() -> Transpose {
    Transpose::new(&Tensor::from_slice(&[0.0_f32, 1.0, 2.0, 3.0, 4.0, 5.0], [2, 3]).unwrap())
}

/// A waker that calls every method of the runtime that takes a lock.
struct Asks(Weak<Runtime>, AtomicUsize);

impl Wake for Asks {
    fn wake(self: Arc<Self>) {
        if let Some(runtime) = self.0.upgrade() {
            let _ = (runtime.backends(), runtime.workers(), runtime.metrics(), runtime.profile());
            let _ = runtime.run(op()).is_done();
            let _ = runtime.rediscover();
            runtime.shutdown(Duration::from_millis(10));
        }
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

type BoxedPending = Pin<Box<Pending<Tensor>>>;

fn awaited(runtime: &Arc<Runtime>, asks: &Arc<Asks>) -> BoxedPending {
    let mut pending = Box::pin(runtime.run(op()));
    assert!(pending.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::clone(asks)))).is_pending());
    pending
}

/// The first device does not answer for a while, and ops wait in its queue and for room in it.
fn crowd(world: &World) -> (Arc<Asks>, Vec<BoxedPending>) {
    world.first.inject(Fault::Block(Duration::from_secs(2)));
    let asks = Arc::new(Asks(Arc::downgrade(&world.runtime), AtomicUsize::new(0)));
    let ops = (0..8).map(|_| awaited(&world.runtime, &asks)).collect();
    (asks, ops)
}

fn small() -> WorkerLimits {
    WorkerLimits { queue_depth_max: 2, batch_max: 1, in_flight_max: 1, ..WorkerLimits::default() }
}

#[test]
fn wakers_may_ask_for_anything_while_a_device_is_retired() {
    let world = world(1, small());
    let (asks, ops) = crowd(&world);
    world.first.set_present(false);
    let runtime = Arc::clone(&world.runtime);
    let looks = std::thread::spawn(move || runtime.rediscover());
    eventually("the search ends", || looks.is_finished());
    eventually("every op is answered", || ops.iter().all(|op| op.is_done()));
    eventually("every waker has returned", || asks.1.load(Ordering::SeqCst) == 8);
}

#[test]
fn wakers_may_ask_for_anything_while_the_runtime_ends() {
    for abort in [false, true] {
        let world = world(1, small());
        let (asks, ops) = crowd(&world);
        let (runtime, start) = (Arc::clone(&world.runtime), Instant::now());
        let ends = std::thread::spawn(move || if abort { runtime.abort() } else { runtime.shutdown(Duration::ZERO) });
        eventually("it ends", || ends.is_finished());
        assert!(start.elapsed() < Duration::from_secs(8));
        eventually("every op is answered", || ops.iter().all(|op| op.is_done()));
        eventually("every waker has returned", || asks.1.load(Ordering::SeqCst) == 8);
    }
}

#[test]
fn a_search_that_does_not_return_keeps_nobody_else() {
    let world = world(1, WorkerLimits::default());
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    let began = Arc::new(OnceLock::new());
    let there = Arc::clone(&began);
    *world.hook.lock().unwrap() = Some(Box::new(move || {
        there.set(()).unwrap();
        let _ = receiver.recv_timeout(Duration::from_secs(30));
    }));
    let runtime = Arc::clone(&world.runtime);
    let looks = std::thread::spawn(move || runtime.rediscover());
    eventually("the backend is asked", || began.get().is_some());
    let runtime = Arc::clone(&world.runtime);
    let others = std::thread::spawn(move || {
        assert_eq!(runtime.backends().len(), 1);
        runtime.run(op()).wait().unwrap();
        assert!(runtime.shutdown(Duration::from_secs(5)).drained);
    });
    eventually("others are served, and the runtime ends", || others.is_finished());
    others.join().unwrap();
    sender.send(()).unwrap();
    assert_eq!(looks.join().unwrap(), Err(Error::ShuttingDown), "what it found comes too late");
}

#[test]
fn a_backend_that_looks_for_devices_while_it_is_asked_for_them_is_told() {
    let world = world(1, WorkerLimits::default());
    let (weak, told) = (Arc::downgrade(&world.runtime), Arc::new(Mutex::new(None)));
    let there = Arc::clone(&told);
    *world.hook.lock().unwrap() = Some(Box::new(move || {
        *there.lock().unwrap() = weak.upgrade().map(|runtime| (runtime.backends().len(), runtime.rediscover()));
    }));
    let runtime = Arc::clone(&world.runtime);
    let looks = std::thread::spawn(move || runtime.rediscover());
    eventually("the search ends", || looks.is_finished());
    assert_eq!(looks.join().unwrap(), Ok(Vec::new()));
    let told = told.lock().unwrap().take().unwrap();
    assert!(matches!(told, (1, Err(Error::InvalidArgument { .. }))), "{told:?}");
    assert_eq!(world.runtime.rediscover(), Ok(Vec::new()));
}

#[test]
fn the_destructor_of_a_threads_local_may_run_ops() {
    struct Last(Arc<Runtime>, std::sync::mpsc::Sender<Result<Tensor>>);
    impl Drop for Last {
        fn drop(&mut self) {
            let _ = self.1.send(self.0.run(op()).wait());
        }
    }
    thread_local! {
        static FIRST: RefCell<Option<Last>> = const { RefCell::new(None) };
        static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
    }
    let world = world(1, WorkerLimits::default());
    // Long enough that the caller parks.
    world.first.inject(Fault::Block(Duration::from_millis(50)));
    let (runtime, (sender, receiver)) = (Arc::clone(&world.runtime), std::sync::mpsc::channel());
    let thread = std::thread::spawn(move || {
        // Thread-locals are dropped in the order of their first use, or in reverse: either way the
        // runtime's own are gone before one of these.
        FIRST.set(Some(Last(Arc::clone(&runtime), sender.clone())));
        let answer = runtime.run(op()).wait().map(drop);
        LAST.set(Some(Last(Arc::clone(&runtime), sender)));
        answer
    });
    thread.join().unwrap().unwrap();
    (0..2).for_each(|_| assert!(receiver.recv_timeout(Duration::from_secs(20)).unwrap().is_ok()));
}

/// An op of a foreign type that panics on the runtime's threads when an input is put into it.
#[derive(Clone, Debug)]
struct Picky(Tensor);

impl Describe for Picky {
    fn name(&self) -> &'static str {
        "picky"
    }
    fn validate(&self) -> Result<()> {
        Ok(())
    }
    fn for_each_part(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        visit((&self.0).into());
    }
    fn for_each_part_mut(&mut self, _visit: &mut dyn FnMut(PartMut<'_>)) {
        if std::thread::current().name().is_some_and(|name| name.starts_with("panoply-")) {
            std::panic::resume_unwind(Box::new("a picky op"));
        }
    }
}

impl Operation for Picky {
    type Output = Tensor;
    fn into_op(self) -> Result<Op> {
        Op::extension(self)
    }
    fn output(value: Value) -> Result<Tensor> {
        value.into_tensor()
    }
}

#[test]
fn an_op_that_panics_when_its_input_arrives_is_told_so_and_leaves_no_trace() {
    let world = world(2, WorkerLimits::default());
    let api = world.runtime.devices().next().unwrap().id.api;
    let there = world.runtime.run_with(op(), RunOptions::require(DeviceId { api, index: 0 })).wait().unwrap();
    let answer = world.runtime.run(Picky(there)).wait();
    assert!(matches!(&answer, Err(Error::InvalidArgument { got, .. }) if got.contains("picky")), "{answer:?}");
    assert!(world.runtime.metrics().devices.iter().all(|device| device.backlog_ns == 0), "it is off the books");
    let start = Instant::now();
    assert!(world.runtime.shutdown(Duration::from_secs(20)).drained);
    assert!(start.elapsed() < Duration::from_secs(10), "nothing is waited for: {:?}", start.elapsed());
}
