//! `Resize` of channels-last (NHWC) images. Rows and columns consist of whole pixels, so vector
//! instructions work on neighbouring channels.

use std::sync::Arc;

use panoply_core::op::compute::KernelCall;

use super::resize::{AxisMapping, Planes};

/// Both axes, and the number of channels of a pixel. A row of pixels is a piece.
pub(super) struct Pixels {
    pub(super) planes: Arc<Planes>,
    pub(super) channels: usize,
}

impl Pixels {
    pub(super) fn run(&self, call: &mut KernelCall<'_>) -> panoply_core::Result<()> {
        let (source, target) = (call.input::<f32>(0)?, call.output::<f32>(0)?);
        let Planes { lines: [down, across], before: [height, width], after: [rows, columns] } = &*self.planes;
        let (width, columns) = (width * self.channels, columns * self.channels);
        if target.is_empty() {
            return Ok(());
        }
        let start = call.pieces().start;
        let mut wide = WideRows::new(across, self.channels, source, [width, columns]);
        for (piece, to) in (start..).zip(target.chunks_exact_mut(columns)) {
            let (first, place) = (piece / rows * height, piece % rows);
            let row = |at: usize| &source[(first + at) * width..][..width];
            match down {
                AxisMapping::Same => across.pixels(row(place), to, self.channels),
                AxisMapping::Repeat(times) => across.pixels(row(place / times), to, self.channels),
                AxisMapping::Pick(places) => across.pixels(row(places[place]), to, self.channels),
                AxisMapping::Between(places) => {
                    let ([a, b], weights) = places[place];
                    wide.between([first + a, first + b], weights, to);
                }
                AxisMapping::Mix(places) => {
                    wide.mix(places[place].iter().map(|(at, weight)| (first + at, *weight)), to)
                }
            }
        }
        Ok(())
    }
}

impl AxisMapping {
    /// One row of pixels along this axis.
    fn pixels(&self, from: &[f32], to: &mut [f32], channels: usize) {
        let pixel = |at: usize| &from[at * channels..][..channels];
        if matches!(self, AxisMapping::Same) {
            return to.copy_from_slice(from);
        }
        for (place, to) in to.chunks_exact_mut(channels).enumerate() {
            match self {
                AxisMapping::Same => to.copy_from_slice(pixel(place)),
                AxisMapping::Repeat(times) => to.copy_from_slice(pixel(place / times)),
                AxisMapping::Pick(places) => to.copy_from_slice(pixel(places[place])),
                AxisMapping::Between(places) => {
                    let ([a, b], weights) = places[place];
                    between([pixel(a), pixel(b)], weights, to);
                }
                AxisMapping::Mix(places) => mix(places[place].iter().map(|(at, weight)| (pixel(*at), *weight)), to),
            }
        }
    }
}

/// Source rows already resized horizontally. The last rows are kept, because adjacent output rows
/// use the same source rows.
struct WideRows<'a> {
    across: &'a AxisMapping,
    channels: usize,
    source: &'a [f32],
    width: usize,
    columns: usize,
    /// The source row in each entry.
    held: [Option<usize>; WIDE_ROWS],
    rows: Vec<f32>,
}

/// The number of rows kept: a cubic needs four.
const WIDE_ROWS: usize = 4;

impl<'a> WideRows<'a> {
    fn new(across: &'a AxisMapping, channels: usize, source: &'a [f32], [width, columns]: [usize; 2]) -> WideRows<'a> {
        WideRows { across, channels, source, width, columns, held: [None; WIDE_ROWS], rows: Vec::new() }
    }

    /// Makes a row unless an entry already holds it.
    fn make(&mut self, row: usize) {
        let place = row % WIDE_ROWS;
        if self.held[place] == Some(row) || matches!(self.across, AxisMapping::Same) {
            return;
        }
        if self.rows.is_empty() {
            self.rows = vec![0.0; WIDE_ROWS * self.columns];
        }
        let to = &mut self.rows[place * self.columns..][..self.columns];
        self.across.pixels(&self.source[row * self.width..][..self.width], to, self.channels);
        self.held[place] = Some(row);
    }

    /// The row that was made last in its entry.
    fn row(&self, row: usize) -> &[f32] {
        match self.across {
            AxisMapping::Same => &self.source[row * self.width..][..self.width],
            _ => &self.rows[row % WIDE_ROWS * self.columns..][..self.columns],
        }
    }

    fn between(&mut self, rows: [usize; 2], weights: [f32; 2], to: &mut [f32]) {
        if rows[0] != rows[1] && rows[0] % WIDE_ROWS == rows[1] % WIDE_ROWS {
            return self.mix(rows.into_iter().zip(weights), to);
        }
        rows.into_iter().for_each(|row| self.make(row));
        between(rows.map(|row| self.row(row)), weights, to);
    }

    fn mix(&mut self, parts: impl Iterator<Item = (usize, f32)>, to: &mut [f32]) {
        to.fill(0.0);
        for (row, weight) in parts {
            self.make(row);
            add(self.row(row), weight, to);
        }
    }
}

fn between([a, b]: [&[f32]; 2], [of_a, of_b]: [f32; 2], to: &mut [f32]) {
    to.iter_mut().zip(a.iter().zip(b)).for_each(|(to, (a, b))| *to = a * of_a + b * of_b);
}

fn mix<'a>(parts: impl Iterator<Item = (&'a [f32], f32)>, to: &mut [f32]) {
    to.fill(0.0);
    parts.for_each(|(from, weight)| add(from, weight, to));
}

fn add(from: &[f32], weight: f32, to: &mut [f32]) {
    to.iter_mut().zip(from).for_each(|(sum, value)| *sum += weight * value);
}

#[cfg(test)]
mod tests {
    use panoply_core::op::compute::Kernel;
    use panoply_core::{DType, Tensor};

    use super::*;
    use crate::lower::resample::{CHANNELS_LAST, of_pixels};

    /// Maps three elements to four, with every variant.
    fn lines() -> Vec<AxisMapping> {
        let cubic = vec![(0, -0.1), (1, 0.6), (2, 0.5)];
        vec![
            AxisMapping::Same,
            AxisMapping::Repeat(2),
            AxisMapping::Pick(vec![2, 0, 0, 1]),
            AxisMapping::Between(vec![
                ([0, 0], [0.5; 2]),
                ([0, 1], [0.3, 0.7]),
                ([0, 2], [0.25, 0.75]),
                ([2, 2], [0.5; 2]),
            ]),
            AxisMapping::Mix(vec![cubic.clone(), vec![(1, 1.0)], cubic, vec![(2, 0.5), (0, 0.5)]]),
        ]
    }

    #[test]
    fn pixels_are_made_as_planes_are() {
        let (batch, channels) = (2, 5);
        let len = |line: &AxisMapping| match line {
            AxisMapping::Same => 3,
            AxisMapping::Repeat(times) => 3 * times,
            _ => 4,
        };
        for (down, across) in (0..25).map(|pair| (pair / 5, pair % 5)) {
            let [rows, columns] = [down, across].map(|line| lines().swap_remove(line));
            let after = [len(&rows), len(&columns)];
            let planes = Arc::new(Planes { lines: [rows, columns], before: [3, 3], after });
            let numbers = (0..batch * channels * 9).map(|at| (at * 37 % 101) as f32).collect();
            let image = Tensor::from_vec(numbers, [batch, channels, 3, 3]).unwrap();
            let same = Arc::clone(&planes);
            let program = Kernel::on_cpu("resize", move |call| same.run(call)).input("x", DType::F32);
            let program = program.output("y", DType::F32).in_pieces(batch * channels).build().unwrap();
            let shape = panoply_core::Shape::new([batch, channels, after[0], after[1]]).unwrap();
            let kernel = Kernel::new(&program).input(&image).output(shape);
            let pixels = Pixels { planes, channels };
            let turned = of_pixels(&kernel, &CHANNELS_LAST, move |call| pixels.run(call)).unwrap();
            let expected = kernel.compute().unwrap()[0].permute(&CHANNELS_LAST).unwrap().to_vec::<f32>().unwrap();
            let got = turned.compute().unwrap()[0].to_vec::<f32>().unwrap();
            let off = got.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(got.len() == expected.len() && off < 1e-4, "{down} {across}: {off}");
        }
    }
}
