//! `panoply store` where another writer changes the store in spite of the locks.
#![cfg(unix)]
#![allow(clippy::unwrap_used)] // A test that cannot go on should say where.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use crate::store::support::{Folder, with_input};
use crate::store_safety::told;

/// Copies the files of a folder, over existing ones.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), &target).unwrap()),
        }
    }
}

/// Regression: the error said that the change was not made, and that it is unknown whether it was.
#[test]
fn a_put_that_was_overtaken_says_what_was_not_stored() {
    let folder = Folder::new("overtaken");
    let with = |arguments: &[&str]| folder.command(&Folder::keyed(&[arguments, &["--no-anchor"]].concat()));
    assert!(with_input(with(&["put", "safe", "-", "--name", "before"]), b"before").status.success());
    copy(&folder.path("safe"), &folder.path("other"));
    assert!(with_input(with(&["put", "other", "-", "--name", "second"]), b"second").status.success());
    let mut command = with(&["put", "safe", "-", "--name", "first"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    // More bytes than a pipe holds, so the command has begun to read, and has the store open.
    input.write_all(&[7; 3_000_000]).unwrap();
    copy(&folder.path("other"), &folder.path("safe"));
    drop(input);
    let (code, complaint) = told(&child.wait_with_output().unwrap());
    assert_eq!(code, Some(1), "{complaint}");
    assert!(complaint.contains("another writer has changed") && complaint.contains("safe/"), "{complaint}");
    assert!(complaint.contains("`first` was not stored, and the store is as the other writer left it"), "{complaint}");
    assert!(complaint.contains("open the store again, and repeat the change"), "{complaint}");
    assert!(!complaint.contains("unknown") && !complaint.contains("may "), "{complaint}");
    let listed = String::from_utf8(with(&["ls", "safe"]).output().unwrap().stdout).unwrap();
    assert!(listed.contains("before") && listed.contains("second") && !listed.contains("first"), "{listed}");
}
