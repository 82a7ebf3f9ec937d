//! FindPeaks: the strongest elements of signals and planes.

use super::checks::{line_len, real_or_complex, within};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::{AnswerTypes, Describe};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// The most peaks of a line or plane.
pub const PEAKS_MAX: usize = 1 << 16;

/// Finds the strongest peaks of lines along the last axis, or of planes along the last two axes
/// with [`FindPeaks::planes`]; for example, the matches in a correlation.
///
/// The strength of a real element (f32) is its value, and of a complex element (c64) its absolute
/// value, rounded to f32. An element is a peak if, within [`FindPeaks::distance`] along each axis,
/// no element is stronger and no earlier element is equally strong, and if its strength is at least
/// [`FindPeaks::at_least`]. So the first element of a plateau is the peak. NaN is never a peak, and
/// hides no peak.
///
/// The outputs are `[…, count]`: the strengths of the peaks (f32), the strongest first and among
/// equals the earliest, and their indices (i32), which count a plane row by row. Unused slots have
/// the strength 0 and the index -1.
#[derive(Clone, Debug)]
pub struct FindPeaks {
    /// The signals, or the planes.
    pub input: Tensor,
    /// Number of peaks for each line or plane.
    pub count: usize,
    /// The distance within which a peak must be the strongest element.
    pub distance: usize,
    /// The least strength of a peak.
    pub at_least: f32,
    /// Whether planes are searched, rather than lines.
    pub planes: bool,
}

impl FindPeaks {
    /// Finds `count` peaks of each line, each stronger than its direct neighbours.
    pub fn new(input: &Tensor, count: usize) -> FindPeaks {
        FindPeaks { input: input.clone(), count, distance: 1, at_least: f32::NEG_INFINITY, planes: false }
    }

    /// Finds `count` peaks of each plane.
    pub fn planes(input: &Tensor, count: usize) -> FindPeaks {
        FindPeaks { planes: true, ..FindPeaks::new(input, count) }
    }

    /// Sets the distance within which a peak must be the strongest element.
    pub fn distance(mut self, distance: usize) -> FindPeaks {
        self.distance = distance;
        self
    }

    /// Sets the least strength of a peak.
    pub fn at_least(mut self, strength: f32) -> FindPeaks {
        self.at_least = strength;
        self
    }

    /// Rows and columns of the searched planes. A line is one row.
    pub fn searched(&self) -> (usize, usize) {
        let dims = self.input.shape();
        let behind = |behind: usize| dims.rank().checked_sub(behind).map_or(0, |axis| dims[axis]);
        (if self.planes { behind(2) } else { 1 }, behind(1))
    }

    /// The shape of both outputs.
    pub fn output_shape(&self) -> Result<Shape> {
        line_len(&self.input, "find_peaks: input")?;
        let (dims, axes) = (self.input.shape(), if self.planes { 2 } else { 1 });
        let Some(kept) = dims.rank().checked_sub(axes) else {
            let what = "find_peaks: planes";
            return Err(Error::RankMismatch { what, expected: "at least 2".into(), got: dims.rank() });
        };
        Shape::new(&dims[..kept])?.joined(&[self.count])
    }
}

impl Describe for FindPeaks {
    fn name(&self) -> &'static str {
        "find_peaks"
    }

    fn validate(&self) -> Result<()> {
        real_or_complex(&self.input, "find_peaks: input")?;
        within(self.count, 1, PEAKS_MAX, "find_peaks: peaks")?;
        within(self.distance, 1, i32::MAX as usize, "find_peaks: distance")?;
        if self.at_least.is_nan() {
            return Err(Error::invalid("find_peaks: least strength", "a number", self.at_least));
        }
        let ((rows, columns), limit) = (self.searched(), i32::MAX as usize);
        let got = rows.saturating_mul(columns);
        if got > limit {
            return Err(Error::OutOfBounds { what: "find_peaks: elements of a line or plane", limit, got });
        }
        self.output_shape().map(drop)
    }

    crate::parts!(input);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        let shape = self.output_shape()?;
        Ok(AnswerTypes::Pair([(DType::F32, shape), (DType::I32, shape)]))
    }
}
