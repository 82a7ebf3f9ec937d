//! The keys of the sections `[pools.short]` and `[pools.<domain>]`, as data.

use std::time::Duration;

use panoply_runtime::domain_pools::{POOL_WORKERS_MAX, SHORT_RUN_MAX};
use panoply_runtime::{Batching, PoolName, PoolPriority, Pools};
use toml::Value;

use super::keys::{count, devices, double, microseconds, realtime};

/// One key of a pool. `set` returns `None` for a value that it does not accept.
pub(super) struct PoolKey {
    pub(super) name: &'static str,
    pub(super) expected: &'static str,
    pub(super) set: fn(&mut Pools, PoolName, &Value) -> Option<()>,
}

/// The deepest queue.
const QUEUE_DEPTH_MAX: usize = 1 << 20;
/// The largest batch.
const BATCH_SIZE_MAX: usize = 1 << 20;

pub(super) const POOL_KEYS: &[PoolKey] = &[
    PoolKey {
        name: "workers",
        expected: "1 to 16 workers on each device, or 0 in `pools.short`",
        set: |pools, name, value| {
            let least = usize::from(name != PoolName::Short);
            pools.entry(name).workers = within(value, least, POOL_WORKERS_MAX)?;
            Some(())
        },
    },
    PoolKey {
        name: "cores",
        expected: "a list of CPUs, such as \"0-3,8\"",
        set: |pools, name, value| {
            let cores = value.as_str()?.parse().ok().filter(|cores| !panoply_core::cpu_set::CpuSet::is_empty(cores))?;
            pools.entry(name).cores = Some(cores);
            Some(())
        },
    },
    PoolKey {
        name: "core_share",
        expected: "a number above 0, at most 1",
        set: |pools, name, value| {
            let share = double(value).filter(|share| *share > 0.0 && *share <= 1.0)?;
            pools.entry(name).core_share = share as f32;
            Some(())
        },
    },
    PoolKey {
        name: "devices",
        expected: "a list of devices, such as [\"cpu:0\"]",
        set: |pools, name, value| {
            pools.entry(name).devices = devices(value)?;
            Some(())
        },
    },
    PoolKey {
        name: "queue_depth_max",
        expected: "1 to 1048576 ops",
        set: |pools, name, value| {
            pools.entry(name).queue_depth_max = Some(within(value, 1, QUEUE_DEPTH_MAX)?);
            Some(())
        },
    },
    PoolKey {
        name: "batch_size_max",
        expected: "1 to 1048576 ops",
        set: |pools, name, value| {
            let size = within(value, 1, BATCH_SIZE_MAX)?;
            set_batching(pools, name, |_, size_max, _| *size_max = size);
            Some(())
        },
    },
    PoolKey {
        name: "batch_size_min",
        expected: "1 to 1048576 ops, at most `batch_size_max`",
        set: |pools, name, value| {
            let size = within(value, 1, BATCH_SIZE_MAX)?;
            set_batching(pools, name, |size_min, _, _| *size_min = size);
            Some(())
        },
    },
    PoolKey {
        name: "batch_wait_us_max",
        expected: "microseconds, a whole number",
        set: |pools, name, value| {
            let wait = microseconds(value)?;
            set_batching(pools, name, |_, _, wait_max| *wait_max = wait);
            Some(())
        },
    },
    PoolKey {
        name: "memory_bytes_max",
        expected: "a whole number of bytes, not negative",
        set: |pools, name, value| {
            pools.entry(name).memory_bytes_max = Some(count(value)?);
            Some(())
        },
    },
    PoolKey {
        name: "priority",
        expected: "\"normal\" or \"patient\"",
        set: |pools, name, value| {
            pools.entry(name).priority = match value.as_str()? {
                "normal" => PoolPriority::Normal,
                "patient" => PoolPriority::Patient,
                _ => return None,
            };
            Some(())
        },
    },
    PoolKey {
        name: "realtime",
        expected: "a priority from 1 to 99",
        set: |pools, name, value| {
            pools.entry(name).wishes.realtime = realtime(value)?;
            Some(())
        },
    },
    PoolKey {
        name: "isolated",
        expected: "true or false",
        set: |pools, name, value| {
            pools.entry(name).wishes.isolated = value.as_bool()?;
            Some(())
        },
    },
    PoolKey {
        name: "run_us_max",
        expected: "1 to 1000000 microseconds",
        set: |pools, _, value| {
            pools.short_run_max = microseconds(value).filter(|run| !run.is_zero() && *run <= SHORT_RUN_MAX)?;
            Some(())
        },
    },
];

/// The keys of a pool: `run_us_max` belongs to `short` alone.
pub(super) fn keys_of(name: PoolName) -> impl Iterator<Item = &'static PoolKey> {
    POOL_KEYS.iter().filter(move |key| name == PoolName::Short || key.name != "run_us_max")
}

/// The names of all pools.
pub(super) fn names() -> Vec<&'static str> {
    PoolName::all().map(PoolName::name).collect()
}

fn within(value: &Value, least: usize, most: usize) -> Option<usize> {
    count(value).filter(|count| (least..=most).contains(count))
}

/// Sets a part of a pool's batching; the other parts keep their values, or get the defaults of the
/// section `[batching]`. Sizes are compared when the runtime is built: keys come in any order.
fn set_batching(pools: &mut Pools, name: PoolName, set: impl FnOnce(&mut usize, &mut usize, &mut Duration)) {
    let batching = &mut pools.entry(name).batching;
    let (mut size_min, mut size_max, mut wait_max) = match *batching {
        Some(Batching::AtLeast { size_min, size_max, wait_max }) => (size_min, size_max, wait_max),
        _ => (1, 64, Duration::from_micros(200)),
    };
    set(&mut size_min, &mut size_max, &mut wait_max);
    *batching = Some(Batching::AtLeast { size_min, size_max, wait_max });
}
