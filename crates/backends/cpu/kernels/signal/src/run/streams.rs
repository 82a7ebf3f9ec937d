//! Filters with their memory of a stream.

use num_complex::Complex32;
use panoply_core::op::signal::oscillator::Oscillator;
use panoply_core::op::signal::{Filter, StartFilter, StreamFilter, Wave};
use panoply_core::{DType, Error, Result, Shape, Tensor, Threads, Value};

use super::filtering::{AnyTaps, Linear, rates, step_of};
use super::output::{Output, TakeMemory, numbers};
use super::session::{Session, unwanted};
use super::sessions::session;
use crate::bank::Bank;
use crate::iir::{Sections, State};
use crate::level::Level;
use crate::rates::Rates;
use crate::spectral::Plans;
use crate::track::Tracking;
use crate::waves::frequency_demodulate;

/// A stream of one or several signals.
pub struct Stream {
    dtype: DType,
    lines: usize,
    memory: Memory,
}

enum Memory {
    /// The filter, and the numbers of each line before the next piece.
    Sums(Linear, Vec<Vec<f32>>),
    /// The filter, the numbers of each line before the next piece, and the phase of the next output
    /// sample.
    Rates(Rates, Vec<Vec<f32>>, usize),
    States(Sections, Vec<State>),
    /// The oscillator, and the time of the next sample.
    Mix(Oscillator, u64),
    Track(Vec<Tracking>),
    /// The bank, the samples of each line before the next piece, and the phase of the next frame.
    Bank(Bank, Vec<Vec<f32>>, usize),
    /// The frequency deviation, and the last sample of each line.
    Discriminate(f64, Vec<Complex32>),
    /// A stream of bits or of frames, or an adaptive filter.
    Session(Box<dyn Session>),
}

/// The state of a memory after a piece.
enum MemoryState {
    Histories(Vec<Vec<f32>>, usize),
    States(Vec<State>),
    Time(u64),
    Trackings(Vec<Tracking>),
    Before(Vec<Complex32>),
}

/// The next samples of every line, and the allocator of the output.
struct StreamPiece<'a, 'b> {
    input: &'a Tensor,
    samples: &'a [f32],
    len: usize,
    /// Number of numbers in a line, and in a sample.
    line_len: usize,
    step: usize,
    threads: &'a dyn Threads,
    take: TakeMemory<'b>,
}

impl Stream {
    /// A stream before its first sample.
    pub fn new(level: Level, plans: &mut Plans, op: &StartFilter) -> Result<Stream> {
        let step = if op.dtype == DType::Complex64 { 2 } else { 1 };
        let silence = vec![Vec::new(); op.lines];
        let memory = match &op.filter {
            Filter::Fir { taps, up: 1, down: 1 } => {
                Memory::Sums(Linear::by_sums(level, &AnyTaps::of(taps)?, step), silence)
            }
            Filter::Fir { taps, up, down } => {
                Memory::Rates(rates(level, &AnyTaps::of(taps)?, *up, *down, step), silence, 0)
            }
            Filter::Iir { sections } => {
                let sections = Sections::new(level, sections);
                let states = vec![[0.0; 2]; op.lines * step * sections.count()];
                Memory::States(sections, states)
            }
            Filter::Mix { frequency } => Memory::Mix(Oscillator::new(*frequency, 0.0), 0),
            Filter::Track(tracker) => Memory::Track(vec![Tracking::new(*tracker); op.lines]),
            Filter::Channelize { taps, channels } => {
                Memory::Bank(Bank::new(plans, taps.contiguous()?.as_slice()?, *channels), silence, 0)
            }
            Filter::Discriminate { deviation } | Filter::DemodulateWave(Wave::Fm { deviation }) => {
                Memory::Discriminate(*deviation, vec![Complex32::new(1.0, 0.0); op.lines])
            }
            other => Memory::Session(session(level, other, op.dtype, op.lines)?),
        };
        Ok(Stream { dtype: op.dtype, lines: op.lines, memory })
    }

    /// Processes the next piece of every line. After an error or the panic of a thread the memory
    /// is unchanged: it is only updated when every line is done.
    pub fn next(&mut self, op: &StreamFilter, threads: &dyn Threads, take: TakeMemory<'_>) -> Result<Value> {
        let len = self.check(&op.input)?;
        let input = op.input.contiguous()?;
        if let Memory::Session(session) = &mut self.memory {
            return session.next(&input, op.desired.as_ref(), threads, take);
        }
        unwanted(op.desired.as_ref())?;
        let samples = numbers(&input)?;
        let (line_len, step) = (samples.len() / self.lines.max(1), step_of(&input));
        let piece = StreamPiece { input: &input, samples, len, line_len, step, threads, take };
        let (value, next) = self.memory.filtered(piece)?;
        self.memory.move_on(next);
        Ok(value)
    }

    /// Checks that a piece fits this stream. Returns its number of samples in each line.
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

impl Memory {
    /// Filters a piece. Returns the output, and the state of the memory after the piece.
    fn filtered(&self, piece: StreamPiece<'_, '_>) -> Result<(Value, MemoryState)> {
        match self {
            Memory::States(sections, states) => piece.recursive(sections, states),
            Memory::Sums(filter, histories) => piece.sums(filter, histories),
            Memory::Rates(filter, histories, phase) => piece.between_rates(filter, histories, *phase),
            Memory::Mix(oscillator, time) => piece.mixed(oscillator, *time),
            Memory::Track(trackings) => piece.tracked(trackings),
            Memory::Bank(bank, histories, phase) => piece.channels(bank, histories, *phase),
            Memory::Discriminate(deviation, before) => piece.discriminated(*deviation, before),
            Memory::Session(_) => Err(Error::invalid("stream_filter", "a filter of samples", "a session")),
        }
    }

    fn move_on(&mut self, next: MemoryState) {
        match (self, next) {
            (Memory::States(_, states), MemoryState::States(next)) => *states = next,
            (Memory::Sums(_, histories), MemoryState::Histories(next, _)) => *histories = next,
            (
                Memory::Rates(_, histories, phase) | Memory::Bank(_, histories, phase),
                MemoryState::Histories(next, then),
            ) => {
                (*histories, *phase) = (next, then);
            }
            (Memory::Mix(_, time), MemoryState::Time(next)) => *time = next,
            (Memory::Track(trackings), MemoryState::Trackings(next)) => *trackings = next,
            (Memory::Discriminate(_, before), MemoryState::Before(next)) => *before = next,
            _ => (),
        }
    }
}

impl StreamPiece<'_, '_> {
    fn line(&self, index: usize) -> &[f32] {
        &self.samples[index * self.line_len..(index + 1) * self.line_len]
    }

    fn output(&mut self, dtype: DType, len: usize) -> Result<Output> {
        let last = self.input.shape().rank() - 1;
        Output::take(dtype, self.input.shape().with_dim(last, len)?, self.take)
    }

    /// The last `keep` numbers of each line, and the phase.
    fn remembered(&self, histories: &[Vec<f32>], keep: usize, phase: usize) -> MemoryState {
        let one = |(index, history): (usize, &Vec<f32>)| {
            let piece = self.line(index);
            let older = keep.saturating_sub(piece.len()).min(history.len());
            let newer = piece.len().min(keep);
            [&history[history.len() - older..], &piece[piece.len() - newer..]].concat()
        };
        MemoryState::Histories(histories.iter().enumerate().map(one).collect(), phase)
    }

    fn recursive(mut self, sections: &Sections, states: &[State]) -> Result<(Value, MemoryState)> {
        let (mut out, mut next) = (self.output(self.input.dtype(), self.len)?, states.to_vec());
        sections.filter(self.threads, self.len, self.step, self.samples, out.numbers(), &mut next);
        Ok((out.value()?, MemoryState::States(next)))
    }

    fn sums(mut self, filter: &Linear, histories: &[Vec<f32>]) -> Result<(Value, MemoryState)> {
        let mut out = self.output(self.input.dtype(), self.len)?;
        for ((index, history), out) in histories.iter().enumerate().zip(lines(out.numbers(), self.line_len)) {
            filter.filter(self.threads, history, self.line(index), out);
        }
        Ok((out.value()?, self.remembered(histories, filter.history_len(), 0)))
    }

    fn between_rates(mut self, filter: &Rates, histories: &[Vec<f32>], phase: usize) -> Result<(Value, MemoryState)> {
        let out_len = filter.output_len(self.len, phase);
        let mut out = self.output(self.input.dtype(), out_len)?;
        for ((index, history), out) in histories.iter().enumerate().zip(lines(out.numbers(), out_len * self.step)) {
            filter.filter(self.threads, history, self.line(index), phase, out);
        }
        let next = filter.next_phase(self.len, phase);
        Ok((out.value()?, self.remembered(histories, filter.history_len(), next)))
    }

    fn mixed(mut self, oscillator: &Oscillator, time: u64) -> Result<(Value, MemoryState)> {
        let mut out = self.output(DType::Complex64, self.len)?;
        match self.step {
            2 => out.numbers().copy_from_slice(self.samples),
            _ => out.complex().iter_mut().zip(self.samples).for_each(|(out, value)| *out = (*value).into()),
        }
        out.complex().chunks_mut(self.len.max(1)).for_each(|line| oscillator.mix(time, line));
        Ok((out.value()?, MemoryState::Time(time + self.len as u64)))
    }

    fn tracked(mut self, trackings: &[Tracking]) -> Result<(Value, MemoryState)> {
        let mut next = trackings.to_vec();
        let own = next.iter_mut().enumerate();
        let tracked: Vec<Vec<Complex32>> =
            own.map(|(index, own)| own.next(bytemuck::cast_slice(self.line(index)))).collect();
        // Only a tracker of a single signal may change the number of samples.
        let len = tracked.first().map_or(0, Vec::len);
        let mut out = self.output(self.input.dtype(), len)?;
        for (out, tracked) in lines(out.numbers(), 2 * len).zip(&tracked) {
            out.copy_from_slice(bytemuck::cast_slice(tracked));
        }
        Ok((out.value()?, MemoryState::Trackings(next)))
    }

    fn channels(self, bank: &Bank, histories: &[Vec<f32>], phase: usize) -> Result<(Value, MemoryState)> {
        let (frames, channels) = (bank.frames(self.len, phase), bank.channels());
        let last = self.input.shape().rank() - 1;
        let shape = self.input.shape().with_dim(last, frames)?.joined(&[channels])?;
        let next = self.remembered(histories, 2 * bank.history_len(), bank.next_phase(self.len, phase));
        let (samples, line_len) = (self.samples, self.line_len);
        let mut out = Output::take(self.input.dtype(), shape, self.take)?;
        let each = 2 * frames * channels;
        for ((index, history), out) in histories.iter().enumerate().zip(lines(out.numbers(), each)) {
            let line = &samples[index * line_len..(index + 1) * line_len];
            let (history, input) = (bytemuck::cast_slice(history), bytemuck::cast_slice(line));
            bank.filter(self.threads, history, input, phase, bytemuck::cast_slice_mut(out));
        }
        Ok((out.value()?, next))
    }

    fn discriminated(mut self, deviation: f64, before: &[Complex32]) -> Result<(Value, MemoryState)> {
        let (mut out, mut next) = (self.output(DType::F32, self.len)?, before.to_vec());
        for ((index, before), out) in next.iter_mut().enumerate().zip(lines(out.numbers(), self.len)) {
            let own: &[Complex32] = bytemuck::cast_slice(self.line(index));
            frequency_demodulate(deviation, *before, own, out);
            *before = own.last().copied().unwrap_or(*before);
        }
        Ok((out.value()?, MemoryState::Before(next)))
    }
}

/// The lines of an output. If they are empty, there are none.
fn lines(numbers: &mut [f32], each: usize) -> impl Iterator<Item = &mut [f32]> {
    numbers.chunks_exact_mut(each.max(1))
}
