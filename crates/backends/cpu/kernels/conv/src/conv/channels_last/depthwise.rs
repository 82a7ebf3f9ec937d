//! Depthwise convolutions of channels-last images. The lanes of vectors are channels, and the sums
//! run over the taps alone.

use std::ops::Range;

use super::super::ConvShape;
use super::super::correlation::PRODUCTS_FOR_TEAM_MIN;
use super::super::epilogue::Activate;
use super::super::real::StoredElement;
use super::super::vector::{LaneMask, Plain, Vector};
use super::super::workspace::SharedSlice;
use super::{Pixels, inside};
use crate::simd::Simd;
use crate::team::Team;

/// Numbers of a band: its outputs stay in the second-level cache until they are activated.
const BAND_NUMBERS_MAX: usize = 32 << 10;

/// Reorders weights by tap, then by channel.
pub(super) fn pack(shape: &ConvShape, weights: &[f32], packed: &mut [f32]) {
    for (channel, taps) in weights.chunks_exact(shape.taps()).enumerate() {
        for (tap, weight) in taps.iter().enumerate() {
            packed[tap * shape.channels + channel] = weight.weight();
        }
    }
}

/// Runs the convolution. `simd` must be a level that the CPU has.
pub(super) fn run(
    simd: Simd,
    team: &Team,
    shape: &ConvShape,
    input: Pixels<'_>,
    weights: &[f32],
    bias: &[f32],
    activate: Option<Activate<'_, f32>>,
    output: &mut [f32],
) {
    let [rows, columns] = shape.output();
    let kernel: RowFn = match simd {
        #[cfg(target_arch = "x86_64")]
        Simd::Avx512 => row_avx512,
        #[cfg(target_arch = "x86_64")]
        Simd::Avx2 => row_avx2,
        _ => row_plain,
    };
    let row_len = columns * shape.channels;
    let output = SharedSlice::new(output);
    let grain = PRODUCTS_FOR_TEAM_MIN / 4 / (row_len * shape.taps()).max(1) + 1;
    let rows_at_once = (BAND_NUMBERS_MAX / row_len).max(1);
    team.run_ranges(shape.batch * rows, grain, &|lines| {
        for start in lines.clone().step_by(rows_at_once) {
            let end = (start + rows_at_once).min(lines.end);
            for line in start..end {
                let row = OutputRow { shape, input, weights, bias, line };
                // SAFETY: every row of the output is written by one task.
                let sums = unsafe { output.part(line * row_len, row_len) };
                // SAFETY: the CPU has the level; the row checks its reads.
                unsafe { kernel(&row, sums) };
            }
            if let Some(activate) = activate {
                // SAFETY: these rows are written by this task, and the borrow of the previous row
                // has ended.
                activate(start * row_len, unsafe { output.part(start * row_len, (end - start) * row_len) });
            }
        }
    });
}

/// One row of the output.
struct OutputRow<'a> {
    shape: &'a ConvShape,
    input: Pixels<'a>,
    weights: &'a [f32],
    bias: &'a [f32],
    line: usize,
}

type RowFn = unsafe fn(&OutputRow<'_>, &mut [f32]);

/// Taps of some neighbouring pixels: the rows and columns of the kernel that lie inside the image
/// for all of these pixels.
struct Window {
    rows: Range<usize>,
    columns: Range<usize>,
    /// Index of the number that the tap at (0, 0) reads for the first pixel, in the first channel.
    /// May be outside of the image.
    first: usize,
}

#[inline(always)]
unsafe fn row_body<V: Vector<Scalar = f32>>(row: &OutputRow<'_>, sums: &mut [f32]) {
    let shape = row.shape;
    let ([rows, columns], channels) = (shape.output(), shape.channels);
    let [image_step, channel_step, row_step, pixel_step] = row.input.strides;
    let (image, y) = (row.line / rows, row.line % rows);
    let tap_rows = inside(y * shape.stride[0], shape.padding[0], shape.kernel[0], shape.dilation[0], shape.input[0]);
    // Indexes wrap, because those of taps outside of the image may be of any size.
    let above = (y * shape.stride[0]).wrapping_sub(shape.padding[0]).wrapping_mul(row_step);
    let first = (image * image_step).wrapping_add(above);
    let window = |x: usize| {
        let at = x * shape.stride[1];
        let columns = inside(at, shape.padding[1], shape.kernel[1], shape.dilation[1], shape.input[1]);
        let first = first.wrapping_add(at.wrapping_sub(shape.padding[1]).wrapping_mul(pixel_step));
        Window { rows: tap_rows.clone(), columns, first }
    };
    // The pixels for which all columns of taps lie inside the image.
    let reach = (shape.kernel[1] - 1) * shape.dilation[1];
    let end = (shape.input[1] + shape.padding[1]).saturating_sub(reach).div_ceil(shape.stride[1]).min(columns);
    let start = shape.padding[1].div_ceil(shape.stride[1]).min(end);
    let mut x = 0;
    while x < columns {
        let left = if (start..end).contains(&x) { end - x } else { 1 };
        let pixels = [8, 4, 2].into_iter().find(|pixels| *pixels <= left).unwrap_or(1);
        let own = window(x);
        let to = &mut sums[x * channels..][..pixels * channels];
        if channel_step != 1 {
            plain(row, &own, pixels, to);
        } else {
            // SAFETY: the caller guarantees the level. All taps of the window lie inside the image,
            // and `to` has all channels of all pixels.
            unsafe {
                match pixels {
                    8 => some::<V, 8, 2>(row, &own, to),
                    4 => some::<V, 4, 2>(row, &own, to),
                    2 => some::<V, 2, 4>(row, &own, to),
                    _ => some::<V, 1, 8>(row, &own, to),
                }
            }
        }
        x += pixels;
    }
}

/// Computes all channels of `P` neighbouring pixels with the same window, `N` vectors at a time:
/// enough independent sums to hide the latency of an addition.
#[inline(always)]
unsafe fn some<V: Vector<Scalar = f32>, const P: usize, const N: usize>(
    row: &OutputRow<'_>,
    window: &Window,
    sums: &mut [f32],
) {
    let (channels, mut channel) = (row.shape.channels, 0);
    // SAFETY: passed on to the caller.
    unsafe {
        while channel + N * V::LANES <= channels {
            tile::<V, P, N>(row, window, channel, V::LANES, sums);
            channel += N * V::LANES;
        }
        while channel < channels {
            let lanes = (channels - channel).min(V::LANES);
            tile::<V, P, 1>(row, window, channel, lanes, sums);
            channel += lanes;
        }
    }
}

/// Computes a window whose channels are not contiguous.
fn plain(row: &OutputRow<'_>, window: &Window, pixels: usize, sums: &mut [f32]) {
    let (shape, [_, channel_step, row_step, pixel_step]) = (row.shape, row.input.strides);
    for (pixel, channel) in (0..pixels).flat_map(|pixel| (0..shape.channels).map(move |channel| (pixel, channel))) {
        let mut sum = row.bias[channel];
        for (tap_row, tap_column) in window.rows.clone().flat_map(|row| window.columns.clone().map(move |x| (row, x))) {
            let down = (tap_row * shape.dilation[0]).wrapping_mul(row_step);
            let right = (tap_column * shape.dilation[1] + pixel * shape.stride[1]).wrapping_mul(pixel_step);
            let place = window.first.wrapping_add(down).wrapping_add(right).wrapping_add(channel * channel_step);
            let value = row.input.numbers[place];
            sum += value * row.weights[(tap_row * shape.kernel[1] + tap_column) * shape.channels + channel];
        }
        sums[pixel * shape.channels + channel] = sum;
    }
}

/// Computes `N` vectors of channels of `P` neighbouring pixels with the same window. If `N` is 1,
/// only the first `lanes` lanes are used.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // Loops over constants, unrolled into registers; every array is indexed alike.
unsafe fn tile<V: Vector<Scalar = f32>, const P: usize, const N: usize>(
    row: &OutputRow<'_>,
    window: &Window,
    channel: usize,
    lanes: usize,
    sums: &mut [f32],
) {
    let (shape, [_, _, row_step, pixel_step]) = (row.shape, row.input.strides);
    let (all, mask) = (lanes == V::LANES, LaneMask::all(lanes));
    let step = shape.stride[1].wrapping_mul(pixel_step);
    let image = row.input.numbers.as_ptr().wrapping_add(window.first).wrapping_add(channel);
    let weights = row.weights[..shape.taps() * shape.channels].as_ptr().wrapping_add(channel);
    let bias = row.bias[channel..channel + (N - 1) * V::LANES + lanes].as_ptr();
    let sums = sums[channel..(P - 1) * shape.channels + channel + (N - 1) * V::LANES + lanes].as_mut_ptr();
    // SAFETY: the caller guarantees the level, and that all taps of these pixels lie inside the
    // image. The slices guarantee that weights, bias and sums have the channels of all taps and
    // pixels.
    unsafe {
        let load = |from: *const f32| if all { V::load(from) } else { V::load_inside(from, mask) };
        let mut own = [[V::splat(0.0); N]; P];
        for vector in 0..N {
            let bias = load(bias.add(vector * V::LANES));
            for pixel in 0..P {
                own[pixel][vector] = bias;
            }
        }
        for tap_row in window.rows.clone() {
            let line = image.wrapping_add((tap_row * shape.dilation[0]).wrapping_mul(row_step));
            for tap_column in window.columns.clone() {
                let pixels = line.wrapping_add((tap_column * shape.dilation[1]).wrapping_mul(pixel_step));
                let weights = weights.wrapping_add((tap_row * shape.kernel[1] + tap_column) * shape.channels);
                for vector in 0..N {
                    let weight = load(weights.wrapping_add(vector * V::LANES));
                    for pixel in 0..P {
                        let value = load(pixels.wrapping_add(pixel.wrapping_mul(step) + vector * V::LANES));
                        own[pixel][vector] = value.mul_add(weight, own[pixel][vector]);
                    }
                }
            }
        }
        for pixel in 0..P {
            for vector in 0..N {
                let to = sums.add(pixel * shape.channels + vector * V::LANES);
                if all { own[pixel][vector].store(to) } else { own[pixel][vector].compress(to, mask) }
            }
        }
    }
}

unsafe fn row_plain(row: &OutputRow<'_>, sums: &mut [f32]) {
    // SAFETY: every CPU has this level.
    unsafe { row_body::<Plain<f32, 4>>(row, sums) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn row_avx2(row: &OutputRow<'_>, sums: &mut [f32]) {
    // SAFETY: the CPU has the level, as the caller guarantees.
    unsafe { row_body::<std::arch::x86_64::__m256>(row, sums) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn row_avx512(row: &OutputRow<'_>, sums: &mut [f32]) {
    // SAFETY: the CPU has the level, as the caller guarantees.
    unsafe { row_body::<std::arch::x86_64::__m512>(row, sums) }
}
