//! Nodes: the records of a graph.

use std::collections::HashMap;
use std::fmt::{self, Write};
use std::sync::Arc;

use super::dim::{Dim, SYMBOLS_MAX, SymbolSizes};
use super::templates::Template;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::Op;
use crate::op::compute::ComputeOp;
use crate::shape::{RANK_MAX, Shape};
use crate::tensor::Tensor;

/// The id of a node in the builder that recorded it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeId {
    pub(super) index: u32,
    pub(super) builder: u32,
}

/// One node: a symbolic tensor and its source.
#[derive(Clone, Debug)]
pub struct Node {
    /// The node's name, if it has one.
    pub name: Option<Box<str>>,
    /// The node's source.
    pub kind: Kind,
    /// The operands, which are earlier nodes. Operands of an op are in the order of its parts.
    pub operands: Box<[u32]>,
    /// Element type.
    pub dtype: DType,
    /// Dimensions. Nodes of equal dimensions may share them.
    pub dims: Arc<[Dim]>,
}

/// The source of a node.
#[derive(Clone, Debug)]
pub enum Kind {
    /// An input that is given when the graph runs.
    Input,
    /// A constant on the host.
    Constant(Box<Tensor>),
    /// The operand's elements in the node's shape.
    Reshape,
    /// The operand stretched to the node's shape, as numpy's broadcasting does.
    Broadcast,
    /// The operand's axes in this order: `order[i]` is the old axis that becomes axis `i`.
    Permute(Box<[usize]>),
    /// Every `step`-th index from `start` below `end` of one axis.
    Slice {
        /// The axis.
        axis: usize,
        /// The first index.
        start: usize,
        /// The end of the range, exclusive.
        end: usize,
        /// The distance between two indices.
        step: usize,
    },
    /// The first output of an op. The op's tensors are placeholders of sample sizes, and the slot
    /// of each is its index among the operands. Equal ops of one graph share one template.
    Op(Template),
    /// A further output of the op that is the node's operand. 1 is the second output.
    Part(usize),
}

impl Kind {
    /// The name in messages and in text.
    pub fn name(&self) -> &'static str {
        match self {
            Kind::Input => "input",
            Kind::Constant(_) => "const",
            Kind::Reshape => "reshape",
            Kind::Broadcast => "broadcast",
            Kind::Permute(_) => "permute",
            Kind::Slice { .. } => "slice",
            Kind::Op(op) => op.name(),
            Kind::Part(_) => "part",
        }
    }
}

/// The nodes of a graph and the names of its symbols.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    pub(super) list: Vec<Node>,
    pub(super) symbols: Vec<String>,
}

impl Nodes {
    pub(super) fn name(&self, node: usize) -> String {
        match self.list.get(node).and_then(|node| node.name.as_deref()) {
            Some(name) => name.to_owned(),
            None => format!("n{node}"),
        }
    }

    /// The node as text: `h = matmul(x: f32[batch, 784], w: f32[784, 512])`.
    pub(super) fn text(&self, node: usize) -> String {
        let Some(Node { kind, operands, .. }) = self.list.get(node) else { return format!("n{node}") };
        let mut text = format!("{} = {}(", self.name(node), kind.name());
        for (place, operand) in operands.iter().enumerate() {
            let separator = if place == 0 { "" } else { ", " };
            let operand = *operand as usize;
            // Writing into a string never fails.
            let _ = write!(text, "{separator}{}: {}", self.name(operand), self.type_text(operand));
        }
        text.push(')');
        text
    }

    /// The type of a node as text: `f32[batch, 784]`.
    pub(super) fn type_text(&self, node: usize) -> String {
        let node = &self.list[node];
        format!("{}{}", node.dtype, self.dims_text(&node.dims))
    }

    pub(super) fn dims_text(&self, dims: &[Dim]) -> impl fmt::Display {
        let dims: Vec<String> = dims.iter().map(|dim| dim.text(&self.symbols).to_string()).collect();
        format!("[{}]", dims.join(", "))
    }

    /// Wraps the cause with the text of its node.
    pub(super) fn error(&self, node: usize, cause: Error) -> Error {
        Error::Node { node: self.text(node), cause: Box::new(cause) }
    }

    /// The shape of a node for these sizes of the symbols. Called on every run, so it allocates
    /// only on failure.
    pub(super) fn shape(dims: &[Dim], sizes: &SymbolSizes) -> Result<Shape> {
        let overflow = || {
            let (got, limit) = (sizes.0.to_vec(), crate::shape::TENSOR_BYTES_MAX);
            Error::SizeOverflow { what: "graph: a shape with these sizes of the symbols", got, limit }
        };
        let mut values = [0; RANK_MAX];
        let Some(values) = values.get_mut(..dims.len()) else {
            let expected = format!("at most {RANK_MAX}").into();
            return Err(Error::RankMismatch { what: "graph: a shape", expected, got: dims.len() });
        };
        for (value, dim) in values.iter_mut().zip(dims) {
            *value = dim.value(sizes).ok_or_else(overflow)?;
        }
        Shape::new(values)
    }

    /// Binds the sizes of symbols to the dimensions of a tensor that is given for an input.
    pub(super) fn bind(&self, node: usize, tensor: &Tensor, sizes: &mut [Option<usize>; SYMBOLS_MAX]) -> Result<()> {
        let Node { dtype, dims, .. } = &self.list[node];
        if tensor.dtype() != *dtype {
            return Err(Error::DTypeMismatch { what: "graph: an input", expected: *dtype, got: tensor.dtype() });
        }
        if tensor.shape().rank() != dims.len() {
            let (expected, got) = (dims.len().to_string().into(), tensor.shape().rank());
            return Err(Error::RankMismatch { what: "graph: an input", expected, got });
        }
        for (dim, size) in dims.iter().zip(tensor.shape().iter()) {
            if let Some(symbol) = dim.as_symbol() {
                sizes[symbol].get_or_insert(*size);
            }
        }
        Ok(())
    }

    /// Checks that the inputs bind every symbol that a node has (see [`Nodes::bind`]).
    pub(super) fn check_symbols(&self, inputs: &[usize]) -> Result<()> {
        let mut is_bound = [false; SYMBOLS_MAX];
        for dim in inputs.iter().flat_map(|input| &*self.list[*input].dims) {
            if let Some(symbol) = dim.as_symbol() {
                is_bound[symbol] = true;
            }
        }
        for (index, node) in self.list.iter().enumerate() {
            let is_unbound =
                |symbol: &usize| !is_bound[*symbol] && node.dims.iter().any(|dim| dim.powers()[*symbol] > 0);
            if let Some(symbol) = (0..SYMBOLS_MAX).find(is_unbound) {
                let symbol = self.symbols.get(symbol).cloned().unwrap_or_default();
                return Err(Error::UnboundSymbol { symbol, node: self.text(index), got: self.type_text(index) });
            }
        }
        Ok(())
    }

    /// Compares a tensor that is given for an input with the node's shape.
    pub(super) fn compare(&self, node: usize, tensor: &Tensor, sizes: &SymbolSizes) -> Result<()> {
        let expected = Nodes::shape(&self.list[node].dims, sizes)?;
        if *tensor.shape() == expected {
            return Ok(());
        }
        let (expected, got) = (expected.to_vec(), tensor.shape().to_vec());
        Err(Error::ShapeMismatch { what: "graph: an input", expected, got })
    }

    /// A hash of the structure that is the same in every process.
    pub(super) fn hash(&self, outputs: &[(String, usize)]) -> u64 {
        let mut hash = Fnv::default();
        // Equal ops share one template, so each op is formatted once.
        let mut ops: HashMap<usize, u64> = HashMap::new();
        for node in &self.list {
            let _ = match &node.kind {
                Kind::Constant(_) => write!(hash, "const"),
                Kind::Op(op) => write!(hash, "{:x}", ops.entry(op.address()).or_insert_with(|| op_hash(&op.op()))),
                kind => write!(hash, "{kind:?}"),
            };
            let _ = write!(hash, "{:?}{}{:?};", node.operands, node.dtype, node.dims);
        }
        for (_, node) in outputs {
            let _ = write!(hash, ">{node}");
        }
        hash.0
    }
}

/// A hash of an op that is the same in every process.
fn op_hash(op: &Op) -> u64 {
    let mut hash = Fnv::default();
    let _ = match op {
        Op::Compute(ComputeOp::Map(map)) => match map.program() {
            Ok(program) => {
                let types = map.inputs().try_for_each(|input| write!(hash, "{}{:?}", input.dtype(), input.shape()));
                types.and_then(|()| write!(hash, "map {:x}", program.hash()))
            }
            Err(error) => write!(hash, "{error}"),
        },
        op => write!(hash, "{op:?}"),
    };
    hash.0
}

/// The FNV-1a hash of the text that is written into it.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Fnv {
        Fnv(0xcbf2_9ce4_8422_2325)
    }
}

impl Write for Fnv {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 = text.bytes().fold(self.0, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        Ok(())
    }
}
