//! The folder of anchors, and paths that lead into a store.

use std::path::{Path, PathBuf};

/// Name of the folder, within the folder of all anchors, whose anchors are named after store ids.
pub(super) const BY_ID: &str = "by-id";

/// The folder of anchors, in the user's state folder.
pub(super) fn state_folder() -> Result<PathBuf, String> {
    let folder = state_path()?;
    let made = std::fs::create_dir_all(folder.join(BY_ID));
    made.map_err(|error| format!("{} cannot be made: {error}", folder.display()))?;
    Ok(folder)
}

/// Its path, whether or not it exists.
pub(super) fn state_path() -> Result<PathBuf, String> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    let state = state.ok_or_else(|| "neither XDG_STATE_HOME nor HOME names a folder".to_owned())?;
    Ok(state.join("panoply").join("stores"))
}

/// The anchor that is named after a store's path, so that another store in its place is detected as
/// well.
pub(super) fn state_file(folder: &Path, store: &Path) -> Result<PathBuf, String> {
    let path = place_of(store).ok_or_else(|| format!("{} leads nowhere", store.display()))?;
    // 128 bits from two FNV-1a sums with different starts: a name, not a proof.
    let sum = |start: u64| {
        let bytes = path.as_os_str().as_encoded_bytes().iter();
        bytes.fold(start, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
    };
    Ok(folder.join(format!("{:016x}{:016x}", sum(0xcbf2_9ce4_8422_2325), sum(0x9ae1_6a3b_2f90_404f))))
}

/// The canonical path of a store. If it does not exist yet: the canonical path of its parent, and
/// its name.
pub(super) fn place_of(store: &Path) -> Option<PathBuf> {
    if let Ok(path) = std::fs::canonicalize(store) {
        return Some(path);
    }
    let path = std::path::absolute(store).ok()?;
    let (above, name) = (path.parent()?, path.file_name()?);
    Some(std::fs::canonicalize(above).ok().unwrap_or_else(|| above.to_owned()).join(name))
}

/// Whether a path leads into a store.
pub(super) fn is_within(store: &Path, path: &Path) -> bool {
    let Ok(path) = std::path::absolute(path) else { return false };
    let there = path.ancestors().find_map(|part| std::fs::canonicalize(part).ok());
    there.is_some_and(|there| there.ancestors().any(|part| is_same_file(part, store)))
}

/// Whether two paths lead to the same file or folder, even by hard links, mounts, or names that
/// differ in case.
#[cfg(unix)]
pub(super) fn is_same_file(a: &Path, b: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let place = |path: &Path| std::fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()));
    place(a).is_some_and(|a| Some(a) == place(b))
}

#[cfg(not(unix))]
pub(super) fn is_same_file(a: &Path, b: &Path) -> bool {
    let place = |path: &Path| std::fs::canonicalize(path).ok();
    place(a).is_some_and(|a| Some(a) == place(b))
}
