//! Reads a file of a segment: through a map, or decrypted into memory.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use memmap2::{Mmap, MmapOptions};
use panoply_store::Vault;
use panoply_store::vault::Frame;

use crate::error::{Error, Result};
use crate::folder::Folder;
use crate::region::{Access, Region, View, open_file, out_of_memory, read_file};
use crate::sealed::{SealedFile, name_of};

/// An open file with its content.
pub(crate) struct SourceFile {
    pub(crate) path: PathBuf,
    file: File,
    /// Length of the file.
    pub(crate) file_bytes: u64,
    content: Content,
}

enum Content {
    /// Optionally without the hole at the end of the file, which holds only zeroes.
    Mapped(Option<Mmap>),
    Unsealed {
        memory: View,
        frames: Vec<Frame>,
        vault: Vault,
    },
}

impl SourceFile {
    /// Opens a file and maps it, or decrypts it if it is sealed.
    pub(crate) fn open(folder: &Folder, path: PathBuf, access: Access, with_last_hole: bool) -> Result<SourceFile> {
        let file = open_file(&path, access)?;
        let file_bytes = file.metadata().map_err(|error| Error::io("read", &path, error))?.len();
        let content = match folder.sealing().vault() {
            Some(vault) => unseal(vault, &path)?,
            None if with_last_hole => Content::Mapped(map(&file, &path, file_bytes)?),
            None => Content::Mapped(map(&file, &path, without_last_hole(&file, file_bytes))?),
        };
        Ok(SourceFile { path, file, file_bytes, content })
    }

    /// The plain bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.content {
            Content::Mapped(map) => map.as_deref().unwrap_or_default(),
            Content::Unsealed { memory, .. } => memory.bytes(),
        }
    }

    /// Waits until the file has reached the disk, if this user may ask for that.
    pub(crate) fn sync(&self) {
        let _ = self.file.sync_data();
    }

    pub(crate) fn is_sealed(&self) -> bool {
        matches!(self.content, Content::Unsealed { .. })
    }

    /// A read-only region over the first `len` bytes, which must exist.
    pub(crate) fn region(&self, len: usize) -> Result<Region> {
        match &self.content {
            Content::Mapped(_) => Region::fixed(&self.file, &self.path, len),
            Content::Unsealed { memory, .. } => Ok(Region::of_view(&memory.first(len))),
        }
    }

    /// Turns the first `len` bytes into a region that can grow, with each patch applied at its
    /// offset, and drops the bytes after them. For a sealed file, `memory` holds those bytes with
    /// the patches applied.
    pub(crate) fn take_over<'a>(
        self,
        len: usize,
        memory: &View,
        patches: impl Iterator<Item = (u64, &'a [u8])>,
    ) -> Result<Region> {
        let stored = self.bytes();
        let differs = |(at, bytes): &(u64, &[u8])| {
            let there = usize::try_from(*at).ok().and_then(|at| stored.get(at..)?.get(..bytes.len()));
            there != Some(bytes)
        };
        let patches: Vec<(u64, &[u8])> = patches.filter(|patch| !self.is_sealed() || differs(patch)).collect();
        let SourceFile { path, file, content, .. } = self;
        match content {
            Content::Mapped(_) => {
                for (at, bytes) in patches {
                    let written = (&file).seek(SeekFrom::Start(at)).and_then(|_| (&file).write_all(bytes));
                    written.map_err(|error| Error::io("write", &path, error))?;
                }
                Region::in_file(file, &path, len)
            }
            Content::Unsealed { frames, vault, .. } => {
                let mut sealed = SealedFile::resume(&vault, file, &path, frames)?;
                sealed.truncate(len as u64)?;
                patches.into_iter().try_for_each(|(at, bytes)| sealed.patch(at, bytes))?;
                Ok(Region::sealed(sealed, &memory.first(len)))
            }
        }
    }
}

/// Decrypts a sealed file into memory.
fn unseal(vault: &Vault, path: &Path) -> Result<Content> {
    let unsealed = vault.unseal(path, name_of(path), &read_file(path, u64::MAX)?)?;
    let mut memory = Region::in_memory()?;
    memory.append(&unsealed.content)?;
    Ok(Content::Unsealed { memory: memory.view(), frames: unsealed.frames, vault: vault.clone() })
}

/// The end of a file's last data if only a hole follows; otherwise its length. On a full in-memory
/// file system, reading a hole through a map kills the process (SIGBUS).
#[cfg(unix)]
fn without_last_hole(file: &File, bytes: u64) -> u64 {
    use std::os::fd::AsRawFd;
    // SAFETY: the descriptor is that of an open file, and no memory is passed.
    let seek = |from: i64, to: i32| unsafe { libc::lseek(file.as_raw_fd(), from, to) };
    let hole = seek(0, libc::SEEK_HOLE);
    // A system without holes reports one at the end of the file, or fails.
    let is_last = hole >= 0 && seek(hole, libc::SEEK_DATA) < 0;
    if is_last { bytes.min(hole as u64) } else { bytes }
}

#[cfg(not(unix))]
fn without_last_hole(_: &File, bytes: u64) -> u64 {
    bytes
}

fn map(file: &File, path: &Path, bytes: u64) -> Result<Option<Mmap>> {
    if bytes == 0 {
        return Ok(None);
    }
    let bytes = usize::try_from(bytes).map_err(|_| out_of_memory(usize::MAX))?;
    // SAFETY: no other program shortens a collection's file: a writer has locked the folder, and a
    // reader looks only at bytes that no writer discards. The only bytes that change are those
    // after the last record, and readers treat them as untrusted.
    let map = unsafe { MmapOptions::new().len(bytes).map(file) };
    map.map(Some).map_err(|error| Error::io("map", path, error))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_mapped_without_the_hole_at_its_end() {
        let path = std::env::temp_dir().join(format!("panoply-hole-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let mut file = open_file(&path, Access::New).unwrap();
        assert_eq!(without_last_hole(&file, 0), 0);
        file.write_all(&[7; 10]).unwrap();
        file.set_len(1 << 20).unwrap();
        let bytes = without_last_hole(&file, 1 << 20);
        assert!((10..=1 << 20).contains(&bytes), "{bytes}");
        assert_eq!(map(&file, &path, bytes).unwrap().unwrap()[..10], [7; 10]);
        // A hole that is followed by data is part of the file.
        file.seek(SeekFrom::Start((1 << 20) - 1)).unwrap();
        file.write_all(&[9]).unwrap();
        assert_eq!(without_last_hole(&file, 1 << 20), 1 << 20);
        std::fs::remove_file(&path).unwrap();
    }
}
