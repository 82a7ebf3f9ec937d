//! Recording: turns nodes of a model into nodes of a graph, for which devices have ops.
//!
//! A node is recorded only if the graph's ops mean exactly what `ops` defines, in element types
//! that devices have. Every other node is left to the host: nothing here is an approximation, and
//! nothing here is an error.

mod bytes;
mod forms;
mod kernels;
mod maps;
mod pad;
mod pixels;
mod products;
mod quantize;
mod recurrent;
mod resample;
mod resize;
mod rows;
mod scatter;
mod views;

use std::collections::HashMap;
use std::sync::Arc;

use panoply_core::DType;
use panoply_core::expr::Expr;
use panoply_core::graph::{Dim, Graph, GraphBuilder, NodeId};

use crate::array::Array;
use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::ops::call::Call;
use crate::program::Node;
use crate::value::Value;
use bytes::Bytes;
pub(crate) use bytes::Origin;

/// An operand of a node that may be recorded.
pub(crate) enum Arg {
    Missing,
    Static(Array),
    Dynamic { kind: ElementType, dims: Vec<usize>, at: VaryingOperand },
}

/// The location of an operand that changes from run to run.
#[derive(Clone, Copy)]
pub(crate) enum VaryingOperand {
    Slot(usize),
    Node(NodeId),
}

/// The outputs of a recorded node with their element types. `None` if the node cannot be recorded.
pub(crate) type LoweredOutputs = Result<Option<Vec<(NodeId, ElementType)>>>;

/// Makes a slot with the indices of another slot in the form that devices read, for an axis of this
/// length.
pub(crate) type MakeIndices<'a> = dyn FnMut(usize, usize) -> Result<usize> + 'a;

/// The constant bytes from which the constant operand at a position was dequantized, if it was.
pub(crate) type Origins<'a> = dyn Fn(usize) -> Option<Arc<Origin>> + 'a;

/// A graph under construction.
pub(crate) struct Recording {
    graph: GraphBuilder,
    inputs: Vec<usize>,
    ports: HashMap<usize, NodeId>,
    constants: HashMap<(usize, Vec<usize>, ElementType), NodeId>,
    /// Constants that are identified by address. Holding them prevents reuse of an address.
    held: Vec<Array>,
    /// Nodes that are reshaped matrices, with the matrices. Elementwise nodes that follow are
    /// recorded on the matrices, so that they are fused into the product.
    flat: HashMap<NodeId, NodeId>,
    /// Float nodes that were dequantized from bytes, with the bytes.
    bytes: HashMap<NodeId, Bytes>,
    /// Whether the graph looks values up by indices that come with each run. `has_products` says
    /// whether it has a product.
    has_lookups: bool,
    pub(crate) has_products: bool,
}

impl Recording {
    pub(crate) fn new() -> Result<Recording> {
        let graph = Graph::builder("model");
        let (inputs, ports, constants, held) = (Vec::new(), HashMap::new(), HashMap::new(), Vec::new());
        Ok(Recording {
            graph,
            inputs,
            ports,
            constants,
            held,
            flat: HashMap::new(),
            bytes: HashMap::new(),
            has_lookups: false,
            has_products: false,
        })
    }

    /// Whether the graph has look-ups and no product yet.
    pub(crate) fn looks_up_alone(&self) -> bool {
        self.has_lookups && !self.has_products
    }

    /// The dimensions of a node.
    pub(crate) fn dims(&self, node: NodeId) -> Option<Vec<usize>> {
        let (_, dims) = self.graph.type_of(node).ok()?;
        dims.iter().map(Dim::as_fixed).collect()
    }

    /// Records a node. `None` if devices have no op for it.
    pub(crate) fn record(
        &mut self,
        node: &Arc<Node>,
        args: &[Arg],
        origins: &Origins<'_>,
        indices: &mut MakeIndices<'_>,
    ) -> LoweredOutputs {
        let statics: Vec<Option<Value>> = args
            .iter()
            .map(|arg| match arg {
                Arg::Static(array) => Some(array.clone().into()),
                _ => None,
            })
            .collect();
        let call = Call { node, inputs: &statics };
        let mut lower = Lower { recording: self, node, call, args, origins, indices };
        match lower.record() {
            Ok(recorded) => Ok(recorded),
            // A node that a graph refuses (a shape of too many dimensions, an empty maximum) runs
            // on the host, which computes it or reports its own error.
            Err(Error::Run(_) | Error::Invalid { .. } | Error::Unsupported { .. } | Error::Limit { .. }) => Ok(None),
            Err(other) => Err(other),
        }
    }

    /// The graph with these outputs, and the slots of its inputs.
    pub(crate) fn finish(mut self, outputs: &[NodeId]) -> Result<(Graph, Vec<usize>)> {
        for (place, node) in outputs.iter().enumerate() {
            self.graph.output(&format!("o{place}"), *node)?;
        }
        Ok((self.graph.finish()?, self.inputs))
    }

    fn constant(&mut self, array: &Array) -> Result<NodeId> {
        let key = (array.bytes().as_ptr() as usize, array.dims().to_vec(), array.kind());
        if let Some(node) = self.constants.get(&key) {
            return Ok(*node);
        }
        let node = self.graph.unnamed_constant(&array.tensor()?)?;
        self.constants.insert(key, node);
        self.held.push(array.clone());
        Ok(node)
    }

    fn port(&mut self, slot: usize, kind: ElementType, dims: &[usize]) -> Result<NodeId> {
        if let Some(node) = self.ports.get(&slot) {
            return Ok(*node);
        }
        let dtype = carrier(kind)?;
        let node = self.graph.input(&format!("s{slot}"), dtype, &fixed(dims))?;
        self.inputs.push(slot);
        self.ports.insert(slot, node);
        Ok(node)
    }
}

/// Dimensions in the graph's type.
fn fixed(dims: &[usize]) -> Vec<Dim> {
    dims.iter().map(|dim| Dim::fixed(*dim)).collect()
}

fn carrier(kind: ElementType) -> Result<DType> {
    kind.carrier().ok_or_else(|| Error::unsupported(format!("{kind} on a device")))
}

/// The node being recorded.
struct Lower<'a, 'i> {
    recording: &'a mut Recording,
    node: &'a Arc<Node>,
    /// The call with its constant operands; the others are missing.
    call: Call<'a>,
    args: &'a [Arg],
    origins: &'a Origins<'a>,
    indices: &'a mut MakeIndices<'i>,
}

impl Lower<'_, '_> {
    fn record(&mut self) -> LoweredOutputs {
        if let Some(recorded) = self.map()? {
            return Ok(Some(recorded));
        }
        let op = self.node.op.as_str();
        match op {
            "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze" | "Transpose" | "Expand" | "Slice" | "Split"
            | "DepthToSpace" | "SpaceToDepth" | "Gather" | "GatherElements" | "GatherND" | "Cast" => self.view(),
            "MatMul" | "Gemm" | "Conv" | "ConvTranspose" | "MaxPool" | "AveragePool" | "GlobalAveragePool"
            | "GlobalMaxPool" => self.product(),
            "Softmax"
            | "LogSoftmax"
            | "LayerNormalization"
            | "RMSNormalization"
            | "BatchNormalization"
            | "InstanceNormalization"
            | "ArgMax"
            | "ArgMin"
            | "TopK"
            | "CumSum" => self.row(),
            "QuantizeLinear" | "DequantizeLinear" | "DynamicQuantizeLinear" | "MatMulInteger" => self.quantized(),
            "LSTM" | "GRU" | "RNN" => self.recurrent(),
            "ScatterElements" => self.scatter(),
            op if op.starts_with("Reduce") => self.row(),
            _ => self.kernel(),
        }
    }

    fn kind(&self, place: usize) -> Result<ElementType> {
        match self.args.get(place) {
            Some(Arg::Static(array)) => Ok(array.kind()),
            Some(Arg::Dynamic { kind, .. }) => Ok(*kind),
            _ => Err(Error::invalid("an operand", "a value", "none")),
        }
    }

    fn dims(&self, place: usize) -> Result<&[usize]> {
        match self.args.get(place) {
            Some(Arg::Static(array)) => Ok(array.dims()),
            Some(Arg::Dynamic { dims, .. }) => Ok(dims),
            _ => Err(Error::invalid("an operand", "a value", "none")),
        }
    }

    fn is_given(&self, place: usize) -> bool {
        !matches!(self.args.get(place), None | Some(Arg::Missing))
    }

    fn fixed(&self, place: usize) -> Option<&Array> {
        match self.args.get(place) {
            Some(Arg::Static(array)) => Some(array),
            _ => None,
        }
    }

    /// The operand as a node of the graph.
    fn id(&mut self, place: usize) -> Result<NodeId> {
        match self.args.get(place) {
            Some(Arg::Static(array)) => self.recording.constant(array),
            Some(Arg::Dynamic { at: VaryingOperand::Node(node), .. }) => Ok(*node),
            Some(Arg::Dynamic { at: VaryingOperand::Slot(slot), kind, dims }) => {
                self.recording.port(*slot, *kind, dims)
            }
            _ => Err(Error::invalid("an operand", "a value", "none")),
        }
    }

    fn graph(&mut self) -> &mut GraphBuilder {
        &mut self.recording.graph
    }

    fn node_dims(&self, node: NodeId) -> Result<Vec<usize>> {
        self.recording.dims(node).ok_or_else(|| Error::unsupported("symbolic dimensions"))
    }

    fn reshape(&mut self, node: NodeId, dims: &[usize]) -> Result<NodeId> {
        if self.node_dims(node)? == dims {
            return Ok(node);
        }
        Ok(self.graph().reshape(node, &fixed(dims))?)
    }

    fn constant(&mut self, array: &Array) -> Result<NodeId> {
        self.recording.constant(array)
    }

    /// A matrix reshaped with its number of columns kept.
    fn shaped(&mut self, matrix: NodeId, dims: &[usize]) -> Result<NodeId> {
        let node = self.reshape(matrix, dims)?;
        if node != matrix {
            self.recording.flat.insert(node, matrix);
        }
        Ok(node)
    }

    /// An elementwise expression of nodes.
    fn expression(&mut self, nodes: &[NodeId], make: impl FnOnce(&[Expr]) -> Expr) -> Result<NodeId> {
        Ok(self.graph().map(nodes, make)?)
    }

    /// As `expression`, but fused into the product that makes one of the nodes, if possible.
    fn epilogue(&mut self, nodes: &[NodeId], make: impl FnOnce(&[Expr]) -> Expr) -> Result<NodeId> {
        match self.matrices(nodes)? {
            Some((matrices, dims)) => {
                let node = self.graph().map(&matrices, make)?;
                self.shaped(node, &dims)
            }
            None => Ok(self.graph().map(nodes, make)?),
        }
    }

    /// The nodes as matrices and rows, and their common shape. `None` if a node is neither.
    fn matrices(&mut self, nodes: &[NodeId]) -> Result<Option<(Vec<NodeId>, Vec<usize>)>> {
        let Some(first) = nodes.iter().find(|node| self.recording.flat.contains_key(node)) else { return Ok(None) };
        let dims = self.node_dims(*first)?;
        let columns = dims.last().copied().unwrap_or(1);
        let mut matrices = Vec::with_capacity(nodes.len());
        for node in nodes {
            let own = self.node_dims(*node)?;
            let is_row = own.len() <= dims.len() && own.last() == Some(&columns);
            matrices.push(match self.recording.flat.get(node) {
                Some(matrix) if own == dims => *matrix,
                _ if is_row && own.iter().product::<usize>() == columns => self.reshape(*node, &[columns])?,
                _ => return Ok(None),
            });
        }
        Ok(Some((matrices, dims)))
    }

    /// Whether an operand has a float type that devices compute in.
    fn is_float(&self, place: usize) -> bool {
        self.kind(place).is_ok_and(|kind| kind.dtype().is_some_and(DType::is_float))
    }
}

fn one(node: NodeId, kind: ElementType) -> LoweredOutputs {
    Ok(Some(vec![(node, kind)]))
}
