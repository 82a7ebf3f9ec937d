//! Fuses maps that read each other: a map takes the expression of every map of which it is the only
//! reader.
//!
//! Only values with one reader are fused, so nothing is computed twice. A broadcast value is fused
//! if computing it again for every element costs less than reading it.
//!
//! Small maps are fused to larger ones in two rounds. If a map took one maker after the other, it
//! would be composed again each time, which costs the square of its size in a long chain.

use panoply_core::expr::{BinaryOp, INPUTS_MAX, Node, Operand, Program, UnaryOp};
use panoply_core::graph::slot_of;
use panoply_core::op::compute::{ComputeOp, Map};
use panoply_core::{Describe, Op, Tensor};

use crate::Facts;
use crate::views::{is_same, is_whole, reshaped, through};
use crate::work::Rewrite;

/// The most nodes of two expressions together in the first round.
const FIRST_ROUND_NODES_MAX: usize = 24;

pub(crate) fn run(work: &mut Rewrite, facts: &Facts) {
    join(work, facts, FIRST_ROUND_NODES_MAX);
    join(work, facts, usize::MAX);
}

/// Fuses maps with their makers while both expressions have at most `nodes_max` nodes together.
fn join(work: &mut Rewrite, facts: &Facts, nodes_max: usize) {
    for step in 0..work.steps.len() {
        while let Some((map, maker)) = work.map(step).and_then(|map| fused(work, step, map, facts, nodes_max)) {
            work.replace(step, Op::Compute(ComputeOp::Map(map)));
            work.remove_if_unread(maker);
        }
    }
}

/// The map fused with the first of its makers for which that works, and that maker's step.
fn fused(work: &Rewrite, step: usize, map: &Map, facts: &Facts, nodes_max: usize) -> Option<(Map, usize)> {
    let nodes = map.program().ok()?.nodes().len();
    map.inputs().find_map(|input| {
        let maker = work.private_maker(input, step)?;
        let made = work.map(maker)?.program().ok()?.nodes().len();
        // A composed expression has at least the nodes of either part.
        if made.saturating_add(nodes) > nodes_max || made.max(nodes) > facts.map_nodes_max {
            return None;
        }
        let as_it_is = || taken_in(work, maker, map, input, facts);
        // If a view was reshaped, the reading map can be computed in the shape of the view's
        // source.
        let fused = as_it_is().or_else(|| {
            let (map, input) = in_shape_of(work.map(maker)?, map, input)?;
            taken_in(work, maker, &map, &input, facts)
        });
        fused.map(|fused| (fused, maker))
    })
}

/// The map with the maker of one of its inputs inlined.
fn taken_in(work: &Rewrite, maker: usize, map: &Map, input: &Tensor, facts: &Facts) -> Option<Map> {
    let shape = map.output_shape().ok()?;
    let inlined = InlinedMap::new(work, maker, input, facts)?;
    let slot = slot_of(input);
    // Every other view of the same slot would need the expression again.
    if map.inputs().any(|other| slot_of(other) == slot && !is_same(other, input)) {
        return None;
    }
    let (program, inputs) = inlined.into_program(map.program().ok()?, map.inputs(), input)?;
    let fits = inputs.len() <= facts.map_inputs_max && program.nodes().len() <= facts.map_nodes_max;
    let fused = Map::with_program(&program, &inputs.iter().collect::<Vec<_>>());
    (fits && fused.output_shape().ok()? == shape && fused.validate().is_ok()).then_some(fused)
}

/// The map and its input, in the shape of the map that makes the input. Requires that elements keep
/// their order.
fn in_shape_of(maker: &Map, map: &Map, input: &Tensor) -> Option<(Map, Tensor)> {
    let (own, other) = (map.output_shape().ok()?, maker.output_shape().ok()?);
    if own == other || !is_whole(input, other.elements()) || own.elements() != other.elements() {
        return None;
    }
    let turned = |tensor: &Tensor| reshaped(&tensor.broadcast_to(own).ok()?, &other);
    let inputs: Vec<Tensor> = map.inputs().map(turned).collect::<Option<_>>()?;
    let map = Map::with_program(map.program().ok()?, &inputs.iter().collect::<Vec<_>>());
    Some((map, turned(input)?))
}

/// The expression of an inlined map, and its inputs through the reader's view.
pub(super) struct InlinedMap<'a> {
    program: &'a Program,
    inputs: Vec<Tensor>,
}

impl<'a> InlinedMap<'a> {
    /// The map of a step, through a view of its output. `None` if the step is not a map, or if
    /// strides cannot express the composed view.
    pub(super) fn new(work: &'a Rewrite, maker: usize, view: &Tensor, facts: &Facts) -> Option<InlinedMap<'a>> {
        let map = work.map(maker)?;
        let program = map.program().ok()?;
        let shape = map.output_shape().ok()?;
        let is_stretched = view.elements() > shape.elements();
        if program.nodes().len() > facts.map_nodes_max || (is_stretched && !is_cheap(program)) {
            return None;
        }
        let inputs = map.inputs().map(|input| through(view, &shape, input)).collect::<Option<Vec<_>>>()?;
        (!inputs.is_empty()).then_some(InlinedMap { program, inputs })
    }

    /// `reader` with its inputs equal to `view` replaced by this expression, and the inputs of
    /// both, each once.
    pub(super) fn into_program<'t>(
        self,
        reader: &Program,
        inputs: impl Iterator<Item = &'t Tensor>,
        view: &Tensor,
    ) -> Option<(Program, Vec<Tensor>)> {
        let mut all: Vec<Tensor> = Vec::new();
        let places: Vec<u32> = self.inputs.iter().map(|input| place(&mut all, input)).collect();
        let operands: Vec<Operand<'_>> = inputs
            .map(|input| match is_same(input, view) {
                true => Operand::Result(self.program, &places),
                false => Operand::Input(place(&mut all, input)),
            })
            .collect();
        if all.len() > INPUTS_MAX as usize {
            return None;
        }
        Some((reader.compose(&operands).ok()?, all))
    }
}

/// The index of a tensor among the inputs. The tensor is appended if it is new.
pub(super) fn place(inputs: &mut Vec<Tensor>, tensor: &Tensor) -> u32 {
    let known = inputs.iter().position(|known| is_same(known, tensor));
    known.unwrap_or_else(|| {
        inputs.push(tensor.clone());
        inputs.len() - 1
    }) as u32
}

/// Whether computing an expression costs less than reading its result.
fn is_cheap(program: &Program) -> bool {
    use UnaryOp::{Abs, Ceil, Floor, Neg, Not, Relu, Round};
    program.nodes().len() <= 8
        && program.nodes().iter().all(|node| match node {
            Node::Unary(op, _) => matches!(op, Neg | Abs | Relu | Floor | Ceil | Round | Not),
            Node::Binary(op, ..) => !matches!(op, BinaryOp::Pow | BinaryOp::Rem | BinaryOp::Div),
            _ => true,
        })
}
