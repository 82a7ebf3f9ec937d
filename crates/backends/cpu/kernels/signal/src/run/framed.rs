//! Streams whose ops take whole frames. Elements that do not fill a frame wait for the next piece.

use std::ops::Range;

use panoply_core::op::signal::{
    DemodulateWave, Frames, Interleave, Interleaver, Istft, ModulateWave, ReadSamples, SampleFormat, Stft, Wave,
};
use panoply_core::{DType, Describe, Error, HostBufferMut, Op, Operation, Result, Tensor, Threads, Value};

use super::output::TakeMemory;
use super::session::{Session, unwanted};
use super::space::Space;
use super::whole::run_whole;
use crate::level::Level;

/// The op that is applied to whole frames.
pub(super) enum FrameOp {
    Modulate(Wave),
    Demodulate(Wave),
    Stft(Frames),
    Istft(Frames, bool),
    Read(SampleFormat, bool),
    Interleave(Interleaver, bool),
}

/// A stream of frames with the elements that wait.
pub(super) struct FrameStream {
    block: FrameOp,
    dtype: DType,
    /// The waiting bytes of each line.
    rest: Vec<Vec<u8>>,
    /// Number of elements to skip before the next frame, if the frame begins after the elements so
    /// far.
    ahead: usize,
    space: Space,
}

/// The use of a line's available elements. Elements before `begin` are skipped, the next `used`
/// elements are given to the op, and elements from `kept` on wait for the next piece. If `given` is
/// set, only this range of the op's output is returned.
struct PieceUse {
    begin: usize,
    used: usize,
    kept: usize,
    ahead: usize,
    given: Option<Range<usize>>,
}

impl FrameOp {
    fn op(&self, input: &Tensor) -> Result<Op> {
        match self {
            FrameOp::Modulate(wave) => ModulateWave::new(*wave, input).into_op(),
            FrameOp::Demodulate(wave) => DemodulateWave::new(*wave, input).into_op(),
            FrameOp::Stft(frames) => Stft::new(input, frames).into_op(),
            FrameOp::Istft(frames, real) => {
                let (last, bins) = (input.shape().rank() - 1, frames.bins(*real));
                let count = input.shape()[last] / bins.max(1);
                let mut dims = input.shape().to_vec();
                dims.splice(last.., [count, bins]);
                let len = count
                    .checked_sub(1)
                    .map_or(0, |before| before * frames.hop + frames.window.elements().max(frames.hop));
                let op = Istft::new(&input.reshape(dims)?, frames, len);
                if *real { op.real().into_op() } else { op.into_op() }
            }
            FrameOp::Read(format, false) => ReadSamples::new(*format, input).into_op(),
            FrameOp::Read(format, true) => ReadSamples::new(*format, input).complex().into_op(),
            FrameOp::Interleave(interleaver, false) => Interleave::new(interleaver.clone(), input).into_op(),
            FrameOp::Interleave(interleaver, true) => Interleave::inverse(interleaver.clone(), input).into_op(),
        }
    }

    /// Decides the use of a line's `have` elements, of which `waiting` are from earlier pieces.
    fn cut(&self, ahead: usize, waiting: usize, have: usize) -> PieceUse {
        let whole = |frame: usize| {
            let used = have - have % frame.max(1);
            PieceUse { begin: 0, used, kept: used, ahead: 0, given: None }
        };
        match self {
            FrameOp::Modulate(_) => whole(1),
            FrameOp::Demodulate(wave) => whole(wave.symbol_samples()),
            FrameOp::Read(format, complex) => whole(format.size_bytes() * if *complex { 2 } else { 1 }),
            FrameOp::Interleave(interleaver, _) => whole(interleaver.frame()),
            FrameOp::Stft(frames) => {
                let begin = ahead.min(have);
                let count = if begin < ahead { 0 } else { frames.count(have - begin) };
                let used = count.checked_sub(1).map_or(0, |before| before * frames.hop + frames.window.elements());
                // The next frame may begin after the elements so far.
                let next = ahead + count * frames.hop;
                PieceUse { begin, used, kept: next.min(have), ahead: next.saturating_sub(have), given: None }
            }
            // Waiting frames have returned their samples already, but they overlap those of the
            // next frames.
            FrameOp::Istft(frames, real) => {
                let bins = frames.bins(*real).max(1);
                let (before, count) = (waiting / bins, have / bins);
                let used = if count > before { count * bins } else { 0 };
                let kept = (count - count.min(frames.overlapping())) * bins;
                let given = if used > 0 { before * frames.hop..count * frames.hop } else { 0..0 };
                PieceUse { begin: 0, used, kept, ahead: 0, given: Some(given) }
            }
        }
    }
}

impl FrameStream {
    /// A stream before its first piece.
    pub(super) fn new(level: Level, block: FrameOp, dtype: DType, lines: usize) -> FrameStream {
        FrameStream { block, dtype, rest: vec![Vec::new(); lines], ahead: 0, space: Space::new(level) }
    }
}

impl Session for FrameStream {
    fn next(
        &mut self,
        piece: &Tensor,
        desired: Option<&Tensor>,
        threads: &dyn Threads,
        take: TakeMemory<'_>,
    ) -> Result<Value> {
        unwanted(desired)?;
        let (size, last) = (self.dtype.size_bytes(), piece.shape().rank() - 1);
        let line = piece.shape()[last] * size;
        let waiting = self.rest.first().map_or(0, Vec::len);
        let cut = self.block.cut(self.ahead, waiting / size, (waiting + line) / size);
        let (mut frames, mut rest) = (HostBufferMut::zeroed(self.rest.len() * cut.used * size)?, Vec::new());
        let bytes = piece.as_bytes()?;
        for (index, old) in self.rest.iter().enumerate() {
            let mut all = [&old[..], &bytes[index * line..(index + 1) * line]].concat();
            let place = index * cut.used * size..(index + 1) * cut.used * size;
            frames.bytes_mut()[place].copy_from_slice(&all[cut.begin * size..(cut.begin + cut.used) * size]);
            all.drain(..cut.kept * size);
            rest.push(all);
        }
        let whole = Tensor::from_host(self.dtype, piece.shape().with_dim(last, cut.used)?, frames.freeze())?;
        let op = self.block.op(&whole)?;
        let ran = match &op {
            Op::Signal(op) => run_whole(op, &mut self.space, threads, take),
            _ => None,
        };
        let unknown = || Error::invalid("filter stream: op", "one over whole frames", op.name());
        let mut value = ran.unwrap_or_else(|| Err(unknown()))?;
        if let Some(given) = cut.given {
            let all = value.into_tensor()?;
            value = Value::Tensor(all.slice(last, given.start, given.end)?.contiguous()?);
        }
        (self.rest, self.ahead) = (rest, cut.ahead);
        Ok(value)
    }
}
