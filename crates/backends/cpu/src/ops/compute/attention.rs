//! Attention: maps tensors to heads with a constant row stride. Views whose last dimension is
//! contiguous are read in place.

use std::sync::Mutex;

use panoply_core::op::compute::{Attention, AttentionShape};
use panoply_core::{DType, Element, Error, Result, Tensor, Value, bf16, f16};

use crate::attention::{AttentionElement, Failure, Heads, Mask, MaskHeads, Problem, Scratch, attention};
use crate::context::Context;
use crate::gemm::OutOfMemory;
use crate::ops::compute::transpose::copy_view;
use crate::scratch;
use crate::states::OpState;

/// Buffers of each thread.
type Buffers = Vec<Mutex<Scratch>>;

impl OpState for Buffers {}

pub(crate) fn run(op: &Attention, context: &mut Context) -> Result<Value> {
    match op.q.dtype() {
        DType::F32 => attend::<f32>(op, context),
        DType::F16 => attend::<f16>(op, context),
        DType::BF16 => attend::<bf16>(op, context),
        got => Err(Error::DTypeUnsupported { what: "attention", expected: "f32, f16 or bf16", got }),
    }
}

fn attend<T: AttentionElement + Element>(op: &Attention, context: &mut Context) -> Result<Value> {
    let output_shape = op.output_shape()?;
    let folded = op.folded()?;
    let op = folded.as_ref().unwrap_or(op);
    let shape = op.attention_shape()?;
    let mask = match op.whole_mask()? {
        Some(mask) => Some(forwards(&mask, context)?),
        None => None,
    };
    let [q, k, v] = [&op.q, &op.k, &op.v].map(|tensor| evenly(tensor, context));
    let (q, k, v) = (q?, k?, v?);
    let problem = Problem {
        q: heads(&q, &shape, 1)?,
        k: heads(&k, &shape, shape.group())?,
        v: heads(&v, &shape, shape.group())?,
        mask: match &mask {
            None => Mask::None,
            Some(mask) if mask.dtype() == DType::F32 => Mask::Wide(mask_heads(mask, &shape)?),
            Some(mask) => Mask::Same(mask_heads(mask, &shape)?),
        },
        n_q: shape.n_q,
        n_k: shape.n_k,
        d: shape.d,
        d_v: shape.d_v,
        scale: op.scale_or_default(),
        is_causal: op.is_causal,
    };
    let mut output = context.output::<T>(output_shape)?;
    let buffers = context.states.get::<Buffers>();
    attention(&context.team, context.simd, buffers, &problem, &mut output).map_err(|failure| match failure {
        Failure::Outside => Error::invalid("attention", "operands inside their buffers", "a view outside"),
        Failure::OutOfMemory(OutOfMemory { asked_bytes }) => {
            Error::OutOfMemory { place: "the host".to_owned(), asked: asked_bytes as u64, free: 0, largest: 0 }
        }
    })?;
    output.into_tensor().map(Value::Tensor)
}

/// The tensor, or a copy if a stride is negative.
fn forwards(tensor: &Tensor, context: &mut Context) -> Result<Tensor> {
    let backwards = tensor.strides().iter().any(|step| *step < 0);
    if backwards { copy_view(tensor, context) } else { Ok(tensor.clone()) }
}

/// The tensor, or a copy if its last dimension is not contiguous or a stride is negative.
fn evenly(tensor: &Tensor, context: &mut Context) -> Result<Tensor> {
    let last = tensor.shape().rank() - 1;
    let lies = tensor.strides()[last] == 1 || tensor.shape()[last] <= 1;
    if lies { forwards(tensor, context) } else { copy_view(tensor, context) }
}

/// The matrices of a tensor; each matrix serves `group` heads of queries.
fn heads<'a, T: Element>(tensor: &'a Tensor, shape: &AttentionShape, group: usize) -> Result<Heads<'a, T>> {
    let rank = tensor.shape().rank();
    let mut all = scratch::reserved(shape.lines());
    all.extend(starts(tensor, shape.lines() / group.max(1)).flat_map(|start| std::iter::repeat_n(start, group)));
    let step = tensor.strides()[rank - 2].unsigned_abs();
    Ok(Heads { elements: tensor.host_elements::<T>()?, starts: all, step })
}

fn mask_heads<'a, M: Element>(mask: &'a Tensor, shape: &AttentionShape) -> Result<MaskHeads<'a, M>> {
    let rank = mask.shape().rank();
    let steps = [mask.strides()[rank - 2], mask.strides()[rank - 1]].map(isize::unsigned_abs);
    let mut all = scratch::reserved(shape.lines());
    all.extend(starts(mask, shape.lines()));
    Ok(MaskHeads { elements: mask.host_elements::<M>()?, starts: all, steps })
}

/// Index of the first element of each of `count` matrices; strides are not negative.
fn starts(tensor: &Tensor, count: usize) -> impl Iterator<Item = usize> + '_ {
    let axes = tensor.shape().rank() - 2;
    (0..count).map(move |number| {
        let (mut rest, mut start) = (number, tensor.offset());
        for axis in (0..axes).rev() {
            start += rest % tensor.shape()[axis] * tensor.strides()[axis].unsigned_abs();
            rest /= tensor.shape()[axis];
        }
        start
    })
}
