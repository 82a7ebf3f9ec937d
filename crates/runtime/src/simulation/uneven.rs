//! One device falls behind while another is idle: waiting ops must go where they finish sooner.
//! Seeded, under a virtual clock; the bound is on virtual time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use panoply_conformance::values::Random;
use panoply_conformance::virtual_device::{Fault, Script, VirtualBackend, VirtualControl};
use panoply_core::clock::{Clock, VirtualClock};
use panoply_core::op::compute::Transpose;
use panoply_core::{Backend, Describe, Error, Health, Op, OpenOptions, Operation, PartMut, PartRef, Result, Tensor};
use panoply_cpu::CpuBackend;
use panoply_placement::WorkerPlace;

use super::setup::add_pools;
use crate::batcher::Batching;
use crate::device_worker::driver::{Driver, Opener};
use crate::domain_pools::Pools;
use crate::health::HealthRules;
use crate::lane::Inlet;
use crate::lane::{Lane, LaneSetup, OpReceiver, WorkerLimits};
use crate::options::{FallbackPolicy, Wishes};
use crate::relay::Relay;
use crate::router::{Exploration, Router};

const SEEDS: u64 = 150;
/// Virtual time between two rounds.
const TICK: Duration = Duration::from_micros(20);

/// Devices with their workers and the relay, one tick after the other.
pub(super) struct Uneven {
    pub(super) clock: Arc<VirtualClock>,
    pub(super) router: Arc<Router>,
    relay: Relay,
    drivers: Vec<Driver>,
    pub(super) lanes: Vec<Arc<Lane>>,
    controls: Vec<Arc<VirtualControl>>,
    tick: Duration,
}

impl Uneven {
    fn new(latencies: [Duration; 2]) -> Uneven {
        let answers: Arc<dyn Backend> = Arc::new(CpuBackend::with_root("/nonexistent"));
        let scripts = latencies.map(|latency| Script::new().latency(latency));
        Uneven::over(answers, scripts, Exploration { one_in: 0, first: 0 }, TICK)
    }

    /// Creates a device for each script. All of them answer as `answers` does.
    pub(super) fn over(
        answers: Arc<dyn Backend>,
        scripts: impl IntoIterator<Item = Script>,
        exploration: Exploration,
        tick: Duration,
    ) -> Uneven {
        Uneven::with_pools(answers, scripts, exploration, tick, Pools::none())
    }

    /// [`Uneven::over`] with workers of pools.
    pub(super) fn with_pools(
        answers: Arc<dyn Backend>,
        scripts: impl IntoIterator<Item = Script>,
        exploration: Exploration,
        tick: Duration,
        pools: Pools,
    ) -> Uneven {
        let clock = Arc::new(VirtualClock::new());
        let backend = scripts.into_iter().fold(VirtualBackend::new(answers), VirtualBackend::device);
        let backend = Arc::new(backend.clock(Arc::clone(&clock) as Arc<dyn Clock>));
        let inlet = Arc::new(Inlet::new());
        let router = Arc::new(Router::new(exploration));
        let mut world = Uneven {
            relay: Relay::new(Arc::clone(&inlet), Arc::clone(&router), Arc::clone(&clock) as Arc<dyn Clock>),
            clock: Arc::clone(&clock),
            router,
            drivers: Vec::new(),
            lanes: Vec::new(),
            controls: Vec::new(),
            tick,
        };
        let (clock, pools) = (clock as Arc<dyn Clock>, Arc::new(pools));
        for (index, info) in backend.discover().unwrap().into_iter().enumerate() {
            world.controls.push(backend.control(index).unwrap());
            let setup = LaneSetup {
                limits: WorkerLimits::default(),
                rules: HealthRules::default(),
                batching: Batching::LowLatency,
                inlet: Arc::clone(&inlet),
                clock: Arc::clone(&clock),
                epoch: clock.now(),
                opinions: None,
                leave_out: Vec::new(),
                pools: Arc::clone(&pools),
            };
            let backend = Arc::clone(&backend) as Arc<dyn Backend>;
            let lane = world.router.lanes.add(&backend, |number| Lane::new(number, info, &setup)).unwrap();
            let opener = Opener {
                backend,
                options: OpenOptions::default(),
                clock: Arc::clone(&clock),
                place: WorkerPlace::default(),
            };
            let of_pools = add_pools(&world.router, &lane, &setup);
            for lane in std::iter::once(lane).chain(of_pools) {
                world.drivers.push(Driver::new(Arc::clone(&lane), opener.clone(), clock.now()));
                world.lanes.push(lane);
            }
        }
        (0..3).for_each(|_| world.tick());
        world
    }

    pub(super) fn tick(&mut self) {
        self.drivers.iter_mut().for_each(|driver| _ = driver.step(Duration::ZERO));
        self.relay.step();
        self.clock.advance(self.tick);
    }

    fn send(&self, allowed: u64, pinned: bool) -> OpReceiver {
        let op = Transpose::new(&Tensor::from_slice(&[1_i32, 2, 3, 4, 5, 6], [2, 3]).unwrap()).into_op().unwrap();
        let wishes = Wishes { allowed, pinned, ..Wishes::none(FallbackPolicy::None) };
        self.router.send(op, wishes, self.clock.now(), false).map(|sent| sent.receiver).unwrap()
    }

    /// Lets time pass until all ops are answered. Returns when each was answered.
    pub(super) fn finish(&mut self, mut receivers: Vec<OpReceiver>) -> Vec<Instant> {
        let context = Context::from_waker(Waker::noop());
        let mut done = vec![None; receivers.len()];
        for _ in 0..1_000_000 {
            self.tick();
            for (receiver, done) in receivers.iter_mut().zip(&mut done).filter(|(_, done)| done.is_none()) {
                if let Poll::Ready(answer) = receiver.poll(&context) {
                    assert!(matches!(answer, Some(Ok(_))), "every op has its output");
                    *done = Some(self.clock.now());
                }
            }
            if done.iter().all(Option::is_some) {
                return done.into_iter().flatten().collect();
            }
        }
        panic!("an op was never answered: {:?}", self.lanes.iter().map(|lane| lane.report()).collect::<Vec<_>>());
    }
}

#[test]
fn no_device_stays_idle_while_another_has_a_queue_it_could_serve_sooner() {
    let mut relieved = 0;
    for seed in 0..SEEDS {
        let mut random = Random::new(seed);
        let mut latency = || Duration::from_micros(50 + random.below(250));
        let latencies = [latency(), latency()];
        let (ops, slow) = (20 + random.below(60) as usize, Duration::from_millis(100));
        let mut world = Uneven::new(latencies);
        // Both devices are known, and then the first one slows down.
        let known: Vec<OpReceiver> = (0..16).map(|number| world.send(1 << (number % 2), true)).collect();
        world.finish(known);
        world.controls[0].inject(Fault::Slow(slow));
        let start = world.clock.now();
        let all: Vec<OpReceiver> = (0..ops).map(|_| world.send(u64::MAX, false)).collect();
        let mut took: Vec<Duration> = world.finish(all).into_iter().map(|done| done - start).collect();
        took.sort();
        // The time of the other device alone, plus the time that the relay needs to notice, and a
        // margin for its predictions.
        let bound = latencies[1] * (2 * ops as u32 + 4) + Duration::from_millis(4);
        let late = took.iter().filter(|took| **took > bound).count();
        // Ops that the engine held when it fell behind cannot be taken back. That is one
        // millisecond of work, by measured times that may be one tick too short.
        let inside = 2 + 8.max((Duration::from_millis(1).as_nanos() / (latencies[0] - TICK).as_nanos()) as usize);
        assert!(late <= inside, "seed {seed}: {late} of {ops} waited for the slow device: {latencies:?} {took:?}");
        relieved += world.lanes[0].report().counters.relieved;
        for lane in &world.lanes {
            let report = lane.report();
            let counters = report.counters;
            assert_eq!(counters.accepted, counters.completed + counters.moved, "seed {seed}: {report:?}");
            assert_eq!((report.queued, lane.backlog_ns()), (0, 0), "seed {seed}");
        }
    }
    assert!(relieved > SEEDS, "{relieved}");
}

/// An op that panics when it is asked for its parts while it is provoked.
#[derive(Clone, Debug)]
struct Touchy(Arc<AtomicBool>, Arc<AtomicUsize>);

impl Describe for Touchy {
    fn name(&self) -> &'static str {
        "touchy"
    }
    fn validate(&self) -> Result<()> {
        Ok(())
    }
    fn for_each_part(&self, _visit: &mut dyn FnMut(PartRef<'_>)) {
        if self.0.load(Ordering::Relaxed) {
            self.1.fetch_add(1, Ordering::Relaxed);
            std::panic::resume_unwind(Box::new("touchy"));
        }
    }
    fn for_each_part_mut(&mut self, _visit: &mut dyn FnMut(PartMut<'_>)) {}
}

#[test]
fn an_op_that_panics_when_it_is_asked_about_itself_stays_and_keeps_nobody_else_from_going() {
    let mut world = Uneven::new([Duration::from_micros(100); 2]);
    let known: Vec<OpReceiver> = (0..16).map(|number| world.send(1 << (number % 2), true)).collect();
    world.finish(known);
    world.controls[0].inject(Fault::Slow(Duration::from_millis(50)));
    // More ops than the engine takes at once, and the touchy op behind them.
    let mut others: Vec<OpReceiver> = (0..30).map(|_| world.send(1, false)).collect();
    let (provoked, panics) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let touchy = Op::extension(Touchy(Arc::clone(&provoked), Arc::clone(&panics))).unwrap();
    let wishes = Wishes { allowed: 1, ..Wishes::none(FallbackPolicy::None) };
    let mut sent = world.router.send(touchy, wishes, world.clock.now(), false).unwrap();
    // From here on the touchy op may go to any device, and so may later ops.
    world.lanes[0].look_through(&|| true, |_, mut ticket| {
        ticket.question_mut().unwrap().wishes.allowed = u64::MAX;
        Some(ticket)
    });
    provoked.store(true, Ordering::Relaxed);
    (0..200).for_each(|_| world.tick());
    assert!(panics.load(Ordering::Relaxed) > 0, "it was asked");
    assert!(world.lanes[0].report().counters.relieved > 5, "the others went");
    provoked.store(false, Ordering::Relaxed);
    others.push(world.send(u64::MAX, false));
    world.finish(others);
    (0..10_000).take_while(|_| !sent.receiver.is_done()).for_each(|_| world.tick());
    let answer = sent.receiver.poll(&Context::from_waker(Waker::noop()));
    // The devices compute with the CPU's engine, which does not know this op.
    assert!(matches!(answer, Poll::Ready(Some(Err(Error::Unsupported { .. })))), "{answer:?}");
}

#[test]
fn who_insists_on_a_device_stays() {
    let mut world = Uneven::new([Duration::from_micros(100); 2]);
    let known: Vec<OpReceiver> = (0..16).map(|number| world.send(1 << (number % 2), true)).collect();
    world.finish(known);
    let pinned: Vec<OpReceiver> = (0..40).map(|_| world.send(1, true)).collect();
    let forbidden: Vec<OpReceiver> = (0..20).map(|_| world.send(1, false)).collect();
    world.finish(pinned.into_iter().chain(forbidden).collect());
    assert_eq!(world.lanes[0].report().counters.relieved, 0);
}

/// The number of ops that the first of two equal devices runs while these vitals are reported of
/// it, and of all ops. One op comes in each `gap`, in hundredths of the time that an op takes.
fn share_of_the_first(seed: u64, vitals: &Health, gap: u64) -> (u64, u64) {
    let mut random = Random::new(seed);
    let latency_us = 50 + random.below(250);
    let mut world = Uneven::new([Duration::from_micros(latency_us); 2]);
    let known: Vec<OpReceiver> = (0..16).map(|number| world.send(1 << (number % 2), true)).collect();
    world.finish(known);
    world.controls[0].set_health(vitals.clone());
    // The workers look at their devices a second later.
    world.clock.advance(HealthRules::default().look_every);
    let looked: Vec<OpReceiver> = (0..2).map(|number| world.send(1 << number, true)).collect();
    world.finish(looked);
    let before = world.lanes[0].report().counters.completed;
    let ops = 60 + random.below(60);
    let mut sent = Vec::new();
    for _ in 0..ops {
        sent.push(world.send(u64::MAX, false));
        (0..latency_us * gap / 100 / TICK.as_micros() as u64 + 1).for_each(|_| world.tick());
    }
    world.finish(sent);
    (world.lanes[0].report().counters.completed - before, ops)
}

#[test]
fn a_hot_or_throttled_device_is_sent_fewer_ops() {
    let hot = Health { temperature_celsius: Some(90.0), ..Health::default() };
    let throttled = Health { throttled: Some(true), ..Health::default() };
    let (mut by_well, mut by_slow) = (0, 0);
    for seed in 0..SEEDS / 5 {
        for vitals in [&hot, &throttled] {
            // One device is enough for these ops.
            let (slow, ops) = share_of_the_first(seed, vitals, 200);
            assert!(slow * 10 < ops, "seed {seed}: {slow} of {ops}, although the other device is idle");
            // More ops than one device can run, and fewer than both can.
            by_slow += share_of_the_first(seed, vitals, 67).0;
            by_well += share_of_the_first(seed, &Health::default(), 67).0;
        }
    }
    assert!(by_slow * 10 < by_well * 9, "{by_slow} ops, and {by_well} by a device that is well");
    assert!(by_slow > 0, "it still works");
}
