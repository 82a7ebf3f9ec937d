//! The router's learned profile, kept in the user's cache folder between runs.
//!
//! The file holds the figures of every device that was ever calibrated, each with the device's
//! name, its driver and the version of this library. Only figures for which all of these match are
//! used. A damaged file and outdated figures are ignored; the runtime then warns and learns again.
//! The folder is shared with the compiled kernels and follows the same rules: an absolute path,
//! owned by the user, closed to all others, files written by renaming.

use std::io;
use std::path::{Path, PathBuf};

use panoply_kernels::cache::{CacheError, private_folder, user_folder};
use panoply_runtime::{BuildError, Profile};

use crate::small_file::read_text;

const FILE_NAME: &str = "profile.txt";
/// The largest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Returns the path of the file; `None` if the user has no cache folder.
pub fn file() -> Option<PathBuf> {
    Some(user_folder().ok()?.join(FILE_NAME))
}

/// Refuses a relative `PANOPLY_CACHE`: its user named the folder, and it would stay empty.
pub(crate) fn check_folder() -> Result<(), BuildError> {
    match user_folder() {
        Err(CacheError::NotAbsolute { got }) => {
            Err(BuildError::BadLimit { what: "PANOPLY_CACHE", expected: "an absolute path", got })
        }
        _ => Ok(()),
    }
}

/// Loads the file's figures of the runtime's devices. Returns warnings.
pub(crate) fn apply(runtime: &panoply_runtime::Runtime) -> Vec<String> {
    let path = match user_folder() {
        Ok(folder) => folder.join(FILE_NAME),
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

/// Checks that [`store`] can write the file, and makes its folder. Returns the path of the file.
pub fn check() -> io::Result<PathBuf> {
    let path = user_folder().map_err(io::Error::other)?.join(FILE_NAME);
    own_folder(&path)?;
    std::fs::File::create(path.with_extension("lock"))?;
    Ok(path)
}

/// Writes the runtime's learned figures to the file, and keeps the file's figures of other devices.
pub fn store(runtime: &panoply_runtime::Runtime) -> io::Result<PathBuf> {
    let path = user_folder().map_err(io::Error::other)?.join(FILE_NAME);
    own_folder(&path)?;
    write(&path, runtime.profile())?;
    Ok(path)
}

/// Writes a profile to the file, and keeps the file's figures of other devices.
fn write(path: &Path, mut profile: Profile) -> io::Result<()> {
    // Held until the file is renamed: another process adds its figures to these, and the temporary
    // file of a killed process is overwritten by the next. Without locks the last writer counts.
    let lock = std::fs::File::create(path.with_extension("lock"))?;
    let _ = lock.lock();
    let before = read_text(path, FILE_BYTES_MAX).ok().and_then(|text| text.parse::<Profile>().ok());
    for device in before.into_iter().flat_map(|before| before.devices) {
        if profile.devices.iter().all(|newer| newer.identity != device.identity) {
            profile.devices.push(device);
        }
    }
    // Written to a temporary file and renamed, so that a concurrent reader sees either the old or
    // the new file.
    let beside = path.with_extension("tmp");
    std::fs::write(&beside, profile.to_text())?;
    std::fs::rename(&beside, path)
}

/// Makes sure that only the user can access the file's folder.
fn own_folder(file: &Path) -> io::Result<()> {
    file.parent().map_or(Ok(()), |folder| private_folder(folder).map_err(io::Error::other))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A failed unwrap is a failed test.
mod tests {
    use super::*;

    /// Regression: each killed process left a temporary file of its own name behind.
    #[test]
    fn the_next_write_takes_over_the_temporary_file_of_a_killed_process() {
        let folder = std::env::temp_dir().join(format!("panoply-learned-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join(FILE_NAME);
        std::fs::write(folder.join("profile.tmp"), "left").unwrap();
        write(&path, Profile::default()).unwrap();
        assert!(read_text(&path, FILE_BYTES_MAX).unwrap().parse::<Profile>().is_ok());
        assert!(!folder.join("profile.tmp").exists());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
