//! Stft, Istft and Psd: spectra of overlapping frames of a signal.

use super::checks::{complex_only, line_len, of_type, real_or_complex, within};
use super::fft::half_spectrum_len;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::{AnswerTypes, Describe};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// The longest transform of a frame.
pub const FRAME_LEN_MAX: usize = 1 << 24;

/// The division of a signal into frames by a sliding window.
#[derive(Clone, Debug)]
pub struct Frames {
    /// The weights of a frame's samples: f32 of one dimension.
    pub window: Tensor,
    /// Number of samples between the starts of two frames.
    pub hop: usize,
    /// The length of the transform: that of the window or more, padded with zeros at the end.
    pub transform: usize,
    /// Whether half a window of zeros is added before and after the signal, so that every sample is
    /// in the middle of some frame.
    pub centered: bool,
}

impl Frames {
    /// Frames of this window, `hop` samples apart.
    pub fn new(window: &Tensor, hop: usize) -> Frames {
        Frames { window: window.clone(), hop, transform: window.elements(), centered: false }
    }

    /// Sets the length of the transform.
    pub fn transform(mut self, len: usize) -> Frames {
        self.transform = len;
        self
    }

    /// Adds half a window of zeros before and after the signal.
    pub fn centered(mut self) -> Frames {
        self.centered = true;
        self
    }

    /// Number of zeros before the signal, and after it.
    pub fn silence(&self) -> usize {
        if self.centered { self.window.elements() / 2 } else { 0 }
    }

    /// Number of frames in a signal of `len` samples.
    pub fn count(&self, len: usize) -> usize {
        let padded = len.saturating_add(2 * self.silence());
        match padded.checked_sub(self.window.elements()) {
            Some(room) if len > 0 => room / self.hop.max(1) + 1,
            _ => 0,
        }
    }

    /// Number of earlier frames that a frame overlaps.
    pub fn overlapping(&self) -> usize {
        self.window.elements().div_ceil(self.hop.max(1)).saturating_sub(1)
    }

    /// Number of elements in a frame's spectrum: half of it for real signals.
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

/// The spectra of frames along the last axis, f32 or c64: `[…, samples]` becomes
/// `[…, frames, bins]` of c64. Each spectrum is the transform of the frame's samples times the
/// window, as in [`super::Fft`]. Samples at the end that do not fill a frame are ignored. A signal
/// shorter than the window has no frames.
#[derive(Clone, Debug)]
pub struct Stft {
    /// The signals.
    pub input: Tensor,
    /// The division into frames.
    pub frames: Frames,
}

/// Reconstructs a signal from the spectra of its frames: `[…, frames, bins]` of c64 becomes
/// `[…, samples]`. Frames are weighted with the window, added where they overlap, and divided by
/// the sum of the squared weights. Where this sum is below 1e-10 the signal is zero.
#[derive(Clone, Debug)]
pub struct Istft {
    /// The spectra.
    pub input: Tensor,
    /// The division into frames.
    pub frames: Frames,
    /// Number of samples of the signal.
    pub len: usize,
    /// Whether the signal is real, so that spectra are halves.
    pub real: bool,
}

/// The scale of a power spectrum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PowerScale {
    /// Power per cycle per sample: the area is the signal's power. For a sampling rate in Hz,
    /// divide by that rate.
    #[default]
    Density,
    /// Power: the line of a tone has the height of its power.
    Spectrum,
}

/// The mean power spectrum of a signal's frames by Welch's method, as SciPy's `welch`:
/// `[…, samples]` of f32 or c64 becomes `[…, bins]` of f32. The spectrum of a real signal combines
/// the power of both halves. A line must be at least as long as the window.
#[derive(Clone, Debug)]
pub struct Psd {
    /// The signals.
    pub input: Tensor,
    /// The division into frames.
    pub frames: Frames,
    /// Whether the mean of each frame is subtracted first.
    pub detrend: bool,
    /// The scale.
    pub scale: PowerScale,
}

impl Stft {
    /// Computes the spectra of these frames.
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
    /// Reconstructs a complex signal of `len` samples.
    pub fn new(input: &Tensor, frames: &Frames, len: usize) -> Istft {
        Istft { input: input.clone(), frames: frames.clone(), len, real: false }
    }

    /// Reconstructs a real signal.
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
    /// Computes the mean power density of these frames, with the mean of each frame subtracted.
    pub fn new(input: &Tensor, frames: &Frames) -> Psd {
        Psd { input: input.clone(), frames: frames.clone(), detrend: true, scale: PowerScale::Density }
    }

    /// Keeps the means of the frames.
    pub fn keep_mean(mut self) -> Psd {
        self.detrend = false;
        self
    }

    /// Sets the scale.
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

    crate::parts!(input, frames.window);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        Ok(AnswerTypes::Tensor(DType::Complex64, self.output_shape()?))
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

    crate::parts!(input, frames.window);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        Ok(AnswerTypes::Tensor(self.output_dtype(), self.output_shape()?))
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

    crate::parts!(input, frames.window);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        Ok(AnswerTypes::Tensor(DType::F32, self.output_shape()?))
    }

    fn work(&self) -> u64 {
        self.frames.work(self.input.elements() / self.frames.hop.max(1))
    }
}
