//! Foreign code that misbehaves: a backend, an owner of memory, and a waker, each of whose methods
//! or destructor may panic, or may keep the thread that called it while the rest of the world goes
//! on.
//!
//! There is only one thread. A call that does not return is simulated by a call that lets the rest
//! of the world take steps before it returns: among them a supervisor's look, which replaces the
//! driver that is inside, and the steps of its replacement.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

use panoply_conformance::values::Random;
use panoply_core::{
    Absence, Api, Backend, DeviceId, DeviceInfo, Engine, FinishedOp, Health, Item, MemoryStats, Op, OpenOptions,
    Result, Support, Tensor, Warmth,
};

/// The probability of a misbehaviour at a call, in ten-thousandths.
#[derive(Clone, Copy, Default)]
pub(super) struct FaultRates {
    pub(super) panic: u64,
    pub(super) stuck: u64,
}

type HookFn = Rc<dyn Fn()>;

thread_local! {
    static RANDOM: RefCell<Random> = RefCell::new(Random::new(0));
    static CHANCES: Cell<FaultRates> = const { Cell::new(FaultRates { panic: 0, stuck: 0 }) };
    /// The steps of the world while a call does not return.
    static MEANWHILE: RefCell<Option<HookFn>> = const { RefCell::new(None) };
    static PANICS: Cell<u64> = const { Cell::new(0) };
}

/// Makes foreign code misbehave with these chances.
pub(super) fn misbehave(seed: u64, chances: FaultRates, meanwhile: HookFn) {
    RANDOM.set(Random::new(seed));
    CHANCES.set(chances);
    MEANWHILE.set(Some(meanwhile));
}

/// Makes foreign code behave.
pub(super) fn calm() {
    CHANCES.set(FaultRates::default());
}

/// How often foreign code has panicked on this thread.
pub(super) fn panics() -> u64 {
    PANICS.get()
}

fn draw(chance: u64) -> bool {
    chance > 0 && RANDOM.with_borrow_mut(|random| random.below(10_000)) < chance
}

/// Foreign code that may panic.
fn may_panic() {
    // A second panic while the first one unwinds would end the process, in any code.
    if !std::thread::panicking() && draw(CHANCES.get().panic) {
        PANICS.set(PANICS.get() + 1);
        // Does not call the panic hook, which would print.
        std::panic::resume_unwind(Box::new("foreign code panics"));
    }
}

/// Foreign code that may panic or keep its caller.
fn call() {
    may_panic();
    if !std::thread::panicking() && draw(CHANCES.get().stuck) {
        let meanwhile = MEANWHILE.with_borrow(Clone::clone);
        if let Some(meanwhile) = meanwhile {
            meanwhile();
        }
    }
    may_panic();
}

/// A backend that misbehaves, and otherwise forwards to another one.
pub(super) struct Misbehaving(pub(super) Arc<dyn Backend>);

impl Backend for Misbehaving {
    fn api(&self) -> Api {
        self.0.api()
    }

    fn discover(&self) -> Result<Vec<DeviceInfo>, Absence> {
        self.0.discover()
    }

    fn supports(&self, device: &DeviceInfo, op: &Op) -> Support {
        may_panic();
        self.0.supports(device, op)
    }

    fn can_run(&self, device: &DeviceInfo, op: &Op) -> bool {
        may_panic();
        self.0.can_run(device, op)
    }

    fn warmth(&self, device: &DeviceInfo, op: &Op) -> Warmth {
        may_panic();
        self.0.warmth(device, op)
    }

    fn reaches(&self, device: &DeviceInfo, owner: DeviceId) -> bool {
        may_panic();
        self.0.reaches(device, owner)
    }

    fn open(&self, device: &DeviceInfo, options: &OpenOptions) -> Result<Box<dyn Engine>> {
        call();
        let engine = self.0.open(device, options)?;
        call();
        Ok(Box::new(MisbehavingEngine(engine)))
    }
}

struct MisbehavingEngine(Box<dyn Engine>);

impl Engine for MisbehavingEngine {
    fn info(&self) -> &DeviceInfo {
        self.0.info()
    }

    fn submit(&mut self, batch: &mut Vec<Item>) {
        call();
        self.0.submit(batch);
        call();
    }

    fn poll(&mut self, finished: &mut Vec<FinishedOp>, wait_max: Duration) -> usize {
        call();
        let under_way = self.0.poll(finished, wait_max);
        call();
        under_way
    }

    fn memory(&mut self) -> MemoryStats {
        call();
        self.0.memory()
    }

    fn health(&mut self) -> Health {
        call();
        self.0.health()
    }

    fn warm_up(&mut self, op: &Op) {
        call();
        self.0.warm_up(op);
    }
}

impl Drop for MisbehavingEngine {
    fn drop(&mut self) {
        call();
    }
}

/// Memory whose destructor misbehaves.
struct Owner([i32; 6]);

impl AsRef<[i32]> for Owner {
    fn as_ref(&self) -> &[i32] {
        &self.0
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        call();
    }
}

/// A small matrix in memory whose destructor misbehaves.
pub(super) fn matrix() -> Tensor {
    Tensor::from_owner::<i32, _>(Owner([1, 2, 3, 4, 5, 6]), [2, 3]).unwrap()
}

/// A waker that misbehaves.
pub(super) fn waker() -> Waker {
    struct Misbehaves;
    impl Wake for Misbehaves {
        fn wake(self: Arc<Self>) {
            call();
        }

        fn wake_by_ref(self: &Arc<Self>) {
            call();
        }
    }
    impl Drop for Misbehaves {
        fn drop(&mut self) {
            call();
        }
    }
    Waker::from(Arc::new(Misbehaves))
}
