//! Stft, Istft and Psd: spectra of pieces of a signal that overlap.

use super::checks::{complex_only, line_len, of_type, real_or_complex, within};
use super::fft::half_spectrum_len;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::Describe;
use crate::part::{PartMut, PartRef};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// The longest transform of a frame.
pub const FRAME_LEN_MAX: usize = 1 << 24;

/// How a signal is cut into frames: a window slides over it.
#[derive(Clone, Debug)]
pub struct Frames {
    /// The weights of a frame's samples, f32 of one dimension.
    pub window: Tensor,
    /// Samples from one frame's beginning to the next one's.
    pub hop: usize,
    /// The length of the transform: that of the window, or more, with zeros behind the samples.
    pub transform: usize,
    /// Whether half a window of silence stands before and behind the signal, so that every sample is in the middle of some frame.
    pub centered: bool,
}

impl Frames {
    /// Frames of this window, so many samples apart.
    pub fn new(window: &Tensor, hop: usize) -> Frames {
        Frames { window: window.clone(), hop, transform: window.elements(), centered: false }
    }

    /// With transforms of this length.
    pub fn transform(mut self, len: usize) -> Frames {
        self.transform = len;
        self
    }

    /// With half a window of silence before and behind.
    pub fn centered(mut self) -> Frames {
        self.centered = true;
        self
    }

    /// Samples of silence before the signal, and behind it.
    pub fn silence(&self) -> usize {
        if self.centered { self.window.elements() / 2 } else { 0 }
    }

    /// How many frames lie within a signal of so many samples.
    pub fn count(&self, len: usize) -> usize {
        let padded = len.saturating_add(2 * self.silence());
        match padded.checked_sub(self.window.elements()) {
            Some(room) if len > 0 => room / self.hop.max(1) + 1,
            _ => 0,
        }
    }

    /// How many frames before it a frame overlaps with.
    pub fn overlapping(&self) -> usize {
        self.window.elements().div_ceil(self.hop.max(1)).saturating_sub(1)
    }

    /// Elements of a frame's spectrum, of half of it for real signals.
    pub fn bins(&self, is_real: bool) -> usize {
        if is_real { half_spectrum_len(self.transform) } else { self.transform }
    }

    pub(super) fn check(&self) -> Result<()> {
        of_type(&self.window, DType::F32, "frames: window")?;
        if self.window.shape().rank() != 1 {
            let got = self.window.shape().rank();
            return Err(Error::RankMismatch { what: "frames: window", expected: "1".into(), got });
        }
        within(self.window.elements(), 1, FRAME_LEN_MAX, "frames: elements of the window")?;
        within(self.hop, 1, FRAME_LEN_MAX, "frames: hop")?;
        within(self.transform, self.window.elements(), FRAME_LEN_MAX, "frames: length of the transform")
    }

    fn work(&self, frames: usize) -> u64 {
        (frames as u64).saturating_mul(self.transform as u64).saturating_mul(u64::from(self.transform.max(2).ilog2()))
    }
}

/// The spectra of frames along the last axis, f32 or c64: `[…, samples]` becomes `[…, frames, bins]` of c64. Each is the transform of the
/// frame's samples times the window, as [`super::Fft`] has it. What does not fill a frame at the end is left out; a signal shorter than the
/// window has no frame.
#[derive(Clone, Debug)]
pub struct Stft {
    /// The signals.
    pub input: Tensor,
    /// How they are cut.
    pub frames: Frames,
}

/// The signal whose frames have these spectra: `[…, frames, bins]` of c64 becomes `[…, samples]`. Frames are weighted with the window, added
/// up where they overlap, and divided by the sum of the squared weights there; where that is below 1e-10 the signal is zero.
#[derive(Clone, Debug)]
pub struct Istft {
    /// The spectra.
    pub input: Tensor,
    /// How the signal was cut.
    pub frames: Frames,
    /// How many samples it had.
    pub len: usize,
    /// Whether it was real: spectra are halves then.
    pub real: bool,
}

/// What the numbers of a power spectrum mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PowerScale {
    /// Power for each cycle a sample: the area is the signal's power. For a sampling rate in Hz, divide by it.
    #[default]
    Density,
    /// Power: a tone's line is as high as its power.
    Spectrum,
}

/// The mean power spectrum of a signal's frames by Welch, as SciPy's `welch`: `[…, samples]` of f32 or c64 becomes `[…, bins]` of f32. The spectrum of a
/// real signal has the power of both halves in one. A line is at least as long as the window.
#[derive(Clone, Debug)]
pub struct Psd {
    /// The signals.
    pub input: Tensor,
    /// How they are cut.
    pub frames: Frames,
    /// Whether each frame's mean is taken off first.
    pub detrend: bool,
    /// What the numbers mean.
    pub scale: PowerScale,
}

impl Stft {
    /// The spectra of these frames.
    pub fn new(input: &Tensor, frames: &Frames) -> Stft {
        Stft { input: input.clone(), frames: frames.clone() }
    }

    /// The output's shape.
    pub fn output_shape(&self) -> Result<Shape> {
        let len = line_len(&self.input, "stft: input")?;
        let last = self.input.shape().rank() - 1;
        let is_real = self.input.dtype() == DType::F32;
        self.input.shape().with_dim(last, self.frames.count(len))?.joined(&[self.frames.bins(is_real)])
    }
}

impl Istft {
    /// A complex signal of so many samples.
    pub fn new(input: &Tensor, frames: &Frames, len: usize) -> Istft {
        Istft { input: input.clone(), frames: frames.clone(), len, real: false }
    }

    /// A real one.
    pub fn real(mut self) -> Istft {
        self.real = true;
        self
    }

    /// The output's element type.
    pub fn output_dtype(&self) -> DType {
        if self.real { DType::F32 } else { DType::Complex64 }
    }

    /// The output's shape.
    pub fn output_shape(&self) -> Result<Shape> {
        let dims = self.input.shape();
        let Some(first) = dims.rank().checked_sub(2) else {
            return Err(Error::RankMismatch { what: "istft: input", expected: "at least 2".into(), got: dims.rank() });
        };
        let expected = [self.frames.count(self.len), self.frames.bins(self.real)];
        if dims[first..] != expected {
            let expected = Shape::new(&dims[..first])?.joined(&expected)?.to_vec();
            return Err(Error::ShapeMismatch { what: "istft: input", expected, got: dims.to_vec() });
        }
        Shape::new(&dims[..first])?.joined(&[self.len])
    }
}

impl Psd {
    /// The mean power density of these frames, each without its mean.
    pub fn new(input: &Tensor, frames: &Frames) -> Psd {
        Psd { input: input.clone(), frames: frames.clone(), detrend: true, scale: PowerScale::Density }
    }

    /// With the frames' means.
    pub fn keep_mean(mut self) -> Psd {
        self.detrend = false;
        self
    }

    /// With numbers of this meaning.
    pub fn scale(mut self, scale: PowerScale) -> Psd {
        self.scale = scale;
        self
    }

    /// The output's shape.
    pub fn output_shape(&self) -> Result<Shape> {
        line_len(&self.input, "psd: input")?;
        let last = self.input.shape().rank() - 1;
        self.input.shape().with_dim(last, self.frames.bins(self.input.dtype() == DType::F32))
    }
}

impl Describe for Stft {
    fn name(&self) -> &'static str {
        "stft"
    }

    fn validate(&self) -> Result<()> {
        real_or_complex(&self.input, "stft: input")?;
        self.frames.check()?;
        self.output_shape().map(drop)
    }

    fn for_each_part(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        visit((&self.input).into());
        visit((&self.frames.window).into());
    }

    fn for_each_part_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        visit((&mut self.input).into());
        visit((&mut self.frames.window).into());
    }

    fn work(&self) -> u64 {
        self.frames.work(self.input.elements() / self.frames.hop.max(1))
    }
}

impl Describe for Istft {
    fn name(&self) -> &'static str {
        "istft"
    }

    fn validate(&self) -> Result<()> {
        complex_only(&self.input, "istft: input")?;
        self.frames.check()?;
        self.output_shape().map(drop)
    }

    fn for_each_part(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        visit((&self.input).into());
        visit((&self.frames.window).into());
    }

    fn for_each_part_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        visit((&mut self.input).into());
        visit((&mut self.frames.window).into());
    }

    fn work(&self) -> u64 {
        self.frames.work(self.input.elements() / self.frames.bins(self.real).max(1))
    }
}

impl Describe for Psd {
    fn name(&self) -> &'static str {
        "psd"
    }

    fn validate(&self) -> Result<()> {
        real_or_complex(&self.input, "psd: input")?;
        self.frames.check()?;
        let (len, window) = (line_len(&self.input, "psd: input")?, self.frames.window.elements());
        if self.frames.count(len) == 0 {
            return Err(Error::invalid("psd: samples of a line", format!("at least {window}, as the window has"), len));
        }
        self.output_shape().map(drop)
    }

    fn for_each_part(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        visit((&self.input).into());
        visit((&self.frames.window).into());
    }

    fn for_each_part_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        visit((&mut self.input).into());
        visit((&mut self.frames.window).into());
    }

    fn work(&self) -> u64 {
        self.frames.work(self.input.elements() / self.frames.hop.max(1))
    }
}
