//! Writing recordings.

use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use num_complex::Complex32;
use panoply_core::{DType, Tensor};

use super::{RecordingError, Result, SampleLayout, sigmf, wav};

/// A writer of a recording, block by block: the sink of a pipeline. The recording is complete after
/// [`Writer::finish`].
pub struct Writer {
    file: BufWriter<File>,
    path: PathBuf,
    layout: SampleLayout,
    kind: Kind,
    bytes: u64,
}

enum Kind {
    Raw,
    Wav,
    /// The path and the text of the metadata, which is written at the end.
    Sigmf(PathBuf, String),
}

impl Writer {
    /// Creates a recording by its file name: `.wav`, or `.sigmf-meta` or `.sigmf-data` for both
    /// files of a SigMF recording. Other names get raw samples only.
    pub fn create(path: &Path, layout: SampleLayout, description: &str) -> Result<Writer> {
        let layout = layout.check()?;
        let (path, kind) = match path.extension().and_then(|extension| extension.to_str()) {
            Some("wav") => (path.to_owned(), Kind::Wav),
            Some("sigmf-meta" | "sigmf-data") => {
                let text = sigmf::written(&layout, description)?;
                (path.with_extension("sigmf-data"), Kind::Sigmf(path.with_extension("sigmf-meta"), text))
            }
            _ => (path.to_owned(), Kind::Raw),
        };
        // An existing file is only replaced if the layout is valid for the format.
        if matches!(kind, Kind::Wav) {
            check_wav(&layout)?;
        }
        let made = File::create(&path).map_err(|source| io_error(&path, source))?;
        let mut writer = Writer { file: BufWriter::new(made), path, layout, kind, bytes: 0 };
        if matches!(writer.kind, Kind::Wav) {
            let header = wav::written(&writer.layout, 0);
            writer.put(&header)?;
        }
        Ok(writer)
    }

    /// Writes the next samples: `[samples]` or `[channels, samples]`, f32 or c64 according to the
    /// layout.
    pub fn write(&mut self, block: &Tensor) -> Result<()> {
        let block = block.contiguous()?;
        let expected = if self.layout.complex { DType::Complex64 } else { DType::F32 };
        if block.dtype() != expected {
            let (what, got) = ("recording: samples", block.dtype());
            return Err(panoply_core::Error::DTypeMismatch { what, expected, got }.into());
        }
        let (channels, len) = match block.shape().as_ref() {
            [len] => (1, *len),
            [channels, len] => (*channels, *len),
            _ => (0, 0),
        };
        if channels != self.layout.channels {
            let (expected, got) = (vec![self.layout.channels, len], block.shape().to_vec());
            return Err(panoply_core::Error::ShapeMismatch { what: "recording: samples", expected, got }.into());
        }
        let numbers: &[f32] = match self.layout.complex {
            true => bytemuck::cast_slice(block.as_slice::<Complex32>()?),
            false => block.as_slice::<f32>()?,
        };
        let each = if self.layout.complex { 2 } else { 1 };
        let mut bytes = Vec::with_capacity(numbers.len() * self.layout.format.size_bytes());
        for frame in 0..len {
            for channel in 0..channels {
                let at = (channel * len + frame) * each;
                self.layout.format.write(&numbers[at..at + each], &mut bytes);
            }
        }
        self.bytes += bytes.len() as u64;
        if matches!(self.kind, Kind::Wav) && self.bytes > u64::from(u32::MAX) - 64 {
            return Err(RecordingError::invalid("bytes of a WAV file", "less than 4 GiB", self.bytes));
        }
        self.put(&bytes)
    }

    /// Writes the remaining samples, and completes the header or the metadata.
    pub fn finish(mut self) -> Result<()> {
        match std::mem::replace(&mut self.kind, Kind::Raw) {
            Kind::Raw => (),
            Kind::Wav => {
                if !self.bytes.is_multiple_of(2) {
                    self.put(&[0])?;
                }
                let header = wav::written(&self.layout, self.bytes as u32);
                self.file.seek(SeekFrom::Start(0)).map_err(|source| io_error(&self.path, source))?;
                self.put(&header)?;
            }
            Kind::Sigmf(path, text) => std::fs::write(&path, text).map_err(|source| io_error(&path, source))?,
        }
        self.file.flush().map_err(|source| io_error(&self.path, source))
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|source| io_error(&self.path, source))
    }
}

fn check_wav(layout: &SampleLayout) -> Result<()> {
    use panoply_core::op::signal::SampleFormat::{I8, I16Be};
    if matches!(layout.format, I8 | I16Be) {
        return Err(RecordingError::invalid("format", "one that WAV has", layout.format.name()));
    }
    // WAV stores the sampling rate as a whole number of 32 bits.
    match layout.rate_hz.round() {
        rate if (1.0..=f64::from(u32::MAX)).contains(&rate) => Ok(()),
        rate => Err(RecordingError::invalid("sampling rate of a WAV file", &format!("1 to {}", u32::MAX), rate)),
    }
}

fn io_error(path: &Path, source: std::io::Error) -> RecordingError {
    RecordingError::Io { what: path.display().to_string(), source }
}
