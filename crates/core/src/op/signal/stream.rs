//! Filters over streams: what comes in pieces is filtered as if it were whole.

use super::adapt::check_weights;
use super::channelize::check_channels;
use super::checks::{finite, of_type, positive, within};
use super::convolutional::{Convolutional, Ending};
use super::fir::check_taps;
use super::iir::{Biquad, check_sections};
use super::modem::Constellation;
use super::samples::SampleFormat;
use super::stft::Frames;
use super::track::{Tracker, check_tracked};
use super::wave::Wave;
use super::whiten::{Interleaver, Scrambler};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::object::Object;
use crate::op::Describe;
use crate::part::{PartMut, PartRef};
use crate::tensor::Tensor;

/// A filter with a memory.
#[derive(Clone, Debug)]
pub enum Filter {
    /// As [`super::Fir`], with rates that change.
    Fir {
        /// The taps, of one dimension.
        taps: Tensor,
        /// How many times the rate is raised.
        up: usize,
        /// How many times the rate is lowered.
        down: usize,
    },
    /// As [`super::Iir`].
    Iir {
        /// The sections.
        sections: Vec<Biquad>,
    },
    /// As [`super::Mix`]: the angle goes on.
    Mix {
        /// Turns a sample.
        frequency: f64,
    },
    /// As [`super::Track`]: the loop goes on.
    Track(Tracker),
    /// As [`super::Channelize`]: a piece gives `[…, frames, channels]`, as many frames as begin in it.
    Channelize {
        /// The low-pass filter of a channel.
        taps: Tensor,
        /// How many channels.
        channels: usize,
    },
    /// As [`super::DemodulateWave`] of [`super::Wave::Fm`]: from c64 to f32.
    Discriminate {
        /// Turns a sample for a message of 1.
        deviation: f64,
    },
    /// As [`super::Adapt`]: the weights go on.
    Adapt {
        /// The weights at first.
        weights: Tensor,
        /// What it learns to give.
        target: Learning,
        /// How far a sample changes the weights.
        step: f64,
        /// Whether the step goes by the samples' power.
        normalized: bool,
    },
    /// As [`super::ModulateWave`] of [`Wave::Fsk`], [`Wave::Am`] or [`Wave::Fm`]: the angle goes on.
    ModulateWave(Wave),
    /// As [`super::DemodulateWave`]: pieces need not end where symbols do.
    DemodulateWave(Wave),
    /// As [`super::Stft`] of frames that are not centred: a piece gives as many as end in it.
    Stft(Frames),
    /// As [`super::Istft`] of frames that are not centred, with their bins one behind the other, so that pieces need not end where frames do. Each frame
    /// brings out as many samples as lie between two frames' beginnings; what the last ones reach beyond that waits for frames that follow.
    Istft {
        /// How the signal was cut.
        frames: Frames,
        /// Whether it was real: spectra are halves then.
        real: bool,
    },
    /// As [`super::ReadSamples`]: pieces need not end where samples do.
    ReadSamples {
        /// How numbers lie.
        format: SampleFormat,
        /// Whether two numbers are one sample.
        complex: bool,
    },
    /// As [`super::Scramble`]: the register goes on.
    Scramble {
        /// The register.
        scrambler: Scrambler,
        /// Whether it is undone.
        inverse: bool,
    },
    /// As [`super::Interleave`]: pieces need not end where frames do.
    Interleave {
        /// The order.
        interleaver: Interleaver,
        /// Whether it is undone.
        inverse: bool,
    },
    /// As [`super::ConvolutionalEncode`] of a frame that never ends: bytes of bits give bytes of coded bits, as many as are full.
    ConvolutionalEncode(Convolutional),
    /// As [`super::Viterbi`] of a frame that never ends. Bits come out in blocks of [`VITERBI_BLOCK_BITS`], each as soon as `depth` steps
    /// behind it are known, along the likeliest path from there: `depth` steps of 128, which says nothing, bring out what a last
    /// bit was.
    Viterbi {
        /// The code.
        code: Convolutional,
        /// Steps that a decision waits for.
        depth: usize,
    },
}

/// What a filter of a stream learns to give; see [`super::Target`].
#[derive(Clone, Debug)]
pub enum Learning {
    /// The signal that comes with each piece, by [`StreamFilter::towards`].
    Signal,
    /// The nearest point.
    Decisions(Constellation),
    /// Samples of this power.
    Modulus(f64),
}

/// Bits of a block that a decoder of a stream decides at a time.
pub const VITERBI_BLOCK_BITS: usize = 64;
/// The most steps that it waits for.
pub const TRACEBACK_STEPS_MAX: usize = 1 << 14;
/// Steps after which paths of most codes have met, those of higher rates included.
const TRACEBACK_STEPS: usize = 128;

impl Filter {
    /// A decoder whose decisions wait long enough for any of the usual rates.
    pub fn viterbi(code: Convolutional) -> Filter {
        Filter::Viterbi { code, depth: TRACEBACK_STEPS }
    }

    /// Weighted sums of samples.
    pub fn fir(taps: &Tensor) -> Filter {
        Filter::Fir { taps: taps.clone(), up: 1, down: 1 }
    }

    /// Sections of second order.
    pub fn iir(sections: impl Into<Vec<Biquad>>) -> Filter {
        Filter::Iir { sections: sections.into() }
    }

    fn check(&self, samples: DType, lines: usize) -> Result<()> {
        match self {
            Filter::Fir { taps, up, down } => check_taps(taps, *up, *down, samples),
            Filter::Iir { sections } => check_sections(sections, samples),
            Filter::Mix { frequency } => {
                complex_stream(samples)?;
                finite(*frequency, "mix: frequency")
            }
            Filter::Track(tracker) => check_tracked(tracker, samples, lines > 1),
            Filter::Channelize { taps, channels } => {
                complex_stream(samples)?;
                check_channels(taps, *channels)
            }
            Filter::Discriminate { deviation } => {
                complex_stream(samples)?;
                positive(*deviation, "fm: deviation")
            }
            Filter::Adapt { weights, target, step, .. } => {
                complex_stream(samples)?;
                check_weights(weights, *step)?;
                match target {
                    Learning::Signal => Ok(()),
                    Learning::Decisions(constellation) => constellation.check(),
                    Learning::Modulus(power) => positive(*power, "adapt: power of the target"),
                }
            }
            Filter::ModulateWave(Wave::Ofdm { .. }) => {
                Err(Error::invalid("start_filter: wave", "one whose symbols remember those before", "ofdm"))
            }
            Filter::ModulateWave(wave) => {
                of_stream(samples, wave.message_dtype())?;
                wave.check()
            }
            Filter::DemodulateWave(wave) => {
                complex_stream(samples)?;
                wave.check()
            }
            other => other.check_framed(samples),
        }
    }

    /// Those whose memory is a part of a frame, or bits.
    fn check_framed(&self, samples: DType) -> Result<()> {
        match self {
            Filter::Stft(frames) | Filter::Istft { frames, .. } if frames.centered => {
                Err(Error::invalid("start_filter: frames", "frames that are not centred", "centred frames"))
            }
            Filter::Stft(_) if !matches!(samples, DType::F32 | DType::Complex64) => {
                Err(Error::DTypeUnsupported { what: "stft: input", expected: "f32 or c64", got: samples })
            }
            Filter::Stft(frames) => frames.check(),
            Filter::Istft { frames, .. } => {
                complex_stream(samples)?;
                frames.check()
            }
            Filter::Interleave { interleaver, .. } => interleaver.check(),
            Filter::ReadSamples { .. } => of_stream(samples, DType::U8),
            Filter::Scramble { scrambler, .. } => {
                of_stream(samples, DType::U8)?;
                scrambler.check()
            }
            Filter::ConvolutionalEncode(code) => {
                of_stream(samples, DType::U8)?;
                code.check(0, Ending::Open)
            }
            Filter::Viterbi { code, depth } => {
                of_stream(samples, DType::U8)?;
                within(*depth, 1, TRACEBACK_STEPS_MAX, "viterbi: steps that a decision waits for")?;
                code.check(0, Ending::Open)
            }
            _ => Ok(()),
        }
    }

    /// Bytes that a line's memory takes, about.
    fn memory_bytes(&self, samples: DType) -> usize {
        let of = |count: usize| count.saturating_mul(samples.size_bytes());
        match self {
            Filter::Fir { taps, .. } | Filter::Channelize { taps, .. } => of(taps.elements()),
            Filter::Iir { sections } => of(4 * sections.len()),
            Filter::Adapt { weights, .. } => of(2 * weights.elements()),
            Filter::DemodulateWave(wave) => of(wave.symbol_samples()),
            Filter::Stft(frames) => of(frames.window.elements()),
            Filter::Istft { frames, real } => {
                of(frames.overlapping().saturating_add(1).saturating_mul(frames.bins(*real)))
            }
            Filter::Interleave { interleaver, .. } => of(interleaver.frame()),
            Filter::Viterbi { depth, .. } => 8 * (depth + VITERBI_BLOCK_BITS) + 256,
            _ => 64,
        }
    }

    fn taps(&self) -> Option<&Tensor> {
        match self {
            Filter::Fir { taps, .. } | Filter::Channelize { taps, .. } => Some(taps),
            Filter::Adapt { weights, .. } => Some(weights),
            Filter::Stft(frames) | Filter::Istft { frames, .. } => Some(&frames.window),
            _ => None,
        }
    }

    fn taps_mut(&mut self) -> Option<&mut Tensor> {
        match self {
            Filter::Fir { taps, .. } | Filter::Channelize { taps, .. } => Some(taps),
            Filter::Adapt { weights, .. } => Some(weights),
            Filter::Stft(frames) | Filter::Istft { frames, .. } => Some(&mut frames.window),
            _ => None,
        }
    }
}

fn complex_stream(samples: DType) -> Result<()> {
    of_stream(samples, DType::Complex64)
}

fn of_stream(got: DType, expected: DType) -> Result<()> {
    match got == expected {
        true => Ok(()),
        false => Err(Error::DTypeMismatch { what: "start_filter: samples", expected, got }),
    }
}

/// Begins a stream of `lines` signals side by side: a device object, which remembers what the filter must know of the samples so far. It
/// is lost with its device, and cannot be made again: nobody else has the samples.
#[derive(Clone, Debug)]
pub struct StartFilter {
    /// The filter.
    pub filter: Filter,
    /// The type of what comes in: f32 or c64 for samples, u8 for bits.
    pub dtype: DType,
    /// How many signals.
    pub lines: usize,
}

/// The most signals of one stream.
const LINES_MAX: usize = 1 << 20;
/// The most bytes that a stream may have to remember.
const MEMORY_BYTES_MAX: usize = 1 << 30;

impl StartFilter {
    /// A stream of one signal.
    pub fn new(filter: Filter, dtype: DType) -> StartFilter {
        StartFilter { filter, dtype, lines: 1 }
    }

    /// Of so many signals.
    pub fn lines(mut self, lines: usize) -> StartFilter {
        self.lines = lines;
        self
    }
}

/// The next piece of a stream. What all pieces give, one after the other, is what the whole signal would have given: bit for bit, but
/// for rounding in f64 of a [`Filter::Iir`]. A piece may be empty. Where the rate is lowered, a piece gives as many samples as
/// fall into it.
///
/// It is not repeatable: the memory has moved on.
#[derive(Clone, Debug)]
pub struct StreamFilter {
    /// The stream.
    pub stream: Object,
    /// The piece: `[samples]` for one signal, `[lines, samples]` for several.
    pub input: Tensor,
    /// For a filter that learns to give a signal: that signal, of the piece's shape.
    pub desired: Option<Tensor>,
}

impl StreamFilter {
    /// The next piece.
    pub fn new(stream: &Object, input: &Tensor) -> StreamFilter {
        StreamFilter { stream: stream.clone(), input: input.clone(), desired: None }
    }

    /// What a filter that learns shall give for this piece.
    pub fn towards(mut self, desired: &Tensor) -> StreamFilter {
        self.desired = Some(desired.clone());
        self
    }
}

/// What the objects of streams are called.
const STREAM_KIND: &str = "filter stream";

impl StreamFilter {
    /// What the device object of a stream is called.
    pub const KIND: &'static str = STREAM_KIND;
}

impl Describe for StartFilter {
    fn name(&self) -> &'static str {
        "start_filter"
    }

    fn validate(&self) -> Result<()> {
        if self.lines == 0 || self.lines > LINES_MAX {
            return Err(Error::invalid("start_filter: signals", format!("1 to {LINES_MAX}"), self.lines));
        }
        self.filter.check(self.dtype, self.lines)?;
        let got = self.filter.memory_bytes(self.dtype).saturating_mul(self.lines);
        match got <= MEMORY_BYTES_MAX {
            true => Ok(()),
            false => Err(Error::OutOfBounds { what: "bytes of a stream's memory", limit: MEMORY_BYTES_MAX, got }),
        }
    }

    fn for_each_part(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        if let Some(taps) = self.filter.taps() {
            visit(taps.into());
        }
    }

    fn for_each_part_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        if let Some(taps) = self.filter.taps_mut() {
            visit(taps.into());
        }
    }
}

impl Describe for StreamFilter {
    fn name(&self) -> &'static str {
        "stream_filter"
    }

    fn validate(&self) -> Result<()> {
        if self.stream.kind() != STREAM_KIND {
            return Err(Error::invalid("stream_filter: stream", STREAM_KIND, self.stream.kind()));
        }
        if let Some(desired) = &self.desired {
            of_type(desired, DType::Complex64, "stream_filter: desired signal")?;
            if desired.shape() != self.input.shape() {
                let (expected, got) = (self.input.shape().to_vec(), desired.shape().to_vec());
                return Err(Error::ShapeMismatch { what: "stream_filter: desired signal", expected, got });
            }
        }
        match self.input.shape().rank() {
            1 | 2 => Ok(()),
            got => Err(Error::RankMismatch { what: "stream_filter: input", expected: "1 or 2".into(), got }),
        }
    }

    fn for_each_part(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        visit((&self.stream).into());
        visit((&self.input).into());
        if let Some(desired) = &self.desired {
            visit(desired.into());
        }
    }

    fn for_each_part_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        visit((&mut self.stream).into());
        visit((&mut self.input).into());
        if let Some(desired) = &mut self.desired {
            visit(desired.into());
        }
    }

    fn work(&self) -> u64 {
        self.input.elements() as u64
    }

    fn is_repeatable(&self) -> bool {
        false
    }
}
