//! Sealed files: those of an encrypted collection, which hold nothing but frames of a [`Vault`].
//!
//! Everything else in this crate works with plain bytes. A file that grows is a [`SealedFile`] below a region, whose memory has its plain
//! bytes; whole files are read and written by [`Sealing`]. So an encrypted collection has all its rows, ids and metadata in memory, and
//! opening it opens every file: the system cannot give that memory back, as it can that of a map.
//!
//! A torn or altered frame leaves zeroes in the plain bytes. They are judged as those of a plain file are: by checksums, by the manifest, and
//! by what follows. A file that does not grow any more must be whole.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use panoply_store::Vault;
use panoply_store::vault::{Frame, Kind, Sealer, Unsealed};

use crate::error::{Error, Result};
use crate::region::{Access, CAPACITY_BYTES_MIN, open_file, read_file, write_file, zero_behind};

/// How the files of a folder are written: as they are, or sealed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sealing(Option<Vault>);

impl Sealing {
    pub(crate) fn with(vault: Vault) -> Sealing {
        Sealing(Some(vault))
    }

    pub(crate) fn vault(&self) -> Option<&Vault> {
        self.0.as_ref()
    }

    /// Writes a new file. When it returns, its content has reached the disk.
    pub(crate) fn write_file(&self, path: &Path, parts: &[&[u8]]) -> Result<()> {
        let Some(vault) = &self.0 else { return write_file(path, parts) };
        write_file(path, &[&vault.sealer(name_of(path))?.seal(0, 0, Kind::Last, &parts.concat())?])
    }

    /// The plain content of a whole file, which has at most so many bytes.
    pub(crate) fn read_file(&self, path: &Path, bytes_max: u64) -> Result<Vec<u8>> {
        let Some(vault) = &self.0 else { return read_file(path, bytes_max) };
        // What frames add is less than what they hold, or little.
        let sealed = read_file(path, bytes_max.saturating_mul(2).saturating_add(1 << 20))?;
        let unsealed = vault.unseal(path, name_of(path), &sealed)?;
        expect_whole(path, &unsealed)?;
        match unsealed.content.len() as u64 > bytes_max {
            true => Err(Error::corrupt(path, bytes_max, format!("it has more than {bytes_max} bytes"))),
            false => Ok(unsealed.content),
        }
    }

    /// Whatever can be read of a file, with zeroes for what is not authentic.
    pub(crate) fn salvage_file(&self, path: &Path) -> Result<Vec<u8>> {
        let bytes = read_file(path, u64::MAX)?;
        match &self.0 {
            Some(vault) => Ok(vault.unseal(path, name_of(path), &bytes)?.content),
            None => Ok(bytes),
        }
    }

    /// A new file that grows, where files are sealed.
    pub(crate) fn create(&self, path: &Path) -> Result<Option<SealedFile>> {
        let Some(vault) = &self.0 else { return Ok(None) };
        let sealer = vault.sealer(name_of(path))?;
        let file = open_file(path, Access::New)?;
        let mut sealed = SealedFile { file, path: path.to_owned(), sealer, frames: Vec::new() };
        sealed.clear_end()?;
        Ok(Some(sealed))
    }
}

/// Refuses a file in which something is not authentic.
pub(crate) fn expect_whole(path: &Path, unsealed: &Unsealed) -> Result<()> {
    match unsealed.first_bad {
        Some(place) => Err(Error::corrupt(path, place, "it is not authentic; somebody has altered it, or cut it")),
        None => Ok(()),
    }
}

/// The name that a file's frames belong to.
pub(crate) fn name_of(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

/// A sealed file that grows at its end, written by one owner. Its length is a multiple of [`CAPACITY_BYTES_MIN`] at every instant, and zeroes
/// follow the last frame: any other length tells that somebody else has cut it.
pub(crate) struct SealedFile {
    file: File,
    path: PathBuf,
    sealer: Sealer,
    /// The frames that count.
    frames: Vec<Frame>,
}

impl SealedFile {
    /// Goes on with a file that was read. What is written from now on is sealed with another key.
    pub(crate) fn resume(vault: &Vault, file: File, path: &Path, frames: Vec<Frame>) -> Result<SealedFile> {
        Ok(SealedFile { file, path: path.to_owned(), sealer: vault.sealer(name_of(path))?, frames })
    }

    /// Adds bytes at the end of the plain file, which has `len` of them. Where that fails, what is left of it is cleared by
    /// [`SealedFile::truncate`].
    pub(crate) fn append(&mut self, len: u64, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() { Ok(()) } else { self.write(len, Kind::Last, bytes) }
    }

    /// Writes bytes over others of the plain file, or behind its end.
    pub(crate) fn patch(&mut self, start: u64, bytes: &[u8]) -> Result<()> {
        self.write(start, Kind::Patch, bytes)
    }

    /// Gives up everything behind `len` bytes of the plain file, also what a failed write has left in the sealed one.
    pub(crate) fn truncate(&mut self, len: u64) -> Result<()> {
        // A frame without content that ends the file just there stays.
        let is_behind = |frame: &Frame| frame.start > len || frame.start == len && frame.len_after > len;
        while self.frames.last().is_some_and(is_behind) {
            self.frames.pop();
        }
        self.clear_end()?;
        match self.frames.last().is_some_and(|last| last.len_after > len) {
            // The end lies within a frame: one without content says so.
            true => self.write(len, Kind::Last, &[]),
            false => Ok(()),
        }
    }

    /// Gives up the room behind the last frame. Nothing may be appended after that.
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

    /// Makes the file long enough for frames up to `end`.
    fn make_room(&self, end: u64) -> Result<()> {
        let grow = |error| Error::io("grow", &self.path, error);
        let wanted = (end + 1).next_multiple_of(CAPACITY_BYTES_MIN as u64);
        match self.file.metadata().map_err(grow)?.len() < wanted {
            true => self.file.set_len(wanted).map_err(grow),
            false => Ok(()),
        }
    }

    /// Nothing but zeroes follows the last frame.
    fn clear_end(&mut self) -> Result<()> {
        let (end, clear) = (self.end(), |error| Error::io("clear the end of", &self.path, error));
        self.file.set_len((end + 1).next_multiple_of(CAPACITY_BYTES_MIN as u64)).map_err(clear)?;
        zero_behind(&self.file, end).map_err(clear)
    }
}
