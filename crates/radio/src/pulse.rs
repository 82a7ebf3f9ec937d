//! Pulses for symbols, and filters between two sample rates.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use panoply_core::op::signal::RATE_MAX;
use panoply_core::{Error, Result};

use crate::design::{Band, windowed_sinc};
use crate::window::{Window, kaiser_beta};

/// The largest number of taps of a pulse.
pub const PULSE_TAPS_MAX: usize = 1 << 18;

/// The root-raised-cosine pulse. If transmitter and receiver both filter with it, symbols do not
/// interfere with each other. It has `samples` samples for each symbol, spans `symbols` symbols and
/// has the energy 1: `samples · symbols + 1` taps, for
/// [`Fir::interpolate`](panoply_core::op::signal::Fir::interpolate).
pub fn root_raised_cosine(samples: usize, roll_off: f64, symbols: usize) -> Result<Vec<f64>> {
    if !(roll_off > 0.0 && roll_off <= 1.0) {
        return Err(Error::invalid("pulse: roll-off", "above 0, up to 1", roll_off));
    }
    let taps = samples.checked_mul(symbols).and_then(|taps| taps.checked_add(1)).unwrap_or(usize::MAX);
    if samples == 0 || symbols == 0 || taps > PULSE_TAPS_MAX {
        let got = format!("{symbols} symbols of {samples} samples");
        return Err(Error::invalid("pulse: taps", format!("2 to {PULSE_TAPS_MAX}"), got));
    }
    let middle = (taps - 1) as f64 / 2.0;
    let value = |at: usize| {
        let time = (at as f64 - middle) / samples as f64;
        let edge = 4.0 * roll_off * time;
        if time == 0.0 {
            1.0 + roll_off * (4.0 / PI - 1.0)
        } else if (edge.abs() - 1.0).abs() < 1e-9 {
            let angle = PI / (4.0 * roll_off);
            roll_off * FRAC_1_SQRT_2 * ((1.0 + 2.0 / PI) * angle.sin() + (1.0 - 2.0 / PI) * angle.cos())
        } else {
            let top = (PI * time * (1.0 - roll_off)).sin() + edge * (PI * time * (1.0 + roll_off)).cos();
            top / (PI * time * (1.0 - edge * edge))
        }
    };
    let mut pulse: Vec<f64> = (0..taps).map(value).collect();
    let size = pulse.iter().map(|tap| tap * tap).sum::<f64>().sqrt();
    pulse.iter_mut().for_each(|tap| *tap /= size);
    Ok(pulse)
}

/// The low-pass filter between two rates, for [`Fir`](panoply_core::op::signal::Fir) with the same
/// rates. The lower of both bands passes; aliases are attenuated by `attenuation_db` decibels. A
/// sample affects about `half` samples of the lower rate to either side.
pub fn resampler(up: usize, down: usize, half: usize, attenuation_db: f64) -> Result<Vec<f64>> {
    for (what, rate) in [("resampler: interpolation", up), ("resampler: decimation", down)] {
        if rate == 0 || rate > RATE_MAX {
            return Err(Error::invalid(what, format!("1 to {RATE_MAX}"), rate));
        }
    }
    let slower = up.max(down);
    let taps = half.checked_mul(2 * slower).and_then(|taps| taps.checked_add(1)).unwrap_or(usize::MAX);
    if half == 0 || taps > PULSE_TAPS_MAX {
        return Err(Error::invalid("resampler: taps", format!("3 to {PULSE_TAPS_MAX}"), taps));
    }
    if slower == 1 {
        return Ok(vec![1.0]);
    }
    let window = Window::Kaiser(kaiser_beta(attenuation_db)?);
    let filter = windowed_sinc(taps, Band::LowPass(1.0 / slower as f64), window)?;
    // The zeros between samples reduce the amplitude by `up`; the taps compensate for that.
    Ok(filter.into_iter().map(|tap| tap * up as f64).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twice_the_root_leaves_other_symbols_alone() {
        for roll_off in [0.2, 0.25, 0.5, 1.0] {
            let pulse = root_raised_cosine(8, roll_off, 32).unwrap();
            let twice = |shift: usize| pulse.iter().zip(&pulse[shift..]).map(|(a, b)| a * b).sum::<f64>();
            assert!((twice(0) - 1.0).abs() < 1e-12);
            (1..12).for_each(|symbol| {
                assert!(twice(8 * symbol).abs() < 2e-3, "{roll_off} {symbol}: {}", twice(8 * symbol))
            });
        }
        for (samples, roll_off, symbols) in
            [(0, 0.5, 4), (4, 0.5, 0), (4, 0.0, 4), (4, f64::NAN, 4), (4, 1.1, 4), (usize::MAX, 0.5, 9)]
        {
            assert!(root_raised_cosine(samples, roll_off, symbols).is_err());
        }
    }

    #[test]
    fn resamplers_keep_what_is_slow() {
        for (up, down) in [(3, 2), (2, 3), (7, 1), (1, 5)] {
            let filter = resampler(up, down, 10, 80.0).unwrap();
            let gain = |frequency: f64| {
                let middle = (filter.len() - 1) as f64 / 2.0;
                filter
                    .iter()
                    .enumerate()
                    .map(|(at, tap)| tap * (PI * frequency * (at as f64 - middle)).cos())
                    .sum::<f64>()
            };
            let slower = up.max(down) as f64;
            assert!((gain(0.1 / slower) / up as f64 - 1.0).abs() < 1e-3 && gain(1.5 / slower).abs() < 1e-3 * up as f64);
        }
        assert!(resampler(0, 1, 10, 80.0).is_err() && resampler(3, 2, 0, 80.0).is_err());
        assert!(resampler(3, 2, 10, f64::NAN).is_err() && resampler(3, 2, usize::MAX, 80.0).is_err());
    }
}
