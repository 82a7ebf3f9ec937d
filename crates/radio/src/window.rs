//! Windows: weights for a piece of a signal, small at its ends.

use std::f64::consts::{PI, TAU};

use panoply_core::{Error, Result};

/// The shape of a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Window {
    /// All ones.
    Rectangular,
    /// A raised cosine.
    Hann,
    /// A raised cosine on a pedestal.
    Hamming,
    /// Three cosine terms.
    Blackman,
    /// Four cosine terms, with side lobes below -92 dB.
    BlackmanHarris,
    /// Kaiser's window with its β, from 0 (all ones) to [`KAISER_BETA_MAX`].
    Kaiser(f64),
}

/// The largest β of Kaiser's window. Beyond it the Bessel functions overflow.
pub const KAISER_BETA_MAX: f64 = 600.0;

/// The largest number of elements of a window, and of taps of a designed filter.
pub const WINDOW_LEN_MAX: usize = 1 << 24;

impl Window {
    /// The symmetric window, for filters.
    pub fn symmetric(self, len: usize) -> Result<Vec<f64>> {
        self.check(len)?;
        Ok(if len == 1 { vec![1.0] } else { self.points(len, len.saturating_sub(1)) })
    }

    /// The periodic window, for spectra: the next window would begin where it ends.
    pub fn periodic(self, len: usize) -> Result<Vec<f64>> {
        self.check(len)?;
        Ok(if len == 1 { vec![1.0] } else { self.points(len, len) })
    }

    fn check(self, len: usize) -> Result<()> {
        if len > WINDOW_LEN_MAX {
            return Err(Error::OutOfBounds { what: "window: elements", limit: WINDOW_LEN_MAX, got: len });
        }
        match self {
            Window::Kaiser(beta) if !(0.0..=KAISER_BETA_MAX).contains(&beta) => {
                Err(Error::invalid("window: Kaiser's beta", format!("0 to {KAISER_BETA_MAX}"), beta))
            }
            _ => Ok(()),
        }
    }

    fn points(self, len: usize, period: usize) -> Vec<f64> {
        let period = period as f64;
        let cosines = |terms: &[f64]| -> Vec<f64> {
            let sum = |at: usize| {
                let term = |(order, weight): (usize, &f64)| weight * (TAU * (order * at) as f64 / period).cos();
                terms.iter().enumerate().map(term).sum()
            };
            (0..len).map(sum).collect()
        };
        match self {
            Window::Rectangular => vec![1.0; len],
            Window::Hann => cosines(&[0.5, -0.5]),
            Window::Hamming => cosines(&[0.54, -0.46]),
            Window::Blackman => cosines(&[0.42, -0.5, 0.08]),
            Window::BlackmanHarris => cosines(&[0.35875, -0.48829, 0.14128, -0.01168]),
            Window::Kaiser(beta) => {
                let middle = bessel_i0(beta);
                let weight = |at: usize| {
                    let place = 2.0 * at as f64 / period - 1.0;
                    bessel_i0(beta * (1.0 - place * place).max(0.0).sqrt()) / middle
                };
                (0..len).map(weight).collect()
            }
        }
    }
}

/// β of the Kaiser window whose filter has this stop-band attenuation in decibels. Fails if the
/// attenuation is not finite or needs a larger β than a window can have.
pub fn kaiser_beta(attenuation_db: f64) -> Result<f64> {
    let beta = match attenuation_db {
        db if db > 50.0 => 0.1102 * (db - 8.7),
        db if db > 21.0 => 0.5842 * (db - 21.0).powf(0.4) + 0.07886 * (db - 21.0),
        db if db.is_finite() => 0.0,
        _ => f64::NAN,
    };
    match (0.0..=KAISER_BETA_MAX).contains(&beta) {
        true => Ok(beta),
        false => Err(Error::invalid("window: attenuation in decibels", "a finite number up to 5,450", attenuation_db)),
    }
}

/// `sin(πx) / πx`.
pub(crate) fn sinc(x: f64) -> f64 {
    if x == 0.0 { 1.0 } else { (PI * x).sin() / (PI * x) }
}

/// The modified Bessel function of the first kind and order 0, by its power series. All terms are
/// positive.
fn bessel_i0(x: f64) -> f64 {
    let quarter = x * x / 4.0;
    let (mut sum, mut term, mut order) = (1.0_f64, 1.0_f64, 1.0_f64);
    while term > sum * 1e-17 && order < 2000.0 {
        term *= quarter / (order * order);
        sum += term;
        order += 1.0;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_alike_or_meet() {
        for window in [
            Window::Rectangular,
            Window::Hann,
            Window::Hamming,
            Window::Blackman,
            Window::BlackmanHarris,
            Window::Kaiser(8.6),
        ] {
            for len in [0, 1, 2, 5, 8] {
                let symmetric = window.symmetric(len).unwrap();
                assert_eq!(symmetric.len(), len);
                for at in 0..len {
                    assert!((symmetric[at] - symmetric[len - 1 - at]).abs() < 1e-12, "{window:?} {len}");
                }
            }
            assert!((window.periodic(8).unwrap()[3] - window.symmetric(9).unwrap()[3]).abs() < 1e-12);
        }
    }

    #[test]
    fn what_has_no_window_is_refused() {
        for beta in [-1.0, f64::NAN, f64::INFINITY, 1e9] {
            assert!(Window::Kaiser(beta).symmetric(4).is_err());
        }
        assert!(Window::Hann.symmetric(usize::MAX).is_err());
        for attenuation in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 6000.0] {
            assert!(kaiser_beta(attenuation).is_err(), "{attenuation}");
        }
        assert_eq!((kaiser_beta(-3.0).unwrap(), kaiser_beta(60.0).unwrap()), (0.0, 0.1102 * (60.0 - 8.7)));
        assert!(Window::Kaiser(KAISER_BETA_MAX).symmetric(5).unwrap().iter().all(|weight| weight.is_finite()));
    }
}
