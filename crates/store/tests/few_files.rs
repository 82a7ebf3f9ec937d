//! A process without free file descriptors gets the system's error from a store. Nothing is
//! repaired or discarded.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

mod support;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;

use panoply_store::{Error, RepairOptions, Store};
use support::{Random, TempFolder, copy, create, files, key, open, options, read, runtime};

const FOLDER: &str = "PANOPLY_STORE_FEW_FILES";
const TEST: &str = "too_many_open_files_are_named_as_such";
/// With this many more files everything succeeds.
const FREE_MAX: u64 = 12;
const APPLY: RepairOptions = RepairOptions { apply: true, new_anchor: false };
const LOOK: RepairOptions = RepairOptions { apply: false, new_anchor: false };

type Contents = BTreeMap<String, Vec<u8>>;

fn contents(store: &Store) -> Result<Contents, Error> {
    store.entries().map(|entry| Ok((entry.name.clone(), read(store, &entry.name)?))).collect()
}

/// Runs `work` while only `free` more files can be opened.
#[allow(unsafe_code)]
fn with_few<T>(free: u64, work: impl FnOnce() -> T) -> T {
    let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `before` is a valid structure to fill.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut before) }, 0);
    // Fills all free descriptors below `highest`, so that the limit is the next descriptor.
    let highest = fs::read_dir("/proc/self/fd").unwrap().count() as i32 + 64;
    let mut fillers = vec![File::open("/dev/null").unwrap()];
    while fillers.last().unwrap().as_raw_fd() < highest {
        fillers.push(File::open("/dev/null").unwrap());
    }
    let limit = libc::rlimit { rlim_cur: highest as u64 + 1 + free, ..before };
    // SAFETY: both structures are valid.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
    let result = work();
    // SAFETY: as above.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const before) }, 0);
    result
}

fn expect_system<T>(result: Result<T, Error>, what: &str) -> Option<T> {
    match result {
        Ok(done) => Some(done),
        Err(Error::Io { source, .. }) if source.raw_os_error() == Some(libc::EMFILE) => None,
        Err(error) => panic!("{what}: {error:?}"),
    }
}

/// Whether the store is as it was, with all limits lifted.
fn expect_whole(folder: &Path, expected: &Contents, what: &str) {
    let store = open(folder).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(store.damaged_copies().is_empty(), "{what}: {:?}", store.damaged_copies());
    assert!(contents(&store).unwrap() == *expected, "{what}");
    let is_aside = |file: &std::path::PathBuf| file.to_string_lossy().ends_with(".damaged");
    assert!(!files(folder).iter().any(is_aside), "{what}: something was set aside");
}

fn run(folder: &Path) {
    let mut random = Random(4);
    let mut store = create(folder);
    store.put("a", &mut &random.bytes(2500)[..], false).unwrap();
    store.put("b", &mut &random.bytes(60)[..], false).unwrap();
    store.append("b", &mut &random.bytes(90)[..]).unwrap();
    let expected = contents(&store).unwrap();
    drop(store);
    let mut failed = 0;
    for free in 0..=FREE_MAX {
        let what = |step: &str| format!("{step} with {free} files");
        let read = with_few(free, || {
            let store = Store::open_read_only(runtime(), folder, &key(1), options())?;
            assert!(store.damaged_copies().is_empty(), "{:?}", store.damaged_copies());
            contents(&store)
        });
        let read = expect_system(read, &what("reading"));
        assert!(read.as_ref().is_none_or(|found| *found == expected));
        failed += u64::from(read.is_none());
        let verified =
            with_few(free, || Store::open_read_only(runtime(), folder, &key(1), options())?.verify(&mut |_, _| ()));
        let verified = expect_system(verified, &what("verifying"));
        assert!(verified.is_none_or(|found| found.damaged.is_empty()), "{}", what("verifying"));
        // Open before the limit: the extents alone are read under it.
        let store = Store::open_read_only(runtime(), folder, &key(1), options()).unwrap();
        let found = expect_system(with_few(free, || store.verify(&mut |_, _| ())), &what("verifying late"));
        assert!(found.is_none_or(|found| found.damaged.is_empty()));
        drop(store);
        for wanted in [LOOK, APPLY] {
            let repaired = with_few(free, || Store::repair(runtime(), folder, &key(1), &options(), wanted));
            let repaired = expect_system(repaired, &what("repairing"));
            assert!(repaired.is_none_or(|report| report.findings.is_empty() && !report.applied));
            expect_whole(folder, &expected, &what("repairing"));
        }
        expect_system(with_few(free, || open(folder).map(drop)), &what("opening"));
        expect_whole(folder, &expected, &what("opening"));
        // A damaged store: a repair that has failed is made good by the next.
        let work = folder.with_extension("work");
        copy(folder, &work);
        fs::remove_file(work.join("HEAD")).unwrap();
        let repaired = with_few(free, || Store::repair(runtime(), &work, &key(1), &options(), APPLY));
        expect_system(repaired, &what("repairing without HEAD"));
        let report = Store::repair(runtime(), &work, &key(1), &options(), APPLY).unwrap();
        assert!(report.lost.is_empty(), "{}: {report:?}", what("repairing again"));
        assert!(contents(&open(&work).unwrap()).unwrap() == expected, "{}: {report:?}", what("repairing again"));
        let mut store = open(folder).unwrap();
        let put = with_few(free, || store.put("b", &mut &expected["b"][..], true));
        expect_system(put, &what("putting"));
        drop(store);
        expect_whole(folder, &expected, &what("putting"));
        fs::remove_dir_all(&work).unwrap();
    }
    assert!(failed > 2 && failed < FREE_MAX, "{failed} of {FREE_MAX}");
    println!("{failed} limits were too few to read");
}

#[test]
fn too_many_open_files_are_named_as_such() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return run(Path::new(&folder));
    }
    let folder = TempFolder::new("few-files");
    let mut child = Command::new(std::env::current_exe().unwrap());
    let output = child.args([TEST, "--exact", "--nocapture"]).env(FOLDER, &folder.0).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("too few to read"), "{said}");
}
