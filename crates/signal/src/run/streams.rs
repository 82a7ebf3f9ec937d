//! Filters with their memory of a stream so far.

use panoply_core::op::signal::{Filter, StartFilter};
use panoply_core::{DType, Error, Result, Shape, Tensor, Value};

use super::filtering::{AnyRates, AnyTaps, Linear};
use super::{Output, TakeMemory, numbers};
use crate::iir::{Sections, State};
use crate::level::Level;
use crate::threads::Threads;

/// One stream of signals side by side.
pub struct Stream {
    dtype: DType,
    lines: usize,
    memory: Memory,
}

enum Memory {
    /// The numbers before the next piece, of each line.
    Sums(Linear, Vec<Vec<f32>>),
    /// The same, and the phase of the next sample that comes out.
    Rates(AnyRates, Vec<Vec<f32>>, usize),
    States(Sections, Vec<State>),
}

impl Stream {
    /// A stream before its first sample.
    pub fn new(level: Level, op: &StartFilter) -> Result<Stream> {
        let step = if op.dtype == DType::Complex64 { 2 } else { 1 };
        let silence = vec![Vec::new(); op.lines];
        let memory = match &op.filter {
            Filter::Fir { taps, up: 1, down: 1 } => {
                Memory::Sums(Linear::by_sums(level, &AnyTaps::of(taps)?, step), silence)
            }
            Filter::Fir { taps, up, down } => {
                Memory::Rates(AnyRates::new(&AnyTaps::of(taps)?, *up, *down, step), silence, 0)
            }
            Filter::Iir { sections } => {
                let sections = Sections::new(level, sections);
                let states = vec![[0.0; 2]; op.lines * step * sections.count()];
                Memory::States(sections, states)
            }
        };
        Ok(Stream { dtype: op.dtype, lines: op.lines, memory })
    }

    /// The next piece of every line. Where it cannot be had the memory stays as it was.
    pub fn next(&mut self, input: &Tensor, threads: &dyn Threads, take: TakeMemory<'_>) -> Result<Value> {
        let len = self.check(input)?;
        let input = input.contiguous()?;
        let step = if self.dtype == DType::Complex64 { 2 } else { 1 };
        let out_len = match &self.memory {
            Memory::Rates(rates, _, phase) => rates.output_len(len, *phase).0,
            _ => len,
        };
        let last = input.shape().rank() - 1;
        let mut output = Output::take(self.dtype, input.shape().with_dim(last, out_len)?, take)?;
        let samples = numbers(&input)?;
        let line = |index: usize| &samples[index * len * step..(index + 1) * len * step];
        let (out, out_line) = (output.numbers(), out_len * step);
        match &mut self.memory {
            Memory::States(sections, states) => sections.filter(threads, len, step, samples, out, states),
            Memory::Sums(filter, histories) => {
                for (index, history) in histories.iter_mut().enumerate() {
                    let out = &mut out[index * out_line..(index + 1) * out_line];
                    filter.filter(threads, history, line(index), out);
                    remember(history, line(index), filter.history_len());
                }
            }
            Memory::Rates(filter, histories, phase) => {
                for (index, history) in histories.iter_mut().enumerate() {
                    let out = &mut out[index * out_line..(index + 1) * out_line];
                    filter.filter(threads, history, line(index), *phase, out);
                    remember(history, line(index), filter.history_len());
                }
                *phase = filter.output_len(len, *phase).1;
            }
        }
        output.value()
    }

    /// How many samples of each line a piece has, if it is one of this stream.
    fn check(&self, input: &Tensor) -> Result<usize> {
        if input.dtype() != self.dtype {
            let (expected, got) = (self.dtype, input.dtype());
            return Err(Error::DTypeMismatch { what: "stream_filter: input", expected, got });
        }
        let shape: &Shape = input.shape();
        let (lines, len) = match shape.as_ref() {
            [len] => (1, *len),
            [lines, len] => (*lines, *len),
            _ => (0, 0),
        };
        if lines != self.lines {
            let expected = vec![self.lines, len];
            return Err(Error::ShapeMismatch { what: "stream_filter: input", expected, got: shape.to_vec() });
        }
        Ok(len)
    }
}

/// Keeps the last numbers that count.
fn remember(history: &mut Vec<f32>, piece: &[f32], keep: usize) {
    if piece.len() >= keep {
        history.clear();
        history.extend_from_slice(&piece[piece.len() - keep..]);
        return;
    }
    let excess = (history.len() + piece.len()).saturating_sub(keep);
    history.drain(..excess);
    history.extend_from_slice(piece);
}
