//! The ops `ModulateWave`, `DemodulateWave` and `ReadSamples`.

use num_complex::Complex32;
use panoply_core::op::signal::{DemodulateWave, ModulateWave, ReadSamples, Wave};
use panoply_core::{DType, Error, Result, Threads, Value};

use super::filtering::each_line;
use super::output::{Output, TakeMemory, numbers};
use super::space::Space;
use crate::threads::{for_each_piece, share};
use crate::waves::{Tones, frequency_demodulate, frequency_modulate};

/// The least number of samples in one turn of a thread.
const TURN_SAMPLES_MIN: usize = 8192;

pub(super) fn modulate(
    op: &ModulateWave,
    space: &mut Space,
    threads: &dyn Threads,
    take: TakeMemory<'_>,
) -> Result<Value> {
    let (input, shape) = (op.input.contiguous()?, op.output_shape()?);
    let mut output = Output::take(DType::Complex64, shape, take)?;
    let (len, line) = (input.shape().last().copied().unwrap_or(0), shape.last().copied().unwrap_or(0));
    match op.wave {
        Wave::Fsk { bits, samples, spacing } => {
            let (symbols, tones) = (input.as_slice::<u8>()?, Tones::new(bits, samples, spacing));
            check_symbols(symbols, &tones)?;
            each_line(threads, output.numbers(), 2 * line, &|_, index, out| {
                tones.modulate(&mut 0.0, &symbols[index * len..(index + 1) * len], bytemuck::cast_slice_mut(out));
            });
        }
        Wave::Am { depth } => {
            let message = numbers(&input)?;
            let each = share(message.len(), threads.count(), TURN_SAMPLES_MIN);
            for_each_piece(threads, output.complex(), each, &|turn, part| {
                let sample = |message: &f32| Complex32::new((1.0 + depth * f64::from(*message)) as f32, 0.0);
                part.iter_mut().zip(&message[turn * each..]).for_each(|(out, message)| *out = sample(message));
            });
        }
        Wave::Fm { deviation } => {
            let message = numbers(&input)?;
            each_line(threads, output.numbers(), 2 * line, &|_, index, out| {
                let own = &message[index * len..(index + 1) * len];
                frequency_modulate(deviation, &mut 0.0, own, bytemuck::cast_slice_mut(out));
            });
        }
        Wave::Ofdm { carriers, prefix } => {
            let (points, plan) = (input.as_slice::<Complex32>()?, space.plans.of(carriers).1);
            let (symbol, scale) = (carriers + prefix, 1.0 / (carriers as f32).sqrt());
            let each = share(points.len() / carriers, threads.count(), TURN_SAMPLES_MIN.div_ceil(symbol));
            for_each_piece(threads, output.complex(), each * symbol, &|turn, part| {
                let mut scratch = vec![Complex32::default(); plan.get_inplace_scratch_len()];
                for (at, out) in part.chunks_exact_mut(symbol).enumerate() {
                    let (head, body) = out.split_at_mut(prefix);
                    body.copy_from_slice(&points[(turn * each + at) * carriers..][..carriers]);
                    plan.process_with_scratch(body, &mut scratch);
                    body.iter_mut().for_each(|value| *value *= scale);
                    head.copy_from_slice(&body[carriers - prefix..]);
                }
            });
        }
    }
    output.value()
}

/// Checks that every symbol has a tone.
pub(super) fn check_symbols(symbols: &[u8], tones: &Tones) -> Result<()> {
    match symbols.iter().position(|symbol| usize::from(*symbol) >= tones.count()) {
        Some(at) => {
            let (expected, got) = (format!("below {}", tones.count()), format!("{} at {at}", symbols[at]));
            Err(Error::invalid("modulate_wave: symbols", expected, got))
        }
        None => Ok(()),
    }
}

pub(super) fn demodulate(
    op: &DemodulateWave,
    space: &mut Space,
    threads: &dyn Threads,
    take: TakeMemory<'_>,
) -> Result<Value> {
    let (input, shape) = (op.input.contiguous()?, op.output_shape()?);
    let mut output = Output::take(op.wave.message_dtype(), shape, take)?;
    let (wave, len) = (input.as_slice::<Complex32>()?, input.shape().last().copied().unwrap_or(0));
    match op.wave {
        Wave::Fsk { bits, samples, spacing } => {
            let tones = Tones::new(bits, samples, spacing);
            let each = share(wave.len() / samples, threads.count(), TURN_SAMPLES_MIN.div_ceil(samples));
            for_each_piece(threads, output.bytes(), each, &|turn, part| {
                tones.demodulate(&wave[turn * each * samples..][..part.len() * samples], part);
            });
        }
        Wave::Am { depth } => {
            let each = share(wave.len(), threads.count(), TURN_SAMPLES_MIN);
            for_each_piece(threads, output.numbers(), each, &|turn, part| {
                for (out, value) in part.iter_mut().zip(&wave[turn * each..]) {
                    *out = ((f64::from(value.re).hypot(f64::from(value.im)) - 1.0) / depth) as f32;
                }
            });
        }
        Wave::Fm { deviation } => each_line(threads, output.numbers(), len, &|_, index, out| {
            let own = &wave[index * len..(index + 1) * len];
            frequency_demodulate(deviation, Complex32::new(1.0, 0.0), own, out);
        }),
        Wave::Ofdm { carriers, prefix } => {
            let plan = space.plans.of(carriers).0;
            let (symbol, scale) = (carriers + prefix, 1.0 / (carriers as f32).sqrt());
            let each = share(wave.len() / symbol, threads.count(), TURN_SAMPLES_MIN.div_ceil(symbol));
            for_each_piece(threads, output.complex(), each * carriers, &|turn, part| {
                let mut scratch = vec![Complex32::default(); plan.get_inplace_scratch_len()];
                for (at, out) in part.chunks_exact_mut(carriers).enumerate() {
                    out.copy_from_slice(&wave[(turn * each + at) * symbol + prefix..][..carriers]);
                    plan.process_with_scratch(out, &mut scratch);
                    out.iter_mut().for_each(|value| *value *= scale);
                }
            });
        }
    }
    output.value()
}

pub(super) fn read_samples(op: &ReadSamples, threads: &dyn Threads, take: TakeMemory<'_>) -> Result<Value> {
    let (input, (dtype, shape)) = (op.input.contiguous()?, op.output_type()?);
    let (bytes, size) = (input.as_slice::<u8>()?, op.format.size_bytes());
    let mut output = Output::take(dtype, shape, take)?;
    let each = share(bytes.len() / size, threads.count(), 4 * TURN_SAMPLES_MIN);
    for_each_piece(threads, output.numbers(), each, &|turn, part| {
        op.format.read(&bytes[turn * each * size..][..part.len() * size], part);
    });
    output.value()
}
