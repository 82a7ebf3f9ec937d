//! Convolve2: the convolution of two planes, or their correlation.

use super::checks::{real_or_complex, weights_fit, within};
use super::convolve::Extent;
use super::fir::{TAPS_MAX, filter_work};
use crate::error::{Error, Result};
use crate::op::{AnswerTypes, Describe};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// The convolution of planes, the last two axes, with a kernel of two dimensions, or their
/// correlation with [`Convolve2::correlation`], as SciPy's `convolve2d` and `correlate2d` with
/// zeros around the planes. [`Extent`] applies to each axis separately.
///
/// Rounding, NaN and infinity are as for [`super::Convolve`].
#[derive(Clone, Debug)]
pub struct Convolve2 {
    /// The planes, of at least two dimensions: f32 or c64.
    pub input: Tensor,
    /// The kernel, of two dimensions: f32, or c64 if the input is c64.
    pub kernel: Tensor,
    /// The part of the result to return.
    pub extent: Extent,
    /// Whether the kernel is reversed along both axes and conjugated.
    pub correlation: bool,
}

impl Convolve2 {
    /// The convolution of each plane.
    pub fn new(input: &Tensor, kernel: &Tensor) -> Convolve2 {
        Convolve2 { input: input.clone(), kernel: kernel.clone(), extent: Extent::Full, correlation: false }
    }

    /// The correlation of each plane, which is largest where the plane matches the kernel best.
    pub fn correlation(input: &Tensor, kernel: &Tensor) -> Convolve2 {
        Convolve2 { correlation: true, ..Convolve2::new(input, kernel) }
    }

    /// Sets the part of the result to return.
    pub fn extent(mut self, extent: Extent) -> Convolve2 {
        self.extent = extent;
        self
    }

    /// The part of the full convolution that is returned, for rows and columns: the index of the
    /// first, and the number.
    pub fn parts_of_full(&self) -> [(usize, usize); 2] {
        let (dims, kernel) = (self.input.shape(), self.kernel.shape());
        let part = |behind: usize| {
            let of = |dims: &Shape| dims.rank().checked_sub(behind).map_or(0, |axis| dims[axis]);
            self.extent.part(of(dims), of(kernel))
        };
        [part(2), part(1)]
    }

    /// The output's shape. Empty planes give empty planes.
    pub fn output_shape(&self) -> Result<Shape> {
        let dims = self.input.shape();
        let Some(last) = dims.rank().checked_sub(1).filter(|last| *last > 0) else {
            return Err(Error::RankMismatch {
                what: "convolve2: input",
                expected: "at least 2".into(),
                got: dims.rank(),
            });
        };
        let [(_, rows), (_, columns)] = self.parts_of_full();
        dims.with_dim(last - 1, rows)?.with_dim(last, columns)
    }
}

impl Describe for Convolve2 {
    fn name(&self) -> &'static str {
        if self.correlation { "correlate2" } else { "convolve2" }
    }

    fn validate(&self) -> Result<()> {
        real_or_complex(&self.input, "convolve2: input")?;
        weights_fit(&self.kernel, self.input.dtype(), "convolve2: kernel")?;
        let rank = self.kernel.shape().rank();
        if rank != 2 {
            return Err(Error::RankMismatch { what: "convolve2: kernel", expected: "2".into(), got: rank });
        }
        within(self.kernel.elements(), 1, TAPS_MAX, "convolve2: elements of the kernel")?;
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
