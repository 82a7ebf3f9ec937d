//! Programs: an op or a whole graph as StableHLO text, with its arguments and outputs.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use panoply_core::graph::{Graph, Instance, Origin, placeholder, slot_of};
use panoply_core::op::graph::RunGraph;
use panoply_core::{Buffer, DType, Error, Location, Op, Result, Shape, Tensor};

use crate::hlo::Value;
use crate::ops::{Check, Emit, outputs};

/// The key under which a graph's instance stores its program. All plugins use the same text.
const SORT: u64 = 0x706a_7274;

/// A text to compile, and how to call it.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) text: String,
    /// A hash of the text, used to look up compiled programs.
    pub(crate) key: [u64; 2],
    /// The arguments in their order.
    pub(crate) arguments: Vec<Argument>,
    /// The outputs, which come before the results of the checks.
    pub(crate) outputs: Vec<(DType, Shape)>,
    /// The checks to evaluate after the run, with the nodes that they belong to.
    pub(crate) checks: Vec<(Option<usize>, Check)>,
}

/// An argument of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Argument {
    /// The op's tensor or the graph's input with this index.
    Input(usize),
    /// The graph's constant at this node.
    Constant(usize),
}

impl Program {
    /// Writes the program of one op. `dims` returns the layout of the buffer behind a tensor.
    pub(crate) fn of_op(op: &Op, dims: &dyn Fn(&Tensor) -> Result<Vec<usize>>) -> Result<Program> {
        let mut emit = Emit::new(0);
        let (mut op, mut wrong) = (op.clone(), Ok(()));
        let mut arguments = Vec::new();
        op.for_each_tensor_mut(&mut |tensor| {
            let slot = emit.slots.len();
            let stands = dims(tensor).and_then(|dims| {
                let value = emit.writer.argument(tensor.dtype().into(), &dims);
                emit.slots.push(Some(value));
                stand_in(tensor, &dims, slot)
            });
            match stands {
                Ok(stand_in) => *tensor = stand_in,
                Err(error) => wrong = Err(error),
            }
            arguments.push(Argument::Input(slot));
        });
        wrong?;
        let outputs = outputs(&op)?;
        let results = emit.op(&op)?;
        Ok(Program::finish(emit, None, arguments, outputs, results))
    }

    /// Returns the program of a graph for the sizes of an op's inputs. It is written once.
    pub(crate) fn of_graph(op: &RunGraph) -> Result<Arc<Program>> {
        let instance = op.instance()?;
        let make = || Program::of_instance(op.graph(), instance).map(|program| Arc::new(program) as Arc<_>);
        let made = instance.compiled(SORT, &make)?;
        made.downcast::<Program>().map_err(|_| Error::invalid("a graph's program", "StableHLO", "something else"))
    }

    fn of_instance(graph: &Graph, instance: &Instance) -> Result<Program> {
        let mut emit = Emit::new(instance.slots.len());
        let (read, mut arguments) = (slots_read(instance), Vec::new());
        for (slot, what) in instance.slots.iter().enumerate().filter(|(slot, _)| read[*slot]) {
            emit.slots[slot] = match what.origin {
                Origin::Input(input) => {
                    arguments.push(Argument::Input(input));
                    Some(emit.writer.argument(what.dtype.into(), what.shape.dims()))
                }
                Origin::Constant(node) => Some(match graph.nodes()[node].constant().and_then(number) {
                    Some(number) => emit.writer.constant(number, what.dtype.into(), what.shape.dims()),
                    None => {
                        arguments.push(Argument::Constant(node));
                        emit.writer.argument(what.dtype.into(), what.shape.dims())
                    }
                }),
                Origin::Step(_) => None,
            };
        }
        let mut nodes = Vec::new();
        for step in &instance.steps {
            let at_node = |cause| Error::Node { node: graph.node_text(step.node), cause: Box::new(cause) };
            let values = emit.op(&step.op).map_err(at_node)?;
            nodes.resize(emit.checks.len(), step.node);
            for (slot, value) in step.outputs.iter().zip(values) {
                emit.slots[slot] = Some(value);
            }
        }
        let results = instance.outputs.iter().map(|view| emit.tensor(view)).collect::<Result<Vec<Value>>>()?;
        let outputs = instance.outputs.iter().map(|view| (view.dtype(), *view.shape())).collect();
        Ok(Program::finish(emit, Some(nodes), arguments, outputs, results))
    }

    fn finish(
        emit: Emit,
        nodes: Option<Vec<usize>>,
        arguments: Vec<Argument>,
        outputs: Vec<(DType, Shape)>,
        mut results: Vec<Value>,
    ) -> Program {
        let node = |index: usize| nodes.as_ref().and_then(|nodes| nodes.get(index).copied());
        let (numbers, checks): (Vec<Value>, Vec<Check>) = emit.checks.into_iter().unzip();
        let checks = checks.into_iter().enumerate().map(|(index, check)| (node(index), check)).collect();
        results.extend(numbers);
        let text = emit.writer.finish(&results);
        Program { key: hash(&text), text, arguments, outputs, checks }
    }
}

/// Two hashes of a text. A collision is practically impossible.
fn hash(text: &str) -> [u64; 2] {
    [1_u8, 2].map(|salt| {
        let mut hasher = DefaultHasher::new();
        salt.hash(&mut hasher);
        text.hash(&mut hasher);
        hasher.finish()
    })
}

/// A placeholder that views its slot as the tensor views its buffer. `dims` are the buffer's
/// dimensions.
fn stand_in(tensor: &Tensor, dims: &[usize], slot: usize) -> Result<Tensor> {
    let whole = placeholder(tensor.dtype(), Shape::new(dims)?, slot)?;
    match tensor.location() {
        Location::Host => whole.broadcast_to(*tensor.shape()),
        Location::Device(_) => {
            let (shape, strides, offset) = (*tensor.shape(), *tensor.strides(), tensor.offset());
            Tensor::from_parts(tensor.dtype(), shape, strides, offset, whole.buffer().clone())
        }
    }
}

/// A host tensor as it is uploaded: contiguous, without the repeated elements of broadcast axes.
pub(crate) fn compact(tensor: &Tensor) -> Result<Tensor> {
    let mut compact = tensor.clone();
    for axis in 0..tensor.shape().rank() {
        if tensor.strides()[axis] == 0 && tensor.shape()[axis] > 1 {
            compact = compact.slice(axis, 0, 1)?;
        }
    }
    compact.contiguous()
}

/// The dimensions of [`compact`]'s result.
pub(crate) fn compact_dims(tensor: &Tensor) -> Vec<usize> {
    let dims = tensor.shape().iter().zip(tensor.strides().iter());
    dims.map(|(dim, stride)| if *stride == 0 && *dim > 1 { 1 } else { *dim }).collect()
}

/// Whether a device tensor is contiguous and covers its whole buffer.
pub(crate) fn is_whole(tensor: &Tensor) -> bool {
    let Buffer::Device(buffer) = tensor.buffer() else { return false };
    tensor.offset() == 0 && tensor.is_contiguous() && tensor.len_bytes() == buffer.len_bytes()
}

/// The value of a constant with one element. It is written into the program, since compilers
/// optimise constants better than arguments.
fn number(tensor: &Tensor) -> Option<f64> {
    if tensor.elements() != 1 {
        return None;
    }
    let tensor = tensor.contiguous().ok()?;
    match tensor.dtype() {
        DType::F32 => tensor.as_slice::<f32>().ok().map(|values| f64::from(values[0])),
        DType::F64 => tensor.as_slice::<f64>().ok().map(|values| values[0]),
        DType::I32 => tensor.as_slice::<i32>().ok().map(|values| f64::from(values[0])),
        _ => None,
    }
}

/// For each slot, whether a step or an output reads it.
fn slots_read(instance: &Instance) -> Vec<bool> {
    let mut read = vec![false; instance.slots.len()];
    let mut see = |tensor: &Tensor| {
        if let Some(slot) = slot_of(tensor) {
            read[slot] = true;
        }
    };
    instance.steps.iter().for_each(|step| step.op.for_each_tensor(&mut see));
    instance.outputs.iter().for_each(see);
    read
}
