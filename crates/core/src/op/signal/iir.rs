//! Iir: recursive filters.

use super::axis::check_axis;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::{AnswerTypes, Describe};
use crate::tensor::Tensor;

/// The most sections of a filter.
pub const SECTIONS_MAX: usize = 256;

/// A second-order section: `y[t] = b0·x[t] + b1·x[t-1] + b2·x[t-2] - a1·y[t-1] - a2·y[t-2]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Biquad {
    /// Weights of the samples, the newest first.
    pub b: [f64; 3],
    /// Weights of the previous outputs, the newest first. The weight of the current output is 1.
    pub a: [f64; 2],
}

impl Biquad {
    /// Whether the poles lie within the unit circle, so that the response decays.
    pub fn is_stable(&self) -> bool {
        let [a1, a2] = self.a;
        a2.abs() < 1.0 && a1.abs() < 1.0 + a2
    }

    fn is_finite(&self) -> bool {
        self.b.iter().chain(&self.a).all(|weight| weight.is_finite())
    }
}

/// Filters lines along the last axis through a cascade of second-order sections, as SciPy's
/// `sosfilt`. The output has the input's shape. States and sums are kept in f64.
///
/// A section with poles on or outside the unit circle is allowed, since its short-term response may
/// be wanted. [`Iir::unstable_sections`] returns such sections. A NaN or an infinity stays in the
/// state until the end of its line.
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

    /// The indices of the sections whose response does not decay.
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

    crate::parts!(input);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        Ok(AnswerTypes::Tensor(self.input.dtype(), *self.input.shape()))
    }

    fn work(&self) -> u64 {
        (self.input.elements() as u64).saturating_mul(self.sections.len() as u64)
    }
}
