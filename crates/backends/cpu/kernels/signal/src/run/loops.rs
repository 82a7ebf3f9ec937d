//! The ops `Mix`, `Track`, `Adapt` and `Channelize`.

use std::sync::Mutex;

use num_complex::Complex32;
use panoply_core::op::signal::oscillator::Oscillator;
use panoply_core::op::signal::{Adapt, AdaptTarget, Channelize, Mix, Track, Tracker};
use panoply_core::{DType, Result, Shape, Tensor, Threads, Value};

use super::filtering::{each_line, step_of};
use super::output::{Output, TakeMemory, numbers};
use super::space::Space;
use crate::bank::Bank;
use crate::learn::{FilterTarget, adapt as learn};
use crate::threads::{for_each_piece, share};
use crate::track::Tracking;

/// The least number of samples in one turn of a thread.
const TURN_SAMPLES_MIN: usize = 4096;

pub(super) fn mix(op: &Mix, threads: &dyn Threads, take: TakeMemory<'_>) -> Result<Value> {
    let (input, step) = (op.input.contiguous()?, step_of(&op.input));
    let mut output = Output::take(DType::Complex64, *input.shape(), take)?;
    let len = input.shape().last().copied().unwrap_or(0);
    if output.shape.elements() == 0 {
        return output.value();
    }
    let (samples, oscillator) = (numbers(&input)?, Oscillator::new(op.frequency, op.phase));
    let lines = output.shape.elements() / len;
    // A single line is split; several short lines share a turn.
    let piece = share(len, if lines == 1 { threads.count() } else { 1 }, TURN_SAMPLES_MIN);
    let each = if lines == 1 { piece } else { share(lines, threads.count(), TURN_SAMPLES_MIN.div_ceil(len)) * len };
    for_each_piece(threads, output.complex(), each, &|turn, part| {
        let begin = turn * each;
        let source = &samples[begin * step..(begin + part.len()) * step];
        match step {
            2 => part.copy_from_slice(bytemuck::cast_slice(source)),
            _ => part.iter_mut().zip(source).for_each(|(out, value)| *out = Complex32::new(*value, 0.0)),
        }
        part.chunks_mut(len).for_each(|line| oscillator.mix((begin % len) as u64, line));
    });
    output.value()
}

pub(super) fn track(op: &Track, threads: &dyn Threads, take: TakeMemory<'_>) -> Result<Value> {
    let input = op.input.contiguous()?;
    let samples = input.as_slice::<Complex32>()?;
    if let Tracker::Timing { .. } = op.tracker {
        let symbols = Tracking::new(op.tracker).next(samples);
        let mut output = Output::take(DType::Complex64, Shape::new([symbols.len()])?, take)?;
        output.complex().copy_from_slice(&symbols);
        return output.value();
    }
    let mut output = Output::take(DType::Complex64, *input.shape(), take)?;
    let len = input.shape().last().copied().unwrap_or(0);
    each_line(threads, output.numbers(), 2 * len, &|_, index, out| {
        let line = Tracking::new(op.tracker).next(&samples[index * len..(index + 1) * len]);
        out.copy_from_slice(bytemuck::cast_slice(&line));
    });
    output.value()
}

pub(super) fn adapt(op: &Adapt, threads: &dyn Threads, take: TakeMemory<'_>) -> Result<Value> {
    let (input, first) = (op.input.contiguous()?, op.weights.contiguous()?);
    let (samples, first) = (input.as_slice::<Complex32>()?, first.as_slice::<Complex32>()?);
    let desired: Option<Tensor> = match &op.target {
        AdaptTarget::Signal(signal) => Some(signal.contiguous()?),
        _ => None,
    };
    let desired = desired.as_ref().map(|signal| signal.as_slice::<Complex32>()).transpose()?;
    let points = match &op.target {
        AdaptTarget::Decisions(constellation) => constellation.points(),
        _ => Vec::new(),
    };
    let (shape, weights_shape) = op.output_shapes()?;
    let mut output = Output::take(DType::Complex64, shape, take)?;
    let mut learned = Output::take(DType::Complex64, weights_shape, take)?;
    let len = input.shape().last().copied().unwrap_or(0);
    learned.complex().chunks_exact_mut(first.len()).for_each(|weights| weights.copy_from_slice(first));
    let shared: Vec<Mutex<&mut [Complex32]>> = learned.complex().chunks_mut(first.len()).map(Mutex::new).collect();
    each_line(threads, output.numbers(), 2 * len, &|_, index, out| {
        let place = index * len..(index + 1) * len;
        let aim = match (&op.target, desired) {
            (AdaptTarget::Modulus(power), _) => FilterTarget::Modulus(*power as f32),
            (AdaptTarget::Signal(_), Some(signal)) => FilterTarget::Signal(&signal[place.clone()]),
            _ => FilterTarget::Points(&points),
        };
        // Each line has its own weights, so this lock never blocks.
        let mut weights = shared[index].lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let out = bytemuck::cast_slice_mut(out);
        learn((&[], &samples[place]), &aim, (op.step, op.normalized), &mut weights, out, &mut Vec::new());
    });
    drop(shared);
    Ok(Value::Pair(output.tensor()?, learned.tensor()?))
}

pub(super) fn channelize(
    op: &Channelize,
    space: &mut Space,
    threads: &dyn Threads,
    take: TakeMemory<'_>,
) -> Result<Value> {
    let (input, taps, shape) = (op.input.contiguous()?, op.taps.contiguous()?, op.output_shape()?);
    let mut output = Output::take(DType::Complex64, shape, take)?;
    if shape.elements() == 0 {
        return output.value();
    }
    let bank = Bank::new(&mut space.plans, taps.as_slice()?, op.channels);
    let (samples, len) = (input.as_slice::<Complex32>()?, input.shape().last().copied().unwrap_or(0));
    let line = bank.frames(len, 0) * op.channels;
    each_line(threads, output.numbers(), 2 * line, &|threads, index, out| {
        let own = &samples[index * len..(index + 1) * len];
        bank.filter(threads, &[], own, 0, bytemuck::cast_slice_mut(out));
    });
    output.value()
}
