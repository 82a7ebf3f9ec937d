//! Drivers that are replaced while they are inside foreign code, and then return: they leave the
//! lane to their replacement.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use panoply_core::op::compute::Transpose;
use panoply_core::{
    Absence, Api, Backend, DeviceInfo, Engine, Error, FinishedOp, Health, Item, MemoryStats, Op, OpenOptions, Result,
    Support, Tensor,
};
use panoply_cpu::CpuBackend;
use panoply_runtime::{FallbackPolicy, HealthRules, Runtime, WorkerLimits, WorkerState};

#[path = "replaced/callers.rs"]
mod callers;
#[path = "replaced/crowds.rs"]
mod crowds;

/// Long enough for an ordinary op on a busy machine.
const OP_TIME_MAX: Duration = Duration::from_millis(250);
/// No stuck call lasts longer than this.
const STUCK_MAX: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Open,
    Submit,
    Poll,
    Health,
    Drop,
}

/// Makes the next call of a kind get stuck for a while, and possibly fail when it returns.
#[derive(Default)]
struct Control {
    next: Mutex<Vec<(Call, bool)>>,
    /// The next submission panics, which loses the engine.
    lose_next: AtomicBool,
    /// The number of stuck calls that are released; later ones stay stuck.
    let_go: AtomicU64,
    /// Number of stuck calls so far.
    stuck: AtomicU64,
    /// Number of stuck calls that have returned.
    back: AtomicU64,
    submitted: AtomicU64,
}

impl Control {
    fn get_stuck(&self, call: Call, fails: bool) {
        self.next.lock().unwrap().push((call, fails));
    }

    /// Returns whether the call must fail.
    fn call(&self, call: Call) -> bool {
        if call == Call::Submit && self.lose_next.swap(false, Ordering::SeqCst) {
            return true;
        }
        let mut next = self.next.lock().unwrap();
        let stuck = next.iter().position(|(wanted, _)| *wanted == call).map(|index| next.remove(index));
        drop(next);
        if stuck.is_some() {
            let (number, start) = (self.stuck.fetch_add(1, Ordering::SeqCst), Instant::now());
            while self.let_go.load(Ordering::SeqCst) <= number && start.elapsed() < STUCK_MAX {
                std::thread::sleep(Duration::from_millis(1));
            }
            self.back.fetch_add(1, Ordering::SeqCst);
        }
        stuck.is_some_and(|(_, fails)| fails)
    }

    /// Releases this many stuck calls, and waits until they have returned.
    fn let_go(&self, count: u64) {
        self.let_go.store(count, Ordering::SeqCst);
        let start = Instant::now();
        while self.back.load(Ordering::SeqCst) < count {
            assert!(start.elapsed() < Duration::from_secs(20));
            std::thread::sleep(Duration::from_millis(1));
        }
        // A little longer, for the code that runs after the call.
        std::thread::sleep(Duration::from_millis(20));
    }
}

struct StuckBackend(CpuBackend, Arc<Control>);

impl Backend for StuckBackend {
    fn api(&self) -> Api {
        self.0.api()
    }

    fn discover(&self) -> Result<Vec<DeviceInfo>, Absence> {
        let mut devices = self.0.discover()?;
        devices.truncate(1);
        Ok(devices)
    }

    fn supports(&self, device: &DeviceInfo, op: &Op) -> Support {
        self.0.supports(device, op)
    }

    fn open(&self, device: &DeviceInfo, options: &OpenOptions) -> Result<Box<dyn Engine>> {
        if self.1.call(Call::Open) {
            return Err(Error::DeviceUnavailable { device: device.id, reason: "asked to fail".to_owned() });
        }
        Ok(Box::new(StuckEngine(self.0.open(device, options)?, Arc::clone(&self.1))))
    }
}

struct StuckEngine(Box<dyn Engine>, Arc<Control>);

impl Engine for StuckEngine {
    fn info(&self) -> &DeviceInfo {
        self.0.info()
    }

    fn submit(&mut self, batch: &mut Vec<Item>) {
        self.1.submitted.fetch_add(batch.len() as u64, Ordering::SeqCst);
        if self.1.call(Call::Submit) {
            std::panic::resume_unwind(Box::new("asked to fail"));
        }
        self.0.submit(batch);
    }

    fn poll(&mut self, finished: &mut Vec<FinishedOp>, wait_max: Duration) -> usize {
        if self.1.call(Call::Poll) {
            std::panic::resume_unwind(Box::new("asked to fail"));
        }
        self.0.poll(finished, wait_max)
    }

    fn memory(&mut self) -> MemoryStats {
        self.0.memory()
    }

    fn health(&mut self) -> Health {
        let fault = self
            .1
            .call(Call::Health)
            .then(|| Error::DeviceLost { device: self.0.info().id, reason: "asked to fail".to_owned() });
        Health { fault, ..self.0.health() }
    }
}

impl Drop for StuckEngine {
    fn drop(&mut self) {
        self.1.call(Call::Drop);
    }
}

fn runtime(look_every: Duration, reopen_attempts_max: u32) -> (Runtime, Arc<Control>) {
    let control = Arc::new(Control::default());
    let limits = WorkerLimits {
        op_time_max: OP_TIME_MAX,
        reopen_wait_min: Duration::from_millis(1),
        reopen_wait_max: Duration::from_millis(2),
        reopen_attempts_max,
        stuck_threads_max: 4,
        ..WorkerLimits::default()
    };
    let rules = HealthRules { look_every, error_percent_max: 100.0, ..HealthRules::default() };
    let backend = Arc::new(StuckBackend(CpuBackend::new(), Arc::clone(&control)));
    let builder = Runtime::builder().backend(backend).limits(limits).health(rules).fallback(FallbackPolicy::None);
    (builder.build().unwrap(), control)
}

fn op() -> Transpose {
    Transpose::new(&Tensor::from_slice(&[0.0_f32, 1.0, 2.0, 3.0, 4.0, 5.0], [2, 3]).unwrap())
}

/// Runs an op, which must be answered soon, and returns whether the answer was right.
fn run(runtime: &Runtime) -> Result<(), Error> {
    let start = Instant::now();
    let pending = runtime.run(op());
    while !pending.is_done() {
        assert!(start.elapsed() < Duration::from_secs(10), "an op was never answered: {:?}", runtime.workers());
        std::thread::sleep(Duration::from_micros(200));
    }
    pending.wait().map(|turned| assert_eq!(turned.as_slice::<f32>().unwrap(), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]))
}

/// Runs ops until one is answered correctly.
fn serve(runtime: &Runtime) {
    let start = Instant::now();
    while run(runtime).is_err() {
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", runtime.workers());
    }
}

#[test]
fn a_driver_that_comes_back_late_leaves_the_device_to_its_replacement() {
    for call in [Call::Health, Call::Submit, Call::Poll, Call::Open, Call::Drop] {
        for fails in [false, true] {
            // A driver that goes on after a failure gives the device up at its second one, so late
            // failures would be noticed.
            let (runtime, control) = runtime(Duration::from_millis(1), 1);
            serve(&runtime);
            control.get_stuck(call, fails);
            // A lost device drops its engine and is opened again.
            control.lose_next.store(matches!(call, Call::Open | Call::Drop), Ordering::SeqCst);
            // While the call is stuck, and after it has returned, ops are answered, and those after
            // the replacement correctly.
            let start = Instant::now();
            while runtime.workers()[0].counters.replaced == 0 {
                let _ = run(&runtime);
                assert!(start.elapsed() < STUCK_MAX, "{call:?} is never replaced: {:?}", runtime.workers());
            }
            serve(&runtime);
            let what = format!("{call:?}, fails: {fails}: {:?}", runtime.workers());
            control.let_go(1);
            assert_eq!(runtime.workers()[0].state, WorkerState::Ready, "{what}");
            for _ in 0..20 {
                // Far enough apart for the worker to sleep, and to be woken by its own handle.
                std::thread::sleep(Duration::from_millis(2));
                run(&runtime).unwrap_or_else(|error| panic!("{error:?}: {what}"));
            }
            let shutdown = runtime.shutdown(Duration::from_secs(5));
            assert_eq!((shutdown.drained, shutdown.threads_left), (true, 0), "{what}");
            let counters = runtime.workers()[0].counters;
            let ended = counters.completed + counters.failed + counters.cancelled + counters.moved;
            assert_eq!(counters.accepted, ended, "{what}");
        }
    }
}

#[test]
fn a_replaced_driver_takes_no_ops() {
    let (runtime, control) = runtime(Duration::from_millis(1), 10);
    serve(&runtime);
    control.get_stuck(Call::Health, false);
    // The health is asked for between batches. The driver that asks gets stuck, and is replaced.
    while runtime.workers()[0].counters.replaced == 0 {
        let _ = run(&runtime);
    }
    serve(&runtime);
    let expected = control.submitted.load(Ordering::SeqCst) + 100;
    (0..50).for_each(|_| run(&runtime).unwrap());
    control.let_go(1);
    (0..50).for_each(|_| run(&runtime).unwrap());
    assert_eq!(control.submitted.load(Ordering::SeqCst), expected, "each op went to one engine");
}

#[test]
fn threads_that_came_back_do_not_count_as_stuck() {
    // Seven slow ops, one after the other. At most four threads may be stuck at once, or be
    // replaced in a row.
    let (runtime, control) = runtime(Duration::from_secs(1), 3);
    for round in 0..7 {
        serve(&runtime);
        control.get_stuck(Call::Submit, false);
        let answer = run(&runtime);
        assert!(matches!(answer, Err(Error::Timeout { .. })), "round {round}: {answer:?}");
        control.let_go(round + 1);
    }
    serve(&runtime);
    assert!(runtime.workers()[0].counters.replaced >= 7);
    assert_eq!(runtime.workers()[0].state, WorkerState::Ready);
}

#[test]
fn a_device_whose_threads_never_get_anything_done_is_given_up() {
    let (runtime, control) = runtime(Duration::from_secs(1), 2);
    serve(&runtime);
    // Every submission gets stuck. After four stuck threads at once, or four replacements in a row
    // without a completed op, the device is given up.
    let start = Instant::now();
    while runtime.workers()[0].state != WorkerState::Failed {
        control.get_stuck(Call::Submit, false);
        assert!(run(&runtime).is_err());
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", runtime.workers());
    }
    assert!(matches!(run(&runtime), Err(Error::Unsupported { .. })));
    control.let_go(control.stuck.load(Ordering::SeqCst));
}
