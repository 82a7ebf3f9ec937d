//! Products larger than a kernel sees: one product of the batch at a time, and some of its rows at
//! a time. If the right operand is too large as well, some steps of the inner dimension at a time,
//! each added to the sums so far.

use panoply_core::op::compute::{Activation, MatMul};
use panoply_core::shape::Strides;
use panoply_core::{Result, Shape};
use panoply_kernels::wgsl::{Addend, carrier_dtype};

use super::matmul::{Product, multiply, stretched};
use crate::context::Context;
use crate::driver::Driver;
use crate::operand::Operand;
use crate::pieces::{beyond, ending_at_windows, slabs_within};
use crate::profile::Profile;

/// Checks that single rows of the product and of its operands are within reach.
pub(super) fn support(profile: &Profile, op: &MatMul) -> Result<(), String> {
    let sizes = op.matmul_shape().map_err(|error| error.to_string())?;
    let size = op.a.dtype().size_bytes().max(4);
    let row = sizes.n.max(sizes.k);
    if slabs_within(profile, row, size) > 0 {
        return Ok(());
    }
    Err(format!("rows of {} bytes; the adapter binds {}", row * size, profile.binding_bytes_max))
}

/// Records a product, in pieces if necessary.
pub(super) fn multiply_all<D: Driver>(
    product: &Product,
    [a, b]: [&Operand<D>; 2],
    [c, bias]: [Option<&Operand<D>>; 2],
    output: &Operand<D>,
    context: &mut Context<D>,
) -> Result<()> {
    let limit = context.profile.binding_bytes_max;
    if [a, b, output].into_iter().chain(c).all(|operand| operand.is_within(limit)) {
        return multiply(product, [a, b], [c, bias], output, context);
    }
    let whole = Shape::new([product.batch.dims(), &[product.m, product.n]].concat())?;
    let c = c.map(|c| stretched(c, &whole)).transpose()?;
    let row_bytes = [(a, product.k), (output, product.n)].map(|(operand, len)| len * operand.dtype.size_bytes());
    let rows = row_bytes.map(|bytes| slabs_within(&context.profile, bytes, 1)).into_iter().min().unwrap_or(0);
    if rows == 0 {
        return Err(beyond("rows of a product", limit));
    }
    let rows = ending_at_windows(rows, product.n * output.dtype.size_bytes());
    for number in 0..product.batch.elements() {
        let (a, b) = (matrix(a, &product.batch, number)?, matrix(b, &product.batch, number)?);
        let c = c.as_ref().map(|c| matrix(c, &product.batch, number)).transpose()?;
        for first in (0..product.m).step_by(rows) {
            let some = rows.min(product.m - first);
            let of_rows = |operand: &Operand<D>| operand.slice(0, first, some);
            let bias = match product.bias_kind {
                Addend::PerRow => bias.map(of_rows).transpose()?,
                _ => bias.cloned(),
            };
            let product = Product { m: some, batch: Shape::scalar(), ..product.clone() };
            let place = output.span((number * whole[whole.rank() - 2] + first) * product.n, some * product.n)?;
            let (a, c) = (of_rows(&a)?, c.as_ref().map(of_rows).transpose()?);
            rows_of(&product, [&a, &b], [c.as_ref(), bias.as_ref()], &place, context)?;
        }
    }
    Ok(())
}

/// Records some rows of one product and writes them to their place.
fn rows_of<D: Driver>(
    product: &Product,
    [a, b]: [&Operand<D>; 2],
    [c, bias]: [Option<&Operand<D>>; 2],
    place: &Operand<D>,
    context: &mut Context<D>,
) -> Result<()> {
    let limit = context.profile.binding_bytes_max;
    let shape = Shape::new([product.m, product.n])?;
    let steps = if b.windowed().is_within(limit) {
        product.k
    } else {
        // A multiple of four, so that vectors of four can still be read.
        let steps = slabs_within(&context.profile, product.n, b.dtype.size_bytes());
        if steps < 4 { steps } else { steps / 4 * 4 }
    };
    let placed = place.windowed().reshaped(shape);
    let target = if placed.offset == 0 { placed } else { context.output(place.dtype, shape)? };
    let mut so_far: Option<Operand<D>> = c.map(|c| near(c, context)).transpose()?;
    for first in (0..product.k.max(1)).step_by(steps.max(1)) {
        let k = steps.min(product.k - first);
        let is_last = first + k >= product.k;
        let mut step = Product { k, ..product.clone() };
        if first > 0 {
            // The sums so far are C from here on.
            (step.beta, step.bias_kind) = (1.0, Addend::None);
            step.addend_dtype = carrier_dtype(product.addend_dtype);
        }
        if !is_last {
            step.activation = Activation::None;
        }
        let (a, b) = (near(&a.slice(1, first, k)?, context)?, near(&b.slice(0, first, k)?, context)?);
        let sums = if is_last { target.clone() } else { context.output(place.dtype, shape)? };
        multiply(&step, [&a, &b], [so_far.as_ref(), bias.filter(|_| first == 0)], &sums, context)?;
        so_far = Some(sums);
    }
    if place.windowed().offset != 0 {
        context.copy(&target, place, place.start_byte() as u64);
    }
    Ok(())
}

/// One matrix of a batch.
fn matrix<D: Driver>(operand: &Operand<D>, batch: &Shape, number: usize) -> Result<Operand<D>> {
    let own = operand.shape.rank() - 2;
    let (mut rest, mut offset) = (number, operand.offset);
    for (axis, dim) in batch.iter().enumerate().rev() {
        let place = (rest % dim) as isize;
        rest /= dim;
        if let Some(axis) = (axis + own).checked_sub(batch.rank())
            && operand.shape[axis] > 1
        {
            offset = offset.saturating_add_signed(place * operand.strides[axis]);
        }
    }
    let (shape, strides) = (Shape::new(&operand.shape[own..])?, Strides::new(&operand.strides[own..])?);
    Ok(Operand { shape, strides, offset, ..operand.clone() })
}

/// The operand seen through a window if it is within reach, otherwise a copy with the same order of
/// axes in memory.
fn near<D: Driver>(operand: &Operand<D>, context: &mut Context<D>) -> Result<Operand<D>> {
    let seen = operand.windowed();
    if seen.is_within(context.profile.binding_bytes_max) {
        return Ok(seen);
    }
    if operand.strides[0] >= operand.strides[1] {
        return context.dense(seen);
    }
    let turned = context.dense(operand.permuted(&[1, 0])?)?;
    turned.permuted(&[1, 0])
}
