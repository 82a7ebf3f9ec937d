//! Track: loops that follow a signal's strength, carrier or timing.

use super::checks::{complex_only, line_len, positive, tensors};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::{CostClass, Describe};
use crate::part::{PartMut, PartRef};
use crate::tensor::Tensor;

/// How a loop finds out that symbols are sampled too late or too early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TimingDetector {
    /// From the sample half way between two symbols. It needs two samples a symbol and no carrier.
    Gardner,
    /// From two symbols and the quadrants that they lie in, by Mueller and Müller. It needs a carrier that is recovered.
    MuellerMuller,
}

/// A loop that follows a signal of complex samples. Loops go by the sample, in f64.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tracker {
    /// Keeps the strength: `y = g·x`, then `g += rate·(target - |y|)`, between 0 and `gain_max`, from 1 on. What is not finite leaves the gain
    /// as it was.
    Gain {
        /// The size of samples to reach.
        target: f64,
        /// How fast: the share of a difference that each sample takes away.
        rate: f64,
        /// The highest gain.
        gain_max: f64,
    },
    /// Takes the carrier off symbols, one sample each: a Costas loop of second order, damped by `1/√2`.
    Carrier {
        /// On how many points symbols lie: 2, 4 or 8 phases.
        phases: usize,
        /// The loop's bandwidth, as a share of the symbol rate: above 0, up to 0.25.
        bandwidth: f64,
    },
    /// Gives one sample for each symbol, where it is best told from its neighbours: cubic interpolation, steered by a loop of second order. How many
    /// come out depends on the signal. One signal alone, of one dimension.
    Timing {
        /// How it finds the place.
        detector: TimingDetector,
        /// Samples of a symbol, about: 1 or more, 2 or more for Gardner's.
        samples: f64,
        /// The loop's bandwidth, as a share of the symbol rate: above 0, up to 0.25.
        bandwidth: f64,
    },
}

/// The most samples of a symbol.
pub const SYMBOL_SAMPLES_MAX: f64 = 4096.0;
/// By how much a symbol may be longer or shorter than was said.
pub const SYMBOL_DRIFT_MAX: f64 = 0.05;

impl Tracker {
    /// The name used in benchmarks and metrics.
    pub const fn name(&self) -> &'static str {
        match self {
            Tracker::Gain { .. } => "gain",
            Tracker::Carrier { .. } => "carrier",
            Tracker::Timing { .. } => "timing",
        }
    }

    /// What a loop of second order, damped by `1/√2`, of this bandwidth adds of an error to the phase and to the frequency.
    pub fn loop_gains(bandwidth: f64) -> (f64, f64) {
        let damping = std::f64::consts::FRAC_1_SQRT_2;
        let divisor = 1.0 + 2.0 * damping * bandwidth + bandwidth * bandwidth;
        (4.0 * damping * bandwidth / divisor, 4.0 * bandwidth * bandwidth / divisor)
    }

    pub(super) fn check(&self) -> Result<()> {
        let share = |bandwidth: f64| match bandwidth > 0.0 && bandwidth <= 0.25 {
            true => Ok(()),
            false => Err(Error::invalid("track: bandwidth of the loop", "above 0, up to 0.25", bandwidth)),
        };
        match *self {
            Tracker::Gain { target, rate, gain_max } => {
                positive(target, "track: target of the gain")?;
                positive(rate, "track: rate of the gain")?;
                positive(gain_max, "track: highest gain")
            }
            Tracker::Carrier { phases, bandwidth } => match phases {
                2 | 4 | 8 => share(bandwidth),
                got => Err(Error::invalid("track: phases of the carrier", "2, 4 or 8", got)),
            },
            Tracker::Timing { detector, samples, bandwidth } => {
                let least = if detector == TimingDetector::Gardner { 2.0 } else { 1.0 };
                if !(least..=SYMBOL_SAMPLES_MAX).contains(&samples) {
                    let expected = format!("{least} to {SYMBOL_SAMPLES_MAX}");
                    return Err(Error::invalid("track: samples of a symbol", expected, samples));
                }
                share(bandwidth)
            }
        }
    }
}

/// A loop over lines of c64 along the last axis. The output has the input's shape, but for [`Tracker::Timing`].
#[derive(Clone, Debug)]
pub struct Track {
    /// The loop.
    pub tracker: Tracker,
    /// The signals.
    pub input: Tensor,
}

impl Track {
    /// Follows each line from its first sample on.
    pub fn new(tracker: Tracker, input: &Tensor) -> Track {
        Track { tracker, input: input.clone() }
    }
}

/// Checks what a tracker is given.
pub(super) fn check_tracked(tracker: &Tracker, dtype: DType, lines_of_many: bool) -> Result<()> {
    tracker.check()?;
    if dtype != DType::Complex64 {
        return Err(Error::DTypeMismatch { what: "track: input", expected: DType::Complex64, got: dtype });
    }
    if lines_of_many && matches!(tracker, Tracker::Timing { .. }) {
        return Err(Error::invalid("track: signals whose timing is recovered", "one", "several"));
    }
    Ok(())
}

impl Describe for Track {
    fn name(&self) -> &'static str {
        "track"
    }

    fn validate(&self) -> Result<()> {
        complex_only(&self.input, "track: input")?;
        line_len(&self.input, "track: input")?;
        check_tracked(&self.tracker, self.input.dtype(), self.input.shape().rank() > 1)
    }

    tensors!(input);

    fn cost_class(&self) -> CostClass {
        CostClass::labelled(self.tracker.name())
    }
}
