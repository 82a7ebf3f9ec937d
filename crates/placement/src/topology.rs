//! The machine as placement sees it: CPUs, cores, NUMA nodes, PCI devices, and which part of it
//! this process may use.
//!
//! Reading never fails. A file that is missing, malformed or contradicts another leaves a [`Note`]
//! and is replaced by the most careful assumption: a CPU without siblings, a machine with one node,
//! a device without a node. Every topology guarantees: at least one CPU is online and allowed;
//! every online CPU is in exactly one core and one node.

use std::path::Path;

use panoply_core::cpu_set::{CPU_MAX, CpuSet};

use super::affinity;
use super::cgroup::{self, CpuQuota};
use super::cores::{self, CPUS, Core};
use super::nodes::{self, Node};
use super::pci::{self, PciDevice};
use super::sysfs::{Note, Problem, Tree};

/// A processor package: the part in one socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Package {
    /// The kernel's number of the package.
    pub id: u32,
    /// Its online CPUs.
    pub cpus: CpuSet,
}

/// The hardware of the machine, and the part of it that this process may use.
#[derive(Clone, Debug)]
pub struct Topology {
    possible: CpuSet,
    online: CpuSet,
    offline: CpuSet,
    allowed: CpuSet,
    isolated: CpuSet,
    cores: Vec<Core>,
    nodes: Vec<Node>,
    devices: Vec<PciDevice>,
    quota: Option<CpuQuota>,
    notes: Vec<Note>,
}

impl Topology {
    /// This machine, with the affinity mask of the calling thread.
    pub fn current() -> Topology {
        let affinity = affinity::current().ok().or_else(|| {
            // Systems without affinity masks still report the number of CPUs.
            let count = std::thread::available_parallelism().ok()?.get();
            CpuSet::from_cpus(0..count.min(CPU_MAX + 1)).ok()
        });
        Topology::read_with_affinity(Path::new("/"), affinity.as_ref())
    }

    /// The machine whose `/sys` and `/proc` lie below `root`; `/` is this machine. Every CPU that
    /// the control group leaves is allowed: the affinity mask is ignored.
    pub fn read(root: &Path) -> Topology {
        Topology::read_with_affinity(root, None)
    }

    /// The machine below `root`, for a process with this affinity mask.
    pub fn read_with_affinity(root: &Path, affinity: Option<&CpuSet>) -> Topology {
        let mut tree = Tree::new(root);
        let (online, offline, possible) = read_cpus(&mut tree, affinity);
        let nodes = nodes::read_nodes(&mut tree, &online);
        let cores = cores::read_cores(&mut tree, &online, &nodes);
        let node_ids: Vec<u32> = nodes.iter().map(|node| node.id).collect();
        let devices = pci::read_devices(&mut tree, &node_ids);
        let limits = cgroup::read_limits(&mut tree);
        let mut allowed = narrow(&mut tree, &online, affinity, "affinity mask");
        allowed = narrow(&mut tree, &allowed, limits.cpus.as_ref(), "cpuset");
        let mut isolated = &tree.optional_cpus(&format!("{CPUS}/isolated")).unwrap_or_default() & &online;
        if let Some(cpuset) = &limits.cpus {
            isolated = &isolated & cpuset;
        }
        if !allowed.is_subset(&isolated) {
            allowed = &allowed - &isolated;
        }
        isolated = &isolated - &allowed;
        let (quota, notes) = (limits.quota, tree.into_notes());
        Topology { possible, online, offline, allowed, isolated, cores, nodes, devices, quota, notes }
    }

    /// CPUs that the kernel could ever bring up.
    pub fn possible(&self) -> &CpuSet {
        &self.possible
    }

    /// CPUs that are running.
    pub fn online(&self) -> &CpuSet {
        &self.online
    }

    /// CPUs that exist but are switched off.
    pub fn offline(&self) -> &CpuSet {
        &self.offline
    }

    /// Online CPUs that the affinity mask and the control group leave to this process, without
    /// isolated ones, unless the process has no others. Never empty.
    pub fn allowed(&self) -> &CpuSet {
        &self.allowed
    }

    /// CPUs on which the scheduler puts no thread by itself (`isolcpus`), as far as the control
    /// group permits them: for threads that ask for them. None of them is in
    /// [`allowed`](Topology::allowed).
    pub fn isolated(&self) -> &CpuSet {
        &self.isolated
    }

    /// Physical cores with an online CPU, in the order of their first CPU.
    pub fn cores(&self) -> &[Core] {
        &self.cores
    }

    /// NUMA nodes in the order of their numbers. Never empty.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The node with this number.
    pub fn node(&self, id: u32) -> Option<&Node> {
        self.nodes.iter().find(|node| node.id == id)
    }

    /// PCI devices in the order of their addresses.
    pub fn devices(&self) -> &[PciDevice] {
        &self.devices
    }

    /// The control group's share of CPU time, when there is a limit.
    pub fn quota(&self) -> Option<CpuQuota> {
        self.quota
    }

    /// How many CPUs can be kept busy: the allowed ones, or fewer when a quota limits their time.
    /// At least one.
    pub fn effective_cpus(&self) -> usize {
        self.quota.map_or(usize::MAX, |quota| quota.cpus()).min(self.allowed.len()).max(1)
    }

    /// Processor packages in the order of their numbers.
    pub fn packages(&self) -> Vec<Package> {
        let mut packages: Vec<Package> = Vec::new();
        for core in &self.cores {
            match packages.iter_mut().find(|package| package.id == core.package) {
                Some(package) => package.cpus = &package.cpus | &core.cpus,
                None => packages.push(Package { id: core.package, cpus: core.cpus.clone() }),
            }
        }
        packages.sort_by_key(|package| package.id);
        packages
    }

    /// The gaps that were found.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }
}

/// The online, offline and possible CPUs.
fn read_cpus(tree: &mut Tree<'_>, affinity: Option<&CpuSet>) -> (CpuSet, CpuSet, CpuSet) {
    let possible = tree.optional_cpus(&format!("{CPUS}/possible"));
    let listed = tree.cpus(&format!("{CPUS}/online")).filter(|cpus| !cpus.is_empty());
    let mut online = listed
        .or_else(|| scan_cpus(tree))
        .or_else(|| affinity.filter(|cpus| !cpus.is_empty()).cloned())
        .or_else(|| possible.clone().filter(|cpus| !cpus.is_empty()))
        .unwrap_or_else(|| single(0));
    if let Some(affinity) = affinity
        && !affinity.is_empty()
        && affinity.is_disjoint(&online)
    {
        let problem = Problem::Inconsistent("the affinity mask names other CPUs; the mask is believed");
        tree.note(&format!("{CPUS}/online"), problem);
        online = &online | affinity;
    }
    let possible = &possible.unwrap_or_default() | &online;
    let offline = tree.optional_cpus(&format!("{CPUS}/offline")).unwrap_or_else(|| &possible - &online);
    if !offline.is_disjoint(&online) {
        let problem = Problem::Inconsistent("lists CPUs that are online too; they are taken to be online");
        tree.note(&format!("{CPUS}/offline"), problem);
    }
    let offline = &offline - &online;
    (online, offline, possible)
}

/// Scans the folders `cpu0`, `cpu1`, …: all CPUs that are not switched off are online.
fn scan_cpus(tree: &mut Tree<'_>) -> Option<CpuSet> {
    let mut online = CpuSet::new();
    for cpu in tree.numbered(CPUS, "cpu", CPU_MAX) {
        // The first CPU often has no such file, because it cannot be switched off.
        let switch = tree.optional_text(&format!("{CPUS}/cpu{cpu}/online"));
        if switch.is_none_or(|text| text.trim_ascii() != "0") {
            online.insert(cpu).ok()?;
        }
    }
    (!online.is_empty()).then_some(online)
}

/// The part of `cpus` within a limit. All of them if the limit leaves none, because the process
/// does run somewhere.
fn narrow(tree: &mut Tree<'_>, cpus: &CpuSet, limit: Option<&CpuSet>, name: &'static str) -> CpuSet {
    let Some(limit) = limit else { return cpus.clone() };
    let rest = cpus & limit;
    if rest.is_empty() {
        tree.note(name, Problem::Inconsistent("leaves no online CPU; it is ignored"));
        return cpus.clone();
    }
    rest
}

fn single(cpu: usize) -> CpuSet {
    CpuSet::from_cpus([cpu]).unwrap_or_default()
}
