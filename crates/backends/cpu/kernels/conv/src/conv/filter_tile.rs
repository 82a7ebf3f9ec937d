//! The inner loop of `filter_lanes`: a few pixels times two vectors of filters in registers.

use super::vector::Vector;
use crate::simd::Simd;

/// One tile. The called kernel fixes the numbers of pixels and rows.
pub struct FilterTile<'a, T> {
    /// The tile's first pixel; the other pixels of its row follow. Valid for every offset plus the
    /// tile's pixels.
    pub(super) panel: *const T,
    /// Distance between the pixels of neighbouring rows.
    pub(super) pitch: usize,
    /// For each channel and tap, the distance of its pixels from `panel`.
    pub(super) offsets: &'a [usize],
    /// For each offset, the contiguous weights of the tile's filters.
    pub(super) weights: *const T,
    /// One start value for each filter.
    pub(super) bias: *const T,
    /// For each pixel, the sums of all filters.
    pub(super) sums: *mut T,
}

pub(super) type FilterTileFn<T> = unsafe fn(&FilterTile<'_, T>);

/// A kernel that this CPU can run.
pub struct FilterKernel<T>(pub(super) FilterTileFn<T>);

/// Pixels in the largest tile of any level: two rows of seven.
pub(super) const TILE_PIXELS_MAX: usize = 14;

/// Pixels in the largest tile of one row. The registers hold two vectors of sums for each pixel,
/// two vectors of weights and one pixel.
pub(super) fn tile_pixels(simd: Simd) -> usize {
    if simd == Simd::Avx512 { 12 } else { 6 }
}

#[inline(always)]
#[allow(clippy::needless_range_loop)] // Loops over constants, unrolled into registers; every array is indexed alike.
unsafe fn filter_tile_body<V: Vector, const P: usize, const R: usize>(tile: &FilterTile<'_, V::Scalar>) {
    // SAFETY: the caller upholds the contract of `FilterTile` for `R` rows of `P` pixels and two
    // vectors of filters, and the CPU has `V`'s level.
    unsafe {
        let bias = [V::load(tile.bias), V::load(tile.bias.add(V::LANES))];
        let mut sums = [[bias; P]; R];
        let mut weights = tile.weights;
        for &offset in tile.offsets {
            let pixels = tile.panel.add(offset);
            let pair = [V::load(weights), V::load(weights.add(V::LANES))];
            for row in 0..R {
                for pixel in 0..P {
                    let value = V::splat(*pixels.add(row * tile.pitch + pixel));
                    let sums = &mut sums[row][pixel];
                    *sums = [value.mul_add(pair[0], sums[0]), value.mul_add(pair[1], sums[1])];
                }
            }
            weights = weights.add(2 * V::LANES);
        }
        for row in 0..R {
            for pixel in 0..P {
                let to = tile.sums.add(2 * (row * P + pixel) * V::LANES);
                sums[row][pixel][0].store(to);
                sums[row][pixel][1].store(to.add(V::LANES));
            }
        }
    }
}

macro_rules! filter_tiles {
    ($pick:ident, $tile:ident, $feature:literal, [$(($pixels:literal, $rows:literal)),*]) => {
        #[target_feature(enable = $feature)]
        unsafe fn $tile<V: Vector, const P: usize, const R: usize>(tile: &FilterTile<'_, V::Scalar>) {
            // SAFETY: passed on to the caller, who also guarantees the CPU's level.
            unsafe { filter_tile_body::<V, P, R>(tile) }
        }

        pub(super) fn $pick<V: Vector>(pixels: usize, rows: usize) -> Option<FilterTileFn<V::Scalar>> {
            Some(match (pixels, rows) {
                $(($pixels, $rows) => $tile::<V, $pixels, $rows>,)*
                _ => return None,
            })
        }
    };
}

#[cfg(target_arch = "x86_64")]
filter_tiles!(pick_avx2, filter_tile_avx2, "avx2,fma", [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1)]);
#[cfg(target_arch = "x86_64")]
filter_tiles!(
    pick_avx512,
    filter_tile_avx512,
    "avx512f",
    [
        (1, 1),
        (2, 1),
        (3, 1),
        (4, 1),
        (5, 1),
        (6, 1),
        (7, 1),
        (8, 1),
        (9, 1),
        (10, 1),
        (11, 1),
        (12, 1),
        (5, 2),
        (6, 2),
        (7, 2)
    ]
);
