//! Bit error rates over a channel with white noise, compared with theory.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use panoply_core::Complex64;
use panoply_core::op::signal::{Constellation, Convolutional, Ending};
use panoply_cpu_signal::Level;
use panoply_cpu_signal::modem::Modem;
use panoply_cpu_signal::viterbi::{Trellis, ViterbiMemory};

/// Normally distributed numbers from a seed, by the Box-Muller transform.
struct Noise(u64);

impl Noise {
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    fn pair(&mut self) -> Complex64 {
        let (size, angle) = ((-2.0 * self.unit().ln()).sqrt(), std::f64::consts::TAU * self.unit());
        Complex64::new((size * angle.cos()) as f32, (size * angle.sin()) as f32)
    }
}

/// The probability that a normally distributed number is above `x`, by a continued fraction.
fn tail(x: f64) -> f64 {
    let fraction = (1..200).rev().fold(x, |below, at| x + f64::from(at) / below);
    (-x * x / 2.0).exp() / (fraction * std::f64::consts::TAU.sqrt())
}

/// The error rate of Gray-coded constellations, by Cho and Yoon's dominant terms: only the nearest
/// levels or phases.
fn theory(bits: usize, bit_to_noise: f64) -> f64 {
    if bits <= 2 {
        return tail((2.0 * bit_to_noise).sqrt());
    }
    if bits == 3 {
        return 2.0 / 3.0 * tail((6.0 * bit_to_noise).sqrt() * (std::f64::consts::PI / 8.0).sin());
    }
    let side = f64::from(1_u32 << (bits / 2));
    let distance = (3.0 * bits as f64 * bit_to_noise / (side * side - 1.0)).sqrt();
    let share = 4.0 / bits as f64 * (1.0 - 1.0 / side);
    share * tail(distance)
}

#[test]
fn hard_decisions_err_as_often_as_theory_says() {
    for (constellation, decibels) in [
        (Constellation::Bpsk, 6.0),
        (Constellation::Qpsk, 6.0),
        (Constellation::Psk8, 10.0),
        (Constellation::Qam16, 10.0),
        (Constellation::Qam64, 14.0),
        (Constellation::Qam256, 18.5),
    ] {
        let (modem, bits) = (Modem::new(Level::best(), &constellation), constellation.bits());
        let bit_to_noise = 10_f64.powf(decibels / 10.0);
        // The power of a symbol is 1. Each part of the noise has half its variance.
        let deviation = (0.5 / (bit_to_noise * bits as f64)).sqrt() as f32;
        let mut noise = Noise(11);
        let symbols: Vec<u8> = (0..1_000_000).map(|_| (noise.unit() * f64::from(1 << bits)) as u8).collect();
        let mut points = vec![Complex64::default(); symbols.len()];
        modem.modulate(&symbols, &mut points).unwrap();
        points.iter_mut().for_each(|point| *point += noise.pair() * deviation);
        let mut decided = vec![0; symbols.len()];
        modem.decide(&points, &mut decided);
        let wrong: u32 = symbols.iter().zip(&decided).map(|(sent, got)| (sent ^ got).count_ones()).sum();
        let rate = f64::from(wrong) / (symbols.len() * bits) as f64;
        // The tolerance is a tenth of a decibel either way, plus four standard deviations of the
        // count.
        let shifted = |decibels: f64| theory(bits, bit_to_noise * 10_f64.powf(decibels / 10.0));
        let spread = 4.0 * (rate / (symbols.len() * bits) as f64).sqrt();
        let (least, most) = (shifted(0.1) - spread, shifted(-0.1) + spread);
        assert!((least..most).contains(&rate), "{constellation:?}: {rate:e} is not in {least:e}..{most:e}");
    }
}

#[test]
fn the_decoder_gains_what_the_code_promises() {
    let decibels = 3.5;
    let bit_to_noise = 10_f64.powf(decibels / 10.0);
    // The union bound from the code's distance spectrum; it is tight at low error rates.
    let weights = [(10.0, 36.0), (12.0, 211.0), (14.0, 1404.0), (16.0, 11_633.0), (18.0, 77_433.0)];
    let bound = |shift: f64| -> f64 {
        let ratio = bit_to_noise * 10_f64.powf(shift / 10.0);
        weights.iter().map(|(distance, weight)| weight * tail((distance * ratio).sqrt())).sum()
    };
    let (trellis, mut work, mut noise) =
        (Trellis::new(Level::best(), Convolutional::default()), ViterbiMemory::default(), Noise(12));
    let (bits, lanes) = (2048, trellis.lanes());
    let coded = Trellis::coded_bits(bits, Ending::Terminated);
    let (mut wrong, mut sent_bits) = (0, 0);
    let deviation = (1.0 / bit_to_noise).sqrt() as f32;
    for _ in 0..(1024 / lanes) {
        let data: Vec<u8> = (0..lanes * bits / 8).map(|_| (noise.unit() * 256.0) as u8).collect();
        let mut frames = Vec::with_capacity(lanes * coded);
        for frame in data.chunks(bits / 8) {
            let mut out = vec![0; coded.div_ceil(8)];
            trellis.encode(frame, bits, Ending::Terminated, &mut out);
            for at in 0..coded {
                let level = if out[at / 8] >> (7 - at % 8) & 1 == 1 { 1.0 } else { -1.0 };
                // The scale reaches one and a half standard deviations of the noise beyond the
                // level.
                let received = (level + noise.pair().re * deviation) / (1.0 + 1.5 * deviation);
                frames.push((received * 127.5 + 128.0).clamp(0.0, 255.0) as u8);
            }
        }
        let mut decoded = vec![0; data.len()];
        trellis.decode(&frames, bits, Ending::Terminated, &mut decoded, &mut work);
        wrong += data.iter().zip(&decoded).map(|(sent, got)| (sent ^ got).count_ones()).sum::<u32>();
        sent_bits += 8 * data.len();
    }
    let rate = f64::from(wrong) / sent_bits as f64;
    // The quantisation to fifteen levels costs less than a fifth of a decibel.
    let most = bound(-0.2);
    assert!(rate < most && rate > bound(0.3) / 2.0, "{rate:e}, the bound is {:e}, with the steps {most:e}", bound(0.0));
}
