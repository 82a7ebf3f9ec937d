//! Theoretical error rates over a channel with white noise.

use std::f64::consts::{PI, SQRT_2, TAU};

use panoply::signal::Constellation;

/// The upper tail of the standard normal distribution: the probability of a value above `x`.
pub fn tail(x: f64) -> f64 {
    if x < 0.0 {
        return 1.0 - tail(-x);
    }
    if x < 3.0 {
        // Power series of the area from 0 to x.
        let (mut term, mut sum) = (x, x);
        for at in 1..100 {
            term *= x * x / f64::from(2 * at + 1);
            sum += term;
        }
        return 0.5 - sum * (-x * x / 2.0).exp() / TAU.sqrt();
    }
    let fraction = (1..200).rev().fold(x, |below, at| x + f64::from(at) / below);
    (-x * x / 2.0).exp() / (fraction * TAU.sqrt())
}

/// The bit error rate at this ratio of bit energy to noise density. Exact for square constellations
/// (Cho and Yoon). For 8-PSK it follows from the density of the received angle.
pub fn bit_error_rate(constellation: &Constellation, bit_to_noise: f64) -> f64 {
    let bits = constellation.bits();
    match constellation {
        Constellation::Bpsk | Constellation::Qpsk => tail((2.0 * bit_to_noise).sqrt()),
        Constellation::Psk8 => circle(3.0 * bit_to_noise),
        _ => square(f64::from(1_u32 << (bits / 2)), bits, bit_to_noise),
    }
}

/// The bit error rate of 8-PSK at this ratio of symbol energy to noise density.
fn circle(symbol_to_noise: f64) -> f64 {
    /// Above this ratio only the nearest neighbours count.
    const NEIGHBOURS_MIN: f64 = 20.0;
    const STEPS: usize = 256;
    if symbol_to_noise > NEIGHBOURS_MIN {
        return 2.0 / 3.0 * tail((2.0 * symbol_to_noise).sqrt() * (PI / 8.0).sin());
    }
    // The density of the received angle, for a point sent at angle 0.
    let density = |angle: f64| {
        let along = (2.0 * symbol_to_noise).sqrt() * angle.cos();
        let across = (-symbol_to_noise * angle.sin().powi(2)).exp();
        (-symbol_to_noise).exp() / TAU + along / TAU.sqrt() * across * tail(-along)
    };
    let sector = |index: usize| {
        let (first, step) = ((index as f64 - 0.5) * PI / 4.0, PI / 4.0 / STEPS as f64);
        // Simpson's rule.
        let weighted = |at: usize| {
            let weight = if at == 0 || at == STEPS { 1.0 } else { 2.0 + 2.0 * f64::from(at as u32 % 2) };
            weight * density(first + step * at as f64)
        };
        (0..=STEPS).map(weighted).sum::<f64>() * step / 3.0
    };
    // Number of differing bits, over all pairs of symbols that are `apart` steps apart on the
    // circle.
    let gray = |index: usize| index ^ index >> 1;
    let differ = |apart: usize| (0..8).map(|from| (gray(from) ^ gray((from + apart) % 8)).count_ones()).sum::<u32>();
    (1..8).map(|apart| f64::from(differ(apart)) / 8.0 * sector(apart)).sum::<f64>() / 3.0
}

fn square(side: f64, bits: usize, bit_to_noise: f64) -> f64 {
    let (points, half) = (side * side, bits / 2);
    let distance = (3.0 * bits as f64 * bit_to_noise / (2.0 * (points - 1.0))).sqrt();
    let of_bit = |bit: usize| {
        let power = f64::from(1_u32 << (bit - 1));
        let terms = ((1.0 - 0.5_f64.powi(bit as i32)) * side) as usize;
        let term = |at: usize| {
            let place = at as f64 * power / side;
            let sign = if place.floor() as i64 % 2 == 0 { 1.0 } else { -1.0 };
            // erfc(x) is twice the tail at √2·x.
            let missed = 2.0 * tail(SQRT_2 * (2 * at + 1) as f64 * distance);
            sign * (power - (place + 0.5).floor()) * missed
        };
        (0..terms).map(term).sum::<f64>() / side
    };
    (1..=half).map(of_bit).sum::<f64>() / half as f64
}

/// The union bound for the convolutional code with 64 states and rate ½, with soft decisions and
/// BPSK, from the code's distance spectrum. Never above ½.
pub fn coded_bound(bit_to_noise: f64) -> f64 {
    const WEIGHTS: [(f64, f64); 5] = [(10.0, 36.0), (12.0, 211.0), (14.0, 1404.0), (16.0, 11_633.0), (18.0, 77_433.0)];
    let sum: f64 = WEIGHTS.iter().map(|(distance, weight)| weight * tail((distance * bit_to_noise).sqrt())).sum();
    sum.min(0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tails_are_those_of_tables() {
        for (x, expected) in
            [(0.0, 0.5), (1.0, 0.158_655_253_9), (3.0, 1.349_898e-3), (5.0, 2.866_516e-7), (-1.0, 0.841_344_746)]
        {
            assert!((tail(x) / expected - 1.0_f64).abs() < 1e-6, "{x}: {}", tail(x));
        }
        assert!((tail(2.999_999) - tail(3.000_001)).abs() < 1e-7);
    }

    #[test]
    fn rates_are_those_of_published_curves() {
        let at =
            |constellation: Constellation, decibels: f64| bit_error_rate(&constellation, 10_f64.powf(decibels / 10.0));
        // MATLAB's berawgn: 4-PSK at 9.6 dB, 16-QAM at 10 dB, 64-QAM at 14 dB.
        assert!((at(Constellation::Qpsk, 9.6) / 9.7e-6 - 1.0).abs() < 0.05);
        assert!((at(Constellation::Qam16, 10.0) / 1.75e-3 - 1.0).abs() < 0.02, "{}", at(Constellation::Qam16, 10.0));
        // The density of the angle integrates to 1. The exact rate and the nearest-neighbour rate
        // meet at the threshold.
        assert!((circle(1e-12) - 0.5).abs() < 1e-5, "{}", circle(1e-12));
        assert!(
            (circle(19.999_99) / circle(20.000_01) - 1.0).abs() < 1e-4,
            "{} {}",
            circle(19.999_99),
            circle(20.000_01)
        );
        // From a simulation of a million symbols: 0.1225 at 0 dB.
        assert!((at(Constellation::Psk8, 0.0) / 0.1225 - 1.0).abs() < 0.01, "{}", at(Constellation::Psk8, 0.0));
        assert!(at(Constellation::Qam256, 20.0) > at(Constellation::Qam64, 20.0));
        assert!(coded_bound(1e-9) <= 0.5 && coded_bound(10_f64.powf(0.45)) < 1e-5);
    }
}
