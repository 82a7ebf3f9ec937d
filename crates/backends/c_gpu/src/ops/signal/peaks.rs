//! FindPeaks: keys ordered by strength, the maxima of the windows around each element, and the
//! strongest prominent peaks.
//!
//! The maximum of a window is that of two windows of a power of two that cover it, and each of
//! those is made from its halves, so that distances may have any size.

use panoply_core::op::signal::FindPeaks;
use panoply_core::{DType, Result, Value};
use panoply_kernels::c::{Kernel, PEAKS};

use crate::arguments::Arguments;
use crate::context::Context;
use crate::driver::Address;
use crate::ops::compute::topk::Lanes;

const BLOCK_THREADS: usize = 256;
const KEY_BYTES: usize = 4;

pub(super) fn run(op: &FindPeaks, context: &mut Context) -> Result<Value> {
    let shape = op.output_shape()?;
    let (strengths, places) = (context.output(DType::F32, shape)?, context.output(DType::I32, shape)?);
    if shape.elements() > 0 {
        let ((rows, columns), lines) = (op.searched(), shape.elements() / op.count);
        let (len, source) = (rows * columns, context.input(&op.input)?);
        let found = op.count.min(len);
        let is_complex = op.input.dtype() == DType::Complex64;
        let (mut chosen, mut indices) = (Address::NULL, Address::NULL);
        if found > 0 {
            (chosen, indices) = (context.scratch(lines * found * KEY_BYTES)?, context.scratch(lines * found * 4)?);
            let marked = marked(op, source, is_complex, lines, context)?;
            let lanes = Lanes {
                dtype: DType::U32,
                largest: true,
                input: marked,
                values: chosen,
                indices,
                count: lines,
                length: len,
                inner: 1,
                k: found,
                nan_last: false,
            };
            lanes.choose(context)?;
        }
        let mut arguments = Arguments::new()
            .address(strengths.address)
            .address(places.address)
            .address(source)
            .address(chosen)
            .address(indices)
            .u64(lines as u64)
            .u64(len as u64)
            .size(found)
            .size(op.count);
        let launch = context.blocks(shape.elements(), BLOCK_THREADS, 1);
        context.launch(&kernel("write_peaks", is_complex), launch, &mut arguments)?;
    }
    Ok(Value::Pair(strengths.into_tensor(), places.into_tensor()))
}

/// The keys of peaks, and 0 for every other element.
fn marked(op: &FindPeaks, source: Address, is_complex: bool, lines: usize, context: &mut Context) -> Result<Address> {
    let (rows, columns) = op.searched();
    let count = lines * rows * columns;
    let keys = context.scratch(count * KEY_BYTES)?;
    let launch = context.blocks(count, BLOCK_THREADS, 2);
    let mut arguments = Arguments::new().address(keys).address(source).u64(count as u64);
    context.launch(&kernel("peak_keys", is_complex), launch, &mut arguments)?;
    let along = Windows::new(count, columns, 1, op.distance);
    let down = Windows::new(count, rows, columns, op.distance);
    let (before, behind) = (along.largest(keys, true, context)?, along.largest(keys, false, context)?);
    let (mut above, mut below) = (Address::NULL, Address::NULL);
    if rows > 1 {
        let joined = context.scratch(count * KEY_BYTES)?;
        let arguments = Arguments::new().address(joined).address(keys).address(before).address(behind);
        context.launch(&kernel("join_windows", false), launch, &mut along.add_to(arguments))?;
        (above, below) = (down.largest(joined, true, context)?, down.largest(joined, false, context)?);
    }
    let marked = context.scratch(count * KEY_BYTES)?;
    let arguments = Arguments::new().address(marked).address(keys).address(before).address(behind);
    let arguments = down.add_to(along.add_to(arguments.address(above).address(below)));
    let mut arguments = arguments.u32(u32::from(rows > 1)).u32(key_of(op.at_least));
    context.launch(&kernel("mark_peaks", false), launch, &mut arguments)?;
    Ok(marked)
}

/// Windows along lines of `len` elements at distance `stride`; `count` elements in total.
struct Windows {
    count: usize,
    len: usize,
    stride: usize,
    distance: usize,
}

impl Windows {
    fn new(count: usize, len: usize, stride: usize, distance: usize) -> Windows {
        Windows { count, len, stride, distance: distance.min(len.saturating_sub(1)).max(1) }
    }

    /// The largest power of two up to the distance.
    fn span(&self) -> usize {
        1 << self.distance.ilog2()
    }

    /// Adds the kernels' `windows` structure.
    fn add_to(&self, arguments: Arguments) -> Arguments {
        let numbers = [self.count, self.len, self.stride, self.distance, self.span()];
        arguments.structure(&numbers.map(|number| number as u64))
    }

    /// For each element, the maximum of the span that ends (`is_before`) or begins at the element,
    /// including the element.
    fn largest(&self, keys: Address, is_before: bool, context: &mut Context) -> Result<Address> {
        let (mut source, mut places) = (keys, [Address::NULL; 2]);
        let launch = context.blocks(self.count, BLOCK_THREADS, 2);
        for step in 0..self.span().ilog2() {
            let place = &mut places[step as usize % 2];
            if step < 2 {
                *place = context.scratch(self.count * KEY_BYTES)?;
            }
            let arguments = self.add_to(Arguments::new().address(*place).address(source));
            let mut arguments = arguments.u64(1 << step).u32(u32::from(is_before));
            context.launch(&kernel("widen_windows", false), launch, &mut arguments)?;
            source = *place;
        }
        Ok(source)
    }
}

fn kernel(entry: &'static str, is_complex: bool) -> Kernel {
    let is_end = matches!(entry, "peak_keys" | "write_peaks");
    Kernel::new(PEAKS, entry).flag("COMPLEX", is_complex).flag("ENDS", is_end)
}

/// A strength as an integer key: larger for stronger ones, equal for both zeros.
fn key_of(strength: f32) -> u32 {
    let bits = (strength + 0.0).to_bits();
    bits ^ if bits >> 31 == 1 { u32::MAX } else { 1 << 31 }
}

#[cfg(test)]
mod tests {
    use super::key_of;

    #[test]
    fn keys_are_in_the_order_of_strength() {
        let strengths = [f32::NEG_INFINITY, -3.0, -1e-40, 0.0, 1e-40, 2.0, f32::INFINITY];
        assert!(strengths.windows(2).all(|pair| key_of(pair[0]) < key_of(pair[1])));
        assert_eq!(key_of(-0.0), key_of(0.0));
        assert!(key_of(f32::NEG_INFINITY) > 0);
    }
}
