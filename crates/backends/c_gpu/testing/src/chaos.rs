//! Kills a GPU's engine repeatedly under load, with the CPU beside it: every op has exactly one
//! outcome, and the outcome is correct. The engines are real; only their deaths are simulated.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use panoply_core::op::compute::{Map, MatMul, Reduce};
use panoply_core::{
    Absence, Api, Backend, DeviceId, DeviceInfo, Engine, Error, FinishedOp, Health, Item, MemoryStats, Op, OpenOptions,
    Result, Support, Tensor, Warmth,
};
use panoply_cpu::CpuBackend;
use panoply_runtime::{HealthRules, RunOptions, Runtime, WorkerLimits, WorkerState};

const DEATHS: usize = 100;
const CALLERS: usize = 3;
/// Time after which the test gives up and reports its progress.
const TIME_MAX: Duration = Duration::from_secs(120);

/// The fate of the next call into the engine.
const LIVES: u8 = 0;
const PANICS_IN_SUBMIT: u8 = 1;
const PANICS_IN_POLL: u8 = 2;
const LOSES_ITS_DEVICE: u8 = 3;

/// A backend whose engines die on command.
struct Mortal {
    inner: Arc<dyn Backend>,
    fate: Arc<ChaosState>,
}

#[derive(Default)]
struct ChaosState {
    next: AtomicU8,
    deaths: AtomicUsize,
}

impl ChaosState {
    /// Whether the engine dies in this way now.
    fn strikes(&self, how: u8) -> bool {
        let struck = self.next.compare_exchange(how, LIVES, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        self.deaths.fetch_add(usize::from(struck), Ordering::AcqRel);
        struck
    }
}

struct MortalEngine {
    inner: Box<dyn Engine>,
    fate: Arc<ChaosState>,
    /// The items that it held when its device was lost.
    lost: Option<VecDeque<Item>>,
}

impl Backend for Mortal {
    fn api(&self) -> Api {
        self.inner.api()
    }

    fn discover(&self) -> Result<Vec<DeviceInfo>, Absence> {
        self.inner.discover()
    }

    fn supports(&self, device: &DeviceInfo, op: &Op) -> Support {
        self.inner.supports(device, op)
    }

    fn warmth(&self, device: &DeviceInfo, op: &Op) -> Warmth {
        self.inner.warmth(device, op)
    }

    fn open(&self, device: &DeviceInfo, options: &OpenOptions) -> Result<Box<dyn Engine>> {
        let inner = self.inner.open(device, options)?;
        Ok(Box::new(MortalEngine { inner, fate: Arc::clone(&self.fate), lost: None }))
    }
}

impl Engine for MortalEngine {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn submit(&mut self, batch: &mut Vec<Item>) {
        if self.fate.strikes(LOSES_ITS_DEVICE) {
            self.lost = Some(VecDeque::new());
        }
        if let Some(lost) = &mut self.lost {
            return lost.extend(batch.drain(..));
        }
        if self.fate.strikes(PANICS_IN_SUBMIT) {
            // Half of the batch is already submitted.
            let mut half = batch.drain(..batch.len() / 2).collect();
            self.inner.submit(&mut half);
            panic!("killed in submit");
        }
        self.inner.submit(batch);
    }

    fn poll(&mut self, finished: &mut Vec<FinishedOp>, wait_max: Duration) -> usize {
        let device = self.inner.info().id;
        if let Some(lost) = &mut self.lost {
            let gone = |item| FinishedOp::alone(item, Err(Error::DeviceLost { device, reason: "killed".to_owned() }));
            finished.extend(lost.drain(..).map(gone));
        }
        if self.fate.strikes(PANICS_IN_POLL) {
            panic!("killed in poll");
        }
        self.inner.poll(finished, wait_max)
    }

    fn memory(&mut self) -> MemoryStats {
        self.inner.memory()
    }

    fn health(&mut self) -> Health {
        self.inner.health()
    }

    fn warm_up(&mut self, op: &Op) {
        self.inner.warm_up(op);
    }
}

/// One caller: ops of three kinds, most of which prefer the GPU, until `end` is set.
fn call(runtime: &Runtime, gpu: DeviceId, caller: usize, end: &AtomicBool) -> usize {
    let mut count = 0;
    while !end.load(Ordering::Relaxed) {
        let size = 8 + (count * 7 + caller) % 40;
        let options = if count % 4 == 3 { RunOptions::default() } else { RunOptions::prefer(gpu) }.to_host();
        let value = (count % 5) as f32;
        let ones = Tensor::from_vec(vec![1.0_f32; size * size], [size, size]).unwrap();
        let values = Tensor::from_vec(vec![value; size * size], [size, size]).unwrap();
        let (result, expected) = match count % 3 {
            0 => (runtime.run_with(Map::add(&ones, &values), options).wait(), 1.0 + value),
            1 => (runtime.run_with(MatMul::new(&ones, &values), options).wait(), value * size as f32),
            _ => (runtime.run_with(Reduce::sum(&values), options).wait(), value * (size * size) as f32),
        };
        let result = result.unwrap_or_else(|error| panic!("op {count} of caller {caller} was lost: {error}"));
        let right = result.to_vec::<f32>().unwrap().iter().all(|got| *got == expected);
        assert!(right, "op {count} of caller {caller}: {result:?}");
        count += 1;
    }
    count
}

/// Kills the engine of the backend's first device a hundred times.
pub fn kill_under_load(backend: Arc<dyn Backend>) {
    hush();
    let device = match backend.discover() {
        Ok(devices) => devices[0].clone(),
        Err(absence) => return println!("skipped: {absence}"),
    };
    let fate = Arc::new(ChaosState::default());
    let limits = WorkerLimits {
        reopen_wait_min: Duration::from_micros(200),
        reopen_wait_max: Duration::from_millis(2),
        reopen_attempts_max: 1000,
        ..WorkerLimits::default()
    };
    let wait = Duration::from_millis(1);
    let rules =
        HealthRules { open_wait_min: wait, open_wait_max: wait * 2, probes_needed: 1, ..HealthRules::default() };
    let runtime = Runtime::builder()
        .backend(Arc::new(Mortal { inner: backend, fate: Arc::clone(&fate) }))
        .backend(Arc::new(CpuBackend::new()))
        .limits(limits)
        .health(rules)
        .build()
        .unwrap();
    let (end, start) = (AtomicBool::new(false), Instant::now());
    let called: usize = std::thread::scope(|scope| {
        let (runtime, end) = (&runtime, &end);
        let callers: Vec<_> =
            (0..CALLERS).map(|caller| scope.spawn(move || call(runtime, device.id, caller, end))).collect();
        let completed = || worker(runtime, device.id).counters.completed;
        let mut before = completed();
        while fate.deaths.load(Ordering::Acquire) < DEATHS && start.elapsed() < TIME_MAX {
            // The engine must have completed an op before it dies again.
            if completed() > before && worker(runtime, device.id).state == WorkerState::Ready {
                let deaths = fate.deaths.load(Ordering::Acquire);
                let how = [PANICS_IN_SUBMIT, PANICS_IN_POLL, LOSES_ITS_DEVICE][deaths % 3];
                fate.next.store(how, Ordering::Release);
                while fate.deaths.load(Ordering::Acquire) == deaths && start.elapsed() < TIME_MAX {
                    std::thread::sleep(Duration::from_micros(50));
                }
                before = completed();
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        end.store(true, Ordering::Relaxed);
        callers.into_iter().map(|caller| caller.join().unwrap()).sum()
    });
    let (deaths, gpu) = (fate.deaths.load(Ordering::Acquire), worker(&runtime, device.id));
    println!("{}: {deaths} deaths under {called} ops in {:?}, {:?}", device.id, start.elapsed(), gpu.counters);
    assert_eq!(deaths, DEATHS, "within {TIME_MAX:?}");
    // The last death may have come after the last op.
    assert!(gpu.counters.reopened + 1 >= DEATHS as u64 && gpu.counters.fallbacks > 0, "{:?}", gpu.counters);
    let completed: u64 = runtime.workers().iter().map(|worker| worker.counters.completed).sum();
    let failed: u64 = runtime.workers().iter().map(|worker| worker.counters.failed).sum();
    assert_eq!((completed, failed), (called as u64, 0), "each op ended once, and none with an error");
    assert!(runtime.shutdown(Duration::from_secs(5)).drained);
}

fn worker(runtime: &Runtime, device: DeviceId) -> panoply_runtime::WorkerReport {
    runtime.workers().into_iter().find(|worker| worker.device == device).unwrap()
}

/// Suppresses the panic messages of intended deaths, which would bury all other output.
fn hush() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let on_purpose = panic.payload().downcast_ref::<&str>().is_some_and(|message| message.starts_with("killed"));
        if !on_purpose {
            usual(panic);
        }
    }));
}
