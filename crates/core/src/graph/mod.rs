//! Graphs: many ops recorded as one, on symbolic tensors.
//!
//! 1. A [`GraphBuilder`] records nodes: inputs, constants, views (reshape, permute, slice, broadcast) and any op of which
//!    [`Op::outputs`] knows the outputs. A node's operands come before it, so nothing here is recursive.
//! 2. Dimensions are numbers or products of numbers and symbols ([`Dim`]). There are no rules of shapes for ops here: an op is
//!    asked for its outputs with the symbols at two sets of sample sizes, and the dimensions follow from the two answers.
//!    Its own checks run with it, and whatever they say names the node ([`Error::Node`]).
//! 3. For given sizes of its symbols a graph becomes an [`Instance`]: a straight list of ordinary ops over placeholders,
//!    tensors that are nothing but the number of a slot. Views are strides of placeholders and cost nothing.
//! 4. What runs a graph replaces the placeholders by tensors and gives each op to its own path. Fusing, folding and memory
//!    are a compiler's business (the crate `graph`); the meaning of a graph is that of its instance, op by op, except that
//!    what lies between two ops may be kept more exactly than its element type, and that products, a softmax and products
//!    which are attention may be computed as [`Attention`](crate::op::compute::Attention) says: then a query whose scores are
//!    all -∞ comes out as zeros, not as NaN.
//! 5. A graph that no device runs whole is cut between devices ([`Parts`]).
//! 6. A graph runs as the op [`RunGraph`](crate::op::graph::RunGraph). It keeps the instances of the sizes it has met.

mod builder;
mod cut;
mod dim;
mod infer;
mod instance;
mod node;
mod placeholder;
mod rows;
mod shorthands;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use crate::error::{Error, Result};
use crate::tensor::Tensor;

pub use builder::GraphBuilder;
pub use cut::{GraphPart, Parts, Source};
pub use dim::{Dim, SYMBOLS_MAX, SymbolSizes};
pub use instance::{Instance, Origin, Slot, Step};
pub use node::{Kind, Node, NodeId};
pub use placeholder::{NOWHERE, fill_in, is_placeholder, placeholder, slot_of, view_of};

use node::Nodes;

/// The most nodes that a graph may have.
pub const NODES_MAX: usize = 1 << 17;
/// The most inputs and the most outputs that a graph may have.
pub const PORTS_MAX: usize = 1024;
/// The sizes of symbols whose instances a graph keeps. For others one is made each time.
const INSTANCES_MAX: usize = 64;

/// A recorded graph. Cloning shares it.
#[derive(Clone)]
pub struct Graph(Arc<Inner>);

/// A handle to a graph that does not keep it.
#[derive(Clone)]
pub struct WeakGraph(Weak<Inner>);

impl WeakGraph {
    /// Whether anybody still has the graph.
    pub fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }
}

struct Inner {
    id: u64,
    hash: u64,
    name: String,
    nodes: Nodes,
    inputs: Vec<usize>,
    outputs: Vec<(String, usize)>,
    /// Whether the first symbol counts rows that have nothing to do with each other.
    has_rows: bool,
    instances: [OnceLock<Arc<Instance>>; INSTANCES_MAX],
}

impl Graph {
    /// Begins to record a graph of this name.
    pub fn builder(name: &str) -> GraphBuilder {
        GraphBuilder::new(name)
    }

    fn new(name: String, nodes: Nodes, inputs: Vec<usize>, outputs: Vec<(String, usize)>) -> Graph {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let has_rows = rows::has_rows(&nodes, &inputs, &outputs);
        let hash = nodes.hash(&outputs);
        let instances = [const { OnceLock::new() }; INSTANCES_MAX];
        Graph(Arc::new(Inner { id, hash, name, nodes, inputs, outputs, has_rows, instances }))
    }

    /// The name that it was given.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// A number that no other graph of this process has.
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// A hash of its structure, constants' values and names aside: the same in every process.
    pub fn hash(&self) -> u64 {
        self.0.hash
    }

    /// The nodes, operands first.
    pub fn nodes(&self) -> &[Node] {
        &self.0.nodes.list
    }

    /// The names of the symbols.
    pub fn symbols(&self) -> &[String] {
        &self.0.nodes.symbols
    }

    /// The nodes that are inputs, in order.
    pub fn inputs(&self) -> &[usize] {
        &self.0.inputs
    }

    /// The outputs' names and nodes, in order.
    pub fn outputs(&self) -> &[(String, usize)] {
        &self.0.outputs
    }

    /// A handle that does not keep the graph: who keeps something for it learns when nobody has it any more.
    pub fn downgrade(&self) -> WeakGraph {
        WeakGraph(Arc::downgrade(&self.0))
    }

    /// What a node is called: the name that it was given, or its number.
    pub fn node_name(&self, node: usize) -> String {
        self.0.nodes.name(node)
    }

    /// A node as messages show it: its name, its op, and the types and shapes of its operands.
    pub fn node_text(&self, node: usize) -> String {
        self.0.nodes.text(node)
    }

    /// Whether the first symbol is the first dimension of every input and output, and each of its rows is computed from
    /// the same rows of the inputs alone: then graphs with different inputs can run as one, with their rows joined.
    pub fn has_rows(&self) -> bool {
        self.0.has_rows
    }

    /// The sizes of the symbols that these inputs have. Fails, naming the input, where they do not fit.
    pub fn sizes_of(&self, inputs: &[Tensor]) -> Result<SymbolSizes> {
        let Inner { nodes, inputs: ports, .. } = &*self.0;
        if inputs.len() != ports.len() {
            return Err(Error::invalid("graph: inputs", ports.len().to_string(), inputs.len()));
        }
        let mut sizes = [None; SYMBOLS_MAX];
        for (tensor, port) in inputs.iter().zip(ports) {
            nodes.bind(*port, tensor, &mut sizes).map_err(|cause| nodes.error(*port, cause))?;
        }
        let sizes = SymbolSizes(sizes.map(|size| size.unwrap_or(1)));
        // A dimension that is a product has told no symbol, so all are compared again.
        for (tensor, port) in inputs.iter().zip(ports) {
            nodes.compare(*port, tensor, &sizes).map_err(|cause| nodes.error(*port, cause))?;
        }
        Ok(sizes)
    }

    /// The graph's ops for these sizes of its symbols: made once for each of the first few, and kept.
    pub fn instance(&self, sizes: &SymbolSizes) -> Result<Arc<Instance>> {
        for place in &self.0.instances {
            match place.get() {
                Some(instance) if instance.sizes == *sizes => return Ok(Arc::clone(instance)),
                Some(_) => {}
                None => {
                    let made = Arc::new(Instance::new(self, sizes)?);
                    let kept = place.get_or_init(|| Arc::clone(&made));
                    // Where another thread was first with other sizes, this one is not kept: the next call finds a place.
                    return Ok(if kept.sizes == *sizes { Arc::clone(kept) } else { made });
                }
            }
        }
        Instance::new(self, sizes).map(Arc::new)
    }
}

impl PartialEq for Graph {
    fn eq(&self, other: &Graph) -> bool {
        self.id() == other.id()
    }
}

impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Graph({} with {} nodes)", self.name(), self.nodes().len())
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
