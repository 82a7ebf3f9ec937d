//! `panoply store put --append --at BYTES`: an append that can safely be repeated.
//!
//! The object must have exactly this many bytes before the append. If it has exactly these followed
//! by the source's bytes, the append was already made, and nothing is done. Everything else is
//! refused.

use std::io::{self, Read, Write};

use anyhow::anyhow;
use panoply::store::{Entry, Error, Store};

use crate::failure::Failure;

const PIECE_BYTES: usize = 64 << 10;

/// Whether the source is to be appended; `false` if the object already ends with it. The source is
/// read only if the object is longer than expected.
pub fn is_missing(store: &Store, entry: &Entry, at: u64, source: &mut dyn Read) -> Result<bool, Failure> {
    let (name, len) = (&entry.name, entry.len);
    if len == at {
        return Ok(true);
    }
    if len < at {
        return Err(anyhow!("`{name}` has {len} bytes, and --at expects {at}; nothing was appended").into());
    }
    let mut tail = Tail { source, buffer: vec![0; PIECE_BYTES], differs: false, failed: None };
    let read = store.read_range(name, at..len, &mut tail);
    let unreadable =
        |error: io::Error| Failure::from(Error::Stream { what: "what is to be stored", source: error.into() });
    if let Some(error) = tail.failed {
        return Err(unreadable(error));
    }
    if !tail.differs {
        read?;
        tail.differs = has_more(tail.source).map_err(unreadable)?;
    }
    match tail.differs {
        false => Ok(false),
        true => Err(anyhow!(
            "`{name}` has {len} bytes, --at expects {at}, and what follows there is something else; nothing was appended"
        )
        .into()),
    }
}

fn has_more(source: &mut dyn Read) -> io::Result<bool> {
    loop {
        match source.read(&mut [0]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => return read.map(|len| len > 0),
        }
    }
}

/// A writer that compares its input with a source.
struct Tail<'a> {
    source: &'a mut dyn Read,
    buffer: Vec<u8>,
    differs: bool,
    failed: Option<io::Error>,
}

impl Write for Tail<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = bytes.len().min(self.buffer.len());
        match self.source.read_exact(&mut self.buffer[..len]) {
            Ok(()) if self.buffer[..len] == bytes[..len] => return Ok(len),
            Ok(()) => self.differs = true,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => self.differs = true,
            Err(error) => self.failed = Some(error),
        }
        Err(io::ErrorKind::Other.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
