//! Cuts work on more bytes than kernels see at once into pieces that they see.
//!
//! A kernel sees `binding_bytes_max` bytes of each block, from a window's start. Elementwise work
//! is halved along its first axis until all operands are within reach. Kernels write from a
//! window's start, so a piece that does not begin at one is computed in a block of its own and
//! copied. Work on lines is cut into slabs, which are all lines for one or more indices of the axes
//! before the lines' own.

use std::ops::Range;

use panoply_core::{Error, Result, Shape};

use crate::context::Context;
use crate::driver::Driver;
use crate::operand::{ELEMENTS_MAX, Operand, WINDOW_STEP_BYTES};
use crate::profile::Profile;
use crate::windows::put;

/// Records one piece: the inputs as views of the output's shape, then the output, from its window's
/// start.
pub type Record<'a, D> = &'a mut dyn FnMut(&[Operand<D>], &Operand<D>, &mut Context<D>) -> Result<()>;

/// Records elementwise work from views of the output's shape to a contiguous output.
pub fn in_pieces<D: Driver>(
    views: &[Operand<D>],
    output: &Operand<D>,
    context: &mut Context<D>,
    record: Record<'_, D>,
) -> Result<()> {
    let limit = context.profile.binding_bytes_max;
    let within = |views: &[Operand<D>], output: &Operand<D>| {
        output.is_within(limit) && views.iter().all(|view| view.is_within(limit))
    };
    if within(views, output) {
        return record(views, output, context);
    }
    let flat = views.iter().map(flattened).collect::<Option<Vec<_>>>();
    let (views, output) = match (flat, flattened(output)) {
        (Some(views), Some(output)) => (views, output),
        _ => (views.to_vec(), output.clone()),
    };
    let views: Vec<Operand<D>> = views.iter().map(Operand::windowed).collect();
    if within(&views, &output) {
        return record(&views, &output, context);
    }
    in_two(&views, &output, context, record)
}

/// Records the work in two pieces, each of which may be cut further.
pub fn in_two<D: Driver>(
    views: &[Operand<D>],
    output: &Operand<D>,
    context: &mut Context<D>,
    record: Record<'_, D>,
) -> Result<()> {
    let Some(axis) = output.shape.iter().position(|dim| *dim > 1) else {
        return Err(beyond("an element", context.profile.binding_bytes_max));
    };
    let dim = output.shape[axis];
    let first = first_piece(dim, output.elements() / dim * output.dtype.size_bytes());
    for (start, count) in [(0, first), (first, dim - first)] {
        let views: Vec<Operand<D>> = views.iter().map(|view| view.slice(axis, start, count)).collect::<Result<_>>()?;
        piece(&views, &output.slice(axis, start, count)?, context, &mut *record)?;
    }
    Ok(())
}

/// Records one piece of an output, at a window's start or in a block of its own.
fn piece<D: Driver>(
    views: &[Operand<D>],
    output: &Operand<D>,
    context: &mut Context<D>,
    record: Record<'_, D>,
) -> Result<()> {
    let placed = output.windowed();
    if placed.offset == 0 {
        return in_pieces(views, &placed, context, record);
    }
    let own = context.output(output.dtype, output.shape)?;
    in_pieces(views, &own, context, record)?;
    put(&own, output, context)
}

/// Number of slabs of `slab` elements that are within a kernel's reach at once.
pub fn slabs_within(profile: &Profile, slab: usize, element_bytes: usize) -> usize {
    let seen = (profile.binding_bytes_max as usize).saturating_sub(WINDOW_STEP_BYTES);
    seen.min(ELEMENTS_MAX * element_bytes) / (slab * element_bytes).max(1)
}

/// Records some slabs: the input, the output from its window's start, and the range of slabs.
pub type RecordSlabs<'a, D> = &'a mut dyn FnMut(&Operand<D>, &Operand<D>, Range<usize>, &mut Context<D>) -> Result<()>;

/// Records work on `outer` contiguous slabs, from a contiguous input to a contiguous output. Slabs
/// of the input and of the output may have different sizes.
pub fn in_slabs<D: Driver>(
    input: &Operand<D>,
    output: &Operand<D>,
    outer: usize,
    context: &mut Context<D>,
    record: RecordSlabs<'_, D>,
) -> Result<()> {
    let limit = context.profile.binding_bytes_max;
    if input.is_within(limit) && output.is_within(limit) {
        return record(input, output, 0..outer, context);
    }
    let (read, made) = (input.elements() / outer, output.elements() / outer);
    let (read_bytes, made_bytes) = (input.dtype.size_bytes(), output.dtype.size_bytes());
    let within = |slab, element_bytes| slabs_within(&context.profile, slab, element_bytes);
    let most = within(read, read_bytes).min(within(made, made_bytes));
    if most == 0 {
        return Err(beyond("lines or images", limit));
    }
    let count = ending_at_windows(most, made * made_bytes);
    for first in (0..outer).step_by(count) {
        let some = count.min(outer - first);
        let seen = input.span(first * read, some * read)?.windowed();
        let place = output.span(first * made, some * made)?;
        let placed = place.windowed();
        if placed.offset == 0 {
            record(&seen, &placed, first..first + some, context)?;
            continue;
        }
        let own = context.output(place.dtype, place.shape)?;
        record(&seen, &own, first..first + some, context)?;
        put(&own, &place, context)?;
    }
    Ok(())
}

/// A number of slices, at most `most`, after which a window begins, if there is such a number.
pub fn ending_at_windows(most: usize, slice_bytes: usize) -> usize {
    let common = 1 << slice_bytes.trailing_zeros().min(WINDOW_STEP_BYTES.trailing_zeros());
    let step = WINDOW_STEP_BYTES / common;
    if most >= step { most / step * step } else { most }
}

/// The error for work that is beyond reach even when cut.
pub fn beyond(what: &str, limit: u64) -> Error {
    Error::Unsupported {
        op: "a large tensor",
        reason: format!("{what} beyond the {limit} bytes that the adapter binds"),
    }
}

/// How many of `dim` slices the first piece has: about half, so that the second begins at a
/// window's start if it can.
fn first_piece(dim: usize, slice_bytes: usize) -> usize {
    let common = 1 << slice_bytes.trailing_zeros().min(WINDOW_STEP_BYTES.trailing_zeros());
    let aligned = (dim / 2).next_multiple_of(WINDOW_STEP_BYTES / common);
    if aligned > 0 && aligned < dim { aligned } else { dim / 2 }
}

/// The view as one axis, if its elements are contiguous or all the same one.
fn flattened<D: Driver>(view: &Operand<D>) -> Option<Operand<D>> {
    let shape = Shape::new([view.elements()]).ok()?;
    if view.is_contiguous() {
        return Some(view.reshaped(shape));
    }
    let still = view.shape.iter().zip(view.strides.iter()).all(|(dim, stride)| *dim == 1 || *stride == 0);
    let strides = panoply_core::shape::Strides::new([0]).ok()?;
    still.then(|| Operand { shape, strides, ..view.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_pieces_end_where_windows_begin() {
        assert_eq!(first_piece(1000, 4), 512);
        assert_eq!(first_piece(100, 512), 50);
        assert_eq!(first_piece(7, 1 << 20), 3);
        // Slices of three bytes: only every 256th begins at a window's start.
        assert_eq!(first_piece(1000, 3), 512);
        assert_eq!(first_piece(100, 3), 50);
        assert_eq!(first_piece(2, 4), 1);
        assert_eq!(ending_at_windows(1000, 4), 960);
        assert_eq!(ending_at_windows(1000, 512), 1000);
        assert_eq!(ending_at_windows(63, 4), 63);
    }
}
