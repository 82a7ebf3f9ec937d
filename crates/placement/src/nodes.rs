//! NUMA nodes: which CPUs and how much memory are near each other.

use std::collections::BTreeMap;

use panoply_core::cpu_set::CpuSet;

use super::memory::meminfo_bytes;
use super::sysfs::{Problem, Tree};

/// The largest node number: Linux stops at 1024 nodes.
pub const NODE_MAX: usize = 1023;

/// The folder of nodes.
pub(super) const NODES: &str = "sys/devices/system/node";

/// One NUMA node. It may lack CPUs (memory on a card) or memory (an unpopulated socket).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The kernel's number of the node.
    pub id: u32,
    /// Its online CPUs.
    pub cpus: CpuSet,
    /// Its memory, when known. The only node of a machine has all of the machine's memory.
    pub memory_bytes: Option<u64>,
    /// Distances to the nodes: 10 is the node itself, larger is farther. Missing nodes are at an
    /// unknown distance.
    pub distances: BTreeMap<u32, u32>,
}

impl Node {
    /// The distance to `other`; `u32::MAX`, farther than any known distance, if it is unknown. The
    /// distance to the node itself is 0.
    pub fn distance_to(&self, other: u32) -> u32 {
        if self.id == other { 0 } else { self.distances.get(&other).copied().unwrap_or(u32::MAX) }
    }
}

/// Reads the nodes and assigns every online CPU to exactly one of them.
pub(super) fn read_nodes(tree: &mut Tree<'_>, online: &CpuSet) -> Vec<Node> {
    let ids = tree.numbered(NODES, "node", NODE_MAX);
    if ids.is_empty() {
        tree.note(NODES, Problem::Inconsistent("names no NUMA node; the whole machine is taken to be node 0"));
        let memory_bytes = whole_memory_bytes(tree);
        return vec![Node { id: 0, cpus: online.clone(), memory_bytes, distances: BTreeMap::new() }];
    }
    let mut homeless = online.clone();
    let mut nodes: Vec<Node> = ids.iter().map(|&id| read_node(tree, id, &ids, online, &mut homeless)).collect();
    if let [only] = &mut nodes[..] {
        // Virtual machines report too little for their only node, because memory that was added
        // later is missing there.
        only.memory_bytes = whole_memory_bytes(tree).or(only.memory_bytes);
    }
    if !homeless.is_empty() {
        tree.note(NODES, Problem::Inconsistent("some online CPUs are in no node; they are taken to be in the first"));
        nodes[0].cpus = &nodes[0].cpus | &homeless;
    }
    nodes
}

fn read_node(tree: &mut Tree<'_>, id: usize, ids: &[usize], online: &CpuSet, homeless: &mut CpuSet) -> Node {
    let folder = format!("{NODES}/node{id}");
    let listed = &tree.cpus(&format!("{folder}/cpulist")).unwrap_or_default() & online;
    let cpus = &listed & homeless;
    if cpus != listed {
        let problem = Problem::Inconsistent("lists CPUs of an earlier node; they stay there");
        tree.note(&format!("{folder}/cpulist"), problem);
    }
    *homeless = &*homeless - &cpus;
    let file = format!("{folder}/meminfo");
    let text = tree.text(&file);
    let memory_bytes = text.as_deref().and_then(memory_bytes);
    if let (Some(text), None) = (&text, memory_bytes) {
        tree.note(&file, Problem::malformed("a line MemTotal in kB", text));
    }
    let distances = read_distances(tree, &format!("{folder}/distance"), ids);
    Node { id: id as u32, cpus, memory_bytes, distances }
}

/// Reads a node's distances. The file holds one number per online node, in the order of their
/// numbers.
fn read_distances(tree: &mut Tree<'_>, path: &str, ids: &[usize]) -> BTreeMap<u32, u32> {
    let Some(text) = tree.optional_text(path) else { return BTreeMap::new() };
    let numbers: Vec<u32> = text.split_ascii_whitespace().map_while(|word| word.parse().ok()).collect();
    if numbers.len() != ids.len() {
        tree.note(path, Problem::malformed("one distance per node", &text));
        return BTreeMap::new();
    }
    ids.iter().map(|id| *id as u32).zip(numbers).collect()
}

/// The machine's memory.
fn whole_memory_bytes(tree: &mut Tree<'_>) -> Option<u64> {
    tree.optional_text("proc/meminfo").and_then(|text| memory_bytes(&text))
}

fn memory_bytes(text: &str) -> Option<u64> {
    meminfo_bytes(text, "MemTotal:")
}
