//! Merges equal nodes, and removes nodes that no output needs.

use panoply_core::graph::{Graph, Kind, Node};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

/// For each node, the node that represents it: itself, or an earlier equal node. `None` if no
/// output needs it.
pub(crate) fn simplify(graph: &Graph) -> Vec<Option<usize>> {
    let equal = equal_nodes(graph);
    let needed = needed_nodes(graph, &equal);
    equal.iter().map(|first| needed[*first].then_some(*first)).collect()
}

/// For each node, the first node equal to it: the same op with the same arguments, and equal
/// operands.
fn equal_nodes(graph: &Graph) -> Vec<usize> {
    // The map holds hashes of nodes, and nodes with equal hashes are compared.
    let keys = RandomState::new();
    let mut known: HashMap<u64, usize> = HashMap::with_capacity(graph.nodes().len());
    let mut equal: Vec<usize> = Vec::with_capacity(graph.nodes().len());
    for index in 0..graph.nodes().len() {
        let what = What::of(graph, index);
        let operands = |node: &Node| node.operands.iter().map(|operand| equal[*operand as usize]).collect::<Vec<_>>();
        let node = &graph.nodes()[index];
        let first = *known.entry(keys.hash_one((&what, node.dtype, &node.dims, operands(node)))).or_insert(index);
        let same = first == index || {
            let other = &graph.nodes()[first];
            (node.dtype, &node.dims) == (other.dtype, &other.dims)
                && what == What::of(graph, first)
                && operands(node) == operands(other)
        };
        equal.push(if same { first } else { index });
    }
    equal
}

/// The identity of a node, without its type and its operands.
#[derive(PartialEq, Eq, Hash)]
enum What<'a> {
    Input(usize),
    /// Constants are identified by their address: comparing their contents would read all weights.
    Constant(usize, usize),
    Reshape,
    Broadcast,
    Permute(&'a [usize]),
    Slice([usize; 4]),
    /// A graph stores equal ops once, so the address identifies an op.
    Op(usize),
    Part(usize),
}

impl<'a> What<'a> {
    fn of(graph: &'a Graph, index: usize) -> What<'a> {
        match &graph.nodes()[index].kind {
            Kind::Input => What::Input(index),
            Kind::Constant(tensor) => {
                let place = tensor.host_bytes().map_or(index, |bytes| bytes.as_ptr() as usize);
                What::Constant(place, tensor.offset())
            }
            Kind::Reshape => What::Reshape,
            Kind::Broadcast => What::Broadcast,
            Kind::Permute(order) => What::Permute(order),
            Kind::Slice { axis, start, end, step } => What::Slice([*axis, *start, *end, *step]),
            Kind::Op(op) => What::Op(op.address()),
            Kind::Part(port) => What::Part(*port),
        }
    }
}

fn needed_nodes(graph: &Graph, equal: &[usize]) -> Vec<bool> {
    let mut needed = vec![false; equal.len()];
    for (_, node) in graph.outputs() {
        needed[equal[*node]] = true;
    }
    // Inputs keep their numbers, and thus their slots.
    for node in graph.inputs() {
        needed[equal[*node]] = true;
    }
    for (index, node) in graph.nodes().iter().enumerate().rev() {
        if needed[index] && equal[index] == index {
            node.operands.iter().for_each(|operand| needed[equal[*operand as usize]] = true);
        }
    }
    needed
}
