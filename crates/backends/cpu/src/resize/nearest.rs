//! Nearest: whole pixels are copied, whatever their elements mean.

use super::{Sizes, cover};
use crate::parts::Parts;
use crate::team::Team;

/// Copies for each output pixel its nearest input pixel.
///
/// # Panics
/// When a slice does not have its stated size, or a non-empty output has an empty input.
pub fn nearest<T: Copy + Send + Sync>(team: &Team, sizes: &Sizes, input: &[T], output: &mut [T]) {
    if !sizes.check(input.len(), output.len()) {
        return;
    }
    let columns: Vec<usize> = (0..sizes.output.1).map(|x| cover(x, sizes.input.1, sizes.output.1).start).collect();
    let (row_in, row_out) = (sizes.row_in(), sizes.row_out());
    let parts = Parts::new(output);
    team.run_ranges(sizes.rows_out(), sizes.grain(size_of::<T>()), &|rows| {
        // SAFETY: ranges of rows are disjoint, so their elements are.
        let output = unsafe { parts.range(rows.start * row_out..rows.end * row_out) };
        let mut copied = None;
        for (index, row) in rows.enumerate() {
            let (plane, y) = (row / sizes.output.0, row % sizes.output.0);
            let source = plane * sizes.input.0 + cover(y, sizes.input.0, sizes.output.0).start;
            if copied == Some(source) {
                output.copy_within((index - 1) * row_out..index * row_out, index * row_out);
                continue;
            }
            let from = &input[source * row_in..(source + 1) * row_in];
            pick_row(from, sizes.channels, &columns, &mut output[index * row_out..(index + 1) * row_out]);
            copied = Some(source);
        }
    });
}

fn pick_row<T: Copy>(from: &[T], channels: usize, columns: &[usize], to: &mut [T]) {
    match channels {
        1 => pick_pixels::<T, 1>(from, columns, to),
        2 => pick_pixels::<T, 2>(from, columns, to),
        3 => pick_pixels::<T, 3>(from, columns, to),
        4 => pick_pixels::<T, 4>(from, columns, to),
        _ => {
            for (to, &column) in to.chunks_exact_mut(channels).zip(columns) {
                to.copy_from_slice(&from[column * channels..(column + 1) * channels]);
            }
        }
    }
}

fn pick_pixels<T: Copy, const CHANNELS: usize>(from: &[T], columns: &[usize], to: &mut [T]) {
    let from = from.as_chunks::<CHANNELS>().0;
    for (to, &column) in to.as_chunks_mut::<CHANNELS>().0.iter_mut().zip(columns) {
        *to = from[column];
    }
}
