//! Streams of bits and of frames, and adaptive filters: their memory between two pieces.

use std::sync::Arc;

use num_complex::Complex32;
use panoply_core::op::signal::{Filter, Learning, Scrambler, Wave};
use panoply_core::{DType, Element, Error, Result, Tensor, Threads, Value};

use super::framed::{FrameOp, FrameStream};
use super::output::{Output, TakeMemory};
use super::session::{Session, unwanted};
use super::waves::check_symbols;
use crate::coded_stream::{Decoder, Encoder};
use crate::learn::{FilterTarget, adapt};
use crate::level::Level;
use crate::viterbi::Trellis;
use crate::viterbi::frame::Cost;
use crate::waves::{Tones, frequency_modulate};
use crate::whiten::scramble_on;

/// A session before its first piece.
pub(super) fn session(level: Level, filter: &Filter, dtype: DType, lines: usize) -> Result<Box<dyn Session>> {
    let framed = |block: FrameOp| FrameStream::new(level, block, dtype, lines);
    let trellis = |code| Arc::new(Trellis::new(level, code));
    Ok(match filter {
        Filter::Adapt { weights, target, step, normalized } => {
            let weights = weights.contiguous()?.as_slice::<Complex32>()?.to_vec();
            let rule = Rule { target: target.clone(), step: *step, normalized: *normalized };
            Box::new(Learner { rule, lines: vec![FilterState { weights, before: Vec::new() }; lines] })
        }
        Filter::ModulateWave(Wave::Fsk { bits, samples, spacing }) => {
            let wave = Rotation::Tones(Tones::new(*bits, *samples, *spacing), *samples);
            Box::new(Turning { wave, turns: vec![0.0; lines] })
        }
        Filter::ModulateWave(Wave::Fm { deviation }) => {
            Box::new(Turning { wave: Rotation::Frequency(*deviation), turns: vec![0.0; lines] })
        }
        Filter::ModulateWave(wave) => Box::new(framed(FrameOp::Modulate(*wave))),
        Filter::DemodulateWave(wave) => Box::new(framed(FrameOp::Demodulate(*wave))),
        Filter::Stft(frames) => Box::new(framed(FrameOp::Stft(frames.clone()))),
        Filter::Istft { frames, real } => Box::new(framed(FrameOp::Istft(frames.clone(), *real))),
        Filter::ReadSamples { format, complex } => Box::new(framed(FrameOp::Read(*format, *complex))),
        Filter::Interleave { interleaver, inverse } => {
            Box::new(framed(FrameOp::Interleave(interleaver.clone(), *inverse)))
        }
        Filter::Scramble { scrambler, inverse } => Box::new(Registers {
            scrambler: *scrambler,
            inverse: *inverse,
            registers: vec![scrambler.register().1; lines],
        }),
        Filter::ConvolutionalEncode(code) => {
            Box::new(Encoders(vec![Encoder::new(trellis(*code), code.puncture); lines]))
        }
        Filter::Viterbi { code, depth } if dtype == DType::F32 => {
            Box::new(Decoders::<u32>(vec![Decoder::new(&trellis(*code), code.puncture, *depth); lines]))
        }
        Filter::Viterbi { code, depth } => {
            Box::new(Decoders::<u16>(vec![Decoder::new(&trellis(*code), code.puncture, *depth); lines]))
        }
        other => return Err(Error::invalid("start_filter", "a filter with a session", format!("{other:?}"))),
    })
}

/// Takes an output of the piece's shape, with another length of the lines.
fn output(piece: &Tensor, dtype: DType, len: usize, take: TakeMemory<'_>) -> Result<Output> {
    Output::take(dtype, piece.shape().with_dim(piece.shape().rank() - 1, len)?, take)
}

fn line_len(piece: &Tensor) -> usize {
    piece.shape().last().copied().unwrap_or(0)
}

/// Adaptive filters with the same rule.
struct Learner {
    rule: Rule,
    lines: Vec<FilterState>,
}

struct Rule {
    target: Learning,
    step: f64,
    normalized: bool,
}

#[derive(Clone)]
struct FilterState {
    weights: Vec<Complex32>,
    /// The last samples, as many as the filter needs.
    before: Vec<Complex32>,
}

impl FilterState {
    fn remember(&mut self, samples: &[Complex32]) {
        self.before.extend_from_slice(samples);
        let old = self.before.len().saturating_sub(self.weights.len() - 1);
        self.before.drain(..old);
    }
}

impl Session for Learner {
    fn next(
        &mut self,
        piece: &Tensor,
        desired: Option<&Tensor>,
        _: &dyn Threads,
        take: TakeMemory<'_>,
    ) -> Result<Value> {
        let wanted = match (&self.rule.target, desired) {
            (Learning::Signal, None) => {
                return Err(Error::invalid("stream_filter: desired signal", "one: the filter learns from it", "none"));
            }
            (Learning::Signal, Some(signal)) => Some(signal.contiguous()?),
            (_, other) => {
                unwanted(other)?;
                None
            }
        };
        let wanted = wanted.as_ref().map(|signal| signal.as_slice::<Complex32>()).transpose()?;
        let points = match &self.rule.target {
            Learning::Decisions(constellation) => constellation.points(),
            _ => Vec::new(),
        };
        let (samples, len) = (piece.as_slice::<Complex32>()?, line_len(piece));
        let mut out = output(piece, DType::Complex64, len, take)?;
        let (mut next, mut work) = (self.lines.clone(), Vec::new());
        for (index, line) in next.iter_mut().enumerate() {
            let place = index * len..(index + 1) * len;
            let aim = match (&self.rule.target, wanted) {
                (Learning::Modulus(power), _) => FilterTarget::Modulus(*power as f32),
                (Learning::Signal, Some(signal)) => FilterTarget::Signal(&signal[place.clone()]),
                _ => FilterTarget::Points(&points),
            };
            let (own, rule) = (&samples[place.clone()], (self.rule.step, self.rule.normalized));
            adapt((&line.before, own), &aim, rule, &mut line.weights, &mut out.complex()[place], &mut work);
            line.remember(own);
        }
        let value = out.value()?;
        self.lines = next;
        Ok(value)
    }
}

/// Waves with a continuous phase, and the current phase of each line in turns.
struct Turning {
    wave: Rotation,
    turns: Vec<f64>,
}

enum Rotation {
    /// The tones, and the number of samples of a symbol.
    Tones(Tones, usize),
    Frequency(f64),
}

impl Session for Turning {
    fn next(
        &mut self,
        piece: &Tensor,
        desired: Option<&Tensor>,
        _: &dyn Threads,
        take: TakeMemory<'_>,
    ) -> Result<Value> {
        unwanted(desired)?;
        let (len, mut next) = (line_len(piece), self.turns.clone());
        let each = match &self.wave {
            Rotation::Tones(_, samples) => len.saturating_mul(*samples),
            Rotation::Frequency(_) => len,
        };
        let mut out = output(piece, DType::Complex64, each, take)?;
        let lines = out.complex().chunks_exact_mut(each.max(1)).zip(&mut next).enumerate();
        match &self.wave {
            Rotation::Tones(tones, _) => {
                let symbols = piece.as_slice::<u8>()?;
                check_symbols(symbols, tones)?;
                lines.for_each(|(at, (out, turns))| tones.modulate(turns, &symbols[at * len..(at + 1) * len], out));
            }
            Rotation::Frequency(deviation) => {
                let message = piece.as_slice::<f32>()?;
                lines.for_each(|(at, (out, turns))| {
                    frequency_modulate(*deviation, turns, &message[at * len..(at + 1) * len], out);
                });
            }
        }
        let value = out.value()?;
        self.turns = next;
        Ok(value)
    }
}

/// Scramblers with the same polynomial, and the register of each line.
struct Registers {
    scrambler: Scrambler,
    inverse: bool,
    registers: Vec<u64>,
}

impl Session for Registers {
    fn next(
        &mut self,
        piece: &Tensor,
        desired: Option<&Tensor>,
        _: &dyn Threads,
        take: TakeMemory<'_>,
    ) -> Result<Value> {
        unwanted(desired)?;
        let (bytes, len) = (piece.as_slice::<u8>()?, line_len(piece));
        let (mut out, mut next) = (output(piece, DType::U8, len, take)?, self.registers.clone());
        let lines = out.bytes().chunks_exact_mut(len.max(1)).zip(bytes.chunks_exact(len.max(1)));
        for ((out, line), register) in lines.zip(&mut next) {
            scramble_on(self.scrambler, self.inverse, register, line, out);
        }
        let value = out.value()?;
        self.registers = next;
        Ok(value)
    }
}

/// The encoder of each line, for one code.
struct Encoders(Vec<Encoder>);

impl Session for Encoders {
    fn next(
        &mut self,
        piece: &Tensor,
        desired: Option<&Tensor>,
        _: &dyn Threads,
        take: TakeMemory<'_>,
    ) -> Result<Value> {
        unwanted(desired)?;
        let (data, len) = (piece.as_slice::<u8>()?, line_len(piece));
        // All lines have the same length, and so have their coded bits.
        let coded = self.0.first().map_or(0, |encoder| encoder.output_len(len));
        let (mut out, mut next) = (output(piece, DType::U8, coded, take)?, self.0.clone());
        for (index, encoder) in next.iter_mut().enumerate() {
            let own = &mut out.bytes()[index * coded..(index + 1) * coded];
            encoder.encode(&data[index * len..(index + 1) * len], own);
        }
        let value = out.value()?;
        self.0 = next;
        Ok(value)
    }
}

/// The decoder of each line, for one code.
struct Decoders<C>(Vec<Decoder<C>>);

impl<C: Cost<Soft: Element> + Send + Sync> Session for Decoders<C> {
    fn next(
        &mut self,
        piece: &Tensor,
        desired: Option<&Tensor>,
        _: &dyn Threads,
        take: TakeMemory<'_>,
    ) -> Result<Value> {
        unwanted(desired)?;
        let (softs, len) = (piece.as_slice::<C::Soft>()?, line_len(piece));
        let (mut decoded, mut next) = (Vec::new(), self.0.clone());
        for (index, decoder) in next.iter_mut().enumerate() {
            decoder.decode(&softs[index * len..(index + 1) * len], &mut decoded);
        }
        // All lines have the same length, and so have their decoded bits.
        let mut out = output(piece, DType::U8, decoded.len() / next.len().max(1), take)?;
        out.bytes().copy_from_slice(&decoded);
        let value = out.value()?;
        self.0 = next;
        Ok(value)
    }
}
