//! The cores of one NUMA node while the planner assigns them to workers.

use std::collections::VecDeque;

use panoply_core::cpu_set::CpuSet;

use super::topology::Topology;

/// A node with at least one allowed CPU.
pub(super) struct Site {
    pub node: u32,
    /// Every allowed CPU of the node's cores.
    pub cpus: CpuSet,
    /// Cores that are not assigned yet, in ascending order: the number of each within the node, and
    /// its allowed CPUs.
    pub free: VecDeque<(usize, CpuSet)>,
    /// How many exclusive workers ask for this node.
    pub wanted: usize,
    /// Whether a worker asks to share CPUs of this node.
    pub has_shared: bool,
    /// Whether a worker was assigned shared CPUs of this node.
    pub has_sharers: bool,
    /// The cores of pinned workers, and those that are reserved.
    pinned: CpuSet,
    /// How many cores the node has, assigned or not.
    cores: usize,
}

impl Site {
    /// The sites of the machine in the order of their nodes; at least one. Cores with a reserved
    /// CPU are not free.
    pub fn all(topology: &Topology, reserved: &CpuSet) -> Vec<Site> {
        let sites = topology.nodes().iter().map(|node| Site::new(topology, node.id, reserved));
        sites.filter(|site| !site.cpus.is_empty()).collect()
    }

    fn new(topology: &Topology, node: u32, reserved: &CpuSet) -> Site {
        let cores = topology.cores().iter().filter(|core| core.node == node);
        let usable = cores.map(|core| &core.cpus & topology.allowed()).filter(|cpus| !cpus.is_empty());
        let free: VecDeque<(usize, CpuSet)> = usable.enumerate().collect();
        let cpus = free.iter().fold(CpuSet::new(), |all, (_, core)| &all | core);
        let (cores, pinned) = (free.len(), CpuSet::new());
        let mut site = Site { node, cpus, free, wanted: 0, has_shared: false, has_sharers: false, pinned, cores };
        (&site.cpus & reserved).iter().for_each(|cpu| site.pin(cpu));
        site
    }

    /// Takes the core of `cpu` out of the free cores, for a pinned worker.
    pub fn pin(&mut self, cpu: usize) {
        if let Some(index) = self.free.iter().position(|(_, core)| core.contains(cpu)) {
            let (_, core) = self.free.remove(index).unwrap_or_default();
            self.pinned = &self.pinned | &core;
        }
    }

    /// How many exclusive workers fit when one core is left to the workers that share.
    pub fn exclusive_max(&self) -> usize {
        let shares = self.has_shared || self.wanted > self.free.len();
        self.free.len().saturating_sub(usize::from(shares))
    }

    /// Takes a free core, and returns one CPU of it: the core with the number `turn`, counted round
    /// the node, or the next free one.
    pub fn take_core(&mut self, turn: usize) -> Option<CpuSet> {
        let preferred = turn % self.cores.max(1);
        let index = self.free.iter().position(|(number, _)| *number >= preferred).unwrap_or(0);
        let cpu = self.free.remove(index)?.1.first()?;
        CpuSet::from_cpus([cpu]).ok()
    }

    /// The CPUs of all free cores. If pinned workers hold every core, the CPUs of their cores.
    pub fn shared_cpus(&self) -> CpuSet {
        if self.free.is_empty() {
            return self.pinned.clone();
        }
        self.free.iter().fold(CpuSet::new(), |all, (_, core)| &all | core)
    }
}

/// The isolated cores that are not assigned yet, by node.
pub(super) struct IsolatedCores {
    free: Vec<(u32, CpuSet)>,
}

impl IsolatedCores {
    /// The cores whose usable CPUs are all isolated, except reserved ones.
    pub fn of(topology: &Topology, reserved: &CpuSet) -> IsolatedCores {
        let is_free = |cpus: &CpuSet| !cpus.is_empty() && cpus.is_disjoint(reserved);
        let cores = topology.cores().iter().filter(|core| core.cpus.is_disjoint(topology.allowed()));
        let usable = cores.map(|core| (core.node, &core.cpus & topology.isolated()));
        IsolatedCores { free: usable.filter(|(_, cpus)| is_free(cpus)).collect() }
    }

    /// Takes a core of this node, or, unless it must be `near`, of the nearest node that has one.
    /// Returns its node and one CPU of it.
    pub fn take(&mut self, topology: &Topology, node: Option<u32>, near: bool) -> Option<(u32, CpuSet)> {
        let home = node.and_then(|node| topology.node(node));
        let distance = |other: u32| home.map_or(0, |home| home.distance_to(other));
        let usable = (0..self.free.len()).filter(|index| !near || node == Some(self.free[*index].0));
        let index = usable.min_by_key(|index| distance(self.free[*index].0))?;
        let (node, core) = self.free.remove(index);
        Some((node, CpuSet::from_cpus([core.first()?]).ok()?))
    }
}
