//! Foreign code that panics on command, at every place where the runtime calls it: a backend, its
//! engine, memory that a caller lent, wakers, and a listener of events.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::task::{Wake, Waker};
use std::time::Duration;

use panoply_core::{
    Absence, Api, Backend, DeviceId, DeviceInfo, Engine, FinishedOp, Health, Item, MemoryStats, Op, OpenOptions,
    Result, Support, Tensor, Warmth,
};

/// A call from the runtime into foreign code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum CallSite {
    Discover,
    Supports,
    CanRun,
    Warmth,
    Reaches,
    Open,
    Submit,
    Poll,
    Memory,
    Health,
    WarmUp,
    EngineDrop,
    OwnerDrop,
    Wake,
    WakerDrop,
    Event,
    SpanEnter,
    SpanExit,
}

pub const PLACES: [CallSite; 18] = [
    CallSite::Discover,
    CallSite::Supports,
    CallSite::CanRun,
    CallSite::Warmth,
    CallSite::Reaches,
    CallSite::Open,
    CallSite::Submit,
    CallSite::Poll,
    CallSite::Memory,
    CallSite::Health,
    CallSite::WarmUp,
    CallSite::EngineDrop,
    CallSite::OwnerDrop,
    CallSite::Wake,
    CallSite::WakerDrop,
    CallSite::Event,
    CallSite::SpanEnter,
    CallSite::SpanExit,
];

/// The places at which calls panic, and how many more times.
#[derive(Default)]
pub struct Traps {
    /// A bit for each place that is armed.
    armed: AtomicU32,
    left: AtomicU32,
    sprung: AtomicU64,
}

impl Traps {
    /// Makes the next `times` calls at this place panic.
    pub fn arm(&self, place: CallSite, times: u32) {
        self.left.store(times, Ordering::SeqCst);
        self.armed.store(1 << place as u32, Ordering::SeqCst);
    }

    pub fn disarm(&self) {
        self.armed.store(0, Ordering::SeqCst);
    }

    /// Number of calls that have panicked.
    pub fn sprung(&self) -> u64 {
        self.sprung.load(Ordering::SeqCst)
    }

    /// Called at each place; panics if the place is armed.
    pub fn step_on(&self, place: CallSite) {
        if self.armed.load(Ordering::Relaxed) & (1 << place as u32) == 0 || std::thread::panicking() {
            return;
        }
        let one_less = |left: u32| left.checked_sub(1);
        if self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok() {
            self.sprung.fetch_add(1, Ordering::SeqCst);
            // Does not call the panic hook, which would print.
            std::panic::resume_unwind(Box::new(format!("a trap at {place:?}")));
        }
    }
}

/// A backend with traps that forwards to another one.
pub struct TrappedBackend {
    pub inner: Arc<dyn Backend>,
    pub traps: Arc<Traps>,
}

impl Backend for TrappedBackend {
    fn api(&self) -> Api {
        self.inner.api()
    }

    fn discover(&self) -> Result<Vec<DeviceInfo>, Absence> {
        self.traps.step_on(CallSite::Discover);
        self.inner.discover()
    }

    fn supports(&self, device: &DeviceInfo, op: &Op) -> Support {
        self.traps.step_on(CallSite::Supports);
        self.inner.supports(device, op)
    }

    fn can_run(&self, device: &DeviceInfo, op: &Op) -> bool {
        self.traps.step_on(CallSite::CanRun);
        self.inner.can_run(device, op)
    }

    fn warmth(&self, device: &DeviceInfo, op: &Op) -> Warmth {
        self.traps.step_on(CallSite::Warmth);
        self.inner.warmth(device, op)
    }

    fn reaches(&self, device: &DeviceInfo, owner: DeviceId) -> bool {
        self.traps.step_on(CallSite::Reaches);
        self.inner.reaches(device, owner)
    }

    fn open(&self, device: &DeviceInfo, options: &OpenOptions) -> Result<Box<dyn Engine>> {
        self.traps.step_on(CallSite::Open);
        let (inner, traps) = (self.inner.open(device, options)?, Arc::clone(&self.traps));
        Ok(Box::new(TrappedEngine { inner, traps }))
    }
}

struct TrappedEngine {
    inner: Box<dyn Engine>,
    traps: Arc<Traps>,
}

impl Engine for TrappedEngine {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn submit(&mut self, batch: &mut Vec<Item>) {
        self.traps.step_on(CallSite::Submit);
        self.inner.submit(batch);
    }

    fn poll(&mut self, finished: &mut Vec<FinishedOp>, wait_max: Duration) -> usize {
        let under_way = self.inner.poll(finished, wait_max);
        self.traps.step_on(CallSite::Poll);
        under_way
    }

    fn memory(&mut self) -> MemoryStats {
        self.traps.step_on(CallSite::Memory);
        self.inner.memory()
    }

    fn health(&mut self) -> Health {
        self.traps.step_on(CallSite::Health);
        self.inner.health()
    }

    fn warm_up(&mut self, op: &Op) {
        self.traps.step_on(CallSite::WarmUp);
        self.inner.warm_up(op);
    }
}

impl Drop for TrappedEngine {
    fn drop(&mut self) {
        self.traps.step_on(CallSite::EngineDrop);
    }
}

struct Owner([f32; 6], Arc<Traps>);

impl AsRef<[f32]> for Owner {
    fn as_ref(&self) -> &[f32] {
        &self.0
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.1.step_on(CallSite::OwnerDrop);
    }
}

/// A small matrix whose memory has a trap in its destructor.
pub fn matrix(traps: &Arc<Traps>) -> Tensor {
    let owner = Owner([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], Arc::clone(traps));
    Tensor::from_owner::<f32, _>(owner, [2, 3]).unwrap()
}

/// A waker with traps that unparks the thread that made it.
pub fn waker(traps: &Arc<Traps>) -> Waker {
    struct TrappedThread(Arc<Traps>, std::thread::Thread);
    impl Wake for TrappedThread {
        fn wake(self: Arc<Self>) {
            self.wake_by_ref();
        }

        fn wake_by_ref(self: &Arc<Self>) {
            self.0.step_on(CallSite::Wake);
            self.1.unpark();
        }
    }
    impl Drop for TrappedThread {
        fn drop(&mut self) {
            self.0.step_on(CallSite::WakerDrop);
        }
    }
    Waker::from(Arc::new(TrappedThread(Arc::clone(traps), std::thread::current())))
}

/// A listener of events with traps.
pub struct Listener(pub Arc<Traps>);

impl tracing::Subscriber for Listener {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.step_on(CallSite::Event);
    }

    fn enter(&self, _: &tracing::span::Id) {
        self.0.step_on(CallSite::SpanEnter);
    }

    fn exit(&self, _: &tracing::span::Id) {
        self.0.step_on(CallSite::SpanExit);
    }
}
