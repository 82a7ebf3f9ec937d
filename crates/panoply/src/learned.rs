//! What the router has learned, kept in the user's cache folder from one run to the next.
//!
//! The file holds the figures of every device that was ever calibrated, each with the device's name, its driver and the
//! version of this library: only figures for which all of these are equal are used. A file that is damaged, or whose figures
//! are out of date, is not used; the runtime says so and learns anew. The folder is the one of compiled kernels, and follows
//! the same rules: absolute, the user's own, closed to everybody else, written by renaming.

use std::io;
use std::path::{Path, PathBuf};

use panoply_kernels::cache::{CacheError, private_folder, user_folder};
use panoply_runtime::Profile;

use crate::small_file::read_text;

const FILE_NAME: &str = "profile.txt";
/// The largest file that is read.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// The file; `None` where the user has no cache folder.
pub fn file() -> Option<PathBuf> {
    Some(user_folder().ok()?.join(FILE_NAME))
}

/// Has a runtime begin with what the file knows about its devices. Returns what there is to warn about.
pub(crate) fn apply(runtime: &panoply_runtime::Runtime) -> Vec<String> {
    let path = match user_folder() {
        Ok(folder) => folder.join(FILE_NAME),
        // The user has named a folder, and would wonder why it stays empty.
        Err(error @ CacheError::NotAbsolute { .. }) => return vec![error.to_string()],
        Err(_) => return Vec::new(),
    };
    let read = match std::fs::metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => Err(error),
        Ok(_) => own_folder(&path).and_then(|()| read_text(&path, FILE_BYTES_MAX)),
    };
    let parsed = read.map_err(|error| error.to_string());
    let parsed = parsed.and_then(|text| text.parse::<Profile>().map_err(|error| error.to_string()));
    let again = "run `panoply bench --calibrate` to make it anew";
    let profile = match parsed {
        Ok(profile) => profile,
        Err(reason) => return vec![format!("{} is not used: {reason}; {again}", path.display())],
    };
    let known = runtime.use_profile(&profile);
    let mut warnings = Vec::new();
    for device in runtime.devices().filter(|device| !known.contains(&device.id)) {
        let same = |identity: &panoply_runtime::router::profile::Identity| {
            identity.api == device.id.api.name() && identity.name == device.name
        };
        if profile.devices.iter().any(|known| same(&known.identity)) {
            let id = device.id;
            warnings.push(format!("{}: the figures of {id} are of another driver or version; {again}", path.display()));
        }
    }
    warnings
}

/// Writes what a runtime has learned to the file, beside what the file knows about other devices.
pub fn store(runtime: &panoply_runtime::Runtime) -> io::Result<PathBuf> {
    let path = user_folder().map_err(io::Error::other)?.join(FILE_NAME);
    own_folder(&path)?;
    let mut profile = runtime.profile();
    let before = read_text(&path, FILE_BYTES_MAX).ok().and_then(|text| text.parse::<Profile>().ok());
    for device in before.into_iter().flat_map(|before| before.devices) {
        if profile.devices.iter().all(|newer| newer.identity != device.identity) {
            profile.devices.push(device);
        }
    }
    // Written beside and renamed, so that whoever reads it meanwhile sees the one or the other.
    let beside = path.with_extension(format!("{}.tmp", std::process::id()));
    std::fs::write(&beside, profile.to_text())?;
    std::fs::rename(&beside, &path)?;
    Ok(path)
}

/// Makes sure that the file's folder is the user's alone.
fn own_folder(file: &Path) -> io::Result<()> {
    file.parent().map_or(Ok(()), |folder| private_folder(folder).map_err(io::Error::other))
}
