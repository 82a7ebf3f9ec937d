//! Recordings of signals in files: raw samples, WAV and SigMF, read and written a block at a time.
//!
//! A [`Reader`] is an iterator of tensors, so it is the source of a pipeline (`try_source`): `[samples]` of one signal, `[channels, samples]`
//! of several. A [`Writer`] takes the same tensors. Nothing that a file says is believed before it is checked: what is cut short gives the samples that
//! are there and then [`RecordingError::CutShort`], what is hostile is refused, and no more than a block is held in memory.

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

use crate::samples;

/// The most signals that lie side by side in a recording.
pub const CHANNELS_MAX: usize = 256;
/// The most samples of a block.
pub const BLOCK_SAMPLES_MAX: usize = 1 << 24;
/// The highest sampling rate that is believed.
pub const RATE_HZ_MAX: f64 = 1e15;

type Result<T> = std::result::Result<T, RecordingError>;

/// How samples lie in a recording, and what they are of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Layout {
    /// How a number lies in bytes.
    pub format: SampleFormat,
    /// Whether two numbers are one sample.
    pub complex: bool,
    /// How many signals lie side by side, sample by sample.
    pub channels: usize,
    /// Samples a second.
    pub rate_hz: f64,
    /// The frequency that complex samples count from.
    pub centre_hz: f64,
}

impl Layout {
    /// One signal of complex samples around 0 Hz.
    pub fn complex(format: SampleFormat, rate_hz: f64) -> Layout {
        Layout { format, complex: true, channels: 1, rate_hz, centre_hz: 0.0 }
    }

    /// One signal of real samples.
    pub fn real(format: SampleFormat, rate_hz: f64) -> Layout {
        Layout { complex: false, ..Layout::complex(format, rate_hz) }
    }

    /// Bytes of one sample of every signal.
    pub fn frame_bytes(&self) -> usize {
        self.format.size_bytes() * self.numbers()
    }

    /// Numbers of one sample of every signal.
    fn numbers(&self) -> usize {
        self.channels * if self.complex { 2 } else { 1 }
    }

    fn check(self) -> Result<Layout> {
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

/// A recording that is read, block by block. After an error there is nothing more.
#[derive(Debug)]
pub struct Reader<R> {
    source: R,
    layout: Layout,
    /// Bytes of samples that are still to come, where the recording says so.
    left: Option<u64>,
    block: usize,
    ended: bool,
    /// What is wrong with the end, where samples stood before it.
    torn: Option<RecordingError>,
}

impl Reader<BufReader<File>> {
    /// A recording by its name: `.wav`, or a SigMF recording by its `.sigmf-meta` or `.sigmf-data`. Blocks have at most so many samples.
    pub fn open(path: &Path, block: usize) -> Result<Self> {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("wav" | "wave" | "WAV") => Reader::wav(BufReader::new(opened(path)?), block),
            Some("sigmf-meta" | "sigmf-data") => {
                let meta = sigmf::Meta::read(&path.with_extension("sigmf-meta"))?;
                let mut file = opened(&meta.data)?;
                let position = file.seek(SeekFrom::Start(meta.header_bytes));
                position.map_err(|source| RecordingError::Io { what: meta.data.display().to_string(), source })?;
                Reader::raw(BufReader::new(file), meta.layout, block)
            }
            _ => {
                let expected = ".wav, .sigmf-meta or .sigmf-data".to_owned();
                Err(RecordingError::Invalid { what: "recording's name", expected, got: path.display().to_string() })
            }
        }
    }

    /// A file of samples and nothing else.
    pub fn open_raw(path: &Path, layout: Layout, block: usize) -> Result<Self> {
        Reader::raw(BufReader::new(opened(path)?), layout, block)
    }
}

impl<R: Read> Reader<R> {
    /// Samples and nothing else, to the source's end.
    pub fn raw(source: R, layout: Layout, block: usize) -> Result<Reader<R>> {
        Reader::new(source, layout.check()?, None, block)
    }

    /// A WAV file: integers of 8, 16, 24 or 32 bits, or floats of 32. Of a data chunk without a length all that follows is taken.
    pub fn wav(mut source: R, block: usize) -> Result<Reader<R>> {
        let (layout, left) = wav::header(&mut source)?;
        Reader::new(source, layout.check()?, left, block)
    }

    fn new(source: R, layout: Layout, left: Option<u64>, block: usize) -> Result<Reader<R>> {
        if !(1..=BLOCK_SAMPLES_MAX).contains(&block) {
            let expected = format!("1 to {BLOCK_SAMPLES_MAX}");
            return Err(RecordingError::Invalid { what: "samples of a block", expected, got: block.to_string() });
        }
        Ok(Reader { source, layout, left, block, ended: false, torn: None })
    }

    /// Two channels are the two parts of one complex signal, as radios write them to WAV files.
    pub fn pairs(mut self) -> Result<Reader<R>> {
        if self.layout.complex || self.layout.channels != 2 {
            let got = format!("{} of {}", self.layout.channels, if self.layout.complex { "pairs" } else { "numbers" });
            return Err(RecordingError::Invalid { what: "channels", expected: "2 of numbers".into(), got });
        }
        (self.layout.complex, self.layout.channels) = (true, 1);
        Ok(self)
    }

    /// How samples lie, and their rate.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Samples that are still to come, where the recording says how many.
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
            // The whole samples come first; what is missing is told afterwards.
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
        samples::read(layout.format, bytes, &mut numbers);
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

impl<R: Read> Iterator for Reader<R> {
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
