//! Workers of pools under a virtual clock: no short op waits for a long one, and a wrong guess
//! about an op does no lasting harm. The bounds are on virtual time.

use std::sync::Arc;
use std::time::Duration;

use panoply_conformance::virtual_device::Script;
use panoply_core::clock::Clock;
use panoply_core::op::compute::Transpose;
use panoply_core::op::crypto::{Hash, HashAlgorithm};
use panoply_core::{Api, Backend, Describe, DeviceId, Domain, Op, Operation, Tensor};
use panoply_cpu::CpuBackend;

use super::uneven::Uneven;
use crate::domain_pools::{DevicePool, PoolName, Pools};
use crate::lane::OpReceiver;
use crate::learned::model::{CurveKey, Sample, log2};
use crate::options::{FallbackPolicy, Wishes};
use crate::router::Exploration;

const TICK: Duration = Duration::from_micros(20);
const SHORT: Duration = Duration::from_micros(20);
const LONG: Duration = Duration::from_millis(100);
const DEVICE: DeviceId = DeviceId { api: Api::SIMULATED, index: 0 };
/// The side of the square matrix whose transposition is long.
const LONG_SIDE: usize = 512;

/// A device on which large ops are long, and all others are short.
fn world(pools: Pools) -> Uneven {
    let cost = |op: &Op| if op.work() >= (LONG_SIDE * LONG_SIDE) as u64 { LONG } else { SHORT };
    over(Script::new().in_host_memory().cost(cost), pools)
}

fn over(script: Script, pools: Pools) -> Uneven {
    let answers: Arc<dyn Backend> = Arc::new(CpuBackend::with_root("/nonexistent"));
    Uneven::with_pools(answers, [script], Exploration { one_in: 0, first: 0 }, TICK, pools)
}

/// Workers for short ops on the simulated device.
fn short(workers: usize) -> Pools {
    Pools { short: DevicePool { workers, devices: vec![DEVICE], ..DevicePool::default() }, ..Pools::none() }
}

fn transpose(side: usize) -> Op {
    Transpose::new(&Tensor::from_vec(vec![1_u8; side * side], [side, side]).unwrap()).into_op().unwrap()
}

fn send(world: &Uneven, op: Op) -> OpReceiver {
    let wishes = Wishes { to_host: true, ..Wishes::none(FallbackPolicy::Alternate) };
    world.router.send(op, wishes, world.clock.now(), false).map(|sent| sent.receiver).unwrap()
}

fn accepted(world: &Uneven, pool: Option<PoolName>) -> u64 {
    let lanes = world.lanes.iter().filter(|lane| lane.pool == pool);
    lanes.map(|lane| lane.report().counters.accepted).sum()
}

/// When the last of these ops is answered, counted from now.
fn last(world: &mut Uneven, receivers: Vec<OpReceiver>) -> Duration {
    let start = world.clock.now();
    world.finish(receivers).into_iter().max().map_or(Duration::ZERO, |done| done - start)
}

#[test]
fn a_short_op_overtakes_a_long_one() {
    for (pools, overtakes) in [(short(1), true), (Pools::none(), false)] {
        let mut world = world(pools);
        let known = [LONG_SIDE, 4].map(|side| send(&world, transpose(side))).into();
        last(&mut world, known);
        let long: Vec<OpReceiver> = (0..3).map(|_| send(&world, transpose(LONG_SIDE))).collect();
        (0..10).for_each(|_| world.tick());
        let some: Vec<OpReceiver> = (0..8).map(|_| send(&world, transpose(4))).collect();
        let took = last(&mut world, some);
        assert_eq!(took < Duration::from_millis(1), overtakes, "{took:?}");
        assert!(last(&mut world, long) < LONG * 4);
        assert_eq!(accepted(&world, Some(PoolName::Short)) > 0, overtakes);
        assert!(world.lanes.iter().all(|lane| lane.is_quiet() && lane.backlog_ns() == 0));
    }
}

#[test]
fn ops_that_turn_out_to_be_long_leave_the_queue_of_short_ones() {
    // Nothing is known of these ops, and their size promises little work.
    let mut world = over(Script::new().in_host_memory().latency(LONG), short(1));
    let all: Vec<OpReceiver> = (0..40).map(|_| send(&world, transpose(8))).collect();
    assert_eq!(accepted(&world, Some(PoolName::Short)), 40, "all are guessed to be short");
    let took = last(&mut world, all);
    let relieved: u64 = world.lanes.iter().map(|lane| lane.report().counters.relieved).sum();
    assert!(relieved >= 20, "{relieved} of 40 moved; all took {took:?}");
    // The time of later ops of this kind is known.
    let before = accepted(&world, Some(PoolName::Short));
    let later = vec![send(&world, transpose(8))];
    last(&mut world, later);
    assert_eq!(accepted(&world, Some(PoolName::Short)), before);
}

#[test]
fn ops_that_turn_out_to_be_short_leave_the_queue_behind_a_long_one() {
    let mut world = world(short(1));
    let known = vec![send(&world, transpose(LONG_SIDE))];
    last(&mut world, known);
    let long: Vec<OpReceiver> = (0..10).map(|_| send(&world, transpose(LONG_SIDE))).collect();
    // The time of this size is guessed from the long ones: too long for the queue of short ops.
    let guessed: Vec<OpReceiver> = (0..8).map(|_| send(&world, transpose(LONG_SIDE / 2))).collect();
    assert_eq!(accepted(&world, Some(PoolName::Short)), 0);
    // Meanwhile another op shows how long they take.
    world.lanes[0].model.learn(
        key(LONG_SIDE / 2).0,
        || unreachable!("the key is known"),
        key(LONG_SIDE / 2).1,
        sample(),
    );
    let took = last(&mut world, guessed);
    assert!(took < Duration::from_millis(50), "{took:?}");
    last(&mut world, long);
}

#[test]
fn a_pool_of_a_domain_takes_its_ops_and_no_others() {
    let name = PoolName::Domain(Domain::Compute);
    let mut pools = Pools::none();
    *pools.entry(name) = DevicePool { workers: 2, devices: vec![DEVICE], ..DevicePool::default() };
    let mut world = world(pools);
    let all: Vec<OpReceiver> = (0..20).map(|_| send(&world, transpose(4))).collect();
    last(&mut world, all);
    let each: Vec<u64> = world.lanes.iter().map(|lane| lane.report().counters.accepted).collect();
    assert!(each[0] == 0 && each[1] > 5 && each[2] > 5, "both workers share the work: {each:?}");
    // Another domain.
    let hash = Hash::new(HashAlgorithm::Sha256, vec![0; 64]);
    let hash = vec![send(&world, hash.into_op().unwrap())];
    last(&mut world, hash);
    assert_eq!(world.lanes[0].report().counters.accepted, 1);
}

/// The key and the work of a transposition.
fn key(side: usize) -> (CurveKey, f32) {
    let op = transpose(side);
    let key = CurveKey::new(op.name(), op.dtype(), op.cost_class());
    (key, log2(op.work() as f32))
}

fn sample() -> Sample {
    let short_ns = SHORT.as_nanos() as f32;
    Sample { run_ns: Some(short_ns), service_ns: short_ns, output_bytes: 64.0 }
}
