//! Sorts lines that are longer than a kernel sees. Pieces are sorted by themselves; then the rank
//! of each of their elements in the whole line is counted: how many elements of every other piece
//! come before it.

use panoply_core::Result;
use panoply_kernels::wgsl::{Kernel, SortKernel};

use super::Extents;
use super::sort::{KEY_BYTES, radix};
use crate::context::{Context, groups_for};
use crate::driver::Driver;
use crate::operand::{Operand, WINDOW_STEP_BYTES};
use crate::pieces::{beyond, slabs_within};

/// A sorted piece of a line.
struct SortedPiece<D: Driver> {
    first: usize,
    count: usize,
    keys: Operand<D>,
    /// The old positions of the elements, counted from the piece's start.
    positions: Operand<D>,
}

/// The sorting order of a contiguous line: for every rank, the position of the element that belongs
/// there.
pub(super) fn positions<D: Driver>(
    line: &Operand<D>,
    descending: bool,
    context: &mut Context<D>,
) -> Result<Operand<D>> {
    let len = line.elements();
    let most = slabs_within(&context.profile, 1, line.dtype.size_bytes().max(KEY_BYTES));
    let at_once = most / WINDOW_STEP_BYTES * WINDOW_STEP_BYTES;
    if at_once == 0 || u32::try_from(len).is_err() {
        return Err(beyond("a line to sort", context.profile.binding_bytes_max));
    }
    let mut pieces = Vec::new();
    for first in (0..len).step_by(at_once) {
        let count = at_once.min(len - first);
        let seen = line.span(first, count)?.windowed();
        let extents = Extents { outer: 1, axis: count, inner: 1 };
        let (keys, positions) = radix(&seen, extents, descending, true, context)?;
        pieces.push(SortedPiece { first, count, keys, positions });
    }
    let output = context.words(len)?;
    for (number, piece) in pieces.iter().enumerate() {
        let ranks = ranks(&pieces, number, context)?;
        for start in (0..len).step_by(at_once) {
            let seen = at_once.min(len - start);
            let place = output.span(start, seen)?.windowed();
            let params = [piece.count, start, seen, piece.first].map(|size| size as u32);
            let kernel = Kernel::Sort(SortKernel::Place);
            context.run(&kernel, &[&place], &[&ranks, &piece.positions], &params, groups_for(piece.count))?;
        }
    }
    Ok(output)
}

/// The ranks of a piece's sorted elements among those of all pieces.
fn ranks<D: Driver>(pieces: &[SortedPiece<D>], number: usize, context: &mut Context<D>) -> Result<Operand<D>> {
    let own = &pieces[number];
    let ranks = context.words(own.count)?;
    let mut first = 1;
    for (other_number, other) in pieces.iter().enumerate().filter(|(other, _)| *other != number) {
        let kernel = Kernel::Sort(SortKernel::Rank { before: other_number < number });
        let params = [own.count as u32, other.count as u32, first];
        context.run(&kernel, &[&ranks], &[&own.keys, &other.keys], &params, groups_for(own.count))?;
        first = 0;
    }
    Ok(ranks)
}
