//! What the router has learned, kept in the user's cache folder from one run to the next.
//!
//! The file holds the figures of every device that was ever calibrated, each with the device's name, its driver and the
//! version of this library: only figures for which all of these are equal are used. A file that is damaged, or whose figures
//! are out of date, is not used; the runtime says so and learns anew.

use std::io;
use std::path::PathBuf;

use panoply_runtime::Profile;

/// Names another folder for the cache.
const FOLDER_VARIABLE: &str = "PANOPLY_CACHE";
const FILE_NAME: &str = "profile.txt";
/// The largest file that is read.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// The file; `None` where the user has no cache folder.
pub fn file() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = set(FOLDER_VARIABLE)
        .or_else(|| set("XDG_CACHE_HOME").map(|cache| cache.join("panoply")))
        .or_else(|| set("HOME").map(|home| home.join(".cache/panoply")))?;
    Some(folder.join(FILE_NAME))
}

/// Has a runtime begin with what the file knows about its devices. Returns what there is to warn about.
pub(crate) fn apply(runtime: &panoply_runtime::Runtime) -> Vec<String> {
    let Some(path) = file() else { return Vec::new() };
    let read = match std::fs::metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => Err(error),
        Ok(metadata) if metadata.len() > FILE_BYTES_MAX => Err(io::Error::other("it is too large")),
        Ok(_) => std::fs::read_to_string(&path),
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
    let no_folder = || io::Error::other("there is no cache folder: set PANOPLY_CACHE, XDG_CACHE_HOME or HOME");
    let path = file().ok_or_else(no_folder)?;
    let mut profile = runtime.profile();
    let before = std::fs::read_to_string(&path).ok().and_then(|text| text.parse::<Profile>().ok());
    for device in before.into_iter().flat_map(|before| before.devices) {
        if profile.devices.iter().all(|newer| newer.identity != device.identity) {
            profile.devices.push(device);
        }
    }
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    // Written beside and renamed, so that whoever reads it meanwhile sees the one or the other.
    let beside = path.with_extension(format!("{}.tmp", std::process::id()));
    std::fs::write(&beside, profile.to_text())?;
    std::fs::rename(&beside, &path)?;
    Ok(path)
}
