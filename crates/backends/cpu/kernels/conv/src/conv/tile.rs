//! The inner loops: one tile of outputs in registers.
//!
//! A forward tile is `filters × vectors of pixels`; it sums over channels and taps. Its source is a
//! panel in which every tap is a constant offset (see `panel`), so a tap costs a few unaligned
//! loads and no copying. A gradient tile is `filters × taps`; it sums over pixels, in vector lanes.

use super::filter_tile::{self, FilterKernel};
use super::plane_tile::{self, PlaneKernel};
use super::vector::{LaneMask, Plain, Vector};
use super::winograd_tile::{self, WinogradKernels};
use crate::simd::Simd;

/// The lanes of one vector of pixels that are pixels of the output, and their position in the
/// output. They are contiguous from `start`, because a row of the output follows the row before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LaneRun {
    pub mask: LaneMask,
    pub start: usize,
}

/// One forward tile. The called kernel fixes the numbers of filters and vectors.
pub(super) struct Tile<'a, T> {
    /// The panel at the tile's first pixel. Valid for every offset plus the tile's lanes.
    pub panel: *const T,
    /// For each channel and tap, the distance of its pixels from `panel`.
    pub offsets: &'a [usize],
    /// For each offset, the contiguous weights of the tile's filters.
    pub weights: *const T,
    /// One start value for each filter. Null: the sums continue from the contents of `output`.
    pub bias: *const T,
    /// The first filter's output; the outputs of neighbouring filters are `output_stride` apart.
    pub output: *mut T,
    pub output_stride: usize,
    /// One lane run for each vector.
    pub lanes: &'a [LaneRun],
}

/// One gradient tile: `sums[filter][tap] += gradient[filter][pixel] * panel[pixel + offset[tap]]`.
/// Each sum is a vector of partial sums, one for each lane.
pub(super) struct GradientTile<'a, T> {
    /// The output gradient of the first filter, with the panel's pitch; the gradients of
    /// neighbouring filters are `gradient_stride` apart.
    pub gradient: *const T,
    pub gradient_stride: usize,
    pub panel: *const T,
    /// One offset for each tap of the tile.
    pub offsets: &'a [usize],
    /// The valid lanes of each vector of pixels.
    pub lanes: &'a [LaneRun],
    /// The vectors of the first filter's sums; the sums of neighbouring filters are `sums_stride`
    /// numbers apart.
    pub sums: *mut T,
    pub sums_stride: usize,
}

pub(super) type TileFn<T> = unsafe fn(&Tile<'_, T>);
pub(super) type GradientTileFn<T> = unsafe fn(&GradientTile<'_, T>);

/// The number types in which kernels compute: f32 and f64.
pub trait Real:
    RealKernels + bytemuck::Pod + Default + Send + Sync + PartialOrd + std::ops::AddAssign + Into<f64>
{
    /// The nearest number of this type.
    fn rounded(number: f64) -> Self;
}

impl Real for f32 {
    fn rounded(number: f64) -> f32 {
        number as f32
    }
}
impl Real for f64 {
    fn rounded(number: f64) -> f64 {
        number
    }
}

/// The kernels of a number type, chosen by the level of the CPU. Sealed: its types cannot be named
/// outside of this module.
pub trait RealKernels: Sized {
    /// Numbers in one vector.
    #[doc(hidden)]
    fn lanes(simd: Simd) -> usize;
    #[doc(hidden)]
    fn tile(simd: Simd, filters: usize, vectors: usize) -> Kernel<Self>;
    #[doc(hidden)]
    fn gradient_tile(simd: Simd, filters: usize, taps: usize) -> GradientKernel<Self>;
    /// The kernel whose lanes are filters, for a number of pixels and rows, if the level has one.
    #[doc(hidden)]
    fn filter_tile(simd: Simd, pixels: usize, rows: usize) -> Option<FilterKernel<Self>>;
    /// The kernel of depthwise convolutions with `taps`×`taps` taps and this stride, if the level
    /// has one.
    #[doc(hidden)]
    fn plane(simd: Simd, taps: usize, stride: usize) -> Option<PlaneKernel<Self>>;
    /// The transforms of `winograd`, if the level has them.
    #[doc(hidden)]
    fn winograd(simd: Simd) -> Option<WinogradKernels<Self>>;
}

/// A forward kernel that this CPU can run.
pub struct Kernel<T>(pub(super) TileFn<T>);
/// A gradient kernel that this CPU can run.
pub struct GradientKernel<T>(pub(super) GradientTileFn<T>);

impl<T> Clone for Kernel<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Kernel<T> {}

/// Sizes of the forward tiles: blocks of filters, largest first. Smaller vectors mean fewer
/// registers and smaller tiles.
pub(super) fn filter_blocks(simd: Simd) -> &'static [usize] {
    if simd == Simd::Avx512 { &[8, 4, 2, 1] } else { &[4, 2, 1] }
}

/// Vectors of pixels in a forward tile of blocks of several filters.
pub(super) const TILE_VECTORS: usize = 3;
/// Vectors of pixels in a forward tile of a single filter (depthwise): enough independent sums to
/// hide the latency of an addition.
pub(super) const SINGLE_FILTER_VECTORS: usize = 8;

/// Filters of the gradient tiles, largest first.
pub(super) const GRADIENT_FILTERS: [usize; 2] = [4, 1];

/// Taps of the gradient tiles, largest first.
pub(super) fn gradient_taps(simd: Simd) -> &'static [usize] {
    if simd == Simd::Avx512 { &[6, 3, 1] } else { &[3, 1] }
}

#[inline(always)]
#[allow(clippy::needless_range_loop)] // Loops over constants, unrolled into registers; every array is indexed alike.
unsafe fn tile_body<V: Vector, const F: usize, const P: usize>(tile: &Tile<'_, V::Scalar>) {
    // SAFETY: the caller upholds the contract of `Tile` for `F` filters and `P` vectors, and the
    // CPU has `V`'s level.
    unsafe {
        let runs = tile.lanes.as_ptr().cast::<[LaneRun; P]>().read();
        // One branch for the whole tile: whether any lane is masked varies from tile to tile and is
        // hard to predict.
        let whole = runs.iter().all(|run| run.mask == LaneMask::all(V::LANES));
        let mut sums = [[V::splat(std::mem::zeroed()); P]; F];
        if !tile.bias.is_null() {
            for filter in 0..F {
                sums[filter] = [V::splat(*tile.bias.add(filter)); P];
            }
        } else if whole {
            for filter in 0..F {
                for vector in 0..P {
                    sums[filter][vector] = V::load(tile.output.add(filter * tile.output_stride + runs[vector].start));
                }
            }
        } else {
            for filter in 0..F {
                for vector in 0..P {
                    let run = runs[vector];
                    sums[filter][vector] =
                        V::expand(tile.output.add(filter * tile.output_stride + run.start), run.mask);
                }
            }
        }
        let mut weights = tile.weights;
        for &offset in tile.offsets {
            let pixels = tile.panel.add(offset);
            let mut source = [V::splat(std::mem::zeroed()); P];
            for vector in 0..P {
                source[vector] = V::load(pixels.add(vector * V::LANES));
            }
            for filter in 0..F {
                let weight = V::splat(*weights.add(filter));
                for vector in 0..P {
                    sums[filter][vector] = weight.mul_add(source[vector], sums[filter][vector]);
                }
            }
            weights = weights.add(F);
        }
        for filter in 0..F {
            for vector in 0..P {
                let run = runs[vector];
                let output = tile.output.add(filter * tile.output_stride + run.start);
                if whole {
                    sums[filter][vector].store(output);
                } else {
                    sums[filter][vector].compress(output, run.mask);
                }
            }
        }
    }
}

#[inline(always)]
#[allow(clippy::needless_range_loop)] // Loops over constants, unrolled into registers; every array is indexed alike.
unsafe fn gradient_body<V: Vector, const F: usize, const N: usize>(tile: &GradientTile<'_, V::Scalar>) {
    // SAFETY: the caller upholds the contract of `GradientTile` for `F` filters and `N` taps, and
    // the CPU has `V`'s level.
    unsafe {
        let offsets = tile.offsets.as_ptr().cast::<[usize; N]>().read();
        let place = |filter: usize, tap: usize| tile.sums.add(filter * tile.sums_stride + tap * V::LANES);
        let mut sums = [[V::splat(std::mem::zeroed()); N]; F];
        for filter in 0..F {
            for tap in 0..N {
                sums[filter][tap] = V::load(place(filter, tap));
            }
        }
        for (step, run) in tile.lanes.iter().enumerate() {
            let pixel = step * V::LANES;
            let mut source = [V::splat(std::mem::zeroed()); N];
            for tap in 0..N {
                source[tap] = V::load_where(tile.panel.add(offsets[tap] + pixel), run.mask);
            }
            for filter in 0..F {
                let gradient = V::load(tile.gradient.add(filter * tile.gradient_stride + pixel));
                for tap in 0..N {
                    sums[filter][tap] = gradient.mul_add(source[tap], sums[filter][tap]);
                }
            }
        }
        for filter in 0..F {
            for tap in 0..N {
                sums[filter][tap].store(place(filter, tap));
            }
        }
    }
}

/// Defines the functions that pick a kernel by its constants. Other sizes never occur: callers take
/// them from `filter_blocks`, `GRADIENT_FILTERS` and `gradient_taps`.
macro_rules! kernel_table {
    ($pick_tile:ident, $pick_gradient:ident, $tile:ident, $gradient:ident,
     [$(($filters:literal, $vectors:literal)),*], [$(($gradient_filters:literal, $taps:literal)),*]) => {
        fn $pick_tile<V: Vector>(filters: usize, vectors: usize) -> TileFn<V::Scalar> {
            match (filters, vectors) {
                $(($filters, $vectors) => $tile::<V, $filters, $vectors>,)*
                _ => unreachable!("no kernel of {filters} filters and {vectors} vectors"),
            }
        }

        fn $pick_gradient<V: Vector>(filters: usize, taps: usize) -> GradientTileFn<V::Scalar> {
            match (filters, taps) {
                $(($gradient_filters, $taps) => $gradient::<V, $gradient_filters, $taps>,)*
                _ => unreachable!("no gradient kernel of {filters} filters and {taps} taps"),
            }
        }
    };
}

macro_rules! kernel_entries {
    ($tile:ident, $gradient:ident $(, $feature:literal)?) => {
        $(#[target_feature(enable = $feature)])?
        unsafe fn $tile<V: Vector, const F: usize, const P: usize>(tile: &Tile<'_, V::Scalar>) {
            // SAFETY: passed on to the caller, who also guarantees the CPU's level.
            unsafe { tile_body::<V, F, P>(tile) }
        }

        $(#[target_feature(enable = $feature)])?
        unsafe fn $gradient<V: Vector, const F: usize, const N: usize>(tile: &GradientTile<'_, V::Scalar>) {
            // SAFETY: passed on to the caller, who also guarantees the CPU's level.
            unsafe { gradient_body::<V, F, N>(tile) }
        }
    };
}

kernel_entries!(tile_plain, gradient_plain);
kernel_table!(
    pick_plain,
    pick_gradient_plain,
    tile_plain,
    gradient_plain,
    [(4, 3), (4, 2), (4, 1), (2, 3), (2, 2), (2, 1), (1, 8), (1, 3), (1, 2), (1, 1)],
    [(4, 3), (4, 1), (1, 3), (1, 1)]
);

#[cfg(target_arch = "x86_64")]
kernel_entries!(tile_avx2, gradient_avx2, "avx2,fma");
#[cfg(target_arch = "x86_64")]
kernel_table!(
    pick_avx2,
    pick_gradient_avx2,
    tile_avx2,
    gradient_avx2,
    [(4, 3), (4, 2), (4, 1), (2, 3), (2, 2), (2, 1), (1, 8), (1, 3), (1, 2), (1, 1)],
    [(4, 3), (4, 1), (1, 3), (1, 1)]
);

#[cfg(target_arch = "x86_64")]
kernel_entries!(tile_avx512, gradient_avx512, "avx512f");
#[cfg(target_arch = "x86_64")]
kernel_table!(
    pick_avx512,
    pick_gradient_avx512,
    tile_avx512,
    gradient_avx512,
    [(8, 3), (8, 2), (8, 1), (4, 3), (4, 2), (4, 1), (2, 3), (2, 2), (2, 1), (1, 8), (1, 3), (1, 2), (1, 1)],
    [(4, 6), (4, 3), (4, 1), (1, 6), (1, 3), (1, 1)]
);

macro_rules! real {
    ($scalar:ty, $plain_lanes:literal, $avx2:ident, $avx512:ident) => {
        impl RealKernels for $scalar {
            fn lanes(simd: Simd) -> usize {
                match simd {
                    #[cfg(target_arch = "x86_64")]
                    Simd::Avx512 => <std::arch::x86_64::$avx512 as Vector>::LANES,
                    #[cfg(target_arch = "x86_64")]
                    Simd::Avx2 => <std::arch::x86_64::$avx2 as Vector>::LANES,
                    _ => $plain_lanes,
                }
            }

            fn tile(simd: Simd, filters: usize, vectors: usize) -> Kernel<$scalar> {
                Kernel(match simd {
                    #[cfg(target_arch = "x86_64")]
                    Simd::Avx512 => pick_avx512::<std::arch::x86_64::$avx512>(filters, vectors),
                    #[cfg(target_arch = "x86_64")]
                    Simd::Avx2 => pick_avx2::<std::arch::x86_64::$avx2>(filters, vectors),
                    _ => pick_plain::<Plain<$scalar, $plain_lanes>>(filters, vectors),
                })
            }

            fn gradient_tile(simd: Simd, filters: usize, taps: usize) -> GradientKernel<$scalar> {
                GradientKernel(match simd {
                    #[cfg(target_arch = "x86_64")]
                    Simd::Avx512 => pick_gradient_avx512::<std::arch::x86_64::$avx512>(filters, taps),
                    #[cfg(target_arch = "x86_64")]
                    Simd::Avx2 => pick_gradient_avx2::<std::arch::x86_64::$avx2>(filters, taps),
                    _ => pick_gradient_plain::<Plain<$scalar, $plain_lanes>>(filters, taps),
                })
            }

            fn filter_tile(simd: Simd, pixels: usize, rows: usize) -> Option<FilterKernel<$scalar>> {
                match simd {
                    #[cfg(target_arch = "x86_64")]
                    Simd::Avx512 => filter_tile::pick_avx512::<std::arch::x86_64::$avx512>(pixels, rows),
                    #[cfg(target_arch = "x86_64")]
                    Simd::Avx2 => filter_tile::pick_avx2::<std::arch::x86_64::$avx2>(pixels, rows),
                    _ => None,
                }
                .map(FilterKernel)
            }

            fn plane(simd: Simd, taps: usize, stride: usize) -> Option<PlaneKernel<$scalar>> {
                match simd {
                    #[cfg(target_arch = "x86_64")]
                    Simd::Avx512 => plane_tile::pick_avx512::<std::arch::x86_64::$avx512>(taps, stride),
                    #[cfg(target_arch = "x86_64")]
                    Simd::Avx2 => plane_tile::pick_avx2::<std::arch::x86_64::$avx2>(taps, stride),
                    _ => None,
                }
                .map(PlaneKernel)
            }

            fn winograd(simd: Simd) -> Option<WinogradKernels<$scalar>> {
                match simd {
                    #[cfg(target_arch = "x86_64")]
                    Simd::Avx512 => Some(winograd_tile::pick_avx512::<std::arch::x86_64::$avx512>()),
                    #[cfg(target_arch = "x86_64")]
                    Simd::Avx2 => Some(winograd_tile::pick_avx2::<std::arch::x86_64::$avx2>()),
                    _ => None,
                }
            }
        }
    };
}

real!(f32, 4, __m256, __m512);
real!(f64, 2, __m256d, __m512d);
