//! Automatic differentiation over graphs: a graph with a scalar output becomes a graph that also
//! has the gradients of that output.
//!
//! 1. The graph is replayed into a new builder (`tape`). Values keep their names, and the caller's
//!    graph is not changed.
//! 2. The nodes are visited from the last to the first. Each node passes its gradient on to its
//!    operands by the rule of its op. Every rule consists of ordinary nodes: `products` (matrix
//!    products, convolutions), `rows` (reductions, softmax, layer norm, attention), `norm` (batch
//!    norm), `windows` (pooling), `picks` (slices, gathers, sorts, scans), `expression` (all
//!    elementwise ops).
//! 3. Forward and backward pass are then one graph, which the compiler fuses as a whole and a
//!    device runs as one op.
//! 4. Before the gradients of a segment ([`Segment`]) are recorded, its nodes are recorded a second
//!    time, from the values that enter the segment: its inner values are computed twice instead of
//!    being kept.
//!
//! Ops without a derivative (positions of a sort, comparisons, integers) pass no gradient on. If a
//! gradient would have to go through an op whose derivative is not implemented, the op is refused
//! by name.

mod expression;
mod norm;
mod picks;
mod products;
mod rows;
mod tape;
mod windows;

use std::collections::HashMap;
use std::ops::Range;

use panoply_core::expr::Expr;
use panoply_core::graph::{Dim, Graph, GraphBuilder, Kind, NodeId};
use panoply_core::op::compute::{ComputeOp, Map, Reduce, Reduction};
use panoply_core::{DType, Op, Tensor};

use crate::error::{Error, Result};
pub(crate) use tape::{RecordedOp, Tape};

/// Nodes of a graph whose values are recomputed for the gradients instead of being kept.
pub type Segment = Range<usize>;

/// A graph under construction that includes its gradients.
#[derive(Debug)]
pub struct GradientGraph {
    /// The builder, with the replayed nodes and the gradients. No outputs are set yet.
    pub builder: GraphBuilder,
    /// For each node of the graph the node with the same value in the builder.
    pub values: Vec<NodeId>,
    /// The gradient with respect to each requested node; zeros if the scalar does not depend on
    /// that node.
    pub gradients: Vec<NodeId>,
    /// The factor of all gradients, if one was requested.
    pub factor: Option<NodeId>,
}

/// Records the gradients of a scalar node of a graph (given by its index) with respect to other
/// nodes. If `factor` is given, the graph gets one more input of this name, an f32 scalar (the loss
/// scale), and all gradients are multiplied by it.
pub fn differentiate(
    graph: &Graph,
    scalar: usize,
    with_respect_to: &[usize],
    segments: &[Segment],
    factor: Option<&str>,
) -> Result<GradientGraph> {
    let mut backward = Backward::new(graph, with_respect_to)?;
    let (dtype, dims) = {
        let node = graph.nodes().get(scalar);
        let node = node.ok_or_else(|| Error::invalid("differentiate: scalar", "a node of the graph", scalar))?;
        (node.dtype, node.dims.clone())
    };
    if !dims.is_empty() || !dtype.is_float() {
        let got = format!("{dtype} with {} dimensions", dims.len());
        return Err(Error::invalid("differentiate: scalar", "one float without dimensions", got));
    }
    let factor = factor.map(|name| backward.tape.g.input(name, DType::F32, &[])).transpose()?;
    let first = match factor {
        Some(factor) => backward.cast_to(factor, dtype)?,
        None => backward.number(dtype, 1.0)?,
    };
    let place = backward.tape.entry_of[scalar];
    backward.gradients[place] = Some(first);
    backward.run(graph, segments)?;
    let Backward { mut tape, gradients, .. } = backward;
    let mut found = Vec::new();
    for node in with_respect_to {
        let entry = tape.entry_of[*node];
        found.push(match gradients[entry] {
            Some(gradient) => gradient,
            None => {
                let (dtype, dims) = tape.type_of(tape.entries[entry].id)?;
                let zero = tape.g.unnamed_constant(&Tensor::zeros(dtype, [])?)?;
                tape.g.broadcast(zero, &dims)?
            }
        });
    }
    let values = tape.entry_of.iter().map(|entry| tape.entries[*entry].id).collect();
    Ok(GradientGraph { builder: tape.g, values, gradients: found, factor })
}

/// The backward pass, from the last node to the first.
pub(crate) struct Backward {
    pub(crate) tape: Tape,
    /// For each entry the sum of the gradients that were passed on to it so far.
    gradients: Vec<Option<NodeId>>,
    /// For each entry whether its gradient is needed.
    needs: Vec<bool>,
    /// For each entry the node that the rules read: the original node, or the recomputed one.
    values: Vec<NodeId>,
    /// Constants that exist already, by type and value.
    numbers: HashMap<String, NodeId>,
}

/// The node that is being visited.
#[derive(Clone, Copy)]
pub(crate) struct NodeVisit {
    /// The node's entry on the tape.
    pub(crate) entry: usize,
    /// The gradient with respect to the node.
    pub(crate) g: NodeId,
}

impl Backward {
    fn new(graph: &Graph, with_respect_to: &[usize]) -> Result<Backward> {
        let tape = Tape::replay(graph)?;
        let mut needs = vec![false; tape.entries.len()];
        for node in with_respect_to {
            let entry = tape.entry_of.get(*node);
            let entry = entry.ok_or_else(|| Error::invalid("differentiate: a node", "one of the graph", node))?;
            needs[*entry] = true;
        }
        for (index, entry) in tape.entries.iter().enumerate() {
            let is_float = tape.g.type_of(entry.id)?.0.is_float();
            needs[index] |= is_float && entry.operands.iter().any(|operand| needs[*operand]);
        }
        let values = tape.entries.iter().map(|entry| entry.id).collect();
        Ok(Backward { gradients: vec![None; tape.entries.len()], needs, values, tape, numbers: HashMap::new() })
    }

    fn run(&mut self, graph: &Graph, segments: &[Segment]) -> Result<()> {
        let mut again: Option<usize> = None;
        for index in (0..self.tape.entries.len()).rev() {
            let Some(g) = self.gradients[index].filter(|_| self.needs[index]) else { continue };
            let source = self.tape.entries[index].source;
            let segment = segments.iter().position(|segment| segment.contains(&source));
            if let Some(segment) = segment.filter(|segment| again != Some(*segment)) {
                self.record_again(&segments[segment], g)?;
                again = Some(segment);
            }
            let shares = self.shares(NodeVisit { entry: index, g }).map_err(|error| name_node(graph, source, error))?;
            let operands = self.tape.entries[index].operands.clone();
            for (operand, share) in operands.into_iter().zip(shares) {
                let Some(share) = share.filter(|_| self.needs[operand]) else { continue };
                self.gradients[operand] = Some(match self.gradients[operand] {
                    Some(sum) => self.tape.g.add(sum, share)?,
                    None => share,
                });
            }
        }
        Ok(())
    }

    /// Records the nodes of a segment once more. Values that enter the segment are read through a
    /// map that also takes `after` as an input, without using it. This hides from the compiler that
    /// the nodes are equal to the earlier ones.
    fn record_again(&mut self, segment: &Segment, after: NodeId) -> Result<()> {
        let inside = |entry: &tape::TapeEntry| segment.contains(&entry.source);
        let entries: Vec<usize> =
            (0..self.tape.entries.len()).filter(|entry| inside(&self.tape.entries[*entry])).collect();
        let (_, dims) = self.tape.type_of(after)?;
        let mut one = after;
        for axis in 0..dims.len() {
            one = self.tape.g.slice(one, axis, 0, 1, 1)?;
        }
        let one = self.tape.g.reshape(one, &[])?;
        let mut entering: HashMap<usize, NodeId> = HashMap::new();
        for index in entries {
            let entry = self.tape.entries[index].clone();
            if matches!(entry.kind, Kind::Constant(_) | Kind::Input | Kind::Part(_)) {
                continue;
            }
            let mut operands = Vec::new();
            for operand in &entry.operands {
                let outer = &self.tape.entries[*operand];
                let is_given = matches!(outer.kind, Kind::Constant(_) | Kind::Input);
                operands.push(if inside(outer) || is_given {
                    self.values[*operand]
                } else if let Some(known) = entering.get(operand) {
                    *known
                } else {
                    let read = self
                        .tape
                        .g
                        .op(&[outer.id, one], |tensors| Map::new(Expr::input(0), &[&tensors[0], &tensors[1]]))?;
                    entering.insert(*operand, read);
                    read
                });
            }
            let (_, dims) = self.tape.type_of(entry.id)?;
            let (id, second) = self.tape.record(&entry.kind, &operands, &dims)?;
            self.values[index] = id;
            if let Some(second) = second {
                self.values[index + 1] = second;
            }
        }
        Ok(())
    }

    /// The gradients that a node passes on to its operands.
    fn shares(&mut self, turn: NodeVisit) -> Result<Vec<Option<NodeId>>> {
        let kind = self.tape.entries[turn.entry].kind.clone();
        match &kind {
            Kind::Input | Kind::Constant(_) | Kind::Part(_) => Ok(Vec::new()),
            Kind::Reshape => {
                let dims = self.operand_dims(turn, 0)?;
                Ok(vec![Some(self.tape.g.reshape(turn.g, &dims)?)])
            }
            Kind::Broadcast => {
                let dims = self.operand_dims(turn, 0)?;
                Ok(vec![Some(self.sum_to(turn.g, &dims)?)])
            }
            Kind::Permute(order) => {
                let mut back = vec![0; order.len()];
                order.iter().enumerate().for_each(|(new, old)| back[*old] = new);
                Ok(vec![Some(self.tape.g.permute(turn.g, &back)?)])
            }
            Kind::Slice { axis, start, step, .. } => Ok(vec![Some(self.spread(turn, *axis, *start, *step)?)]),
            Kind::Op(op) => match &*op.op() {
                Op::Compute(op) => self.op_shares(turn, op),
                _ => Err(self.refused(turn, "graphs of the compute domain are differentiated")),
            },
        }
    }

    fn op_shares(&mut self, turn: NodeVisit, op: &ComputeOp) -> Result<Vec<Option<NodeId>>> {
        match op {
            ComputeOp::Map(op) => self.map_shares(turn, op),
            ComputeOp::MatMul(op) => self.matmul_shares(turn, op),
            ComputeOp::Conv2d(op) => self.conv_shares(turn, op),
            ComputeOp::Conv2dBackwardInput(op) => self.conv_input_shares(turn, op),
            ComputeOp::Conv2dBackwardWeight(op) => self.conv_weight_shares(turn, op),
            ComputeOp::Pool2d(op) => self.pool_shares(turn, op),
            ComputeOp::Reduce(op) => self.reduce_shares(turn, op),
            ComputeOp::Softmax(op) => self.softmax_shares(turn, op),
            ComputeOp::LayerNorm(op) => self.layernorm_shares(turn, op),
            ComputeOp::Attention(op) => self.attention_shares(turn, op),
            ComputeOp::Gather(op) => self.gather_shares(turn, op),
            ComputeOp::TopK(op) => self.topk_shares(turn, op),
            ComputeOp::Sort(op) => self.sort_shares(turn, op),
            ComputeOp::Scan(op) => self.scan_shares(turn, op),
            ComputeOp::Resize(op) => self.resize_shares(turn, op),
            ComputeOp::Transpose(op) => {
                let order = op.order();
                let mut back = vec![0; order.len()];
                order.iter().enumerate().for_each(|(new, old)| back[*old] = new);
                Ok(vec![Some(self.tape.g.permute(turn.g, &back)?)])
            }
            _ => Err(self.refused(turn, "record it with ops that have one")),
        }
    }

    fn map_shares(&mut self, turn: NodeVisit, op: &Map) -> Result<Vec<Option<NodeId>>> {
        if let Some(shares) = self.batch_norm_shares(turn, op)? {
            return Ok(shares);
        }
        let program = op.program()?.clone();
        let count = self.tape.entries[turn.entry].operands.len();
        let mut dtypes = Vec::new();
        for place in 0..count {
            dtypes.push(self.tape.g.type_of(self.operand(turn, place))?.0);
        }
        let mut shares = Vec::new();
        for place in 0..count {
            let derivative = match self.wants(turn, place) && dtypes[place].is_float() {
                true => expression::derivative(&program, &dtypes, place as u32)?,
                false => None,
            };
            let Some((derivative, read)) = derivative else {
                shares.push(None);
                continue;
            };
            let source = |input: &u32| match (*input as usize).checked_sub(count) {
                None => self.operand(turn, *input as usize),
                Some(0) => turn.g,
                Some(_) => self.own(turn),
            };
            let operands: Vec<NodeId> = read.iter().map(source).collect();
            let is_gradient = operands.len() == 1 && derivative.nodes().len() == 1;
            let share = match is_gradient {
                true => operands[0],
                false => self
                    .tape
                    .g
                    .op(&operands, |tensors| Map::with_program(&derivative, &tensors.iter().collect::<Vec<_>>()))?,
            };
            let dims = self.operand_dims(turn, place)?;
            shares.push(Some(self.sum_to(share, &dims)?));
        }
        Ok(shares)
    }

    /// The node of an operand, as the rules read it: recomputed where its segment was.
    fn operand(&self, turn: NodeVisit, place: usize) -> NodeId {
        self.values[self.tape.entries[turn.entry].operands[place]]
    }

    /// The node itself, as the rules read it.
    fn own(&self, turn: NodeVisit) -> NodeId {
        self.values[turn.entry]
    }

    fn operand_dims(&self, turn: NodeVisit, place: usize) -> Result<Vec<Dim>> {
        Ok(self.tape.type_of(self.operand(turn, place))?.1)
    }

    /// Whether the gradient of an operand is needed.
    fn wants(&self, turn: NodeVisit, place: usize) -> bool {
        self.tape.entries[turn.entry].operands.get(place).is_some_and(|operand| self.needs[*operand])
    }

    /// A number as a constant node; the same number gives the same node.
    fn number(&mut self, dtype: DType, value: f64) -> Result<NodeId> {
        let key = format!("{dtype} {value:?}");
        if let Some(known) = self.numbers.get(&key) {
            return Ok(*known);
        }
        let tensor = match dtype {
            DType::F32 => Tensor::scalar(value as f32)?,
            DType::F64 => Tensor::scalar(value)?,
            DType::F16 => Tensor::scalar(panoply_core::f16::from_f64(value))?,
            DType::BF16 => Tensor::scalar(panoply_core::bf16::from_f64(value))?,
            DType::U32 => Tensor::scalar(value as u32)?,
            DType::I32 => Tensor::scalar(value as i32)?,
            _ => return Err(Error::invalid("differentiate: a constant", "a float, i32 or u32", dtype)),
        };
        let node = self.tape.g.unnamed_constant(&tensor)?;
        self.numbers.insert(key, node);
        Ok(node)
    }

    /// Sums `x` down to the shape `dims`, which broadcasts to the shape of `x`.
    fn sum_to(&mut self, x: NodeId, dims: &[Dim]) -> Result<NodeId> {
        let (_, own) = self.tape.type_of(x)?;
        if own == dims {
            return Ok(x);
        }
        let lead = own.len().saturating_sub(dims.len());
        let stretched = |(axis, dim): (usize, &Dim)| {
            let target = axis.checked_sub(lead).map(|axis| dims[axis]);
            target.is_none_or(|target| target != *dim)
        };
        let axes: Vec<usize> = own.iter().enumerate().filter(|entry| stretched(*entry)).map(|(axis, _)| axis).collect();
        let summed = match axes.is_empty() {
            true => x,
            false => self.tape.g.reduce(Reduction::Sum, x, &axes)?,
        };
        Ok(self.tape.g.reshape(summed, dims)?)
    }

    /// A reduction that keeps the reduced axes with length one.
    fn reduce_keeping(&mut self, reduction: Reduction, x: NodeId, axes: &[usize]) -> Result<NodeId> {
        Ok(self.tape.g.op(&[x], |tensors| Reduce::new(&tensors[0], reduction).axes(axes).keep_dims())?)
    }

    fn cast_to(&mut self, x: NodeId, dtype: DType) -> Result<NodeId> {
        let own = self.tape.g.type_of(x)?.0;
        Ok(if own == dtype { x } else { self.tape.g.cast(x, dtype)? })
    }

    /// Casts a node of 16 bits to f32, so that sums are not rounded to 16 bits.
    fn widened(&mut self, x: NodeId) -> Result<NodeId> {
        match self.tape.g.type_of(x)?.0 {
            DType::F16 | DType::BF16 => self.cast_to(x, DType::F32),
            _ => Ok(x),
        }
    }

    /// The size of a dimension, which must not be a symbol.
    fn fixed(&self, turn: NodeVisit, dim: Dim) -> Result<usize> {
        dim.as_fixed().ok_or_else(|| self.refused(turn, "give this dimension a number instead of a symbol"))
    }

    fn refused(&self, turn: NodeVisit, hint: &'static str) -> Error {
        Error::NotDifferentiable { node: self.tape.entries[turn.entry].kind.name().to_owned(), hint }
    }
}

fn name_node(graph: &Graph, source: usize, error: Error) -> Error {
    match error {
        Error::NotDifferentiable { hint, .. } => Error::NotDifferentiable { node: graph.node_text(source), hint },
        other => other,
    }
}
