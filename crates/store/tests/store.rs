//! A store as a program uses it: its content is compared with a model in memory through every
//! change and reopening.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::support::{Random, TempFolder, copy, create, files, is_intact, key, open, options, read, runtime};
use panoply_core::op::crypto::CryptoOp;
use panoply_core::{Absence, Api, Backend, DeviceInfo, Engine, Op, OpenOptions, Support};
use panoply_cpu::CpuBackend;
use panoply_runtime::Runtime;
use panoply_store::{Error, MasterKey, Options, Store};
use proptest::prelude::*;

#[test]
fn objects_come_back_whole_and_by_range() {
    let folder = TempFolder::new("whole");
    let mut store = create(&folder.0);
    let mut random = Random(1);
    let lens = [0, 1, 99, 100, 101, 999, 1000, 1001, 5432];
    let contents: Vec<(String, Vec<u8>)> = lens.iter().map(|len| (format!("o/{len}"), random.bytes(*len))).collect();
    for (name, content) in &contents {
        let entry = store.put(name, &mut &content[..], false).unwrap();
        assert_eq!((entry.len, entry.extents), (content.len() as u64, content.len().div_ceil(1000).max(1)));
    }
    for reopened in [false, true] {
        if reopened {
            drop(store);
            store = open(&folder.0).unwrap();
        }
        for (name, content) in &contents {
            assert_eq!(read(&store, name).unwrap(), *content);
            for _ in 0..30 {
                let mut ends = [random.below(content.len() as u64 + 1), random.below(content.len() as u64 + 1)];
                ends.sort_unstable();
                let mut part = Vec::new();
                store.read_range(name, ends[0]..ends[1], &mut part).unwrap();
                assert_eq!(part, content[ends[0] as usize..ends[1] as usize]);
            }
            let beyond = store.read_range(name, 0..content.len() as u64 + 1, &mut Vec::new());
            assert!(matches!(beyond, Err(Error::InvalidArgument { what: "range", .. })), "{beyond:?}");
        }
        assert_eq!(store.entries().count(), contents.len());
        assert!(is_intact(&store));
    }
    // No file contains any name or content in plain form.
    for file in files(&folder.0) {
        let bytes = std::fs::read(&file).unwrap();
        assert!(!file.to_string_lossy().contains("5432"));
        assert!(!bytes.windows(40).any(|window| contents[8].1.windows(40).any(|plain| plain == window)));
    }
}

#[test]
fn chunks_are_compressed_where_it_pays() {
    let folder = TempFolder::new("pays");
    let options = Options { chunk_bytes: 64 << 10, extent_bytes_max: 64 << 20, ..options() };
    let mut store = Store::create(runtime(), &folder.0, &key(1), options).unwrap();
    let mut random = Random(2);
    let noise: Vec<u8> = (0..12 << 20).map(|_| random.next() as u8).collect();
    let text = "the quick brown fox ".repeat(300_000).into_bytes();
    // Noise comes first, so that only one chunk of each batch is tried when the text begins.
    let mixed = [&noise[..], &text, &noise].concat();
    let stored = |entry: panoply_store::Entry| entry.stored;
    let noise_stored = stored(store.put("noise", &mut &noise[..], false).unwrap());
    assert!((noise.len() as u64..noise.len() as u64 * 101 / 100).contains(&noise_stored), "{noise_stored}");
    assert!(stored(store.put("text", &mut &text[..], false).unwrap()) < text.len() as u64 / 50);
    let mixed_stored = stored(store.put("mixed", &mut &mixed[..], false).unwrap());
    assert!(mixed_stored < 2 * noise_stored + text.len() as u64 * 9 / 10, "{mixed_stored}");
    for (name, content) in [("noise", &noise), ("text", &text), ("mixed", &mixed)] {
        assert!(read(&store, name).unwrap() == *content);
    }
    assert!(is_intact(&store));
}

#[test]
fn a_source_that_fails_leaves_nothing() {
    struct Failing(usize);
    impl Read for Failing {
        fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
            if self.0 == 0 {
                return Err(std::io::Error::other("the cable was pulled"));
            }
            let len = bytes.len().min(self.0);
            bytes[..len].fill(7);
            self.0 -= len;
            Ok(len)
        }
    }
    let folder = TempFolder::new("failing");
    let mut store = create(&folder.0);
    store.put("kept", &mut &b"kept"[..], false).unwrap();
    let before = files(&folder.0);
    for len in [0, 1, 500, 5000] {
        let failed = store.put("new", &mut Failing(len), false);
        assert!(matches!(&failed, Err(Error::Stream { .. })), "{failed:?}");
        assert!(matches!(store.append("kept", &mut Failing(len)), Err(Error::Stream { .. })));
        assert_eq!(files(&folder.0), before);
    }
    let mut batch = store.batch().unwrap();
    batch.put("a", &mut &b"a"[..], false).unwrap();
    assert!(batch.put("b", &mut Failing(2500), false).is_err());
    batch.put("c", &mut &b"c"[..], false).unwrap();
    batch.commit().unwrap();
    let mut batch = store.batch().unwrap();
    batch.put("dropped", &mut &[1; 5000][..], false).unwrap();
    drop(batch);
    let names: Vec<String> = store.entries().map(|entry| entry.name).collect();
    assert_eq!((names, files(&folder.0).len()), (vec!["a".into(), "c".into(), "kept".into()], before.len() + 2));
    assert!(is_intact(&store));
}

/// The CPU backend, which fails once its number of hashes is used up.
struct Tiring {
    cpu: CpuBackend,
    hashes_left: AtomicU32,
}

impl Backend for Tiring {
    fn api(&self) -> Api {
        self.cpu.api()
    }

    fn discover(&self) -> Result<Vec<DeviceInfo>, Absence> {
        self.cpu.discover()
    }

    fn supports(&self, device: &DeviceInfo, op: &Op) -> Support {
        let is_tired =
            || self.hashes_left.try_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_err();
        match op {
            Op::Crypto(CryptoOp::Hash(_)) if is_tired() => Support::No("tired".to_owned()),
            op => self.cpu.supports(device, op),
        }
    }

    fn inner(&self) -> Option<&dyn Backend> {
        Some(&self.cpu)
    }

    fn open(&self, device: &DeviceInfo, options: &OpenOptions) -> panoply_core::Result<Box<dyn Engine>> {
        self.cpu.open(device, options)
    }
}

/// Regression: if the last hash of an append failed, the pieces before it stayed in the batch.
#[test]
fn an_append_that_fails_anywhere_changes_nothing() {
    let folder = TempFolder::new("append");
    let tiring = Arc::new(Tiring { cpu: CpuBackend::new(), hashes_left: AtomicU32::new(u32::MAX) });
    let runtime = Arc::new(Runtime::builder().backend(tiring.clone()).build().unwrap());
    let mut store = Store::create(runtime, &folder.0, &key(1), options()).unwrap();
    store.put("object", &mut &[5; 1500][..], false).unwrap();
    let (before, more) = (files(&folder.0), [6; 3500]);
    let mut failures = 0;
    for hashes in 0_u32.. {
        assert!(hashes < 1000, "it never succeeds");
        let mut batch = store.batch().unwrap();
        tiring.hashes_left.store(hashes, Ordering::SeqCst);
        let appended = batch.append("object", &mut &more[..]);
        tiring.hashes_left.store(u32::MAX, Ordering::SeqCst);
        if appended.is_ok() {
            batch.commit().unwrap();
            break;
        }
        failures += 1;
        assert!(batch.is_empty(), "after {hashes} hashes");
        batch.commit().unwrap();
        assert_eq!((files(&folder.0), read(&store, "object").unwrap()), (before.clone(), vec![5; 1500]));
    }
    assert!(failures > 5, "{failures}");
    assert_eq!(read(&store, "object").unwrap(), [&[5; 1500][..], &more].concat());
    assert!(is_intact(&store));
}

#[test]
fn many_objects_are_put_at_once() {
    let folder = TempFolder::new("many");
    let mut store = create(&folder.0);
    let contents: Vec<(String, Vec<u8>)> =
        (0..200).map(|number| (format!("o{number:03}"), Random(number).bytes(number as usize * 17))).collect();
    let sources = || contents.iter().map(|(name, content)| (name.clone(), &content[..]));
    let mut batch = store.batch().unwrap();
    let (entries, outcome) = batch.put_many(sources(), false);
    outcome.unwrap();
    assert!(entries.iter().map(|entry| &entry.name).eq(contents.iter().map(|(name, _)| name)));
    batch.commit().unwrap();
    contents.iter().for_each(|(name, content)| assert_eq!(read(&store, name).unwrap(), *content));
    let before = files(&folder.0);

    // An existing name, a name that occurs twice, an invalid name.
    for bad in ["o007", "new 3", "../x"] {
        let names = (0..20).map(|number| if number == 9 { bad.to_owned() } else { format!("new {number}") });
        let mut batch = store.batch().unwrap();
        let (entries, outcome) = batch.put_many(names.map(|name| (name, &[1; 2500][..])), false);
        assert!(outcome.is_err() && entries.len() == 9 && batch.len() == 9, "{bad}: {outcome:?}");
        drop(batch);
        assert_eq!(files(&folder.0), before);
    }
    let mut batch = store.batch().unwrap();
    let (entries, outcome) = batch.put_many(sources().take(5).chain(sources().take(5)), true);
    outcome.unwrap();
    batch.commit().unwrap();
    assert_eq!((entries.len(), files(&folder.0).len(), store.entries().count()), (10, before.len(), 200));
    assert!(is_intact(&store));
}

#[test]
fn wrong_keys_and_passphrases_are_told() {
    let folder = TempFolder::new("wrong");
    drop(create(&folder.0));
    let open_with = |key: &MasterKey| Store::open(runtime(), &folder.0, key, options()).map(|_| ());
    assert!(matches!(open_with(&key(2)), Err(Error::WrongKey { .. })));
    let passphrase = |text: &str| MasterKey::passphrase(text.as_bytes().to_vec()).unwrap();
    assert!(matches!(open_with(&passphrase("x")), Err(Error::KeyKind { expected: "a key", .. })));
    open(&folder.0).unwrap().rotate(&passphrase("correct horse")).unwrap();
    assert!(matches!(open_with(&key(1)), Err(Error::KeyKind { expected: "a passphrase", .. })));
    assert!(matches!(open_with(&passphrase("Correct horse")), Err(Error::WrongKey { .. })));
    open_with(&passphrase("correct horse")).unwrap();
}

#[test]
fn rotation_rewrites_no_data_and_shuts_the_old_key_out() {
    let (folder, old) = (TempFolder::new("rotate"), TempFolder::new("rotate-old"));
    let mut store = create(&folder.0);
    let content = Random(3).bytes(2500);
    store.put("before", &mut &content[..], false).unwrap();
    copy(&folder.0, &old.0);
    let data = || files(&folder.0.join("data")).into_iter().filter(|file| !file.ends_with("KEYS")).collect::<Vec<_>>();
    let before: Vec<_> = data().iter().map(|file| (file.clone(), std::fs::read(file).unwrap())).collect();
    store.rotate(&key(2)).unwrap();
    assert_eq!(before, data().iter().map(|file| (file.clone(), std::fs::read(file).unwrap())).collect::<Vec<_>>());
    store.put("after", &mut &content[..], false).unwrap();
    store.append("before", &mut &content[..]).unwrap();
    assert_eq!(store.epochs(), 2);
    drop(store);
    assert!(matches!(open(&folder.0), Err(Error::WrongKey { .. })));
    // With the old head and the old key one could open the old log, but it no longer exists.
    std::fs::copy(old.0.join("HEAD"), folder.0.join("HEAD.kept")).unwrap();
    std::fs::rename(folder.0.join("HEAD"), folder.0.join("HEAD.now")).unwrap();
    std::fs::rename(folder.0.join("HEAD.kept"), folder.0.join("HEAD")).unwrap();
    assert!(matches!(open(&folder.0), Err(Error::Damaged { .. })));
    std::fs::rename(folder.0.join("HEAD.now"), folder.0.join("HEAD")).unwrap();
    let mut store = Store::open(runtime(), &folder.0, &key(2), options()).unwrap();
    assert_eq!(read(&store, "after").unwrap(), content);
    assert_eq!(read(&store, "before").unwrap(), [&content[..], &content].concat());
    assert!(is_intact(&store));
    // A root key that no data uses any more is dropped.
    store.put("before", &mut &b"anew"[..], true).unwrap();
    store.rotate(&key(3)).unwrap();
    assert_eq!(store.epochs(), 2);
    store.remove("after").unwrap();
    store.remove("before").unwrap();
    store.rotate(&key(4)).unwrap();
    assert_eq!(store.epochs(), 1);
}

#[test]
fn one_writes_or_several_read() {
    let folder = TempFolder::new("lock");
    let mut store = create(&folder.0);
    store.put("a", &mut &b"a"[..], false).unwrap();
    let read_only = || Store::open_read_only(runtime(), &folder.0, &key(1), options());
    assert!(matches!(open(&folder.0), Err(Error::InUse { .. })) && matches!(read_only(), Err(Error::InUse { .. })));
    drop(store);
    let (mut first, second) = (read_only().unwrap(), read_only().unwrap());
    assert!(matches!(open(&folder.0), Err(Error::InUse { .. })));
    assert!(matches!(first.put("b", &mut &b"b"[..], false), Err(Error::ReadOnly)));
    assert!(matches!(first.rotate(&key(2)), Err(Error::ReadOnly)));
    assert_eq!((read(&first, "a").unwrap(), read(&second, "a").unwrap()), (b"a".to_vec(), b"a".to_vec()));
    // A waiting writer gets the lock when the readers have closed.
    std::thread::scope(|scope| {
        let waits = Options { lock_wait: Duration::from_secs(20), ..options() };
        let writer = scope.spawn(|| Store::open(runtime(), &folder.0, &key(1), waits).map(|store| store.generation()));
        std::thread::sleep(Duration::from_millis(60));
        drop((first, second));
        assert_eq!(writer.join().unwrap().unwrap(), 2);
    });
}

#[test]
fn a_folder_that_was_moved_is_not_written_to() {
    let (folder, away) = (TempFolder::new("moved"), TempFolder::new("moved-away"));
    let mut store = create(&folder.0);
    store.put("a", &mut &b"a"[..], false).unwrap();
    std::fs::rename(&folder.0, &away.0).unwrap();
    drop(create(&folder.0));
    let before = files(&folder.0);
    assert!(matches!(store.put("b", &mut &b"b"[..], false), Err(Error::Moved { .. })));
    assert!(store.remove("a").is_err() && store.rotate(&key(2)).is_err());
    assert_eq!(files(&folder.0), before);
    drop(store);
    assert_eq!(read(&open(&away.0).unwrap(), "a").unwrap(), b"a");
}

#[test]
fn what_is_no_store_is_refused_and_left_alone() {
    let folder = TempFolder::new("nothing");
    assert!(matches!(open(&folder.0), Err(Error::NotAStore { .. })));
    std::fs::create_dir(&folder.0).unwrap();
    assert!(matches!(open(&folder.0), Err(Error::NotAStore { .. })));
    std::fs::write(folder.0.join("letter.txt"), "dear").unwrap();
    let made = Store::create(runtime(), &folder.0, &key(1), options());
    assert!(matches!(made, Err(Error::AlreadyExists { .. })));
    assert_eq!(files(&folder.0).len(), 1);
    std::fs::remove_file(folder.0.join("letter.txt")).unwrap();
    drop(create(&folder.0));
    assert!(matches!(Store::create(runtime(), &folder.0, &key(1), options()), Err(Error::AlreadyExists { .. })));
    for bad in [Options { chunk_bytes: 0, ..options() }, Options { level: Some(99), ..options() }] {
        assert!(matches!(Store::open(runtime(), &folder.0, &key(1), bad), Err(Error::InvalidArgument { .. })));
    }
}

#[test]
#[cfg(unix)]
fn links_are_not_followed() {
    let (folder, outside) = (TempFolder::new("links"), TempFolder::new("links-outside"));
    let mut store = create(&folder.0);
    store.put("a", &mut &b"a"[..], false).unwrap();
    drop(store);
    for file in files(&folder.0) {
        std::fs::rename(&file, &outside.0).unwrap();
        std::os::unix::fs::symlink(&outside.0, &file).unwrap();
        let content = std::fs::read(&outside.0).unwrap();
        let has_copy = !file.ends_with("HEAD") && (file.ends_with("KEYS") || !file.starts_with(folder.0.join("data")));
        let reader = Store::open_read_only(runtime(), &folder.0, &key(1), options());
        match reader.and_then(|store| Ok((read(&store, "a")?, store.damaged_copies().len()))) {
            Err(Error::NotAFile { .. }) if !has_copy => {}
            Ok((found, 1)) if has_copy => assert_eq!(found, b"a"),
            other => panic!("{}: {other:?}", file.display()),
        }
        assert_eq!(std::fs::read(&outside.0).unwrap(), content);
        std::fs::rename(&outside.0, &file).unwrap();
    }
    // A writer replaces a link by a new copy, and does not touch the file behind it.
    let keys = folder.0.join("data/KEYS");
    std::fs::rename(&keys, &outside.0).unwrap();
    std::os::unix::fs::symlink(&outside.0, &keys).unwrap();
    let content = std::fs::read(&outside.0).unwrap();
    drop(open(&folder.0).unwrap());
    assert!(keys.symlink_metadata().unwrap().is_file() && std::fs::read(&outside.0).unwrap() == content);
    std::fs::remove_file(&outside.0).unwrap();
    assert_eq!(read(&open(&folder.0).unwrap(), "a").unwrap(), b"a");
}

/// Regression: a link in place of `data` led to a folder of others, whose files were deleted as
/// left over.
#[test]
#[cfg(unix)]
fn a_link_in_the_place_of_data_is_refused() {
    let (folder, outside) = (TempFolder::new("data-link"), TempFolder::new("data-link-outside"));
    let mut store = create(&folder.0);
    store.put("a", &mut &b"a"[..], false).unwrap();
    std::fs::rename(folder.0.join("data"), &outside.0).unwrap();
    let foreign = outside.0.join("ab".repeat(32));
    std::fs::write(&foreign, "somebody's").unwrap();
    std::os::unix::fs::symlink(&outside.0, folder.0.join("data")).unwrap();
    assert!(matches!(store.put("b", &mut &b"b"[..], false), Err(Error::NotAFolder { .. })));
    assert!(matches!(store.remove("a"), Err(Error::NotAFolder { .. })));
    drop(store);
    assert!(matches!(open(&folder.0), Err(Error::NotAFolder { .. })));
    let reader = Store::open_read_only(runtime(), &folder.0, &key(1), options());
    assert!(matches!(reader, Err(Error::NotAFolder { .. })));
    assert_eq!(std::fs::read(&foreign).unwrap(), b"somebody's");
    std::fs::remove_file(folder.0.join("data")).unwrap();
    assert!(matches!(open(&folder.0), Err(Error::Damaged { .. })));
    std::fs::rename(&outside.0, folder.0.join("data")).unwrap();
    assert_eq!(read(&open(&folder.0).unwrap(), "a").unwrap(), b"a");

    let (new, empty) = (TempFolder::new("data-link-new"), TempFolder::new("data-link-empty"));
    std::fs::create_dir(&new.0).unwrap();
    std::fs::create_dir(&empty.0).unwrap();
    std::os::unix::fs::symlink(&empty.0, new.0.join("data")).unwrap();
    assert!(Store::create(runtime(), &new.0, &key(1), options()).is_err());
}

/// Regression: it is unclear whether a failed rename took effect, but writing continued as if it
/// had not.
#[test]
#[cfg(unix)]
fn after_a_head_that_could_not_be_replaced_nothing_is_written() {
    let folder = TempFolder::new("rename");
    let mut store = create(&folder.0);
    store.put("a", &mut &b"a"[..], false).unwrap();
    let (head, aside) = (folder.0.join("HEAD"), folder.0.join("aside"));
    std::fs::rename(&head, &aside).unwrap();
    std::fs::create_dir(&head).unwrap();
    assert!(matches!(store.put("b", &mut &b"b"[..], false), Err(Error::Overtaken { .. })));
    std::fs::remove_dir(&head).unwrap();
    std::fs::rename(&aside, &head).unwrap();
    assert!(matches!(store.put("c", &mut &b"c"[..], false), Err(Error::WritesStopped { .. })));
    assert!(matches!(store.rotate(&key(2)), Err(Error::WritesStopped { .. })));
    assert_eq!(files(&folder.0.join("data")).len(), 3, "what a head may name stays");
    drop(store);
    let store = open(&folder.0).unwrap();
    assert_eq!(store.entries().map(|entry| entry.name).collect::<Vec<_>>(), ["a"]);
    assert!(is_intact(&store) && files(&folder.0.join("data")).len() == 2);
}

/// A copy made of hard links is a separate store: neither writes to a file of the other.
#[test]
#[cfg(unix)]
fn a_copy_of_hard_links_goes_its_own_way() {
    let (folder, twin) = (TempFolder::new("twin"), TempFolder::new("twin-other"));
    let mut store = create(&folder.0);
    store.put("shared", &mut &Random(1).bytes(1500)[..], false).unwrap();
    let before = store.generation();
    drop(store);
    std::fs::create_dir_all(twin.0.join("data")).unwrap();
    for file in files(&folder.0).iter().filter(|file| !file.ends_with("LOCK")) {
        std::fs::hard_link(file, twin.0.join(file.strip_prefix(&folder.0).unwrap())).unwrap();
    }
    let mut first = open(&folder.0).unwrap();
    first.append("shared", &mut &b"more"[..]).unwrap();
    let mut second = open(&twin.0).unwrap();
    second.remove("shared").unwrap();
    second.put("other", &mut &b"other"[..], false).unwrap();
    drop((first, second));
    let (first, second) = (open(&folder.0).unwrap(), open(&twin.0).unwrap());
    assert_eq!((read(&first, "shared").unwrap().len(), read(&second, "other").unwrap().len()), (1504, 5));
    assert!(is_intact(&first) && is_intact(&second) && first.generation() > before);
}

/// The log is rewritten when most of it is history.
#[test]
fn a_long_history_takes_little_room() {
    let folder = TempFolder::new("history");
    let mut store = create(&folder.0);
    let long = "x".repeat(900);
    for number in 0..100 {
        let mut batch = store.batch().unwrap();
        (0..20).for_each(|name| drop(batch.put(&format!("{long} {name}"), &mut &b""[..], true).unwrap()));
        batch.commit().unwrap();
        if number % 40 == 0 {
            drop(store);
            store = open(&folder.0).unwrap();
        }
    }
    let log = files(&folder.0).into_iter().find(|file| file.to_string_lossy().contains("catalog-")).unwrap();
    // Without the rewrite it would have two megabytes.
    assert!(log.metadata().unwrap().len() < 12 << 17, "{}", log.metadata().unwrap().len());
    assert_eq!((files(&folder.0).len(), store.entries().count()), (4 + 20, 20));
    assert!(is_intact(&store));
}

#[test]
fn a_store_goes_from_thread_to_thread_and_is_read_by_several() {
    fn expect<T: Send + Sync>(value: T) -> T {
        value
    }
    let folder = TempFolder::new("threads");
    let mut store = expect(create(&folder.0));
    let content = Random(6).bytes(3000);
    store.put("a", &mut &content[..], false).unwrap();
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..4).map(|_| scope.spawn(|| read(&store, "a").unwrap())).collect();
        assert!(readers.into_iter().all(|reader| reader.join().unwrap() == content));
    });
}

#[derive(Clone, Debug)]
enum StoreStep {
    Put { name: u8, len: usize, replace: bool },
    Append { name: u8, len: usize },
    Remove { name: u8 },
    Rotate,
    Reopen,
    Batch(Vec<(u8, usize)>),
}

fn step() -> impl Strategy<Value = StoreStep> {
    let len = prop_oneof![0..5_usize, 90..110_usize, 900..3000_usize];
    prop_oneof![
        4 => (0..6_u8, len.clone(), any::<bool>()).prop_map(|(name, len, replace)| StoreStep::Put { name, len, replace }),
        3 => (0..6_u8, len.clone()).prop_map(|(name, len)| StoreStep::Append { name, len }),
        2 => (0..6_u8).prop_map(|name| StoreStep::Remove { name }),
        1 => Just(StoreStep::Rotate),
        2 => Just(StoreStep::Reopen),
        1 => prop::collection::vec((0..6_u8, len), 0..5).prop_map(StoreStep::Batch),
    ]
}

type Model = BTreeMap<String, Vec<u8>>;

/// Makes one step in the store and in the model, and compares the results.
fn make(step: &StoreStep, number: u64, store: &mut Store, model: &mut Model) {
    let name = |name: u8| format!("folder {}/object {name}", name % 2);
    let content = |len| Random(number).bytes(len);
    match *step {
        StoreStep::Put { name: number, len, replace } => {
            let (name, content) = (name(number), content(len));
            let put = store.put(&name, &mut &content[..], replace);
            match model.contains_key(&name) && !replace {
                true => assert!(matches!(put, Err(Error::ObjectExists { .. }))),
                false => assert!(put.map(|_| model.insert(name, content)).is_ok()),
            }
        }
        StoreStep::Append { name: number, len } => {
            let (name, content) = (name(number), content(len));
            match (store.append(&name, &mut &content[..]), model.get_mut(&name)) {
                (Ok(entry), Some(known)) => {
                    known.extend(content);
                    assert_eq!(entry.len, known.len() as u64);
                }
                (appended, None) => assert!(matches!(appended, Err(Error::NoObject { .. }))),
                (appended, _) => panic!("{appended:?}"),
            }
        }
        StoreStep::Remove { name: number } => {
            let name = name(number);
            assert_eq!(store.remove(&name).is_ok(), model.remove(&name).is_some());
        }
        StoreStep::Batch(ref puts) => {
            let mut batch = store.batch().unwrap();
            for (number, len) in puts {
                batch.put(&name(*number), &mut &content(*len)[..], true).unwrap();
                batch.append(&name(*number), &mut &b"!"[..]).unwrap();
                model.insert(name(*number), [content(*len), b"!".to_vec()].concat());
            }
            batch.commit().unwrap();
        }
        StoreStep::Rotate | StoreStep::Reopen => unreachable!("made by the caller"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn a_store_holds_what_a_map_holds(steps in prop::collection::vec(step(), 1..40)) {
        let folder = TempFolder::new("model");
        let (mut store, mut model, mut current) = (create(&folder.0), Model::new(), 1);
        for (number, step) in (0..).zip(&steps) {
            match step {
                StoreStep::Rotate => {
                    current += 1;
                    store.rotate(&key(current)).unwrap();
                }
                StoreStep::Reopen => {
                    drop(store);
                    store = Store::open(runtime(), &folder.0, &key(current), options()).unwrap();
                }
                step => make(step, number, &mut store, &mut model),
            }
            let known: Vec<(String, u64)> = store.entries().map(|entry| (entry.name, entry.len)).collect();
            let expected: Vec<(String, u64)> =
                model.iter().map(|(name, content)| (name.clone(), content.len() as u64)).collect();
            prop_assert_eq!(known, expected);
        }
        for (name, content) in &model {
            prop_assert_eq!(&read(&store, name).unwrap(), content);
        }
        prop_assert!(is_intact(&store));
        // No unnamed file is left: only HEAD, the log and its copy, the root keys, and the extents.
        let extents: usize = store.entries().map(|entry| entry.extents).sum();
        prop_assert_eq!(files(&folder.0).len(), 4 + extents);
    }
}
