//! The limits of a schedule, and random devices and worker limits.

use std::sync::Arc;
use std::time::Duration;

use panoply_conformance::values::Random;
use panoply_conformance::virtual_device::{Rates, Script};
use panoply_core::DeviceInfo;

use crate::batcher::Batching;
use crate::domain_pools::{DevicePool, PoolName, Pools};
use crate::health::HealthRules;
use crate::lane::{Lane, LaneSetup, WorkerLimits};
use crate::router::Router;

/// The default rules at the speed of the simulation.
pub(super) fn rules() -> HealthRules {
    HealthRules {
        open_wait_min: Duration::from_millis(3),
        open_wait_max: Duration::from_millis(50),
        look_every: Duration::from_millis(1),
        ..HealthRules::default()
    }
}

/// The first device runs every op. Each of the others may lack one.
pub(super) fn random_lack(random: &mut Random, device: usize) -> Option<&'static str> {
    let ops = [None, Some("transpose"), Some("map"), Some("reduce")];
    if device == 0 { None } else { ops[random.below(4) as usize] }
}

pub(super) fn random_script(random: &mut Random, seed: u64) -> Script {
    let bad = if random.below(3) == 0 { 10 } else { 1 };
    let rates = Rates {
        error: bad * random.below(30_000) as u32,
        hang: random.below(5_000) as u32,
        block: random.below(10_000) as u32,
        lost: random.below(20_000) as u32,
        // These panics print. The simulation has panics of its own that do not.
        panic: 0,
        out_of_memory: random.below(20_000) as u32,
        forget: random.below(10_000) as u32,
        twice: random.below(20_000) as u32,
    };
    let script = Script::new()
        .latency(Duration::from_micros(random.below(300)))
        .failing_opens(random.below(3) as u32)
        .random_faults(seed, rates, Duration::from_micros(random.below(2000)));
    let script = if random.below(6) == 0 { script.gone_after_opens(1 + random.below(3)) } else { script };
    let script = if random.below(4) == 0 { script.compiles(Duration::from_micros(random.below(900))) } else { script };
    let script = if random.below(3) == 0 { script.fused() } else { script };
    let script = if random.below(2) == 0 {
        script.link(Duration::from_micros(random.below(30)), Duration::from_micros(random.below(500)))
    } else {
        script
    };
    if random.below(2) == 0 { script.resident().memory_bytes(24 * (8 + random.below(40))) } else { script }
}

pub(super) fn random_limits(random: &mut Random) -> WorkerLimits {
    WorkerLimits {
        queue_depth_max: 1 + random.below(16) as usize,
        batch_max: 1 + random.below(8) as usize,
        in_flight_max: 1 + random.below(8) as usize,
        op_time_max: Duration::from_millis(2 + random.below(5)),
        reopen_wait_min: Duration::from_micros(random.below(500)),
        reopen_wait_max: Duration::from_millis(2),
        reopen_attempts_max: 1 + random.below(6) as u32,
        stuck_threads_max: 4,
    }
}

pub(super) fn random_batching(random: &mut Random) -> Batching {
    let (size_max, wait_max) = (1 + random.below(6) as usize, Duration::from_micros(random.below(800)));
    match random.below(5) {
        0 => Batching::TimeOrSize { size_max, wait_max },
        1 => Batching::Adaptive { size_max, wait_max },
        2 => Batching::HighThroughput { size_max, wait_max },
        _ => Batching::LowLatency,
    }
}

/// In every second schedule, some devices have workers for short ops.
pub(super) fn random_pools(random: &mut Random, devices: &[DeviceInfo]) -> Pools {
    let mut pools = Pools { short_run_max: Duration::from_micros(1 + random.below(400)), ..Pools::none() };
    if random.below(2) == 0 {
        let devices = devices.iter().map(|info| info.id).filter(|_| random.below(3) > 0).collect();
        pools.short = DevicePool { workers: 1, devices, queue_depth_max: Some(4), ..DevicePool::default() };
        pools.short.workers += random.below(2) as usize;
    }
    pools
}

/// The lanes of pools on the device of a lane.
pub(super) fn add_pools(router: &Router, lane: &Arc<Lane>, setup: &LaneSetup) -> Vec<Arc<Lane>> {
    let wanted: Vec<(PoolName, usize)> = setup.pools.workers_on(&lane.info).collect();
    let Some(device) = router.lanes.made(lane.id) else { return Vec::new() };
    router.lanes.add_pool_lanes(device, wanted.len(), |index, id| {
        let pool = setup.pools.get(wanted[index].0)?;
        Some(Lane::of_pool(lane, id, wanted[index], setup, pool))
    })
}
