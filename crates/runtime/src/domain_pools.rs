//! Pools: which kinds of work have workers of their own on a device.
//!
//! 1. A device has one worker of its own. It takes every op that no pool takes, and it alone keeps
//!    tensors on the device.
//! 2. A pool adds workers to a device: a thread, a queue and an engine each. They are not further
//!    devices: health, measured times and counters belong to the device.
//! 3. The pool `short` takes the ops that are expected to be short ([`Pools::short_run_max`]), so
//!    that they never wait for a long op. Threads of both share the cores by time. A pool of a
//!    domain takes all ops of its domain.
//! 4. An op that makes or names a device object, or that has a sink, never goes to `short`, since
//!    only one engine knows the object. The ops of a pool's domain keep their objects in the pool's
//!    first worker.
//! 5. On a device that does not share the host's memory, a pool takes only ops whose inputs are on
//!    the host and whose output is wanted there ([`RunOptions::to_host`](crate::RunOptions)).
//! 6. A worker of a pool that is not ready is passed over, and the device's own worker takes its
//!    ops. A device that was given up takes the workers of its pools with it.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use panoply_core::cpu_set::CpuSet;
use panoply_core::{Capabilities, Describe, DeviceId, DeviceInfo, Domain, Op};
use panoply_placement::{DeviceWorkers, WorkerWishes};

use crate::batcher::Batching;

/// The most workers of one pool on one device.
pub const POOL_WORKERS_MAX: usize = 16;
/// The largest value of [`Pools::short_run_max`].
pub const SHORT_RUN_MAX: Duration = Duration::from_secs(1);

/// The name of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PoolName {
    /// Ops that are expected to be short, of any domain without a pool of its own.
    Short,
    /// The ops of one domain.
    Domain(Domain),
}

impl PoolName {
    /// The name in settings and reports.
    pub const fn name(self) -> &'static str {
        match self {
            PoolName::Short => "short",
            PoolName::Domain(domain) => domain.name(),
        }
    }

    /// The pool of this name in settings. Ops that are defined outside this workspace have none.
    pub fn named(name: &str) -> Option<PoolName> {
        PoolName::all().find(|pool| pool.name() == name)
    }

    /// Every pool that can be configured.
    pub fn all() -> impl Iterator<Item = PoolName> {
        let domains = Domain::ALL.iter().filter(|domain| **domain != Domain::Extension);
        std::iter::once(PoolName::Short).chain(domains.map(|domain| PoolName::Domain(*domain)))
    }
}

impl fmt::Display for PoolName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How the threads of a pool share the cores with the other threads of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PoolPriority {
    /// Like all other threads.
    #[default]
    Normal,
    /// They give way to all other threads (a nice value of 10, and Linux's batch policy).
    Patient,
}

/// One pool.
#[derive(Clone, Debug, PartialEq)]
pub struct DevicePool {
    /// Number of workers on each of its devices, from 1 to [`POOL_WORKERS_MAX`]; `short` may have
    /// none.
    pub workers: usize,
    /// The CPUs of its threads. `None`: those of the device. A device that has none of these CPUs
    /// gets no worker of the pool.
    pub cores: Option<CpuSet>,
    /// The share of the device's cores on which each of its engines computes, above 0 and at most
    /// 1.
    pub core_share: f32,
    /// The devices that have workers of the pool, and the only ones that run ops of its domain.
    /// Empty: every device runs them, and the processor has workers of the pool.
    pub devices: Vec<DeviceId>,
    /// The capacity of each worker's queue. `None`: that of the runtime's limits.
    pub queue_depth_max: Option<usize>,
    /// When ops that could run as one go to an engine. `None`: as in the rest of the runtime.
    pub batching: Option<Batching>,
    /// The most bytes that each of its engines may cache for reuse. `None`: that of the runtime's
    /// open options.
    pub memory_bytes_max: Option<usize>,
    /// How its threads share the cores.
    pub priority: PoolPriority,
    /// Real-time scheduling and isolated CPUs for its workers.
    pub wishes: WorkerWishes,
}

impl Default for DevicePool {
    fn default() -> DevicePool {
        DevicePool {
            workers: 1,
            cores: None,
            core_share: 1.0,
            devices: Vec::new(),
            queue_depth_max: None,
            batching: None,
            memory_bytes_max: None,
            priority: PoolPriority::Normal,
            wishes: WorkerWishes::default(),
        }
    }
}

/// The pools of a runtime. By default the processor has one worker for short ops beside its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Pools {
    /// The pool for short ops.
    pub short: DevicePool,
    /// The longest expected time of an op that goes to `short`, above 0 and at most
    /// [`SHORT_RUN_MAX`].
    pub short_run_max: Duration,
    /// The pools of domains. A domain without one has no workers of its own.
    pub domains: BTreeMap<Domain, DevicePool>,
}

impl Default for Pools {
    fn default() -> Pools {
        let short_run_max = Duration::from_micros(200);
        Pools { short: DevicePool::default(), short_run_max, domains: BTreeMap::new() }
    }
}

impl Pools {
    /// No pools: each device has its own worker and no other.
    pub fn none() -> Pools {
        Pools { short: DevicePool { workers: 0, ..DevicePool::default() }, ..Pools::default() }
    }

    /// The pool of this name, if it is configured.
    pub fn get(&self, name: PoolName) -> Option<&DevicePool> {
        match name {
            PoolName::Short => Some(&self.short),
            PoolName::Domain(domain) => self.domains.get(&domain),
        }
    }

    /// The pool of this name, to be changed. A pool that is not configured yet begins with the
    /// defaults.
    pub fn entry(&mut self, name: PoolName) -> &mut DevicePool {
        match name {
            PoolName::Short => &mut self.short,
            PoolName::Domain(domain) => self.domains.entry(domain).or_default(),
        }
    }

    /// Every configured pool.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (PoolName, &DevicePool)> {
        let domains = self.domains.iter().map(|(domain, pool)| (PoolName::Domain(*domain), pool));
        std::iter::once((PoolName::Short, &self.short)).chain(domains)
    }

    /// The pools with workers on this device, each as often as it has workers, with the number of
    /// the worker within its pool.
    pub(crate) fn workers_on(&self, info: &DeviceInfo) -> impl Iterator<Item = (PoolName, usize)> {
        let here = self.iter().filter(|(_, pool)| pool.has_workers_on(info));
        here.flat_map(|(name, pool)| (0..pool.workers).map(move |number| (name, number)))
    }

    /// The workers of all pools on this device, for the plan of places.
    pub(crate) fn placed_on<'a>(&self, info: &'a DeviceInfo) -> impl Iterator<Item = DeviceWorkers<'a>> {
        let here = self.iter().filter(|(_, pool)| pool.workers > 0 && pool.has_workers_on(info));
        here.map(|(name, pool)| DeviceWorkers {
            info,
            pool: Some(name.name()),
            workers: pool.workers,
            wishes: pool.wishes,
        })
    }

    /// Whether the pool of the op's domain lets this device run the op. An op that can run on one
    /// device only is not bound by its pool.
    pub(crate) fn serve(&self, op: &Op, device: DeviceId) -> bool {
        if self.domains.is_empty() || matches!(op, Op::Extension(_)) {
            return true;
        }
        self.domains.get(&op.domain()).is_none_or(|pool| pool.serves(device)) || op.bound_to().is_some()
    }
}

impl DevicePool {
    fn serves(&self, device: DeviceId) -> bool {
        self.devices.is_empty() || self.devices.contains(&device)
    }

    /// Whether the pool has workers on this device: by default on the processor, whose engines
    /// share the cores by time. A device that only one process may open is opened once.
    fn has_workers_on(&self, info: &DeviceInfo) -> bool {
        let shares_cores = info.is_processor() && info.computes_in_submit && info.runs_on_cores;
        let runs_own_ops = !info.capabilities.has(Capabilities::WHOLE_MODELS);
        let wanted = if self.devices.is_empty() { shares_cores && runs_own_ops } else { self.serves(info.id) };
        wanted && !info.is_exclusive
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use panoply_core::{Api, DeviceKind};

    fn processor() -> DeviceInfo {
        let mut info = DeviceInfo::new(DeviceId { api: Api::CPU, index: 0 }, "cores", DeviceKind::Cpu);
        (info.shares_host_memory, info.computes_in_submit, info.runs_on_cores) = (true, true, true);
        info
    }

    fn workers(pools: &Pools, info: &DeviceInfo) -> Vec<(&'static str, usize)> {
        pools.workers_on(info).map(|(pool, number)| (pool.name(), number)).collect()
    }

    #[test]
    fn by_default_the_processor_alone_has_a_worker_for_short_ops() {
        let gpu = DeviceInfo::new(DeviceId { api: Api::CUDA, index: 0 }, "gpu", DeviceKind::DiscreteGpu);
        assert_eq!(workers(&Pools::default(), &processor()), [("short", 0)]);
        assert!(workers(&Pools::default(), &gpu).is_empty() && workers(&Pools::none(), &processor()).is_empty());
        let models = Capabilities { features: vec![Capabilities::WHOLE_MODELS.to_owned()], ..Capabilities::default() };
        let models = DeviceInfo { capabilities: models, ..processor() };
        assert!(workers(&Pools::default(), &models).is_empty(), "it runs no short ops");
    }

    #[test]
    fn a_pool_has_its_workers_on_the_devices_that_it_names() {
        let gpu = DeviceInfo::new(DeviceId { api: Api::CUDA, index: 1 }, "gpu", DeviceKind::DiscreteGpu);
        let mut pools = Pools::none();
        let crypto = pools.entry(PoolName::Domain(Domain::Crypto));
        (crypto.workers, crypto.devices) = (2, vec![gpu.id]);
        assert_eq!(workers(&pools, &gpu), [("crypto", 0), ("crypto", 1)]);
        assert!(workers(&pools, &processor()).is_empty());
        let exclusive = DeviceInfo { is_exclusive: true, ..gpu };
        assert!(workers(&pools, &exclusive).is_empty(), "it can be opened once");
    }

    #[test]
    fn pools_are_found_by_name() {
        let names: Vec<&str> = PoolName::all().map(PoolName::name).collect();
        assert_eq!(names, ["short", "compute", "crypto", "signal", "graph"]);
        assert!(names.iter().all(|name| PoolName::named(name).is_some_and(|pool| pool.name() == *name)));
        assert_eq!((PoolName::named("extension"), PoolName::named("")), (None, None));
    }
}
