//! Filters over streams: a signal that arrives in pieces is filtered as if it were whole.

use super::adapt::check_weights;
use super::channelize::check_channels;
use super::checks::{finite, of_type, positive, within};
use super::convolutional::{Convolutional, check_soft_bits};
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

/// A filter with a state.
#[derive(Clone, Debug)]
pub enum Filter {
    /// As [`super::Fir`], including changes of the rate.
    Fir {
        /// The taps, of one dimension.
        taps: Tensor,
        /// The factor by which the rate is raised.
        up: usize,
        /// The factor by which the rate is lowered.
        down: usize,
    },
    /// As [`super::Iir`].
    Iir {
        /// The sections.
        sections: Vec<Biquad>,
    },
    /// As [`super::Mix`], from f32 or c64 to c64. The angle continues from piece to piece.
    Mix {
        /// Frequency in cycles per sample.
        frequency: f64,
    },
    /// As [`super::Track`]. The loop continues from piece to piece.
    Track(Tracker),
    /// As [`super::Channelize`]. A piece gives `[…, frames, channels]`, with the frames that begin
    /// in it.
    Channelize {
        /// The low-pass filter of a channel.
        taps: Tensor,
        /// Number of channels.
        channels: usize,
    },
    /// As [`super::DemodulateWave`] of [`super::Wave::Fm`], from c64 to f32.
    Discriminate {
        /// Cycles per sample for a message of 1.
        deviation: f64,
    },
    /// As [`super::Adapt`]. The weights continue from piece to piece.
    Adapt {
        /// The initial weights.
        weights: Tensor,
        /// The target.
        target: Learning,
        /// The step size of the weights.
        step: f64,
        /// Whether the step is divided by the power of the samples.
        normalized: bool,
    },
    /// As [`super::ModulateWave`] of [`Wave::Fsk`], [`Wave::Am`] or [`Wave::Fm`]. The angle
    /// continues from piece to piece.
    ModulateWave(Wave),
    /// As [`super::DemodulateWave`]. Pieces may end within a symbol.
    DemodulateWave(Wave),
    /// As [`super::Stft`] of frames that are not centred. A piece gives the frames that end in it.
    Stft(Frames),
    /// As [`super::Istft`] of frames that are not centred. The bins of successive frames are joined
    /// into one line, so that pieces may end within a frame. Each frame gives as many samples as
    /// there are between the starts of two frames. The rest of the last frames is kept for the
    /// frames that follow.
    Istft {
        /// The division into frames.
        frames: Frames,
        /// Whether the signal is real, so that spectra are halves.
        real: bool,
    },
    /// As [`super::ReadSamples`]. Pieces may end within a sample.
    ReadSamples {
        /// The encoding of a number.
        format: SampleFormat,
        /// Whether two numbers form one complex sample.
        complex: bool,
    },
    /// As [`super::Scramble`]. The register continues from piece to piece.
    Scramble {
        /// The register.
        scrambler: Scrambler,
        /// Whether scrambling is undone.
        inverse: bool,
    },
    /// As [`super::Interleave`]. Pieces may end within a frame.
    Interleave {
        /// The order.
        interleaver: Interleaver,
        /// Whether the reordering is undone.
        inverse: bool,
    },
    /// As [`super::ConvolutionalEncode`] of an endless frame: bytes of bits give the bytes of coded
    /// bits that are complete.
    ConvolutionalEncode(Convolutional),
    /// As [`super::Viterbi`] of an endless frame, from f32 log-likelihood ratios or u8. Bits come
    /// out in blocks of [`VITERBI_BLOCK_BITS`]. A block is decided as soon as `depth` further steps
    /// are known, along the most likely path back from there. To flush the last bits, send `depth`
    /// steps without information (0.0, or 128 for u8).
    Viterbi {
        /// The code.
        code: Convolutional,
        /// Number of steps by which a decision is delayed.
        depth: usize,
    },
}

/// The target of an adaptive filter over a stream. See [`super::AdaptTarget`].
#[derive(Clone, Debug)]
pub enum Learning {
    /// The signal that [`StreamFilter::towards`] gives for each piece.
    Signal,
    /// The nearest point.
    Decisions(Constellation),
    /// Samples of this power.
    Modulus(f64),
}

/// Number of bits that the decoder of a stream decides at a time.
pub const VITERBI_BLOCK_BITS: usize = 64;
/// The longest delay of a decision, in steps.
pub const TRACEBACK_STEPS_MAX: usize = 1 << 14;
/// Number of steps after which the paths of most codes have merged, also at higher rates.
const TRACEBACK_STEPS: usize = 128;

impl Filter {
    /// A decoder with a delay that suffices for all usual rates.
    pub fn viterbi(code: Convolutional) -> Filter {
        Filter::Viterbi { code, depth: TRACEBACK_STEPS }
    }

    /// A filter of weighted sums of samples.
    pub fn fir(taps: &Tensor) -> Filter {
        Filter::Fir { taps: taps.clone(), up: 1, down: 1 }
    }

    /// A filter of second-order sections.
    pub fn iir(sections: impl Into<Vec<Biquad>>) -> Filter {
        Filter::Iir { sections: sections.into() }
    }

    fn check(&self, samples: DType, lines: usize) -> Result<()> {
        match self {
            Filter::Fir { taps, up, down } => check_taps(taps, *up, *down, samples),
            Filter::Iir { sections } => check_sections(sections, samples),
            Filter::Mix { frequency } => {
                if !matches!(samples, DType::F32 | DType::Complex64) {
                    return Err(Error::DTypeUnsupported { what: "mix: input", expected: "f32 or c64", got: samples });
                }
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

    /// Checks the filters whose state is a part of a frame, or bits.
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
                code.check_stream()
            }
            Filter::Viterbi { code, depth } => {
                check_soft_bits(samples, "start_filter: samples")?;
                within(*depth, 1, TRACEBACK_STEPS_MAX, "viterbi: steps that a decision waits for")?;
                code.check_stream()
            }
            _ => Ok(()),
        }
    }

    /// Approximate size of a line's state, in bytes.
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

/// Begins a stream of `lines` parallel signals. The output is a device object that holds the
/// filter's state. It is lost with its device and cannot be made again, since the earlier samples
/// are gone.
#[derive(Clone, Debug)]
pub struct StartFilter {
    /// The filter.
    pub filter: Filter,
    /// Element type of the input: f32 or c64 for samples, u8 for bits, f32 or u8 for a decoder's
    /// soft bits.
    pub dtype: DType,
    /// Number of signals.
    pub lines: usize,
}

/// The most signals of one stream.
const LINES_MAX: usize = 1 << 20;
/// The most bytes of a stream's state.
const MEMORY_BYTES_MAX: usize = 1 << 30;

impl StartFilter {
    /// A stream of one signal.
    pub fn new(filter: Filter, dtype: DType) -> StartFilter {
        StartFilter { filter, dtype, lines: 1 }
    }

    /// Sets the number of signals.
    pub fn lines(mut self, lines: usize) -> StartFilter {
        self.lines = lines;
        self
    }
}

/// Filters the next piece of a stream. The outputs of all pieces together are the output for the
/// whole signal, bit for bit, except for f64 rounding in [`Filter::Iir`]. A piece may be empty. If
/// the rate is lowered, a piece gives the samples that fall into it.
///
/// The op is not repeatable, since it advances the state.
#[derive(Clone, Debug)]
pub struct StreamFilter {
    /// The stream.
    pub stream: Object,
    /// The piece: `[samples]` for one signal, `[lines, samples]` for several.
    pub input: Tensor,
    /// The target signal for [`Learning::Signal`], of the piece's shape.
    pub desired: Option<Tensor>,
}

impl StreamFilter {
    /// Filters the next piece.
    pub fn new(stream: &Object, input: &Tensor) -> StreamFilter {
        StreamFilter { stream: stream.clone(), input: input.clone(), desired: None }
    }

    /// Sets the target signal of an adaptive filter for this piece.
    pub fn towards(mut self, desired: &Tensor) -> StreamFilter {
        self.desired = Some(desired.clone());
        self
    }
}

/// The kind of a stream's device object.
const STREAM_KIND: &str = "filter stream";

impl StreamFilter {
    /// The kind of a stream's device object.
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

    crate::parts!(stream, input, desired);

    fn work(&self) -> u64 {
        self.input.elements() as u64
    }

    fn is_repeatable(&self) -> bool {
        false
    }
}
