//! Damage to head, log and root keys: each altered byte is repaired without loss, or reported. With
//! the root keys and the extents alone every object is found again.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{Random, TempFolder, copy, create, files, is_intact, key, open, options, read, runtime};
use panoply_conformance::few_or_all;
use panoply_store::{Error, MasterKey, Options, Repair, RepairOptions, Store};

const LOOK: RepairOptions = RepairOptions { apply: false, new_anchor: false };
const APPLY: RepairOptions = RepairOptions { apply: true, new_anchor: false };

type Contents = BTreeMap<String, Vec<u8>>;

fn contents(store: &Store) -> Contents {
    store.entries().map(|entry| (entry.name.clone(), read(store, &entry.name).unwrap())).collect()
}

/// A small store with a history: objects of several extents, an empty one, one replaced, one
/// removed, rotated keys, one appended to.
fn filled(folder: &Path) -> Contents {
    filled_with(folder, &key(1))
}

fn filled_with(folder: &Path, key: &MasterKey) -> Contents {
    let mut store = Store::create(runtime(), folder, key, options()).unwrap();
    let mut random = Random(5);
    store.put("one", &mut &random.bytes(30)[..], false).unwrap();
    store.put("many/three", &mut &random.bytes(2500)[..], false).unwrap();
    store.put("gone", &mut &random.bytes(30)[..], false).unwrap();
    store.rotate(key).unwrap();
    store.put("empty", &mut &b""[..], false).unwrap();
    store.put("one", &mut &random.bytes(40)[..], true).unwrap();
    store.append("one", &mut &random.bytes(1120)[..]).unwrap();
    store.append("empty", &mut &b""[..]).unwrap();
    store.remove("gone").unwrap();
    contents(&store)
}

fn repair(folder: &Path, wanted: RepairOptions) -> Result<Repair, Error> {
    Store::repair(runtime(), folder, &key(1), &options(), wanted)
}

fn reader(folder: &Path) -> Result<Store, Error> {
    Store::open_read_only(runtime(), folder, &key(1), options())
}

/// Start and end of each copy of a head, by its own lengths.
fn head_ends(bytes: &[u8]) -> Vec<(usize, usize)> {
    let front = 16 + 16 + 29 + 16;
    let len = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    let block = bytes.len() / 2;
    let end = |start: usize| {
        let keys = start + front;
        let state = keys + 4 + len(keys);
        state + 4 + len(state)
    };
    [0, block].into_iter().map(|start| (start, end(start))).collect()
}

/// Odd and not the size of a field, so that the places lie differently in each record.
const SHORT_STEP: usize = 5;

/// Offsets to alter: all, except most of the zeros behind the copies of a head.
fn places(file: &Path, bytes: &[u8]) -> Vec<usize> {
    if file.to_string_lossy().contains("catalog-") {
        return (0..bytes.len()).collect();
    }
    let ends = head_ends(bytes);
    let counts = |place: usize| ends.iter().any(|(start, end)| (*start..*end).contains(&place));
    (0..bytes.len()).filter(|place| counts(*place) || place % 509 == 0).collect()
}

fn logs(folder: &Path) -> Vec<PathBuf> {
    files(folder).into_iter().filter(|file| file.to_string_lossy().contains("catalog-")).collect()
}

/// The files that hold the current state.
fn counting(folder: &Path) -> Vec<PathBuf> {
    let mut found = logs(folder);
    found.extend([folder.join("HEAD"), folder.join("data/KEYS")]);
    found
}

/// Regression: one flipped byte of the log or of HEAD made every object unreadable.
#[test]
fn every_altered_byte_of_head_and_log_is_made_good() {
    alter_every_byte(&key(1), 16);
}

/// A passphrase adds fields to the head: its cost and its salt.
#[test]
fn every_altered_byte_of_a_store_with_a_passphrase_is_made_good() {
    alter_every_byte(&MasterKey::passphrase(b"open sesame".to_vec()).unwrap(), 43);
}

/// Alters every byte, one at a time, or every [`SHORT_STEP`]-th in a short run. At every
/// `mended`-th of these a writer repairs the store.
fn alter_every_byte(key: &MasterKey, mended: usize) {
    let (folder, work) = (TempFolder::new("repair-flip"), TempFolder::new("repair-flip-work"));
    let expected = filled_with(&folder.0, key);
    let reader = |folder: &Path| Store::open_read_only(runtime(), folder, key, options());
    let open = |folder: &Path| Store::open(runtime(), folder, key, options());
    let repair = |folder: &Path, wanted| Store::repair(runtime(), folder, key, &options(), wanted);
    let mut count = 0;
    for file in counting(&folder.0) {
        let bytes = fs::read(&file).unwrap();
        for place in places(&file, &bytes).into_iter().step_by(few_or_all(SHORT_STEP, 1)) {
            let mut altered = bytes.clone();
            altered[place] ^= 1 << (place % 8);
            fs::write(&file, &altered).unwrap();
            let what = || format!("{} at byte {place}", file.display());
            let store = reader(&folder.0).unwrap_or_else(|error| panic!("{}: {error}", what()));
            assert!(!store.damaged_copies().is_empty(), "{} is not named", what());
            assert!(contents(&store) == expected, "{}", what());
            count += 1;
            drop(store);
            if place % mended == 0 {
                // A writer repairs it permanently.
                copy(&folder.0, &work.0);
                assert!(!repair(&work.0, LOOK).unwrap().findings.is_empty(), "{}", what());
                drop(open(&work.0).unwrap());
                let store = open(&work.0).unwrap();
                assert!(store.damaged_copies().is_empty() && contents(&store) == expected, "{}", what());
                assert_eq!(files(&work.0).len(), files(&folder.0).len(), "{}", what());
            }
        }
        fs::write(&file, &bytes).unwrap();
        for len in [0, 1, bytes.len() / 2, bytes.len() - 1] {
            fs::write(&file, &bytes[..len]).unwrap();
            let opened = reader(&folder.0).map(|store| (contents(&store), store.damaged_copies().len()));
            match opened {
                Ok((found, damaged)) => assert!(found == expected && damaged > 0, "{} cut to {len}", file.display()),
                Err(error) => assert!(matches!(error, Error::Damaged { .. }) && len < 4096, "{error}"),
            }
        }
        fs::write(&file, &bytes).unwrap();
    }
    assert!(reader(&folder.0).unwrap().damaged_copies().is_empty());
    println!("{count} bytes altered, one at a time");
    assert!(count > few_or_all(1500 / SHORT_STEP, 1500), "{count}");
}

/// Both copies altered at the same byte: repaired from the extents, or reported. Nothing wrong is
/// ever handed out.
#[test]
fn what_is_damaged_in_both_copies_is_repaired_or_named() {
    let (folder, work) = (TempFolder::new("repair-both"), TempFolder::new("repair-both-work"));
    let expected = filled(&folder.0);
    let (len, half) = (fs::read(&logs(&folder.0)[0]).unwrap().len(), 4096);
    let head_len = 16 + 16 + 29 + 16 + 4 + 32 + 4 + 2 * 36 + 16 + 4 + 32 + 56 + 16;
    let both: Vec<(bool, usize)> = (0..len).step_by(23).map(|place| (true, place)).collect();
    let heads = (0..head_len).step_by(7).map(|place| (false, place));
    for (is_log, place) in both.into_iter().chain(heads) {
        copy(&folder.0, &work.0);
        let flip = |file: &Path, place: usize| {
            let mut bytes = fs::read(file).unwrap();
            bytes[place] ^= 1 << (place % 8);
            fs::write(file, bytes).unwrap();
        };
        match is_log {
            true => logs(&work.0).iter().for_each(|log| flip(log, place)),
            false => [0, half].iter().for_each(|start| flip(&work.0.join("HEAD"), start + place)),
        }
        let what = format!("{} byte {place}", if is_log { "log" } else { "HEAD" });
        assert!(reader(&work.0).is_err(), "{what}");
        let before = files(&work.0);
        let looked = repair(&work.0, LOOK).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(!looked.applied && !looked.findings.is_empty() && files(&work.0) == before, "{what}");
        let repaired = repair(&work.0, APPLY).unwrap();
        assert!(repaired.applied && !repaired.is_proved, "{what}");
        let store = open(&work.0).unwrap();
        assert!(contents(&store) == expected && is_intact(&store), "{what}: {repaired:?}");
        assert_eq!(repaired.objects, expected.len() as u64);
        drop(store);
        assert!(repair(&work.0, LOOK).unwrap().findings.is_empty(), "{what}");
    }
}

/// Recovery from the key and the data folder alone.
#[test]
fn objects_are_found_again_by_their_extents_alone() {
    let (folder, bare) = (TempFolder::new("repair-bare"), TempFolder::new("repair-bare-copy"));
    let expected = filled(&folder.0);
    for keep_log in [false, true] {
        let _ = fs::remove_dir_all(&bare.0);
        copy(&folder.0, &bare.0);
        fs::remove_file(bare.0.join("HEAD")).unwrap();
        if !keep_log {
            logs(&bare.0).iter().for_each(|log| fs::remove_file(log).unwrap());
        }
        assert!(matches!(open(&bare.0), Err(Error::Damaged { path, .. }) if path.ends_with("HEAD")));
        assert!(matches!(Store::create(runtime(), &bare.0, &key(1), options()), Err(Error::AlreadyExists { .. })));
        let wrong = Store::repair(runtime(), &bare.0, &key(2), &options(), LOOK);
        assert!(matches!(wrong, Err(Error::WrongKey { .. })));
        let repaired = repair(&bare.0, APPLY).unwrap();
        assert!(repaired.lost.is_empty() && !repaired.is_proved && repaired.files_aside == 0, "{repaired:?}");
        let mut names: Vec<&String> = expected.keys().collect();
        names.retain(|_| !keep_log);
        assert_eq!(repaired.found.iter().collect::<Vec<_>>(), names);
        let mut store = open(&bare.0).unwrap();
        assert!(contents(&store) == expected && is_intact(&store));
        // The result is a normal store.
        store.append("many/three", &mut &b"more"[..]).unwrap();
        store.rotate(&key(3)).unwrap();
        drop(store);
        let store = Store::open(runtime(), &bare.0, &key(3), options()).unwrap();
        assert!(read(&store, "many/three").unwrap().ends_with(b"more") && is_intact(&store));
    }
}

/// Extents that are missing, altered or of an unfinished change are reported and set aside, never
/// joined wrongly.
#[test]
fn objects_that_are_not_whole_are_named_and_nothing_is_deleted() {
    let (folder, bare) = (TempFolder::new("repair-parts"), TempFolder::new("repair-parts-copy"));
    let expected = filled(&folder.0);
    let extents: Vec<PathBuf> =
        files(&folder.0.join("data")).into_iter().filter(|file| !file.ends_with("KEYS")).collect();
    for (number, extent) in extents.iter().enumerate() {
        for way in 0..3 {
            let _ = fs::remove_dir_all(&bare.0);
            copy(&folder.0, &bare.0);
            fs::remove_file(bare.0.join("HEAD")).unwrap();
            logs(&bare.0).iter().for_each(|log| fs::remove_file(log).unwrap());
            let file = bare.0.join("data").join(extent.file_name().unwrap());
            match way {
                0 => fs::remove_file(&file).unwrap(),
                1 => fs::write(&file, &fs::read(&file).unwrap()[..40]).unwrap(),
                _ => {
                    let mut bytes = fs::read(&file).unwrap();
                    bytes[70] ^= 1;
                    fs::write(&file, bytes).unwrap();
                }
            }
            let count = files(&bare.0).len();
            let repaired = repair(&bare.0, APPLY).unwrap();
            assert_eq!(files(&bare.0).len(), count + 3, "extent {number}, way {way}: {repaired:?}");
            let store = open(&bare.0).unwrap();
            let found = contents(&store);
            assert!(is_intact(&store) && found != expected);
            for (name, content) in &found {
                // Either without the incomplete append, or as it was.
                let is_whole = expected[name] == *content;
                let is_before = name == "one" && content.len() == 40 && expected[name].starts_with(content);
                assert!(is_whole || is_before, "extent {number}, way {way}: {name} {repaired:?}");
            }
            // An object of several extents is reported; one of a single extent leaves an
            // unidentified file, or nothing at all.
            let is_named = !repaired.lost.is_empty() || repaired.files_aside > 0;
            assert!(is_named || way == 0, "extent {number}, way {way}: {repaired:?}");
        }
    }
}

/// Rollback protection: a repair that cannot show that it contains the anchor's point leaves the
/// anchor as it is.
#[test]
fn a_repair_keeps_the_anchor_unless_it_is_told() {
    let (folder, anchor) = (TempFolder::new("repair-anchor"), TempFolder::new("repair-anchor-file"));
    let anchored = || Options { anchor: Some(anchor.0.clone()), ..options() };
    let opened = || Store::open(runtime(), &folder.0, &key(1), anchored());
    let repaired = |wanted| Store::repair(runtime(), &folder.0, &key(1), &anchored(), wanted).unwrap();
    let mut store = Store::create(runtime(), &folder.0, &key(1), anchored()).unwrap();
    store.put("a", &mut &b"a"[..], false).unwrap();
    drop(store);
    // Only HEAD is lost: the log still contains the point.
    fs::remove_file(folder.0.join("HEAD")).unwrap();
    let report = repaired(APPLY);
    assert!(report.is_anchored == Some(true) && !report.is_proved, "{report:?}");
    assert_eq!(read(&opened().unwrap(), "a").unwrap(), b"a");
    // The log is lost as well: the point cannot be checked.
    fs::remove_file(folder.0.join("HEAD")).unwrap();
    logs(&folder.0).iter().for_each(|log| fs::remove_file(log).unwrap());
    let known = fs::read(&anchor.0).unwrap();
    let report = repaired(APPLY);
    assert!(report.applied && report.is_anchored == Some(false), "{report:?}");
    assert_eq!(fs::read(&anchor.0).unwrap(), known);
    let refused = opened();
    let is_guarded = matches!(refused, Err(Error::RolledBack { .. } | Error::AnchorTooOld { .. }));
    assert!(is_guarded, "the anchor still guards it: {refused:?}");
    let report = repaired(RepairOptions { apply: true, new_anchor: true });
    assert!(!report.applied && report.is_anchored == Some(true), "{report:?}");
    assert_eq!(read(&opened().unwrap(), "a").unwrap(), b"a");
    fs::remove_file(&anchor.0).unwrap();
}

/// Heads that were set aside can be opened with the master key of their time: a rotation deletes
/// them.
#[test]
fn a_rotation_leaves_no_head_that_the_old_key_opens() {
    let folder = TempFolder::new("repair-rotate");
    filled(&folder.0);
    let head = folder.0.join("HEAD");
    let mut bytes = fs::read(&head).unwrap();
    [300, 4096 + 300].iter().for_each(|place| bytes[*place] ^= 1);
    fs::write(&head, bytes).unwrap();
    repair(&folder.0, APPLY).unwrap();
    assert!(folder.0.join("HEAD.damaged").exists());
    open(&folder.0).unwrap().rotate(&key(2)).unwrap();
    assert!(!folder.0.join("HEAD.damaged").exists());
    for wanted in [folder.0.join("HEAD"), folder.0.join("data/KEYS")] {
        let _ = fs::remove_file(wanted);
        assert!(matches!(repair(&folder.0, LOOK), Err(Error::WrongKey { .. } | Error::Damaged { .. })));
    }
}

/// A store of the previous format is reported as such.
#[test]
fn a_store_of_another_format_is_refused_as_such() {
    let folder = TempFolder::new("repair-format");
    copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/before-planes"), &folder.0);
    let refused = open(&folder.0).map(|_| ()).unwrap_err();
    assert!(matches!(&refused, Error::UnknownFormat { expected, got: '1', .. } if expected == "2 and 3"), "{refused}");
    assert!(refused.to_string().contains("has format 1"), "{refused}");
}

fn flip_last(file: &Path) {
    let mut bytes = fs::read(file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(file, bytes).unwrap();
}

fn extents(folder: &Path) -> Vec<PathBuf> {
    files(&folder.join("data")).into_iter().filter(|file| !file.ends_with("KEYS")).collect()
}

/// Restores missing extents from a copy of a store.
fn put_back(copy: &Path, folder: &Path) -> usize {
    let mut count = 0;
    for file in extents(copy) {
        let target = folder.join("data").join(file.file_name().unwrap());
        if !target.exists() {
            fs::copy(file, target).unwrap();
            count += 1;
        }
    }
    count
}

fn lose_head_and_logs(folder: &Path) {
    fs::remove_file(folder.join("HEAD")).unwrap();
    logs(folder).iter().for_each(|log| fs::remove_file(log).unwrap());
}

/// Regression: the log proves that an object was removed, but it came back if any later record was
/// lost.
#[test]
fn what_the_log_proves_to_be_gone_stays_gone() {
    for has_head in [true, false] {
        let (folder, before) = (TempFolder::new("repair-gone"), TempFolder::new("repair-gone-before"));
        let mut store = create(&folder.0);
        store.put("a", &mut &b"a"[..], false).unwrap();
        copy(&folder.0, &before.0);
        store.remove("a").unwrap();
        store.put("b", &mut &b"b"[..], false).unwrap();
        drop(store);
        assert_eq!(put_back(&before.0, &folder.0), 1);
        logs(&folder.0).iter().for_each(|log| flip_last(log));
        if !has_head {
            fs::remove_file(folder.0.join("HEAD")).unwrap();
        }
        let repaired = repair(&folder.0, APPLY).unwrap();
        assert!(repaired.found == ["b"] && repaired.files_aside == 1, "{repaired:?}");
        let store = open(&folder.0).unwrap();
        assert_eq!(contents(&store), Contents::from([("b".to_owned(), b"b".to_vec())]));
    }
}

/// Extents beyond the last commit in HEAD never counted.
#[test]
fn what_head_proves_never_to_have_counted_is_set_aside() {
    let (folder, other) = (TempFolder::new("repair-beyond"), TempFolder::new("repair-beyond-other"));
    let mut store = create(&folder.0);
    store.put("a", &mut &b"a"[..], false).unwrap();
    drop(store);
    copy(&folder.0, &other.0);
    open(&other.0).unwrap().put("b", &mut &b"b"[..], false).unwrap();
    assert_eq!(put_back(&other.0, &folder.0), 1);
    logs(&folder.0).iter().for_each(|log| flip_last(log));
    let repaired = repair(&folder.0, APPLY).unwrap();
    assert!(repaired.found == ["a"] && repaired.files_aside == 1, "{repaired:?}");
}

/// Regression: an append that was given up, and a later one that counted, were joined to bytes that
/// never existed.
#[test]
fn an_append_is_taken_whole_or_not_at_all() {
    let (folder, before) = (TempFolder::new("repair-append"), TempFolder::new("repair-append-before"));
    let mut random = Random(3);
    let parts = [random.bytes(500), random.bytes(1900), random.bytes(700), random.bytes(60)];
    let mut store = create(&folder.0);
    store.put("a", &mut &parts[0][..], false).unwrap();
    let mut given_up = store.batch().unwrap();
    given_up.append("a", &mut &parts[1][..]).unwrap();
    copy(&folder.0, &before.0);
    drop(given_up);
    store.put("other", &mut &b"other"[..], false).unwrap();
    store.append("a", &mut &parts[2][..]).unwrap();
    let committed = extents(&folder.0);
    store.append("a", &mut &parts[3][..]).unwrap();
    drop(store);
    assert_eq!(put_back(&before.0, &folder.0), 2);
    lose_head_and_logs(&folder.0);
    let repaired = TempFolder::new("repair-append-repaired");
    copy(&folder.0, &repaired.0);
    repair(&repaired.0, APPLY).unwrap();
    let store = open(&repaired.0).unwrap();
    assert!(contents(&store)["a"] == [&parts[0][..], &parts[2], &parts[3]].concat() && is_intact(&store));
    drop(store);
    // If the append that counted is lost, the one behind it shows that the given-up append never
    // counted.
    let other = extents(&before.0);
    for file in committed.iter().filter(|file| !other.iter().any(|other| other.file_name() == file.file_name())) {
        if fs::metadata(file).unwrap().len() > 400 {
            fs::remove_file(file).unwrap();
        }
    }
    let report = repair(&folder.0, APPLY).unwrap();
    assert_eq!(contents(&open(&folder.0).unwrap())["a"], parts[0], "{report:?}");
    assert!(report.lost.iter().any(|(name, _)| name == "a"), "{report:?}");
}

/// Someone with an old master key, and a copy of its time, can seal extents of any generation, but
/// only under the root keys of that time.
#[test]
fn extents_of_an_old_key_do_not_replace_later_ones() {
    let (folder, old) = (TempFolder::new("repair-epoch"), TempFolder::new("repair-epoch-old"));
    let mut store = create(&folder.0);
    store.put("kept", &mut &b"kept"[..], false).unwrap();
    store.put("a", &mut &b"first"[..], false).unwrap();
    copy(&folder.0, &old.0);
    store.rotate(&key(2)).unwrap();
    store.put("a", &mut &b"second"[..], true).unwrap();
    drop(store);
    let mut forger = open(&old.0).unwrap();
    for _ in 0..9 {
        forger.put("a", &mut &b"forged"[..], true).unwrap();
    }
    forger.put("b", &mut &b"forged"[..], false).unwrap();
    drop(forger);
    lose_head_and_logs(&folder.0);
    assert_eq!(put_back(&old.0, &folder.0), 2);
    let repaired = Store::repair(runtime(), &folder.0, &key(2), &options(), APPLY).unwrap();
    assert!(repaired.files_aside == 2, "{repaired:?}");
    let store = Store::open(runtime(), &folder.0, &key(2), options()).unwrap();
    let expected = [("a", &b"second"[..]), ("kept", b"kept")].map(|(name, bytes)| (name.to_owned(), bytes.to_vec()));
    assert_eq!(contents(&store), Contents::from(expected));
}

/// Two copies of HEAD that ask for different work cost together no more than one may.
#[test]
fn copies_of_a_head_that_differ_share_what_may_be_spent() {
    let folder = TempFolder::new("repair-cost");
    let passphrase = MasterKey::passphrase(b"open sesame".to_vec()).unwrap();
    drop(Store::create(runtime(), &folder.0, &passphrase, options()).unwrap());
    let head = folder.0.join("HEAD");
    let whole = fs::read(&head).unwrap();
    let with_passes = |first: u32, second: u32| {
        let mut bytes = whole.clone();
        for (start, passes) in [(0, first), (bytes.len() / 2, second)] {
            bytes[start + 37..start + 41].copy_from_slice(&passes.to_le_bytes());
        }
        fs::write(&head, bytes).unwrap();
        Store::open_read_only(runtime(), &folder.0, &passphrase, options()).map(|_| ())
    };
    // 8 KiB a pass; the limit is 768 MiB.
    let refused = with_passes(60_000, 50_000);
    assert!(matches!(refused, Err(Error::WrongKey { .. })), "{refused:?}");
    // The unaltered copy is read, in either place, for any number of passes in the other.
    with_passes(98_000, 1).unwrap();
    with_passes(1, 98_000).unwrap();
    with_passes(200_000, 1).unwrap();
}

/// Another store with the same key: its HEAD is authentic, but the root keys beside the data are
/// not its own. Nothing is written, and the right state comes back once the foreign HEAD is gone.
#[test]
fn the_head_of_another_store_costs_nothing() {
    let (folder, other) = (TempFolder::new("repair-own"), TempFolder::new("repair-other"));
    filled(&folder.0);
    filled(&other.0);
    let names: Vec<String> = contents(&open(&folder.0).unwrap()).into_keys().collect();
    let keys = fs::read(folder.0.join("data/KEYS")).unwrap();
    fs::copy(other.0.join("HEAD"), folder.0.join("HEAD")).unwrap();
    logs(&folder.0).iter().for_each(|log| fs::remove_file(log).unwrap());
    for log in logs(&other.0) {
        fs::copy(&log, folder.0.join(log.file_name().unwrap())).unwrap();
    }
    let is_refused = |error: Error| error.to_string().contains("another store");
    assert!(is_refused(open(&folder.0).unwrap_err()) && is_refused(repair(&folder.0, APPLY).unwrap_err()));
    assert_eq!(fs::read(folder.0.join("data/KEYS")).unwrap(), keys);
    fs::remove_file(folder.0.join("HEAD")).unwrap();
    logs(&folder.0).iter().for_each(|log| fs::remove_file(log).unwrap());
    assert!(repair(&folder.0, APPLY).unwrap().applied);
    assert!(contents(&open(&folder.0).unwrap()).into_keys().eq(names));
}

/// A file that is named as the anchor by mistake, such as the key, is never replaced.
#[test]
fn a_file_that_is_no_anchor_is_not_replaced() {
    let folder = TempFolder::new("repair-anchor-key");
    filled(&folder.0);
    let file = TempFolder::new("repair-anchor-file");
    fs::write(&file.0, "the only key").unwrap();
    let options = Options { anchor: Some(file.0.clone()), ..Options::default() };
    let wanted = RepairOptions { apply: true, new_anchor: true };
    let refused = Store::repair(runtime(), &folder.0, &key(1), &options, wanted);
    assert!(matches!(refused, Err(Error::NotAnAnchor { .. })), "{refused:?}");
    assert_eq!(fs::read(&file.0).unwrap(), b"the only key");
    fs::remove_file(&file.0).unwrap();
}

/// Damage to the id in both copies of the root keys does not make them those of another store.
#[test]
fn root_keys_with_a_damaged_id_are_mended_by_the_next_writer() {
    let whole = TempFolder::new("repair-id");
    let expected = filled(&whole.0);
    let damages: [fn(&mut Vec<u8>); 4] = [
        |keys| (keys[16], keys[4096]) = (keys[16] ^ 1, keys[4096] ^ 1),
        |keys| (keys[20], keys[4116]) = (keys[20] ^ 1, keys[4116] ^ 1),
        |keys| {
            keys[16] ^= 1;
            keys.truncate(4096);
        },
        |keys| keys[16..4112].fill(0),
    ];
    for (number, damage) in damages.into_iter().enumerate() {
        let folder = TempFolder::new("repair-id-damaged");
        copy(&whole.0, &folder.0);
        let path = folder.0.join("data/KEYS");
        let mut keys = fs::read(&path).unwrap();
        damage(&mut keys);
        fs::write(&path, &keys).unwrap();
        let mut store = open(&folder.0).unwrap_or_else(|error| panic!("{number}: {error}"));
        store.put("new", &mut &b"new"[..], false).unwrap_or_else(|error| panic!("{number}: {error}"));
        store.remove("new").unwrap();
        drop(store);
        let store = open(&folder.0).unwrap();
        assert_eq!(store.damaged_copies().len(), 0, "{number}: the root keys are whole again");
        assert_eq!(contents(&store), expected, "{number}");
    }
}
