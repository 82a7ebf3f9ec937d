//! Equal nodes become one, and nodes that no output needs are left out.

use std::collections::HashMap;
use std::fmt::Write;

use panoply_core::graph::{Graph, Kind};

/// For each node the one that stands for it: itself, an equal one before it, or none where no output needs it.
pub(crate) fn simplify(graph: &Graph) -> Vec<Option<usize>> {
    let equal = equal_nodes(graph);
    let needed = needed_nodes(graph, &equal);
    equal.iter().map(|first| needed[*first].then_some(*first)).collect()
}

/// For each node the first that is equal to it: the same op with the same arguments, of equal operands.
fn equal_nodes(graph: &Graph) -> Vec<usize> {
    let mut known: HashMap<String, usize> = HashMap::new();
    let mut equal: Vec<usize> = Vec::with_capacity(graph.nodes().len());
    for (index, node) in graph.nodes().iter().enumerate() {
        let mut key = String::new();
        // An op's text has all its arguments. Writing into a string does not fail.
        let _ = match &node.kind {
            Kind::Input => write!(key, "input {index}"),
            // Constants are told apart by where they lie: comparing their contents would read all weights.
            Kind::Constant(tensor) => {
                let place = tensor.host_bytes().map_or(index, |bytes| bytes.as_ptr() as usize);
                write!(key, "const {place} {}", tensor.offset())
            }
            kind => write!(key, "{kind:?}"),
        };
        let _ = write!(key, "|{}{:?}|", node.dtype, node.dims);
        for operand in &node.operands {
            let _ = write!(key, " {}", equal[*operand as usize]);
        }
        equal.push(*known.entry(key).or_insert(index));
    }
    equal
}

fn needed_nodes(graph: &Graph, equal: &[usize]) -> Vec<bool> {
    let mut needed = vec![false; equal.len()];
    for (_, node) in graph.outputs() {
        needed[equal[*node]] = true;
    }
    // Inputs keep their numbers, and so their slots.
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
