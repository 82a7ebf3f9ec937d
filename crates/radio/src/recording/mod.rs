//! Recordings of signals in files: raw samples, WAV and SigMF, read and written one block at a
//! time.
//!
//! A [`RecordingReader`] is an iterator of tensors, so it can be the source of a pipeline
//! (`try_source`): `[samples]` for one signal, `[channels, samples]` for several. A [`Writer`]
//! takes the same tensors. Everything that a file states is checked before it is used. A truncated
//! file gives the samples that are present and then [`RecordingError::CutShort`]; hostile contents
//! are refused. At most one block is held in memory.

mod error;
mod sigmf;
mod wav;
mod write;

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use num_complex::Complex32;
use panoply_core::Tensor;
use panoply_core::op::signal::SampleFormat;

pub use error::RecordingError;
pub use write::Writer;

/// The largest number of signals in a recording.
pub const CHANNELS_MAX: usize = 256;
/// The largest number of samples of a block.
pub const BLOCK_SAMPLES_MAX: usize = 1 << 24;
/// The highest sampling rate that is accepted.
pub const RATE_HZ_MAX: f64 = 1e15;

type Result<T> = std::result::Result<T, RecordingError>;

/// The layout of a recording's samples, and their frequencies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleLayout {
    /// The format of a number.
    pub format: SampleFormat,
    /// Whether a sample is two numbers.
    pub complex: bool,
    /// Number of signals, interleaved sample by sample.
    pub channels: usize,
    /// The sampling rate, in samples per second.
    pub rate_hz: f64,
    /// The frequency to which complex samples are relative.
    pub centre_hz: f64,
}

impl SampleLayout {
    /// One signal of complex samples around 0 Hz.
    pub fn complex(format: SampleFormat, rate_hz: f64) -> SampleLayout {
        SampleLayout { format, complex: true, channels: 1, rate_hz, centre_hz: 0.0 }
    }

    /// One signal of real samples.
    pub fn real(format: SampleFormat, rate_hz: f64) -> SampleLayout {
        SampleLayout { complex: false, ..SampleLayout::complex(format, rate_hz) }
    }

    /// The size of one sample of all signals, in bytes.
    pub fn frame_bytes(&self) -> usize {
        self.format.size_bytes() * self.numbers()
    }

    /// Number of numbers in one sample of all signals.
    fn numbers(&self) -> usize {
        self.channels * if self.complex { 2 } else { 1 }
    }

    fn check(self) -> Result<SampleLayout> {
        if !(1..=CHANNELS_MAX).contains(&self.channels) {
            let expected = format!("1 to {CHANNELS_MAX}");
            return Err(RecordingError::Invalid { what: "channels", expected, got: self.channels.to_string() });
        }
        if !(self.rate_hz > 0.0 && self.rate_hz <= RATE_HZ_MAX) {
            let expected = format!("above 0, up to {RATE_HZ_MAX:e} Hz");
            return Err(RecordingError::Invalid { what: "sampling rate", expected, got: self.rate_hz.to_string() });
        }
        if !self.centre_hz.is_finite() {
            let got = self.centre_hz.to_string();
            return Err(RecordingError::Invalid { what: "centre frequency", expected: "a finite number".into(), got });
        }
        Ok(self)
    }
}

/// A reader of a recording, block by block. After an error it ends.
#[derive(Debug)]
pub struct RecordingReader<R> {
    source: R,
    layout: SampleLayout,
    /// Number of bytes of samples that remain, if the recording states it.
    left: Option<u64>,
    block: usize,
    ended: bool,
    /// The error at the end of the recording, kept until the samples before it have been returned.
    torn: Option<RecordingError>,
}

impl RecordingReader<BufReader<File>> {
    /// Opens a recording by its file name: `.wav`, or `.sigmf-meta` or `.sigmf-data` for SigMF.
    /// Blocks have at most `block` samples.
    pub fn open(path: &Path, block: usize) -> Result<Self> {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("wav" | "wave" | "WAV") => RecordingReader::wav(BufReader::new(opened(path)?), block),
            Some("sigmf-meta" | "sigmf-data") => {
                let meta = sigmf::Meta::read(&path.with_extension("sigmf-meta"))?;
                let mut file = opened(&meta.data)?;
                let position = file.seek(SeekFrom::Start(meta.header_bytes));
                position.map_err(|source| RecordingError::Io { what: meta.data.display().to_string(), source })?;
                RecordingReader::raw(BufReader::new(file), meta.layout, block)
            }
            _ => {
                let expected = ".wav, .sigmf-meta or .sigmf-data".to_owned();
                Err(RecordingError::Invalid { what: "recording's name", expected, got: path.display().to_string() })
            }
        }
    }

    /// Opens a file that has raw samples only.
    pub fn open_raw(path: &Path, layout: SampleLayout, block: usize) -> Result<Self> {
        RecordingReader::raw(BufReader::new(opened(path)?), layout, block)
    }
}

impl<R: Read> RecordingReader<R> {
    /// Reads raw samples up to the end of the source.
    pub fn raw(source: R, layout: SampleLayout, block: usize) -> Result<RecordingReader<R>> {
        RecordingReader::new(source, layout.check()?, None, block)
    }

    /// Reads a WAV file with integers of 8, 16, 24 or 32 bits, or floats of 32 bits. If the data
    /// chunk states no length, it extends to the end of the source.
    pub fn wav(mut source: R, block: usize) -> Result<RecordingReader<R>> {
        let (layout, left) = wav::header(&mut source)?;
        RecordingReader::new(source, layout.check()?, left, block)
    }

    fn new(source: R, layout: SampleLayout, left: Option<u64>, block: usize) -> Result<RecordingReader<R>> {
        if !(1..=BLOCK_SAMPLES_MAX).contains(&block) {
            let expected = format!("1 to {BLOCK_SAMPLES_MAX}");
            return Err(RecordingError::Invalid { what: "samples of a block", expected, got: block.to_string() });
        }
        Ok(RecordingReader { source, layout, left, block, ended: false, torn: None })
    }

    /// Treats two channels as the two parts of one complex signal, as radios write them to WAV
    /// files.
    pub fn pairs(mut self) -> Result<RecordingReader<R>> {
        if self.layout.complex || self.layout.channels != 2 {
            let got = format!("{} of {}", self.layout.channels, if self.layout.complex { "pairs" } else { "numbers" });
            return Err(RecordingError::Invalid { what: "channels", expected: "2 of numbers".into(), got });
        }
        (self.layout.complex, self.layout.channels) = (true, 1);
        Ok(self)
    }

    /// The layout of the samples.
    pub fn layout(&self) -> &SampleLayout {
        &self.layout
    }

    /// Number of samples that remain, if the recording states it.
    pub fn samples_left(&self) -> Option<u64> {
        self.left.map(|bytes| bytes / self.layout.frame_bytes() as u64)
    }

    fn block(&mut self) -> Result<Option<Tensor>> {
        let frame = self.layout.frame_bytes();
        let wanted = (self.block * frame) as u64;
        let wanted = self.left.map_or(wanted, |left| left.min(wanted));
        let mut bytes = Vec::new();
        let read = self.source.by_ref().take(wanted).read_to_end(&mut bytes);
        read.map_err(|source| RecordingError::Io { what: "samples".to_owned(), source })?;
        self.left = self.left.map(|left| left - bytes.len() as u64);
        self.ended = (bytes.len() as u64) < wanted || wanted == 0;
        let (whole, partial) = (bytes.len() / frame, bytes.len() % frame);
        let missing = self.left.unwrap_or(0);
        if self.ended && (partial > 0 || missing > 0) {
            // The whole samples are returned first; the error follows.
            let expected = missing.max((frame - partial) as u64);
            self.torn = Some(RecordingError::CutShort { what: "samples", expected, got: partial as u64 });
        }
        match whole {
            0 => self.torn.take().map_or(Ok(None), Err),
            _ => self.tensor(&bytes[..whole * frame]).map(Some),
        }
    }

    fn tensor(&self, bytes: &[u8]) -> Result<Tensor> {
        let (layout, size) = (self.layout, self.layout.format.size_bytes());
        let mut numbers = vec![0.0_f32; bytes.len() / size];
        layout.format.read(bytes, &mut numbers);
        let frames = numbers.len() / layout.numbers();
        if layout.channels == 1 {
            return tensor_of(layout.complex, numbers, &[frames]);
        }
        let each = layout.numbers() / layout.channels;
        let mut sorted = Vec::with_capacity(numbers.len());
        for channel in 0..layout.channels {
            let own = |frame: &[f32]| [frame[channel * each], frame[channel * each + each - 1]];
            for pair in numbers.chunks_exact(layout.numbers()).map(own) {
                sorted.extend_from_slice(&pair[..each]);
            }
        }
        tensor_of(layout.complex, sorted, &[layout.channels, frames])
    }
}

impl<R: Read> Iterator for RecordingReader<R> {
    type Item = Result<Tensor>;

    fn next(&mut self) -> Option<Result<Tensor>> {
        if let Some(torn) = self.torn.take() {
            return Some(Err(torn));
        }
        if self.ended {
            return None;
        }
        let block = self.block();
        self.ended |= block.is_err();
        block.transpose()
    }
}

fn tensor_of(complex: bool, numbers: Vec<f32>, dims: &[usize]) -> Result<Tensor> {
    Ok(match complex {
        true => {
            let pairs = numbers.as_chunks::<2>().0.iter().map(|[re, im]| Complex32::new(*re, *im));
            Tensor::from_vec(pairs.collect::<Vec<Complex32>>(), dims)?
        }
        false => Tensor::from_vec(numbers, dims)?,
    })
}

fn opened(path: &Path) -> Result<File> {
    let about = |source| RecordingError::Io { what: path.display().to_string(), source };
    let file = File::open(path).map_err(about)?;
    if file.metadata().map_err(about)?.is_dir() {
        let (what, got) = ("recording", path.display().to_string());
        return Err(RecordingError::Invalid { what, expected: "a file".into(), got });
    }
    Ok(file)
}
