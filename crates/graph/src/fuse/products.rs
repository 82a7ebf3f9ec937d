//! Joins products of one tensor with several constants, such as an attention's queries, keys and
//! values. The constants are concatenated by columns, and the readers of each result read their
//! columns of the joined result.

use std::sync::Arc;

use panoply_core::expr::Expr;
use panoply_core::graph::{Graph, Origin, Slot, placeholder, slot_of};
use panoply_core::op::compute::{Activation, ComputeOp, Map, MatMul, Precision};
use panoply_core::{DType, Describe, Op, Shape, Tensor};

use crate::plan::Concatenation;
use crate::views::{is_same, is_whole};
use crate::work::Rewrite;
use crate::{Facts, Lists};

/// The most products that are joined, and the most columns of them together.
const MEMBERS_MAX: usize = 8;
const COLUMNS_MAX: usize = 1 << 14;
/// The largest distance of two joined products in the list.
const DISTANCE_MAX: usize = 64;
/// A convolution library takes 16-bit weights whose rows and columns are multiples of this.
const GROUP: usize = 8;

pub(crate) fn run(work: &mut Rewrite, graph: &Graph, facts: &Facts) {
    if !facts.joins_heads {
        return;
    }
    if facts.channels_last {
        (0..work.steps.len()).for_each(|step| {
            let _ = turn_weights(work, graph, step);
        });
    }
    let mut readers = None;
    for step in 0..work.steps.len() {
        let Some(first) = member(work, graph, step) else { continue };
        let mut all = vec![first];
        for other in step + 1..work.steps.len().min(step + DISTANCE_MAX) {
            let Some(other) = member(work, graph, other) else { continue };
            let columns: usize = all.iter().map(|member| member.columns).sum();
            if all.len() < MEMBERS_MAX && columns + other.columns <= COLUMNS_MAX && all[0].goes_with(work, &other) {
                all.push(other);
            }
        }
        if all.len() > 1 {
            let readers = readers.get_or_insert_with(|| work.all_readers());
            // If joining is impossible, the list is left unchanged.
            let _ = join(work, &all, readers);
        }
    }
}

/// Stores a product's constant column by column, once, if an epilogue follows that a convolution
/// library fuses before it rounds. The library requires this weight layout.
fn turn_weights(work: &mut Rewrite, graph: &Graph, step: usize) -> Option<()> {
    let op = product(work, step)?;
    let follows = op.c.is_some() || matches!(op.activation, Activation::Relu | Activation::Gelu);
    let (_, b) = op.operands().ok()?;
    let fits = b.shape().rank() == 2 && b.shape().iter().all(|size| size.is_multiple_of(GROUP));
    if !follows || !fits || !matches!(b.dtype(), DType::F16 | DType::BF16) || !b.is_contiguous() {
        return None;
    }
    constant(work, graph, &b)?;
    let mut op = op.clone();
    let turned = b.transpose().ok()?;
    let copy = Map::with_program(&Expr::input(0).finish().ok()?, &[&turned]);
    copy.validate().ok()?;
    let (node, shape, dtype) = (work.steps[step].as_ref()?.node, *turned.shape(), b.dtype());
    let slot = Slot::new(dtype, shape, Origin::Step(0));
    let slot = work.push_once(node, Op::Compute(ComputeOp::Map(copy)), slot);
    (op.b, op.transpose_b) = (placeholder(dtype, shape, slot).ok()?.transpose().ok()?, false);
    work.replace(step, Op::Compute(ComputeOp::MatMul(op)));
    Some(())
}

/// A product with a constant.
struct Member {
    step: usize,
    slot: usize,
    weights: usize,
    bias: Option<usize>,
    columns: usize,
    /// The axis of the constant that holds its columns.
    axis: usize,
}

impl Member {
    fn goes_with(&self, work: &Rewrite, other: &Member) -> bool {
        let (Some(own), Some(their)) = (product(work, self.step), product(work, other.step)) else { return false };
        is_same(&own.a, &their.a)
            && self.axis == other.axis
            && self.bias.is_some() == other.bias.is_some()
            && own.alpha.to_bits() == their.alpha.to_bits()
            && (own.precision, own.transpose_a) == (their.precision, their.transpose_a)
    }
}

fn product(work: &Rewrite, step: usize) -> Option<&MatMul> {
    match work.op(step)? {
        Op::Compute(ComputeOp::MatMul(op)) => Some(op),
        _ => None,
    }
}

/// The product of a step, if it can be joined with others.
fn member(work: &Rewrite, graph: &Graph, step: usize) -> Option<Member> {
    let op = product(work, step)?;
    let slot = work.steps[step].as_ref()?.outputs.first()?;
    let is_float = matches!(op.a.dtype(), DType::F16 | DType::BF16 | DType::F32);
    let is_plain = op.c.is_none() && op.activation == Activation::None && op.precision == Precision::Full;
    if !is_float || !is_plain || op.a.shape().rank() < 2 || work.is_output(slot) || work.orders[slot].is_some() {
        return None;
    }
    let (_, b) = op.operands().ok()?;
    let turned = b.transpose().ok()?;
    let (axis, as_it_is) = if b.is_contiguous() { (1, &b) } else { (0, &turned) };
    let weights = constant(work, graph, as_it_is)?;
    let bias = match &op.bias {
        Some(bias) if bias.shape().rank() == 1 => Some(constant(work, graph, bias)?),
        Some(_) => return None,
        None => None,
    };
    (b.shape().rank() == 2).then(|| Member { step, slot, weights, bias, columns: b.shape()[1], axis })
}

/// The node of the host constant that a tensor covers entirely.
fn constant(work: &Rewrite, graph: &Graph, tensor: &Tensor) -> Option<usize> {
    let slot = slot_of(tensor)?;
    let Origin::Constant(node) = work.slots[slot].origin else { return None };
    let is_plain = !work.parts.contains_key(&slot) && is_whole(tensor, work.slots[slot].shape.elements());
    let constant = graph.nodes()[node].constant()?;
    (is_plain && constant.host_bytes().is_ok() && constant.shape() == tensor.shape()).then_some(node)
}

/// Replaces the first product by the joined one, and removes the others.
fn join(work: &mut Rewrite, members: &[Member], readers: &Lists) -> Option<()> {
    let first = &members[0];
    let mut op = product(work, first.step)?.clone();
    let columns: usize = members.iter().map(|member| member.columns).sum();
    let old: Vec<Shape> = members.iter().map(|member| work.slots[member.slot].shape).collect();
    let last = old[0].rank().checked_sub(1)?;
    let wide = old[0].with_dim(last, columns).ok()?;
    let whole = placeholder(op.output_dtype(), wide, first.slot).ok()?;
    let mut seen = Vec::new();
    let mut start = 0;
    for (member, old) in members.iter().zip(&old) {
        let part = whole.slice(last, start, start + member.columns).ok()?;
        let own = readers.get(member.slot)?;
        if part.shape() != old || !work.can_see(member.slot, own, old, &part) {
            return None;
        }
        start += member.columns;
        seen.push(part);
    }
    let inner = op.matmul_shape().ok()?.k;
    let sizes = if first.axis == 1 { [inner, columns] } else { [columns, inner] };
    let dtype = op.a.dtype();
    let nodes = members.iter().map(|member| member.weights).collect();
    let weights = joined(work, Concatenation { nodes, axis: first.axis }, dtype, Shape::new(sizes).ok()?)?;
    op.transpose_b = false;
    op.b = if first.axis == 1 { weights } else { weights.transpose().ok()? };
    if let Some(nodes) = members.iter().map(|member| member.bias).collect::<Option<Vec<usize>>>() {
        op.bias = Some(joined(work, Concatenation { nodes, axis: 0 }, dtype, Shape::new([columns]).ok()?)?);
    }
    op.validate().ok()?;
    work.replace(first.step, Op::Compute(ComputeOp::MatMul(op)));
    for ((member, old), seen) in members.iter().zip(&old).zip(&seen) {
        readers.of(member.slot).for_each(|reader| work.see(reader, member.slot, old, seen));
    }
    members[1..].iter().for_each(|member| work.remove(member.step));
    work.slots[first.slot].set_shape(wide);
    Some(())
}

/// A slot for several constants, as a tensor.
fn joined(work: &mut Rewrite, joined: Concatenation, dtype: DType, shape: Shape) -> Option<Tensor> {
    let origin = Origin::Constant(*joined.nodes.first()?);
    let slot = work.new_slot(Slot::new(dtype, shape, origin));
    work.parts.insert(slot, Arc::new(joined));
    placeholder(dtype, shape, slot).ok()
}
