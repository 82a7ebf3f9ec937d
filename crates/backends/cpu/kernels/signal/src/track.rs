//! Loops that track a signal's strength, carrier or timing, with their state. The pieces of a
//! stream give bit for bit the same result as the whole stream.

use std::f64::consts::{FRAC_1_SQRT_2, SQRT_2, TAU};

use num_complex::{Complex32, Complex64};
use panoply_core::op::signal::{SYMBOL_DRIFT_MAX, TimingDetector, Tracker};

/// The state of a loop.
#[derive(Clone)]
pub enum Tracking {
    /// Automatic gain control.
    Gain {
        /// The wanted magnitude.
        target: f64,
        /// The share of the error by which the gain changes in each sample.
        rate: f64,
        /// The highest gain.
        gain_max: f64,
        /// The current gain.
        gain: f64,
    },
    /// Carrier tracking.
    Carrier {
        /// Number of phases of the modulation.
        phases: usize,
        /// The factors with which an error changes phase and frequency.
        gains: (f64, f64),
        /// The current phase, in radians.
        phase: f64,
        /// The current frequency, in radians per sample.
        frequency: f64,
    },
    /// Symbol timing.
    Timing(Timing),
}

/// The state of the timing loop.
#[derive(Clone)]
pub struct Timing {
    detector: TimingDetector,
    gains: (f64, f64),
    /// Number of samples for each symbol: the nominal and the current estimate.
    samples: f64,
    length: f64,
    /// The last samples; `kept_first` is the index in the stream of the first of them. Samples
    /// before the stream are zero.
    kept: Vec<Complex32>,
    kept_first: i64,
    /// The position of the next symbol: the index of a sample, and a fraction beyond it.
    whole: i64,
    part: f64,
    before: Complex64,
}

impl Tracking {
    /// A loop before the first sample.
    pub fn new(tracker: Tracker) -> Tracking {
        match tracker {
            Tracker::Gain { target, rate, gain_max } => Tracking::Gain { target, rate, gain_max, gain: 1.0 },
            Tracker::Carrier { phases, bandwidth } => {
                Tracking::Carrier { phases, gains: Tracker::loop_gains(bandwidth), phase: 0.0, frequency: 0.0 }
            }
            Tracker::Timing { detector, samples, bandwidth } => Tracking::Timing(Timing {
                detector,
                gains: Tracker::loop_gains(bandwidth),
                samples,
                length: samples,
                kept: Vec::new(),
                kept_first: 0,
                whole: samples.floor() as i64,
                part: samples - samples.floor(),
                before: Complex64::default(),
            }),
        }
    }

    /// Processes the next samples. The output has as many samples as the input, or for timing one
    /// for each symbol.
    pub fn next(&mut self, input: &[Complex32]) -> Vec<Complex32> {
        match self {
            Tracking::Gain { target, rate, gain_max, gain } => {
                let one = |value: &Complex32| {
                    let out = wide(*value) * *gain;
                    let error = *target - out.norm();
                    if error.is_finite() {
                        *gain = (*gain + *rate * error).clamp(0.0, *gain_max);
                    }
                    narrow(out)
                };
                input.iter().map(one).collect()
            }
            Tracking::Carrier { phases, gains, phase, frequency } => {
                let one = |value: &Complex32| {
                    let out = wide(*value) * Complex64::from_polar(1.0, -*phase);
                    let error = carrier_error(out, *phases);
                    if error.is_finite() {
                        let error = error.clamp(-1.0, 1.0);
                        *frequency += gains.1 * error;
                        *phase = (*phase + *frequency + gains.0 * error) % TAU;
                    }
                    narrow(out)
                };
                input.iter().map(one).collect()
            }
            Tracking::Timing(timing) => timing.next(input),
        }
    }
}

fn wide(value: Complex32) -> Complex64 {
    Complex64::new(f64::from(value.re), f64::from(value.im))
}

fn narrow(value: Complex64) -> Complex32 {
    Complex32::new(value.re as f32, value.im as f32)
}

fn sign(value: f64) -> f64 {
    if value >= 0.0 { 1.0 } else { -1.0 }
}

/// An approximation of the angle between a symbol and the nearest of `phases` phases.
fn carrier_error(symbol: Complex64, phases: usize) -> f64 {
    let Complex64 { re, im } = symbol;
    match phases {
        2 => re * im,
        4 => sign(re) * im - sign(im) * re,
        _ if re.abs() >= im.abs() => sign(re) * im - sign(im) * re * (SQRT_2 - 1.0),
        _ => sign(re) * im * (SQRT_2 - 1.0) - sign(im) * re,
    }
}

impl Timing {
    fn next(&mut self, input: &[Complex32]) -> Vec<Complex32> {
        self.kept.extend_from_slice(input);
        let end = self.kept_first + self.kept.len() as i64;
        let mut symbols = Vec::with_capacity((input.len() as f64 / self.samples) as usize + 2);
        while self.whole + 2 < end {
            let now = self.value(self.whole, self.part);
            let late = match self.detector {
                TimingDetector::Gardner => {
                    let middle = self.part - self.length / 2.0;
                    let middle = self.value(self.whole + middle.floor() as i64, middle - middle.floor());
                    dot(middle, now - self.before)
                }
                TimingDetector::MuellerMuller => dot(quadrant(now), self.before) - dot(quadrant(self.before), now),
            };
            symbols.push(narrow(now));
            let late = if late.is_finite() { late.clamp(-1.0, 1.0) } else { 0.0 };
            let drift = self.samples * SYMBOL_DRIFT_MAX;
            let length = self.length - self.gains.1 * late * self.samples;
            self.length = length.clamp(self.samples - drift, self.samples + drift);
            self.part += self.length - self.gains.0 * late * self.samples;
            self.whole += self.part.floor() as i64;
            self.part -= self.part.floor();
            self.before = if now.re.is_finite() && now.im.is_finite() { now } else { Complex64::default() };
        }
        // The oldest sample still needed is half a symbol before the next symbol, with one more
        // sample for the interpolation.
        let oldest = self.whole - (self.length / 2.0).ceil() as i64 - 2;
        let unneeded = (oldest - self.kept_first).clamp(0, self.kept.len() as i64);
        self.kept.drain(..unneeded as usize);
        self.kept_first += unneeded;
        symbols
    }

    /// The signal between two samples, by cubic Lagrange interpolation through four samples.
    fn value(&self, whole: i64, part: f64) -> Complex64 {
        let sample = |at: i64| {
            let place = usize::try_from(whole + at - self.kept_first).ok();
            place.and_then(|place| self.kept.get(place)).map_or_else(Complex64::default, |value| wide(*value))
        };
        let (a, b, c) = (part + 1.0, part - 1.0, part - 2.0);
        sample(-1) * (-part * b * c / 6.0)
            + sample(0) * (a * b * c / 2.0)
            + sample(1) * (-a * part * c / 2.0)
            + sample(2) * (a * part * b / 6.0)
    }
}

fn dot(a: Complex64, b: Complex64) -> f64 {
    a.re * b.re + a.im * b.im
}

fn quadrant(value: Complex64) -> Complex64 {
    Complex64::new(sign(value.re) * FRAC_1_SQRT_2, sign(value.im) * FRAC_1_SQRT_2)
}
