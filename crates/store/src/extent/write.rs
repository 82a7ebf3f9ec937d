//! Writing an extent: chunks are read, compressed, sealed, hashed and written; each step works on
//! one batch while the others work on its neighbours.
//!
//! The runtime's worker compresses, seals and hashes; this thread reads and writes meanwhile. Each
//! step has at most a few batches in flight, so memory is bounded for a source of any length.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::path::PathBuf;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use panoply_core::Bytes;
use panoply_core::op::crypto::{Compress, Hash, HashAlgorithm, Key, Messages, Seal, SealedMessages};
use panoply_core::process::Process;
use panoply_runtime::{Pending, PendingOutcome, RunOptions, Runtime};

use super::buffers::Buffers;
use super::form::{Form, Width};
use super::index::{self, COUNT_BYTES, ChunkEntry, Index, index_bytes};
use super::owner::Owner;
use super::{associated, chunk_nonces, chunks_per_batch, extent_key};
use crate::catalog::{CHUNKS_MAX, Extent};
use crate::error::{Error, Result};
use crate::files::{Access, open_file};
use crate::folder::Folder;
use crate::merkle::{self, digests};
use crate::options::Compression;
use crate::randomness::random;
use crate::uses::{Direction, Uses};

/// Maximal number of batches that are being compressed, and that are being sealed or hashed, at the
/// same time.
const PACKING_MAX: usize = 2;
const UNDER_WAY_MAX: usize = 1;
/// Number of bytes that are flushed to the disk at a time, while the next ones are made.
const FLUSH_BYTES: u64 = 32 << 20;

/// Where and how extents are written.
pub(crate) struct Setting<'a> {
    pub(crate) runtime: &'a Runtime,
    pub(crate) folder: &'a Folder,
    pub(crate) chunk_bytes: usize,
    pub(crate) extent_bytes_max: u64,
    pub(crate) compression: Compression,
    /// Compression level; `None` means no compression.
    pub(crate) level: Option<i32>,
    pub(crate) compress_with: &'a RunOptions,
    pub(crate) uses: &'a Uses,
    pub(crate) epoch: u32,
    /// The root key of the epoch.
    pub(crate) root: &'a Key,
    pub(crate) store: [u8; 16],
    pub(crate) object_secret: &'a Key,
    /// Memory for batches, and for chunks in planes.
    pub(crate) buffers: &'a [Buffers; 2],
}

/// An extent whose file is complete, but may not have reached the disk.
#[derive(Debug)]
pub(crate) struct WrittenExtent {
    pub(crate) extent: Extent,
    pub(crate) file: File,
    pub(crate) path: PathBuf,
}

/// Whether compression is worth its time. After a batch in which no chunk became shorter, only the
/// first chunk of each batch is tried first.
#[derive(Debug, Default)]
pub(crate) struct CompressionProbe {
    is_probing: bool,
}

impl CompressionProbe {
    /// Whether a chunk became short enough to be worth decompressing: by more than a sixteenth.
    fn is_worth_it(plain: usize, packed: usize) -> bool {
        packed < plain - plain / 16
    }

    fn learn(&mut self, any: bool) {
        self.is_probing = !any;
    }
}

/// A source of an object's bytes. It reads the first batch of the next extent before an extent
/// ends, so that the extent can record whether it is the last.
pub(crate) struct ObjectSource<'a> {
    reader: &'a mut dyn Read,
    ahead: Option<Bytes>,
}

impl<'a> ObjectSource<'a> {
    pub(crate) fn new(reader: &'a mut dyn Read) -> ObjectSource<'a> {
        ObjectSource { reader, ahead: None }
    }
}

/// Writes the next extent of a source for this owner; `None` at the source's end. The first extent
/// of an object may be empty. If writing fails, the file is removed.
pub(crate) fn write_next(
    setting: &Setting<'_>,
    owner: &Owner,
    source: &mut ObjectSource<'_>,
    probe: &mut CompressionProbe,
) -> Result<Option<WrittenExtent>> {
    let limit = setting.extent_bytes_max.min(CHUNKS_MAX * setting.chunk_bytes as u64);
    let batch_bytes = (chunks_per_batch(setting.chunk_bytes) * setting.chunk_bytes) as u64;
    let mut wanted = batch_bytes.min(limit);
    let read = |source: &mut ObjectSource<'_>, wanted| read_batch(&setting.buffers[0], source.reader, wanted);
    let mut batch = match source.ahead.take() {
        Some(batch) => batch,
        None => read(source, wanted)?,
    };
    if batch.is_empty() && owner.number > 0 {
        return Ok(None);
    }
    let mut line = ExtentPipeline::new(setting, owner)?;
    while !batch.is_empty() {
        let is_short = (batch.len() as u64) < wanted;
        line.take(batch, probe)?;
        line.advance(probe)?;
        let left = limit - line.len;
        if is_short {
            batch = Bytes::from_vec(Vec::new());
        } else if left > 0 {
            wanted = batch_bytes.min(left);
            batch = read(source, wanted)?;
        } else {
            batch = read(source, batch_bytes.min(limit))?;
            break;
        }
    }
    let is_last = batch.is_empty();
    source.ahead = Some(batch);
    line.finish(probe, is_last).map(Some)
}

/// The next bytes of a source; fewer than `bytes_max` only at its end.
fn read_batch(buffers: &Buffers, source: &mut dyn Read, bytes_max: u64) -> Result<Bytes> {
    let (mut batch, mut len) = (buffers.take(bytes_max as usize), 0);
    while len < bytes_max as usize {
        match source.read(&mut batch[len..bytes_max as usize]) {
            Ok(0) => break,
            Ok(read) => len += read.min(bytes_max as usize - len),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::stream("what is to be stored", error)),
        }
    }
    Ok(buffers.lend(batch, len))
}

/// The pipeline of one extent, with the batches in flight in each step.
struct ExtentPipeline<'a> {
    setting: &'a Setting<'a>,
    id: [u8; 32],
    front: Vec<u8>,
    key: Key,
    file: NewFile,
    /// Bytes taken from the source so far.
    len: u64,
    /// The number of the next chunk to be sealed.
    next_chunk: u64,
    packing: VecDeque<Packing>,
    sealing: VecDeque<Sealing>,
    hashing: VecDeque<Hashing>,
    chunks: Vec<ChunkEntry>,
}

/// A batch of chunks, with the attempt to compress them (perhaps only the first).
struct Packing {
    plain: Vec<Bytes>,
    tried: Option<CompressionTrial>,
}

/// Chunks that are being compressed, each in planes of a width.
struct CompressionTrial {
    widths: Vec<Width>,
    packed: PendingOutcome<Messages>,
}

/// Chunks that are being sealed, each with its form.
struct Sealing {
    forms: Vec<Form>,
    sealed: Pending<SealedMessages>,
}

struct Hashing {
    forms: Vec<Form>,
    texts: Messages,
    digests: Pending<Messages>,
}

impl<'a> ExtentPipeline<'a> {
    fn new(setting: &'a Setting<'a>, owner: &Owner) -> Result<ExtentPipeline<'a>> {
        setting.folder.expect_in_place()?;
        let id = random()?;
        let key = extent_key(setting.runtime, setting.object_secret, &id)?;
        let front = owner.seal(setting.runtime, &id, &setting.store, setting.epoch, setting.root)?;
        let mut file = NewFile::create(setting.folder.extent_path(&id))?;
        file.write(&front)?;
        let (packing, sealing, hashing) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        let (len, next_chunk, chunks) = (0, 0, Vec::new());
        Ok(ExtentPipeline { setting, id, front, key, file, len, next_chunk, packing, sealing, hashing, chunks })
    }

    /// Cuts a batch into chunks and begins to compress them.
    fn take(&mut self, batch: Bytes, probe: &CompressionProbe) -> Result<()> {
        self.len += batch.len() as u64;
        let plain = Messages::split(batch, self.setting.chunk_bytes)?.into_list()?;
        let tried = if probe.is_probing { &plain[..1] } else { &plain[..] };
        let tried = self.setting.level.map(|level| self.begin(tried, level)).transpose()?;
        self.packing.push_back(Packing { plain, tried });
        Ok(())
    }

    /// Begins to compress chunks; numeric ones are split into planes first.
    fn begin(&self, chunks: &[Bytes], level: i32) -> Result<CompressionTrial> {
        let (mut widths, mut planes) = (Vec::with_capacity(chunks.len()), Vec::with_capacity(chunks.len()));
        for chunk in chunks {
            let bytes = chunk.as_slice()?;
            let width = Width::of(bytes);
            widths.push(width);
            planes.push(match width {
                Width::One => chunk.clone(),
                width => {
                    let mut buffer = self.setting.buffers[1].take(bytes.len());
                    width.split(bytes, &mut buffer[..bytes.len()]);
                    self.setting.buffers[1].lend(buffer, bytes.len())
                }
            });
        }
        let Setting { runtime, compression, compress_with, .. } = self.setting;
        // A device's answer is sealed and hashed on the host.
        let options = (*compress_with).clone().to_host();
        let op = Compress::new(compression.format(), planes).level(level);
        Ok(CompressionTrial { widths, packed: runtime.run_with(op, options).with_report() })
    }

    /// Moves batches to the next steps until no step exceeds its limit.
    fn advance(&mut self, probe: &mut CompressionProbe) -> Result<()> {
        while self.packing.len() > PACKING_MAX {
            self.seal_oldest(probe)?;
        }
        while self.sealing.len() > UNDER_WAY_MAX {
            self.hash_oldest()?;
        }
        while self.hashing.len() > UNDER_WAY_MAX {
            self.write_oldest()?;
        }
        Ok(())
    }

    fn seal_oldest(&mut self, probe: &mut CompressionProbe) -> Result<()> {
        // A forked process would seal other chunks with the same numbers under the same key.
        self.setting.folder.expect_process()?;
        let Some(Packing { plain, tried }) = self.packing.pop_front() else { return Ok(()) };
        let packed = self.packed(&plain, tried)?;
        let shorter: Vec<Option<(Width, Bytes)>> = plain
            .iter()
            .enumerate()
            .map(|(at, chunk)| {
                packed.get(at).filter(|(_, packed)| CompressionProbe::is_worth_it(chunk.len(), packed.len())).cloned()
            })
            .collect();
        probe.learn(shorter.iter().any(Option::is_some));
        let form = |shorter: &Option<(Width, Bytes)>| {
            shorter.as_ref().map_or(Form::Plain, |(width, _)| Form::Packed(self.setting.compression, *width))
        };
        let forms: Vec<Form> = shorter.iter().map(form).collect();
        let lens = plain.iter().map(Bytes::len);
        let associated = associated(forms.iter().copied().zip(lens))?;
        let stored = shorter.into_iter().zip(plain).map(|(shorter, plain)| shorter.map_or(plain, |(_, packed)| packed));
        let stored: Vec<Bytes> = stored.collect();
        let first = self.next_chunk;
        self.next_chunk += stored.len() as u64;
        let seal = Seal::new(&self.key, chunk_nonces(first), stored).associated(associated);
        self.sealing.push_back(Sealing { forms, sealed: self.setting.runtime.run(seal) });
        Ok(())
    }

    /// The compressed chunks. If only the first chunk was tried and became shorter, the others are
    /// compressed now.
    fn packed(&self, plain: &[Bytes], tried: Option<CompressionTrial>) -> Result<Vec<(Width, Bytes)>> {
        let (Some(CompressionTrial { widths, packed }), Some(level)) = (tried, self.setting.level) else {
            return Ok(Vec::new());
        };
        let mut packed: Vec<(Width, Bytes)> = widths.into_iter().zip(self.taken(packed)?).collect();
        let paid = plain
            .iter()
            .zip(&packed)
            .any(|(chunk, (_, packed))| CompressionProbe::is_worth_it(chunk.len(), packed.len()));
        if paid && packed.len() < plain.len() {
            let others = self.begin(&plain[packed.len()..], level)?;
            packed.extend(others.widths.into_iter().zip(self.taken(others.packed)?));
        }
        Ok(packed)
    }

    /// The output of an op that compresses. Its device is counted.
    fn taken(&self, packed: PendingOutcome<Messages>) -> Result<Vec<Bytes>> {
        Ok(self.setting.uses.count(Direction::Compress, packed.wait()?).into_list()?)
    }

    fn hash_oldest(&mut self) -> Result<()> {
        let Some(Sealing { forms, sealed }) = self.sealing.pop_front() else { return Ok(()) };
        let texts = sealed.wait()?.text;
        let digests = self.setting.runtime.run(Hash::new(HashAlgorithm::Sha256, texts.clone()));
        self.hashing.push_back(Hashing { forms, texts, digests });
        Ok(())
    }

    fn write_oldest(&mut self) -> Result<()> {
        let Some(Hashing { forms, texts, digests: pending }) = self.hashing.pop_front() else { return Ok(()) };
        for text in texts.slices()? {
            self.file.write(text)?;
        }
        let entries = texts.lens().zip(forms).zip(digests(&pending.wait()?)?);
        let entry = |((stored, form), digest)| ChunkEntry { stored: stored as u32, form, digest };
        self.chunks.extend(entries.map(entry));
        Ok(())
    }

    fn finish(mut self, probe: &mut CompressionProbe, is_last: bool) -> Result<WrittenExtent> {
        while !self.packing.is_empty() {
            self.seal_oldest(probe)?;
        }
        while !self.sealing.is_empty() {
            self.hash_oldest()?;
        }
        while !self.hashing.is_empty() {
            self.write_oldest()?;
        }
        let (runtime, chunk_bytes) = (self.setting.runtime, self.setting.chunk_bytes as u32);
        let index = Index { len: self.len, is_last, chunks: self.chunks };
        let stored: u64 = index.chunks.iter().map(|chunk| u64::from(chunk.stored)).sum();
        let file_bytes = self.front.len() as u64 + stored + index_bytes(index.chunks.len() as u64) + COUNT_BYTES;
        let (epoch, len) = (self.setting.epoch, self.len);
        let mut extent = Extent { id: self.id, epoch, chunk_bytes, len, file_bytes, root: [0; 32] };
        extent.root = merkle::extent_root(runtime, &extent, &index.chunks)?;
        self.setting.folder.expect_process()?;
        self.file.write(&index::seal(runtime, &self.key, &self.front, chunk_bytes, &index)?)?;
        let (file, path) = self.file.complete()?;
        Ok(WrittenExtent { extent, file, path })
    }
}

/// A file that is deleted unless it is completed. While it grows, its bytes are flushed to the
/// disk.
struct NewFile {
    path: PathBuf,
    file: Option<File>,
    unflushed: u64,
    flusher: Option<Flusher>,
    /// The process that made the file; a fork must not delete it.
    process: Process,
}

/// A thread that waits for the disk while others write.
struct Flusher {
    wake: SyncSender<()>,
    thread: JoinHandle<io::Result<()>>,
}

impl NewFile {
    fn create(path: PathBuf) -> Result<NewFile> {
        let file = Some(open_file(&path, Access::New)?);
        Ok(NewFile { path, file, unflushed: 0, flusher: None, process: Process::current() })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let refused = |error| Error::io("write", &self.path, error);
        let Some(mut file) = self.file.as_ref() else { return Ok(()) };
        file.write_all(bytes).map_err(refused)?;
        self.unflushed += bytes.len() as u64;
        if self.unflushed >= FLUSH_BYTES {
            self.unflushed = 0;
            if self.flusher.is_none() {
                self.flusher = Some(Flusher::start(file.try_clone().map_err(refused)?).map_err(refused)?);
            }
            // If the flusher is still busy, these bytes are flushed with the next ones.
            self.flusher.as_ref().map(|flusher| flusher.wake.try_send(()));
        }
        Ok(())
    }

    /// Returns the complete file. A write error of the flusher is returned here: the system reports
    /// such an error only once.
    fn complete(mut self) -> Result<(File, PathBuf)> {
        if let Some(Flusher { wake, thread }) = self.flusher.take() {
            drop(wake);
            let flushed = thread.join().unwrap_or_else(|_| Err(io::Error::other("its thread has ended")));
            flushed.map_err(|error| Error::io("sync", &self.path, error))?;
        }
        let path = std::mem::take(&mut self.path);
        match self.file.take() {
            Some(file) => Ok((file, path)),
            None => Err(Error::damaged(&path, "it was closed before")),
        }
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if self.file.is_some() && self.process.is_current() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Flusher {
    fn start(file: File) -> io::Result<Flusher> {
        let (wake, woken) = sync_channel(1);
        let thread = std::thread::Builder::new().name("panoply-store-flush".to_owned());
        let thread = thread.spawn(move || woken.iter().try_for_each(|()| file.sync_data()))?;
        Ok(Flusher { wake, thread })
    }
}
