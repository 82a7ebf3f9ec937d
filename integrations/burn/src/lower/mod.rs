//! Lowers Burn's operations to nodes of a graph. [`elements`] moves elements, [`numeric`] computes
//! elementwise, [`picks`] reads and writes elements by index, [`module`] has the building blocks of
//! layers, [`conv`] convolutions, and [`pool`] pooling of images.
//!
//! No message is trusted: a node's type follows from its operands, and is compared with the type
//! that the client expects.

mod conv;
mod elements;
mod module;
mod numeric;
mod picks;
mod pool;

use std::sync::Arc;

use burn_ir::{OperationIr, ScalarIr, TensorIr};
use panoply_core::expr::Expr;
use panoply_core::graph::{Dim, Graph, GraphBuilder, NodeId};
use panoply_core::{DType, Tensor, bf16, f16};

use crate::convert;
use crate::error::{Error, type_text};

pub(crate) type Result<T> = std::result::Result<T, Error>;

/// A number in a recorded operation that is at least this large is an index into the recording's
/// numbers, which may differ from run to run.
pub(crate) const MASKED: u64 = 1 << 62;

/// The result of lowering a recording.
pub(crate) struct LoweredGraph {
    /// The graph; `None` if no wanted value could be recorded.
    pub(crate) graph: Option<Graph>,
    /// Indices of the recording's inputs that the graph uses, in the order of the graph's inputs.
    pub(crate) inputs: Vec<usize>,
    /// Indices of the numbers in the graph's last input, in order.
    pub(crate) varying: Vec<usize>,
    /// The values that are the graph's outputs, in order.
    pub(crate) outputs: Vec<usize>,
    /// Wanted values that could not be recorded, with the errors.
    pub(crate) failed: Vec<(usize, Arc<Error>)>,
}

/// Lowers the operations that `wanted` depends on. Their tensors are numbers below `values`. An
/// operation that cannot be recorded fails together with all operations that depend on it; the
/// others are recorded.
pub(crate) fn lower(
    ops: &[OperationIr],
    values: usize,
    inputs: &[(usize, DType, Vec<usize>)],
    wanted: &[usize],
    numbers: &[f64],
    varies: &[bool],
) -> Result<LoweredGraph> {
    let (needed_ops, needed) = needed(ops, values, wanted);
    let varying: Vec<usize> = (0..numbers.len()).filter(|place| varies[*place]).collect();
    let mut nodes: Vec<Option<Node>> = vec![None; values];
    let mut g = Graph::builder("burn");
    let mut used = Vec::new();
    for (place, (value, dtype, dims)) in inputs.iter().enumerate() {
        if needed[*value] {
            nodes[*value] = Some(Ok(g.input(&format!("v{value}"), *dtype, &fixed(dims))?));
            used.push(place);
        }
    }
    let table = match varying.is_empty() {
        true => None,
        false => Some(g.input("numbers", DType::F32, &[varying.len().into()])?),
    };
    let mut lowering = Lowering { g, nodes, numbers, varying: &varying, table };
    for (op, _) in ops.iter().zip(needed_ops).filter(|(_, needed)| *needed) {
        lowering.record(op);
    }
    let (mut outputs, mut failed) = (Vec::new(), Vec::new());
    for value in wanted {
        match lowering.nodes.get(*value).cloned().flatten() {
            Some(Ok(node)) => {
                lowering.g.output(&format!("o{value}"), node)?;
                outputs.push(*value);
            }
            Some(Err(error)) => failed.push((*value, error)),
            None => failed.push((*value, Arc::new(Error::Protocol(format!("value {value} was never made"))))),
        }
    }
    let graph = if outputs.is_empty() { None } else { Some(lowering.g.finish()?) };
    Ok(LoweredGraph { graph, inputs: used, varying, outputs, failed })
}

/// Returns which operations and values the wanted values depend on.
fn needed(ops: &[OperationIr], values: usize, wanted: &[usize]) -> (Vec<bool>, Vec<bool>) {
    let mut needed = vec![false; values];
    let mut needed_ops = vec![false; ops.len()];
    wanted.iter().for_each(|value| needed[*value] = true);
    for (place, op) in ops.iter().enumerate().rev() {
        if op.outputs().any(|output| needed[number(output)]) {
            needed_ops[place] = true;
            op.inputs().for_each(|input| needed[number(input)] = true);
        }
    }
    (needed_ops, needed)
}

/// Returns the number of a recorded value.
fn number(tensor: &TensorIr) -> usize {
    tensor.id.value() as usize
}

type Node = std::result::Result<NodeId, Arc<Error>>;

/// A number in an operation: fixed, or a node of one element.
#[derive(Clone, Copy)]
enum NumberOperand {
    Fixed(f64),
    Varying(NodeId),
}

struct Lowering<'a> {
    g: GraphBuilder,
    nodes: Vec<Option<Node>>,
    numbers: &'a [f64],
    varying: &'a [usize],
    table: Option<NodeId>,
}

impl Lowering<'_> {
    fn record(&mut self, op: &OperationIr) {
        let broken = op.inputs().find_map(|input| match &self.nodes[number(input)] {
            Some(Ok(_)) => None,
            Some(Err(error)) => Some(Arc::clone(error)),
            None => Some(Arc::new(Error::UnknownTensor { id: input.id.value() })),
        });
        let made = match broken {
            Some(error) => Err(error),
            None => self.outputs(op).map_err(|error| Arc::new(error.of(&name(op)))),
        };
        match made {
            Ok(made) => made.into_iter().for_each(|(value, node)| self.nodes[value] = Some(Ok(node))),
            Err(error) => op.outputs().for_each(|out| self.nodes[number(out)] = Some(Err(Arc::clone(&error)))),
        }
    }

    /// Lowers an operation. Returns its outputs, checked against the types that the client expects.
    fn outputs(&mut self, op: &OperationIr) -> Result<Vec<(usize, NodeId)>> {
        let made = match op {
            OperationIr::BaseFloat(op) | OperationIr::BaseInt(op) | OperationIr::BaseBool(op) => self.base(op)?,
            OperationIr::NumericFloat(_, op) | OperationIr::NumericInt(_, op) => self.numeric(op)?,
            OperationIr::Float(_, op) => vec![self.float(op)?],
            OperationIr::Int(op) => vec![self.int(op)?],
            OperationIr::Bool(op) => vec![self.boolean(op)?],
            OperationIr::Activation(op) => vec![self.activation(op)?],
            OperationIr::Module(op) => self.module(op)?,
            _ => return Err(unserved("operations of this kind")),
        };
        let mut checked = Vec::new();
        for (out, node) in op.outputs().zip(made) {
            let (expected_type, expected_dims) = (convert::dtype(out.dtype)?, out.shape.to_vec());
            let (dtype, dims) = (self.dtype(node)?, self.dims(node)?);
            if dtype != expected_type || dims != expected_dims {
                let (expected, got) = (type_text(expected_type, &expected_dims), type_text(dtype, &dims));
                return Err(Error::Expected { op: name(op), expected, got });
            }
            checked.push((number(out), node));
        }
        Ok(checked)
    }

    fn get(&self, tensor: &TensorIr) -> Result<NodeId> {
        match self.nodes.get(number(tensor)).cloned().flatten() {
            Some(Ok(node)) => Ok(node),
            _ => Err(Error::UnknownTensor { id: tensor.id.value() }),
        }
    }

    fn dtype(&self, node: NodeId) -> Result<DType> {
        Ok(self.g.type_of(node)?.0)
    }

    fn dims(&self, node: NodeId) -> Result<Vec<usize>> {
        Ok(self.g.type_of(node)?.1.iter().map(|dim| dim.as_fixed().unwrap_or(0)).collect())
    }

    /// Returns the size of an axis, which must exist.
    fn size(&self, node: NodeId, axis: usize) -> Result<usize> {
        let dims = self.dims(node)?;
        dims.get(axis).copied().ok_or_else(|| no_axis(dims.len(), axis))
    }

    fn map(&mut self, operands: &[NodeId], make: impl FnOnce(&[Expr]) -> Expr) -> Result<NodeId> {
        Ok(self.g.map(operands, make)?)
    }

    fn reshape(&mut self, x: NodeId, dims: &[usize]) -> Result<NodeId> {
        Ok(self.g.reshape(x, &fixed(dims))?)
    }

    fn broadcast(&mut self, x: NodeId, dims: &[usize]) -> Result<NodeId> {
        Ok(self.g.broadcast(x, &fixed(dims))?)
    }

    fn cast(&mut self, x: NodeId, dtype: DType) -> Result<NodeId> {
        if self.dtype(x)? == dtype { Ok(x) } else { Ok(self.g.cast(x, dtype)?) }
    }

    /// Makes a scalar constant of this type.
    fn constant(&mut self, dtype: DType, value: f64) -> Result<NodeId> {
        let tensor = match dtype {
            DType::F32 => Tensor::scalar(value as f32)?,
            DType::F16 => Tensor::scalar(f16::from_f64(value))?,
            DType::BF16 => Tensor::scalar(bf16::from_f64(value))?,
            DType::F64 => Tensor::scalar(value)?,
            DType::I32 => Tensor::scalar(value as i32)?,
            DType::U32 => Tensor::scalar(value as u32)?,
            DType::I8 => Tensor::scalar(value as i8)?,
            DType::U8 => Tensor::scalar(value as u8)?,
            other => return Err(unserved(format!("a number of type {other}"))),
        };
        Ok(self.g.unnamed_constant(&tensor)?)
    }

    /// Resolves a number in an operation on elements of type `dtype`.
    fn number(&mut self, scalar: &ScalarIr, dtype: DType) -> Result<NumberOperand> {
        let place = match *scalar {
            ScalarIr::UInt(place) if place >= MASKED => (place - MASKED) as usize,
            ScalarIr::Float(value) => return Ok(NumberOperand::Fixed(value)),
            ScalarIr::Int(value) => return Ok(NumberOperand::Fixed(value as f64)),
            ScalarIr::UInt(value) => return Ok(NumberOperand::Fixed(value as f64)),
            ScalarIr::Bool(value) => return Ok(NumberOperand::Fixed(f64::from(u8::from(value)))),
        };
        let Some(entry) = self.varying.iter().position(|varying| *varying == place) else {
            let value = self.numbers.get(place).copied();
            return value.map(NumberOperand::Fixed).ok_or_else(|| unserved("a number that was not recorded"));
        };
        let table = self.table.ok_or_else(|| unserved("a number that was not recorded"))?;
        let node = self.g.slice(table, 0, entry, entry + 1, 1)?;
        Ok(NumberOperand::Varying(self.cast(node, dtype)?))
    }

    /// Resolves a number that must not change from run to run.
    fn fixed_number(&mut self, scalar: &ScalarIr) -> Result<f64> {
        match self.number(scalar, DType::F32)? {
            NumberOperand::Fixed(value) => Ok(value),
            NumberOperand::Varying(_) => Err(unserved("a parameter that changes from run to run")),
        }
    }

    /// Maps an expression over nodes and a number.
    fn with_number(
        &mut self,
        operands: &[NodeId],
        scalar: &ScalarIr,
        make: impl FnOnce(&[Expr], Expr) -> Expr,
    ) -> Result<NodeId> {
        let dtype = self.dtype(operands[0])?;
        match self.number(scalar, dtype)? {
            NumberOperand::Fixed(value) => self.map(operands, |v| make(v, Expr::constant(value))),
            NumberOperand::Varying(node) => {
                let all = [operands, &[node]].concat();
                self.map(&all, |v| make(&v[..operands.len()], v[operands.len()].clone()))
            }
        }
    }
}

/// Converts sizes to fixed dimensions.
fn fixed(dims: &[usize]) -> Vec<Dim> {
    dims.iter().map(|dim| Dim::fixed(*dim)).collect()
}

fn unserved(what: impl Into<String>) -> Error {
    Error::unsupported("", what)
}

fn no_axis(rank: usize, axis: usize) -> Error {
    Error::Runtime(panoply_core::Error::OutOfBounds { what: "axis", limit: rank.saturating_sub(1), got: axis })
}

/// Returns the name of an operation, such as `NumericFloat.Add`.
pub(crate) fn name(op: &OperationIr) -> String {
    let text = format!("{op:?}");
    let head = text.split(" {").next().unwrap_or_default();
    let parts: Vec<&str> = head.split(['(', ',', ' ']).filter(|part| !part.is_empty()).collect();
    // For these kinds the element type comes before the name.
    let place = match parts.first() {
        Some(&("NumericFloat" | "NumericInt" | "Float")) => 2,
        _ => 1,
    };
    let names = parts.first().into_iter().chain(parts.get(place));
    names.copied().collect::<Vec<&str>>().join(".")
}
