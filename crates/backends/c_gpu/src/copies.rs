//! Copies of views on the device. A contiguous view is copied whole. A view with a contiguous last
//! axis is copied in the widest possible words. A view with another contiguous axis goes through
//! block memory. All others are copied element by element.

use panoply_core::{DType, Result};
use panoply_kernels::c::{Kernel, STRIDED};

use crate::arguments::Arguments;
use crate::context::Context;
use crate::driver::{Address, Launch};
use crate::layout::{LAYOUT_AXES_MAX, Layout, View};
use crate::strides::Axes;

const BLOCK_THREADS: usize = 256;
const WORD_BYTES_MAX: usize = 16;
/// Minimum size of an axis for a tiled copy through block memory.
const TILED_SIZE_MIN: usize = 8;

impl Context {
    /// Copies the elements of a view to contiguous memory.
    pub fn copy_view(&mut self, target: Address, view: &View, dtype: DType, elements: usize) -> Result<()> {
        if elements == 0 {
            return Ok(());
        }
        let mut axes = Axes::<1>::new();
        view.layout.axes().for_each(|(size, stride)| axes.push(size, [stride]));
        axes.collapse(1);
        let size = dtype.size_bytes();
        if axes.rank == 0 || axes.rank == 1 && axes.strides[0][0] == 1 {
            return self.copy(target, view.address, elements * size);
        }
        if axes.strides[0][0] != 1
            && axes.sizes[0] >= TILED_SIZE_MIN
            && let Some(axis) = (1..axes.rank).find(|axis| axes.strides[0][*axis] == 1)
            && axes.sizes[axis] >= TILED_SIZE_MIN
        {
            return self.copy_tiles(target, view.address, &axes, axis, size);
        }
        let bytes = widen(&mut axes, view.address, size);
        let kernel = Kernel::new(STRIDED, "copy_view").word("T", word(bytes)).flag("COPY_VIEW", true);
        let words = elements * size / bytes;
        let layout = Layout::of_axes(&axes, 0);
        let mut arguments = Arguments::new().address(target).address(view.address).layout(&layout).u64(words as u64);
        let launch = self.blocks(words, BLOCK_THREADS, 2);
        self.launch(&kernel, launch, &mut arguments)
    }

    /// Copies a view whose contiguous axis is `axis`, which is not the last.
    fn copy_tiles(&mut self, target: Address, source: Address, axes: &Axes<1>, axis: usize, size: usize) -> Result<()> {
        let (mut from, mut to) = (Axes::<1>::new(), Axes::<1>::new());
        let mut contiguous = [1_i64; LAYOUT_AXES_MAX];
        for place in 1..axes.rank {
            contiguous[place] = contiguous[place - 1] * axes.sizes[place - 1] as i64;
            if place != axis {
                from.push(axes.sizes[place], [axes.strides[0][place]]);
                to.push(axes.sizes[place], [contiguous[place]]);
            }
        }
        let tile = if size <= 4 { 64 } else { 32 };
        let (rows, columns) = (axes.sizes[0], axes.sizes[axis]);
        let (row_tiles, column_tiles) = (rows.div_ceil(tile), columns.div_ceil(tile));
        let blocks = row_tiles * column_tiles * from.elements();
        let kernel = Kernel::new(STRIDED, "transpose_tiles").word("T", word(size)).integer("TILE", tile as i64);
        let mut arguments = Arguments::new()
            .address(target)
            .address(source)
            .u64(rows as u64)
            .u64(columns as u64)
            .i64(axes.strides[0][0])
            .i64(contiguous[axis])
            .layout(&Layout::of_axes(&from, 0))
            .layout(&Layout::of_axes(&to, 0))
            .size(row_tiles)
            .size(column_tiles);
        self.launch(&kernel, Launch::new(blocks, BLOCK_THREADS), &mut arguments)
    }
}

/// Converts axes of elements into axes of the widest words that divide every contiguous run.
/// Returns the word size in bytes.
fn widen(axes: &mut Axes<1>, address: Address, size: usize) -> usize {
    if axes.strides[0][0] != 1 {
        return size;
    }
    let mut bytes = WORD_BYTES_MAX;
    let fits = |bytes: usize| {
        let per_word = bytes / size;
        axes.sizes[0].is_multiple_of(per_word)
            && axes.strides[0][1..axes.rank].iter().all(|stride| stride % per_word as i64 == 0)
            && address.is_multiple_of(bytes as u64)
    };
    while bytes > size && !fits(bytes) {
        bytes /= 2;
    }
    let per_word = bytes / size;
    axes.sizes[0] /= per_word;
    for stride in &mut axes.strides[0][1..axes.rank] {
        *stride /= per_word as i64;
    }
    bytes
}

/// The name of a word type in kernels.
pub(crate) fn word(bytes: usize) -> &'static str {
    match bytes {
        1 => "u8",
        2 => "u16",
        4 => "u32",
        8 => "u64",
        _ => "u32x4",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_as_wide_as_every_run_allows() {
        let axes = |sizes: [usize; 2], strides: [i64; 2]| {
            let mut axes = Axes::<1>::new();
            axes.push(sizes[0], [strides[0]]);
            axes.push(sizes[1], [strides[1]]);
            axes
        };
        let mut even = axes([24, 5], [1, 32]);
        assert_eq!(widen(&mut even, Address(512), 2), 16);
        assert_eq!((even.sizes[0], even.strides[0][1]), (3, 4));
        assert_eq!(widen(&mut axes([24, 5], [1, 32]), Address(516), 2), 4);
        assert_eq!(widen(&mut axes([24, 5], [1, 31]), Address(512), 2), 2);
        assert_eq!(widen(&mut axes([24, 5], [2, 32]), Address(512), 2), 2);
    }
}
