//! The inner loop of `filter_lanes`: a few pixels times two vectors of filters in registers.

use super::vector::Vector;
use crate::simd::Simd;

/// One tile. The number of pixels is fixed by the kernel that is called.
pub struct FilterTile<'a, T> {
    /// The tile's first pixel; the others follow it. Valid for every offset plus the tile's pixels.
    pub(super) panel: *const T,
    /// For each channel and tap, how far its view of the pixels is from `panel`.
    pub(super) offsets: &'a [usize],
    /// For each offset, the weights of the tile's filters side by side.
    pub(super) weights: *const T,
    /// One start value for each filter.
    pub(super) bias: *const T,
    /// For each pixel, the sums of all filters.
    pub(super) sums: *mut T,
}

pub(super) type FilterTileFn<T> = unsafe fn(&FilterTile<'_, T>);

/// A kernel that this CPU can run.
pub struct FilterKernel<T>(pub(super) FilterTileFn<T>);

/// Pixels in the largest tile of any level.
pub(super) const TILE_PIXELS_MAX: usize = 12;

/// Pixels in the largest tile: twice as many sums, two vectors of weights and a pixel fill the registers.
pub(super) fn tile_pixels(simd: Simd) -> usize {
    if simd == Simd::Avx512 { TILE_PIXELS_MAX } else { 6 }
}

#[inline(always)]
#[allow(clippy::needless_range_loop)] // Loops over constants, unrolled into registers; every array is indexed alike.
unsafe fn filter_tile_body<V: Vector, const P: usize>(tile: &FilterTile<'_, V::Scalar>) {
    // SAFETY: the caller upholds the contract of `FilterTile` for `P` pixels and two vectors of filters, and the CPU has `V`'s level.
    unsafe {
        let bias = [V::load(tile.bias), V::load(tile.bias.add(V::LANES))];
        let mut sums = [bias; P];
        let mut weights = tile.weights;
        for &offset in tile.offsets {
            let pixels = tile.panel.add(offset);
            let pair = [V::load(weights), V::load(weights.add(V::LANES))];
            for pixel in 0..P {
                let value = V::splat(*pixels.add(pixel));
                sums[pixel][0] = value.mul_add(pair[0], sums[pixel][0]);
                sums[pixel][1] = value.mul_add(pair[1], sums[pixel][1]);
            }
            weights = weights.add(2 * V::LANES);
        }
        for pixel in 0..P {
            sums[pixel][0].store(tile.sums.add(2 * pixel * V::LANES));
            sums[pixel][1].store(tile.sums.add((2 * pixel + 1) * V::LANES));
        }
    }
}

macro_rules! filter_tiles {
    ($pick:ident, $tile:ident, $feature:literal, [$($pixels:literal),*]) => {
        #[target_feature(enable = $feature)]
        unsafe fn $tile<V: Vector, const P: usize>(tile: &FilterTile<'_, V::Scalar>) {
            // SAFETY: passed on to the caller, who also guarantees the CPU's level.
            unsafe { filter_tile_body::<V, P>(tile) }
        }

        pub(super) fn $pick<V: Vector>(pixels: usize) -> Option<FilterTileFn<V::Scalar>> {
            Some(match pixels {
                $($pixels => $tile::<V, $pixels>,)*
                _ => return None,
            })
        }
    };
}

#[cfg(target_arch = "x86_64")]
filter_tiles!(pick_avx2, filter_tile_avx2, "avx2,fma", [1, 2, 3, 4, 5, 6]);
#[cfg(target_arch = "x86_64")]
filter_tiles!(pick_avx512, filter_tile_avx512, "avx512f", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
