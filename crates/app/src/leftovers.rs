//! Finds and removes the leftovers of killed processes (`kill -9`, a crash): unfinished files and
//! scratch folders.
//!
//! Each leftover has an ending that is used for nothing else, and is locked while its process
//! lives. The next command that writes to the same folder removes the same user's leftovers that
//! are not locked. On a file system without locks leftovers stay.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use crate::folder::Folder;

/// The most names in a folder that are checked.
const NAMES_MAX: usize = 100_000;
/// The most folders that one process checks, each once.
const FOLDERS_MAX: usize = 10_000;

/// Returns the ending of an unfinished name: the process id, and a number that the process counts
/// up.
pub fn ending(number: u64) -> String {
    format!(".panoply-{}-{number}.partial", std::process::id())
}

/// Whether a name has the ending of an unfinished file or folder.
fn is_unfinished(name: &OsStr) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let numbers = name.to_str().and_then(|name| name.strip_suffix(".partial"));
    let numbers = numbers.and_then(|name| name.rsplit_once(".panoply-")).and_then(|(_, text)| text.split_once('-'));
    numbers.is_some_and(|(process, number)| is_number(process) && is_number(number))
}

/// Removes the leftovers of dead processes from a folder, the first time that this process writes
/// there.
pub fn remove_from(folder: &Folder) {
    static SEEN: Mutex<Option<HashSet<PathBuf>>> = Mutex::new(None);
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    let seen = seen.get_or_insert_default();
    if seen.len() < FOLDERS_MAX && seen.insert(folder.path().to_owned()) {
        remove_now(folder);
    }
}

fn remove_now(folder: &Folder) {
    let Ok(entries) = fs::read_dir(folder.path()) else { return };
    let names = entries.take(NAMES_MAX).filter_map(|entry| entry.ok().map(|entry| entry.file_name()));
    for name in names.filter(|name| is_unfinished(name)) {
        let Ok(file) = folder.open_to_look(&name) else { continue };
        let Ok(metadata) = file.metadata() else { continue };
        if !is_own(&metadata) || file.try_lock().is_err() {
            continue;
        }
        if metadata.is_file() {
            let _ = folder.remove(&name);
        } else if metadata.is_dir() {
            let _ = fs::remove_dir_all(folder.path().join(&name));
        }
    }
}

#[cfg(unix)]
fn is_own(metadata: &Metadata) -> bool {
    std::os::unix::fs::MetadataExt::uid(metadata) == rustix::process::geteuid().as_raw()
}

#[cfg(not(unix))]
fn is_own(_: &Metadata) -> bool {
    true
}

/// Whether an open file still has a name.
#[cfg(unix)]
pub fn has_name(file: &File) -> bool {
    file.metadata().is_ok_and(|metadata| std::os::unix::fs::MetadataExt::nlink(&metadata) > 0)
}

#[cfg(not(unix))]
pub fn has_name(_: &File) -> bool {
    true
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test that cannot go on should say where.
mod tests {
    use super::*;
    use crate::partial::Scratch;

    #[test]
    fn only_the_ending_of_an_unfinished_name_is_known() {
        for name in ["x.panoply-1-0.partial", ".panoply-1-0.partial", "a.panoply-9-9.b.panoply-123-45.partial"] {
            assert!(is_unfinished(OsStr::new(name)), "{name}");
        }
        for name in
            ["x.partial", "x.1-0.partial", "x.panoply-1-.partial", "x.panoply-a-1.partial", "panoply-1-0.partial"]
        {
            assert!(!is_unfinished(OsStr::new(name)), "{name}");
        }
        assert!(is_unfinished(OsStr::new(&format!("x{}", ending(7)))));
    }

    #[test]
    #[cfg(unix)]
    fn what_nobody_holds_is_removed() {
        let scratch = Scratch::new(&std::env::temp_dir(), "panoply-leftovers").unwrap();
        let path = |name: &str| scratch.path.join(name);
        let held = File::create(path("held.panoply-1-0.partial")).unwrap();
        held.lock().unwrap();
        fs::write(path("left.panoply-1-1.partial"), "secret").unwrap();
        fs::create_dir(path("left.panoply-1-2.partial")).unwrap();
        fs::write(path("left.panoply-1-2.partial/inner"), "secret").unwrap();
        std::os::unix::fs::symlink("own.partial", path("link.panoply-1-3.partial")).unwrap();
        fs::write(path("own.partial"), "").unwrap();
        remove_from(&Folder::open(&scratch.path).unwrap());
        let mut names: Vec<_> = fs::read_dir(&scratch.path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["held.panoply-1-0.partial", "link.panoply-1-3.partial", "own.partial"]);
    }
}
