//! Attention: products of queries and keys, scaled and masked, their softmax, and its product with the values become one op.
//!
//! What is looked for, from its end: `softmax(scale · Q·Kᵀ + mask) · V`, where the softmax is along the last axis. The factor may be one
//! of the products, of the queries or of the keys, a number or a constant of one element; Kᵀ may be a view, a flag of the product or
//! a transposed copy; there may be one addend, and changes of the element type between floats of 32 bits and less. Scores may be
//! viewed in another shape on their way, as long as their rows and columns stay.
//!
//! Every value on the way has one reader and is no output, so nobody misses it. The two meanings differ in one case, where every score of
//! a query is -∞: a softmax says NaN, attention zeros. A constant mask is looked at, and refused where a query of it sees no key; one that is
//! causal becomes the op's own flag. Of a mask that is given when the graph runs, nobody can tell; what a graph means says so.

use panoply_core::graph::{Graph, Origin, slot_of, view_of};
use panoply_core::op::compute::{Activation, Attention, ComputeOp, MatMul, Softmax};
use panoply_core::{DType, Describe, Op, Shape, Tensor, bf16, f16};

use super::changes::{Change, changes};
use crate::Facts;
use crate::views::{is_whole, reshaped, through};
use crate::work::Work;

/// The most maps between two of the three: a cast, a factor, a mask and a cast, each twice.
const MAPS_MAX: usize = 8;

pub(crate) fn run(work: &mut Work, graph: &Graph, facts: &Facts) {
    if facts.attention_elements_max == 0 {
        return;
    }
    for step in 0..work.steps.len() {
        let found = Search { work, graph }.attention(step, facts);
        if let Some(Found { op, taken }) = found {
            work.replace(step, Op::Compute(ComputeOp::Attention(op)));
            // From the last to the first: each has no reader once the one behind it is gone.
            taken.into_iter().for_each(|step| work.remove_if_unread(step));
        }
    }
}

/// An attention, and the steps that it takes the place of, from the last to the first.
struct Found {
    op: Attention,
    taken: Vec<usize>,
}

/// Values on their way from a product to where they are read.
struct Way {
    /// The step that makes them in the first place.
    origin: usize,
    /// The maps on the way, from the last to the first, with the view of its input that each changes.
    maps: Vec<(usize, Tensor)>,
}

struct Search<'a> {
    work: &'a Work,
    graph: &'a Graph,
}

impl Search<'_> {
    /// The attention that ends with this step.
    fn attention(&self, step: usize, facts: &Facts) -> Option<Found> {
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
        fits(&op, facts, last.output_shape().ok()?.elements()).then_some(Found { op, taken })
    }

    /// The way of a value back to what is wanted, over at most so many maps, as long as each on it has one reader and passes on all
    /// of what it reads.
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

    /// Nothing but changes of the element type.
    fn only_casts(&self, way: &Way) -> Option<()> {
        for (step, input) in &way.maps {
            for change in changes(self.work, self.graph, self.work.map(*step)?, input)? {
                matches!(change, Change::Cast(dtype) if is_narrow(dtype)).then_some(())?;
            }
        }
        Some(())
    }

    /// The factor of the scores, and what is then added to them, in the shape of the softmax.
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

    /// What a tensor is before a factor that nobody else wants, and the factor.
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

    /// With a mask: the op's own flag where a constant is causal, `None` where a query of a constant sees no key.
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

/// The product without anything else.
fn plain_product(op: &Op) -> Option<&MatMul> {
    let Op::Compute(ComputeOp::MatMul(op)) = op else { return None };
    let is_plain = op.c.is_none() && op.bias.is_none() && op.activation == Activation::None;
    is_plain.then_some(op)
}

fn is_narrow(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// Whether the op is a proper one of what is kept, within the device's reach.
fn fits(op: &Attention, facts: &Facts, elements: usize) -> bool {
    let operands = [Some(&op.q), Some(&op.k), Some(&op.v), op.mask.as_ref()];
    let reach = operands.into_iter().flatten().map(Tensor::elements).max().unwrap_or(0).max(elements);
    let same = op.output_shape().is_ok_and(|shape| shape.elements() == elements);
    same && reach <= facts.attention_elements_max && op.scale.is_some_and(f32::is_finite) && op.validate().is_ok()
}

/// The axes before rows and columns, the last of which are the heads.
struct Batch {
    dims: Vec<usize>,
}

impl Batch {
    fn new(dims: &[usize]) -> Batch {
        Batch { dims: if dims.is_empty() { vec![1] } else { dims.to_vec() } }
    }

    /// The matrices of an operand, which a product stretched to its own batch, for this one.
    fn of(&self, operand: &Tensor, own: &Shape) -> Option<Tensor> {
        let sizes = &operand.shape()[operand.shape().rank() - 2..];
        self.matrices(&operand.broadcast_to([own.dims(), sizes].concat()).ok()?)
    }

    /// As many matrices in another order of axes.
    fn matrices(&self, tensor: &Tensor) -> Option<Tensor> {
        let sizes = &tensor.shape()[tensor.shape().rank() - 2..];
        reshaped(tensor, &Shape::new([self.dims.as_slice(), sizes].concat()).ok()?)
    }

    /// Keys and values of one head where all heads have the same.
    fn shared(&self, k: Tensor, v: Tensor) -> (Tensor, Tensor) {
        let heads = self.dims.len() - 1;
        let is_shared = self.dims[heads] > 1 && k.strides()[heads] == 0 && v.strides()[heads] == 0;
        match (k.slice(heads, 0, 1), v.slice(heads, 0, 1)) {
            (Ok(one_k), Ok(one_v)) if is_shared => (one_k, one_v),
            _ => (k, v),
        }
    }
}

/// What the queries of a mask see.
#[derive(Debug, PartialEq, Eq)]
enum Visible {
    /// Each some key.
    Some,
    /// Each the keys up to its own, without another addend.
    Causal,
    /// One of them none.
    None,
}

impl Visible {
    /// Looks at the matrices of a mask on the host, each of `[queries, keys]`, those that are the same once.
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

    /// Of values in rows, so many for each matrix.
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
