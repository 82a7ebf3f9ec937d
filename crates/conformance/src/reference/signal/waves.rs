//! ModulateWave, DemodulateWave and ReadSamples: one sample at a time, in f64.

use std::f64::consts::TAU;

use panoply_core::op::signal::{DemodulateWave, ModulateWave, ReadSamples, SampleFormat, Wave};
use panoply_core::{DType, Error, Result, Tensor, Value};

use super::fft::{Complex, complex_tensor, numbers, product, spectrum};
use crate::values::{tensor_of, to_f64};

fn turned(turns: f64) -> Complex {
    let angle = TAU * (turns - turns.floor());
    [angle.cos(), angle.sin()]
}

pub(super) fn modulate(op: &ModulateWave) -> Result<Value> {
    let (shape, len) = (op.output_shape()?, op.input.shape().last().copied().unwrap_or(0).max(1));
    let mut wave = Vec::new();
    match op.wave {
        Wave::Fsk { bits, samples, spacing } => {
            let tones = 1_usize << bits;
            let symbols = to_f64(&op.input)?;
            if let Some(at) = symbols.iter().position(|symbol| *symbol >= tones as f64) {
                let got = format!("{} at {at}", symbols[at]);
                return Err(Error::invalid("modulate_wave: symbols", format!("below {tones}"), got));
            }
            for line in symbols.chunks(len) {
                let mut turns = 0.0;
                for symbol in line {
                    let step = spacing * (symbol - (tones - 1) as f64 / 2.0);
                    for _ in 0..samples {
                        wave.push(turned(turns));
                        turns += step;
                    }
                }
            }
        }
        Wave::Am { depth } => wave.extend(to_f64(&op.input)?.iter().map(|message| [1.0 + depth * message, 0.0])),
        Wave::Fm { deviation } => {
            for line in to_f64(&op.input)?.chunks(len) {
                let mut turns = 0.0;
                for message in line {
                    turns += deviation * message;
                    wave.push(turned(turns));
                }
            }
        }
        Wave::Ofdm { carriers, prefix } => {
            for symbol in numbers(&op.input)?.chunks(carriers) {
                let scale = (carriers as f64).sqrt();
                let samples: Vec<Complex> =
                    spectrum(symbol, 1.0).iter().map(|[re, im]| [re / scale, im / scale]).collect();
                wave.extend_from_slice(&samples[carriers - prefix..]);
                wave.extend(samples);
            }
        }
    }
    Ok(Value::Tensor(complex_tensor(&shape, &wave)?))
}

pub(super) fn demodulate(op: &DemodulateWave) -> Result<Value> {
    let (shape, wave) = (op.output_shape()?, numbers(&op.input)?);
    let len = op.input.shape().last().copied().unwrap_or(0).max(1);
    let size = |value: Complex| (value[0] * value[0] + value[1] * value[1]).sqrt();
    let dtype = op.wave.message_dtype();
    Ok(Value::Tensor(match op.wave {
        Wave::Fsk { bits, samples, spacing } => {
            let tones = 1_usize << bits;
            let energy = |symbol: &[Complex], tone: usize| {
                let step = spacing * (tone as f64 - (tones - 1) as f64 / 2.0);
                let terms = symbol.iter().enumerate().map(|(at, value)| product(*value, turned(-step * at as f64)));
                size(terms.fold([0.0; 2], super::fft::sum))
            };
            let decide = |symbol: &[Complex]| {
                let louder =
                    |best: usize, tone: usize| if energy(symbol, tone) > energy(symbol, best) { tone } else { best };
                (0..tones).fold(0, louder) as f64
            };
            tensor_of(dtype, &shape, &wave.chunks(samples).map(decide).collect::<Vec<f64>>())
        }
        Wave::Am { depth } => {
            tensor_of(dtype, &shape, &wave.iter().map(|value| (size(*value) - 1.0) / depth).collect::<Vec<f64>>())
        }
        Wave::Fm { deviation } => {
            let mut messages = Vec::new();
            for line in wave.chunks(len) {
                let mut before = [1.0, 0.0];
                for value in line {
                    let [re, im] = product(*value, [before[0], -before[1]]);
                    messages.push(im.atan2(re) / TAU / deviation);
                    before = *value;
                }
            }
            tensor_of(dtype, &shape, &messages)
        }
        Wave::Ofdm { carriers, prefix } => {
            let scale = (carriers as f64).sqrt();
            let points = |symbol: &[Complex]| -> Vec<Complex> {
                spectrum(&symbol[prefix..], -1.0).iter().map(|[re, im]| [re / scale, im / scale]).collect()
            };
            complex_tensor(&shape, &wave.chunks(carriers + prefix).flat_map(points).collect::<Vec<Complex>>())?
        }
    }))
}

pub(super) fn read_samples(op: &ReadSamples) -> Result<Value> {
    let (input, (dtype, shape)) = (op.input.contiguous()?, op.output_type()?);
    let number = |bytes: &[u8]| -> f64 {
        // Puts the bytes of shorter integers at the top of 32 bits, so that the sign bit is the
        // same.
        let top = |a: u8, b: u8, c: u8, d: u8| f64::from(i32::from_le_bytes([a, b, c, d])) / 2_147_483_648.0;
        match op.format {
            SampleFormat::U8 => (f64::from(bytes[0]) - 128.0) / 128.0,
            SampleFormat::I8 => top(0, 0, 0, bytes[0]),
            SampleFormat::I16 => top(0, 0, bytes[0], bytes[1]),
            SampleFormat::I16Be => top(0, 0, bytes[1], bytes[0]),
            SampleFormat::I24 => top(0, bytes[0], bytes[1], bytes[2]),
            SampleFormat::I32 => top(bytes[0], bytes[1], bytes[2], bytes[3]),
            SampleFormat::F32 => f64::from(f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])),
        }
    };
    let values: Vec<f64> = input.as_slice::<u8>()?.chunks_exact(op.format.size_bytes()).map(number).collect();
    Ok(Value::Tensor(match dtype {
        DType::Complex64 => {
            complex_tensor(&shape, &values.chunks_exact(2).map(|pair| [pair[0], pair[1]]).collect::<Vec<_>>())?
        }
        _ => Tensor::from_vec(values.iter().map(|value| *value as f32).collect(), shape)?,
    }))
}
