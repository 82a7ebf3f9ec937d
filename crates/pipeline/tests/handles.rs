//! The last handle of a runtime, of a run and of values that ops lend, dropped wherever the runtime
//! or a pipeline calls foreign code: no thread waits for itself, and no item and no op is lost.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use panoply_conformance::virtual_device::{Script, VirtualBackend};
use panoply_core::Tensor;
use panoply_core::op::compute::Transpose;
use panoply_cpu::CpuBackend;
use panoply_pipeline::{Pipeline, Running};
use panoply_runtime::{Pending, Runtime};

use crate::support::eventually;

/// The handle that one place drops, once.
type Last<T> = Arc<Mutex<Option<T>>>;

const ITEMS: u32 = 200;
/// The item at which the handle is dropped.
const AT: u32 = 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallSite {
    Source,
    Stage,
    WideStage,
    Maker,
    Sink,
}

const PLACES: [CallSite; 5] = [CallSite::Source, CallSite::Stage, CallSite::WideStage, CallSite::Maker, CallSite::Sink];

/// A runtime with a slow device.
fn slow() -> Arc<Runtime> {
    let backend = VirtualBackend::new(Arc::new(CpuBackend::new()));
    let backend = backend.device(Script::new().latency(Duration::from_millis(1)));
    Arc::new(Runtime::builder().backend(Arc::new(backend)).build().unwrap())
}

fn op() -> Transpose {
    Transpose::new(&Tensor::from_slice(&[0.0_f32, 1.0, 2.0, 3.0, 4.0, 5.0], [2, 3]).unwrap())
}

fn cpu() -> Arc<Runtime> {
    Arc::new(Runtime::builder().backend(Arc::new(CpuBackend::new())).build().unwrap())
}

/// Drops the handle as soon as it is there, with the lock released.
fn let_go<T>(last: &Last<T>, number: u32) {
    let (start, mut taken) = (Instant::now(), None);
    while number == AT && taken.is_none() && start.elapsed() < Duration::from_secs(5) {
        taken = last.lock().unwrap().take();
        std::thread::yield_now();
    }
    drop(taken);
}

/// A pipeline that drops the handle at one place, over a runtime of its own.
fn pipeline<T: Send + 'static>(place: CallSite, last: &Last<T>) -> Pipeline<Vec<u32>> {
    let at = |here: CallSite| {
        let last = Arc::clone(last);
        move |number: u32| {
            if here == place {
                let_go(&last, number);
            }
        }
    };
    let (source, stage, wide, maker, sink) =
        (at(CallSite::Source), at(CallSite::Stage), at(CallSite::WideStage), at(CallSite::Maker), at(CallSite::Sink));
    let numbers = (0..ITEMS).inspect(move |number| source(*number));
    let stages = Pipeline::builder().source(numbers).map("stage", move |number| {
        stage(number);
        number
    });
    let stages = stages.map("wide", move |number| {
        wide(number);
        number
    });
    let op = move |number: &u32| {
        maker(*number);
        Transpose::new(&Tensor::from_slice(&[*number, *number], [1, 2]).unwrap())
    };
    let stages = stages.parallel(2).op("op", cpu(), op);
    stages
        .map("sink", move |tensor: Tensor| {
            let number = tensor.as_slice::<u32>().unwrap()[0];
            sink(number);
            number
        })
        .collect()
}

fn all_answered(ops: Vec<Pending<Tensor>>) {
    eventually("every op is answered", || ops.iter().all(|op| op.is_done()));
    ops.into_iter().for_each(|op| assert!(op.wait().is_ok(), "dropping a runtime drains it"));
}

#[test]
fn the_last_handle_of_a_runtime_may_go_anywhere_in_a_pipeline() {
    for place in PLACES {
        let runtime = slow();
        let ops: Vec<Pending<Tensor>> = (0..50).map(|_| runtime.run(op())).collect();
        let (gone, last) = (Arc::downgrade(&runtime), Arc::new(Mutex::new(Some(runtime))));
        let start = Instant::now();
        let (items, _) = pipeline(place, &last).run().unwrap();
        assert!(items.into_iter().eq(0..ITEMS), "{place:?}: no item is lost");
        assert!(gone.upgrade().is_none(), "{place:?}");
        all_answered(ops);
        assert!(start.elapsed() < Duration::from_secs(10), "{place:?}: {:?}", start.elapsed());
    }
}

#[test]
fn a_pipeline_that_has_the_last_handle_ends_the_runtime_with_itself() {
    for cancelled in [false, true] {
        let runtime = slow();
        let (gone, start) = (Arc::downgrade(&runtime), Instant::now());
        let make = |number: &u32| Transpose::new(&Tensor::from_slice(&[*number, *number], [1, 2]).unwrap());
        let numbers = Pipeline::builder().source(0..ITEMS).op("op", runtime, make).in_flight(16);
        let running = numbers.map("number", |tensor: Tensor| tensor.as_slice::<u32>().unwrap()[0]).collect().start();
        let running = running.unwrap();
        if cancelled {
            eventually("it is under way", || running.handle().report().stages.iter().all(|stage| stage.taken > 0));
            drop(running);
        } else {
            assert!(running.wait().result.unwrap().into_iter().eq(0..ITEMS));
        }
        eventually("the runtime is gone", || gone.upgrade().is_none());
        assert!(start.elapsed() < Duration::from_secs(10), "cancelled {cancelled}: {:?}", start.elapsed());
    }
}

#[test]
fn a_run_may_be_let_go_by_every_part_of_itself() {
    for place in PLACES {
        let last: Last<Running<Vec<u32>>> = Arc::default();
        let start = Instant::now();
        let running = pipeline(place, &last).start().unwrap();
        let handle = running.handle();
        *last.lock().unwrap() = Some(running);
        eventually("the run is over", || handle.is_over());
        assert!(last.lock().unwrap().is_none(), "{place:?}: it let itself go");
        assert!(start.elapsed() < Duration::from_secs(10), "{place:?}: {:?}", start.elapsed());
        let progress = handle.progress();
        // A source that ends its run while it makes an item has not handed the item out.
        assert!(progress.arrived < u64::from(ITEMS) && progress.taken >= u64::from(AT), "{place:?}: {progress:?}");
    }
}

/// A waker that drops a handle.
struct LetsGo<T>(Last<T>, AtomicUsize);

impl<T: Send + 'static> Wake for LetsGo<T> {
    fn wake(self: Arc<Self>) {
        let_go(&self.0, AT);
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_waker_may_let_a_run_go_that_has_the_last_handle_of_its_runtime() {
    let runtime = slow();
    let gone: Weak<Runtime> = Arc::downgrade(&runtime);
    let mut ops: Vec<Pin<Box<Pending<Tensor>>>> = (0..50).map(|_| Box::pin(runtime.run(op()))).collect();
    let make = |number: &u32| Transpose::new(&Tensor::from_slice(&[*number, *number], [1, 2]).unwrap());
    let numbers = Pipeline::builder().source(0..u32::MAX).op("op", runtime, make).in_flight(16);
    let running = numbers.for_each("nothing", drop).start().unwrap();
    let waker = Arc::new(LetsGo(Arc::new(Mutex::new(Some(running))), AtomicUsize::new(0)));
    let start = Instant::now();
    let woken = Waker::from(Arc::clone(&waker));
    assert!(ops[49].as_mut().poll(&mut Context::from_waker(&woken)).is_pending());
    eventually("the waker has returned", || waker.1.load(Ordering::SeqCst) == 1);
    eventually("every op is answered", || ops.iter().all(|op| op.is_done()));
    eventually("the runtime is gone", || gone.upgrade().is_none());
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}
