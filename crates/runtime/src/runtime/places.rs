//! The plan of a runtime's workers, and the interrupts that were moved off their cores.

use std::path::Path;

use panoply_core::DeviceInfo;
use panoply_core::cpu_set::CpuSet;
use panoply_placement::{DevicePlan, DeviceWorkers, Interrupts, PlacementOptions, Topology};

use crate::domain_pools::Pools;

/// Where the workers of one runtime run.
pub(super) struct WorkerPlaces {
    options: PlacementOptions,
    pub(super) plan: DevicePlan,
    interrupts: Interrupts,
    /// The cores that interrupts were moved off.
    quiet: CpuSet,
}

impl WorkerPlaces {
    pub(super) fn new(options: PlacementOptions) -> WorkerPlaces {
        let interrupts = Interrupts::new(Path::new("/"));
        WorkerPlaces { options, plan: DevicePlan::default(), interrupts, quiet: CpuSet::new() }
    }

    /// Plans the workers of these devices. Those that run already keep their places.
    pub(super) fn update(&mut self, topology: &Topology, workers: &[DeviceWorkers<'_>]) {
        self.plan.update(topology, workers, &self.options);
        let cores = self.plan.own_cores();
        if self.options.interrupts && !cores.is_subset(&self.quiet) {
            let notes = self.interrupts.keep_off(&cores, topology.allowed());
            self.plan.note_own_cores(&notes);
            self.quiet = cores;
        }
    }

    /// Takes the interrupts that were moved: they are put back when they are dropped.
    pub(super) fn take_interrupts(&mut self) -> Interrupts {
        std::mem::replace(&mut self.interrupts, Interrupts::new(Path::new("/")))
    }
}

/// The plan of the workers of these devices on this machine, for a runtime that does not run yet.
pub(super) fn plan(devices: &[DeviceInfo], pools: &Pools, options: &PlacementOptions) -> DevicePlan {
    let mut plan = DevicePlan::default();
    plan.update(&Topology::current(), &workers(devices, pools), options);
    plan
}

/// The devices' own workers and those of their pools.
pub(super) fn workers<'a>(devices: impl IntoIterator<Item = &'a DeviceInfo>, pools: &Pools) -> Vec<DeviceWorkers<'a>> {
    let of_device = |info| std::iter::once(DeviceWorkers::one(info)).chain(pools.placed_on(info));
    devices.into_iter().flat_map(of_device).collect()
}
