//! Copies elements if kernels see neither all source elements nor all targets at once.
//!
//! The output is written in spans, each from a window's start. For each span, the kernel runs on
//! every source window that holds elements of the span; it writes the elements that it sees and
//! keeps the other bytes of a word unchanged. In this way views of any strides are written out, and
//! pieces are stored that begin in the middle of words.

use panoply_core::{Result, Shape};
use panoply_kernels::wgsl::{Kernel, MoveKernel};

use crate::context::{Context, groups_for};
use crate::driver::Driver;
use crate::operand::{ELEMENTS_MAX, Operand, WINDOW_STEP_BYTES, collapsed};
use crate::profile::Profile;

/// Whether 32-bit indices reach all of the view, with a window's worth to spare.
pub fn are_counted<D: Driver>(view: &Operand<D>, profile: &Profile) -> bool {
    let (low, behind) = view.reach();
    let most = u32::MAX as usize;
    view.elements() <= most && behind - low + seen_at_once(profile, view.dtype.size_bytes()) <= most
}

/// Copies a view to a contiguous output at the start of its block.
pub fn move_view<D: Driver>(view: &Operand<D>, output: &Operand<D>, context: &mut Context<D>) -> Result<()> {
    let size = view.dtype.size_bytes();
    let at_once = seen_at_once(&context.profile, size);
    let base = view.offset_in_block();
    for first in (0..view.elements()).step_by(at_once) {
        let count = at_once.min(view.elements() - first);
        let place = output.span(first, count)?.windowed();
        let (low, high) = span_reach(&view.shape, &view.strides, first, first + count - 1);
        let (low, high) = (base.saturating_add_signed(low), base.saturating_add_signed(high));
        let from = low * size / WINDOW_STEP_BYTES * WINDOW_STEP_BYTES / size;
        for start in (from..=high).step_by(at_once) {
            let seen = Operand { window: start * size, offset: 0, ..view.span(0, 1)? };
            // Elements before the window get indices that wrap around to beyond its end.
            let offset = (base as u32).wrapping_sub(start as u32);
            let (dims, strides) = collapsed(&view.shape, &[&view.strides]);
            let window = Window { offset, dims: &dims, strides: &strides[0], first, seen: at_once };
            window.record(&seen, &place, count, context)?;
        }
    }
    Ok(())
}

/// Copies a piece from the start of its block into a larger contiguous operand, at any offset.
pub fn put<D: Driver>(piece: &Operand<D>, place: &Operand<D>, context: &mut Context<D>) -> Result<()> {
    let size = piece.dtype.size_bytes();
    if place.start_byte().is_multiple_of(4) {
        // Bytes that are copied after the last element of a small type belong to the next piece,
        // which overwrites them.
        context.copy(piece, place, place.start_byte() as u64);
        return Ok(());
    }
    let at_once = seen_at_once(&context.profile, size) - WINDOW_STEP_BYTES / size;
    for first in (0..piece.elements()).step_by(at_once) {
        let count = at_once.min(piece.elements() - first);
        let (from, to) = (piece.span(first, count)?.windowed(), place.span(first, count)?.windowed());
        // Elements in the window before the place have a negative index in the piece: they are not
        // seen.
        let (skipped, all) = (to.offset, to.offset + count);
        let offset = 0_u32.wrapping_sub(skipped as u32);
        let window = Window { offset, dims: &[all as u32], strides: &[1], first: 0, seen: count };
        window.record(&from, &to, all, context)?;
    }
    Ok(())
}

/// The part of a view that a kernel sees.
struct Window<'a> {
    /// Index of the view's first element, counted from the window's start.
    offset: u32,
    dims: &'a [u32],
    strides: &'a [u32],
    /// The first element to write.
    first: usize,
    /// Number of elements that the window holds.
    seen: usize,
}

impl Window<'_> {
    /// Writes `count` elements, from the start of the place's window.
    fn record<D: Driver>(
        &self,
        seen: &Operand<D>,
        place: &Operand<D>,
        count: usize,
        context: &mut Context<D>,
    ) -> Result<()> {
        let element_bytes = place.dtype.size_bytes() as u8;
        let mut params = vec![count as u32, self.offset];
        params.extend(self.dims);
        params.extend(self.strides);
        params.extend([self.first as u32, self.seen as u32]);
        let kernel = Kernel::Move(MoveKernel { element_bytes, rank: self.dims.len() as u8, windowed: true });
        let words = (count * usize::from(element_bytes)).div_ceil(usize::from(element_bytes.max(4)));
        context.run(&kernel, &[place], &[seen], &params, groups_for(words))
    }
}

/// Number of elements that kernels see from a window's start, so that the next window begins right
/// after them.
fn seen_at_once(profile: &Profile, element_bytes: usize) -> usize {
    let bytes = (profile.binding_bytes_max as usize).min(ELEMENTS_MAX * element_bytes);
    bytes / WINDOW_STEP_BYTES * WINDOW_STEP_BYTES / element_bytes
}

/// The lowest and highest memory offset, relative to the view's first element, of the elements from
/// `first` to `last` in the view's order.
fn span_reach(shape: &Shape, strides: &[isize], first: usize, last: usize) -> (isize, isize) {
    let (mut low, mut high) = (0, 0);
    let (mut slice, mut first, mut last) = (shape.elements(), first, last);
    let mut is_same = true;
    for (dim, stride) in shape.iter().zip(strides) {
        slice /= dim;
        let (from, to) = if is_same { (first / slice, last / slice) } else { (0, dim - 1) };
        (first, last) = (first % slice, last % slice);
        is_same &= from == to;
        let (from, to) = (from as isize * stride, to as isize * stride);
        (low, high) = (low + from.min(to), high + from.max(to));
    }
    (low, high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reaches_hold_all_elements_of_a_span() {
        let (shape, strides) = (Shape::new([3, 4, 5]).unwrap(), [7, -30, 2]);
        let places: Vec<isize> =
            (0..60).map(|i: isize| i / 20 * strides[0] + i / 5 % 4 * strides[1] + i % 5 * strides[2]).collect();
        for first in 0..60 {
            for last in first..60 {
                let (low, high) = span_reach(&shape, &strides, first, last);
                assert!(places[first..=last].iter().all(|place| (low..=high).contains(place)), "{first} to {last}");
            }
        }
        // Within one line nothing else is reached.
        assert_eq!(span_reach(&shape, &strides, 6, 8), (-30 + 2, -30 + 6));
    }
}
