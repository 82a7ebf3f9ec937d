//! New files of keys: complete, or not there.
#![cfg(unix)]
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::fs::{self, File};
use std::path::Path;

use crate::support::{TempFolder, key};
use panoply_store::{Error, MasterKey};

/// The names in a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<String> = fs::read_dir(folder).unwrap().map(name).collect();
    names.sort();
    names
}

/// Leftovers of killed writers of this key are removed. Files of a living writer, files with
/// another name, and folders stay.
#[test]
fn the_next_writer_of_a_key_removes_what_killed_ones_have_left() {
    let place = TempFolder::new("keys-left");
    fs::create_dir(&place.0).unwrap();
    let path = |name: &str| place.0.join(name);
    let left = ["a.key.0123456789abcdef.new", "a.key.fedcba9876543210.new"];
    let kept = ["a.key.ABCDEF0123456789.new", "a.key.new", "b.key.0123456789abcdef.new", "a.key.0000000000000002.old"];
    left.iter().chain(&kept).for_each(|name| fs::write(path(name), "0123").unwrap());
    fs::create_dir(path("a.key.0000000000000001.new")).unwrap();
    let held = File::create(path("a.key.0000000000000003.new")).unwrap();
    held.lock().unwrap();
    key(7).write_new_file(&path("a.key")).unwrap();
    let mut expected = [&kept[..], &["a.key", "a.key.0000000000000001.new", "a.key.0000000000000003.new"]].concat();
    expected.sort_unstable();
    assert_eq!(names(&place.0), expected);
    let written = fs::read_to_string(path("a.key")).unwrap();
    assert_eq!(written, format!("{}\n", "07".repeat(32)));
    assert_eq!(
        std::os::unix::fs::PermissionsExt::mode(&fs::metadata(path("a.key")).unwrap().permissions()) & 0o777,
        0o600
    );
    // The key that is there is not replaced. The other writer has ended meanwhile.
    drop(held);
    let refused = key(8).write_new_file(&path("a.key"));
    assert!(matches!(&refused, Err(Error::Io { action: "create", .. })), "{refused:?}");
    assert_eq!(fs::read_to_string(path("a.key")).unwrap(), written);
    expected.retain(|name| *name != "a.key.0000000000000003.new");
    assert_eq!(names(&place.0), expected);
    MasterKey::from_file(&path("a.key")).unwrap();
}

/// A limit on the length of files ends a writer, or its writing, exactly in the middle of a key.
#[cfg(target_os = "linux")]
mod cut_short {
    use super::*;

    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    const FILE: &str = "PANOPLY_STORE_KEY_FILE";
    const SURVIVES: &str = "PANOPLY_STORE_KEY_SURVIVES";
    const FILE_BYTES_MAX: u64 = 10;

    /// Child process: writes a key where files have at most ten bytes.
    #[test]
    #[allow(unsafe_code)]
    fn write_a_key() {
        let Some(file) = std::env::var_os(FILE) else { return };
        let survives = std::env::var_os(SURVIVES).is_some();
        let action = if survives { libc::SIG_IGN } else { libc::SIG_DFL };
        // SAFETY: both actions are predefined ones.
        unsafe { libc::signal(libc::SIGXFSZ, action) };
        for (what, limit) in [(libc::RLIMIT_CORE, 0), (libc::RLIMIT_FSIZE, FILE_BYTES_MAX)] {
            let limit = libc::rlimit { rlim_cur: limit, rlim_max: limit };
            // SAFETY: `limit` is a valid structure.
            assert_eq!(unsafe { libc::setrlimit(what, &raw const limit) }, 0);
        }
        let written = key(7).write_new_file(Path::new(&file));
        assert!(matches!(written, Err(Error::DiskFull { .. })), "{written:?}");
    }

    fn child(file: &Path) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["keys::cut_short::write_a_key", "--exact", "--nocapture"]).env(FILE, file);
        command
    }

    /// Regression: a writer that was killed in the middle left a short key under its final name,
    /// which stopped every later attempt to make the key.
    #[test]
    fn a_killed_writer_leaves_no_short_key() {
        let place = TempFolder::new("keys-killed");
        fs::create_dir(&place.0).unwrap();
        let file = place.0.join("a.key");
        let killed = child(&file).output().unwrap();
        assert_eq!(killed.status.signal(), Some(libc::SIGXFSZ), "{killed:?}");
        let left = names(&place.0);
        let lens: Vec<u64> = left.iter().map(|name| fs::metadata(place.0.join(name)).unwrap().len()).collect();
        assert!(!file.exists() && lens == [FILE_BYTES_MAX], "{left:?} {lens:?}");
        key(7).write_new_file(&file).unwrap();
        assert_eq!(names(&place.0), ["a.key"]);
        MasterKey::from_file(&file).unwrap();
    }

    /// Regression: the same for a disk that was full.
    #[test]
    fn a_failed_writer_leaves_nothing() {
        let place = TempFolder::new("keys-failed");
        fs::create_dir(&place.0).unwrap();
        let failed = child(&place.0.join("a.key")).env(SURVIVES, "1").output().unwrap();
        assert!(failed.status.success() && names(&place.0).is_empty(), "{failed:?} {:?}", names(&place.0));
    }
}
