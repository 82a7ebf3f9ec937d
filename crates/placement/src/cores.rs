//! Physical cores: which CPUs share one.

use std::collections::BTreeMap;

use panoply_core::cpu_set::CpuSet;

use super::nodes::Node;
use super::sysfs::{Problem, Tree};

/// The folder of CPUs.
pub(super) const CPUS: &str = "sys/devices/system/cpu";

/// Hardware threads that a core may claim; the widest processors have eight.
pub const THREADS_PER_CORE_MAX: usize = 64;

/// One physical core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Core {
    /// Its online CPUs: more than one where the core runs several hardware threads. Never empty.
    pub cpus: CpuSet,
    /// The package it is in.
    pub package: u32,
    /// The NUMA node it is in.
    pub node: u32,
}

/// The kernel's information about one CPU. Every part of it may be missing.
#[derive(Default)]
struct Claim {
    siblings: Option<CpuSet>,
    package: Option<u32>,
    core: Option<u32>,
}

/// Groups the online CPUs into cores. Two CPUs share a core when each lists the other as its
/// sibling. CPUs without a list share a core when their package and core numbers are equal.
pub(super) fn read_cores(tree: &mut Tree<'_>, online: &CpuSet, nodes: &[Node]) -> Vec<Core> {
    let claims: BTreeMap<usize, Claim> = online.iter().map(|cpu| (cpu, read_claim(tree, cpu))).collect();
    let numbers = by_number(&claims);
    let mut taken = CpuSet::new();
    let mut cores = Vec::new();
    for (&cpu, claim) in &claims {
        if taken.contains(cpu) {
            continue;
        }
        let alone = CpuSet::from_cpus([cpu]).unwrap_or_default();
        let wanted = sharing(claim, &numbers).unwrap_or(&alone);
        let mut cpus = alone.clone();
        for other in (&(wanted & online) - &taken).iter().filter(|other| *other != cpu) {
            let claim = claims.get(&other);
            let agrees = claim.and_then(|claim| sharing(claim, &numbers)).is_some_and(|cpus| cpus.contains(cpu));
            if agrees {
                cpus = &cpus | &CpuSet::from_cpus([other]).unwrap_or_default();
            } else {
                let problem = Problem::Inconsistent("lists a sibling that does not list it back; they are kept apart");
                tree.note(&format!("{CPUS}/cpu{cpu}/topology"), problem);
            }
        }
        taken = &taken | &cpus;
        let node = nodes.iter().find(|node| node.cpus.contains(cpu)).map_or(0, |node| node.id);
        cores.push(Core { cpus, package: claim.package.unwrap_or(0), node });
    }
    cores
}

fn read_claim(tree: &mut Tree<'_>, cpu: usize) -> Claim {
    let folder = format!("{CPUS}/cpu{cpu}/topology");
    if !tree.exists(&folder) {
        tree.note(&folder, Problem::Missing);
        return Claim::default();
    }
    // The first name is the one since Linux 5.3.
    let siblings = tree
        .optional_cpus(&format!("{folder}/core_cpus_list"))
        .or_else(|| tree.optional_cpus(&format!("{folder}/thread_siblings_list")))
        .filter(|cpus| cpus.contains(cpu) && cpus.len() <= THREADS_PER_CORE_MAX);
    if siblings.is_none() {
        tree.note(&folder, Problem::Inconsistent("holds no usable list of siblings; core numbers decide"));
    }
    // Some machines write -1 for "unknown".
    let package = tree.number(&format!("{folder}/physical_package_id")).and_then(|id| u32::try_from(id).ok());
    let core = tree.number(&format!("{folder}/core_id")).and_then(|id| u32::try_from(id).ok());
    Claim { siblings, package, core }
}

type ByNumber = BTreeMap<(u32, u32), CpuSet>;

/// The CPUs without a list of siblings, by package and core number.
fn by_number(claims: &BTreeMap<usize, Claim>) -> ByNumber {
    let mut numbers = ByNumber::new();
    for (&cpu, claim) in claims {
        if let (None, Some(package), Some(core)) = (&claim.siblings, claim.package, claim.core) {
            let cpus = numbers.entry((package, core)).or_default();
            *cpus = &*cpus | &CpuSet::from_cpus([cpu]).unwrap_or_default();
        }
    }
    numbers
}

/// The CPUs that share a core with this one, by its own information. `None` when it is unknown.
fn sharing<'a>(claim: &'a Claim, numbers: &'a ByNumber) -> Option<&'a CpuSet> {
    claim.siblings.as_ref().or_else(|| numbers.get(&claim.package.zip(claim.core)?))
}
