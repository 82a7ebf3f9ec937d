//! The events in a world, one step at a time, and the end of a schedule. A driver's step may be
//! stuck inside a call in which the world takes further steps, so no function here borrows the
//! world while it calls into it.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use panoply_core::Error;
use panoply_core::clock::Clock;
use panoply_lockfree::foreign::discard;

use super::{DEVICES, SharedWorld, hooks};
use crate::device_worker::driver::DriverStep;
use crate::lane::WorkerState;

/// Makes foreign code panic and keep its callers, with random frequency.
pub(super) fn misbehave(world: &SharedWorld, seed: u64) {
    let weak = Rc::downgrade(world);
    let meanwhile = move || {
        if let Some(world) = weak.upgrade() {
            meanwhile(&world);
        }
    };
    let chances = match seed % 4 {
        0 => hooks::FaultRates { panic: 0, stuck: 0 },
        1 => hooks::FaultRates { panic: 20, stuck: 100 },
        2 => hooks::FaultRates { panic: 100, stuck: 20 },
        _ => hooks::FaultRates { panic: 50, stuck: 300 },
    };
    hooks::misbehave(seed, chances, Rc::new(meanwhile));
}

/// Simulates a call that does not return for a while: the world goes on. In most cases a supervisor
/// looks before the call returns.
pub(super) fn meanwhile(world: &SharedWorld) {
    let Some((steps, looked)) = world.try_borrow_mut().ok().and_then(|mut world| world.get_stuck()) else { return };
    (0..steps / 2).for_each(|_| random_step(world));
    if looked {
        let wait = Duration::from_millis(8);
        world.borrow().clock.advance(wait);
        look(world);
    }
    (0..steps / 2).for_each(|_| random_step(world));
    world.borrow_mut().see();
}

pub(super) fn random_step(world: &SharedWorld) {
    let step = world.borrow_mut().random.below(26);
    match step {
        0..=7 => world.borrow_mut().ask(),
        8..=15 => {
            let workers = workers(world) as u64;
            let worker = world.borrow_mut().random.below(workers) as usize;
            step_worker(world, worker);
        }
        16..=17 => step_relay(world),
        18..=19 => world.borrow_mut().pass_time(),
        20 => cancel(world),
        21 => world.borrow_mut().maybe_shut_down(),
        22 => kill_worker(world),
        23 => world.borrow_mut().change_weather(),
        24 => look(world),
        _ => {}
    }
    world.borrow_mut().collect();
}

/// The number of workers: one of each device, and those of pools.
fn workers(world: &SharedWorld) -> usize {
    world.borrow().workers.len()
}

/// Makes a driver take a step. Returns false when it has ended. If one of its calls is stuck, a
/// replacement may take its later steps.
pub(super) fn step_worker(world: &SharedWorld, index: usize) -> bool {
    let (mut driver, generation) = {
        let mut world = world.borrow_mut();
        let worker = &mut world.workers[index];
        let Some(driver) = worker.driver.take() else { return worker.current.is_some() };
        let generation = driver.generation();
        world.stepping.push(index);
        (driver, generation)
    };
    let step = driver.step(Duration::ZERO);
    let replaced = generation.tenure.is_over();
    {
        let mut world = world.borrow_mut();
        if replaced {
            let seed = world.seed;
            let now = Some(world.sight(index));
            let seen = world.seen.take();
            assert!(seen.is_none() || seen == now, "seed {seed}: a replaced driver acts: {seen:?}, then {now:?}");
            assert_eq!(step, DriverStep::Exit, "seed {seed}: a replaced driver goes on");
            world.tally.replaced += 1;
        }
        world.stepping.pop();
    }
    let ended = replaced || step == DriverStep::Exit;
    if ended {
        // Dropping the driver drops its engine, and the device memory with it.
        drop(driver);
        generation.tenure.end();
        let mut world = world.borrow_mut();
        let worker = &mut world.workers[index];
        worker.current.take_if(|current| Arc::ptr_eq(current, &generation));
        return worker.current.is_some();
    }
    world.borrow_mut().workers[index].driver = Some(driver);
    true
}

pub(super) fn step_relay(world: &SharedWorld) {
    let Some(mut relay) = world.borrow_mut().relay.take() else { return };
    relay.step();
    world.borrow_mut().relay = Some(relay);
}

/// Simulates a supervisor's look: stuck drivers are replaced, and the tables of replaced drivers
/// are emptied.
pub(super) fn look(world: &SharedWorld) {
    for index in 0..workers(world) {
        let (lane, tickets, given_up) = {
            let mut world = world.borrow_mut();
            let now = world.clock.now();
            let worker = &mut world.workers[index];
            let mut tickets = Vec::new();
            worker.stuck.retain(|generation| {
                let stays = !generation.tenure.has_ended();
                generation.flights.take_all(|ticket| tickets.push(ticket));
                stays
            });
            let (limit, mut given_up) = (worker.lane.limits.op_time_max, false);
            if let Some(stuck) = worker.current.take_if(|current| current.replace_if_stuck(now, limit)) {
                stuck.flights.take_all(|ticket| tickets.push(ticket));
                worker.stuck.push(stuck);
                // A driver that got stuck while it gave its device up gets no successor.
                given_up = worker.lane.state() == WorkerState::Failed;
                if !given_up {
                    worker.lane.put_state(WorkerState::Reopening, None);
                    worker.start(now);
                }
            }
            (Arc::clone(&worker.lane), tickets, given_up)
        };
        let (device, after) = (lane.info.id, lane.limits.op_time_max);
        tickets.into_iter().for_each(|ticket| lane.fail(ticket, Error::Timeout { device, after }));
        if given_up {
            drop(lane.end_queued());
        }
    }
}

/// A worker's thread dies between two steps, and is replaced.
pub(super) fn kill_worker(world: &SharedWorld) {
    let killed = {
        let mut world = world.borrow_mut();
        let index = world.random.below(10 * DEVICES as u64) as usize;
        world.workers.get_mut(index).and_then(|worker| worker.driver.take().map(|driver| (driver, index)))
    };
    let Some((driver, index)) = killed else { return };
    driver.generation().tenure.dismiss();
    drop(driver);
    let mut world = world.borrow_mut();
    let now = world.clock.now();
    world.tally.died += 1;
    world.workers[index].start(now);
}

pub(super) fn cancel(world: &SharedWorld) {
    let question = {
        let mut world = world.borrow_mut();
        if world.waiting.is_empty() {
            return;
        }
        let count = world.waiting.len() as u64;
        let index = world.random.below(count) as usize;
        world.cancelled += 1;
        world.waiting.swap_remove(index)
    };
    // As the future of a caller does when it is dropped.
    if let Some(place) = question.place.filter(|_| !question.receiver.is_done()) {
        question.lane.leave_line(place);
    }
    discard(question);
}

/// Ends the faults. Every device that still exists must be fit again soon, and no breaker may have
/// flapped meanwhile.
pub(super) fn recover(world: &SharedWorld) {
    hooks::calm();
    let (start, sick) = world.borrow_mut().heal();
    for round in 0..4000 {
        if world.borrow().is_well() && round > 20 {
            break;
        }
        if world.borrow().waiting.len() < 8 {
            world.borrow_mut().ask();
        }
        (0..workers(world)).for_each(|index| _ = step_worker(world, index));
        step_relay(world);
        let mut world = world.borrow_mut();
        world.clock.advance(Duration::from_micros(300));
        world.collect();
        assert!(round < 3999, "seed {}: a device never recovers: {:?}", world.seed, world.reports());
    }
    world.borrow_mut().check_recovery(start, &sick);
}

/// Shuts down, lets time pass until every worker has left, and checks that nothing is left behind.
pub(super) fn finish(world: &SharedWorld) {
    let (seed, lanes) = {
        let world = world.borrow();
        (world.seed, world.workers.iter().map(|worker| Arc::clone(&worker.lane)).collect::<Vec<_>>())
    };
    if !world.borrow().shutting_down {
        lanes.iter().for_each(|lane| drop(lane.drain()));
    }
    for round in 0.. {
        let running = (0..workers(world)).filter(|index| step_worker(world, *index)).count();
        step_relay(world);
        if running == 0 && world.borrow().inlet.count() == 0 {
            break;
        }
        if round == 200 {
            hooks::calm();
        }
        world.borrow().clock.advance(Duration::from_micros(200));
        if round > 20_000 {
            lanes.iter().for_each(|lane| drop(lane.abort()));
        }
        assert!(round < 30_000, "seed {seed}: a worker never ends: {:?}", world.borrow().reports());
    }
    hooks::calm();
    world.borrow_mut().check_end();
}
