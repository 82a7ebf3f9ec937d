//! Adapt: adaptive filters and equalisers.

use super::checks::{complex_only, line_len, of_type, positive, within};
use super::modem::Constellation;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::{AnswerTypes, CostClass, Describe};
use crate::part::{PartMut, PartRef, Parts};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// The most taps of an adaptive filter.
pub const LEARNED_TAPS_MAX: usize = 4096;

/// The target of an adaptive filter.
#[derive(Clone, Debug)]
pub enum AdaptTarget {
    /// This signal, of the input's shape.
    Signal(Tensor),
    /// The nearest point: a decision-directed equaliser.
    Decisions(Constellation),
    /// Samples of this power at any angle (the constant-modulus algorithm): an equaliser that needs
    /// no carrier.
    Modulus(f64),
}

impl Parts for AdaptTarget {
    fn visit(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        if let AdaptTarget::Signal(signal) = self {
            signal.visit(visit);
        }
    }

    fn visit_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        if let AdaptTarget::Signal(signal) = self {
            signal.visit_mut(visit);
        }
    }
}

/// Filters lines of c64 along the last axis with weights that change after each sample:
/// `y[t] = Σ w[k]·x[t-k]`, then `w[k] += step·e·conj(x[t-k])`, where `e` is the difference to the
/// target (LMS). With [`Adapt::normalized`] the step is divided by the power of the samples in the
/// filter (NLMS).
///
/// The outputs are `y`, of the input's shape, and the weights after the last sample of each line,
/// `[…, taps]`. A step that is too large is not refused: the weights grow to infinity, which shows
/// in the outputs.
#[derive(Clone, Debug)]
pub struct Adapt {
    /// The signals.
    pub input: Tensor,
    /// The target.
    pub target: AdaptTarget,
    /// The initial weights, of one dimension.
    pub weights: Tensor,
    /// The step size of the weights.
    pub step: f64,
    /// Whether the step is divided by the power of the samples.
    pub normalized: bool,
}

impl Adapt {
    /// An LMS filter that starts with these weights.
    pub fn new(input: &Tensor, target: AdaptTarget, weights: &Tensor, step: f64) -> Adapt {
        Adapt { input: input.clone(), target, weights: weights.clone(), step, normalized: false }
    }

    /// Normalises the step (NLMS).
    pub fn normalized(mut self) -> Adapt {
        self.normalized = true;
        self
    }

    /// The shapes of the signal and of the weights.
    pub fn output_shapes(&self) -> Result<(Shape, Shape)> {
        line_len(&self.input, "adapt: input")?;
        let last = self.input.shape().rank() - 1;
        Ok((*self.input.shape(), self.input.shape().with_dim(last, self.weights.elements())?))
    }
}

/// Checks the initial weights of an adaptive filter, and its step.
pub(super) fn check_weights(weights: &Tensor, step: f64) -> Result<()> {
    of_type(weights, DType::Complex64, "adapt: weights")?;
    if weights.shape().rank() != 1 {
        let got = weights.shape().rank();
        return Err(Error::RankMismatch { what: "adapt: weights", expected: "1".into(), got });
    }
    within(weights.elements(), 1, LEARNED_TAPS_MAX, "adapt: weights")?;
    positive(step, "adapt: step")
}

impl Describe for Adapt {
    fn name(&self) -> &'static str {
        "adapt"
    }

    fn validate(&self) -> Result<()> {
        complex_only(&self.input, "adapt: input")?;
        check_weights(&self.weights, self.step)?;
        match &self.target {
            AdaptTarget::Signal(signal) => {
                of_type(signal, DType::Complex64, "adapt: target")?;
                if signal.shape() != self.input.shape() {
                    let (expected, got) = (self.input.shape().to_vec(), signal.shape().to_vec());
                    return Err(Error::ShapeMismatch { what: "adapt: target", expected, got });
                }
            }
            AdaptTarget::Decisions(constellation) => constellation.check()?,
            AdaptTarget::Modulus(power) => positive(*power, "adapt: power of the target")?,
        }
        self.output_shapes().map(drop)
    }

    crate::parts!(input, weights, target);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        let (signal, weights) = self.output_shapes()?;
        Ok(AnswerTypes::Pair([(DType::Complex64, signal), (DType::Complex64, weights)]))
    }

    fn work(&self) -> u64 {
        (self.input.elements() as u64).saturating_mul(self.weights.elements() as u64)
    }

    fn cost_class(&self) -> CostClass {
        CostClass::labelled(match &self.target {
            AdaptTarget::Signal(_) => "signal",
            AdaptTarget::Decisions(constellation) => constellation.name(),
            AdaptTarget::Modulus(_) => "modulus",
        })
    }
}
