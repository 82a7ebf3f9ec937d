//! The anchor: a small file outside the store that remembers one point of the store's history.
//!
//! 1. A rollback of a whole store to an earlier copy leaves a store that is in order: nothing
//!    inside it shows the rollback. To detect it, an owner keeps an anchor where a thief of the
//!    store cannot write. The anchor contains no secrets.
//! 2. The anchor holds a generation and the tag of that generation's last record. A store passes
//!    if its log's chain contains exactly this point. So a store that was rolled back and then
//!    continued, to any generation, is detected as well.
//! 3. The anchor is written after each commit. A crash between the two leaves a store that is
//!    newer than its anchor, which is not an error.
//! 4. An anchor may be named after the store's path, which detects another store in its place, and
//!    after the store's id, which finds the anchor by any path that leads to the store. Every
//!    anchor that exists must pass.
//! 5. Without an anchor nothing is known about the past. [`crate::Store::had_no_anchor`] reports
//!    this to the caller, who may have expected an anchor.
//! 6. A new anchor is written as `<anchor>.<16 hex digits>.new` and renamed over the old one. Its
//!    writer locks this file, so the next store that uses the anchor removes the files of killed
//!    writers ([`remove_leftovers`]) and no other. A file may be removed between its creation and
//!    its lock; its writer notices this and begins again. Without locks leftovers stay.

use std::fs::{self, File, TryLockError};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::catalog::Point;
use crate::encode::{from_hex, hex, is_hex};
use crate::error::{Error, Result};
use crate::files::{Access, folder_of, is_same_file, open_file, read_file, sync_folder};
use crate::key::random;
use crate::options::Options;

const FIRST_LINE: &str = "panoply store anchor 1";
const ANCHOR_BYTES_MAX: u64 = 4096;
/// End of the name of a new anchor until it is renamed.
const NEW: &str = ".new";
/// Bytes of the random part of this name.
const NEW_RANDOM_BYTES: usize = 8;
/// Maximal number of new files that others may remove before writing fails.
const ATTEMPTS_MAX: usize = 100;
/// Maximal number of names in a folder that are checked for leftovers.
const NAMES_MAX: usize = 100_000;

/// The relation of a store to its anchor, for a store that may be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// There is no anchor.
    Nothing,
    /// The anchor remembers an earlier point.
    Earlier,
    /// The anchor remembers the last point.
    This,
}

/// Paths of the anchors of the store with this id.
pub(crate) fn files(options: &Options, store: &[u8; 16]) -> Vec<PathBuf> {
    let by_id = options.anchor_folder.as_ref().map(|folder| folder.join(hex(store)));
    options.anchor.iter().cloned().chain(by_id).collect()
}

/// Compares a store with one of its anchors: the store's history must contain the anchor's point.
pub(crate) fn check(anchor: &Path, folder: &Path, store: &[u8; 16], history: &[Point]) -> Result<Known> {
    let senseless = |reason| Error::DamagedAnchor { path: folder.to_owned(), anchor: anchor.to_owned(), reason };
    let known = match read(anchor) {
        Ok(None) => return Ok(Known::Nothing),
        Ok(Some(known)) => known,
        Err(Error::Damaged { reason, .. }) => return Err(senseless(reason)),
        Err(error) => return Err(error),
    };
    if known.store != *store {
        return Err(senseless("it is the anchor of another store"));
    }
    if history.last() == Some(&known.point) {
        return Ok(Known::This);
    }
    if history.contains(&known.point) {
        return Ok(Known::Earlier);
    }
    let (path, anchor) = (folder.to_owned(), anchor.to_owned());
    let (first, last) =
        (history.first().map_or(0, |point| point.generation), history.last().map_or(0, |point| point.generation));
    match known.point.generation {
        got if got < first => Err(Error::AnchorTooOld { path, anchor, expected: first, got }),
        expected => Err(Error::RolledBack { path, anchor, expected, got: last }),
    }
}

/// The generation that an anchor of this store remembers.
pub(crate) fn generation(anchor: &Path, store: &[u8; 16]) -> Option<u64> {
    read(anchor).ok().flatten().filter(|known| known.store == *store).map(|known| known.point.generation)
}

/// Refuses to replace a file that is neither missing nor empty, and does not begin as an anchor
/// does: it may be the store's only key.
pub(crate) fn expect_replaceable(anchor: &Path) -> Result<()> {
    if anchor.symlink_metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
        return Ok(());
    }
    let is_anchor = |text: Vec<u8>| text.is_empty() || text.starts_with(FIRST_LINE.as_bytes());
    match read_file(anchor, ANCHOR_BYTES_MAX).map(is_anchor) {
        Ok(true) => Ok(()),
        Ok(false) | Err(Error::Damaged { .. }) => Err(Error::NotAnAnchor { anchor: anchor.to_owned() }),
        Err(error) => Err(error),
    }
}

/// Writes a point into the anchor.
pub(crate) fn write(anchor: &Path, store: &[u8; 16], point: &Point) -> Result<()> {
    let text = format!("{FIRST_LINE}\n{} {} {}\n", hex(store), point.generation, hex(&point.tag));
    for _ in 0..ATTEMPTS_MAX {
        let Some((mut file, new)) = new_file(anchor)? else { continue };
        let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
        if !cfg!(unix) {
            // On other systems no process can read a locked file, even under its final name.
            let _ = file.unlock();
        }
        match written.and_then(|()| fs::rename(&new, anchor)) {
            Ok(()) => return sync_folder(folder_of(anchor)),
            Err(error) if error.kind() == ErrorKind::NotFound && !cfg!(unix) => {}
            Err(error) => {
                let _ = fs::remove_file(&new);
                return Err(Error::io("write", anchor, error));
            }
        }
    }
    Err(Error::io("write", anchor, ErrorKind::ResourceBusy.into()))
}

/// Creates and locks a file for a new anchor. `None` if somebody has removed it before it was
/// locked.
fn new_file(anchor: &Path) -> Result<Option<(File, PathBuf)>> {
    let mut new = anchor.as_os_str().to_owned();
    // The name is random, so that neither another process with the same number (in another
    // namespace or on another host) nor an attacker can place a file there first.
    new.push(format!(".{}{NEW}", hex(&random::<NEW_RANDOM_BYTES>()?)));
    let new = PathBuf::from(new);
    let file = open_file(&new, Access::New)?;
    Ok(lock_new(&file, &new).then_some((file, new)))
}

/// Locks a new file; false if it is about to be removed, or was removed already. A file system
/// without locks is no error: no process removes a file there.
fn lock_new(file: &File, new: &Path) -> bool {
    !matches!(file.try_lock(), Err(TryLockError::WouldBlock)) && is_same_file(file, new)
}

/// Removes the new files of killed writers of this anchor. A file that cannot be removed stays.
pub(crate) fn remove_leftovers(anchor: &Path) {
    let Some(name) = anchor.file_name().and_then(|name| name.to_str()) else { return };
    let Ok(entries) = fs::read_dir(folder_of(anchor)) else { return };
    for entry in entries.take(NAMES_MAX).flatten() {
        if entry.file_name().to_str().is_some_and(|other| is_new(other, name)) {
            let path = entry.path();
            let Ok(file) = open_file(&path, Access::Write) else { continue };
            // `file` stays locked until the name is gone, so that its writer cannot lock it before.
            if file.try_lock().is_ok() && is_same_file(&file, &path) {
                let _ = fs::remove_file(&path);
            }
        }
    }
}

/// Whether this is the name of a new file of the anchor with the name `anchor`.
fn is_new(name: &str, anchor: &str) -> bool {
    let random = name.strip_prefix(anchor).and_then(|rest| rest.strip_prefix('.')?.strip_suffix(NEW));
    random.is_some_and(|random| random.len() == 2 * NEW_RANDOM_BYTES && is_hex(random))
}

/// Reads the anchor; `None` if the file does not exist.
fn read(anchor: &Path) -> Result<Option<Line>> {
    if anchor.symlink_metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
        return Ok(None);
    }
    let text = read_file(anchor, ANCHOR_BYTES_MAX)?;
    parse(&text).map(Some).ok_or_else(|| Error::damaged(anchor, "it is no anchor of a store"))
}

struct Line {
    store: [u8; 16],
    point: Point,
}

fn parse(text: &[u8]) -> Option<Line> {
    let mut lines = str::from_utf8(text).ok()?.lines();
    if lines.next()? != FIRST_LINE {
        return None;
    }
    let mut words = lines.next()?.split(' ');
    let store = *from_hex(words.next()?.as_bytes())?;
    let generation = words.next()?.parse().ok()?;
    let tag = *from_hex(words.next()?.as_bytes())?;
    words.next().is_none().then_some(Line { store, point: Point { generation, tag } })
}

#[cfg(all(test, unix))]
#[allow(clippy::unwrap_used)] // A failed unwrap is a failed test.
mod tests {
    use super::*;

    /// A folder that is removed at the end of a test.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Place {
            let path = std::env::temp_dir().join(format!("panoply-anchor-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir(&path).unwrap();
            Place(path)
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_writer_notices_that_its_file_was_removed() {
        let place = Place::new("removed");
        let new = place.0.join("anchor.0123456789abcdef.new");
        let file = open_file(&new, Access::New).unwrap();
        // Somebody is about to remove it.
        let other = open_file(&new, Access::Write).unwrap();
        other.lock().unwrap();
        assert!(!lock_new(&file, &new));
        drop(other);
        remove_leftovers(&place.0.join("anchor"));
        assert!(!new.exists() && !lock_new(&file, &new));
        let file = open_file(&new, Access::New).unwrap();
        assert!(lock_new(&file, &new));
        remove_leftovers(&place.0.join("anchor"));
        assert!(new.exists(), "its writer lives");
    }

    /// Every point that is written arrives, while others look for leftovers all the time.
    #[test]
    fn writers_and_those_who_tidy_up_do_not_disturb_each_other() {
        const WRITES: u64 = 40;
        let place = Place::new("storm");
        let anchor = place.0.join("anchor");
        let is_done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !is_done.load(std::sync::atomic::Ordering::Acquire) {
                        remove_leftovers(&anchor);
                    }
                });
            }
            let write = |generation| write(&anchor, &[7; 16], &Point { generation, tag: [1; 16] });
            let failed = (1..=WRITES).find_map(|generation| write(generation).err());
            is_done.store(true, std::sync::atomic::Ordering::Release);
            assert!(failed.is_none(), "{failed:?}");
        });
        assert_eq!(generation(&anchor, &[7; 16]), Some(WRITES));
        assert_eq!(fs::read_dir(&place.0).unwrap().count(), 1);
    }
}
