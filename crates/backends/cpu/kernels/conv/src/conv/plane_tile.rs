//! The inner loop of `depthwise`: one plane of pixels and one small square of taps.

use super::vector::{LaneMask, Vector};

/// One plane of an image and one of the output.
pub struct Plane<T> {
    pub(super) source: *const T,
    /// Height and width of the source.
    pub(super) input: [usize; 2],
    pub(super) output: *mut T,
    /// Height and width of the output.
    pub(super) size: [usize; 2],
    /// Zeros above and to the left of the source.
    pub(super) padding: [usize; 2],
    /// The taps, row by row.
    pub(super) weights: *const T,
    pub(super) bias: T,
}

pub(super) type PlaneFn<T> = unsafe fn(&Plane<T>);

/// A kernel that this CPU can run.
pub struct PlaneKernel<T>(pub(super) PlaneFn<T>);

/// Computes a plane with `K`×`K` taps and stride `S`. A tile has `R` rows of output, enough
/// independent sums to hide the latency of an addition, and reads `N` rows of the source.
#[inline(always)]
unsafe fn plane_body<V: Vector, const K: usize, const S: usize, const R: usize, const N: usize>(
    plane: &Plane<V::Scalar>,
) {
    const { assert!(N == (R - 1) * S + K && (S == 1 || S == 2)) };
    let [rows, columns] = plane.size;
    for row in (0..rows).step_by(R) {
        for column in (0..columns).step_by(V::LANES) {
            // SAFETY: passed on to the caller; the tile begins inside the output.
            unsafe {
                let sums = tile_body::<V, K, S, R, N>(plane, row, column);
                let left = columns - column;
                for (index, sums) in sums.into_iter().take(rows - row).enumerate() {
                    let to = plane.output.add((row + index) * columns + column);
                    if left >= V::LANES { sums.store(to) } else { sums.compress(to, LaneMask::all(left)) }
                }
            }
        }
    }
}

/// The sums of one tile. Rows beyond the output's are computed from zeros or from the source's last
/// rows, and must be ignored.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // Loops over constants, unrolled into registers; every array is indexed alike.
unsafe fn tile_body<V: Vector, const K: usize, const S: usize, const R: usize, const N: usize>(
    plane: &Plane<V::Scalar>,
    row: usize,
    column: usize,
) -> [V; R] {
    let [height, width] = plane.input.map(|size| size as isize);
    let [top, left] = plane.padding.map(|zeros| zeros as isize);
    // SAFETY: the CPU has `V`'s level. Only lanes inside the source are read: the rows are compared
    // with its height, and the masks select columns below its width. There are `K`×`K` weights.
    unsafe {
        let mut sums = [V::splat(plane.bias); R];
        for tap in 0..K {
            let first = (column * S + tap) as isize - left;
            let masks = [inside::<V>(first, width), inside::<V>(first + V::LANES as isize, width)];
            let mut pixels = [V::splat(std::mem::zeroed()); N];
            for index in 0..N {
                let source_row = (row * S + index) as isize - top;
                if source_row >= 0 && source_row < height {
                    let from = plane.source.wrapping_offset(source_row * width + first);
                    let low = V::load_inside(from, masks[0]);
                    pixels[index] =
                        if S == 1 { low } else { V::evens(low, V::load_inside(from.wrapping_add(V::LANES), masks[1])) };
                }
            }
            for tap_row in 0..K {
                let weight = V::splat(*plane.weights.add(tap_row * K + tap));
                for index in 0..R {
                    sums[index] = weight.mul_add(pixels[index * S + tap_row], sums[index]);
                }
            }
        }
        sums
    }
}

/// The lanes, of a vector from column `first` on, that are columns of a row of this width.
#[inline(always)]
fn inside<V: Vector>(first: isize, width: isize) -> LaneMask {
    let lanes = V::LANES as isize;
    let (start, end) = ((-first).clamp(0, lanes), (width - first).clamp(0, lanes));
    let below = |lane: isize| (1_u32 << lane) - 1;
    LaneMask::new(below(end) & !below(start))
}

macro_rules! planes {
    ($pick:ident, $plane:ident, $feature:literal, $rows:literal, [$(($taps:literal, $stride:literal, $read:literal)),*]) => {
        #[target_feature(enable = $feature)]
        unsafe fn $plane<V: Vector, const K: usize, const S: usize, const R: usize, const N: usize>(plane: &Plane<V::Scalar>) {
            // SAFETY: passed on to the caller, who also guarantees the CPU's level.
            unsafe { plane_body::<V, K, S, R, N>(plane) }
        }

        pub(super) fn $pick<V: Vector>(taps: usize, stride: usize) -> Option<PlaneFn<V::Scalar>> {
            Some(match (taps, stride) {
                $(($taps, $stride) => $plane::<V, $taps, $stride, $rows, $read>,)*
                _ => return None,
            })
        }
    };
}

#[cfg(target_arch = "x86_64")]
planes!(pick_avx2, plane_avx2, "avx2,fma", 4, [(3, 1, 6), (3, 2, 9), (5, 1, 8), (5, 2, 11), (7, 1, 10), (7, 2, 13)]);
#[cfg(target_arch = "x86_64")]
planes!(
    pick_avx512,
    plane_avx512,
    "avx512f",
    8,
    [(3, 1, 10), (3, 2, 17), (5, 1, 12), (5, 2, 19), (7, 1, 14), (7, 2, 21)]
);
