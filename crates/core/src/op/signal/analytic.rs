//! Hilbert and Mix: analytic signals, and signals shifted in frequency.

use super::checks::{finite, line_len, real_only, real_or_complex};
use super::fft::transform_work;
use crate::dtype::DType;
use crate::error::Result;
use crate::op::{AnswerTypes, Describe};
use crate::tensor::Tensor;

/// The analytic signal of lines of f32 along the last axis, as SciPy's `hilbert`: c64 of the same
/// shape, whose real part is the input and whose spectrum has no negative frequencies. NaN,
/// infinity and rounding are as for [`super::Fft`].
#[derive(Clone, Debug)]
pub struct Hilbert {
    /// The signals.
    pub input: Tensor,
}

impl Hilbert {
    /// The analytic signal.
    pub fn new(input: &Tensor) -> Hilbert {
        Hilbert { input: input.clone() }
    }
}

/// Multiplies lines of f32 or c64 along the last axis by a rotating phasor:
/// `y[t] = x[t] · exp(2πi·(frequency·t + phase))`, c64 of the same shape. The angle is computed in
/// f64 for every sample, so that it does not drift.
#[derive(Clone, Debug)]
pub struct Mix {
    /// The signals.
    pub input: Tensor,
    /// Frequency in cycles per sample, of either sign.
    pub frequency: f64,
    /// Phase of the first sample, in cycles.
    pub phase: f64,
}

impl Mix {
    /// Shifts spectra up by this many cycles per sample.
    pub fn new(input: &Tensor, frequency: f64) -> Mix {
        Mix { input: input.clone(), frequency, phase: 0.0 }
    }

    /// Sets the phase of the first sample, in cycles.
    pub fn phase(mut self, turns: f64) -> Mix {
        self.phase = turns;
        self
    }
}

impl Describe for Hilbert {
    fn name(&self) -> &'static str {
        "hilbert"
    }

    fn validate(&self) -> Result<()> {
        real_only(&self.input, "hilbert: input")?;
        line_len(&self.input, "hilbert: input").map(drop)
    }

    crate::parts!(input);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        Ok(AnswerTypes::Tensor(DType::Complex64, *self.input.shape()))
    }

    fn work(&self) -> u64 {
        transform_work(&self.input, self.input.shape().rank().saturating_sub(1))
    }
}

impl Describe for Mix {
    fn name(&self) -> &'static str {
        "mix"
    }

    fn validate(&self) -> Result<()> {
        real_or_complex(&self.input, "mix: input")?;
        finite(self.frequency, "mix: frequency")?;
        finite(self.phase, "mix: phase")?;
        line_len(&self.input, "mix: input").map(drop)
    }

    crate::parts!(input);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        Ok(AnswerTypes::Tensor(DType::Complex64, *self.input.shape()))
    }
}
