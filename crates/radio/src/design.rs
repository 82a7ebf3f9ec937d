//! Design of filters from specifications: plain functions in f64. Frequencies are fractions of half
//! the sampling rate, from 0 to 1.

use std::f64::consts::PI;

use num_complex::Complex64 as Complex;
use panoply_core::op::signal::Biquad;
use panoply_core::{Error, Result};

use crate::elliptic::{cd, inverse_sn, modulus_of, sn};
use crate::window::{WINDOW_LEN_MAX, Window, sinc};

/// The pass band of a filter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Band {
    /// Passes all frequencies below the edge.
    LowPass(f64),
    /// Passes all frequencies above the edge.
    HighPass(f64),
    /// Passes all frequencies between the edges.
    BandPass(f64, f64),
    /// Stops all frequencies between the edges.
    BandStop(f64, f64),
}

/// The prototype of a recursive filter, which determines its ripple and its steepness.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Prototype {
    /// Maximally flat in the pass band.
    Butterworth,
    /// Steeper than Butterworth, with ripple in the pass band.
    Chebyshev1 {
        /// The ripple in the pass band, in decibels.
        ripple_db: f64,
    },
    /// Steeper than Butterworth, with ripple and a minimum attenuation in the stop band.
    Chebyshev2 {
        /// The minimum attenuation in the stop band, in decibels.
        attenuation_db: f64,
    },
    /// The steepest (Cauer's), with ripple in both bands and a minimum attenuation in the stop
    /// band.
    Elliptic {
        /// The ripple in the pass band, in decibels.
        ripple_db: f64,
        /// The minimum attenuation in the stop band, in decibels; larger than the ripple.
        attenuation_db: f64,
    },
}

/// The highest order of a recursive filter. For higher orders f64 is not precise enough for the
/// poles.
pub const ORDER_MAX: usize = 50;

/// Designs a filter of finite response: the ideal response, truncated by a window, with a gain of 1
/// in the middle of its pass band.
pub fn windowed_sinc(taps: usize, band: Band, window: Window) -> Result<Vec<f64>> {
    let (passes, cutoffs) = band.edges()?;
    if taps == 0 || taps > WINDOW_LEN_MAX {
        return Err(Error::invalid("windowed sinc: taps", format!("1 to {WINDOW_LEN_MAX}"), taps));
    }
    if passes.last().is_some_and(|(_, right)| *right == 1.0) && taps.is_multiple_of(2) {
        let what = "windowed sinc: taps of a filter that lets the highest frequency through";
        return Err(Error::invalid(what, "an odd number", taps));
    }
    let middle = (taps - 1) as f64 / 2.0;
    let weights = window.symmetric(taps)?;
    let response = |at: usize| {
        let time = at as f64 - middle;
        passes.iter().map(|(left, right)| right * sinc(right * time) - left * sinc(left * time)).sum::<f64>()
    };
    let mut filter: Vec<f64> = (0..taps).map(|at| response(at) * weights[at]).collect();
    let (left, right) = passes[0];
    let center = match (left, right) {
        (0.0, _) => 0.0,
        (_, 1.0) => 1.0,
        (left, right) => (left + right) / 2.0,
    };
    let gain: f64 = filter.iter().enumerate().map(|(at, tap)| tap * (PI * (at as f64 - middle) * center).cos()).sum();
    if !gain.is_finite() || gain.abs() < 1e-12 {
        let got = format!("{taps} taps, {cutoffs:?}");
        return Err(Error::invalid("windowed sinc", "taps enough for the band", got));
    }
    filter.iter_mut().for_each(|tap| *tap /= gain);
    Ok(filter)
}

/// Designs a recursive filter as second-order sections. The section with the poles nearest to the
/// unit circle comes last.
pub fn recursive(prototype: Prototype, order: usize, band: Band) -> Result<Vec<Biquad>> {
    if order == 0 || order > ORDER_MAX {
        return Err(Error::invalid("filter: order", format!("1 to {ORDER_MAX}"), order));
    }
    band.edges()?;
    let analog = prototype.poles_and_zeros(order)?.moved_to(band);
    let sections = analog.bilinear().sections();
    let numbers = |section: &Biquad| section.b.iter().chain(&section.a).all(|number| number.is_finite());
    let is_silent = sections.iter().any(|section| section.b.iter().all(|number| number.abs() < f64::MIN_POSITIVE));
    if is_silent || !sections.iter().all(numbers) {
        let got = format!("{prototype:?} of order {order}, {band:?}");
        return Err(Error::invalid("filter", "a band that numbers of 64 bits can tell from its edges", got));
    }
    Ok(sections)
}

/// The complex gain of the sections at a frequency.
pub fn response(sections: &[Biquad], frequency: f64) -> Complex {
    let back = Complex::from_polar(1.0, -PI * frequency);
    let one = |section: &Biquad| {
        let top = section.b[0] + back * (section.b[1] + back * section.b[2]);
        top / (1.0 + back * (section.a[0] + back * section.a[1]))
    };
    sections.iter().map(one).product()
}

impl Band {
    /// The ranges that pass, and the edges between them.
    #[allow(clippy::type_complexity)]
    fn edges(self) -> Result<(Vec<(f64, f64)>, Vec<f64>)> {
        let (passes, cutoffs) = match self {
            Band::LowPass(edge) => (vec![(0.0, edge)], vec![edge]),
            Band::HighPass(edge) => (vec![(edge, 1.0)], vec![edge]),
            Band::BandPass(low, high) => (vec![(low, high)], vec![low, high]),
            Band::BandStop(low, high) => (vec![(0.0, low), (high, 1.0)], vec![low, high]),
        };
        let inside = cutoffs.iter().all(|edge| *edge > 0.0 && *edge < 1.0);
        if !inside || cutoffs.windows(2).any(|pair| pair[0] >= pair[1]) {
            let expected = "ascending shares of half the sampling rate, between 0 and 1";
            return Err(Error::invalid("filter: edges of its band", expected, format!("{cutoffs:?}")));
        }
        Ok((passes, cutoffs))
    }
}

/// A filter given by the roots of its numerator and denominator.
struct Roots {
    zeros: Vec<Complex>,
    poles: Vec<Complex>,
    gain: f64,
}

impl Prototype {
    /// The analog low-pass filter with its edge at 1 radian per second.
    fn poles_and_zeros(self, order: usize) -> Result<Roots> {
        let positive = |what: &'static str, db: f64| {
            let fits = db > 0.0 && db <= 300.0;
            if fits { Ok(db) } else { Err(Error::invalid(what, "more than 0 and at most 300 dB", db)) }
        };
        // The angles of the poles, from -order + 1 in steps of two, as multiples of π / (2 ·
        // order).
        let angles = (0..order).map(|index| PI * (2.0 * index as f64 - order as f64 + 1.0) / (2.0 * order as f64));
        Ok(match self {
            Prototype::Butterworth => {
                let poles = angles.map(|angle| -Complex::from_polar(1.0, angle)).collect();
                Roots { zeros: Vec::new(), poles, gain: 1.0 }
            }
            Prototype::Chebyshev1 { ripple_db } => {
                let ripple = positive("chebyshev: ripple", ripple_db)?;
                let epsilon = (10_f64.powf(0.1 * ripple) - 1.0).sqrt();
                let mu = (1.0 / epsilon).asinh() / order as f64;
                let poles: Vec<Complex> = angles.map(|angle| -(Complex::new(mu, angle)).sinh()).collect();
                let mut gain = poles.iter().map(|pole| -pole).product::<Complex>().re;
                if order.is_multiple_of(2) {
                    gain /= (1.0 + epsilon * epsilon).sqrt();
                }
                Roots { zeros: Vec::new(), poles, gain }
            }
            Prototype::Chebyshev2 { attenuation_db } => {
                let attenuation = positive("chebyshev: attenuation", attenuation_db)?;
                let epsilon = 1.0 / (10_f64.powf(0.1 * attenuation) - 1.0).sqrt();
                let mu = (1.0 / epsilon).asinh() / order as f64;
                let middle = |index: usize| 2 * index + 1 == order;
                let zeros: Vec<Complex> = angles
                    .clone()
                    .enumerate()
                    .filter(|(index, _)| !middle(*index))
                    .map(|(_, angle)| Complex::new(0.0, 1.0 / angle.sin()))
                    .collect();
                let poles: Vec<Complex> = angles
                    .map(|angle| -Complex::from_polar(1.0, angle))
                    .map(|pole| 1.0 / Complex::new(mu.sinh() * pole.re, mu.cosh() * pole.im))
                    .collect();
                let of = |roots: &[Complex]| roots.iter().map(|root| -root).product::<Complex>();
                let gain = (of(&poles) / of(&zeros)).re;
                Roots { zeros, poles, gain }
            }
            Prototype::Elliptic { ripple_db, attenuation_db } => {
                let ripple = positive("elliptic: ripple", ripple_db)?;
                let attenuation = positive("elliptic: attenuation", attenuation_db)?;
                if attenuation <= ripple {
                    return Err(Error::invalid("elliptic: attenuation", "more than the ripple", attenuation_db));
                }
                Roots::elliptic(order, ripple, attenuation)
            }
        })
    }
}

/// The analog frequency that the bilinear transform maps to this one, for a sampling rate of 2.
fn warped(frequency: f64) -> f64 {
    4.0 * (PI * frequency / 2.0).tan()
}

impl Roots {
    /// Cauer's low-pass filter: poles and zeros from elliptic functions.
    fn elliptic(order: usize, ripple_db: f64, attenuation_db: f64) -> Roots {
        let size = |db: f64| (10_f64.powf(0.1 * db) - 1.0).sqrt();
        let (epsilon, ratio) = (size(ripple_db), size(ripple_db) / size(attenuation_db));
        let k = modulus_of(order, ratio);
        let turn = Complex::new(0.0, 1.0);
        let shift = -turn * inverse_sn(turn / epsilon, ratio) / order as f64;
        let (mut zeros, mut poles) = (Vec::new(), Vec::new());
        for index in 0..order / 2 {
            let place = Complex::new((2 * index + 1) as f64 / order as f64, 0.0);
            let zero = turn / (k * cd(place, k));
            let pole = turn * cd(place - turn * shift, k);
            zeros.extend([zero, zero.conj()]);
            poles.extend([pole, pole.conj()]);
        }
        if !order.is_multiple_of(2) {
            poles.push(Complex::new((turn * sn(turn * shift, k)).re, 0.0));
        }
        let of = |roots: &[Complex]| roots.iter().map(|root| -root).product::<Complex>();
        let mut gain = (of(&poles) / of(&zeros)).re;
        if order.is_multiple_of(2) {
            gain /= (1.0 + epsilon * epsilon).sqrt();
        }
        Roots { zeros, poles, gain }
    }

    /// Transforms the low-pass filter to this band.
    fn moved_to(self, band: Band) -> Roots {
        match band {
            Band::LowPass(edge) => self.low_pass(warped(edge)),
            Band::HighPass(edge) => self.high_pass(warped(edge)),
            Band::BandPass(low, high) => {
                let (low, high) = (warped(low), warped(high));
                self.low_pass((high - low) / 2.0).around((low * high).sqrt())
            }
            Band::BandStop(low, high) => {
                let (low, high) = (warped(low), warped(high));
                self.stop((low * high).sqrt(), high - low)
            }
        }
    }

    fn missing_zeros(&self) -> usize {
        self.poles.len() - self.zeros.len()
    }

    fn low_pass(mut self, edge: f64) -> Roots {
        self.gain *= edge.powi(self.missing_zeros() as i32);
        self.zeros.iter_mut().chain(&mut self.poles).for_each(|root| *root *= edge);
        self
    }

    fn high_pass(mut self, edge: f64) -> Roots {
        let of = |roots: &[Complex]| roots.iter().map(|root| -root).product::<Complex>();
        self.gain *= (of(&self.zeros) / of(&self.poles)).re;
        let missing = self.missing_zeros();
        self.zeros.iter_mut().chain(&mut self.poles).for_each(|root| *root = edge / *root);
        self.zeros.extend(std::iter::repeat_n(Complex::default(), missing));
        self
    }

    /// Each root, already scaled to half the bandwidth, becomes two roots around the centre.
    fn around(mut self, center: f64) -> Roots {
        let missing = self.missing_zeros();
        // The scaling to half the bandwidth has multiplied the gain by a power of one half.
        self.gain *= 2_f64.powi(missing as i32);
        (self.zeros, self.poles) = (split(&self.zeros, center), split(&self.poles, center));
        self.zeros.extend(std::iter::repeat_n(Complex::default(), missing));
        self
    }

    fn stop(mut self, center: f64, bandwidth: f64) -> Roots {
        let of = |roots: &[Complex]| roots.iter().map(|root| -root).product::<Complex>();
        self.gain *= (of(&self.zeros) / of(&self.poles)).re;
        let missing = self.missing_zeros();
        self.zeros.iter_mut().chain(&mut self.poles).for_each(|root| *root = bandwidth / 2.0 / *root);
        (self.zeros, self.poles) = (split(&self.zeros, center), split(&self.poles, center));
        for _ in 0..missing {
            self.zeros.extend([Complex::new(0.0, center), Complex::new(0.0, -center)]);
        }
        self
    }

    /// Transforms the analog filter to a digital one.
    fn bilinear(mut self) -> Roots {
        let rate = 4.0;
        let of = |roots: &[Complex]| roots.iter().map(|root| rate - root).product::<Complex>();
        self.gain *= (of(&self.zeros) / of(&self.poles)).re;
        let missing = self.missing_zeros();
        self.zeros.iter_mut().chain(&mut self.poles).for_each(|root| *root = (rate + *root) / (rate - *root));
        self.zeros.extend(std::iter::repeat_n(Complex::new(-1.0, 0.0), missing));
        self
    }

    /// Groups the roots into pairs that are conjugate or real, so that every coefficient is real.
    fn sections(self) -> Vec<Biquad> {
        let mut poles = pairs(self.poles);
        let mut zeros = pairs(self.zeros);
        let far = |pair: &[Complex; 2]| pair.iter().map(|root| (1.0 - root.norm()).abs()).fold(f64::INFINITY, f64::min);
        poles.sort_by(|a, b| far(a).total_cmp(&far(b)));
        let mut sections = Vec::with_capacity(poles.len());
        for pole in poles {
            let nearness = |zero: &[Complex; 2]| (zero[0] - pole[0]).norm().min((zero[1] - pole[0]).norm());
            let nearest = (0..zeros.len()).min_by(|a, b| nearness(&zeros[*a]).total_cmp(&nearness(&zeros[*b])));
            let zero = nearest.map_or([Complex::default(); 2], |index| zeros.swap_remove(index));
            let product = |pair: [Complex; 2]| [-(pair[0] + pair[1]).re, (pair[0] * pair[1]).re];
            let ([b1, b2], a) = (product(zero), product(pole));
            sections.push(Biquad { b: [1.0, b1, b2], a });
        }
        sections.reverse();
        if let Some(first) = sections.first_mut() {
            first.b.iter_mut().for_each(|tap| *tap *= self.gain);
        }
        sections
    }
}

/// The two roots that replace a root of the low-pass filter.
fn split(roots: &[Complex], center: f64) -> Vec<Complex> {
    let distance = |root: &Complex| (root * root - center * center).sqrt();
    roots.iter().flat_map(|root| [root + distance(root), root - distance(root)]).collect()
}

/// Pairs of roots: conjugate roots together; the lowest real root with the highest; a single
/// remaining root with zero.
fn pairs(roots: Vec<Complex>) -> Vec<[Complex; 2]> {
    let is_real = |root: &Complex| root.im.abs() <= 1e-10 * (1.0 + root.norm());
    let (real, complex): (Vec<Complex>, Vec<Complex>) = roots.into_iter().partition(is_real);
    let mut pairs: Vec<[Complex; 2]> =
        complex.into_iter().filter(|root| root.im > 0.0).map(|root| [root, root.conj()]).collect();
    let mut real: Vec<f64> = real.into_iter().map(|root| root.re).collect();
    real.sort_by(f64::total_cmp);
    let (mut low, mut high) = (0, real.len());
    while high - low >= 2 {
        high -= 1;
        pairs.push([real[low].into(), real[high].into()]);
        low += 1;
    }
    pairs.extend((high - low == 1).then(|| [real[low].into(), Complex::default()]));
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    const BANDS: [Band; 4] =
        [Band::LowPass(0.2), Band::HighPass(0.3), Band::BandPass(0.2, 0.45), Band::BandStop(0.25, 0.6)];

    /// Frequencies in the middle of the pass band and of the stop band.
    fn middles(band: Band) -> (f64, f64) {
        match band {
            Band::LowPass(_) => (0.01, 0.9),
            Band::HighPass(_) => (0.99, 0.02),
            Band::BandPass(..) => (0.31, 0.95),
            Band::BandStop(..) => (0.01, 0.41),
        }
    }

    #[test]
    fn recursive_filters_pass_and_stop_where_they_should() {
        let kinds = [
            Prototype::Butterworth,
            Prototype::Chebyshev1 { ripple_db: 1.0 },
            Prototype::Chebyshev2 { attenuation_db: 40.0 },
            Prototype::Elliptic { ripple_db: 1.0, attenuation_db: 45.0 },
        ];
        for prototype in kinds {
            for band in BANDS {
                for order in [1, 2, 3, 5, 8] {
                    let sections = recursive(prototype, order, band).unwrap();
                    let (pass, stop) = middles(band);
                    let (pass, stop) = (response(&sections, pass).norm(), response(&sections, stop).norm());
                    assert!(sections.iter().all(Biquad::is_stable), "{prototype:?} {band:?} {order}");
                    // The edge of a Chebyshev filter of the second kind is that of its stop band,
                    // so a low order attenuates the pass band as well.
                    let narrow = order < 5 && matches!(prototype, Prototype::Chebyshev2 { .. });
                    assert!(narrow || (0.85..1.01).contains(&pass), "{prototype:?} {band:?} {order}: passes {pass}");
                    assert!(stop < 0.5 && (order < 5 || stop < 0.011), "{prototype:?} {band:?} {order}: stops {stop}");
                }
            }
        }
        let edge = response(&recursive(Prototype::Butterworth, 8, Band::LowPass(0.2)).unwrap(), 0.2).norm();
        assert!((edge - 0.5_f64.sqrt()).abs() < 1e-9, "{edge}");
    }

    #[test]
    fn windowed_sincs_pass_and_stop_where_they_should() {
        for band in BANDS {
            let taps = windowed_sinc(101, band, Window::Hamming).unwrap();
            let gain = |frequency: f64| {
                let term = |(at, tap): (usize, &f64)| Complex::from_polar(*tap, -PI * frequency * at as f64);
                taps.iter().enumerate().map(term).sum::<Complex>().norm()
            };
            let (pass, stop) = middles(band);
            assert!((gain(pass) - 1.0).abs() < 0.01 && gain(stop) < 0.01, "{band:?}");
        }
    }

    #[test]
    fn what_cannot_be_designed_is_refused() {
        let butter = Prototype::Butterworth;
        for band in [Band::LowPass(0.0), Band::LowPass(1.0), Band::HighPass(f64::NAN), Band::BandPass(0.5, 0.4)] {
            assert!(recursive(butter, 4, band).is_err() && windowed_sinc(11, band, Window::Hann).is_err());
        }
        assert!(recursive(butter, 0, Band::LowPass(0.5)).is_err());
        assert!(recursive(butter, ORDER_MAX + 1, Band::LowPass(0.5)).is_err());
        assert!(recursive(Prototype::Chebyshev1 { ripple_db: f64::NAN }, 3, Band::LowPass(0.5)).is_err());
        for (ripple_db, attenuation_db) in [(f64::NAN, 40.0), (1.0, 0.5), (0.0, 40.0), (1.0, 400.0)] {
            let prototype = Prototype::Elliptic { ripple_db, attenuation_db };
            assert!(recursive(prototype, 3, Band::LowPass(0.5)).is_err());
        }
        assert!(windowed_sinc(0, Band::LowPass(0.5), Window::Hann).is_err());
        assert!(windowed_sinc(10, Band::HighPass(0.5), Window::Hann).is_err());
        assert!(windowed_sinc(2, Band::LowPass(0.5), Window::Hann).is_err(), "a window of zeros");
    }
}
