//! The tape: the nodes of a graph replayed into a builder, with fewer kinds of ops to
//! differentiate. Matrix products and convolutions lose their epilogues here: bias, residual and
//! activation become separate maps. The graph compiler fuses them again.

use panoply_core::expr::Expr;
use panoply_core::graph::{Dim, Graph, GraphBuilder, Kind, NodeId, Template};
use panoply_core::op::compute::{Activation, ComputeOp, Conv2d, Map, MatMul};
use panoply_core::{DType, Op, Operation, Value};

use crate::error::{Error, Result};

/// Wraps an op that was recorded and checked before as an operation.
pub(crate) struct RecordedOp(pub(crate) Op);

impl Operation for RecordedOp {
    type Output = Value;

    fn into_op(self) -> panoply_core::Result<Op> {
        Ok(self.0)
    }

    fn output(value: Value) -> panoply_core::Result<Value> {
        Ok(value)
    }
}

/// One node on the tape.
#[derive(Clone, Debug)]
pub(crate) struct TapeEntry {
    /// The node in the builder.
    pub(crate) id: NodeId,
    /// The kind of the node.
    pub(crate) kind: Kind,
    /// The entries of its operands.
    pub(crate) operands: Vec<usize>,
    /// The index of the node in the replayed graph.
    pub(crate) source: usize,
}

/// A graph's nodes in a builder.
#[derive(Debug)]
pub(crate) struct Tape {
    /// The builder.
    pub(crate) g: GraphBuilder,
    /// The entries, operands first.
    pub(crate) entries: Vec<TapeEntry>,
    /// For each node of the graph the entry that has its value.
    pub(crate) entry_of: Vec<usize>,
}

impl Tape {
    /// Replays a graph. Inputs and names are kept; outputs are not.
    pub(crate) fn replay(graph: &Graph) -> Result<Tape> {
        let mut g = Graph::builder(graph.name());
        for symbol in graph.symbols() {
            g.symbol(symbol)?;
        }
        let mut tape = Tape { g, entries: Vec::new(), entry_of: Vec::new() };
        for (index, node) in graph.nodes().iter().enumerate() {
            let operands: Vec<usize> = node.operands.iter().map(|operand| tape.entry_of[*operand as usize]).collect();
            let entry = match &node.kind {
                Kind::Input => {
                    let id = tape.g.input(&graph.node_name(index), node.dtype, &node.dims)?;
                    tape.push(id, Kind::Input, operands, index)
                }
                Kind::Part(1) => {
                    // The second output was recorded with the first.
                    let whole = *operands.first().ok_or_else(|| Error::invalid("graph: a part", "an op", "none"))?;
                    tape.part_of(whole)?
                }
                Kind::Part(part) => {
                    return Err(Error::invalid("graph: a part", "the first or second output of an op", part));
                }
                kind => tape.step(kind, &operands, &node.dims, index)?,
            };
            if !matches!(node.kind, Kind::Input)
                && let Some(name) = &node.name
            {
                // If the last node of an epilogue already has this name, that node keeps it.
                let _ = tape.g.rename(tape.entries[entry].id, name);
            }
            tape.entry_of.push(entry);
        }
        Ok(tape)
    }

    /// Records a node of a kind with these operands. The same node may be recorded several times.
    pub(crate) fn record(
        &mut self,
        kind: &Kind,
        operands: &[NodeId],
        dims: &[Dim],
    ) -> Result<(NodeId, Option<NodeId>)> {
        let first = || operands.first().copied().ok_or_else(|| Error::invalid("graph: operands", "one", "none"));
        let id = match kind {
            Kind::Constant(tensor) => self.g.unnamed_constant(tensor)?,
            Kind::Reshape => self.g.reshape(first()?, dims)?,
            Kind::Broadcast => self.g.broadcast(first()?, dims)?,
            Kind::Permute(order) => self.g.permute(first()?, order)?,
            Kind::Slice { axis, start, end, step } => self.g.slice(first()?, *axis, *start, *end, *step)?,
            Kind::Op(op) if matches!(*op.op(), Op::Compute(ComputeOp::TopK(_) | ComputeOp::SortPairs(_))) => {
                let (first, second) =
                    self.g.op_pair(operands, |tensors| RecordedOp(with_tensors(&op.op(), tensors)))?;
                return Ok((first, Some(second)));
            }
            Kind::Op(op) => self.g.op(operands, |tensors| RecordedOp(with_tensors(&op.op(), tensors)))?,
            Kind::Input | Kind::Part(_) => {
                return Err(Error::invalid("graph: a node", "one that is computed", kind.name()));
            }
        };
        Ok((id, None))
    }

    /// The element type and dimensions of a node.
    pub(crate) fn type_of(&self, node: NodeId) -> Result<(DType, Vec<Dim>)> {
        let (dtype, dims) = self.g.type_of(node)?;
        Ok((dtype, dims.to_vec()))
    }

    fn push(&mut self, id: NodeId, kind: Kind, operands: Vec<usize>, source: usize) -> usize {
        self.entries.push(TapeEntry { id, kind, operands, source });
        self.entries.len() - 1
    }

    fn part_of(&self, whole: usize) -> Result<usize> {
        let is_part = |entry: &TapeEntry| matches!(entry.kind, Kind::Part(1)) && entry.operands == [whole];
        let found = self.entries.iter().position(is_part);
        found.ok_or_else(|| Error::invalid("graph: a part", "an op with two outputs", "one with another number"))
    }

    fn step(&mut self, kind: &Kind, operands: &[usize], dims: &[Dim], source: usize) -> Result<usize> {
        if let Kind::Op(op) = kind {
            match &*op.op() {
                Op::Compute(ComputeOp::MatMul(op)) if has_epilogue(op) => return self.product(op, operands, source),
                Op::Compute(ComputeOp::Conv2d(op)) if op.bias.is_some() || op.activation != Activation::None => {
                    return self.convolution(op, operands, source);
                }
                _ => {}
            }
        }
        self.plain(kind.clone(), operands, dims, source)
    }

    fn plain(&mut self, kind: Kind, operands: &[usize], dims: &[Dim], source: usize) -> Result<usize> {
        let ids: Vec<NodeId> = operands.iter().map(|operand| self.entries[*operand].id).collect();
        let (id, second) = self.record(&kind, &ids, dims)?;
        let entry = self.push(id, kind, operands.to_vec(), source);
        if let Some(second) = second {
            self.push(second, Kind::Part(1), vec![entry], source);
        }
        Ok(entry)
    }

    fn map(&mut self, expr: Expr, operands: &[usize], source: usize) -> Result<usize> {
        let ids: Vec<NodeId> = operands.iter().map(|operand| self.entries[*operand].id).collect();
        let mut made = None;
        let id = self.g.op(&ids, |tensors| {
            let map = Map::new(expr, &tensors.iter().collect::<Vec<_>>());
            made = Some(Kind::Op(Template::new(Op::Compute(ComputeOp::Map(map.clone())))));
            map
        })?;
        let kind = made.ok_or_else(|| Error::invalid("graph: a map", "an op", "none"))?;
        Ok(self.push(id, kind, operands.to_vec(), source))
    }

    /// Records the bare product, then `activation(product + beta · c + bias)` as a map.
    fn product(&mut self, op: &MatMul, operands: &[usize], source: usize) -> Result<usize> {
        let bare = MatMul { c: None, beta: 0.0, bias: None, activation: Activation::None, ..op.clone() };
        let bare = Kind::Op(Template::new(Op::Compute(ComputeOp::MatMul(bare))));
        let product = self.plain(bare, &operands[..2], &[], source)?;
        let mut expr = Expr::input(0);
        let mut inputs = vec![product];
        let mut further = operands[2..].iter();
        if op.c.is_some()
            && let Some(c) = further.next()
        {
            expr = expr + Expr::input(inputs.len() as u32) * f64::from(op.beta);
            inputs.push(*c);
        }
        if op.bias.is_some()
            && let Some(bias) = further.next()
        {
            expr = expr + Expr::input(inputs.len() as u32);
            inputs.push(*bias);
        }
        self.map(op.activation.apply(expr), &inputs, source)
    }

    /// Records the bare convolution, then `activation(sums + bias)` as a map.
    fn convolution(&mut self, op: &Conv2d, operands: &[usize], source: usize) -> Result<usize> {
        let bare = Conv2d { bias: None, activation: Activation::None, ..op.clone() };
        let bare = Kind::Op(Template::new(Op::Compute(ComputeOp::Conv2d(bare))));
        let sums = self.plain(bare, &operands[..2], &[], source)?;
        let mut expr = Expr::input(0);
        let mut inputs = vec![sums];
        if let Some(bias) = operands.get(2) {
            let filters = self.type_of(self.entries[*bias].id)?.1[0];
            let dims = [filters, 1.into(), 1.into()];
            inputs.push(self.plain(Kind::Reshape, &[*bias], &dims, source)?);
            expr = expr + Expr::input(1);
        }
        self.map(op.activation.apply(expr), &inputs, source)
    }
}

fn has_epilogue(op: &MatMul) -> bool {
    op.c.is_some() || op.bias.is_some() || op.activation != Activation::None
}

/// Replaces the tensors of an op, in the order in which the op visits them.
pub(crate) fn with_tensors(op: &Op, tensors: &[panoply_core::Tensor]) -> Op {
    let mut op = op.clone();
    let mut tensors = tensors.iter();
    op.for_each_tensor_mut(&mut |tensor| {
        if let Some(other) = tensors.next() {
            tensor.clone_from(other);
        }
    });
    op
}
