//! The inner loop: a few pixels times one or two vectors of filters in registers.

use super::super::vector::{Plain, Vector};
use crate::simd::Simd;

/// One tap: the offset of its pixels from those of the tile, and the index of its weights in a
/// block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Tap {
    pub offset: isize,
    pub index: usize,
}

/// One tile: the sums of neighbouring pixels of one row, or of two rows.
pub(super) struct Tile<'a> {
    /// The address that a tap with offset zero would read for the tile's first pixel. May lie
    /// outside of the image. With the offset of any of the taps it is inside, and so are the pixels
    /// and channels that follow.
    pub pixels: *const f32,
    pub pixel_step: usize,
    pub row_step: usize,
    pub channels: usize,
    pub channel_step: usize,
    pub taps: &'a [Tap],
    /// By tap and channel: the weights of the block's filters, contiguous.
    pub weights: *const f32,
    /// Weights that are needed soon: one cache line of them is prefetched for each tap and channel.
    pub ahead: *const f32,
    /// One start value for each filter of the block. Null: the sums continue from their current
    /// values.
    pub bias: *const f32,
    /// The sums of the first pixel, and the distances to the next pixel's and the next row's sums.
    pub sums: *mut f32,
    pub sum_step: usize,
    pub sum_row: usize,
}

/// A function that computes a tile of its own size.
pub(super) type TileFn = unsafe fn(&Tile<'_>);

/// Numbers in a cache line.
pub(super) const LINE_NUMBERS: usize = 16;

/// Pixels in the largest tile of any level.
pub(super) const TILE_PIXELS_MAX: usize = 14;

/// The tiles of a level.
pub(super) struct Tiles {
    /// Numbers in a vector.
    pub lanes: usize,
    /// Tiles of one row, by number of vectors - 1, then by number of pixels - 1.
    pub rows: [&'static [TileFn]; 2],
    /// Tiles of two rows and two vectors, by pixels of one row - 1. Empty if there are not enough
    /// registers.
    pub pairs: &'static [TileFn],
}

impl Tiles {
    /// The tiles of a level that the CPU has.
    pub fn of(simd: Simd) -> &'static Tiles {
        match simd {
            #[cfg(target_arch = "x86_64")]
            Simd::Avx512 => &AVX512,
            #[cfg(target_arch = "x86_64")]
            Simd::Avx2 => &AVX2,
            _ => &PLAIN,
        }
    }

    /// Pixels in the largest tile of one row.
    pub fn pixels(&self) -> usize {
        self.rows[1].len()
    }
}

#[inline(always)]
#[allow(clippy::needless_range_loop)] // Loops over constants, unrolled into registers; every array is indexed alike.
unsafe fn tile_body<V: Vector<Scalar = f32>, const R: usize, const P: usize, const N: usize>(tile: &Tile<'_>) {
    // SAFETY: the caller upholds the contract of `Tile` for `R` rows of `P` pixels and `N` vectors
    // of filters, and the CPU has `V`'s level.
    unsafe {
        let place = |row: usize, pixel: usize, vector: usize| {
            tile.sums.add(row * tile.sum_row + pixel * tile.sum_step + vector * V::LANES)
        };
        let mut sums = [[[V::splat(0.0); N]; P]; R];
        for row in 0..R {
            for pixel in 0..P {
                for vector in 0..N {
                    let from = match tile.bias.is_null() {
                        true => place(row, pixel, vector).cast_const(),
                        false => tile.bias.add(vector * V::LANES),
                    };
                    sums[row][pixel][vector] = V::load(from);
                }
            }
        }
        let mut ahead = tile.ahead;
        for tap in tile.taps {
            let mut weights = tile.weights.add(tap.index * tile.channels * N * V::LANES);
            let mut pixels = [tile.pixels; R];
            for row in 0..R {
                pixels[row] = tile.pixels.wrapping_offset(tap.offset).wrapping_add(row * tile.row_step);
            }
            for _ in 0..tile.channels {
                let mut own = [V::splat(0.0); N];
                for vector in 0..N {
                    own[vector] = V::load(weights.add(vector * V::LANES));
                }
                for row in 0..R {
                    for pixel in 0..P {
                        let value = V::splat(*pixels[row].add(pixel * tile.pixel_step));
                        for vector in 0..N {
                            sums[row][pixel][vector] = value.mul_add(own[vector], sums[row][pixel][vector]);
                        }
                    }
                }
                weights = weights.add(N * V::LANES);
                fetch(ahead);
                ahead = ahead.wrapping_add(LINE_NUMBERS);
                for row in 0..R {
                    pixels[row] = pixels[row].wrapping_add(tile.channel_step);
                }
            }
        }
        for row in 0..R {
            for pixel in 0..P {
                for vector in 0..N {
                    sums[row][pixel][vector].store(place(row, pixel, vector));
                }
            }
        }
    }
}

/// Prefetches the cache line of an address. The address may be invalid: nothing is read.
#[inline(always)]
fn fetch(line: *const f32) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: SSE is part of the architecture, and a prefetch changes nothing but caches.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

macro_rules! tiles {
    ($table:ident, $tile:ident, $vector:ty, $lanes:literal, [$($pixels:literal),*], [$($pair:literal),*] $(, $feature:literal)?) => {
        $(#[target_feature(enable = $feature)])?
        unsafe fn $tile<const R: usize, const P: usize, const N: usize>(tile: &Tile<'_>) {
            // SAFETY: passed on to the caller, who also guarantees the CPU's level.
            unsafe { tile_body::<$vector, R, P, N>(tile) }
        }

        static $table: Tiles = Tiles {
            lanes: $lanes,
            rows: [&[$($tile::<1, $pixels, 1>),*], &[$($tile::<1, $pixels, 2>),*]],
            pairs: &[$($tile::<2, $pair, 2>),*],
        };
    };
}

tiles!(PLAIN, tile_plain, Plain<f32, 4>, 4, [1, 2, 3, 4, 5, 6], []);
#[cfg(target_arch = "x86_64")]
tiles!(AVX2, tile_avx2, std::arch::x86_64::__m256, 8, [1, 2, 3, 4, 5, 6], [], "avx2,fma");
#[cfg(target_arch = "x86_64")]
tiles!(
    AVX512,
    tile_avx512,
    std::arch::x86_64::__m512,
    16,
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
    [1, 2, 3, 4, 5, 6, 7],
    "avx512f"
);
