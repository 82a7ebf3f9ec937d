//! Attention: products of queries and keys, scaled and masked, their softmax, and its product with
//! the values become one op.
//!
//! The pattern, matched from its end: `softmax(scale · Q·Kᵀ + mask) · V`, with the softmax along
//! the last axis. The factor may belong to the product, to the queries or to the keys, and is a
//! number or a constant of one element. Kᵀ may be a view, a flag of the product or a transposed
//! copy. There may be one addend, and changes of the element type between floats of at most 32
//! bits. Scores may be reshaped on the way, as long as their rows and columns stay.
//!
//! Every intermediate value has exactly one reader and is not an output, so it can be removed. The
//! results differ in one case: if every score of a query is -∞, softmax returns NaN and attention
//! zeros. A constant mask is inspected, and refused if one of its queries sees no key; a causal one
//! becomes the op's flag. A mask that is an input cannot be inspected. The semantics of graphs
//! allow both results for such masks.

use panoply_core::graph::{Graph, Origin, slot_of, view_of};
use panoply_core::op::compute::{Activation, Attention, ComputeOp, MatMul, Softmax};
use panoply_core::{DType, Describe, Op, Shape, Tensor, bf16, f16};

use super::changes::{Change, changes};
use crate::Facts;
use crate::views::{is_whole, reshaped, through};
use crate::work::Rewrite;

/// The most maps between two of the three ops: a cast, a factor, a mask and a cast, each twice.
const MAPS_MAX: usize = 8;

pub(crate) fn run(work: &mut Rewrite, graph: &Graph, facts: &Facts) {
    if facts.attention_elements_max == 0 {
        return;
    }
    for step in 0..work.steps.len() {
        let found = Search { work, graph }.attention(step, facts);
        if let Some(AttentionMatch { op, taken }) = found {
            work.replace(step, Op::Compute(ComputeOp::Attention(op)));
            // From the last to the first: each has no reader after the removal of the next one.
            taken.into_iter().for_each(|step| work.remove_if_unread(step));
        }
    }
}

/// An attention op, and the steps that it replaces, from the last to the first.
struct AttentionMatch {
    op: Attention,
    taken: Vec<usize>,
}

/// The path of values from an op to their reader.
struct Way {
    /// The step that makes the first value.
    origin: usize,
    /// The maps on the path, from the last to the first, each with the view of the input that it
    /// changes.
    maps: Vec<(usize, Tensor)>,
}

struct Search<'a> {
    work: &'a Rewrite,
    graph: &'a Graph,
}

impl Search<'_> {
    /// The attention that ends with this step.
    fn attention(&self, step: usize, facts: &Facts) -> Option<AttentionMatch> {
        let last = plain_product(self.work.op(step)?).filter(|last| last.alpha == 1.0 && !last.transpose_a)?;
        let weights = self.way(&last.a, step, |op| matches!(op, ComputeOp::Softmax(_)), MAPS_MAX)?;
        let Op::Compute(ComputeOp::Softmax(Softmax { input, axis, is_log: false })) = self.work.op(weights.origin)?
        else {
            return None;
        };
        let shape = *input.shape();
        let columns = shape.rank().checked_sub(1).filter(|last| last == axis && *last > 0)?;
        let scores = self.way(input, weights.origin, |op| matches!(op, ComputeOp::MatMul(_)), MAPS_MAX)?;
        let first = plain_product(self.work.op(scores.origin)?)?;
        let product = first.matmul_shape().ok()?;
        let sizes = [product.m, product.n];
        let ends = |tensor: &Tensor| tensor.shape().ends_with(&sizes);
        if shape[columns - 1..] != sizes || !ends(&last.a) || slot_of(&last.b) == slot_of(&last.a) {
            return None;
        }
        self.only_casts(&weights)?;
        let (factor, addend) = self.factor_and_addend(&scores, &shape)?;
        let mut taken: Vec<usize> = weights.steps().chain(scores.steps()).collect();
        let (q, k) = first.operands().ok()?;
        let ((q, q_factor), (k, k_factor)) =
            (self.unscaled(&q, scores.origin, &mut taken), self.unscaled(&k, scores.origin, &mut taken));
        let scale = (f64::from(first.alpha) * factor * q_factor * k_factor) as f32;
        let batch = Batch::new(&shape[..columns - 1]);
        let (k, v) = batch.shared(
            batch.of(&k.transpose().ok()?, &product.batch)?,
            batch.of(&last.operands().ok()?.1, &last.matmul_shape().ok()?.batch)?,
        );
        let mut op = Attention::new(&batch.of(&q, &product.batch)?, &k, &v).scale(scale);
        if let Some(addend) = addend {
            op = self.masked(op, &batch.matrices(&addend)?)?;
        }
        fits(&op, facts, last.output_shape().ok()?.elements()).then_some(AttentionMatch { op, taken })
    }

    /// The path of a value back to a wanted op, over at most `maps_max` maps. Each value on the
    /// path must have one reader, and each view must cover its whole source.
    fn way(&self, tensor: &Tensor, reader: usize, wanted: fn(&ComputeOp) -> bool, maps_max: usize) -> Option<Way> {
        let origin = self.work.private_maker(tensor, reader)?;
        let elements = self.work.slots[slot_of(tensor)?].shape.elements();
        if !is_whole(tensor, elements) || elements == 0 {
            return None;
        }
        let map = match self.work.op(origin)? {
            Op::Compute(op) if wanted(op) => return Some(Way { origin, maps: Vec::new() }),
            Op::Compute(ComputeOp::Map(map)) if map.output_shape().ok()?.elements() == elements => map,
            _ => return None,
        };
        let maps_max = maps_max.checked_sub(1)?;
        map.inputs().filter(|input| input.elements() == elements).find_map(|input| {
            changes(self.work, self.graph, map, input)?;
            let mut way = self.way(input, origin, wanted, maps_max)?;
            way.maps.insert(0, (origin, input.clone()));
            Some(way)
        })
    }

    /// Checks that a path only changes the element type.
    fn only_casts(&self, way: &Way) -> Option<()> {
        for (step, input) in &way.maps {
            for change in changes(self.work, self.graph, self.work.map(*step)?, input)? {
                matches!(change, Change::Cast(dtype) if is_narrow(dtype)).then_some(())?;
            }
        }
        Some(())
    }

    /// The factor of the scores, and the addend applied next, in the shape of the softmax.
    fn factor_and_addend(&self, way: &Way, shape: &Shape) -> Option<(f64, Option<Tensor>)> {
        let (mut factor, mut addend) = (1.0, None);
        for (step, input) in way.maps.iter().rev() {
            let map = self.work.map(*step)?;
            for change in changes(self.work, self.graph, map, input)? {
                match change {
                    Change::Scale(number) if addend.is_none() => factor *= number,
                    Change::Add(tensor) if addend.is_none() => {
                        let is_score = way.maps.iter().any(|(_, score)| slot_of(score) == slot_of(tensor));
                        let whole = tensor.broadcast_to(map.output_shape().ok()?).ok()?;
                        addend = Some(reshaped(&whole, shape).filter(|_| !is_score)?);
                    }
                    Change::Cast(dtype) if is_narrow(dtype) => {}
                    _ => return None,
                }
            }
        }
        Some((factor, addend))
    }

    /// Splits off the factor of a tensor with no other reader. Returns the tensor before the
    /// factor, and the factor.
    fn unscaled(&self, tensor: &Tensor, reader: usize, taken: &mut Vec<usize>) -> (Tensor, f64) {
        let behind = || {
            let maker = self.work.private_maker(tensor, reader)?;
            let map = self.work.map(maker)?;
            let shape = map.output_shape().ok()?;
            let source = map.inputs().find(|input| *input.shape() == shape)?;
            let mut factor = 1.0;
            for change in changes(self.work, self.graph, map, source)? {
                let Change::Scale(number) = change else { return None };
                factor *= number;
            }
            Some((through(tensor, &shape, source)?, factor, maker))
        };
        match behind() {
            Some((source, factor, maker)) => {
                taken.extend((!taken.contains(&maker)).then_some(maker));
                (source, factor)
            }
            None => (tensor.clone(), 1.0),
        }
    }

    /// Adds a mask. A causal constant becomes the op's flag. `None` if a query of a constant mask
    /// sees no key.
    fn masked(&self, op: Attention, mask: &Tensor) -> Option<Attention> {
        let Origin::Constant(node) = self.work.slots[slot_of(mask)?].origin else { return Some(op.mask(mask)) };
        let sizes: [usize; 2] = mask.shape()[mask.shape().rank() - 2..].try_into().ok()?;
        match Visible::of(&view_of(mask, self.graph.nodes()[node].constant()?).ok()?, sizes)? {
            Visible::Some => Some(op.mask(mask)),
            Visible::Causal => Some(op.causal()),
            Visible::None => None,
        }
    }
}

impl Way {
    /// All its steps, from the last to the first.
    fn steps(&self) -> impl Iterator<Item = usize> {
        self.maps.iter().map(|(step, _)| *step).chain([self.origin])
    }
}

/// The product, if it has no epilogue.
fn plain_product(op: &Op) -> Option<&MatMul> {
    let Op::Compute(ComputeOp::MatMul(op)) = op else { return None };
    let is_plain = op.c.is_none() && op.bias.is_none() && op.activation == Activation::None;
    is_plain.then_some(op)
}

fn is_narrow(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// Whether the op is valid, computes as many elements as the steps that it replaces, and is within
/// the device's limits.
fn fits(op: &Attention, facts: &Facts, elements: usize) -> bool {
    let operands = [Some(&op.q), Some(&op.k), Some(&op.v), op.mask.as_ref()];
    let reach = operands.into_iter().flatten().map(Tensor::elements).max().unwrap_or(0).max(elements);
    let same = op.output_shape().is_ok_and(|shape| shape.elements() == elements);
    same && reach <= facts.attention_elements_max && op.scale.is_some_and(f32::is_finite) && op.validate().is_ok()
}

/// The axes before rows and columns, the last of which is the heads.
struct Batch {
    dims: Vec<usize>,
}

impl Batch {
    fn new(dims: &[usize]) -> Batch {
        Batch { dims: if dims.is_empty() { vec![1] } else { dims.to_vec() } }
    }

    /// The matrices of an operand, broadcast to the product's own batch `own`, in the axes of this
    /// batch.
    fn of(&self, operand: &Tensor, own: &Shape) -> Option<Tensor> {
        let sizes = &operand.shape()[operand.shape().rank() - 2..];
        self.matrices(&operand.broadcast_to([own.dims(), sizes].concat()).ok()?)
    }

    /// The same number of matrices with other batch axes.
    fn matrices(&self, tensor: &Tensor) -> Option<Tensor> {
        let sizes = &tensor.shape()[tensor.shape().rank() - 2..];
        reshaped(tensor, &Shape::new([self.dims.as_slice(), sizes].concat()).ok()?)
    }

    /// Reduces keys and values to one head if all heads share them.
    fn shared(&self, k: Tensor, v: Tensor) -> (Tensor, Tensor) {
        let heads = self.dims.len() - 1;
        let is_shared = self.dims[heads] > 1 && k.strides()[heads] == 0 && v.strides()[heads] == 0;
        match (k.slice(heads, 0, 1), v.slice(heads, 0, 1)) {
            (Ok(one_k), Ok(one_v)) if is_shared => (one_k, one_v),
            _ => (k, v),
        }
    }
}

/// The keys that the queries of a mask see.
#[derive(Debug, PartialEq, Eq)]
enum Visible {
    /// Every query sees at least one key.
    Some,
    /// Every query sees the keys up to its own position, with no other addend.
    Causal,
    /// At least one query sees no key.
    None,
}

impl Visible {
    /// Inspects the matrices of a mask on the host, each `[queries, keys]`. Broadcast matrices are
    /// inspected once.
    fn of(mask: &Tensor, [queries, keys]: [usize; 2]) -> Option<Visible> {
        let mut mask = mask.clone();
        for axis in 0..mask.shape().rank() - 1 {
            mask = if mask.strides()[axis] == 0 { mask.slice(axis, 0, 1).ok()? } else { mask };
        }
        let rows = mask.shape()[mask.shape().rank() - 2];
        let mask = mask.contiguous().ok()?;
        match mask.dtype() {
            DType::F32 => Visible::among(mask.as_slice::<f32>().ok()?.iter().copied(), rows, [queries, keys]),
            DType::F16 => {
                Visible::among(mask.as_slice::<f16>().ok()?.iter().map(|value| value.to_f32()), rows, [queries, keys])
            }
            DType::BF16 => {
                Visible::among(mask.as_slice::<bf16>().ok()?.iter().map(|value| value.to_f32()), rows, [queries, keys])
            }
            _ => None,
        }
    }

    /// Inspects values in row-major order, with `rows` rows per matrix.
    fn among(values: impl Iterator<Item = f32>, rows: usize, [queries, keys]: [usize; 2]) -> Option<Visible> {
        let (mut causal, mut seen) = (rows == queries, true);
        let mut row_seen = false;
        for (place, value) in values.enumerate() {
            let (row, key) = (place / keys % rows, place % keys);
            let own = key + queries <= row + keys;
            causal &= value == if own { 0.0 } else { f32::NEG_INFINITY };
            row_seen |= value != f32::NEG_INFINITY;
            if key + 1 == keys {
                seen &= std::mem::take(&mut row_seen);
            }
        }
        Some(match (seen, causal) {
            (false, _) => Visible::None,
            (true, true) => Visible::Causal,
            (true, false) => Visible::Some,
        })
    }
}
