//! The cores of one NUMA node while the planner assigns them to workers.

use std::collections::VecDeque;

use panoply_core::cpu_set::CpuSet;

use super::topology::Topology;

/// A node with at least one allowed CPU.
pub(super) struct Site {
    pub node: u32,
    /// Every allowed CPU of the node's cores.
    pub cpus: CpuSet,
    /// Cores that are not assigned yet: the allowed CPUs of each, in ascending order.
    pub free: VecDeque<CpuSet>,
    /// How many exclusive workers ask for this node.
    pub wanted: usize,
    /// Whether a worker asks to share CPUs of this node.
    pub has_shared: bool,
    /// Whether a worker was assigned shared CPUs of this node.
    pub has_sharers: bool,
    /// The cores of pinned workers.
    pinned: CpuSet,
}

impl Site {
    /// The sites of the machine in the order of their nodes; at least one.
    pub fn all(topology: &Topology) -> Vec<Site> {
        let sites = topology.nodes().iter().map(|node| Site::new(topology, node.id));
        sites.filter(|site| !site.cpus.is_empty()).collect()
    }

    fn new(topology: &Topology, node: u32) -> Site {
        let cores = topology.cores().iter().filter(|core| core.node == node);
        let usable = cores.map(|core| &core.cpus & topology.allowed()).filter(|cpus| !cpus.is_empty());
        let free: VecDeque<CpuSet> = usable.collect();
        let cpus = free.iter().fold(CpuSet::new(), |all, core| &all | core);
        Site { node, cpus, free, wanted: 0, has_shared: false, has_sharers: false, pinned: CpuSet::new() }
    }

    /// Takes the core of `cpu` out of the free cores, for a pinned worker.
    pub fn pin(&mut self, cpu: usize) {
        if let Some(index) = self.free.iter().position(|core| core.contains(cpu)) {
            let core = self.free.remove(index).unwrap_or_default();
            self.pinned = &self.pinned | &core;
        }
    }

    /// How many exclusive workers fit when one core is left to the workers that share.
    pub fn exclusive_max(&self) -> usize {
        let shares = self.has_shared || self.wanted > self.free.len();
        self.free.len().saturating_sub(usize::from(shares))
    }

    /// Takes the first free core, and returns one CPU of it.
    pub fn take_core(&mut self) -> Option<CpuSet> {
        let cpu = self.free.pop_front()?.first()?;
        CpuSet::from_cpus([cpu]).ok()
    }

    /// The CPUs of all free cores. If pinned workers hold every core, the CPUs of their cores.
    pub fn shared_cpus(&self) -> CpuSet {
        if self.free.is_empty() {
            return self.pinned.clone();
        }
        self.free.iter().fold(CpuSet::new(), |all, core| &all | core)
    }
}
