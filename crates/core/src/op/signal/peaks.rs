//! FindPeaks: where signals and planes are strongest.

use super::checks::{line_len, real_or_complex, tensors, within};
use crate::error::{Error, Result};
use crate::op::Describe;
use crate::part::{PartMut, PartRef};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// The most peaks of a line or plane.
pub const PEAKS_MAX: usize = 1 << 16;

/// The strongest peaks of lines along the last axis, or with [`FindPeaks::planes`] of planes, the last two: as of a correlation, where it finds what it
/// looks for.
///
/// A real element (f32) is as strong as it is large, a complex one (c64) as its absolute value, rounded to f32. It is a peak where none of the elements up to
/// [`FindPeaks::distance`] away along each axis is stronger, none of those before it is as strong, and it is no weaker than [`FindPeaks::at_least`].
/// So of a flat top the first element is the peak. NaN is no peak, and hides none.
///
/// The outputs are `[…, count]`: how strong the peaks are (f32), the strongest first and of equals the one that comes first, and where they stand (i32),
/// in a plane row by row. Where there are fewer peaks, the rest is 0 at -1.
#[derive(Clone, Debug)]
pub struct FindPeaks {
    /// The signals, or the planes.
    pub input: Tensor,
    /// How many peaks of each.
    pub count: usize,
    /// How far a peak towers over what is around it.
    pub distance: usize,
    /// What is weaker is no peak.
    pub at_least: f32,
    /// Whether planes are searched.
    pub planes: bool,
}

impl FindPeaks {
    /// So many peaks of each line, each stronger than its neighbours.
    pub fn new(input: &Tensor, count: usize) -> FindPeaks {
        FindPeaks { input: input.clone(), count, distance: 1, at_least: f32::NEG_INFINITY, planes: false }
    }

    /// So many peaks of each plane.
    pub fn planes(input: &Tensor, count: usize) -> FindPeaks {
        FindPeaks { planes: true, ..FindPeaks::new(input, count) }
    }

    /// Each stronger than all that is up to so many elements away.
    pub fn distance(mut self, distance: usize) -> FindPeaks {
        self.distance = distance;
        self
    }

    /// None weaker than this.
    pub fn at_least(mut self, strength: f32) -> FindPeaks {
        self.at_least = strength;
        self
    }

    /// Rows and columns of what is searched; a line is one row.
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

    tensors!(input);
}
