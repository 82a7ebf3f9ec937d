//! Mix, Track, Adapt and Channelize: the ops of streams, over whole signals.

use std::f64::consts::TAU;

use panoply_core::op::signal::{Adapt, AdaptTarget, Channelize, Constellation, Mix, TimingDetector, Track, Tracker};
use panoply_core::{Complex64, DType, Tensor};

use super::fft::random_complex;
use crate::suite::case::Case;
use crate::tolerance::Tolerance;
use crate::values::{Random, random_tensor};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    add_mix(&mut cases);
    add_track(&mut cases);
    add_adapt(&mut cases);
    add_channels(&mut cases);
    cases
}

fn close(absolute: f64) -> Tolerance {
    Tolerance::Close { relative: 1e-5, absolute }
}

fn line(values: Vec<Complex64>) -> Tensor {
    let len = values.len();
    Tensor::from_vec(values, [len]).unwrap_or_else(|error| panic!("a test tensor: {error}"))
}

fn add_mix(cases: &mut Vec<Case>) {
    for dims in [&[0][..], &[1], &[2, 63], &[3, 100], &[10_001], &[2, 0]] {
        for (frequency, phase) in [(0.1, 0.0), (-0.37, 0.25), (1e-7, -3.5), (123.456, 0.0)] {
            let name = format!("{dims:?}/{frequency}+{phase}");
            let op = Mix::new(&random_complex(dims, 121), frequency).phase(phase);
            cases.push(Case::new(format!("mix/c64/{name}"), op, close(1e-6)));
            let op = Mix::new(&random_tensor(DType::F32, dims, 122), frequency).phase(phase);
            cases.push(Case::new(format!("mix/f32/{name}"), op, close(1e-6)));
        }
    }
}

/// Symbols of QPSK, shaped by a raised cosine with `samples` per symbol, sampled with a delay, and
/// with a carrier.
pub(super) fn shaped(symbols: usize, samples: f64, late: f64, carrier: f64) -> Vec<Complex64> {
    let mut random = Random::new(123);
    let mut bit = || random.below(2) as f64 * 2.0 - 1.0;
    let points: Vec<[f64; 2]> = (0..symbols).map(|_| [bit(), bit()]).collect();
    let pulse = |time: f64| {
        let roll = 0.5 * time;
        let sinc = if time.abs() < 1e-9 { 1.0 } else { (TAU / 2.0 * time).sin() / (TAU / 2.0 * time) };
        let edge = 1.0 - 4.0 * roll * roll;
        if edge.abs() < 1e-9 { sinc * TAU / 8.0 } else { sinc * (TAU / 2.0 * roll).cos() / edge }
    };
    let sample = |at: usize| {
        let time = (at as f64 - late) / samples;
        let near = (time.floor() as usize).saturating_sub(6)..symbols.min(time.ceil().max(0.0) as usize + 6);
        let sum = |part: usize| {
            near.clone().map(|index| points[index][part] * pulse(time - index as f64)).sum::<f64>() / 2_f64.sqrt()
        };
        let (sin, cos) = (TAU * carrier * at as f64).sin_cos();
        let (re, im) = (sum(0), sum(1));
        Complex64::new((re * cos - im * sin) as f32, (re * sin + im * cos) as f32)
    };
    (0..(symbols as f64 * samples) as usize).map(sample).collect()
}

fn add_track(cases: &mut Vec<Case>) {
    let gain = Tracker::Gain { target: 1.0, rate: 0.05, gain_max: 100.0 };
    for dims in [&[0][..], &[1], &[500], &[3, 200], &[20, 31]] {
        cases.push(Case::new(
            format!("track/gain/{dims:?}"),
            Track::new(gain, &random_complex(dims, 124)),
            close(1e-5),
        ));
        for phases in [2, 4, 8] {
            let tracker = Tracker::Carrier { phases, bandwidth: 0.02 };
            let op = Track::new(tracker, &random_complex(dims, 125));
            cases.push(Case::new(format!("track/carrier{phases}/{dims:?}"), op, close(1e-4)));
        }
    }
    let mut odd = vec![Complex64::new(0.5, 0.5); 20];
    odd[7] = Complex64::new(f32::NAN, f32::INFINITY);
    cases.push(Case::new("track/gain/nan", Track::new(gain, &line(odd)), close(1e-5)));
    for (name, detector) in [("gardner", TimingDetector::Gardner), ("mueller", TimingDetector::MuellerMuller)] {
        for (symbols, samples) in [(0, 4.0), (1, 2.0), (300, 2.0), (300, 4.0), (200, 3.7)] {
            let tracker = Tracker::Timing { detector, samples, bandwidth: 0.02 };
            let op = Track::new(tracker, &line(shaped(symbols, samples, 0.3, 0.0)));
            cases.push(Case::new(format!("track/{name}/{symbols}x{samples}"), op, close(1e-4)));
        }
    }
}

fn add_adapt(cases: &mut Vec<Case>) {
    let first = |taps: usize| {
        let mut weights = vec![Complex64::new(0.0, 0.0); taps];
        weights[taps / 2] = Complex64::new(1.0, 0.0);
        line(weights)
    };
    for (taps, dims) in [(1, &[0][..]), (1, &[40]), (4, &[2, 100]), (16, &[500]), (9, &[3, 5])] {
        let (input, wanted) = (random_complex(dims, 126), random_complex(dims, 127));
        let target = AdaptTarget::Signal(wanted);
        let name = format!("{taps}/{dims:?}");
        let op = Adapt::new(&input, target.clone(), &first(taps), 0.01);
        cases.push(Case::new(format!("adapt/lms/{name}"), op.clone(), close(1e-4)));
        let op = Adapt { step: 0.3, ..op }.normalized();
        cases.push(Case::new(format!("adapt/nlms/{name}"), op, close(1e-4)));
    }
    let received = line(shaped(400, 1.0, 0.1, 0.0));
    for (name, target) in
        [("decisions", AdaptTarget::Decisions(Constellation::Qpsk)), ("modulus", AdaptTarget::Modulus(1.0))]
    {
        let op = Adapt::new(&received, target, &first(7), 0.01);
        cases.push(Case::new(format!("adapt/{name}"), op, close(1e-4)));
    }
}

fn add_channels(cases: &mut Vec<Case>) {
    for (channels, taps, dims) in [
        (1, 1, &[5][..]),
        (4, 16, &[100]),
        (4, 13, &[2, 30]),
        (5, 3, &[64]),
        (16, 128, &[3, 333]),
        (8, 8, &[0]),
        (3, 7, &[1]),
    ] {
        let input = random_complex(dims, 128);
        let op = Channelize::new(&input, &random_tensor(DType::F32, &[taps], 129), channels);
        let tolerance = close(4e-6 * (taps.max(4) as f64).sqrt() * 2.0);
        cases.push(Case::new(format!("channelize/{channels}/{dims:?}t{taps}"), op, tolerance));
    }
}
