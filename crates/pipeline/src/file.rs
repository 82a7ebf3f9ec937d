//! Files as sources and sinks. A file is opened when the run first needs it. If it cannot be read,
//! its stage fails with an error that names the file. Even of a long file, only one item's worth of
//! data is in memory at a time.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use panoply_runtime::worker::BoxError;

use super::sink::Takes;

/// The most bytes of a line.
pub const LINE_BYTES_MAX: usize = 16 << 20;
/// The most bytes of a chunk.
pub const CHUNK_BYTES_MAX: usize = 1 << 30;
/// The most bytes that are read from a file beyond its reported length: the file may grow
/// meanwhile, or its file system may not know the length.
const GROWTH_BYTES_MAX: u64 = 64 << 20;

/// The lines of a text file.
pub(crate) struct FileLines {
    path: PathBuf,
    reader: ReadState,
}

/// The bytes of a file, in chunks of `size`.
pub(crate) struct Chunks {
    path: PathBuf,
    size: usize,
    reader: ReadState,
}

enum ReadState {
    Unopened,
    Open(BufReader<File>),
    /// The end was reached, or reading failed.
    Ended,
}

impl ReadState {
    fn get(&mut self, path: &Path) -> Result<Option<&mut BufReader<File>>, BoxError> {
        if matches!(self, ReadState::Unopened) {
            *self = ReadState::Ended;
            *self = ReadState::Open(BufReader::new(File::open(path).map_err(|error| about(path, &error))?));
        }
        match self {
            ReadState::Open(reader) => Ok(Some(reader)),
            ReadState::Unopened | ReadState::Ended => Ok(None),
        }
    }
}

impl FileLines {
    pub(crate) fn new(path: PathBuf) -> FileLines {
        FileLines { path, reader: ReadState::Unopened }
    }
}

impl Iterator for FileLines {
    type Item = Result<String, BoxError>;

    fn next(&mut self) -> Option<Self::Item> {
        let reader = match self.reader.get(&self.path) {
            Ok(reader) => reader?,
            Err(error) => return Some(Err(error)),
        };
        let mut line = Vec::new();
        // The line's end, and one byte more, which shows that a line is too long.
        match reader.take(LINE_BYTES_MAX as u64 + 2).read_until(b'\n', &mut line) {
            Ok(0) => {
                self.reader = ReadState::Ended;
                None
            }
            Ok(_) => Some(self.text(line)),
            Err(error) => {
                self.reader = ReadState::Ended;
                Some(Err(about(&self.path, &error)))
            }
        }
    }
}

impl FileLines {
    /// A line without its end. Invalid UTF-8 is an error of this line alone. A line that is too
    /// long ends the source, because the start of the next line is unknown.
    fn text(&mut self, mut line: Vec<u8>) -> Result<String, BoxError> {
        if line.pop_if(|last| *last == b'\n').is_some() {
            line.pop_if(|last| *last == b'\r');
        }
        if line.len() > LINE_BYTES_MAX {
            self.reader = ReadState::Ended;
            return Err(about(&self.path, &format!("a line of more than {LINE_BYTES_MAX} bytes; read it in chunks")));
        }
        String::from_utf8(line).map_err(|error| about(&self.path, &error))
    }
}

impl Chunks {
    pub(crate) fn new(path: PathBuf, size: usize) -> Chunks {
        Chunks { path, size, reader: ReadState::Unopened }
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
                self.reader = ReadState::Ended;
                None
            }
            Ok(_) => Some(Ok(chunk)),
            Err(error) => {
                self.reader = ReadState::Ended;
                Some(Err(about(&self.path, &error)))
            }
        }
    }
}

/// Reads the whole file, and returns its contents with its path.
pub(crate) fn contents(path: PathBuf) -> Result<(PathBuf, Vec<u8>), BoxError> {
    match whole(&path) {
        Ok(bytes) => Ok((path, bytes)),
        Err(error) => Err(about(&path, &error)),
    }
}

fn whole(path: &Path) -> std::io::Result<Vec<u8>> {
    use std::io::Error;
    // Checked before the file is opened: opening a pipe would wait for its other end.
    let (mut bytes, facts) = (Vec::new(), std::fs::metadata(path)?);
    if !facts.is_file() {
        return Err(Error::other("not a file that can be read as a whole"));
    }
    let bytes_max = facts.len().max(GROWTH_BYTES_MAX);
    let length = usize::try_from(facts.len()).unwrap_or(usize::MAX);
    // One byte more, so that reading a file that has not grown reaches its end without another
    // allocation.
    bytes
        .try_reserve_exact(length.saturating_add(1))
        .map_err(|_| Error::other(format!("no memory for {length} bytes")))?;
    File::open(path)?.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    match bytes.len() as u64 <= bytes_max {
        true => Ok(bytes),
        false => Err(Error::other(format!("more than {bytes_max} bytes, though it says {length}"))),
    }
}

/// Writes each item's bytes to a file, with `end` after each.
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
        // A failed write may have written half of the item, so the item is consumed in any case.
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

fn about(path: &Path, error: &dyn std::fmt::Display) -> BoxError {
    format!("{}: {error}", path.display()).into()
}
