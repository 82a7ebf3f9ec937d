//! Equal nodes become one, and nodes that no output needs are left out.

use std::collections::HashMap;
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};

use panoply_core::graph::{Graph, Kind};

/// For each node the one that stands for it: itself, an equal one before it, or none where no output needs it.
pub(crate) fn simplify(graph: &Graph) -> Vec<Option<usize>> {
    let equal = equal_nodes(graph);
    let needed = needed_nodes(graph, &equal);
    equal.iter().map(|first| needed[*first].then_some(*first)).collect()
}

/// For each node the first that is equal to it: the same op with the same arguments, of equal operands.
fn equal_nodes(graph: &Graph) -> Vec<usize> {
    // Texts are long and nodes may be many: the map has a text's hash, and two of the same hash are compared.
    let mut known: HashMap<u64, usize> = HashMap::new();
    let mut equal: Vec<usize> = Vec::with_capacity(graph.nodes().len());
    let (mut text, mut other) = (String::new(), String::new());
    for index in 0..graph.nodes().len() {
        write_node(&mut text, graph, index, &equal);
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        let first = *known.entry(hasher.finish()).or_insert(index);
        let same = first == index || {
            write_node(&mut other, graph, first, &equal);
            text == other
        };
        equal.push(if same { first } else { index });
    }
    equal
}

/// What tells a node from others: its op with all arguments, its type, and its operands.
fn write_node(text: &mut String, graph: &Graph, index: usize, equal: &[usize]) {
    let node = &graph.nodes()[index];
    text.clear();
    // Writing into a string does not fail.
    let _ = match &node.kind {
        Kind::Input => write!(text, "input {index}"),
        // Constants are told apart by where they lie: comparing their contents would read all weights.
        Kind::Constant(tensor) => {
            let place = tensor.host_bytes().map_or(index, |bytes| bytes.as_ptr() as usize);
            write!(text, "const {place} {}", tensor.offset())
        }
        kind => write!(text, "{kind:?}"),
    };
    let _ = write!(text, "|{}{:?}|", node.dtype, node.dims);
    for operand in &node.operands {
        let _ = write!(text, " {}", equal[*operand as usize]);
    }
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
