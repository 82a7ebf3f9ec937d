//! An open folder. Names are looked up in the folder itself, even if the path that led to it
//! changes. The last part of a path is never followed if it is a link.
//!
//! Systems other than Unix have no such handles: there each step resolves the path again, and a
//! folder that is swapped for a link between two steps is not noticed.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

#[cfg(unix)]
pub use self::unix::Folder;

#[cfg(not(unix))]
pub use self::other::Folder;

impl Folder {
    /// The path that led to the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Renames a file of this folder to a name in another folder, which must not exist. If a file
    /// system supports neither an exclusive rename nor hard links, an empty file reserves the name
    /// first and is then replaced.
    pub fn rename_new(&self, from: &OsStr, target: &Folder, to: &OsStr) -> io::Result<()> {
        match self.rename_exclusive(from, target, to) {
            Err(error) if is_unsupported(&error) => {}
            renamed => return renamed,
        }
        match self.link(from, target, to) {
            Ok(()) => return self.remove(from),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(error),
            Err(_) => {}
        }
        drop(target.create_new(to, true)?);
        self.rename(from, target, to).inspect_err(|_| drop(target.remove(to)))
    }
}

/// Whether the error means that the system or the file system does not support the call.
fn is_unsupported(error: &io::Error) -> bool {
    #[cfg(unix)]
    if [libc::EINVAL, libc::ENOSYS, libc::EOPNOTSUPP, libc::ENOTSUP]
        .iter()
        .any(|code| error.raw_os_error() == Some(*code))
    {
        return true;
    }
    error.kind() == io::ErrorKind::Unsupported
}

/// The error for a part of a path that is a link or a file.
fn no_folder(path: &Path) -> io::Error {
    let text = format!("{} is no folder; links are not followed", path.display());
    io::Error::new(io::ErrorKind::NotADirectory, text)
}

#[cfg(unix)]
mod unix {
    use super::{File, OsStr, Path, PathBuf, io, no_folder};

    use rustix::fs::{AtFlags, Mode, OFlags, linkat, mkdirat, openat, renameat, statat, unlinkat};
    use rustix::io::Errno;

    /// An open folder.
    #[derive(Debug)]
    pub struct Folder {
        pub(super) path: PathBuf,
        handle: File,
    }

    impl Folder {
        /// Opens a folder. Links in this path are followed.
        pub fn open(path: &Path) -> io::Result<Folder> {
            let handle = File::open(path)?;
            match handle.metadata()?.is_dir() {
                true => Ok(Folder { path: path.to_owned(), handle }),
                false => Err(io::ErrorKind::NotADirectory.into()),
            }
        }

        /// Opens a subfolder; a missing one is created, private to its owner. Returns whether it
        /// was created.
        pub fn below(&self, name: &OsStr) -> io::Result<(Folder, bool)> {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let open = || openat(&self.handle, name, flags, Mode::empty());
            let path = self.path.join(name);
            let (opened, is_made) = match open() {
                Err(Errno::NOENT) => match mkdirat(&self.handle, name, Mode::RWXU) {
                    Ok(()) => (open(), true),
                    // Another process has just created it.
                    Err(Errno::EXIST) => (open(), false),
                    Err(error) => return Err(error.into()),
                },
                opened => (opened, false),
            };
            match opened {
                Ok(handle) => Ok((Folder { path, handle: handle.into() }, is_made)),
                Err(Errno::LOOP | Errno::NOTDIR | Errno::MLINK) => Err(no_folder(&path)),
                Err(error) => Err(error.into()),
            }
        }

        /// Whether the name exists, even as a dangling link.
        pub fn has(&self, name: &OsStr) -> bool {
            statat(&self.handle, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
        }

        /// Creates a file that must not exist.
        pub fn create_new(&self, name: &OsStr, is_private: bool) -> io::Result<File> {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            Ok(openat(&self.handle, name, flags, mode(is_private))?.into())
        }

        /// Opens an existing entry, to inspect and lock it. Opening a pipe does not wait for its
        /// other end.
        pub fn open_to_look(&self, name: &OsStr) -> io::Result<File> {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            Ok(openat(&self.handle, name, flags, Mode::empty())?.into())
        }

        /// Creates an unnamed file, which disappears with its process. `None` if the system or the
        /// file system does not support it.
        #[cfg(target_os = "linux")]
        pub fn create_unnamed(&self, is_private: bool) -> Option<File> {
            let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
            let file = File::from(openat(&self.handle, ".", flags, mode(is_private)).ok()?);
            // The file is named through `/proc`, which may not be mounted.
            std::fs::metadata(own_path(&file)).is_ok().then_some(file)
        }

        #[cfg(not(target_os = "linux"))]
        pub fn create_unnamed(&self, _: bool) -> Option<File> {
            None
        }

        /// Gives an unnamed file a name in this folder, which must not exist.
        pub fn name_unnamed(&self, file: &File, name: &OsStr) -> io::Result<()> {
            Ok(linkat(rustix::fs::CWD, own_path(file), &self.handle, name, AtFlags::SYMLINK_FOLLOW)?)
        }

        /// Renames, and replaces an existing file.
        pub fn rename(&self, from: &OsStr, target: &Folder, to: &OsStr) -> io::Result<()> {
            Ok(renameat(&self.handle, from, &target.handle, to)?)
        }

        #[cfg(any(target_os = "linux", target_vendor = "apple"))]
        pub(super) fn rename_exclusive(&self, from: &OsStr, target: &Folder, to: &OsStr) -> io::Result<()> {
            use rustix::fs::{RenameFlags, renameat_with};
            Ok(renameat_with(&self.handle, from, &target.handle, to, RenameFlags::NOREPLACE)?)
        }

        #[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
        pub(super) fn rename_exclusive(&self, _: &OsStr, _: &Folder, _: &OsStr) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub(super) fn link(&self, from: &OsStr, target: &Folder, to: &OsStr) -> io::Result<()> {
            Ok(linkat(&self.handle, from, &target.handle, to, AtFlags::empty())?)
        }

        /// Deletes a file.
        pub fn remove(&self, name: &OsStr) -> io::Result<()> {
            Ok(unlinkat(&self.handle, name, AtFlags::empty())?)
        }

        /// Makes the names in the folder durable.
        pub fn sync(&self) -> io::Result<()> {
            self.handle.sync_all()
        }
    }

    fn mode(is_private: bool) -> Mode {
        Mode::from_raw_mode(if is_private { 0o600 } else { 0o666 })
    }

    /// The path under which a process can reach its own file.
    fn own_path(file: &File) -> PathBuf {
        use std::os::fd::AsRawFd;
        PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
    }
}

#[cfg(not(unix))]
mod other {
    use super::{File, OsStr, Path, PathBuf, io, no_folder};
    use std::fs;

    /// A folder.
    #[derive(Debug)]
    pub struct Folder {
        pub(super) path: PathBuf,
    }

    impl Folder {
        /// Finds a folder. Links in this path are followed.
        pub fn open(path: &Path) -> io::Result<Folder> {
            match fs::metadata(path)?.is_dir() {
                true => Ok(Folder { path: path.to_owned() }),
                false => Err(io::ErrorKind::NotADirectory.into()),
            }
        }

        /// Finds a subfolder; a missing one is created. Returns whether it was created.
        pub fn below(&self, name: &OsStr) -> io::Result<(Folder, bool)> {
            let path = self.path.join(name);
            let is_made = match fs::create_dir(&path) {
                Ok(()) => true,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
                Err(error) => return Err(error),
            };
            match fs::symlink_metadata(&path)?.is_dir() {
                true => Ok((Folder { path }, is_made)),
                false => Err(no_folder(&path)),
            }
        }

        /// Whether the name exists, even as a dangling link.
        pub fn has(&self, name: &OsStr) -> bool {
            fs::symlink_metadata(self.path.join(name)).is_ok()
        }

        /// Creates a file that must not exist.
        pub fn create_new(&self, name: &OsStr, _: bool) -> io::Result<File> {
            File::options().read(true).write(true).create_new(true).open(self.path.join(name))
        }

        /// Opens an existing entry, to inspect and lock it.
        pub fn open_to_look(&self, name: &OsStr) -> io::Result<File> {
            File::open(self.path.join(name))
        }

        /// Only Linux has unnamed files.
        pub fn create_unnamed(&self, _: bool) -> Option<File> {
            None
        }

        /// Only Linux has unnamed files.
        pub fn name_unnamed(&self, _: &File, _: &OsStr) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }

        /// Renames, and replaces an existing file.
        pub fn rename(&self, from: &OsStr, target: &Folder, to: &OsStr) -> io::Result<()> {
            fs::rename(self.path.join(from), target.path.join(to))
        }

        pub(super) fn rename_exclusive(&self, _: &OsStr, _: &Folder, _: &OsStr) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub(super) fn link(&self, from: &OsStr, target: &Folder, to: &OsStr) -> io::Result<()> {
            fs::hard_link(self.path.join(from), target.path.join(to))
        }

        /// Deletes a file.
        pub fn remove(&self, name: &OsStr) -> io::Result<()> {
            fs::remove_file(self.path.join(name))
        }

        /// Not needed on other systems.
        pub fn sync(&self) -> io::Result<()> {
            Ok(())
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test that cannot go on should say where.
mod tests {
    use super::*;
    use std::fs;

    struct TemporaryFolder(PathBuf);

    impl TemporaryFolder {
        fn new(name: &str) -> TemporaryFolder {
            let path = std::env::temp_dir().join(format!("panoply-folder-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir(&path).unwrap();
            TemporaryFolder(path)
        }
    }

    impl Drop for TemporaryFolder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// Each way to name a file refuses an existing name.
    #[test]
    fn a_name_that_is_taken_is_not_replaced() {
        let place = TemporaryFolder::new("taken");
        let folder = Folder::open(&place.0).unwrap();
        let [from, to] = ["from", "to"].map(OsStr::new);
        for is_link in [false, true] {
            let _ = fs::remove_file(place.0.join("to"));
            match is_link {
                #[cfg(unix)]
                true => std::os::unix::fs::symlink("nowhere", place.0.join("to")).unwrap(),
                _ => fs::write(place.0.join("to"), "theirs").unwrap(),
            }
            fs::write(place.0.join("from"), "ours").unwrap();
            let refused = [folder.rename_new(from, &folder, to), folder.link(from, &folder, to)];
            for refused in refused {
                assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::AlreadyExists);
            }
            assert!(folder.create_new(to, true).is_err() && folder.has(from) && folder.has(to));
        }
        fs::remove_file(place.0.join("to")).unwrap();
        folder.rename_new(from, &folder, to).unwrap();
        assert_eq!((fs::read(place.0.join("to")).unwrap(), folder.has(from)), (b"ours".to_vec(), false));
    }

    #[test]
    #[cfg(unix)]
    fn links_are_no_folders_below_a_folder() {
        let place = TemporaryFolder::new("links");
        let folder = Folder::open(&place.0).unwrap();
        std::os::unix::fs::symlink("/", place.0.join("link")).unwrap();
        fs::write(place.0.join("file"), "").unwrap();
        for name in ["link", "file"] {
            let refused = folder.below(OsStr::new(name)).unwrap_err();
            assert!(refused.to_string().contains("links are not followed"), "{refused}");
        }
        assert!(folder.below(OsStr::new("new")).unwrap().1 && !folder.below(OsStr::new("new")).unwrap().1);
    }
}
