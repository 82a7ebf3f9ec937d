//! ColorConvert: every image is converted to red, green and blue in f64, then to the output format.
//! Between the two YUV formats, and between equal formats, only bytes are moved.

use panoply_core::op::compute::{ColorConvert, ColorFormat, ColorRange};
use panoply_core::{DType, Result, Value};

use crate::values::{tensor_of, to_f64};

pub(super) fn run(op: &ColorConvert) -> Result<Value> {
    let (images, height, width) = op.sizes()?;
    let output_shape = op.output_shape()?;
    let input = to_f64(&op.input)?;
    let image_len = input.len().checked_div(images).unwrap_or(0);
    let mut values = Vec::with_capacity(output_shape.elements());
    for image in 0..images {
        let image = Image { op, values: &input[image * image_len..(image + 1) * image_len], height, width };
        if op.from == op.to {
            values.extend_from_slice(image.values);
        } else {
            image.write(&mut values);
        }
    }
    if op.input.dtype() == DType::U8 {
        values.iter_mut().for_each(|value| *value = value.round_ties_even().clamp(0.0, 255.0));
    }
    Ok(Value::Tensor(tensor_of(op.input.dtype(), &output_shape, &values)))
}

struct Image<'a> {
    op: &'a ColorConvert,
    values: &'a [f64],
    height: usize,
    width: usize,
}

impl Image<'_> {
    fn write(&self, to: &mut Vec<f64>) {
        let pixels = || (0..self.height).flat_map(|y| (0..self.width).map(move |x| (y, x)));
        match self.op.to {
            ColorFormat::Rgb => pixels().for_each(|(y, x)| to.extend(self.color(y, x))),
            ColorFormat::Bgr => pixels().for_each(|(y, x)| to.extend(self.color(y, x).into_iter().rev())),
            ColorFormat::Gray => pixels().for_each(|(y, x)| to.push(self.luma(self.color(y, x)))),
            ColorFormat::I420 | ColorFormat::Nv12 => {
                pixels().for_each(|(y, x)| to.push(self.y_code(y, x)));
                let squares = pixels().filter(|(y, x)| y % 2 == 0 && x % 2 == 0);
                let chroma: Vec<[f64; 2]> = squares.map(|(y, x)| self.chroma_codes(y, x)).collect();
                if self.op.to == ColorFormat::Nv12 {
                    to.extend(chroma.into_iter().flatten());
                } else {
                    to.extend(chroma.iter().map(|codes| codes[0]));
                    to.extend(chroma.iter().map(|codes| codes[1]));
                }
            }
        }
    }

    /// Red, green and blue of a pixel, neither rounded nor clamped.
    fn color(&self, y: usize, x: usize) -> [f64; 3] {
        let pixel = y * self.width + x;
        match self.op.from {
            ColorFormat::Rgb => [0, 1, 2].map(|channel| self.values[pixel * 3 + channel]),
            ColorFormat::Bgr => [2, 1, 0].map(|channel| self.values[pixel * 3 + channel]),
            ColorFormat::Gray => [self.values[pixel]; 3],
            ColorFormat::I420 | ColorFormat::Nv12 => {
                let (kr, kg, kb) = self.weights();
                let (offset, luma_span, chroma_span) = self.codes();
                let [u, v] = self.stored_chroma(y, x);
                let luma = (self.values[pixel] - offset) / luma_span;
                if self.op.to == ColorFormat::Gray {
                    return [luma; 3];
                }
                let red = luma + (2.0 - 2.0 * kr) * (v - 128.0) / chroma_span;
                let blue = luma + (2.0 - 2.0 * kb) * (u - 128.0) / chroma_span;
                [red, (luma - kr * red - kb * blue) / kg, blue]
            }
        }
    }

    /// The chroma codes of a pixel of a YUV input.
    fn stored_chroma(&self, y: usize, x: usize) -> [f64; 2] {
        let luma = self.height * self.width;
        if self.op.from == ColorFormat::Nv12 {
            let first = luma + y / 2 * self.width + x / 2 * 2;
            return [self.values[first], self.values[first + 1]];
        }
        let first = luma + y / 2 * (self.width / 2) + x / 2;
        [self.values[first], self.values[first + luma / 4]]
    }

    fn y_code(&self, y: usize, x: usize) -> f64 {
        if self.op.from.is_yuv420() {
            return self.values[y * self.width + x];
        }
        let (offset, luma_span, _) = self.codes();
        offset + luma_span * self.luma(self.color(y, x))
    }

    /// The chroma codes of the 2×2 pixels whose first pixel is (y, x).
    fn chroma_codes(&self, y: usize, x: usize) -> [f64; 2] {
        if self.op.from.is_yuv420() {
            return self.stored_chroma(y, x);
        }
        let (kr, _, kb) = self.weights();
        let (_, _, chroma_span) = self.codes();
        let square = [(y, x), (y, x + 1), (y + 1, x), (y + 1, x + 1)].map(|(y, x)| self.color(y, x));
        let mean = [0, 1, 2].map(|channel| square.iter().map(|color| color[channel]).sum::<f64>() / 4.0);
        let luma = self.luma(mean);
        let code = |value: f64, weight: f64| 128.0 + chroma_span * (value - luma) / (2.0 - 2.0 * weight);
        [code(mean[2], kb), code(mean[0], kr)]
    }

    fn luma(&self, color: [f64; 3]) -> f64 {
        let (kr, kg, kb) = self.weights();
        // Three equal channels are their own luma. The weights add up to one, but rounding may not.
        if color[0] == color[1] && color[1] == color[2] {
            return color[0];
        }
        kr * color[0] + kg * color[1] + kb * color[2]
    }

    fn weights(&self) -> (f64, f64, f64) {
        let [kr, kg, kb] = self.op.standard.weights();
        (kr, kg, kb)
    }

    /// The code of black, and the spans of luma and chroma.
    fn codes(&self) -> (f64, f64, f64) {
        match self.op.range {
            ColorRange::Limited => (16.0, 219.0 / 255.0, 224.0 / 255.0),
            ColorRange::Full => (0.0, 1.0, 1.0),
        }
    }
}
