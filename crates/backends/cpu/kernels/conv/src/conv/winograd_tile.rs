//! The inner loops of `winograd` apart from its products: transforms of inputs and outputs, with
//! tiles in the lanes of vectors.
//!
//! One tile is a square of 4×4 outputs, which reads 6×6 inputs. The interpolation points are 0, 1,
//! -1, 2, -2 and infinity.

use super::tile::Real;
use super::vector::Vector;

/// Outputs, and inputs, along one side of a tile.
pub(super) const TILE_OUT: usize = 4;
pub(super) const TILE_IN: usize = 6;
/// Products of one tile for each channel and filter.
pub(super) const POINTS: usize = TILE_IN * TILE_IN;

/// Transforms that this CPU can run.
pub struct WinogradKernels<T> {
    pub(super) rows: RowsFn<T>,
    pub(super) columns: ColumnsFn<T>,
    pub(super) outputs: OutputsFn<T>,
}

/// Transforms one zero-padded row of inputs, from the first tile's first input on, along the row:
/// number `j` of tile `t` goes to `to + j * stride + t`. Whole vectors of `tiles` are written.
pub(super) type RowsFn<T> = unsafe fn(line: *const T, tiles: usize, to: *mut T, stride: usize);
/// Transforms the results of `rows` along the columns. Row `i % 4` of number `j` of tile `t` is at
/// `from + ((i % 4) * 6 + j) * stride + t`; the fifth and sixth rows are `next` further on. Point
/// `p` goes to `to + p * to_stride + t`.
pub(super) type ColumnsFn<T> =
    unsafe fn(from: *const T, stride: usize, next: usize, tiles: usize, to: *mut T, to_stride: usize);
/// Transforms the sums of one filter, point `p` of tile `t` at `from + p * stride + t`, to its
/// outputs plus `bias`: row `i` of tile `t` goes to `to + i * 4 * stride + 4 * t`.
pub(super) type OutputsFn<T> = unsafe fn(from: *const T, stride: usize, tiles: usize, bias: T, to: *mut T);

/// The transform of 3×3 weights, row by row. Small factors are applied first, so that nothing
/// overflows unless the products do.
pub(super) fn points<T: Real>(taps: [T; 9]) -> [T; POINTS] {
    let taps = taps.map(Into::<f64>::into);
    let line = |[a, b, c]: [f64; 3]| {
        let (near, far) = ((a + c) / 6.0, a / 24.0 + c / 6.0);
        [a / 4.0, -near - b / 6.0, b / 6.0 - near, far + b / 12.0, far - b / 12.0, c]
    };
    let columns: [[f64; TILE_IN]; 3] =
        std::array::from_fn(|column| line([taps[column], taps[column + 3], taps[column + 6]]));
    let rows: [[f64; TILE_IN]; TILE_IN] = std::array::from_fn(|row| line(columns.map(|column| column[row])));
    std::array::from_fn(|point| T::rounded(rows[point / TILE_IN][point % TILE_IN]))
}

#[inline(always)]
unsafe fn number<V: Vector>(value: i8) -> V {
    // SAFETY: the CPU has `V`'s level.
    unsafe { V::splat(V::Scalar::from(value)) }
}

/// The transform of six inputs.
#[inline(always)]
pub(super) unsafe fn forward<V: Vector>(d: [V; TILE_IN]) -> [V; TILE_IN] {
    // SAFETY: the CPU has `V`'s level.
    unsafe {
        let [one, two, four] = [number::<V>(1), number(2), number(4)];
        let [minus_one, minus_two, minus_four, minus_five] = [number::<V>(-1), number(-2), number(-4), number(-5)];
        let (even, odd) = (minus_four.mul_add(d[2], d[4]), minus_four.mul_add(d[1], d[3]));
        let (apart, across) = (minus_one.mul_add(d[2], d[4]), minus_one.mul_add(d[1], d[3]));
        [
            four.mul_add(d[0], minus_five.mul_add(d[2], d[4])),
            one.mul_add(odd, even),
            minus_one.mul_add(odd, even),
            two.mul_add(across, apart),
            minus_two.mul_add(across, apart),
            four.mul_add(d[1], minus_five.mul_add(d[3], d[5])),
        ]
    }
}

/// The four outputs from six sums.
#[inline(always)]
pub(super) unsafe fn inverse<V: Vector>(m: [V; TILE_IN]) -> [V; TILE_OUT] {
    // SAFETY: the CPU has `V`'s level.
    unsafe {
        let [one, minus_one] = [number::<V>(1), number(-1)];
        let (near, near_apart) = (one.mul_add(m[1], m[2]), minus_one.mul_add(m[2], m[1]));
        let (far, far_apart) = (one.mul_add(m[3], m[4]), minus_one.mul_add(m[4], m[3]));
        [
            one.mul_add(m[0], one.mul_add(near, far)),
            number::<V>(2).mul_add(far_apart, near_apart),
            number::<V>(4).mul_add(far, near),
            number::<V>(8).mul_add(far_apart, one.mul_add(near_apart, m[5])),
        ]
    }
}

/// Every fourth number, starting at `from`.
#[inline(always)]
unsafe fn fourth<V: Vector>(from: *const V::Scalar) -> V {
    // SAFETY: the caller guarantees four vectors of readable numbers, and `V`'s level.
    unsafe {
        let low = V::evens(V::load(from), V::load(from.add(V::LANES)));
        V::evens(low, V::evens(V::load(from.add(2 * V::LANES)), V::load(from.add(3 * V::LANES))))
    }
}

#[inline(always)]
#[allow(clippy::needless_range_loop)] // Loops over constants, unrolled into registers; every array is indexed alike.
unsafe fn rows_body<V: Vector>(line: *const V::Scalar, tiles: usize, to: *mut V::Scalar, stride: usize) {
    for tile in (0..tiles).step_by(V::LANES) {
        // SAFETY: passed on to the caller: the line has the inputs of whole vectors of tiles.
        unsafe {
            let mut inputs = [number::<V>(0); TILE_IN];
            for index in 0..TILE_IN {
                inputs[index] = fourth::<V>(line.add(TILE_OUT * tile + index));
            }
            let transformed = forward(inputs);
            for index in 0..TILE_IN {
                transformed[index].store(to.add(index * stride + tile));
            }
        }
    }
}

#[inline(always)]
#[allow(clippy::needless_range_loop)] // Loops over constants, unrolled into registers; every array is indexed alike.
unsafe fn columns_body<V: Vector>(
    from: *const V::Scalar,
    stride: usize,
    next: usize,
    tiles: usize,
    to: *mut V::Scalar,
    to_stride: usize,
) {
    for tile in (0..tiles).step_by(V::LANES) {
        for column in 0..TILE_IN {
            // SAFETY: passed on to the caller: `from` has whole vectors of tiles, and `to` has room
            // for them.
            unsafe {
                let mut rows = [number::<V>(0); TILE_IN];
                for row in 0..TILE_IN {
                    let place = (row % TILE_OUT * TILE_IN + column) * stride + row / TILE_OUT * next;
                    rows[row] = V::load(from.add(place + tile));
                }
                let transformed = forward(rows);
                for index in 0..TILE_IN {
                    transformed[index].store(to.add((index * TILE_IN + column) * to_stride + tile));
                }
            }
        }
    }
}

#[inline(always)]
#[allow(clippy::needless_range_loop)] // Loops over constants, unrolled into registers; every array is indexed alike.
unsafe fn outputs_body<V: Vector>(
    from: *const V::Scalar,
    stride: usize,
    tiles: usize,
    bias: V::Scalar,
    to: *mut V::Scalar,
) {
    for tile in (0..tiles).step_by(V::LANES) {
        // SAFETY: passed on to the caller: `from` has whole vectors of tiles, and `to` has room for
        // them.
        unsafe {
            let (bias, one) = (V::splat(bias), number::<V>(1));
            let mut halves = [[bias; TILE_IN]; TILE_OUT];
            for column in 0..TILE_IN {
                let mut points = [bias; TILE_IN];
                for row in 0..TILE_IN {
                    points[row] = V::load(from.add((row * TILE_IN + column) * stride + tile));
                }
                let rows = inverse(points);
                for row in 0..TILE_OUT {
                    halves[row][column] = rows[row];
                }
            }
            for row in 0..TILE_OUT {
                let mut sums = inverse(halves[row]);
                for index in 0..TILE_OUT {
                    sums[index] = one.mul_add(sums[index], bias);
                }
                let ((even, even_high), (odd, odd_high)) = (V::zip(sums[0], sums[2]), V::zip(sums[1], sums[3]));
                let ((first, second), (third, fourth)) = (V::zip(even, odd), V::zip(even_high, odd_high));
                let outputs = [first, second, third, fourth];
                for index in 0..TILE_OUT {
                    outputs[index].store(to.add(TILE_OUT * (row * stride + tile) + index * V::LANES));
                }
            }
        }
    }
}

macro_rules! winograd_kernels {
    ($pick:ident, $rows:ident, $columns:ident, $outputs:ident, $feature:literal) => {
        #[target_feature(enable = $feature)]
        unsafe fn $rows<V: Vector>(line: *const V::Scalar, tiles: usize, to: *mut V::Scalar, stride: usize) {
            // SAFETY: passed on to the caller, who also guarantees the CPU's level.
            unsafe { rows_body::<V>(line, tiles, to, stride) }
        }

        #[target_feature(enable = $feature)]
        unsafe fn $columns<V: Vector>(
            from: *const V::Scalar,
            stride: usize,
            next: usize,
            tiles: usize,
            to: *mut V::Scalar,
            to_stride: usize,
        ) {
            // SAFETY: passed on to the caller, who also guarantees the CPU's level.
            unsafe { columns_body::<V>(from, stride, next, tiles, to, to_stride) }
        }

        #[target_feature(enable = $feature)]
        unsafe fn $outputs<V: Vector>(
            from: *const V::Scalar,
            stride: usize,
            tiles: usize,
            bias: V::Scalar,
            to: *mut V::Scalar,
        ) {
            // SAFETY: passed on to the caller, who also guarantees the CPU's level.
            unsafe { outputs_body::<V>(from, stride, tiles, bias, to) }
        }

        pub(super) fn $pick<V: Vector>() -> WinogradKernels<V::Scalar> {
            WinogradKernels { rows: $rows::<V>, columns: $columns::<V>, outputs: $outputs::<V> }
        }
    };
}

#[cfg(target_arch = "x86_64")]
winograd_kernels!(pick_avx2, rows_avx2, columns_avx2, outputs_avx2, "avx2,fma");
#[cfg(target_arch = "x86_64")]
winograd_kernels!(pick_avx512, rows_avx512, columns_avx512, outputs_avx512, "avx512f");
