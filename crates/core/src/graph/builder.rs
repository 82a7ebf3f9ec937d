//! Recording a graph: every call adds a node with its element type and dimensions, or returns an
//! error.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::dim::{Dim, SYMBOLS_MAX, SymbolSizes};
use super::infer::{self, SymbolicType};
use super::node::{Kind, Node, NodeId, Nodes};
use super::placeholder::slot_of;
use super::refusal::in_symbols_of;
use super::templates::{Template, Templates};
use super::{Graph, NODES_MAX, PORTS_MAX};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::{Op, Operation};
use crate::part::PartRef;
use crate::tensor::{Location, Tensor};

/// The longest name of a node, a symbol or a graph.
const NAME_BYTES_MAX: usize = 128;

/// A graph under construction.
///
/// ```
/// use panoply_core::{DType, Tensor, graph::Graph};
/// let mut g = Graph::builder("layer");
/// let batch = g.symbol("batch")?;
/// let x = g.input("x", DType::F32, &[batch, 3.into()])?;
/// let w = g.constant("w", &Tensor::zeros(DType::F32, [3, 2])?)?;
/// let y = g.matmul(x, w)?;
/// let y = g.relu(y)?;
/// g.output("y", y)?;
/// let graph = g.finish()?;
/// assert_eq!(graph.outputs()[0].0, "y");
/// # Ok::<(), panoply_core::Error>(())
/// ```
#[derive(Debug)]
pub struct GraphBuilder {
    builder: u32,
    name: String,
    nodes: Nodes,
    inputs: Vec<usize>,
    outputs: Vec<(String, usize)>,
    names: HashSet<Box<str>>,
    templates: Templates,
}

impl GraphBuilder {
    pub(super) fn new(name: &str) -> GraphBuilder {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let builder = NEXT.fetch_add(1, Ordering::Relaxed);
        let (inputs, outputs, names) = (Vec::new(), Vec::new(), HashSet::new());
        let (nodes, templates) = (Nodes::default(), Templates::default());
        GraphBuilder { builder, name: name.to_owned(), nodes, inputs, outputs, names, templates }
    }

    /// Declares a symbol: a dimension whose size is known only when the graph runs. The inputs tell
    /// the size, so at least one input has the symbol as a dimension by itself. If rows are
    /// independent of each other, the first symbol counts the rows of a batch.
    pub fn symbol(&mut self, name: &str) -> Result<Dim> {
        check_name("graph: a symbol", name)?;
        if let Some(known) = self.nodes.symbols.iter().position(|symbol| symbol == name) {
            return Ok(Dim::symbol(known));
        }
        if self.nodes.symbols.len() == SYMBOLS_MAX {
            return Err(Error::OutOfBounds { what: "graph: symbols", limit: SYMBOLS_MAX, got: SYMBOLS_MAX + 1 });
        }
        self.nodes.symbols.push(name.to_owned());
        Ok(Dim::symbol(self.nodes.symbols.len() - 1))
    }

    /// Adds an input: a tensor that is given when the graph runs.
    pub fn input(&mut self, name: &str, dtype: DType, dims: &[Dim]) -> Result<NodeId> {
        if self.inputs.len() == PORTS_MAX {
            return Err(Error::OutOfBounds { what: "graph: inputs", limit: PORTS_MAX, got: PORTS_MAX + 1 });
        }
        Nodes::shape(dims, &SymbolSizes::SAMPLES[0])?;
        let node = self.push(Kind::Input, Vec::new(), (dtype, dims.to_vec()))?;
        self.inputs.push(node.index as usize);
        self.rename(node, name)?;
        Ok(node)
    }

    /// Adds a constant: a tensor that is the same in every run. Each device receives it once.
    pub fn constant(&mut self, name: &str, tensor: &Tensor) -> Result<NodeId> {
        let node = self.unnamed_constant(tensor)?;
        self.rename(node, name)?;
        Ok(node)
    }

    /// Adds a constant without a name. See [`GraphBuilder::constant`].
    pub fn unnamed_constant(&mut self, tensor: &Tensor) -> Result<NodeId> {
        if let Location::Device(device) = tensor.location() {
            return Err(Error::NotOnHost { device });
        }
        let dims = tensor.shape().iter().map(|size| Dim::fixed(*size)).collect();
        self.push(Kind::Constant(Box::new(tensor.contiguous()?)), Vec::new(), (tensor.dtype(), dims))
    }

    /// Adds any op on these nodes. `make` receives the nodes as tensors. Returns the op's first
    /// output.
    pub fn op<O: Operation>(&mut self, operands: &[NodeId], make: impl FnOnce(&[Tensor]) -> O) -> Result<NodeId> {
        let (template, order) = self.template(operands, |tensors| make(tensors).into_op())?;
        self.push_op(template, order).map(|(first, _)| first)
    }

    /// Adds any op with two outputs on these nodes. `make` receives the nodes as tensors.
    pub fn op_pair<O: Operation>(
        &mut self,
        operands: &[NodeId],
        make: impl FnOnce(&[Tensor]) -> O,
    ) -> Result<(NodeId, NodeId)> {
        let (template, order) = self.template(operands, |tensors| make(tensors).into_op())?;
        let name = crate::op::Describe::name(&template);
        match self.push_op(template, order)? {
            (first, further) if further.len() == 1 => Ok((first, further[0])),
            (_, further) => {
                Err(Error::invalid("graph: outputs", "an op with two", format!("{name} with {}", further.len() + 1)))
            }
        }
    }

    /// Gives the same elements another shape.
    pub fn reshape(&mut self, x: NodeId, dims: &[Dim]) -> Result<NodeId> {
        let operand = self.known(x)?;
        let product = |dims: &[Dim]| dims.iter().fold(Dim::fixed(1), |product, dim| product * *dim);
        let dtype = self.nodes.list[operand].dtype;
        let node = self.push(Kind::Reshape, vec![x.index], (dtype, dims.to_vec()))?;
        if product(&self.nodes.list[operand].dims) != product(dims) {
            let expected = format!("as many elements as {}", self.nodes.type_text(operand));
            let got = self.nodes.dims_text(dims).to_string();
            return Err(self.refused(node, Error::invalid("graph: reshape", expected, got)));
        }
        Ok(node)
    }

    /// Stretches the tensor to this shape, as numpy's broadcasting does.
    pub fn broadcast(&mut self, x: NodeId, dims: &[Dim]) -> Result<NodeId> {
        let operand = self.known(x)?;
        let dtype = self.nodes.list[operand].dtype;
        let node = self.push(Kind::Broadcast, vec![x.index], (dtype, dims.to_vec()))?;
        let own = &self.nodes.list[operand].dims;
        let fits = |(own, wanted): (&Dim, &Dim)| own == wanted || own.as_fixed() == Some(1);
        if own.len() > dims.len() || !own.iter().rev().zip(dims.iter().rev()).all(fits) {
            let expected = format!("a shape that {} stretches to", self.nodes.type_text(operand));
            let got = self.nodes.dims_text(dims).to_string();
            return Err(self.refused(node, Error::invalid("graph: broadcast", expected, got)));
        }
        match Nodes::shape(dims, &SymbolSizes::SAMPLES[0]) {
            Ok(_) => Ok(node),
            Err(cause) => Err(self.refused(node, cause)),
        }
    }

    /// Reorders the axes: `order[i]` is the old axis that becomes axis `i`.
    pub fn permute(&mut self, x: NodeId, order: &[usize]) -> Result<NodeId> {
        let operand = self.known(x)?;
        let Node { dtype, dims, .. } = &self.nodes.list[operand];
        let (dtype, dims) = (*dtype, Arc::clone(dims));
        let moved = order.iter().map(|axis| dims.get(*axis).copied().unwrap_or(Dim::fixed(0))).collect();
        let node = self.push(Kind::Permute(order.into()), vec![x.index], (dtype, moved))?;
        let mut axes = order.to_vec();
        axes.sort_unstable();
        if !axes.into_iter().eq(0..dims.len()) {
            let expected = format!("each axis below {} once", dims.len());
            return Err(self.refused(node, Error::invalid("graph: permute", expected, format!("{order:?}"))));
        }
        Ok(node)
    }

    /// Keeps every `step`-th index from `start` below `end` of one axis. If the axis has a symbol,
    /// `end` is compared with its size when the graph runs.
    pub fn slice(&mut self, x: NodeId, axis: usize, start: usize, end: usize, step: usize) -> Result<NodeId> {
        let operand = self.known(x)?;
        let Node { dtype, dims, .. } = &self.nodes.list[operand];
        let (dtype, mut dims) = (*dtype, dims.to_vec());
        let limit = dims.get(axis).copied();
        if let Some(dim) = dims.get_mut(axis) {
            *dim = Dim::fixed(end.saturating_sub(start).div_ceil(step.max(1)));
        }
        let node = self.push(Kind::Slice { axis, start, end, step }, vec![x.index], (dtype, dims.clone()))?;
        let wrong = match limit {
            None => Some(Error::OutOfBounds { what: "axis", limit: dims.len().saturating_sub(1), got: axis }),
            Some(dim) if dim.as_fixed().is_some_and(|size| end > size) => {
                let limit = dim.as_fixed().unwrap_or(0);
                Some(Error::OutOfBounds { what: "end of the slice", limit, got: end })
            }
            _ if start > end || step == 0 => {
                let got = format!("{start}..{end} in steps of {step}");
                Some(Error::invalid("slice", "start ≤ end and a step of at least 1", got))
            }
            _ => None,
        };
        wrong.map_or(Ok(node), |cause| Err(self.refused(node, cause)))
    }

    /// Names a node, for messages. Names are unique and consist of letters, digits, `_`, `.` and
    /// `-`. The first character is not a digit.
    pub fn rename(&mut self, node: NodeId, name: &str) -> Result<()> {
        let index = self.known(node)?;
        check_name("graph: the name of a node", name)?;
        if !self.names.insert(name.into()) {
            return Err(Error::invalid("graph: the name of a node", "a name that no other has", name));
        }
        if let Some(old) = self.nodes.list[index].name.replace(name.into()) {
            self.names.remove(&old);
        }
        Ok(())
    }

    /// Makes a node an output of the graph. One node may be several outputs.
    pub fn output(&mut self, name: &str, node: NodeId) -> Result<()> {
        check_name("graph: the name of an output", name)?;
        let index = self.known(node)?;
        if self.outputs.len() == PORTS_MAX {
            return Err(Error::OutOfBounds { what: "graph: outputs", limit: PORTS_MAX, got: PORTS_MAX + 1 });
        }
        if self.outputs.iter().any(|(known, _)| known == name) {
            return Err(Error::invalid("graph: the name of an output", "a name that no other has", name));
        }
        self.outputs.push((name.to_owned(), index));
        Ok(())
    }

    /// The element type and the dimensions of a node.
    pub fn type_of(&self, node: NodeId) -> Result<(DType, &[Dim])> {
        let index = self.known(node)?;
        Ok((self.nodes.list[index].dtype, &self.nodes.list[index].dims))
    }

    /// Finishes the graph. Fails if it has no output, or if a node has a symbol that no input has
    /// as a dimension by itself: such a symbol would have no size when the graph runs.
    pub fn finish(mut self) -> Result<Graph> {
        if self.outputs.is_empty() {
            return Err(Error::invalid("graph: outputs", "at least one", "none"));
        }
        self.nodes.check_symbols(&self.inputs)?;
        self.nodes.list.shrink_to_fit();
        drop((self.names, self.templates));
        Ok(Graph::new(self.name, self.nodes, self.inputs, self.outputs))
    }

    /// The index of a node of this builder.
    pub(super) fn known(&self, node: NodeId) -> Result<usize> {
        match node.builder == self.builder && (node.index as usize) < self.nodes.list.len() {
            true => Ok(node.index as usize),
            false => Err(Error::invalid("graph: an operand", "a node of this graph", "one of another")),
        }
    }

    /// Makes an op on sample tensors of these nodes. Returns the op and the operands in the order
    /// of its parts.
    fn template(&self, operands: &[NodeId], make: impl FnOnce(&[Tensor]) -> Result<Op>) -> Result<(Op, Vec<u32>)> {
        let known: Vec<usize> = operands.iter().map(|operand| self.known(*operand)).collect::<Result<_>>()?;
        let types = self.types(&known);
        let tensors = infer::samples(&types, &SymbolSizes::SAMPLES[0])?;
        let shown = || {
            let operands = operands.iter().zip(&known);
            let operands =
                operands.map(|(_, node)| format!("{}: {}", self.nodes.name(*node), self.nodes.type_text(*node)));
            format!("n{} = op({})", self.nodes.list.len(), operands.collect::<Vec<_>>().join(", "))
        };
        let op = make(&tensors).map_err(|cause| {
            let cause = Box::new(in_symbols_of(cause, &types, &self.nodes.symbols));
            Error::Node { node: shown(), cause }
        })?;
        let mut order = Ok(Vec::new());
        let mut foreign = |got: &str| {
            let expected = "the tensors that it was given, as they are: make others constants, and views nodes";
            order = Err(Error::invalid("graph: the parts of an op", expected, got));
        };
        let mut places = Vec::new();
        crate::op::Describe::for_each_part(&op, &mut |part| match part {
            PartRef::Tensor(tensor) => match slot_of(tensor).filter(|slot| *slot < tensors.len()) {
                Some(slot) if tensor.shape() == tensors[slot].shape() && tensor.is_contiguous() => {
                    places.push(known[slot] as u32);
                }
                Some(_) => foreign("a view"),
                None => foreign("another tensor"),
            },
            _ => foreign("a part that is no tensor"),
        });
        if let Ok(order) = &mut order {
            *order = places;
        }
        Ok((op, order?))
    }

    /// Adds an op on these nodes, in the order of its parts, and returns all its outputs.
    pub(super) fn copy_op(&mut self, op: &Op, operands: &[NodeId]) -> Result<Vec<NodeId>> {
        let operands = operands.iter().map(|operand| self.known(*operand).map(|index| index as u32));
        let (first, further) = self.push_op(op.clone(), operands.collect::<Result<_>>()?)?;
        Ok([&[first], further.as_slice()].concat())
    }

    fn push_op(&mut self, op: Op, operands: Vec<u32>) -> Result<(NodeId, Vec<NodeId>)> {
        let known: Vec<usize> = operands.iter().map(|operand| *operand as usize).collect();
        let outputs = infer::outputs(&op, &self.types(&known), &self.nodes.symbols);
        let mut outputs = match outputs {
            Ok(outputs) => outputs.into_iter(),
            Err(cause) => {
                let node = self.push(Kind::Op(Template::new(op)), operands, (DType::F32, Vec::new()))?;
                return Err(self.refused(node, cause));
            }
        };
        let none = || Error::invalid("graph: outputs", "at least one", "none");
        let template = self.templates.shared(op);
        let first = self.push(Kind::Op(template), operands, outputs.next().ok_or_else(none)?)?;
        let further = outputs.enumerate();
        let further = further.map(|(part, output)| self.push(Kind::Part(part + 1), vec![first.index], output));
        Ok((first, further.collect::<Result<_>>()?))
    }

    fn types(&self, nodes: &[usize]) -> Vec<(DType, &[Dim])> {
        nodes.iter().map(|node| (self.nodes.list[*node].dtype, &*self.nodes.list[*node].dims)).collect()
    }

    fn push(&mut self, kind: Kind, operands: Vec<u32>, (dtype, dims): SymbolicType) -> Result<NodeId> {
        let index = self.nodes.list.len();
        if index == NODES_MAX {
            return Err(Error::OutOfBounds { what: "graph: nodes", limit: NODES_MAX, got: NODES_MAX + 1 });
        }
        // Most nodes have the dimensions of their operand.
        let operand = operands.first().map(|operand| &self.nodes.list[*operand as usize].dims);
        let dims = operand.filter(|known| ***known == *dims).map_or_else(|| dims.into(), Arc::clone);
        self.nodes.list.push(Node { name: None, kind, operands: operands.into(), dtype, dims });
        Ok(NodeId { index: index as u32, builder: self.builder })
    }

    /// Removes the last node again and returns its error.
    fn refused(&mut self, node: NodeId, cause: Error) -> Error {
        let error = self.nodes.error(node.index as usize, cause);
        self.nodes.list.truncate(node.index as usize);
        error
    }
}

fn check_name(what: &'static str, name: &str) -> Result<()> {
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '.' | '-');
    let begins = name.starts_with(|letter: char| letter.is_ascii_alphabetic() || letter == '_');
    if begins && name.len() <= NAME_BYTES_MAX && name.chars().all(is_letter) {
        return Ok(());
    }
    let expected = format!("letters, digits, `_`, `.` and `-`, not beginning with a digit, at most {NAME_BYTES_MAX}");
    Err(Error::invalid(what, expected, format!("{:?}", name.chars().take(NAME_BYTES_MAX).collect::<String>())))
}
