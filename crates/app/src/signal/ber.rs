//! `panoply signal ber`: measures bit error rates and compares them with theory.

use anyhow::Result;
use panoply::prelude::*;
use panoply::signal::synthetic::Noise;
use panoply::signal::{ConvolutionalEncode, Demodulate, Modulate, Viterbi};
use serde::Serialize;

use super::chart::{self, Axis, Curve};
use super::{progress, theory};
use crate::configuration::Format;
use crate::configuration::signal::BerOptions;
use crate::failure::Failure;
use crate::partial::Partial;
use crate::screen::Screen;
use crate::vectors::start;

/// After this many wrong bits a point is accurate enough.
const WRONG_ENOUGH: u64 = 200;
/// Frames sent at a time, and bits in a frame. Their coded bits fill whole symbols of every
/// constellation.
const FRAMES: usize = 96;
const FRAME_BITS: usize = 2048;
const CODED_BITS: usize = 2 * (FRAME_BITS + 6);
/// The distance of a noiseless soft bit from the middle of the scale; the maximum is 127.
const SOFT_SIZE: f32 = 64.0;

#[derive(Serialize)]
struct BerReport {
    constellation: &'static str,
    coded: bool,
    points: Vec<Point>,
    /// The largest absolute distance of a point from theory's curve, in decibels, among the points
    /// with enough wrong bits.
    distance_db_max: Option<f64>,
}

#[derive(Serialize)]
struct Point {
    decibels: f64,
    bits: u64,
    wrong: u64,
    measured: f64,
    theory: f64,
    /// How many decibels earlier theory reaches the measured rate.
    distance_db: Option<f64>,
}

/// Runs `panoply signal ber`.
pub fn run(options: &BerOptions, screen: &mut Screen) -> Result<(), Failure> {
    let runtime = start()?;
    let bar = progress(Some(options.points.len() as u64), "points");
    let mut points = Vec::new();
    for decibels in &options.points {
        points.push(point(options, *decibels, &runtime)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let distance_db_max = points.iter().filter_map(|point| point.distance_db.map(f64::abs)).reduce(f64::max);
    let findings =
        BerReport { constellation: options.constellation.name(), coded: options.coded, points, distance_db_max };
    if let Some(file) = &options.svg {
        Partial::create(file, true)?.finish_with(drawn(options, &findings).as_bytes())?;
    }
    match options.format {
        Format::Json => screen.json(&findings),
        Format::Table => print(&findings, screen),
    }
}

fn point(options: &BerOptions, decibels: f64, runtime: &Runtime) -> Result<Point> {
    let bit_to_noise = 10_f64.powf(decibels / 10.0);
    let own_bits = options.constellation.bits() as f64 * if options.coded { 0.5 } else { 1.0 };
    // Assumes a mean symbol power of 1.
    let power = 1.0 / (bit_to_noise * own_bits);
    let mut noise = Noise::new(options.seed ^ decibels.to_bits());
    let (mut bits, mut wrong) = (0, 0);
    while wrong < WRONG_ENOUGH && bits < options.bits_max {
        wrong += match options.coded {
            true => coded_errors(options, power, &mut noise, runtime)?,
            false => plain_errors(options, power, &mut noise, runtime)?,
        };
        bits += (FRAMES * FRAME_BITS) as u64;
    }
    let measured = wrong as f64 / bits as f64;
    let expected = |decibels: f64| rate(options, decibels);
    let distance_db = (wrong >= WRONG_ENOUGH).then(|| decibels - reached(&expected, measured));
    Ok(Point { decibels, bits, wrong, measured, theory: expected(decibels), distance_db })
}

fn rate(options: &BerOptions, decibels: f64) -> f64 {
    let bit_to_noise = 10_f64.powf(decibels / 10.0);
    if options.coded {
        theory::coded_bound(bit_to_noise)
    } else {
        theory::bit_error_rate(&options.constellation, bit_to_noise)
    }
}

/// Finds the point in decibels at which theory has this rate, by bisection.
fn reached(expected: &impl Fn(f64) -> f64, rate: f64) -> f64 {
    let (mut low, mut high) = (-80.0, 80.0);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if expected(middle) > rate { low = middle } else { high = middle }
    }
    low
}

/// Splits `bits` bits into symbols of `each` bits, most significant bit first.
fn symbols(bytes: &[u8], bits: usize, each: usize) -> Vec<u8> {
    let bit = |at: usize| bytes[at / 8] >> (7 - at % 8) & 1;
    (0..bits / each).map(|at| (0..each).fold(0, |symbol, place| symbol << 1 | bit(at * each + place))).collect()
}

fn received(
    options: &BerOptions,
    symbols: Vec<u8>,
    power: f64,
    noise: &mut Noise,
    runtime: &Runtime,
) -> Result<Tensor> {
    let count = symbols.len();
    let sent =
        runtime.run(Modulate::new(options.constellation.clone(), &Tensor::from_vec(symbols, [count])?)).wait()?;
    let size = power.sqrt();
    let add = |point: &Complex64| {
        let noise = noise.normal() * size;
        point + Complex64::new(noise.re as f32, noise.im as f32)
    };
    let points: Vec<Complex64> = sent.as_slice::<Complex64>()?.iter().map(add).collect();
    Ok(Tensor::from_vec(points, [count])?)
}

fn plain_errors(options: &BerOptions, power: f64, noise: &mut Noise, runtime: &Runtime) -> Result<u64> {
    let each = options.constellation.bits();
    let sent = symbols(&noise.bytes(FRAMES * FRAME_BITS / 8), FRAMES * FRAME_BITS, each);
    let points = received(options, sent.clone(), power, noise, runtime)?;
    let got = runtime.run(Demodulate::hard(options.constellation.clone(), &points)).wait()?;
    let differ = |(sent, got): (&u8, &u8)| u64::from((sent ^ got).count_ones());
    Ok(sent.iter().zip(got.as_slice::<u8>()?).map(differ).sum())
}

fn coded_errors(options: &BerOptions, power: f64, noise: &mut Noise, runtime: &Runtime) -> Result<u64> {
    let sent = Tensor::from_vec(noise.bytes(FRAMES * FRAME_BITS / 8), [FRAMES, FRAME_BITS / 8])?;
    let coded = runtime.run(ConvolutionalEncode::new(&sent, FRAME_BITS)).wait()?;
    let line = CODED_BITS.div_ceil(8);
    // Frames end within a byte. Their bits are joined without the padding.
    let bits: Vec<u8> = coded
        .as_slice::<u8>()?
        .chunks(line)
        .flat_map(|frame| (0..CODED_BITS).map(|at| frame[at / 8] >> (7 - at % 8) & 1))
        .collect();
    let each = options.constellation.bits();
    let joined = bits.chunks(each).map(|bits| bits.iter().fold(0, |symbol, bit| symbol << 1 | bit)).collect();
    let points = received(options, joined, power, noise, runtime)?;
    let likely = runtime.run(Demodulate::soft(options.constellation.clone(), &points, power as f32)).wait()?;
    // Converts log-likelihood ratios back to distances, in units of half the distance between
    // neighbouring points.
    let scale = SOFT_SIZE * power as f32 / (4.0 * options.constellation.unit().powi(2));
    let soft = |value: &f32| (128.0 - scale * value).clamp(0.0, 255.0) as u8;
    let softs: Vec<u8> = likely.as_slice::<f32>()?.iter().map(soft).collect();
    let got = runtime.run(Viterbi::new(&Tensor::from_vec(softs, [FRAMES, CODED_BITS])?, FRAME_BITS)).wait()?;
    let differ = |(sent, got): (&u8, &u8)| u64::from((sent ^ got).count_ones());
    Ok(sent.as_slice::<u8>()?.iter().zip(got.as_slice::<u8>()?).map(differ).sum())
}

fn print(findings: &BerReport, screen: &mut Screen) -> Result<(), Failure> {
    let code = if findings.coded { ", convolutional code, soft decisions" } else { "" };
    screen.line(screen.strong(&format!("{}{code}", findings.constellation)))?;
    let kind = if findings.coded { "bound" } else { "theory" };
    screen.line(screen.faint(&format!(" Eb/N0      bits   wrong   measured {kind:>10}  distance")))?;
    for point in &findings.points {
        let distance = point.distance_db.map_or_else(String::new, |distance| format!("{distance:+.2} dB"));
        screen.line(format!(
            "{:5.1} dB {:9} {:7} {:10.2e} {:10.2e}  {distance}",
            point.decibels, point.bits, point.wrong, point.measured, point.theory
        ))?;
    }
    Ok(())
}

fn drawn(options: &BerOptions, findings: &BerReport) -> String {
    let (from, to) = (findings.points[0].decibels, findings.points[findings.points.len() - 1].decibels);
    let lowest = findings.points.iter().map(|point| point.theory.max(1e-9).log10()).fold(-1.0, f64::min).floor();
    let x = Axis::round("Eb/N0, dB", from, to);
    let marks = (lowest as i32..=0).map(|power| (f64::from(power), format!("1e{power}"))).collect();
    let y = Axis { name: "bit error rate".to_owned(), from: lowest, to: 0.0, marks };
    let curve = |at: usize| {
        let decibels = from + (to - from) * f64::from(at as u32) / 100.0;
        (decibels, rate(options, decibels).max(1e-30).log10())
    };
    let dot = |point: &Point| (point.decibels, if point.wrong == 0 { f64::NAN } else { point.measured.log10() });
    let kind = if findings.coded { "union bound" } else { "theory" };
    let curves = [
        Curve { name: kind.to_owned(), points: (0..=100).map(curve).collect(), dots: false },
        Curve { name: "measured".to_owned(), points: findings.points.iter().map(dot).collect(), dots: true },
    ];
    let code = if findings.coded { " with the convolutional code" } else { "" };
    chart::svg(&format!("{}{code}: bit error rate", findings.constellation), &x, &y, &curves)
}
