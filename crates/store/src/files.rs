//! Opens and reads single files. Only regular files are opened, never links, devices or pipes.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;

use crate::error::{Error, Result};

/// Bytes of the two files that are compared at a time.
const COMPARED_BYTES: usize = 1 << 18;

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Read only.
    Read,
    /// Read and write.
    Write,
    /// Write; created if missing.
    Make,
    /// Write; must not exist.
    New,
}

/// Opens a regular file. Links, devices and other kinds are refused. A new file is private to its
/// owner.
pub(crate) fn open_file(path: &Path, access: Access) -> Result<File> {
    open_shared(path, access, true)
}

/// Like `open_file`, for a file that must keep its name while it is open (a lock, or a file that
/// is appended to), where the system can ensure that.
pub(crate) fn open_kept(path: &Path, access: Access) -> Result<File> {
    open_shared(path, access, false)
}

fn open_shared(path: &Path, access: Access, may_be_deleted: bool) -> Result<File> {
    let mut options = File::options();
    options.read(true).write(access != Access::Read).create(access == Access::Make).create_new(access == Access::New);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        // Non-blocking: opening a pipe would wait for its other end.
        options.mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        // Unix cannot keep a name; the locks detect a deleted file.
        let _ = may_be_deleted;
    }
    #[cfg(windows)]
    if !may_be_deleted {
        // FILE_SHARE_READ and FILE_SHARE_WRITE, without FILE_SHARE_DELETE.
        std::os::windows::fs::OpenOptionsExt::share_mode(&mut options, 1 | 2);
    }
    let strange = || Error::NotAFile { path: path.to_owned() };
    let file = options.open(path).map_err(|error| match error.raw_os_error() {
        #[cfg(unix)]
        Some(libc::ELOOP | libc::EISDIR | libc::ENXIO) => strange(),
        _ if error.kind() == ErrorKind::NotFound => Error::damaged(path, "it is missing"),
        _ => Error::io(if access == Access::New { "create" } else { "open" }, path, error),
    })?;
    let metadata = file.metadata().map_err(|error| Error::io("open", path, error))?;
    if metadata.is_file() { Ok(file) } else { Err(strange()) }
}

/// Whether the first `bytes` bytes of two files differ. A file that cannot be read differs.
pub(crate) fn differ(first: &Path, second: &Path, bytes: u64) -> Result<bool> {
    let mut first = open_file(first, Access::Read)?.take(bytes);
    let mut second = match open_file(second, Access::Read) {
        Err(error) if error.is_damage() => return Ok(true),
        opened => opened?.take(bytes),
    };
    let (mut pieces, mut left) = ([vec![0; COMPARED_BYTES], vec![0; COMPARED_BYTES]], bytes);
    while left > 0 {
        let len = left.min(COMPARED_BYTES as u64) as usize;
        let [one, other] = &mut pieces;
        let read = first.read_exact(&mut one[..len]).and_then(|()| second.read_exact(&mut other[..len]));
        if read.is_err() || one[..len] != other[..len] {
            return Ok(true);
        }
        left -= len as u64;
    }
    Ok(false)
}

/// Reads a whole file of at most `bytes_max` bytes.
pub(crate) fn read_file(path: &Path, bytes_max: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = open_file(path, Access::Read)?.take(bytes_max + 1).read_to_end(&mut bytes);
    read.map_err(|error| Error::io("read", path, error))?;
    if bytes.len() as u64 > bytes_max { Err(Error::damaged(path, "it is too long")) } else { Ok(bytes) }
}

/// Reads a file that the store can do without; `None` if it is damaged or missing.
pub(crate) fn read_intact(path: &Path, bytes_max: u64) -> Result<Option<Vec<u8>>> {
    match read_file(path, bytes_max) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.is_damage() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads `len` bytes of a file from `start` on.
pub(crate) fn read_at(file: &mut File, path: &Path, start: u64, len: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(len);
    let read = file.seek(SeekFrom::Start(start)).and_then(|_| file.take(len as u64).read_to_end(&mut bytes));
    match read {
        Ok(read) if read == len => Ok(bytes),
        Ok(_) => Err(Error::damaged(path, "it is cut short")),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Err(Error::damaged(path, "it is cut short")),
        Err(error) => Err(Error::io("read", path, error)),
    }
}

/// The folder that a file is in.
pub(crate) fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes the names in a folder durable.
pub(crate) fn sync_folder(path: &Path) -> Result<()> {
    let synced: io::Result<()> =
        if cfg!(unix) { File::open(path).and_then(|folder| folder.sync_all()) } else { Ok(()) };
    synced.map_err(|error| Error::io("sync", path, error))
}

/// Whether an open file has more than one name (hard links).
#[cfg(unix)]
pub(crate) fn has_other_names(file: &File) -> bool {
    use std::os::unix::fs::MetadataExt;
    file.metadata().is_ok_and(|metadata| metadata.nlink() > 1)
}

#[cfg(not(unix))]
pub(crate) fn has_other_names(_: &File) -> bool {
    false
}

/// Whether the path names the open file directly, not through a link.
pub(crate) fn is_same_file(file: &File, path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|other| is_same(file, &other))
}

/// Whether the path, following links, leads to the open folder.
pub(crate) fn leads_to(path: &Path, folder: &File) -> bool {
    fs::metadata(path).is_ok_and(|other| is_same(folder, &other))
}

#[cfg(unix)]
fn is_same(file: &File, other: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    let place = |metadata: &fs::Metadata| (metadata.dev(), metadata.ino());
    file.metadata().is_ok_and(|metadata| place(&metadata) == place(other))
}

/// On other systems the compared files are opened so that they cannot be deleted
/// ([`open_kept`]).
#[cfg(not(unix))]
fn is_same(_: &File, _: &fs::Metadata) -> bool {
    true
}
