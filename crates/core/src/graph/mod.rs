//! Graphs: many ops recorded as one, on symbolic tensors.
//!
//! 1. A [`GraphBuilder`] records nodes: inputs, constants, views (reshape, permute, slice,
//!    broadcast) and any op whose outputs [`Op::outputs`] knows. Operands come before the nodes
//!    that use them, so no code here is recursive.
//! 2. Dimensions are numbers or products of numbers and symbols ([`Dim`]). Graphs have no shape
//!    rules of their own. An op is asked for its outputs with the symbols at two sets of sample
//!    sizes, and the dimensions follow from the two answers. This runs the op's own checks, and
//!    their errors name the node ([`Error::Node`]).
//! 3. For given sizes of its symbols a graph becomes an [`Instance`]: a flat list of ordinary ops
//!    over placeholders. A placeholder is a tensor that only names a slot. Views are strides of
//!    placeholders and cost nothing.
//! 4. The runner of a graph replaces the placeholders by tensors and runs each op in the ordinary
//!    way. Fusing, constant folding and memory planning are the job of a compiler (the crate
//!    `graph`). A graph has the meaning of its instance, op by op, with two exceptions. An
//!    intermediate result may be kept more exactly than its element type. And products, a softmax
//!    and products that form attention may be computed as
//!    [`Attention`](crate::op::compute::Attention) specifies; then a query whose scores are all -∞
//!    gives zeros, not NaN.
//! 5. A graph that no device can run whole is cut between devices ([`GraphParts`]).
//! 6. A graph runs as the op [`RunGraph`](crate::op::graph::RunGraph). It caches the instances of
//!    the sizes that it has met.

mod builder;
mod cut;
mod dim;
mod infer;
mod instance;
mod node;
mod placeholder;
mod refusal;
mod rows;
mod shorthands;
mod templates;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crate::error::{Error, Result};
use crate::once::OnceBox;
use crate::tensor::Tensor;

pub use builder::GraphBuilder;
pub use cut::{GraphPart, GraphParts, TensorSource};
pub use dim::{Dim, SYMBOLS_MAX, SymbolSizes};
pub use instance::{Contents, Instance, Origin, Outputs, Slot, Step};
pub use node::{Kind, Node, NodeId};
pub use placeholder::{NOWHERE, fill_in, is_placeholder, placeholder, slot_of, view_of};
pub use templates::Template;

use node::Nodes;

/// The most nodes that a graph may have.
pub const NODES_MAX: usize = 1 << 17;
/// The most inputs, and the most outputs, of a graph.
pub const PORTS_MAX: usize = 1024;
/// Number of instances that a graph caches, one for each set of symbol sizes. Further instances are
/// made for each run.
const INSTANCES_MAX: usize = 64;

/// A recorded graph. A clone shares it.
#[derive(Clone)]
pub struct Graph(Arc<Inner>);

/// A handle that does not keep its graph alive.
#[derive(Clone)]
pub struct WeakGraph(Weak<Inner>);

impl WeakGraph {
    /// Whether a handle to the graph is alive.
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
    /// Whether the first symbol counts rows that are independent of each other.
    has_rows: bool,
    instances: [OnceBox<Arc<Instance>>; INSTANCES_MAX],
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
        let instances = [const { OnceBox::new() }; INSTANCES_MAX];
        Graph(Arc::new(Inner { id, hash, name, nodes, inputs, outputs, has_rows, instances }))
    }

    /// The graph's name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// An id that is unique in this process.
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// A hash of the structure, without names and the values of constants. It is the same in every
    /// process.
    pub fn hash(&self) -> u64 {
        self.0.hash
    }

    /// The nodes, operands before the nodes that use them.
    pub fn nodes(&self) -> &[Node] {
        &self.0.nodes.list
    }

    /// The names of the symbols.
    pub fn symbols(&self) -> &[String] {
        &self.0.nodes.symbols
    }

    /// The indices of the input nodes, in order.
    pub fn inputs(&self) -> &[usize] {
        &self.0.inputs
    }

    /// The name and the node index of each output, in order.
    pub fn outputs(&self) -> &[(String, usize)] {
        &self.0.outputs
    }

    /// Makes a handle that does not keep the graph alive. A cache uses it to notice when the graph
    /// is gone.
    pub fn downgrade(&self) -> WeakGraph {
        WeakGraph(Arc::downgrade(&self.0))
    }

    /// The name of a node, or its number if it has no name.
    pub fn node_name(&self, node: usize) -> String {
        self.0.nodes.name(node)
    }

    /// The text of a node in messages: its name, its op, and the types and shapes of its operands.
    pub fn node_text(&self, node: usize) -> String {
        self.0.nodes.text(node)
    }

    /// Whether the first symbol is the first dimension of every input and output, and each output
    /// row depends only on the same rows of the inputs. Then runs with different inputs can be
    /// joined row by row.
    pub fn has_rows(&self) -> bool {
        self.0.has_rows
    }

    /// The sizes of the symbols for these inputs. If an input does not fit, the error names the
    /// input.
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
        // A dimension that is a product binds no symbol, so all inputs are compared again.
        for (tensor, port) in inputs.iter().zip(ports) {
            nodes.compare(*port, tensor, &sizes).map_err(|cause| nodes.error(*port, cause))?;
        }
        Ok(sizes)
    }

    /// The graph's ops for these sizes of its symbols. The first few instances are cached.
    pub fn instance(&self, sizes: &SymbolSizes) -> Result<Arc<Instance>> {
        for place in &self.0.instances {
            match place.get() {
                Some(instance) if instance.sizes == *sizes => return Ok(Arc::clone(instance)),
                Some(_) => {}
                None => {
                    let made = Arc::new(Instance::new(self, sizes)?);
                    let kept = place.get_or_make(|| Arc::clone(&made));
                    // Another thread may have filled this slot with other sizes. Then this instance
                    // is not cached; the next call finds a free slot.
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
