//! Compiled kernels in files of the user's cache folder, shared by every backend that compiles.
//!
//! 1. The folder is `PANOPLY_CACHE`, else `panoply` in `XDG_CACHE_HOME`, else in `~/.cache`
//!    (`LOCALAPPDATA` on Windows). A variable that is empty or not an absolute path counts as
//!    unset, so no file is ever written to the current folder.
//! 2. The folder belongs to the user and is closed to others (0700), because its files are loaded
//!    and executed. A folder of another user is not used.
//! 3. A file is written under another name and renamed, so it is complete or absent. A damaged file
//!    does not match the checksum in its header, and counts as missing.
//! 4. Files and bytes are bounded. Beyond [`FILES_MAX`] or [`BYTES_MAX`] the least recently used
//!    files are removed.
//!
//! A cache that cannot be used is a [`CacheError`] with the reason. It only makes things slower.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// The first bytes of a file.
const MAGIC: &[u8; 8] = b"panoply2";
const HEADER_BYTES: usize = 16;
/// The most bytes of one file.
pub const FILE_BYTES_MAX: u64 = 64 << 20;
/// The most files of one cache.
pub const FILES_MAX: usize = 16_384;
/// The most bytes of all files of one cache.
pub const BYTES_MAX: u64 = 1 << 30;
/// Number of writes between two checks of the folder's size.
const WRITES_PER_LOOK: u64 = 256;
/// A read updates a file's modification time only if it is older than this.
const MARK_AGE: Duration = Duration::from_secs(24 * 3600);
/// The variable that names another folder for the cache.
const FOLDER_VARIABLE: &str = "PANOPLY_CACHE";

/// The reason why there is no cache.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// No variable names a folder.
    #[error("no folder: {tried} are unset, empty or not absolute")]
    NoFolder {
        /// The names of the variables.
        tried: &'static str,
    },
    /// `PANOPLY_CACHE` is a relative path, which depends on the current folder.
    #[error("PANOPLY_CACHE: expected an absolute path, got {got}; nothing is kept")]
    NotAbsolute {
        /// The path.
        got: String,
    },
    /// The folder belongs to another user.
    #[error("{folder} belongs to user {owner}, not to {user}")]
    NotOurs {
        /// The folder.
        folder: String,
        /// The owner's user id.
        owner: u32,
        /// This process's user id.
        user: u32,
    },
    /// The folder cannot be made or used.
    #[error("{folder}: {reason}")]
    Unusable {
        /// The folder.
        folder: String,
        /// The error of the system.
        reason: String,
    },
}

/// The user's cache folder of this project.
pub fn user_folder() -> Result<PathBuf, CacheError> {
    folder_by(|name| std::env::var_os(name).map(PathBuf::from))
}

/// As [`user_folder`], with a given lookup of variables.
fn folder_by(variable: impl Fn(&str) -> Option<PathBuf>) -> Result<PathBuf, CacheError> {
    let absolute = |name: &str| variable(name).filter(|folder| folder.is_absolute());
    if let Some(folder) = variable(FOLDER_VARIABLE).filter(|folder| !folder.as_os_str().is_empty()) {
        let got = folder.display().to_string();
        return if folder.is_absolute() { Ok(folder) } else { Err(CacheError::NotAbsolute { got }) };
    }
    absolute("XDG_CACHE_HOME")
        .map(|base| base.join("panoply"))
        .or_else(|| absolute("HOME").map(|home| home.join(".cache").join("panoply")))
        .or_else(|| absolute("LOCALAPPDATA").map(|base| base.join("panoply")))
        .ok_or(CacheError::NoFolder { tried: "PANOPLY_CACHE, XDG_CACHE_HOME and HOME" })
}

/// Ensures that a folder exists, belongs to the user, and is closed to others. Creates missing
/// folders.
pub fn private_folder(folder: &Path) -> Result<(), CacheError> {
    let unusable =
        |error: io::Error| CacheError::Unusable { folder: folder.display().to_string(), reason: error.to_string() };
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
        builder.mode(0o700).create(folder).map_err(unusable)?;
        let metadata = fs::metadata(folder).map_err(unusable)?;
        let (owner, user) = (metadata.uid(), rustix::process::geteuid().as_raw());
        if owner != user {
            return Err(CacheError::NotOurs { folder: folder.display().to_string(), owner, user });
        }
        if metadata.permissions().mode() & 0o077 != 0 {
            fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).map_err(unusable)?;
        }
    }
    #[cfg(not(unix))]
    builder.create(folder).map_err(unusable)?;
    Ok(())
}

/// A folder of files that are found by their keys.
#[derive(Debug)]
pub struct Cache {
    folder: PathBuf,
    written: AtomicU64,
}

impl Cache {
    /// The cache with this name in the user's folder.
    pub fn open(name: &str) -> Result<Cache, CacheError> {
        Cache::open_in(user_folder()?.join(name))
    }

    /// The cache in this folder.
    pub fn open_in(folder: PathBuf) -> Result<Cache, CacheError> {
        private_folder(&folder)?;
        Ok(Cache { folder, written: AtomicU64::new(0) })
    }

    /// The value stored under this key, if it exists and is intact.
    pub fn read(&self, key: &[u8]) -> Option<Vec<u8>> {
        let file = self.file(key);
        let metadata =
            fs::metadata(&file).ok().filter(|metadata| metadata.is_file() && metadata.len() <= FILE_BYTES_MAX)?;
        let mut bytes = fs::read(&file).ok()?;
        let (header, value) = bytes.split_at_checked(HEADER_BYTES)?;
        let checksum = u64::from_le_bytes(header[8..].try_into().ok()?);
        if header[..8] != MAGIC[..] || checksum != hash(value) as u64 {
            return None;
        }
        let now = SystemTime::now();
        if metadata.modified().is_ok_and(|at| now.duration_since(at).is_ok_and(|age| age > MARK_AGE)) {
            // A file that cannot be marked is merely evicted earlier.
            let _ = fs::File::options().append(true).open(&file).and_then(|file| file.set_modified(now));
        }
        bytes.drain(..HEADER_BYTES);
        Some(bytes)
    }

    /// Stores a value atomically. A failed write is ignored, because it only makes things slower.
    pub fn write(&self, key: &[u8], value: &[u8]) {
        if value.len() as u64 + HEADER_BYTES as u64 > FILE_BYTES_MAX {
            return;
        }
        let file = self.file(key);
        let number = self.written.fetch_add(1, Ordering::Relaxed);
        let fresh = file.with_extension(format!("{}-{number}.tmp", std::process::id()));
        if write_new(&fresh, value).and_then(|()| fs::rename(&fresh, &file)).is_err() {
            let _ = fs::remove_file(&fresh);
        }
        if number.is_multiple_of(WRITES_PER_LOOK) {
            self.evict(FILES_MAX, BYTES_MAX);
        }
    }

    /// If a limit is exceeded, removes the least recently used files until the cache is a quarter
    /// below both limits.
    fn evict(&self, files_max: usize, bytes_max: u64) {
        let Ok(entries) = fs::read_dir(&self.folder) else { return };
        let mut files: Vec<(SystemTime, u64, PathBuf)> = entries
            .filter_map(|entry| {
                let entry = entry.ok()?;
                let metadata = entry.metadata().ok().filter(|metadata| metadata.is_file())?;
                Some((metadata.modified().ok()?, metadata.len(), entry.path()))
            })
            .collect();
        let mut bytes: u64 = files.iter().map(|(_, len, _)| len).sum();
        if files.len() <= files_max && bytes <= bytes_max {
            return;
        }
        files.sort_unstable();
        let mut left = files.len();
        for (_, len, path) in files {
            if left <= files_max / 4 * 3 && bytes <= bytes_max / 4 * 3 {
                break;
            }
            // Another process may have removed the file already.
            let _ = fs::remove_file(path);
            left -= 1;
            bytes -= len;
        }
    }

    fn file(&self, key: &[u8]) -> PathBuf {
        self.folder.join(format!("{:032x}.kernel", hash(key)))
    }
}

/// Creates a new file with a header and the value.
fn write_new(file: &Path, value: &[u8]) -> io::Result<()> {
    let mut options = fs::File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut opened = options.open(file)?;
    opened.write_all(MAGIC)?;
    opened.write_all(&(hash(value) as u64).to_le_bytes())?;
    opened.write_all(value)
}

/// FNV-1a over 128 bits, stable from build to build.
fn hash(bytes: &[u8]) -> u128 {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = (1 << 88) + 0x13b;
    bytes.iter().fold(BASIS, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An empty folder for one test.
    fn scratch(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("panoply-cache-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        folder
    }

    #[test]
    fn the_current_folder_is_never_the_cache() {
        let of = |variables: &[(&str, &str)]| {
            folder_by(|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| PathBuf::from(value)))
        };
        let home = Ok(PathBuf::from("/home/ada/.cache/panoply"));
        assert_eq!(of(&[("XDG_CACHE_HOME", ""), ("HOME", "/home/ada")]), home);
        assert_eq!(of(&[("XDG_CACHE_HOME", "cache"), ("HOME", "/home/ada")]), home);
        assert_eq!(of(&[("PANOPLY_CACHE", ""), ("HOME", "/home/ada")]), home);
        let named = of(&[("PANOPLY_CACHE", "./x"), ("HOME", "/home/ada")]);
        assert_eq!(named, Err(CacheError::NotAbsolute { got: "./x".to_owned() }));
        assert_eq!(of(&[("XDG_CACHE_HOME", "/fast"), ("HOME", "/home/ada")]), Ok(PathBuf::from("/fast/panoply")));
        assert_eq!(of(&[("PANOPLY_CACHE", "/mine"), ("XDG_CACHE_HOME", "/fast")]), Ok(PathBuf::from("/mine")));
        let none = of(&[("XDG_CACHE_HOME", "."), ("HOME", "")]).unwrap_err();
        assert!(none.to_string().contains("not absolute"), "{none}");
    }

    #[test]
    fn what_was_written_is_read_and_damage_is_noticed() {
        let folder = scratch("damage");
        let cache = Cache::open_in(folder.clone()).unwrap();
        assert_eq!(cache.read(b"key"), None);
        cache.write(b"key", b"value");
        assert_eq!(cache.read(b"key").as_deref(), Some(&b"value"[..]));
        assert_eq!(cache.read(b"other"), None);
        let file = cache.file(b"key");
        for damaged in [&b"panoply2"[..], b"panoply2\0\0\0\0\0\0\0\0value", b""] {
            fs::write(&file, damaged).unwrap();
            assert_eq!(cache.read(b"key"), None);
        }
        cache.write(b"key", b"");
        assert_eq!(cache.read(b"key").as_deref(), Some(&b""[..]));
        // No temporary file is left behind.
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn the_least_recently_used_go_first() {
        let folder = scratch("evict");
        let cache = Cache::open_in(folder.clone()).unwrap();
        let start = SystemTime::now() - Duration::from_secs(1000);
        for number in 0..20_u8 {
            cache.write(&[number], &[number; 100]);
            let file = fs::File::options().append(true).open(cache.file(&[number])).unwrap();
            file.set_modified(start + Duration::from_secs(u64::from(number))).unwrap();
        }
        cache.evict(20, u64::MAX);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 20);
        cache.evict(16, u64::MAX);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 12);
        cache.evict(16, 116 * 8);
        let left: Vec<u8> = (0..20).filter(|number| cache.read(&[*number]).is_some()).collect();
        assert_eq!(left, [14, 15, 16, 17, 18, 19]);
        fs::remove_dir_all(folder).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn nobody_else_may_look_into_it() {
        use std::os::unix::fs::PermissionsExt;
        let folder = scratch("mode");
        fs::create_dir_all(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        let cache = Cache::open_in(folder.join("kernels")).unwrap();
        cache.write(b"key", b"value");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&folder.join("kernels")), mode(&cache.file(b"key"))), (0o700, 0o600));
        fs::set_permissions(folder.join("kernels"), fs::Permissions::from_mode(0o755)).unwrap();
        assert!(private_folder(&folder.join("kernels")).is_ok());
        assert_eq!(mode(&folder.join("kernels")), 0o700);
        // A file where the folder should be, and a folder of another user.
        let error = Cache::open_in(cache.file(b"key")).unwrap_err();
        assert!(matches!(error, CacheError::Unusable { .. }), "{error}");
        if !rustix::process::geteuid().is_root() {
            let error = private_folder(Path::new("/usr")).unwrap_err();
            assert!(matches!(error, CacheError::NotOurs { owner: 0, .. }), "{error}");
        } else {
            println!("skipped: root owns every folder that is surely there");
        }
        fs::remove_dir_all(folder).unwrap();
    }
}
