//! Convolve: the convolution of two signals, or their correlation.

use super::axis::check_axis;
use super::checks::weights_fit;
use super::fir::{TAPS_MAX, filter_work};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::{AnswerTypes, Describe};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// The part of a convolution that is returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Extent {
    /// All positions where the two overlap: `n + k - 1` elements.
    #[default]
    Full,
    /// The middle part, as long as the input.
    Same,
    /// All positions where the shorter lies within the longer: `|n - k| + 1` elements.
    Valid,
}

impl Extent {
    /// The part of the full convolution of `n` elements with `k`: the index of the first element,
    /// and the length.
    pub fn part(self, n: usize, k: usize) -> (usize, usize) {
        if n == 0 {
            return (0, 0);
        }
        match self {
            Extent::Full => (0, (n + k).saturating_sub(1)),
            Extent::Same => (k.saturating_sub(1) / 2, n),
            Extent::Valid => (n.min(k).saturating_sub(1), n.abs_diff(k) + 1),
        }
    }
}

/// The convolution of lines along the last axis with a kernel, or their correlation with
/// [`Convolve::correlation`], as SciPy's `convolve` and `correlate`:
/// `z[t] = Σ x[l] · kernel[t - l]` or `z[t] = Σ x[l] · conj(kernel[l - t + k - 1])`.
///
/// Sums are kept in f32, in an order that the device chooses. Long kernels are applied by Fourier
/// transforms. NaN and infinity are as for [`super::Fir`].
#[derive(Clone, Debug)]
pub struct Convolve {
    /// The signals, of at least one dimension: f32 or c64.
    pub input: Tensor,
    /// The kernel, of one dimension: f32, or c64 if the input is c64.
    pub kernel: Tensor,
    /// The part of the result to return.
    pub extent: Extent,
    /// Whether the kernel is reversed and conjugated.
    pub correlation: bool,
}

impl Convolve {
    /// The convolution of each line.
    pub fn new(input: &Tensor, kernel: &Tensor) -> Convolve {
        Convolve { input: input.clone(), kernel: kernel.clone(), extent: Extent::Full, correlation: false }
    }

    /// The correlation of each line, which is largest where the line matches the kernel best.
    pub fn correlation(input: &Tensor, kernel: &Tensor) -> Convolve {
        Convolve { correlation: true, ..Convolve::new(input, kernel) }
    }

    /// Sets the part of the result to return.
    pub fn extent(mut self, extent: Extent) -> Convolve {
        self.extent = extent;
        self
    }

    /// The part of the full convolution that is returned: the index of the first element, and the
    /// length.
    pub fn part_of_full(&self) -> (usize, usize) {
        self.extent.part(self.input.shape().last().copied().unwrap_or(0), self.kernel.elements())
    }

    /// The output's shape. Empty lines give empty lines.
    pub fn output_shape(&self) -> Result<Shape> {
        let last = self.input.shape().rank().saturating_sub(1);
        check_axis(self.input.shape(), last, "convolve: input", "convolve: axis")?;
        self.input.shape().with_dim(last, self.part_of_full().1)
    }
}

impl Describe for Convolve {
    fn name(&self) -> &'static str {
        if self.correlation { "correlate" } else { "convolve" }
    }

    fn validate(&self) -> Result<()> {
        if !matches!(self.input.dtype(), DType::F32 | DType::Complex64) {
            let (what, got) = ("convolve: input", self.input.dtype());
            return Err(Error::DTypeUnsupported { what, expected: "f32 or c64", got });
        }
        weights_fit(&self.kernel, self.input.dtype(), "convolve: kernel")?;
        let rank = self.kernel.shape().rank();
        if rank != 1 {
            return Err(Error::RankMismatch { what: "convolve: kernel", expected: "1".into(), got: rank });
        }
        let count = self.kernel.elements();
        if count == 0 || count > TAPS_MAX {
            return Err(Error::invalid("convolve: elements of the kernel", format!("1 to {TAPS_MAX}"), count));
        }
        self.output_shape().map(drop)
    }

    crate::parts!(input, kernel);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        Ok(AnswerTypes::Tensor(self.input.dtype(), self.output_shape()?))
    }

    fn work(&self) -> u64 {
        filter_work(self.input.elements(), self.kernel.elements())
    }
}
