//! YUV 4:2:0, processed in units of two rows of pixels and the row of chroma that they share.

use super::interleave::{deinterleave2, deinterleave3, interleave2, interleave3};
use super::matrix::{Matrix, MatrixRow};
use super::{CHUNK, Conversion, TASK_PIXELS_MIN, weigh};
use crate::levels::simd_levels;
use crate::parts::DisjointSlice;
use crate::pixel::round_to_u8;
use crate::simd::Simd;
use crate::team::Team;
use panoply_core::op::compute::ColorFormat;
use std::ops::Range;

/// The chroma code of grey (no colour).
const NEUTRAL: u8 = 128;

/// Converts if at least one side is YUV.
pub fn convert(simd: Simd, team: &Team, conversion: &Conversion, matrix: &Matrix, input: &[u8], output: &mut [u8]) {
    let Conversion { from, to, images, height, width, .. } = *conversion;
    assert!(height % 2 == 0 && width % 2 == 0, "4:2:0 needs an even height and width");
    if output.is_empty() {
        return;
    }
    let pairs_per_image = height / 2;
    let out_image = output.len() / images;
    let in_image = input.len() / images;
    let parts = DisjointSlice::new(output);
    let grain = (TASK_PIXELS_MIN / (2 * width)).max(1);
    team.run_ranges(images * pairs_per_image, grain, &|pairs| {
        for pair in pairs {
            let (image, row) = (pair / pairs_per_image, pair % pairs_per_image);
            let source = &input[image * in_image..(image + 1) * in_image];
            let first = image * out_image;
            // SAFETY: the rows of one pair are borrowed once, and the rows of different pairs do
            // not overlap.
            let part = |range: Range<usize>| unsafe { parts.range(first + range.start..first + range.end) };
            let rows = RowPair { width, height, row };
            match (from.is_yuv420(), to.is_yuv420()) {
                (true, true) => {
                    part(rows.luma()).copy_from_slice(&source[rows.luma()]);
                    rows.repack(simd, from, source, &part);
                }
                (true, false) if to == ColorFormat::Gray => {
                    scale(simd, matrix.gray_of_y, &source[rows.luma()], part(rows.luma()));
                }
                (true, false) => rows.write_colors(simd, matrix, (from, to), source, &part),
                _ if from == ColorFormat::Gray => {
                    scale(simd, matrix.y_of_gray, &source[rows.luma()], part(rows.luma()));
                    rows.chroma(to).into_iter().for_each(|range| part(range).fill(NEUTRAL));
                }
                _ => rows.write_yuv(simd, matrix, (from, to), source, &part),
            }
        }
    });
}

/// Borrows ranges of the output image. Each range may be borrowed once.
type BorrowRange<'a> = &'a dyn Fn(Range<usize>) -> &'a mut [u8];

/// The position of two rows of pixels and of their chroma in an image.
#[derive(Clone, Copy)]
struct RowPair {
    width: usize,
    height: usize,
    /// Index of the pair of rows.
    row: usize,
}

impl RowPair {
    /// Both rows of luma (or grey), which are adjacent.
    fn luma(&self) -> Range<usize> {
        2 * self.row * self.width..2 * (self.row + 1) * self.width
    }

    /// One of the two rows of interleaved colours.
    fn color(&self, which: usize) -> Range<usize> {
        let row = 2 * self.row + which;
        row * self.width * 3..(row + 1) * self.width * 3
    }

    /// The rows of U and V. For NV12 the first range holds both, and the second is empty.
    fn chroma(&self, format: ColorFormat) -> [Range<usize>; 2] {
        let luma = self.width * self.height;
        let half = self.width / 2;
        if format == ColorFormat::Nv12 {
            let start = luma + self.row * self.width;
            return [start..start + self.width, 0..0];
        }
        let (u, v) = (luma + self.row * half, luma + luma / 4 + self.row * half);
        [u..u + half, v..v + half]
    }

    /// Copies a row of chroma to the other 4:2:0 format.
    fn repack(&self, simd: Simd, from: ColorFormat, source: &[u8], part: BorrowRange<'_>) {
        let [u, v] = self.chroma(ColorFormat::I420);
        let [both, _] = self.chroma(ColorFormat::Nv12);
        if from == ColorFormat::Nv12 {
            deinterleave2(simd, &source[both], part(u), part(v));
        } else {
            interleave2(simd, &source[u], &source[v], part(both));
        }
    }

    fn write_colors(
        &self,
        simd: Simd,
        matrix: &Matrix,
        (from, to): (ColorFormat, ColorFormat),
        source: &[u8],
        part: BorrowRange<'_>,
    ) {
        let luma = &source[self.luma()];
        let [u_row, v_row] = self.chroma(from).map(|range| &source[range]);
        let mut colors = [part(self.color(0)), part(self.color(1))];
        let (mut u_half, mut v_half) = ([0; CHUNK / 2], [0; CHUNK / 2]);
        let (mut u, mut v) = ([0; CHUNK], [0; CHUNK]);
        let [mut red, mut green, mut blue] = [[0; CHUNK]; 3];
        for start in (0..self.width).step_by(CHUNK) {
            let len = CHUNK.min(self.width - start);
            let (half, half_start) = (len / 2, start / 2);
            if from == ColorFormat::Nv12 {
                deinterleave2(simd, &u_row[start..start + len], &mut u_half, &mut v_half);
            } else {
                u_half[..half].copy_from_slice(&u_row[half_start..half_start + half]);
                v_half[..half].copy_from_slice(&v_row[half_start..half_start + half]);
            }
            repeat2(simd, &u_half[..half], &mut u[..len]);
            repeat2(simd, &v_half[..half], &mut v[..len]);
            for (which, color) in colors.iter_mut().enumerate() {
                let y = &luma[which * self.width + start..][..len];
                let planes = [&mut red[..len], &mut green[..len], &mut blue[..len]];
                colors_of(simd, matrix, [y, &u[..len], &v[..len]], planes);
                let (a, c) = if to == ColorFormat::Bgr { (&blue, &red) } else { (&red, &blue) };
                interleave3(simd, &a[..len], &green[..len], &c[..len], &mut color[start * 3..(start + len) * 3]);
            }
        }
    }

    fn write_yuv(
        &self,
        simd: Simd,
        matrix: &Matrix,
        (from, to): (ColorFormat, ColorFormat),
        source: &[u8],
        part: BorrowRange<'_>,
    ) {
        let luma = part(self.luma());
        let [u_row, v_row] = self.chroma(to).map(part);
        let mut planes = [[[0; CHUNK]; 3]; 2];
        let (mut u, mut v) = ([0; CHUNK / 2], [0; CHUNK / 2]);
        for start in (0..self.width).step_by(CHUNK) {
            let len = CHUNK.min(self.width - start);
            for (which, [red, green, blue]) in planes.iter_mut().enumerate() {
                let colors = &source[self.color(which)][start * 3..(start + len) * 3];
                let (red, green, blue) = (&mut red[..len], &mut green[..len], &mut blue[..len]);
                if from == ColorFormat::Bgr {
                    deinterleave3(simd, colors, blue, green, red);
                } else {
                    deinterleave3(simd, colors, red, green, blue);
                }
                weigh(simd, [red, green, blue], matrix.y, &mut luma[which * self.width + start..][..len]);
            }
            let half = len / 2;
            let [upper, lower] = planes.each_ref().map(|planes| planes.each_ref().map(|plane| &plane[..len]));
            weigh_squares(simd, upper, lower, matrix.u, &mut u[..half]);
            weigh_squares(simd, upper, lower, matrix.v, &mut v[..half]);
            if to == ColorFormat::Nv12 {
                interleave2(simd, &u[..half], &v[..half], &mut u_row[start..start + len]);
            } else {
                u_row[start / 2..start / 2 + half].copy_from_slice(&u[..half]);
                v_row[start / 2..start / 2 + half].copy_from_slice(&v[..half]);
            }
        }
    }
}

simd_levels! {
    /// Rounds `figures[0] · from + figures[1]`.
    fn scale(figures: [f32; 2], from: &[u8], to: &mut [u8]) {
        from.iter().zip(to).for_each(|(from, to)| *to = round_to_u8(figures[0] * f32::from(*from) + figures[1]));
    }
}

simd_levels! {
    fn repeat2(from: &[u8], to: &mut [u8]) {
        from.iter().zip(to.as_chunks_mut::<2>().0).for_each(|(value, to)| *to = [*value; 2]);
    }
}

simd_levels! {
    /// Computes the weighted sum of the means of 2×2 pixels.
    fn weigh_squares(upper: [&[u8]; 3], lower: [&[u8]; 3], weights: MatrixRow, to: &mut [u8]) {
        let [r0, g0, b0] = upper.map(|plane| plane.as_chunks::<2>().0);
        let [r1, g1, b1] = lower.map(|plane| plane.as_chunks::<2>().0);
        let sum = |a: [u8; 2], b: [u8; 2]| {
            f32::from(u16::from(a[0]) + u16::from(a[1]) + u16::from(b[0]) + u16::from(b[1]))
        };
        let quarter = [weights[0] * 0.25, weights[1] * 0.25, weights[2] * 0.25];
        let rows = r0.iter().zip(r1).zip(g0.iter().zip(g1)).zip(b0.iter().zip(b1));
        for ((((r0, r1), (g0, g1)), (b0, b1)), to) in rows.zip(to) {
            let weighed = quarter[0] * sum(*r0, *r1) + quarter[1] * sum(*g0, *g1) + quarter[2] * sum(*b0, *b1);
            *to = round_to_u8(weighed + weights[3]);
        }
    }
}

simd_levels! {
    /// Converts luma and full-size chroma to red, green and blue.
    fn colors_of(matrix: &Matrix, yuv: [&[u8]; 3], to: [&mut [u8]; 3]) {
        let ([y, u, v], [red, green, blue]) = (yuv, to);
        let center = f32::from(NEUTRAL);
        let planes = red.iter_mut().zip(green).zip(blue);
        for (((y, u), v), ((red, green), blue)) in y.iter().zip(u).zip(v).zip(planes) {
            let luma = matrix.gray_of_y[0] * f32::from(*y) + matrix.gray_of_y[1];
            let (u, v) = (f32::from(*u) - center, f32::from(*v) - center);
            *red = round_to_u8(luma + matrix.red_of_v * v);
            *green = round_to_u8(luma + (matrix.green_of_uv[0] * u + matrix.green_of_uv[1] * v));
            *blue = round_to_u8(luma + matrix.blue_of_u * u);
        }
    }
}
