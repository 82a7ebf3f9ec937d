//! Fir: filters with a finite impulse response.

use super::axis::check_axis;
use super::checks::weights_fit;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::{AnswerTypes, Describe};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// The most taps of a filter.
pub const TAPS_MAX: usize = 1 << 18;
/// The largest factor by which a rate is raised or lowered.
pub const RATE_MAX: usize = 4096;

/// Filters lines along the last axis: `y[t] = Σ taps[k] · x[t - k]`, as SciPy's
/// `lfilter(taps, 1, x)`. Samples before the first are zero. The output is as long as the input.
///
/// With [`Fir::interpolate`], `up - 1` zeros are inserted after each sample before filtering. With
/// [`Fir::decimate`], one of `down` samples is kept after filtering, beginning with the first. With
/// both the rate changes by any ratio, as in SciPy's `upfirdn`. The output then has
/// `⌈n · up / down⌉` samples.
///
/// Sums are kept in f32, in an order that the device chooses. Long filters may be applied by
/// Fourier transforms. A NaN or infinite sample affects the sums that it is a term of. If Fourier
/// transforms are used, it may affect more of its line.
#[derive(Clone, Debug)]
pub struct Fir {
    /// The signals, of at least one dimension: f32 or c64.
    pub input: Tensor,
    /// The taps, of one dimension: f32, or c64 if the input is c64.
    pub taps: Tensor,
    /// The factor by which the rate is raised.
    pub up: usize,
    /// The factor by which the rate is lowered.
    pub down: usize,
}

impl Fir {
    /// Filters each line.
    pub fn new(input: &Tensor, taps: &Tensor) -> Fir {
        Fir { input: input.clone(), taps: taps.clone(), up: 1, down: 1 }
    }

    /// Keeps one of `down` samples.
    pub fn decimate(mut self, down: usize) -> Fir {
        self.down = down;
        self
    }

    /// Raises the rate by the factor `up`.
    pub fn interpolate(mut self, up: usize) -> Fir {
        self.up = up;
        self
    }

    /// The output's shape.
    pub fn output_shape(&self) -> Result<Shape> {
        let last = self.input.shape().rank().saturating_sub(1);
        check_axis(self.input.shape(), last, "fir: input", "fir: axis")?;
        let len = self.input.shape()[last];
        let raised = len.checked_mul(self.up).ok_or_else(|| Error::SizeOverflow {
            what: "fir: output",
            got: vec![len, self.up],
            limit: isize::MAX as usize,
        })?;
        self.input.shape().with_dim(last, raised.div_ceil(self.down.max(1)))
    }
}

/// Checks a filter's taps and rates for samples of this type.
pub(super) fn check_taps(taps: &Tensor, up: usize, down: usize, samples: DType) -> Result<()> {
    if !matches!(samples, DType::F32 | DType::Complex64) {
        return Err(Error::DTypeUnsupported { what: "fir: input", expected: "f32 or c64", got: samples });
    }
    weights_fit(taps, samples, "fir: taps")?;
    if taps.shape().rank() != 1 {
        return Err(Error::RankMismatch { what: "fir: taps", expected: "1".into(), got: taps.shape().rank() });
    }
    let count = taps.elements();
    if count == 0 || count > TAPS_MAX {
        return Err(Error::invalid("fir: taps", format!("1 to {TAPS_MAX}"), count));
    }
    for (what, rate) in [("fir: interpolation", up), ("fir: decimation", down)] {
        if rate == 0 || rate > RATE_MAX {
            return Err(Error::invalid(what, format!("1 to {RATE_MAX}"), rate));
        }
    }
    Ok(())
}

impl Describe for Fir {
    fn name(&self) -> &'static str {
        "fir"
    }

    fn validate(&self) -> Result<()> {
        check_taps(&self.taps, self.up, self.down, self.input.dtype())?;
        self.output_shape().map(drop)
    }

    crate::parts!(input, taps);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        Ok(AnswerTypes::Tensor(self.input.dtype(), self.output_shape()?))
    }

    fn work(&self) -> u64 {
        match (self.up, self.down) {
            (1, 1) => filter_work(self.input.elements(), self.taps.elements()),
            (up, down) => rates_work(self.input.elements(), self.taps.elements(), up, down),
        }
    }
}

/// Number of taps from which a filter is applied by Fourier transforms.
const SPECTRAL_TAPS: usize = 256;

/// Number of multiplications of a filter that keeps the rate. With Fourier transforms it grows with
/// the logarithm of the taps.
pub(super) fn filter_work(samples: usize, taps: usize) -> u64 {
    let of_sample = match taps / SPECTRAL_TAPS {
        0 => taps.max(1),
        times => SPECTRAL_TAPS + 16 * times.ilog2() as usize,
    };
    (samples as u64).saturating_mul(of_sample as u64)
}

/// Number of multiplications of a filter that changes the rate, plus its input and output samples.
/// It is always computed by sums, however many taps there are.
fn rates_work(samples: usize, taps: usize, up: usize, down: usize) -> u64 {
    let outputs = (samples as u64).saturating_mul(up as u64).div_ceil(down.max(1) as u64);
    let of_output = taps.div_ceil(up.max(1)) as u64;
    outputs.saturating_mul(of_output).saturating_add(outputs).saturating_add(samples as u64)
}
