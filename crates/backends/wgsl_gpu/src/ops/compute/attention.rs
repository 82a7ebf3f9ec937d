//! Attention: views in place, and one kernel over all heads, tiles of queries and parts of the
//! values' columns.

use panoply_core::op::compute::{Attention, AttentionShape};
use panoply_core::{DType, Result, Shape, Tensor};
use panoply_kernels::wgsl::{ATTENTION_COLUMNS, ATTENTION_ROWS, AttentionKernel, Kernel};

use super::matmul::stretched;
use super::{empty, fits_whole};
use crate::context::Context;
use crate::driver::Driver;
use crate::operand::{Operand, collapsed, is_seen};
use crate::profile::Profile;

/// The output, queries, keys and values; a mask is one more.
const BUFFERS: usize = 4;

/// Checks that all tensors are within a kernel's reach.
pub(crate) fn support(profile: &Profile, op: &Attention) -> Result<(), String> {
    let shape = op.output_shape().map_err(|error| error.to_string())?;
    let buffers = BUFFERS + usize::from(op.mask.is_some());
    if buffers > profile.buffers_max {
        return Err(format!("attention with {buffers} buffers; the adapter binds {}", profile.buffers_max));
    }
    fits_whole(profile, "queries", &op.q)?;
    fits_whole(profile, "keys", &op.k)?;
    fits_whole(profile, "values", &op.v)?;
    op.mask.as_ref().map_or(Ok(()), |mask| fits_whole(profile, "a mask", mask))?;
    if !is_seen(shape.elements(), DType::F32.size_bytes(), profile.binding_bytes_max) {
        let (elements, most) = (shape.elements(), profile.binding_bytes_max);
        return Err(format!("an output of {elements} numbers of 32 bits; the adapter binds {most} bytes"));
    }
    Ok(())
}

pub(crate) fn run<D: Driver>(op: &Attention, context: &mut Context<D>) -> Result<Tensor> {
    let (output_shape, dtype) = (op.output_shape()?, op.q.dtype());
    let folded = op.folded()?;
    let op = folded.as_ref().unwrap_or(op);
    let shape = op.attention_shape()?;
    if output_shape.elements() == 0 {
        return empty(dtype, output_shape);
    }
    if shape.n_k == 0 {
        return Tensor::zeros(dtype, output_shape);
    }
    let [q, k, v] = [&op.q, &op.k, &op.v].map(|tensor| rows(tensor, context));
    let (q, k, v) = (q?, k?, v?);
    let mask = op.mask.as_ref().map(|mask| whole(mask, &shape, context)).transpose()?;
    let carriers = context.carriers(dtype, output_shape)?;
    let heads = Heads::new(&shape, [&q, &k, &v], mask.as_ref());
    let kernel = AttentionKernel { dtype, mask: op.mask.as_ref().map(Tensor::dtype), rank: heads.dims.len() as u8 };
    let (tiles, parts) = (shape.n_q.div_ceil(ATTENTION_ROWS), shape.d_v.div_ceil(ATTENTION_COLUMNS));
    let counts = [shape.lines(), tiles, parts, shape.n_q, shape.n_k, shape.d, shape.d_v, usize::from(op.is_causal)];
    let mut params: Vec<u32> = counts.iter().map(|count| *count as u32).collect();
    params.push(op.scale_or_default().to_bits());
    for operand in [&q, &k, &v] {
        params.extend([operand.start(), step(operand.strides[operand.shape.rank() - 2])]);
    }
    params.extend([mask.as_ref().map_or(0, Operand::start), heads.mask_steps[0], heads.mask_steps[1]]);
    params.extend(&heads.dims);
    heads.strides.iter().for_each(|strides| params.extend(strides));
    let reads: Vec<&Operand<D>> = [&q, &k, &v].into_iter().chain(&mask).collect();
    let groups = (shape.lines() * tiles * parts) as u64;
    context.run(&Kernel::Attention(kernel), &[&carriers], &reads, &params, groups)?;
    context.finish_as(carriers, dtype)
}

/// A tensor in place if its last axis is contiguous and a kernel sees all of it, otherwise a
/// contiguous copy.
fn rows<D: Driver>(tensor: &Tensor, context: &mut Context<D>) -> Result<Operand<D>> {
    let operand = context.operand(tensor)?;
    let last = operand.shape.rank() - 1;
    let lies = operand.strides[last] == 1 || operand.shape[last] <= 1;
    let within = operand.is_within(context.profile.binding_bytes_max);
    if lies && within { Ok(operand) } else { context.dense(operand) }
}

/// A mask broadcast to the shape of all scores.
fn whole<D: Driver>(mask: &Tensor, shape: &AttentionShape, context: &mut Context<D>) -> Result<Operand<D>> {
    let operand = context.operand(mask)?;
    let within = operand.is_within(context.profile.binding_bytes_max);
    let operand = if within { operand } else { context.dense(operand)? };
    stretched(&operand, &Shape::new([shape.batch.dims(), &[shape.heads, shape.n_q, shape.n_k]].concat())?)
}

/// The heads of all operands, with axes of size one dropped and neighbours joined.
struct Heads {
    dims: Vec<u32>,
    /// The strides of queries, keys, values and mask.
    strides: Vec<Vec<u32>>,
    mask_steps: [u32; 2],
}

impl Heads {
    fn new<D: Driver>(shape: &AttentionShape, operands: [&Operand<D>; 3], mask: Option<&Operand<D>>) -> Heads {
        let group = shape.group();
        // Heads of queries are split into heads of keys and the group that shares each of them.
        let dims = [shape.batch.dims(), &[shape.kv_heads, group]].concat();
        let batch = shape.batch.rank();
        let [q, k, v] = operands.map(|operand| operand.strides[..=batch].to_vec());
        let shared = |mut strides: Vec<isize>| {
            strides.push(0);
            strides
        };
        let split = |mut strides: Vec<isize>| {
            let own = strides[batch];
            strides[batch] = own.saturating_mul(group as isize);
            strides.push(own);
            strides
        };
        let mask = mask.map_or(vec![0; batch + 3], |mask| mask.strides.to_vec());
        let mask_steps = [step(mask[batch + 1]), step(mask[batch + 2])];
        let all = [split(q), shared(k), shared(v), split(mask[..=batch].to_vec())];
        let (dims, strides) = collapsed(&dims, &all.each_ref().map(Vec::as_slice));
        Heads { dims, strides, mask_steps }
    }
}

fn step(stride: isize) -> u32 {
    stride as i32 as u32
}
