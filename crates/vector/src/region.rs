//! Append-only memory that one writer grows while readers keep views of its beginning.
//!
//! A region is anonymous memory, or a file that is written with ordinary writes and read through a
//! map, or both: a sealed file (`sealed`) has its plain bytes in memory. The rules:
//!
//! 1. One writer owns the [`Region`]. The writer writes only after the bytes that it has published.
//! 2. A [`View`] covers bytes that were complete when the view was made. Because of rule 1 they
//!    never change while the view lives. When the region grows into a new map, the view keeps the
//!    old map.
//! 3. A view reaches another thread through a lock or a channel, which orders the writes before the
//!    reads.
//! 4. Files are written through the file, never through the map, so that a full disk is a returned
//!    error and not a signal. The folder of a collection is locked while it is open for writing, so
//!    no other writer shortens its files. Readers in other processes map only acknowledged bytes,
//!    and a writer never truncates acknowledged bytes.
//! 5. If a foreign program ignores the lock and shortens a mapped file, the processes that read the
//!    file are killed (SIGBUS). No program can guard a map against that. Lengths are checked when a
//!    file is opened; after that the collection owns its files.
//! 6. Files are regular files, never links: the target of a link does not belong to the collection,
//!    and is neither read nor changed. A file with a second name (a hard link) is read but not
//!    written.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::{MmapMut, MmapOptions, MmapRaw};

use crate::error::{Error, Result};
use crate::sealed::SealedFile;

/// Minimum size of a region: a few pages. The length of a growing file is a multiple of it.
pub(crate) const CAPACITY_BYTES_MIN: usize = 1 << 16;
/// Regions double in size until a step would exceed this.
const GROWTH_BYTES_MAX: usize = 1 << 28;

/// Append-only bytes, written by one owner.
pub(crate) struct Region {
    backing: Backing,
    map: Arc<MmapRaw>,
    len: usize,
}

enum Backing {
    Memory,
    File {
        file: File,
        path: PathBuf,
    },
    /// A file with sealed bytes, which is not mapped; the plain bytes are in memory.
    Sealed(SealedFile),
    /// A read-only file, with the length that it had when it was opened.
    Fixed,
}

/// The beginning of a region at some point in time. Clones share the memory.
#[derive(Clone)]
pub(crate) struct View {
    map: Arc<MmapRaw>,
    len: usize,
}

impl Region {
    /// An empty region in anonymous memory.
    pub(crate) fn in_memory() -> Result<Region> {
        Ok(Region { backing: Backing::Memory, map: anonymous(CAPACITY_BYTES_MIN)?, len: 0 })
    }

    /// A region over a file with `len` valid bytes. Bytes after them are discarded.
    pub(crate) fn in_file(file: File, path: &Path, len: usize) -> Result<Region> {
        let mut region = Region { backing: Backing::File { file, path: path.to_owned() }, map: unmapped()?, len };
        region.restart(len)?;
        Ok(region)
    }

    /// A region over a sealed file, whose plain bytes are in `memory`.
    pub(crate) fn sealed(file: SealedFile, memory: &View) -> Region {
        Region { backing: Backing::Sealed(file), map: Arc::clone(&memory.map), len: memory.len }
    }

    /// A read-only region over bytes that are already in memory.
    pub(crate) fn of_view(memory: &View) -> Region {
        Region { backing: Backing::Fixed, map: Arc::clone(&memory.map), len: memory.len }
    }

    /// A read-only region over the first `len` bytes of a file, which must have that many.
    pub(crate) fn fixed(file: &File, path: &Path, len: usize) -> Result<Region> {
        let map = match len {
            0 => unmapped()?,
            _ => {
                let map = MmapOptions::new().len(len).map_raw_read_only(file);
                Arc::new(map.map_err(|error| Error::io("map", path, error))?)
            }
        };
        Ok(Region { backing: Backing::Fixed, map, len })
    }

    /// Number of bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// A view of the present bytes.
    pub(crate) fn view(&self) -> View {
        View { map: Arc::clone(&self.map), len: self.len }
    }

    /// Reserves room for `more` bytes, so that appending them to anonymous memory cannot fail.
    pub(crate) fn reserve(&mut self, more: usize) -> Result<()> {
        let wanted = self.len.checked_add(more).ok_or_else(|| out_of_memory(more))?;
        if wanted <= self.map.len() {
            return Ok(());
        }
        let doubled = self.map.len() + self.map.len().min(GROWTH_BYTES_MAX);
        self.resize(wanted.max(doubled).next_multiple_of(CAPACITY_BYTES_MIN))
    }

    /// Appends bytes. After an error the region is unchanged.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.reserve(bytes.len())?;
        if let Backing::Sealed(file) = &mut self.backing {
            file.append(self.len as u64, bytes)?;
        }
        match &mut self.backing {
            Backing::Memory | Backing::Sealed(_) => {
                // SAFETY: `reserve` made the map at least `len + bytes.len()` long. No view covers
                // bytes after `len`, so no other thread accesses them.
                unsafe {
                    std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.map.as_mut_ptr().add(self.len), bytes.len());
                }
            }
            Backing::Fixed => return Err(Error::Closed),
            Backing::File { file, path } => {
                #[cfg(test)]
                let bytes = bad_disk::cut(path, file, self.len, bytes)?;
                let start = SeekFrom::Start(self.len as u64);
                file.seek(start)
                    .and_then(|_| file.write_all(bytes))
                    .map_err(|error| Error::io("write", path, error))?;
            }
        }
        self.len += bytes.len();
        Ok(())
    }

    /// Discards everything after `len`, including the remains of a failed write.
    pub(crate) fn truncate(&mut self, len: usize) -> Result<()> {
        let len = len.min(self.len);
        match &mut self.backing {
            Backing::Memory | Backing::Fixed => self.len = len,
            Backing::File { .. } => self.restart(len)?,
            Backing::Sealed(file) => {
                self.len = len;
                file.truncate(len as u64)?;
            }
        }
        Ok(())
    }

    /// Truncates the file to its bytes. Nothing may be appended afterwards.
    pub(crate) fn trim(&self) {
        // Errors are ignored: this only saves space, and bytes after the end are not read.
        match &self.backing {
            Backing::File { file, .. } => drop(file.set_len(self.len as u64)),
            Backing::Sealed(file) => file.trim(),
            Backing::Memory | Backing::Fixed => {}
        }
    }

    /// Closes the file, whose bytes have reached the disk. The bytes stay readable; nothing can be
    /// appended any more.
    pub(crate) fn close(&mut self) {
        if matches!(self.backing, Backing::File { .. } | Backing::Sealed(_)) {
            self.trim();
            self.backing = Backing::Fixed;
        }
    }

    /// Waits until the bytes have reached the disk.
    pub(crate) fn sync(&self) -> Result<()> {
        match &self.backing {
            Backing::Memory | Backing::Fixed => Ok(()),
            Backing::File { file, path } => {
                #[cfg(test)]
                bad_disk::check_sync(path)?;
                file.sync_data().map_err(|error| Error::io("sync", path, error))
            }
            Backing::Sealed(file) => file.sync(),
        }
    }

    /// Discards everything after `len`, so that zeroes follow. At every instant the file's length
    /// is a multiple of [`CAPACITY_BYTES_MIN`]: any other length shows that a foreign program has
    /// cut the file.
    fn restart(&mut self, len: usize) -> Result<()> {
        self.len = len;
        self.resize((len + 1).next_multiple_of(CAPACITY_BYTES_MIN))?;
        match &self.backing {
            Backing::File { file, path } => {
                zero_behind(file, len as u64).map_err(|error| Error::io("clear the end of", path, error))
            }
            Backing::Memory | Backing::Sealed(_) | Backing::Fixed => Ok(()),
        }
    }

    fn resize(&mut self, capacity: usize) -> Result<()> {
        self.map = match &self.backing {
            Backing::Fixed => return Err(Error::Closed),
            Backing::Memory | Backing::Sealed(_) => {
                let map = anonymous(capacity)?;
                // SAFETY: the new map is longer than `len`, is not shared yet, and the old map
                // holds `len` bytes.
                unsafe { std::ptr::copy_nonoverlapping(self.map.as_ptr(), map.as_mut_ptr(), self.len) };
                map
            }
            Backing::File { file, path } => {
                file.set_len(capacity as u64).map_err(|error| Error::io("grow", path, error))?;
                let map = MmapOptions::new().len(capacity).map_raw_read_only(file);
                Arc::new(map.map_err(|error| Error::io("map", path, error))?)
            }
        };
        Ok(())
    }
}

impl View {
    /// The bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: `len` bytes were written before the view was made, and the view keeps the map
        // alive. Rules 1 and 4 guarantee that the bytes do not change.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr(), self.len) }
    }

    /// A view of at most the first `len` bytes.
    pub(crate) fn first(&self, len: usize) -> View {
        View { map: Arc::clone(&self.map), len: self.len.min(len) }
    }

    /// Asks the system to read the bytes before they are needed.
    pub(crate) fn read_ahead(&self) {
        #[cfg(unix)]
        if self.len > 0 {
            // This is only a hint: without it, the first search reads the pages.
            let _ = self.map.advise_range(memmap2::Advice::WillNeed, 0, self.len);
        }
    }
}

/// The elements of a view, in a form that can own a tensor's memory.
pub(crate) struct Elements<T> {
    view: View,
    kind: std::marker::PhantomData<T>,
}

impl<T> Elements<T> {
    pub(crate) fn new(view: View) -> Elements<T> {
        Elements { view, kind: std::marker::PhantomData }
    }
}

impl<T: bytemuck::Pod> AsRef<[T]> for Elements<T> {
    fn as_ref(&self) -> &[T] {
        let bytes = self.view.bytes();
        // Maps begin at a page boundary, so they are aligned for every element type.
        bytemuck::try_cast_slice(&bytes[..bytes.len() - bytes.len() % size_of::<T>()]).unwrap_or_default()
    }
}

fn anonymous(capacity: usize) -> Result<Arc<MmapRaw>> {
    let map: MmapMut = MmapMut::map_anon(capacity).map_err(|_| out_of_memory(capacity))?;
    #[cfg(target_os = "linux")]
    if capacity >= GROWTH_BYTES_MAX / 64 {
        // This is only a hint: large pages make scans faster.
        let _ = map.advise(memmap2::Advice::HugePage);
    }
    Ok(Arc::new(MmapRaw::from(map)))
}

/// A placeholder until the file is mapped.
fn unmapped() -> Result<Arc<MmapRaw>> {
    anonymous(1)
}

/// The error of a host without `asked` bytes of free memory.
pub(crate) fn out_of_memory(asked: usize) -> Error {
    let place = "the host".to_owned();
    Error::Device(panoply_core::Error::OutOfMemory { place, asked: asked as u64, free: 0, largest: 0 })
}

/// How a file of a collection is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Read only.
    Read,
    /// Read and write.
    Write,
    /// Read and write; creates the file if it does not exist.
    Make,
    /// Read and write; the file must not exist.
    New,
}

/// Opens a regular file of a collection. Refuses links, devices and other special files.
pub(crate) fn open_file(path: &Path, access: Access) -> Result<File> {
    let mut options = File::options();
    options.read(true).write(access != Access::Read).create(access == Access::Make).create_new(access == Access::New);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        // Non-blocking: opening a pipe would otherwise wait for its other end.
        options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    }
    let strange = || Error::NotAFile { path: path.to_owned() };
    #[cfg(not(unix))]
    if path.symlink_metadata().is_ok_and(|metadata| metadata.is_symlink()) {
        return Err(strange());
    }
    let file = options.open(path).map_err(|error| match error.raw_os_error() {
        #[cfg(unix)]
        Some(libc::ELOOP) => strange(),
        // The errors of opening a folder for writing, and of opening a socket.
        #[cfg(unix)]
        Some(libc::EISDIR | libc::ENXIO) => strange(),
        _ => Error::io(if access == Access::New { "create" } else { "open" }, path, error),
    })?;
    let metadata = file.metadata().map_err(|error| Error::io("open", path, error))?;
    match metadata.is_file() {
        true if access == Access::Write => expect_one_name(path, &metadata).map(|()| file),
        true => Ok(file),
        false => Err(strange()),
    }
}

/// Refuses to write to a file that has another name (a hard link), under which it would change too.
#[cfg(unix)]
fn expect_one_name(path: &Path, metadata: &std::fs::Metadata) -> Result<()> {
    use std::os::unix::fs::MetadataExt;
    match metadata.nlink() {
        0 | 1 => Ok(()),
        names => Err(Error::SharedFile { path: path.to_owned(), names }),
    }
}

#[cfg(not(unix))]
fn expect_one_name(_: &Path, _: &std::fs::Metadata) -> Result<()> {
    Ok(())
}

/// Reads a whole file, which may have at most `bytes_max` bytes.
pub(crate) fn read_file(path: &Path, bytes_max: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = open_file(path, Access::Read)?.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes);
    read.map_err(|error| Error::io("read", path, error))?;
    match bytes.len() as u64 > bytes_max {
        true => Err(Error::corrupt(path, bytes_max, format!("it has more than {bytes_max} bytes"))),
        false => Ok(bytes),
    }
}

/// Overwrites everything after the first `start` bytes with zeroes.
pub(crate) fn zero_behind(mut file: &File, start: u64) -> io::Result<()> {
    let (mut part, mut at) = (vec![0; CAPACITY_BYTES_MIN], start);
    loop {
        file.seek(SeekFrom::Start(at))?;
        let read = file.read(&mut part)?;
        if read == 0 {
            return Ok(());
        }
        // Unwritten ranges stay unwritten and take no disk space.
        if part[..read].iter().any(|byte| *byte != 0) {
            part[..read].fill(0);
            file.seek(SeekFrom::Start(at))?;
            file.write_all(&part[..read])?;
        }
        at += read as u64;
    }
}

/// Writes a new file. On return its content has reached the disk. A file that could not be written
/// completely is deleted.
pub(crate) fn write_file(path: &Path, parts: &[&[u8]]) -> Result<()> {
    let mut file = open_file(path, Access::New)?;
    write_parts(path, &mut file, parts).inspect_err(|_| {
        let _ = std::fs::remove_file(path);
    })
}

fn write_parts(path: &Path, file: &mut File, parts: &[&[u8]]) -> Result<()> {
    #[cfg(test)]
    bad_disk::cut(path, file, 0, &parts.concat())?;
    let written = parts.iter().try_for_each(|part| file.write_all(part)).and_then(|()| file.sync_all());
    written.map_err(|error| Error::io("write", path, error))
}

/// Makes the names in a folder durable.
pub(crate) fn sync_folder(path: &Path) -> Result<()> {
    #[cfg(test)]
    bad_disk::check_sync(&path.join("names"))?;
    let synced: io::Result<()> =
        if cfg!(unix) { File::open(path).and_then(|folder| folder.sync_all()) } else { Ok(()) };
    synced.map_err(|error| Error::io("sync", path, error))
}

/// Simulates full and failing disks in tests.
#[cfg(test)]
pub(crate) mod bad_disk {
    use super::*;
    use std::sync::{Mutex, PoisonError};

    static LIMITS: Mutex<Vec<(PathBuf, usize)>> = Mutex::new(Vec::new());
    static UNSYNCED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

    /// Sets whether syncing this file fails. The names of a folder count as a file `names` in it.
    pub(crate) fn refuse_sync(path: &Path, refused: bool) {
        let mut unsynced = UNSYNCED.lock().unwrap_or_else(PoisonError::into_inner);
        unsynced.retain(|other| other != path);
        unsynced.extend(refused.then(|| path.to_owned()));
    }

    pub(crate) fn check_sync(path: &Path) -> Result<()> {
        let unsynced = UNSYNCED.lock().unwrap_or_else(PoisonError::into_inner);
        match unsynced.iter().any(|other| other == path) {
            true => Err(Error::io("sync", path, io::Error::other("the disk failed"))),
            false => Ok(()),
        }
    }

    /// Writes to files of the folder stop halfway and fail at `file_bytes_max` bytes; `None` lifts
    /// the limit.
    pub(crate) fn limit(folder: &Path, file_bytes_max: Option<usize>) {
        let mut limits = LIMITS.lock().unwrap_or_else(PoisonError::into_inner);
        limits.retain(|(path, _)| path != folder);
        limits.extend(file_bytes_max.map(|bytes| (folder.to_owned(), bytes)));
    }

    pub(crate) fn cut<'a>(path: &Path, file: &mut File, len: usize, bytes: &'a [u8]) -> Result<&'a [u8]> {
        let limits = LIMITS.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = limits.iter().find(|(folder, _)| path.parent() == Some(folder)).map_or(usize::MAX, |(_, max)| *max);
        if len.saturating_add(bytes.len()) <= limit {
            return Ok(bytes);
        }
        let half = &bytes[..limit.saturating_sub(len)];
        let written = file.seek(SeekFrom::Start(len as u64)).and_then(|_| file.write_all(half));
        written.and_then(|()| Err(io::ErrorKind::StorageFull.into())).map_err(|error| Error::io("write", path, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(mut region: Region) {
        let mut views = Vec::new();
        for round in 0..200_u8 {
            region.append(&vec![round; 1500]).unwrap();
            views.push(region.view());
        }
        for (round, view) in views.iter().enumerate() {
            assert_eq!(view.bytes().len(), 1500 * (round + 1));
            assert!(view.bytes()[1500 * round..].iter().all(|byte| usize::from(*byte) == round));
        }
        region.truncate(1500).unwrap();
        region.append(&[9; 10]).unwrap();
        assert_eq!(region.view().bytes()[1499..], [0, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9]);
        assert_eq!(views[0].bytes(), [0; 1500]);
    }

    #[test]
    fn views_keep_what_they_saw_while_the_region_grows() {
        check(Region::in_memory().unwrap());
        let path = std::env::temp_dir().join(format!("panoply-region-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        check(Region::in_file(open_file(&path, Access::New).unwrap(), &path, 0).unwrap());
        let again = Region::in_file(open_file(&path, Access::Write).unwrap(), &path, 1510).unwrap();
        assert_eq!(again.view().bytes()[1500..], [9; 10]);
        std::fs::remove_file(&path).unwrap();
    }
}
