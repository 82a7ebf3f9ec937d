//! Reading an extent: batches of chunks are read, opened and decompressed; each step works on one
//! batch while the others work on its neighbours. Nothing of a batch is handed out before all of it
//! has been authenticated.
//!
//! Authentic means two things. A chunk opens with the extent's key, and it belongs to the Merkle
//! tree whose root is in the catalog. The second condition matters after a key rotation: someone
//! with an old master key and an old head can seal chunks and an index of his own under the key of
//! an old extent, but can no longer seal a catalog.

use std::collections::VecDeque;
use std::fs::File;
use std::ops::Range;
use std::path::PathBuf;

use panoply_core::Bytes;
use panoply_core::op::crypto::{Decompress, Hash, HashAlgorithm, Key, Messages, Open};
use panoply_runtime::{Pending, PendingOutcome, RunOptions, Runtime};

use super::form::{Form, Width};
use super::index::{self, COUNT_BYTES, ChunkEntry, index_bytes};
use super::owner::{epoch_of, read_front};
use super::{associated, chunk_nonces, chunks_per_batch, extent_key, judged};
use crate::catalog::Extent;
use crate::error::{Error, Result};
use crate::files::{Access, open_file, read_at};
use crate::folder::Folder;
use crate::merkle::{self, digests};
use crate::uses::{Direction, Uses};

/// Maximal number of batches that are being opened, and that are being decompressed, at the same
/// time.
const OPENING_MAX: usize = 2;
const UNPACKING_MAX: usize = 1;

/// Receives the bytes of an object, piece by piece, in order.
pub(crate) type Take<'a> = &'a mut dyn FnMut(&[u8]) -> Result<()>;

/// The runtime, options and counts of a reader.
#[derive(Clone, Copy)]
pub(crate) struct ReaderEnds<'a> {
    pub(crate) runtime: &'a Runtime,
    pub(crate) compress_with: &'a RunOptions,
    pub(crate) uses: &'a Uses,
}

/// An extent with its index.
pub(crate) struct ExtentReader<'a> {
    ends: ReaderEnds<'a>,
    runtime: &'a Runtime,
    extent: &'a Extent,
    path: PathBuf,
    file: File,
    key: Key,
    chunks: Vec<ChunkEntry>,
    /// Start of each chunk in the file, and the end of the last.
    starts: Vec<u64>,
}

/// A batch whose chunks are being opened and hashed.
struct Opening {
    first: usize,
    opened: Pending<Messages>,
    digests: Pending<Messages>,
}

struct Unpacking {
    first: usize,
    opened: Vec<Bytes>,
    unpacked: Option<PendingOutcome<Messages>>,
}

impl<'a> ExtentReader<'a> {
    /// Opens the file, reads its index, and compares its Merkle root with the catalog's.
    pub(crate) fn open(
        ends: ReaderEnds<'a>,
        folder: &Folder,
        object_secret: &Key,
        extent: &'a Extent,
    ) -> Result<ExtentReader<'a>> {
        let runtime = ends.runtime;
        let path = folder.extent_path(&extent.id);
        let damaged = |reason| Error::damaged(&path, reason);
        let mut file = open_file(&path, Access::Read)?;
        let metadata = file.metadata().map_err(|error| Error::io("open", &path, error))?;
        let front = read_front(&mut file, &path, &extent.id)?;
        if epoch_of(&front) != Some(extent.epoch) {
            return Err(damaged("it is no extent, or another one"));
        }
        let index_len = index_bytes(extent.chunks());
        let index_start = extent.file_bytes.checked_sub(index_len + COUNT_BYTES);
        let index_start =
            index_start.filter(|start| metadata.len() == extent.file_bytes && *start >= front.len() as u64);
        let index_start = index_start.ok_or_else(|| damaged("it has another length than the catalog says"))?;
        let sealed = read_at(&mut file, &path, index_start, index_len as usize)?;
        let key = extent_key(runtime, object_secret, &extent.id)?;
        let index = index::open(runtime, &key, &front, extent.chunk_bytes, extent.chunks(), sealed, damaged)?;
        if index.len != extent.len || index::read_count(&mut file, &path, extent.file_bytes)? != extent.chunks() {
            return Err(damaged("it has another length than the catalog says"));
        }
        let (chunks, mut starts) = (index.chunks, vec![front.len() as u64]);
        for chunk in &chunks {
            starts.push(starts[starts.len() - 1] + u64::from(chunk.stored));
        }
        if starts.last() != Some(&index_start) {
            return Err(damaged("its index makes no sense"));
        }
        if merkle::extent_root(runtime, extent, &chunks)? != extent.root {
            return Err(damaged("its Merkle root is not the catalog's"));
        }
        Ok(ExtentReader { ends, runtime, extent, path, file, key, chunks, starts })
    }

    /// Reads and authenticates everything without handing it out.
    pub(crate) fn verify(&mut self) -> Result<()> {
        self.read(0..self.extent.len, &mut |_| Ok(()))
    }

    /// Hands out a range of the extent's bytes. The range must lie within the extent.
    pub(crate) fn read(&mut self, range: Range<u64>, take: Take<'_>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let chunk_bytes = u64::from(self.extent.chunk_bytes);
        let end = range.end.div_ceil(chunk_bytes) as usize;
        let (mut opening, mut unpacking) = (VecDeque::new(), VecDeque::new());
        let mut next = (range.start / chunk_bytes) as usize;
        while next < end || !opening.is_empty() || !unpacking.is_empty() {
            if next < end {
                let last = end.min(next + chunks_per_batch(chunk_bytes as usize));
                opening.push_back(self.begin(next..last)?);
                next = last;
            }
            let is_over = next == end;
            if opening.len() > if is_over { 0 } else { OPENING_MAX }
                && let Some(opening) = opening.pop_front()
            {
                unpacking.push_back(self.unpack(opening)?);
            }
            let is_over = is_over && opening.is_empty();
            if unpacking.len() > if is_over { 0 } else { UNPACKING_MAX }
                && let Some(unpacking) = unpacking.pop_front()
            {
                self.hand_out(unpacking, &range, take)?;
            }
        }
        Ok(())
    }

    /// Reads chunks and begins to open them.
    fn begin(&mut self, chunks: Range<usize>) -> Result<Opening> {
        let (start, end) = (self.starts[chunks.start], self.starts[chunks.end]);
        let bytes = read_at(&mut self.file, &self.path, start, (end - start) as usize)?;
        let offsets: Vec<usize> =
            self.starts[chunks.start..=chunks.end].iter().map(|at| (at - start) as usize).collect();
        let texts = Messages::from(Messages::packed(bytes.into(), offsets)?.into_list()?);
        let told = chunks.clone().map(|number| (self.chunks[number].form, self.extent.chunk_len(number as u64)));
        let digests = self.runtime.run(Hash::new(HashAlgorithm::Sha256, texts.clone()));
        let open = Open::new(&self.key, chunk_nonces(chunks.start as u64), texts).associated(associated(told)?);
        Ok(Opening { first: chunks.start, opened: self.runtime.run(open), digests })
    }

    /// Checks the opened chunks and begins to decompress them.
    fn unpack(&self, opening: Opening) -> Result<Unpacking> {
        let Opening { first, opened, digests: pending } = opening;
        let opened = judged(opened.wait(), || self.damaged("a chunk is not authentic"))?.into_list()?;
        let known = &self.chunks[first..first + opened.len()];
        let digests = digests(&pending.wait()?)?;
        if digests.len() != known.len() || !digests.iter().zip(known).all(|(digest, chunk)| *digest == chunk.digest) {
            return Err(self.damaged("a chunk is not the one of the Merkle tree"));
        }
        let packed =
            opened.iter().zip(known).filter(|(_, chunk)| chunk.form != Form::Plain).map(|(bytes, _)| bytes.clone());
        let packed: Vec<Bytes> = packed.collect();
        // The index has one format.
        let format = known.iter().find_map(|chunk| chunk.form.compression());
        let unpacked = format.map(|format| {
            let limit = self.extent.chunk_bytes as usize;
            let op = Decompress::new(format.format(), packed).limit(limit);
            self.runtime.run_with(op, self.ends.compress_with.clone().to_host()).with_report()
        });
        Ok(Unpacking { first, opened, unpacked })
    }

    /// Hands out the part of each chunk that lies in the range.
    fn hand_out(&self, unpacking: Unpacking, range: &Range<u64>, take: Take<'_>) -> Result<()> {
        let Unpacking { first, opened, unpacked } = unpacking;
        let unfit = || self.damaged("a chunk does not decompress to its length");
        let wait = |unpacked: PendingOutcome<Messages>| judged(unpacked.wait(), unfit);
        let unpacked = unpacked.map(wait).transpose()?;
        let unpacked = unpacked.map(|outcome| self.ends.uses.count(Direction::Decompress, outcome));
        let mut unpacked = unpacked.map_or(Ok(Vec::new()), Messages::into_list)?.into_iter();
        let mut whole: Vec<Bytes> = Vec::with_capacity(opened.len());
        for (number, bytes) in (first..).zip(opened) {
            let chunk = match self.chunks[number].form {
                Form::Plain => bytes,
                Form::Packed(..) => unpacked.next().ok_or_else(unfit)?,
            };
            if chunk.len() != self.extent.chunk_len(number as u64) {
                return Err(unfit());
            }
            whole.push(chunk);
        }
        let mut joined = Vec::new();
        for (number, chunk) in (first..).zip(whole) {
            let at = number as u64 * u64::from(self.extent.chunk_bytes);
            let start = range.start.saturating_sub(at).min(chunk.len() as u64) as usize;
            let end = range.end.saturating_sub(at).min(chunk.len() as u64) as usize;
            let bytes = match self.chunks[number].form {
                Form::Plain | Form::Packed(_, Width::One) => chunk.as_slice()?,
                Form::Packed(_, width) => {
                    joined.resize(chunk.len(), 0);
                    width.join(chunk.as_slice()?, &mut joined);
                    &joined[..]
                }
            };
            take(&bytes[start..end])?;
        }
        Ok(())
    }

    fn damaged(&self, reason: &'static str) -> Error {
        Error::damaged(&self.path, reason)
    }
}
