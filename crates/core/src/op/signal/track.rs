//! Track: loops that follow a signal's gain, carrier or timing.

use super::checks::{complex_only, line_len, positive};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::{AnswerTypes, CostClass, Describe};
use crate::tensor::Tensor;

/// The detector that measures whether symbols are sampled too late or too early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TimingDetector {
    /// Uses the sample half-way between two symbols. Needs two samples per symbol, but no carrier
    /// recovery.
    Gardner,
    /// Uses two symbols and their quadrants, by Mueller and Müller. Needs a recovered carrier.
    MuellerMuller,
}

/// A loop that follows a signal of complex samples. Loops work sample by sample, in f64.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tracker {
    /// Controls the gain: `y = g·x`, then `g += rate·(target - |y|)`, limited to the range from 0
    /// to `gain_max`. The initial gain is 1. A sample that is not finite leaves the gain unchanged.
    Gain {
        /// The target magnitude of samples.
        target: f64,
        /// The speed: the share of a difference that each sample removes.
        rate: f64,
        /// The highest gain.
        gain_max: f64,
    },
    /// Removes the carrier from symbols of one sample each: a second-order Costas loop with a
    /// damping of `1/√2`.
    Carrier {
        /// Number of phases of the symbols: 2, 4 or 8.
        phases: usize,
        /// Bandwidth of the loop as a share of the symbol rate: above 0, up to 0.25.
        bandwidth: f64,
    },
    /// Gives one sample for each symbol, at the best sampling time, by cubic interpolation
    /// controlled by a second-order loop. The number of output samples depends on the signal. The
    /// input is a single signal, of one dimension.
    Timing {
        /// The timing detector.
        detector: TimingDetector,
        /// Approximate number of samples per symbol: 1 or more; 2 or more for Gardner's detector.
        samples: f64,
        /// Bandwidth of the loop as a share of the symbol rate: above 0, up to 0.25.
        bandwidth: f64,
    },
}

/// The most samples per symbol.
pub const SYMBOL_SAMPLES_MAX: f64 = 4096.0;
/// The largest deviation of a symbol's length from the given length, as a share.
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

    /// The proportional and the integral gain of a second-order loop with this bandwidth and a
    /// damping of `1/√2`: the parts of an error that are added to the phase and to the frequency.
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

/// Runs a loop over lines of c64 along the last axis. The output has the input's shape, except for
/// [`Tracker::Timing`].
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

/// Checks a tracker and the samples that it will follow.
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

    crate::parts!(input);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        Ok(match self.tracker {
            // The number of symbols of a signal depends on its contents.
            Tracker::Timing { .. } => AnswerTypes::Unknown,
            _ => AnswerTypes::Tensor(DType::Complex64, *self.input.shape()),
        })
    }

    fn cost_class(&self) -> CostClass {
        CostClass::labelled(self.tracker.name())
    }
}
