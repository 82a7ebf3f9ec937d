//! One pass of a Fourier transform, in `fft.wgsl`.
//!
//! Parameters: number of output elements, output elements per line, the line's length, the current
//! lines' length and how many are interleaved, the factor, the input's offset, 1 for the inverse,
//! and the scale of the output as bits of f32.

use super::template::Template;

/// The representation of a line in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FftLine {
    /// Complex numbers.
    Complex,
    /// Real numbers.
    Real,
    /// The first half of a spectrum whose second half mirrors it.
    Half,
}

/// A pass between lines of these representations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FftKernel {
    /// The representation of the input.
    pub from: FftLine,
    /// The representation of the output.
    pub to: FftLine,
}

impl FftKernel {
    pub(super) fn source(&self) -> String {
        let template = Template::new(include_str!("fft.wgsl"));
        template.set("FROM", format!("{:?}", self.from)).set("TO", format!("{:?}", self.to)).text()
    }
}
