//! Sealed files: the files of an encrypted collection, which consist of frames of a [`Vault`].
//!
//! All other modules work with plain bytes. A file that grows is a [`SealedFile`] below a region,
//! and the region holds its plain bytes in memory; [`Sealing`] reads and writes whole files.
//! Therefore an encrypted collection has all its rows, ids and metadata in memory, and opening it
//! decrypts every file. Unlike the pages of a map, the system cannot reclaim that memory.
//!
//! A torn or altered frame gives zeroes in the plain bytes. The zeroes are judged like those of a
//! plain file: by checksums, by the manifest, and by the bytes after them. A file that no longer
//! grows must be intact.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use panoply_store::Vault;
use panoply_store::vault::{Frame, Kind, Sealer, UnsealedFile};

use crate::error::{Error, Result};
use crate::region::{Access, CAPACITY_BYTES_MIN, open_file, read_file, write_file, zero_behind};

/// The mode in which the files of a folder are written: plain or sealed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sealing(Option<Vault>);

impl Sealing {
    pub(crate) fn with(vault: Vault) -> Sealing {
        Sealing(Some(vault))
    }

    pub(crate) fn vault(&self) -> Option<&Vault> {
        self.0.as_ref()
    }

    /// Writes a new file. On return its content has reached the disk.
    pub(crate) fn write_file(&self, path: &Path, parts: &[&[u8]]) -> Result<()> {
        let Some(vault) = &self.0 else { return write_file(path, parts) };
        write_file(path, &[&vault.sealer(name_of(path))?.seal(0, 0, Kind::Last, &parts.concat())?])
    }

    /// Reads the plain content of a whole file, which may have at most `bytes_max` bytes.
    pub(crate) fn read_file(&self, path: &Path, bytes_max: u64) -> Result<Vec<u8>> {
        let Some(vault) = &self.0 else { return read_file(path, bytes_max) };
        // Frames add less than their content's size, or less than the constant.
        let sealed = read_file(path, bytes_max.saturating_mul(2).saturating_add(1 << 20))?;
        let unsealed = vault.unseal(path, name_of(path), &sealed)?;
        expect_whole(path, &unsealed)?;
        match unsealed.content.len() as u64 > bytes_max {
            true => Err(Error::corrupt(path, bytes_max, format!("it has more than {bytes_max} bytes"))),
            false => Ok(unsealed.content),
        }
    }

    /// Reads a file as far as possible, with zeroes in place of bytes that are not authentic.
    pub(crate) fn salvage_file(&self, path: &Path) -> Result<Vec<u8>> {
        let bytes = read_file(path, u64::MAX)?;
        match &self.0 {
            Some(vault) => Ok(vault.unseal(path, name_of(path), &bytes)?.content),
            None => Ok(bytes),
        }
    }

    /// Creates a growing file; `None` if files are not sealed.
    pub(crate) fn create(&self, path: &Path) -> Result<Option<SealedFile>> {
        let Some(vault) = &self.0 else { return Ok(None) };
        let sealer = vault.sealer(name_of(path))?;
        let file = open_file(path, Access::New)?;
        let mut sealed = SealedFile { file, path: path.to_owned(), sealer, frames: Vec::new() };
        sealed.clear_end()?;
        Ok(Some(sealed))
    }
}

/// Refuses a file with bytes that are not authentic.
pub(crate) fn expect_whole(path: &Path, unsealed: &UnsealedFile) -> Result<()> {
    match unsealed.first_bad {
        Some(place) => Err(Error::corrupt(path, place, "it is not authentic; somebody has altered it, or cut it")),
        None => Ok(()),
    }
}

/// The name that is bound to a file's frames.
pub(crate) fn name_of(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

/// A sealed file that grows at its end, with one writer. At every instant its length is a multiple
/// of [`CAPACITY_BYTES_MIN`] and zeroes follow the last frame: any other length shows that a
/// foreign program has cut the file.
pub(crate) struct SealedFile {
    file: File,
    path: PathBuf,
    sealer: Sealer,
    /// The valid frames, in order.
    frames: Vec<Frame>,
}

impl SealedFile {
    /// Continues a file that was read. New frames are sealed with a new key.
    pub(crate) fn resume(vault: &Vault, file: File, path: &Path, frames: Vec<Frame>) -> Result<SealedFile> {
        Ok(SealedFile { file, path: path.to_owned(), sealer: vault.sealer(name_of(path))?, frames })
    }

    /// Appends bytes to the plain file, whose length is `len`. After an error,
    /// [`SealedFile::truncate`] clears the remains.
    pub(crate) fn append(&mut self, len: u64, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() { Ok(()) } else { self.write(len, Kind::Last, bytes) }
    }

    /// Writes bytes at `start` of the plain file: over existing bytes, or after the end.
    pub(crate) fn patch(&mut self, start: u64, bytes: &[u8]) -> Result<()> {
        self.write(start, Kind::Patch, bytes)
    }

    /// Discards everything after `len` bytes of the plain file, including the remains of a failed
    /// write.
    pub(crate) fn truncate(&mut self, len: u64) -> Result<()> {
        // An empty frame that ends the file at `len` is kept.
        let is_behind = |frame: &Frame| frame.start > len || frame.start == len && frame.len_after > len;
        while self.frames.last().is_some_and(is_behind) {
            self.frames.pop();
        }
        self.clear_end()?;
        match self.frames.last().is_some_and(|last| last.len_after > len) {
            // The new end is within a frame: an empty frame marks it.
            true => self.write(len, Kind::Last, &[]),
            false => Ok(()),
        }
    }

    /// Truncates the file after the last frame. Nothing may be appended afterwards.
    pub(crate) fn trim(&self) {
        let _ = self.file.set_len(self.end());
    }

    /// Waits until the frames have reached the disk.
    pub(crate) fn sync(&self) -> Result<()> {
        #[cfg(test)]
        crate::region::bad_disk::check_sync(&self.path)?;
        self.file.sync_data().map_err(|error| Error::io("sync", &self.path, error))
    }

    fn end(&self) -> u64 {
        self.frames.last().map_or(0, |last| last.end)
    }

    fn write(&mut self, start: u64, kind: Kind, bytes: &[u8]) -> Result<()> {
        let (place, before) = (self.end(), self.frames.last().map_or(0, |last| last.len_after));
        let sealed = self.sealer.seal(place, start, kind, bytes)?;
        let end = place + sealed.len() as u64;
        self.make_room(end)?;
        let sealed = &sealed[..];
        #[cfg(test)]
        let sealed = crate::region::bad_disk::cut(&self.path, &mut self.file, place as usize, sealed)?;
        let written = self.file.seek(SeekFrom::Start(place)).and_then(|_| self.file.write_all(sealed));
        written.map_err(|error| Error::io("write", &self.path, error))?;
        let own_end = start + bytes.len() as u64;
        let len_after = if kind == Kind::Last { own_end } else { own_end.max(before) };
        self.frames.push(Frame { start, len_after, end });
        Ok(())
    }

    /// Extends the file to hold frames up to `end`.
    fn make_room(&self, end: u64) -> Result<()> {
        let grow = |error| Error::io("grow", &self.path, error);
        let wanted = (end + 1).next_multiple_of(CAPACITY_BYTES_MIN as u64);
        match self.file.metadata().map_err(grow)?.len() < wanted {
            true => self.file.set_len(wanted).map_err(grow),
            false => Ok(()),
        }
    }

    /// Fills the file with zeroes after the last frame.
    fn clear_end(&mut self) -> Result<()> {
        let (end, clear) = (self.end(), |error| Error::io("clear the end of", &self.path, error));
        self.file.set_len((end + 1).next_multiple_of(CAPACITY_BYTES_MIN as u64)).map_err(clear)?;
        zero_behind(&self.file, end).map_err(clear)
    }
}
