//! Filters over streams: what comes in pieces is filtered as if it were whole.

use super::channelize::check_channels;
use super::checks::{finite, positive};
use super::fir::check_taps;
use super::iir::{Biquad, check_sections};
use super::track::{Tracker, check_tracked};
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
}

impl Filter {
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
        }
    }

    fn taps(&self) -> Option<&Tensor> {
        match self {
            Filter::Fir { taps, .. } | Filter::Channelize { taps, .. } => Some(taps),
            _ => None,
        }
    }

    fn taps_mut(&mut self) -> Option<&mut Tensor> {
        match self {
            Filter::Fir { taps, .. } | Filter::Channelize { taps, .. } => Some(taps),
            _ => None,
        }
    }
}

fn complex_stream(samples: DType) -> Result<()> {
    match samples {
        DType::Complex64 => Ok(()),
        got => Err(Error::DTypeMismatch { what: "start_filter: samples", expected: DType::Complex64, got }),
    }
}

/// Begins a stream of `lines` signals side by side: a device object, which remembers what the filter must know of the samples so far. It
/// is lost with its device, and cannot be made again: nobody else has the samples.
#[derive(Clone, Debug)]
pub struct StartFilter {
    /// The filter.
    pub filter: Filter,
    /// The samples' type: f32 or c64.
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
}

impl StreamFilter {
    /// The next piece.
    pub fn new(stream: &Object, input: &Tensor) -> StreamFilter {
        StreamFilter { stream: stream.clone(), input: input.clone() }
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
        let of_line = match &self.filter {
            Filter::Fir { taps, .. } | Filter::Channelize { taps, .. } => {
                taps.elements().saturating_mul(self.dtype.size_bytes())
            }
            Filter::Iir { sections } => sections.len().saturating_mul(4 * self.dtype.size_bytes()),
            Filter::Mix { .. } | Filter::Track(_) | Filter::Discriminate { .. } => 64,
        };
        let got = of_line.saturating_mul(self.lines);
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
        match self.input.shape().rank() {
            1 | 2 => Ok(()),
            got => Err(Error::RankMismatch { what: "stream_filter: input", expected: "1 or 2".into(), got }),
        }
    }

    fn for_each_part(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        visit((&self.stream).into());
        visit((&self.input).into());
    }

    fn for_each_part_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        visit((&mut self.stream).into());
        visit((&mut self.input).into());
    }

    fn work(&self) -> u64 {
        self.input.elements() as u64
    }

    fn is_repeatable(&self) -> bool {
        false
    }
}
