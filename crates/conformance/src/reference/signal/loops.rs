//! Mix, Track and Adapt: sample by sample, in f64.

use std::f64::consts::{SQRT_2, TAU};

use panoply_core::op::signal::{Adapt, AdaptTarget, Mix, SYMBOL_DRIFT_MAX, TimingDetector, Track, Tracker};
use panoply_core::{Complex64, Result, Tensor, Value};

use super::fft::{Complex, complex_tensor, numbers, product};

pub(super) fn mix(op: &Mix) -> Result<Value> {
    let mut values = numbers(&op.input)?;
    let len = op.input.shape().last().copied().unwrap_or(0).max(1);
    for line in values.chunks_mut(len) {
        for (at, value) in line.iter_mut().enumerate() {
            let turns = (op.frequency - op.frequency.floor()) * at as f64 + op.phase;
            let angle = TAU * (turns - turns.floor());
            *value = product(*value, [angle.cos(), angle.sin()]);
        }
    }
    Ok(Value::Tensor(complex_tensor(op.input.shape(), &values)?))
}

pub(super) fn track(op: &Track) -> Result<Value> {
    let values = numbers(&op.input)?;
    let len = op.input.shape().last().copied().unwrap_or(0).max(1);
    let mut output = Vec::new();
    for line in values.chunks(len) {
        output.extend(match op.tracker {
            Tracker::Gain { target, rate, gain_max } => gained(line, target, rate, gain_max),
            Tracker::Carrier { phases, bandwidth } => without_carrier(line, phases, bandwidth),
            Tracker::Timing { detector, samples, bandwidth } => symbols(line, detector, samples, bandwidth),
        });
    }
    let count = output.len();
    Ok(Value::Tensor(match op.tracker {
        Tracker::Timing { .. } => complex_tensor(&[count], &output)?,
        _ => complex_tensor(op.input.shape(), &output)?,
    }))
}

fn gained(line: &[Complex], target: f64, rate: f64, gain_max: f64) -> Vec<Complex> {
    let mut gain = 1.0;
    let mut one = |value: &Complex| {
        let out = value.map(|part| part * gain);
        let error = target - (out[0] * out[0] + out[1] * out[1]).sqrt();
        if error.is_finite() {
            gain = (gain + rate * error).clamp(0.0, gain_max);
        }
        out
    };
    line.iter().map(&mut one).collect()
}

fn sign(value: f64) -> f64 {
    if value >= 0.0 { 1.0 } else { -1.0 }
}

fn without_carrier(line: &[Complex], phases: usize, bandwidth: f64) -> Vec<Complex> {
    let (to_phase, to_frequency) = Tracker::loop_gains(bandwidth);
    let (mut phase, mut frequency) = (0.0_f64, 0.0);
    let mut one = |value: &Complex| {
        let [re, im] = product(*value, [phase.cos(), -phase.sin()]);
        let narrow = SQRT_2 - 1.0;
        let error = match phases {
            2 => re * im,
            4 => sign(re) * im - sign(im) * re,
            _ if re.abs() >= im.abs() => sign(re) * im - sign(im) * re * narrow,
            _ => sign(re) * im * narrow - sign(im) * re,
        };
        if error.is_finite() {
            let error = error.clamp(-1.0, 1.0);
            frequency += to_frequency * error;
            phase = (phase + frequency + to_phase * error) % TAU;
        }
        [re, im]
    };
    line.iter().map(&mut one).collect()
}

/// The value between the second and the third of four samples, by Lagrange's cubic.
fn between(samples: &[Complex], part: usize, at: f64) -> f64 {
    let node = |index: usize| {
        let others = (0..4).filter(|other| *other != index);
        others.map(|other| (at + 1.0 - other as f64) / (index as f64 - other as f64)).product::<f64>()
    };
    (0..4).map(|index| samples[index][part] * node(index)).sum()
}

fn symbols(line: &[Complex], detector: TimingDetector, samples: f64, bandwidth: f64) -> Vec<Complex> {
    let (to_place, to_length) = Tracker::loop_gains(bandwidth);
    // Positions count from the first sample, and samples before it are zero. A value needs two
    // later samples.
    let value = |place: f64| {
        let first = place.floor() as i64 - 1;
        let near: Vec<Complex> = (first..first + 4)
            .map(|at| usize::try_from(at).ok().and_then(|at| line.get(at)).copied().unwrap_or_default())
            .collect();
        [between(&near, 0, place - place.floor()), between(&near, 1, place - place.floor())]
    };
    let quadrant = |value: Complex| [sign(value[0]) / SQRT_2, sign(value[1]) / SQRT_2];
    let dot = |a: Complex, b: Complex| a[0] * b[0] + a[1] * b[1];
    let (mut place, mut length, mut before, mut found) = (samples, samples, [0.0; 2], Vec::new());
    while place.floor() + 2.0 < line.len() as f64 {
        let now = value(place);
        let late = match detector {
            TimingDetector::Gardner => {
                let middle = value(place - length / 2.0);
                dot(middle, [now[0] - before[0], now[1] - before[1]])
            }
            TimingDetector::MuellerMuller => dot(quadrant(now), before) - dot(quadrant(before), now),
        };
        found.push(now);
        let late = if late.is_finite() { late.clamp(-1.0, 1.0) } else { 0.0 };
        let drift = samples * SYMBOL_DRIFT_MAX;
        length = (length - to_length * late * samples).clamp(samples - drift, samples + drift);
        place += length - to_place * late * samples;
        before = if now[0].is_finite() && now[1].is_finite() { now } else { [0.0; 2] };
    }
    found
}

pub(super) fn adapt(op: &Adapt) -> Result<Value> {
    let (values, first) = (numbers(&op.input)?, numbers(&op.weights)?);
    let (shape, weights_shape) = op.output_shapes()?;
    let len = op.input.shape().last().copied().unwrap_or(0);
    let desired = if let AdaptTarget::Signal(signal) = &op.target { numbers(signal)? } else { Vec::new() };
    let points: Vec<Complex64> = if let AdaptTarget::Decisions(of) = &op.target { of.points() } else { Vec::new() };
    let lines = weights_shape.elements() / first.len().max(1);
    let (mut output, mut learned) = (Vec::new(), Vec::new());
    for line in 0..lines {
        let mut weights = first.clone();
        for at in 0..len {
            let sample = |back: usize| at.checked_sub(back).map_or([0.0; 2], |place| values[line * len + place]);
            let mut out = [0.0; 2];
            let mut power = 0.0;
            for (back, weight) in weights.iter().enumerate() {
                let [re, im] = product(*weight, sample(back));
                out = [out[0] + re, out[1] + im];
                power += sample(back)[0].powi(2) + sample(back)[1].powi(2);
            }
            let error = match &op.target {
                AdaptTarget::Signal(_) => [desired[line * len + at][0] - out[0], desired[line * len + at][1] - out[1]],
                AdaptTarget::Decisions(_) => {
                    let distance = |point: &Complex64| {
                        (f64::from(point.re) - out[0]).powi(2) + (f64::from(point.im) - out[1]).powi(2)
                    };
                    let nearest = points.iter().min_by(|a, b| distance(a).total_cmp(&distance(b)));
                    nearest.map_or([0.0; 2], |point| [f64::from(point.re) - out[0], f64::from(point.im) - out[1]])
                }
                AdaptTarget::Modulus(power) => out.map(|part| part * (power - out[0] * out[0] - out[1] * out[1])),
            };
            let step = if op.normalized { op.step / (power + 1e-12) } else { op.step };
            for (back, weight) in weights.iter_mut().enumerate() {
                let [re, im] = sample(back);
                let change = product(error, [re, -im]);
                *weight = [weight[0] + step * change[0], weight[1] + step * change[1]];
            }
            output.push(out);
        }
        learned.extend(weights);
    }
    let tensor = |dims: &[usize], values: &[Complex]| -> Result<Tensor> { complex_tensor(dims, values) };
    Ok(Value::Pair(tensor(&shape, &output)?, tensor(&weights_shape, &learned)?))
}
