//! Gives every worker its CPUs, near its device.
//!
//! [`PlacementPlan::new`] either satisfies the request, with a note for every compromise, or
//! returns a typed error that names the part of the request that contradicts the machine. It
//! follows the rules of the module `planner`.

use std::fmt;

use panoply_core::cpu_set::CpuSet;
use panoply_core::device::PciAddress;

use super::error::PlacementError;
use super::planner;
use super::request::{Affinity, Request, Role};
use super::topology::Topology;

/// The placement of one worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerSlot {
    /// The worker's role.
    pub role: Role,
    /// The device it serves.
    pub device: Option<PciAddress>,
    /// The NUMA node it is on.
    pub node: u32,
    /// The CPUs it runs on. Never empty, and always within the CPUs that the process may use.
    pub cpus: CpuSet,
    /// Whether it shares these CPUs.
    pub affinity: Affinity,
    /// Whether its CPU is isolated: the scheduler puts no other thread there by itself.
    pub isolated: bool,
    /// The index of its demand in the request; `None` for application workers.
    pub demand: Option<usize>,
}

/// A difference between the plan and the request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanNote {
    /// Some exclusive workers share instead, because their node has too few cores or the quota
    /// grants too little time.
    Degraded {
        /// The workers' role.
        role: Role,
        /// The device they serve.
        device: Option<PciAddress>,
        /// The node they are on.
        node: u32,
        /// Workers that share.
        shared: usize,
        /// Workers that were to be exclusive.
        wanted: usize,
    },
    /// The node asked for has no CPU that the process may use.
    Moved {
        /// The workers' role.
        role: Role,
        /// The device they serve.
        device: Option<PciAddress>,
        /// The requested node.
        wanted: u32,
        /// The nearest node with allowed CPUs.
        got: u32,
    },
    /// A worker is pinned to a CPU of another node than its device's.
    PinnedFar {
        /// The worker's role.
        role: Role,
        /// The CPU it is pinned to.
        cpu: usize,
        /// The requested node.
        wanted: u32,
        /// The node of the CPU.
        got: u32,
    },
    /// Some workers that asked for isolated CPUs run on others, because no isolated core is left.
    NotIsolated {
        /// The workers' role.
        role: Role,
        /// The device they serve.
        device: Option<PciAddress>,
        /// Workers on other CPUs.
        others: usize,
        /// Workers that were to be on isolated CPUs.
        wanted: usize,
    },
    /// Pinned workers hold every core of a node, so the others run on the same cores.
    PinnedShared {
        /// The node.
        node: u32,
    },
    /// There are more application workers than cores left, so they share.
    ApplicationsShared {
        /// Application workers asked for.
        workers: usize,
        /// Cores that are left.
        cores: usize,
    },
    /// The control group's quota keeps fewer CPUs busy than the process may use.
    Quota {
        /// CPUs that the quota keeps busy.
        cpus: usize,
        /// CPUs that are allowed.
        allowed: usize,
    },
}

/// Where every worker runs: one slot per worker, in the order of nodes and roles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementPlan {
    slots: Vec<WorkerSlot>,
    notes: Vec<PlanNote>,
}

impl PlacementPlan {
    /// Plans a slot for every worker of the request.
    pub fn new(topology: &Topology, request: &Request) -> Result<PlacementPlan, PlacementError> {
        let (slots, notes) = planner::place(topology, request)?;
        Ok(PlacementPlan { slots, notes })
    }

    /// Plans workers for every accelerator of the machine, in the numbers of the default table.
    pub fn for_devices(topology: &Topology) -> Result<PlacementPlan, PlacementError> {
        PlacementPlan::new(topology, &Request::for_devices(topology, &Default::default()))
    }

    /// One slot per worker.
    pub fn slots(&self) -> &[WorkerSlot] {
        &self.slots
    }

    /// The differences between the plan and the request.
    pub fn notes(&self) -> &[PlanNote] {
        &self.notes
    }

    /// The slots of one role.
    pub fn role(&self, role: Role) -> impl Iterator<Item = &WorkerSlot> {
        self.slots.iter().filter(move |slot| slot.role == role)
    }
}

/// A table with one line per group of like slots, and the notes below it.
impl fmt::Display for PlacementPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<5}{:<13}{:<15}{:>7}  {:<11}cpus", "node", "role", "device", "workers", "affinity")?;
        for group in self.slots.chunk_by(WorkerSlot::is_like) {
            let WorkerSlot { role, device, node, affinity, .. } = &group[0];
            let device = device.map_or("-".to_owned(), |address| address.to_string());
            let cpus = group.iter().fold(CpuSet::new(), |cpus, slot| &cpus | &slot.cpus);
            writeln!(f, "{node:<5}{role:<13}{device:<15}{:>7}  {affinity:<11}{cpus}", group.len())?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "note: {note}"))
    }
}

impl WorkerSlot {
    fn is_like(&self, other: &WorkerSlot) -> bool {
        (self.node, self.role, self.device, self.affinity) == (other.node, other.role, other.device, other.affinity)
    }
}

impl fmt::Display for PlanNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = |device: &Option<PciAddress>| device.map(|address| format!(" of {address}")).unwrap_or_default();
        match self {
            PlanNote::Degraded { role, device, node, shared, wanted } => {
                let of = at(device);
                write!(f, "{shared} of {wanted} {role} workers{of} share the free CPUs of node {node}: too few cores")
            }
            PlanNote::Moved { role, device, wanted, got } => {
                let of = at(device);
                write!(f, "{role} workers{of} run on node {got}: no CPU of node {wanted} is allowed")
            }
            PlanNote::PinnedFar { role, cpu, wanted, got } => {
                write!(f, "{role} worker pinned to CPU {cpu} of node {got}, away from node {wanted}")
            }
            PlanNote::NotIsolated { role, device, others, wanted } => {
                let of = at(device);
                write!(f, "{others} of {wanted} {role} workers{of} run on ordinary CPUs: no isolated core is left")
            }
            PlanNote::PinnedShared { node } => {
                write!(f, "pinned workers hold every core of node {node}; shared workers run there too")
            }
            PlanNote::ApplicationsShared { workers, cores } => {
                write!(f, "{workers} application workers share {cores} free cores")
            }
            PlanNote::Quota { cpus, allowed } => {
                write!(f, "the CPU quota keeps {cpus} of {allowed} allowed CPUs busy")
            }
        }
    }
}
