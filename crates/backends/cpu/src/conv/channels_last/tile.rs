//! The inner loop: a few pixels times one or two vectors of filters in registers.

use super::super::vector::{Plain, Vector};
use crate::simd::Simd;

/// One tap: how far the pixels that it reads are from those of the tile, and which of a block's weights are its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Tap {
    pub offset: isize,
    pub index: usize,
}

/// One tile: the sums of neighbouring pixels of one row, or of two rows.
pub(super) struct Tile<'a> {
    /// What the first tap of offset zero would read of the tile's first pixel. It may lie outside of the image; with the offset of any
    /// of the taps it does not, and neither do the pixels and channels that follow it.
    pub pixels: *const f32,
    pub pixel_step: usize,
    pub row_step: usize,
    pub channels: usize,
    pub channel_step: usize,
    pub taps: &'a [Tap],
    /// By tap and channel: the weights of the block's filters side by side.
    pub weights: *const f32,
    /// Weights that are wanted soon: a cache line of them is fetched for each tap and channel.
    pub ahead: *const f32,
    /// One start value for each filter of the block, or null: then the sums go on from what they are.
    pub bias: *const f32,
    /// The first pixel's sums, and how far the next pixel's and the next row's are from them.
    pub sums: *mut f32,
    pub sum_step: usize,
    pub sum_row: usize,
}

/// Computes a tile whose sizes are those of the function.
pub(super) type TileFn = unsafe fn(&Tile<'_>);

/// Numbers in a cache line.
pub(super) const LINE_NUMBERS: usize = 16;

/// Pixels in the largest tile of any level.
pub(super) const TILE_PIXELS_MAX: usize = 14;

/// The tiles of a level.
pub(super) struct Tiles {
    /// Numbers in a vector.
    pub lanes: usize,
    /// Of one row: by vectors less one, then by pixels less one.
    pub rows: [&'static [TileFn]; 2],
    /// Of two rows and two vectors: by pixels of one of them less one. Empty where there are not enough registers.
    pub pairs: &'static [TileFn],
}

impl Tiles {
    /// Those of a level that the CPU has.
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
    // SAFETY: the caller upholds the contract of `Tile` for `R` rows of `P` pixels and `N` vectors of filters, and the CPU has `V`'s level.
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

/// Asks for the line of an address, which may be any: nothing is read.
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
