//! Colour conversion between interleaved RGB, BGR, grey and YUV 4:2:0.
//!
//! The formulas are those of [`panoply_core::op::compute::ColorConvert`]. Pixels are processed in
//! planar chunks that stay in the first-level cache: interleaved colours are split with byte
//! shuffles, the arithmetic is plain `f32` loops, and the results are joined again.

mod interleave;
mod matrix;
mod yuv;

use crate::levels::simd_levels;
use crate::parts::DisjointSlice;
use crate::pixel::round_to_u8;
use crate::simd::Simd;
use crate::team::Team;
use interleave::swap_outer_u8;
pub(crate) use interleave::{deinterleave3, interleave3};
use matrix::Matrix;
use panoply_core::op::compute::{ColorFormat, ColorRange, ColorStandard};

/// Pixels processed at a time. Even, so that chroma never straddles two chunks.
const CHUNK: usize = 512;
/// Minimum number of pixels for which another thread is worth waking.
const TASK_PIXELS_MIN: usize = 16 * 1024;

/// Formats and sizes of one conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conversion {
    /// The input's format.
    pub from: ColorFormat,
    /// The output's format.
    pub to: ColorFormat,
    /// The standard that defines the weights of luma.
    pub standard: ColorStandard,
    /// The range of the YUV codes.
    pub range: ColorRange,
    /// Number of images.
    pub images: usize,
    /// Rows of an image.
    pub height: usize,
    /// Pixels of a row.
    pub width: usize,
}

impl Conversion {
    /// Number of pixels of all images.
    pub fn pixels(&self) -> usize {
        self.images * self.height * self.width
    }

    /// Number of elements that the pixels take in a format.
    pub fn elements(&self, format: ColorFormat) -> usize {
        match format {
            ColorFormat::Rgb | ColorFormat::Bgr => self.pixels() * 3,
            ColorFormat::Gray => self.pixels(),
            ColorFormat::I420 | ColorFormat::Nv12 => self.pixels() / 2 * 3,
        }
    }

    fn check(&self, input: usize, output: usize) {
        assert_eq!(input, self.elements(self.from), "the input must have the stated size");
        assert_eq!(output, self.elements(self.to), "the output must have the stated size");
    }
}

/// Converts images of bytes.
///
/// # Panics
/// When a slice does not have its stated size, or 4:2:0 is asked for with an odd height or width.
pub fn convert_u8(simd: Simd, team: &Team, conversion: &Conversion, input: &[u8], output: &mut [u8]) {
    use ColorFormat::{Bgr, Gray, Rgb};
    conversion.check(input.len(), output.len());
    let matrix = Matrix::new(conversion.standard, conversion.range);
    match (conversion.from, conversion.to) {
        (from, to) if from == to => per_pixel::<_, 1, 1>(team, input, output, &|from, to| to.copy_from_slice(from)),
        (Rgb, Bgr) | (Bgr, Rgb) => {
            per_pixel::<_, 3, 3>(team, input, output, &|from, to| swap_outer_u8(simd, from, to));
        }
        (from @ (Rgb | Bgr), Gray) => {
            let weights = matrix.gray_weights(from == Bgr);
            per_pixel::<_, 3, 1>(team, input, output, &|from, to| gray_u8(simd, weights, from, to));
        }
        (Gray, Rgb | Bgr) => per_pixel::<_, 1, 3>(team, input, output, &|from, to| repeat3(simd, from, to)),
        _ => yuv::convert(simd, team, conversion, &matrix, input, output),
    }
}

/// Converts images of floats of any scale. YUV is supported in bytes only.
///
/// # Panics
/// When a slice does not have its stated size, or a side is YUV.
pub fn convert_f32(simd: Simd, team: &Team, conversion: &Conversion, input: &[f32], output: &mut [f32]) {
    use ColorFormat::{Bgr, Gray, Rgb};
    conversion.check(input.len(), output.len());
    match (conversion.from, conversion.to) {
        (from, to) if from == to => per_pixel::<_, 1, 1>(team, input, output, &|from, to| to.copy_from_slice(from)),
        (Rgb, Bgr) | (Bgr, Rgb) => {
            per_pixel::<_, 3, 3>(team, input, output, &|from, to| swap_outer_f32(simd, from, to));
        }
        (from @ (Rgb | Bgr), Gray) => {
            let weights = Matrix::new(conversion.standard, conversion.range).gray_weights(from == Bgr);
            per_pixel::<_, 3, 1>(team, input, output, &|from, to| gray_f32(simd, weights, from, to));
        }
        (Gray, Rgb | Bgr) => per_pixel::<_, 1, 3>(team, input, output, &|from, to| repeat3(simd, from, to)),
        (from, to) => panic!("{from:?} to {to:?} is not defined for floats"),
    }
}

/// Splits the pixels among the team. `body` turns `FROM` elements of each pixel into `TO` elements.
fn per_pixel<T: Copy + Send + Sync, const FROM: usize, const TO: usize>(
    team: &Team,
    input: &[T],
    output: &mut [T],
    body: &(dyn Fn(&[T], &mut [T]) + Sync),
) {
    let parts = DisjointSlice::new(output);
    team.run_ranges(input.len() / FROM, TASK_PIXELS_MIN, &|pixels| {
        // SAFETY: ranges of pixels are disjoint, so the ranges of their elements are disjoint too.
        let to = unsafe { parts.range(pixels.start * TO..pixels.end * TO) };
        body(&input[pixels.start * FROM..pixels.end * FROM], to);
    });
}

/// Converts interleaved bytes to grey; the weights are in the order of the channels.
fn gray_u8(simd: Simd, weights: [f32; 3], from: &[u8], to: &mut [u8]) {
    let mut planes = [[0_u8; CHUNK]; 3];
    for (from, to) in from.chunks(CHUNK * 3).zip(to.chunks_mut(CHUNK)) {
        let [a, b, c] = &mut planes;
        let (a, b, c) = (&mut a[..to.len()], &mut b[..to.len()], &mut c[..to.len()]);
        deinterleave3(simd, from, a, b, c);
        weigh(simd, [a, b, c], [weights[0], weights[1], weights[2], 0.0], to);
    }
}

simd_levels! {
    /// Rounds `weights[0]·a + weights[1]·b + weights[2]·c + weights[3]`.
    fn weigh(planes: [&[u8]; 3], weights: [f32; 4], to: &mut [u8]) {
        let [a, b, c] = planes;
        for (((a, b), c), to) in a.iter().zip(b).zip(c).zip(to) {
            let sum = weights[0] * f32::from(*a) + weights[1] * f32::from(*b) + weights[2] * f32::from(*c);
            *to = round_to_u8(sum + weights[3]);
        }
    }
}

simd_levels! {
    fn gray_f32(weights: [f32; 3], from: &[f32], to: &mut [f32]) {
        for (pixel, to) in from.as_chunks::<3>().0.iter().zip(to) {
            *to = weights[0] * pixel[0] + weights[1] * pixel[1] + weights[2] * pixel[2];
        }
    }
}

simd_levels! {
    fn swap_outer_f32(from: &[f32], to: &mut [f32]) {
        for (pixel, to) in from.as_chunks::<3>().0.iter().zip(to.as_chunks_mut::<3>().0) {
            *to = [pixel[2], pixel[1], pixel[0]];
        }
    }
}

simd_levels! {
    fn repeat3<T: Copy>(from: &[T], to: &mut [T]) {
        for (value, to) in from.iter().zip(to.as_chunks_mut::<3>().0) {
            *to = [*value; 3];
        }
    }
}
