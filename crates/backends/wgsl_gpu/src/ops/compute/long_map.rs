//! Maps of expressions too long for one kernel: cut into steps whose values are kept in memory
//! between the steps.
//!
//! A step is a run of nodes. Values that later steps read are alive at its end, and each of them
//! gets a kernel of its own, made of the step's nodes. Expressions with more than [`ALIVE_MAX`]
//! values alive at a cut are not supported.

use panoply_core::expr::{Expr, Node, NodeId, Program, Types, Value};
use panoply_core::op::compute::Map;
use panoply_core::{DType, Result, Shape, Tensor};
use panoply_kernels::wgsl::MapKernel;

use super::map::evaluate;
use crate::context::Context;
use crate::driver::Driver;
use crate::operand::Operand;

/// Nodes of a step: a multiple of the lengths of common loops, so that steps are equal and share a
/// kernel.
const STEP_NODES: usize = 384;
/// The most values that are kept between two steps.
const ALIVE_MAX: usize = 16;

/// Checks that the expression can be cut.
pub(super) fn support(program: &Program, dtypes: &[DType]) -> Result<(), String> {
    let types = program.types(dtypes).map_err(|error| error.to_string())?;
    if types.values().contains(&Value::Typed(DType::F64)) {
        return Err("f64 in a map".to_owned());
    }
    let most = steps(program, &types).iter().map(|(_, alive)| alive.len()).max().unwrap_or(0);
    if most > ALIVE_MAX {
        let nodes = program.nodes().len();
        return Err(format!("an expression of {nodes} nodes with {most} values alive at once; expected {ALIVE_MAX}"));
    }
    Ok(())
}

/// The first node of every step, and the nodes whose values later steps read, or that are the
/// result.
fn steps(program: &Program, types: &Types) -> Vec<(usize, Vec<usize>)> {
    let nodes = program.nodes();
    let mut last_use: Vec<usize> = (0..nodes.len()).collect();
    for (id, node) in nodes.iter().enumerate() {
        node.operands().for_each(|operand| last_use[operand as usize] = id);
    }
    last_use[nodes.len() - 1] = usize::MAX;
    let starts = (0..nodes.len()).step_by(STEP_NODES);
    let step = |start: usize| {
        let end = (start + STEP_NODES).min(nodes.len());
        let computed = |id: &usize| {
            matches!(types.values()[*id], Value::Typed(_)) && !matches!(nodes[*id], Node::Input(_) | Node::Const(_))
        };
        let alive = (start..end).filter(|id| last_use[*id] >= end && (computed(id) || *id + 1 == nodes.len()));
        (start, alive.collect())
    };
    starts.map(step).collect()
}

/// Computes the expression step by step.
pub(super) fn run<D: Driver>(
    op: &Map,
    program: &Program,
    dtype: DType,
    shape: Shape,
    context: &mut Context<D>,
) -> Result<Operand<D>> {
    let inputs: Vec<&Tensor> = op.inputs().collect();
    let dtypes: Vec<DType> = inputs.iter().map(|input| input.dtype()).collect();
    let types = program.types(&dtypes)?;
    let mut given = Vec::with_capacity(inputs.len());
    for input in inputs {
        given.push(context.operand(input)?);
    }
    let mut cut = Evaluation { program, types: &types, given, kept: Vec::new() };
    let mut last = None;
    for (start, alive) in steps(program, &types) {
        let mut step = MapStep { start, sources: Vec::new(), built: Vec::new() };
        cut.build(&mut step);
        let mut made = Vec::with_capacity(alive.len());
        for id in alive {
            let value = match types.values()[id] {
                Value::Typed(own) => own,
                Value::Constant(_) => dtype,
            };
            made.push((id, cut.evaluate(&step, id, value, shape, context)?));
        }
        last = made.last().map(|(_, operand)| operand.clone());
        cut.kept.extend(made);
        let behind = start + STEP_NODES;
        cut.forget(behind);
    }
    last.ok_or_else(|| panoply_core::Error::invalid("map", "an expression", "no nodes"))
}

/// An expression during its evaluation.
struct Evaluation<'a, D: Driver> {
    program: &'a Program,
    types: &'a Types,
    given: Vec<Operand<D>>,
    /// Values of earlier steps.
    kept: Vec<(usize, Operand<D>)>,
}

/// One step as expressions over its own inputs.
struct MapStep {
    start: usize,
    /// The sources of its inputs.
    sources: Vec<StepInput>,
    /// The expression of every node so far.
    built: Vec<Expr>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum StepInput {
    Given(u32),
    Kept(usize),
}

impl MapStep {
    fn source(&mut self, source: StepInput) -> Expr {
        let place = self.sources.iter().position(|known| *known == source).unwrap_or_else(|| {
            self.sources.push(source);
            self.sources.len() - 1
        });
        Expr::input(place as u32)
    }
}

impl<D: Driver> Evaluation<'_, D> {
    /// Builds the expressions of a step's nodes.
    fn build(&self, step: &mut MapStep) {
        let end = (step.start + STEP_NODES).min(self.program.nodes().len());
        for id in step.start..end {
            let expr = match self.program.nodes()[id] {
                Node::Input(index) => step.source(StepInput::Given(index)),
                Node::Const(constant) => Expr::constant(constant.value()),
                Node::Cast(dtype, a) => self.value(a, step).cast(dtype),
                Node::Unary(op, a) => self.value(a, step).unary(op),
                Node::Binary(op, a, b) => self.value(a, step).binary(op, self.value(b, step)),
                Node::Ternary(op, a, b, c) => {
                    let (second, third) = (self.value(b, step), self.value(c, step));
                    self.value(a, step).ternary(op, second, third)
                }
            };
            step.built.push(expr);
        }
    }

    fn value(&self, id: NodeId, step: &mut MapStep) -> Expr {
        let place = id as usize;
        if let Value::Constant(value) = self.types.values()[place] {
            return Expr::constant(value);
        }
        match self.program.nodes()[place] {
            Node::Input(index) => step.source(StepInput::Given(index)),
            _ if place >= step.start => step.built[place - step.start].clone(),
            _ => step.source(StepInput::Kept(place)),
        }
    }

    fn evaluate(
        &self,
        step: &MapStep,
        id: usize,
        dtype: DType,
        shape: Shape,
        context: &mut Context<D>,
    ) -> Result<Operand<D>> {
        let program = step.built[id - step.start].finish()?;
        let operand = |source: &StepInput| match source {
            StepInput::Given(index) => self.given[*index as usize].clone(),
            StepInput::Kept(node) => {
                let kept = self.kept.iter().find(|(id, _)| id == node);
                kept.map_or_else(|| self.given[0].clone(), |(_, operand)| operand.clone())
            }
        };
        let sources: Vec<Operand<D>> = step.sources.iter().map(operand).collect();
        let dtypes: Vec<DType> = sources.iter().map(|operand| operand.dtype).collect();
        let read = MapKernel::inputs_read(&program);
        let operands = read.iter().map(|index| sources[*index].clone()).collect();
        evaluate(&program, &dtypes, &read, operands, dtype, shape, context)
    }

    /// Drops values that no node from `behind` on reads.
    fn forget(&mut self, behind: usize) {
        let later = self.program.nodes().get(behind..).unwrap_or_default();
        let read: std::collections::HashSet<usize> =
            later.iter().flat_map(Node::operands).map(|id| id as usize).collect();
        self.kept.retain(|(id, _)| read.contains(id));
    }
}
