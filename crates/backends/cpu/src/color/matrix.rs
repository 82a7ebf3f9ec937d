//! Coefficients of the conversions, computed in `f64` from the standards' weights.

use panoply_core::op::compute::{ColorRange, ColorStandard};

/// Weights of red, green and blue, and a constant: one row of a conversion to YUV.
pub type MatrixRow = [f32; 4];

/// All coefficients of a conversion.
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    gray: [f32; 3],
    /// Luma from red, green and blue.
    pub y: MatrixRow,
    /// Blue difference (U) from red, green and blue.
    pub u: MatrixRow,
    /// Red difference (V) from red, green and blue.
    pub v: MatrixRow,
    /// Grey from luma: factor and constant.
    pub gray_of_y: [f32; 2],
    /// Luma from grey: factor and constant.
    pub y_of_gray: [f32; 2],
    /// Contribution of V to red.
    pub red_of_v: f32,
    /// Contributions of U and V to green.
    pub green_of_uv: [f32; 2],
    /// Contribution of U to blue.
    pub blue_of_u: f32,
}

impl Matrix {
    /// The coefficients of a standard and a range.
    pub fn new(standard: ColorStandard, range: ColorRange) -> Matrix {
        let [kr, kg, kb] = standard.weights();
        let (offset, luma, chroma) = match range {
            ColorRange::Limited => (16.0, 219.0 / 255.0, 224.0 / 255.0),
            ColorRange::Full => (0.0, 1.0, 1.0),
        };
        let (blue_span, red_span) = (2.0 - 2.0 * kb, 2.0 - 2.0 * kr);
        let row = |weights: [f64; 3], constant: f64| {
            [weights[0] as f32, weights[1] as f32, weights[2] as f32, constant as f32]
        };
        let (u, v) = (chroma / blue_span, chroma / red_span);
        Matrix {
            gray: [kr as f32, kg as f32, kb as f32],
            y: row([luma * kr, luma * kg, luma * kb], offset),
            u: row([-u * kr, -u * kg, u * (1.0 - kb)], 128.0),
            v: row([v * (1.0 - kr), -v * kg, -v * kb], 128.0),
            gray_of_y: [(1.0 / luma) as f32, (-offset / luma) as f32],
            y_of_gray: [luma as f32, offset as f32],
            red_of_v: (red_span / chroma) as f32,
            green_of_uv: [(-kb * blue_span / (chroma * kg)) as f32, (-kr * red_span / (chroma * kg)) as f32],
            blue_of_u: (blue_span / chroma) as f32,
        }
    }

    /// The weights for grey, in the order of the channels.
    pub fn gray_weights(&self, blue_first: bool) -> [f32; 3] {
        let [red, green, blue] = self.gray;
        if blue_first { [blue, green, red] } else { [red, green, blue] }
    }
}
