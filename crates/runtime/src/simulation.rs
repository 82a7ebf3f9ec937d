//! Thousands of schedules under a virtual clock: clients, queues, workers, failing devices and shutdown, one seeded random
//! step at a time, in one thread. A failure names its seed, and the same seed fails again.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use panoply_conformance::values::Random;
use panoply_conformance::virtual_device::{Rates, Script, VirtualBackend, VirtualControl};
use panoply_core::clock::{Clock, VirtualClock};
use panoply_core::op::compute::Transpose;
use panoply_core::{Backend, Error, OpenOptions, Operation, Tensor};
use panoply_cpu::CpuBackend;

use crate::device_worker::driver::{Driver, Opener, Step};
use crate::device_worker::{Lane, OpReceiver, Task, WorkerLimits};
use crate::slot::slot;

const SCHEDULES: u64 = 3000;
const STEPS_MAX: u64 = 160;
const OPS_MAX: usize = 64;

/// One world: two devices with their workers, and the clients' open questions.
struct World {
    random: Random,
    clock: Arc<VirtualClock>,
    workers: Vec<SimulatedWorker>,
    waiting: Vec<OpReceiver>,
    answered: usize,
    asked: usize,
    cancelled: usize,
    shutting_down: bool,
}

struct SimulatedWorker {
    lane: Arc<Lane>,
    driver: Option<Driver>,
    control: Arc<VirtualControl>,
    opener: Opener,
    accepted: u64,
}

#[test]
fn every_schedule_answers_every_op_exactly_once() {
    let answers: Arc<dyn Backend> = Arc::new(CpuBackend::with_root("/nonexistent"));
    let mut outcomes = [0_usize; 3];
    for seed in 0..SCHEDULES {
        let mut world = World::new(seed, &answers);
        for _ in 0..20 + world.random.below(STEPS_MAX) {
            world.random_step(seed);
        }
        world.finish(seed);
        outcomes[0] += world.asked;
        outcomes[1] += world.answered;
        outcomes[2] += world.cancelled;
    }
    let [asked, answered, cancelled] = outcomes;
    assert_eq!(asked, answered + cancelled);
    assert!(asked > 50_000 && cancelled > 1000, "the schedules do some work: {outcomes:?}");
}

impl World {
    fn new(seed: u64, answers: &Arc<dyn Backend>) -> World {
        let mut random = Random::new(seed);
        let clock = Arc::new(VirtualClock::new());
        let scripts: Vec<Script> = (0..2).map(|device| random_script(&mut random, seed * 2 + device)).collect();
        let backend = scripts.into_iter().fold(VirtualBackend::new(Arc::clone(answers)), VirtualBackend::device);
        let backend = Arc::new(backend.clock(Arc::clone(&clock) as Arc<dyn Clock>));
        let infos = backend.discover().unwrap();
        let workers = infos.into_iter().enumerate().map(|(index, info)| {
            let control = backend.control(index).unwrap();
            let lane = Arc::new(Lane::new(info, random_limits(&mut random)));
            let opener = Opener {
                backend: Arc::clone(&backend) as Arc<dyn Backend>,
                options: OpenOptions::default(),
                clock: Arc::clone(&clock) as Arc<dyn Clock>,
            };
            let driver = Some(Driver::new(Arc::clone(&lane), opener.clone(), clock.now()));
            SimulatedWorker { lane, driver, control, opener, accepted: 0 }
        });
        let workers = workers.collect();
        let (waiting, answered, asked, cancelled) = (Vec::new(), 0, 0, 0);
        World { random, clock, workers, waiting, answered, asked, cancelled, shutting_down: false }
    }

    fn random_step(&mut self, seed: u64) {
        match self.random.below(20) {
            0..=6 => self.ask(),
            7..=13 => {
                let worker = self.random.below(2) as usize;
                self.step_worker(worker);
            }
            14..=15 => self.clock.advance(Duration::from_micros(self.random.below(2000))),
            16 => self.cancel(),
            17 => self.collect(seed),
            18 if self.random.below(30) == 0 => self.shut_down(),
            19 if self.random.below(10) == 0 => self.replace_worker(),
            _ => {}
        }
    }

    fn ask(&mut self) {
        if self.waiting.len() >= OPS_MAX {
            return;
        }
        let now = self.clock.now();
        let deadline = (self.random.below(4) == 0).then(|| now + Duration::from_micros(self.random.below(3000)));
        let worker = &mut self.workers[self.random.below(2) as usize];
        let (ticket, receiver) = slot(Task { op: question(), accepted: now, deadline });
        match worker.lane.try_send(ticket) {
            Ok(()) => {
                worker.accepted += 1;
                self.asked += 1;
                self.waiting.push(receiver);
            }
            Err((_, error)) => {
                let expected =
                    matches!(error, Error::Busy { .. } | Error::ShuttingDown | Error::DeviceUnavailable { .. });
                assert!(expected, "{error:?}");
            }
        }
    }

    fn step_worker(&mut self, index: usize) -> bool {
        let worker = &mut self.workers[index];
        let Some(driver) = &mut worker.driver else { return false };
        if driver.step(Duration::ZERO) == Step::Exit {
            worker.driver = None;
        }
        true
    }

    /// A supervisor that takes a worker for stuck and replaces it.
    fn replace_worker(&mut self) {
        let now = self.clock.now();
        let worker = &mut self.workers[self.random.below(2) as usize];
        let Some(old) = &worker.driver else { return };
        let generation = old.generation();
        generation.superseded.store(true, std::sync::atomic::Ordering::Release);
        let lane = Arc::clone(&worker.lane);
        let after = lane.limits.op_time_max;
        generation.flights.take_all(|ticket| lane.fail(ticket, Error::Timeout { device: lane.info.id, after }));
        let mut old = worker.driver.replace(Driver::new(lane, worker.opener.clone(), now));
        // The stuck thread comes back to find itself replaced.
        assert!(old.as_mut().is_none_or(|old| old.step(Duration::ZERO) == Step::Exit));
    }

    fn cancel(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let index = self.random.below(self.waiting.len() as u64) as usize;
        let receiver = self.waiting.swap_remove(index);
        self.cancelled += 1;
        drop(receiver);
    }

    /// Takes the answers that are there.
    fn collect(&mut self, seed: u64) {
        let context = Context::from_waker(Waker::noop());
        let before = self.waiting.len();
        self.waiting.retain_mut(|receiver| match receiver.poll(&context) {
            Poll::Pending => true,
            Poll::Ready(answer) => {
                check_answer(answer, seed);
                assert_eq!(
                    receiver.poll(&context).map(|again| again.is_none()),
                    Poll::Ready(true),
                    "seed {seed}: once"
                );
                false
            }
        });
        self.answered += before - self.waiting.len();
    }

    fn shut_down(&mut self) {
        self.shutting_down = true;
        let abort = self.random.below(2) == 0;
        for worker in &self.workers {
            if abort { worker.lane.abort() } else { worker.lane.drain() }
        }
    }

    /// Shuts down, lets time pass until every worker has left, and checks that nothing is left behind.
    fn finish(&mut self, seed: u64) {
        if !self.shutting_down {
            self.workers.iter().for_each(|worker| worker.lane.drain());
        }
        for round in 0.. {
            let running = (0..2).filter(|index| self.step_worker(*index)).count();
            if running == 0 {
                break;
            }
            self.clock.advance(Duration::from_micros(200));
            if round > 20_000 {
                self.workers.iter().for_each(|worker| worker.lane.abort());
            }
            assert!(round < 30_000, "seed {seed}: a worker never ends");
        }
        self.collect(seed);
        assert_eq!(self.waiting.len(), 0, "seed {seed}: an op was never answered");
        for worker in &self.workers {
            let report = worker.lane.report();
            let counters = report.counters;
            assert_eq!(counters.accepted, worker.accepted, "seed {seed}");
            let ended = counters.completed + counters.failed + counters.cancelled;
            assert_eq!(counters.accepted, ended, "seed {seed}: {report:?}");
            assert_eq!(report.queued, 0, "seed {seed}");
            assert_eq!(worker.control.counters().live_bytes, 0, "seed {seed}: device memory leaks");
        }
    }
}

fn question() -> panoply_core::Op {
    let matrix = Tensor::from_slice(&[1_i32, 2, 3, 4, 5, 6], [2, 3]).unwrap();
    Transpose::new(&matrix).into_op().unwrap()
}

fn check_answer(answer: Option<crate::device_worker::OpAnswer>, seed: u64) {
    match answer {
        Some(Ok(outcome)) => {
            let tensor = outcome.output.into_tensor().unwrap();
            if let Ok(values) = tensor.as_slice::<i32>() {
                assert_eq!(values, [1, 4, 2, 5, 3, 6], "seed {seed}");
            }
        }
        Some(Err(error)) => assert_ne!(error, Error::Cancelled, "seed {seed}: nobody cancelled this one"),
        None => panic!("seed {seed}: an op was abandoned"),
    }
}

fn random_script(random: &mut Random, seed: u64) -> Script {
    let rates = Rates {
        error: random.below(50_000) as u32,
        hang: random.below(5_000) as u32,
        block: random.below(10_000) as u32,
        lost: random.below(20_000) as u32,
        // Panics print; the simulation stays quiet and leaves them to the tests with real threads.
        panic: 0,
        out_of_memory: random.below(20_000) as u32,
        forget: random.below(10_000) as u32,
        twice: random.below(20_000) as u32,
    };
    let script = Script::new()
        .latency(Duration::from_micros(random.below(300)))
        .failing_opens(random.below(3) as u32)
        .random_faults(seed, rates, Duration::from_micros(random.below(2000)));
    let script = if random.below(4) == 0 { script.gone_after_opens(1 + random.below(3)) } else { script };
    if random.below(2) == 0 { script.resident().memory_bytes(24 * (1 + random.below(40))) } else { script }
}

fn random_limits(random: &mut Random) -> WorkerLimits {
    WorkerLimits {
        queue_depth_max: 1 + random.below(16) as usize,
        batch_max: 1 + random.below(8) as usize,
        in_flight_max: 1 + random.below(8) as usize,
        op_time_max: Duration::from_millis(1 + random.below(5)),
        reopen_wait_min: Duration::from_micros(random.below(500)),
        reopen_wait_max: Duration::from_millis(2),
        reopen_attempts_max: 1 + random.below(6) as u32,
        stuck_threads_max: 4,
    }
}
