//! The reserve: a file in the store's folder that holds disk space for removals.
//!
//! Removing an object needs some space: a record of the log and a new head. If the disk has no
//! free block, the reserve is deleted, the removal is written into its space, and the reserve is
//! made again from the space that the removal frees. The reserve is never read and contains no
//! secrets: its bytes are random, so that no file system compresses them away. A store works with
//! a missing or short reserve, and the next writer completes it.

use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use crate::error::Result;
use crate::files::{Access, has_other_names, open_file, sync_folder};
use crate::randomness::random;

/// The name of the file.
pub(crate) const RESERVE: &str = "RESERVE";
/// Its length: enough for the record of a thousand names and for a head.
pub(crate) const RESERVE_BYTES: u64 = 128 << 10;
const PIECE_BYTES: usize = 4 << 10;

/// Extends the reserve of a store's folder to its full length, or as far as there is space.
pub(crate) fn complete(folder: &Path) -> Result<()> {
    let path = folder.join(RESERVE);
    let mut file = open_file(&path, Access::Make)?;
    if has_other_names(&file) {
        // A copy of the store made of hard links shares this file, so deleting it would free no
        // space.
        fs::remove_file(&path).map_err(|error| crate::Error::io("delete", &path, error))?;
        file = open_file(&path, Access::New)?;
    }
    let refused = |error| crate::Error::io("write", &path, error);
    let mut len = file.seek(SeekFrom::End(0)).map_err(refused)?;
    while len < RESERVE_BYTES {
        file.write_all(&random::<PIECE_BYTES>()?).map_err(refused)?;
        len += PIECE_BYTES as u64;
    }
    Ok(())
}

/// Deletes the reserve. Returns whether there was one, and thus whether space became free.
pub(crate) fn give_up(folder: &Path) -> bool {
    let path = folder.join(RESERVE);
    let had_bytes = path.symlink_metadata().is_ok_and(|metadata| metadata.is_file() && metadata.len() > 0);
    let is_deleted = fs::remove_file(&path).is_ok();
    // Some file systems free blocks only once the deletion is durable.
    let _ = sync_folder(folder);
    had_bytes && is_deleted
}
