//! Softmax, layer norm and reductions of the last axes are fused with the maps before and after
//! them: a row is read once, and written once. Ops without such a map are left unchanged.

use panoply_core::expr::{Expr, INPUTS_MAX, Operand, Program};
use panoply_core::graph::slot_of;
use panoply_core::op::compute::{ComputeOp, LayerNorm, Map, Reduce, Reduction, RowFunction, RowMap, Softmax};
use panoply_core::{DType, Describe, Op, Shape, Tensor};

use super::elementwise::{InlinedMap, place};
use super::images::is_channels_last;
use crate::Facts;
use crate::views::{is_whole, reshaped};
use crate::work::Rewrite;

pub(crate) fn run(work: &mut Rewrite, facts: &Facts) {
    for step in 0..work.steps.len() {
        let Some(rows) = work.op(step).and_then(|op| RowMatch::of(op, facts)) else { continue };
        let (rows, before) = rows.with_before(work, step, facts);
        let (rows, after) = rows.with_after(work, step, facts);
        if before.is_none() && after.is_none() {
            continue;
        }
        let Some(op) = rows.into_op() else { continue };
        // The later of the two steps runs after the makers of all inputs.
        work.replace(after.unwrap_or(step), op);
        if after.is_some() {
            work.remove(step);
        }
        before.into_iter().for_each(|before| work.remove_if_unread(before));
    }
}

/// A row function with the expressions before and after it.
struct RowMatch {
    function: RowFunction,
    before: Program,
    inputs: Vec<Tensor>,
    after: Program,
    more: Vec<Tensor>,
    /// The axes before the rows, followed by the elements of a row.
    shape: Shape,
    inputs_max: usize,
}

impl RowMatch {
    /// The op as a row function, if it works on the last axes of floats.
    fn of(op: &Op, facts: &Facts) -> Option<RowMatch> {
        let Op::Compute(op) = op else { return None };
        let (function, input, axes) = match op {
            ComputeOp::Softmax(Softmax { input, axis, is_log }) if axis + 1 == input.shape().rank() => {
                (if *is_log { RowFunction::LogSoftmax } else { RowFunction::Softmax }, input, 1)
            }
            ComputeOp::LayerNorm(LayerNorm { input, axes, epsilon, is_rms, .. }) => {
                (RowFunction::Norm { epsilon: *epsilon, is_rms: *is_rms }, input, *axes)
            }
            // Adjacent channels are reduced in parallel vector lanes, which is not a row function.
            ComputeOp::Reduce(op) if facts.channels_last_f32 && lies_across(&op.input) => return None,
            ComputeOp::Reduce(op) => (reduction(op.reduction)?, &op.input, trailing(op)?),
            _ => return None,
        };
        let dims = input.shape().dims();
        let len: usize = dims[dims.len() - axes..].iter().product();
        if !input.dtype().is_float() || input.dtype() == DType::F64 || input.elements() == 0 || len > facts.row_len_max
        {
            return None;
        }
        let shape = Shape::new([&dims[..dims.len() - axes], &[len]].concat()).ok()?;
        let identity = Expr::input(0).finish().ok()?;
        let input = vec![reshaped(input, &shape)?];
        let (after, more) = match op {
            ComputeOp::LayerNorm(op) => parameters(op, len)?,
            _ => (identity.clone(), Vec::new()),
        };
        let inputs_max = facts.row_inputs_max.min(INPUTS_MAX as usize - 1);
        Some(RowMatch { function, before: identity, inputs: input, after, more, shape, inputs_max })
    }

    /// Fuses the map that makes the rows. Returns its step too.
    fn with_before(mut self, work: &Rewrite, step: usize, facts: &Facts) -> (RowMatch, Option<usize>) {
        let view = self.inputs[0].clone();
        let taken = work.private_maker(&view, step).and_then(|maker| {
            let is_read_twice = self.more.iter().any(|tensor| slot_of(tensor) == slot_of(&view));
            let inlined = InlinedMap::new(work, maker, &view, facts).filter(|_| !is_read_twice)?;
            let (program, inputs) = inlined.into_program(&self.before, self.inputs.iter(), &view)?;
            (inputs.len() + self.more.len() <= self.inputs_max).then_some((program, inputs, maker))
        });
        match taken {
            Some((program, inputs, maker)) => {
                (self.before, self.inputs) = (program, inputs);
                (self, Some(maker))
            }
            None => (self, None),
        }
    }

    /// Fuses the map that reads the result. Returns its step too.
    fn with_after(mut self, work: &Rewrite, step: usize, facts: &Facts) -> (RowMatch, Option<usize>) {
        let taken = self.reader(work, step).and_then(|(reader, map)| {
            let (after, more) = self.composed(work, step, map)?;
            let fits = after.nodes().len() <= facts.map_nodes_max && self.inputs.len() + more.len() <= self.inputs_max;
            fits.then_some((after, more, reader))
        });
        match taken {
            Some((after, more, reader)) => {
                (self.after, self.more) = (after, more);
                (self, Some(reader))
            }
            None => (self, None),
        }
    }

    /// The map that is the only reader of the result.
    fn reader<'w>(&self, work: &'w Rewrite, step: usize) -> Option<(usize, &'w Map)> {
        let slot = work.steps[step].as_ref()?.outputs.first()?;
        let reader = work.only_reader(slot)?;
        Some((reader, work.map(reader)?))
    }

    /// The map's expression applied to the current result, and its other inputs, in the result's
    /// shape.
    fn composed(&self, work: &Rewrite, step: usize, map: &Map) -> Option<(Program, Vec<Tensor>)> {
        let slot = work.steps[step].as_ref()?.outputs.first()?;
        let elements = work.slots[slot].shape.elements();
        let whole = map.output_shape().ok()?;
        let output = self.output_shape()?;
        if whole.elements() != elements {
            return None;
        }
        let mut more = self.more.clone();
        let places: Vec<u32> = (0..=more.len() as u32).collect();
        let mut operands = Vec::new();
        for input in map.inputs() {
            if slot_of(input) == Some(slot) {
                let as_it_is = is_whole(input, elements) && same_but_ones(input.shape(), &whole);
                operands.push(as_it_is.then_some(Operand::Result(&self.after, &places))?);
            } else {
                let input = reshaped(&input.broadcast_to(whole).ok()?, &output)?;
                operands.push(Operand::Input(place(&mut more, &input) + 1));
            }
        }
        Some((map.program().ok()?.compose(&operands).ok()?, more))
    }

    fn output_shape(&self) -> Option<Shape> {
        let rank = self.shape.rank();
        if self.function.is_reduction() { Shape::new(&self.shape[..rank - 1]).ok() } else { Some(self.shape) }
    }

    fn into_op(self) -> Option<Op> {
        let RowMatch { function, before, inputs, after, more, shape, .. } = self;
        let (inputs, more): (Vec<&Tensor>, Vec<&Tensor>) = (inputs.iter().collect(), more.iter().collect());
        let op = RowMap::with_programs(Ok(before), &inputs, function, Ok(after), &more);
        (op.validate().is_ok() && op.rows_shape().ok()? == shape).then(|| Op::Compute(ComputeOp::RowMap(op)))
    }
}

fn lies_across(image: &Tensor) -> bool {
    is_channels_last(image) && !image.is_contiguous()
}

/// Whether two shapes differ only in dimensions of one, so that elements keep their order.
fn same_but_ones(a: &Shape, b: &Shape) -> bool {
    let wide = |shape: &Shape| shape.iter().copied().filter(|size| *size != 1).collect::<Vec<_>>();
    wide(a) == wide(b)
}

fn reduction(reduction: Reduction) -> Option<RowFunction> {
    Some(match reduction {
        Reduction::Sum => RowFunction::Sum,
        Reduction::Mean => RowFunction::Mean,
        Reduction::Max => RowFunction::Max,
        Reduction::Min => RowFunction::Min,
        Reduction::ArgMax | Reduction::ArgMin => return None,
    })
}

/// Number of trailing axes that are reduced. `None` if other axes are reduced too.
fn trailing(op: &Reduce) -> Option<usize> {
    let reduced = op.reduced().ok()?;
    let count = reduced.iter().rev().take_while(|reduced| **reduced).count();
    (count > 0 && reduced.iter().filter(|reduced| **reduced).count() == count).then_some(count)
}

/// Weight and bias of a layer norm as an expression of its result.
fn parameters(op: &LayerNorm, len: usize) -> Option<(Program, Vec<Tensor>)> {
    let row = Shape::new([len]).ok()?;
    let (mut expr, mut more) = (Expr::input(0), Vec::new());
    for (tensor, is_factor) in [(&op.weight, true), (&op.bias, false)] {
        let Some(tensor) = tensor else { continue };
        let parameter = Expr::input(place(&mut more, &reshaped(tensor, &row)?) + 1);
        expr = if is_factor { expr * parameter } else { expr + parameter };
    }
    Some((expr.finish().ok()?, more))
}
