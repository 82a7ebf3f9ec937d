//! Files that appear whole or not at all: written beside their place, and renamed when they are complete.
//!
//! What is not completed is removed again, also when a signal ends the process ([`remove_all`]). Two files being written never
//! share a name, so that neither can damage the other. When a file is complete, its content and its name have reached the disk.
//! Folders that are only needed for a while ([`Scratch`]) are removed in the same way.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, anyhow};

use crate::failure::Failure;

/// What is being written now. Destructors do not run when a signal ends the process.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A file that is being written. Unless it is completed, it is removed again.
#[derive(Debug)]
pub struct Partial {
    target: PathBuf,
    /// Where it is until then; the target itself where that is a device or a pipe.
    path: PathBuf,
}

impl Partial {
    /// Begins a file. One that is there already is refused, unless `overwrite` says otherwise.
    pub fn create(target: &Path, overwrite: bool) -> Result<Partial, Failure> {
        Partial::create_for(target, overwrite, false)
    }

    /// Begins a file that nobody but its owner may read.
    pub fn create_private(target: &Path, overwrite: bool) -> Result<Partial, Failure> {
        Partial::create_for(target, overwrite, true)
    }

    fn create_for(target: &Path, overwrite: bool, is_private: bool) -> Result<Partial, Failure> {
        if target.exists() && !overwrite {
            return Err(anyhow!("{} exists already; --overwrite replaces it", target.display()).into());
        }
        let cannot = || format!("{} cannot be written", target.display());
        if is_special(target) {
            File::options().write(true).open(target).with_context(cannot)?;
            return Ok(Partial { target: target.to_owned(), path: target.to_owned() });
        }
        let path = beside(target);
        // What is there under that name is left over from a process that was killed, or a link that leads elsewhere.
        let _ = fs::remove_file(&path);
        let mut options = File::options();
        options.write(true).create_new(true);
        #[cfg(unix)]
        if is_private {
            std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        }
        #[cfg(not(unix))]
        let _ = is_private;
        options.open(&path).with_context(cannot)?;
        unfinished(|paths| paths.push(path.clone()));
        Ok(Partial { target: target.to_owned(), path })
    }

    pub fn file(&self) -> io::Result<File> {
        let reads = self.path != self.target;
        File::options().read(reads).write(true).open(&self.path)
    }

    /// Gives the file its name.
    pub fn complete(self) -> Result<(), Failure> {
        let folder = (self.path != self.target).then(|| folder_of(&self.target).to_owned());
        self.complete_unsynced()?;
        Ok(folder.map_or(Ok(()), |folder| sync_folder(&folder))?)
    }

    /// Gives the file its name, which reaches the disk once its folder is synced: for many files in few folders.
    pub fn complete_unsynced(self) -> Result<(), Failure> {
        let cannot = || format!("{} could not be written", self.target.display());
        if self.path == self.target {
            return Ok(());
        }
        File::open(&self.path).and_then(|file| file.sync_all()).with_context(cannot)?;
        Ok(fs::rename(&self.path, &self.target).with_context(cannot)?)
    }

    /// Writes all of it, and gives the file its name.
    pub fn finish_with(self, contents: &[u8]) -> Result<(), Failure> {
        let written = self.file().and_then(|mut file| file.write_all(contents));
        written.with_context(|| format!("{} could not be written", self.target.display()))?;
        self.complete()
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if self.path != self.target {
            // Nothing is there any more where it was completed. If removing fails, the name says that it is not whole.
            let _ = fs::remove_file(&self.path);
            unfinished(|paths| paths.retain(|path| *path != self.path));
        }
    }
}

/// A folder that is deleted at the end, with all that is in it.
#[derive(Debug)]
pub struct Scratch(pub PathBuf);

impl Scratch {
    /// Makes a folder of this process's own below another.
    pub fn new(below: &Path, name: &str) -> Result<Scratch, Failure> {
        let path = below.join(format!("{name}-{}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| format!("{} cannot be made", path.display()))?;
        unfinished(|paths| paths.push(path.clone()));
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
        unfinished(|paths| paths.retain(|path| *path != self.0));
    }
}

/// Tries to delete a folder that somebody is still writing to.
const REMOVALS_MAX: usize = 20;

/// Removes what is not complete, for a process that ends at once. Says whether there was anything.
pub fn remove_all() -> bool {
    unfinished(|paths| paths.drain(..).filter(|path| remove(path)).count() > 0)
}

fn remove(path: &Path) -> bool {
    if !path.is_dir() {
        return fs::remove_file(path).is_ok();
    }
    (0..REMOVALS_MAX).any(|_| fs::remove_dir_all(path).is_ok())
}

/// Whether two paths are one place in one folder, however they are spelled. Links count as places of their own: completing a
/// file replaces the link, not what it leads to.
pub fn is_same_place(a: &Path, b: &Path) -> bool {
    place(a).is_some_and(|a| Some(a) == place(b))
}

/// Makes the names in a folder durable.
pub fn sync_folder(folder: &Path) -> anyhow::Result<()> {
    let synced = if cfg!(unix) { File::open(folder).and_then(|folder| folder.sync_all()) } else { Ok(()) };
    synced.with_context(|| format!("{} could not be synced", folder.display()))
}

/// The folder that a file is in.
pub fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn place(path: &Path) -> Option<(PathBuf, OsString)> {
    Some((fs::canonicalize(folder_of(path)).ok()?, path.file_name()?.to_owned()))
}

/// Whether something other than a file is there, such as a terminal or a pipe. A folder is refused when it is opened.
fn is_special(target: &Path) -> bool {
    fs::metadata(target).is_ok_and(|metadata| !metadata.is_file())
}

/// A name that no other file of this process is written under, also in folders that do not tell `A` from `a`. Of a long name it has the
/// beginning: names may have 255 bytes.
fn beside(target: &Path) -> PathBuf {
    const KEPT_BYTES_MAX: usize = 200;
    static BEGUN: AtomicU64 = AtomicU64::new(0);
    let mut name = target.file_name().map_or_else(OsString::new, ToOwned::to_owned);
    if name.len() > KEPT_BYTES_MAX {
        let text = name.to_string_lossy();
        name = text[..text.floor_char_boundary(KEPT_BYTES_MAX)].into();
    }
    name.push(format!(".{}-{}.partial", std::process::id(), BEGUN.fetch_add(1, Ordering::Relaxed)));
    target.with_file_name(name)
}

fn unfinished<T>(change: impl FnOnce(&mut Vec<PathBuf>) -> T) -> T {
    change(&mut UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test that cannot go on should say where.
mod tests {
    use super::*;

    #[test]
    fn one_place_is_known_however_it_is_spelled() {
        let folder = std::env::temp_dir();
        let (plain, dotted) = (folder.join("p.npy"), folder.join(".").join("p.npy"));
        assert!(is_same_place(&plain, &plain) && is_same_place(&plain, &dotted));
        assert!(is_same_place(Path::new("p.npy"), Path::new("./p.npy")));
        assert!(!is_same_place(&plain, &folder.join("q.npy")));
        assert!(!is_same_place(&folder.join("nowhere/p.npy"), &plain));
    }

    /// Names of 244 bytes and more left no room for what was added to them.
    #[test]
    fn files_with_the_longest_names_are_written() {
        for name in ["n".repeat(255), "n".repeat(244), "é".repeat(127)] {
            let target = std::env::temp_dir().join(name);
            Partial::create(&target, true).unwrap().finish_with(b"whole").unwrap();
            assert_eq!(fs::read(&target).unwrap(), b"whole");
            fs::remove_file(&target).unwrap();
        }
    }

    #[test]
    fn a_file_keeps_its_content_until_the_new_one_is_whole() {
        let target = std::env::temp_dir().join(format!("panoply-partial-{}.txt", std::process::id()));
        fs::write(&target, "old").unwrap();
        assert!(Partial::create(&target, false).is_err());
        let (first, second) = (Partial::create(&target, true).unwrap(), Partial::create(&target, true).unwrap());
        assert_ne!(first.path, second.path);
        let unfinished = second.path.clone();
        second.file().unwrap().write_all(b"half").unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"old");
        drop(second);
        assert!(!unfinished.exists());
        first.finish_with(b"new").unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"new");
        fs::remove_file(&target).unwrap();
    }
}
