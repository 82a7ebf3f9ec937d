//! One pass of a Fourier transform, in `fft.wgsl`.
//!
//! Parameters: elements that are written, those of a line, the line's length, the present lines' length and how many are interleaved, the factor, the
//! input's offset, 1 for the inverse, what the output is multiplied with as bits of f32.

use super::template::Template;

/// How a line lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FftLine {
    /// Complex numbers.
    Complex,
    /// Real numbers.
    Real,
    /// The first half of a spectrum whose other half mirrors it.
    Half,
}

/// A pass between lines of these sorts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FftKernel {
    /// What is read.
    pub from: FftLine,
    /// What is written.
    pub to: FftLine,
}

impl FftKernel {
    pub(super) fn source(&self) -> String {
        let template = Template::new(include_str!("fft.wgsl"));
        template.set("FROM", format!("{:?}", self.from)).set("TO", format!("{:?}", self.to)).text()
    }
}
