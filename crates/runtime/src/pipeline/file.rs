//! Files as sources and sinks. A file is opened when the run first needs it; one that cannot be read is an error of its stage,
//! with the file's name.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use super::sink::Takes;
use crate::worker::BoxError;

/// The lines of a text file.
pub(crate) struct Lines {
    path: PathBuf,
    reader: Reader,
}

/// The bytes of a file, so many at a time.
pub(crate) struct Chunks {
    path: PathBuf,
    size: usize,
    reader: Reader,
}

enum Reader {
    Unopened,
    Open(BufReader<File>),
    /// Nothing can be read any more.
    Ended,
}

impl Reader {
    fn get(&mut self, path: &Path) -> Result<Option<&mut BufReader<File>>, BoxError> {
        if matches!(self, Reader::Unopened) {
            *self = Reader::Ended;
            *self = Reader::Open(BufReader::new(File::open(path).map_err(|error| about(path, &error))?));
        }
        match self {
            Reader::Open(reader) => Ok(Some(reader)),
            Reader::Unopened | Reader::Ended => Ok(None),
        }
    }
}

impl Lines {
    pub(crate) fn new(path: PathBuf) -> Lines {
        Lines { path, reader: Reader::Unopened }
    }
}

impl Iterator for Lines {
    type Item = Result<String, BoxError>;

    fn next(&mut self) -> Option<Self::Item> {
        let reader = match self.reader.get(&self.path) {
            Ok(reader) => reader?,
            Err(error) => return Some(Err(error)),
        };
        let mut line = String::new();
        match reader.read_line(&mut line) {
            Ok(0) => {
                self.reader = Reader::Ended;
                None
            }
            Ok(_) => {
                let end = line.trim_end_matches(['\n', '\r']).len();
                line.truncate(end);
                Some(Ok(line))
            }
            Err(error) => {
                // A line that is not text is one bad line; what the system refuses is the end.
                if error.kind() != std::io::ErrorKind::InvalidData {
                    self.reader = Reader::Ended;
                }
                Some(Err(about(&self.path, &error)))
            }
        }
    }
}

impl Chunks {
    pub(crate) fn new(path: PathBuf, size: usize) -> Chunks {
        Chunks { path, size, reader: Reader::Unopened }
    }
}

impl Iterator for Chunks {
    type Item = Result<Vec<u8>, BoxError>;

    fn next(&mut self) -> Option<Self::Item> {
        let reader = match self.reader.get(&self.path) {
            Ok(reader) => reader?,
            Err(error) => return Some(Err(error)),
        };
        let mut chunk = Vec::new();
        match reader.take(self.size as u64).read_to_end(&mut chunk) {
            Ok(0) => {
                self.reader = Reader::Ended;
                None
            }
            Ok(_) => Some(Ok(chunk)),
            Err(error) => {
                self.reader = Reader::Ended;
                Some(Err(about(&self.path, &error)))
            }
        }
    }
}

/// Each file's contents, with its path.
pub(crate) fn contents(path: PathBuf) -> Result<(PathBuf, Vec<u8>), BoxError> {
    match std::fs::read(&path) {
        Ok(bytes) => Ok((path, bytes)),
        Err(error) => Err(about(&path, &error)),
    }
}

/// Writes each item's bytes to a file, with an end after each.
pub(crate) struct FileSink {
    path: PathBuf,
    end: &'static [u8],
    file: Option<BufWriter<File>>,
}

impl FileSink {
    pub(crate) fn new(path: PathBuf, end: &'static [u8]) -> FileSink {
        FileSink { path, end, file: None }
    }

    fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(BufWriter::new(File::create(&self.path)?)),
        };
        file.write_all(bytes)?;
        file.write_all(self.end)
    }
}

impl<T: AsRef<[u8]>> Takes<T> for FileSink {
    fn take(&mut self, item: &mut Option<T>) -> Result<(), BoxError> {
        // Half of it may have been written when it fails, so it is taken in any case.
        let Some(item) = item.take() else { return Ok(()) };
        self.write(item.as_ref()).map_err(|error| about(&self.path, &error))
    }

    fn finish(&mut self) -> Result<(), BoxError> {
        let written = match &mut self.file {
            Some(file) => file.flush(),
            None => File::create(&self.path).map(drop),
        };
        written.map_err(|error| about(&self.path, &error))
    }
}

fn about(path: &Path, error: &std::io::Error) -> BoxError {
    format!("{}: {error}", path.display()).into()
}
