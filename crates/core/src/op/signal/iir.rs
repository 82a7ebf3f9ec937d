//! Iir: recursive filters.

use super::axis::check_axis;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::Describe;
use crate::part::{PartMut, PartRef};
use crate::tensor::Tensor;

/// The most sections of a filter.
pub const SECTIONS_MAX: usize = 256;

/// A section of second order: `y[t] = b0·x[t] + b1·x[t-1] + b2·x[t-2] - a1·y[t-1] - a2·y[t-2]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Biquad {
    /// What the samples are weighted with, the newest first.
    pub b: [f64; 3],
    /// What the outputs before are weighted with, the newest first; that of the present one is 1.
    pub a: [f64; 2],
}

impl Biquad {
    /// Whether its poles lie within the unit circle: what it remembers fades.
    pub fn is_stable(&self) -> bool {
        let [a1, a2] = self.a;
        a2.abs() < 1.0 && a1.abs() < 1.0 + a2
    }

    fn is_finite(&self) -> bool {
        self.b.iter().chain(&self.a).all(|weight| weight.is_finite())
    }
}

/// Filters lines along the last axis through sections of second order, one after the other, as SciPy's `sosfilt`. The output has the
/// input's shape. States and sums are kept in f64.
///
/// A section whose poles lie on or outside the unit circle is no error, since what it does for a while may be wanted;
/// [`Iir::unstable_sections`] names them. NaN and infinity stay in a line's memory to its end.
#[derive(Clone, Debug)]
pub struct Iir {
    /// The signals, of at least one dimension: f32 or c64.
    pub input: Tensor,
    /// The sections.
    pub sections: Vec<Biquad>,
}

impl Iir {
    /// Filters each line.
    pub fn new(input: &Tensor, sections: impl Into<Vec<Biquad>>) -> Iir {
        Iir { input: input.clone(), sections: sections.into() }
    }

    /// The sections of which what they remember does not fade.
    pub fn unstable_sections(&self) -> Vec<usize> {
        (0..self.sections.len()).filter(|index| !self.sections[*index].is_stable()).collect()
    }
}

/// Checks a filter's sections for samples of this type.
pub(super) fn check_sections(sections: &[Biquad], samples: DType) -> Result<()> {
    if !matches!(samples, DType::F32 | DType::Complex64) {
        return Err(Error::DTypeUnsupported { what: "iir: input", expected: "f32 or c64", got: samples });
    }
    if sections.is_empty() || sections.len() > SECTIONS_MAX {
        return Err(Error::invalid("iir: sections", format!("1 to {SECTIONS_MAX}"), sections.len()));
    }
    match sections.iter().position(|section| !section.is_finite()) {
        Some(index) => {
            let got = format!("{:?} as section {index}", sections[index]);
            Err(Error::invalid("iir: weights of sections", "finite numbers", got))
        }
        None => Ok(()),
    }
}

impl Describe for Iir {
    fn name(&self) -> &'static str {
        "iir"
    }

    fn validate(&self) -> Result<()> {
        check_sections(&self.sections, self.input.dtype())?;
        let last = self.input.shape().rank().saturating_sub(1);
        check_axis(self.input.shape(), last, "iir: input", "iir: axis")
    }

    fn for_each_part(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        visit((&self.input).into());
    }

    fn for_each_part_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        visit((&mut self.input).into());
    }

    fn work(&self) -> u64 {
        (self.input.elements() as u64).saturating_mul(self.sections.len() as u64)
    }
}
