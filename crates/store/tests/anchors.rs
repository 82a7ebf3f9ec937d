//! Anchors' files beside the anchors.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::fs::{self, File};
use std::path::Path;

use crate::support::{TempFolder, create, key, options, runtime};
use panoply_store::{Options, RepairOptions, Store};

/// The names in a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<String> = fs::read_dir(folder).unwrap().map(name).collect();
    names.sort();
    names
}

/// Regression: a writer that was killed between writing and renaming left its new anchor behind for
/// ever.
#[test]
fn the_next_command_removes_the_new_anchors_of_killed_writers() {
    let (folder, place) = (TempFolder::new("left-anchors"), TempFolder::new("left-anchors-place"));
    let by_id = place.0.join("by-id");
    fs::create_dir_all(&by_id).unwrap();
    let anchored = || Options { anchor: Some(place.0.join("anchor")), anchor_folder: Some(by_id.clone()), ..options() };
    let id = Store::create(runtime(), &folder.0, &key(1), anchored()).unwrap().id();
    let left = [place.0.join("anchor.0123456789abcdef.new"), by_id.join(format!("{id}.fedcba9876543210.new"))];
    let wanted = RepairOptions { apply: true, new_anchor: false };
    let commands: [&dyn Fn(); 4] = [
        &|| drop(Store::open_read_only(runtime(), &folder.0, &key(1), anchored()).unwrap()),
        &|| drop(Store::open(runtime(), &folder.0, &key(1), anchored()).unwrap()),
        &|| drop(Store::repair(runtime(), &folder.0, &key(1), &anchored(), wanted).unwrap()),
        &|| {
            let again = TempFolder::new("left-anchors-again");
            drop(Store::create(runtime(), &again.0, &key(1), Options { anchor_folder: None, ..anchored() }).unwrap());
        },
    ];
    for (number, command) in commands.iter().enumerate() {
        fs::write(&left[0], "panoply store anch").unwrap();
        fs::write(&left[1], "").unwrap();
        command();
        assert!(!left[0].exists(), "command {number}");
        // The last one is about another store.
        assert_eq!(left[1].exists(), number == 3, "command {number}");
    }
    // A repair with `apply: false` changes nothing.
    let look = RepairOptions { apply: false, new_anchor: false };
    let _ = Store::repair(runtime(), &folder.0, &key(1), &anchored(), look).unwrap();
    assert!(left[1].exists());
}

/// Only new files of killed writers are removed: a locked one, one of another name, and anything
/// that is no regular file stay.
#[test]
#[cfg(unix)]
fn other_files_beside_an_anchor_stay() {
    let (folder, place) = (TempFolder::new("other-files"), TempFolder::new("other-files-place"));
    fs::create_dir_all(&place.0).unwrap();
    drop(create(&folder.0));
    let path = |name: &str| place.0.join(name);
    let kept = [
        "anchor.0123456789abcde.new",
        "anchor.0123456789abcdeg.new",
        "anchor.0123456789ABCDEF.new",
        "anchor.new",
        "anchor2.0123456789abcdef.new",
        "2anchor.0123456789abcdef.new",
        "anchor.0123456789abcdef.new.old",
    ];
    kept.iter().for_each(|name| fs::write(path(name), "").unwrap());
    fs::create_dir(path("anchor.0000000000000001.new")).unwrap();
    std::os::unix::fs::symlink("anchor.new", path("anchor.0000000000000002.new")).unwrap();
    let held = File::create(path("anchor.0000000000000003.new")).unwrap();
    held.lock().unwrap();
    let before = names(&place.0);
    let open = || {
        let anchored = Options { anchor: Some(path("anchor")), ..options() };
        drop(Store::open(runtime(), &folder.0, &key(1), anchored).unwrap());
    };
    open();
    fs::remove_file(path("anchor")).unwrap();
    assert_eq!(names(&place.0), before);
    // Its writer has ended.
    drop(held);
    open();
    assert!(!path("anchor.0000000000000003.new").exists() && path("anchor.0000000000000002.new").is_symlink());
}
