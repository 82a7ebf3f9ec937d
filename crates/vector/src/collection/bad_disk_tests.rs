//! A full disk gives a typed error; the collection is unchanged and works on once there is room.
//! After a failed disk, writes stop until the collection is opened again.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use panoply_cpu::CpuBackend;
use panoply_runtime::Runtime;
use panoply_store::MasterKey;
use serde_json::{Value, json};

use super::{Collection, StoredRecord};
use crate::error::Error;
use crate::region::bad_disk::{limit, refuse_sync};
use crate::schema::{Options, Schema};
use crate::search::SearchOptions;
use crate::{IndexOptions, Metric};

fn ids(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|index| format!("v{index}")).collect()
}

fn vectors(count: usize) -> Vec<f32> {
    (0..count * 64).map(|index| ((index * 37 + index / 64) % 101) as f32 - 50.0).collect()
}

fn runtime() -> Arc<Runtime> {
    Arc::new(Runtime::builder().backend(Arc::new(CpuBackend::new())).build().unwrap())
}

fn new_folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("panoply-vector-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    folder
}

/// The keys for a plain and for an encrypted collection.
fn keys() -> [Option<MasterKey>; 2] {
    [None, MasterKey::from_bytes(vec![5; 32]).ok()]
}

fn files(folder: &Path) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

#[test]
fn a_full_disk_changes_nothing_and_passes() {
    keys().into_iter().for_each(fill_the_disk);
}

fn fill_the_disk(key: Option<MasterKey>) {
    let (runtime, folder) = (runtime(), new_folder("full"));
    let options = Options { segment_bytes_max: 1 << 20, key, ..Options::default() };
    let schema = Schema::new("full", 64, Metric::Euclidean);
    let collection = Collection::create(Arc::clone(&runtime), &folder, schema, options.clone()).unwrap();
    collection.insert_many(&ids(0..100), &vectors(100), &[]).unwrap();
    let before: Vec<StoredRecord> = collection.iter().collect();
    let query = vectors(1);
    // The disk ends in a small write, in a large write, and in a new segment.
    for (file_bytes_max, count) in [(27_000, 20), (40_000, 200), (200_000, 2000), (500_000, 3000), (20, 4200), (10, 1)]
    {
        limit(&folder, Some(file_bytes_max));
        let full = collection.insert_many(&ids(1000..1000 + count), &vectors(count), &[]);
        assert!(matches!(full, Err(Error::DiskFull { .. })), "{file_bytes_max}: {full:?}");
        assert!(matches!(collection.remove("v1"), Err(Error::DiskFull { .. }) | Ok(true)));
        limit(&folder, None);
        collection.upsert("v1", &before[1].vector, Value::Null).unwrap();
        assert_eq!(collection.len(), 100);
        assert_eq!(collection.search(&query, &SearchOptions::new(1)).unwrap().hits[0].id, "v0");
    }
    limit(&folder, Some(1000));
    assert!(matches!(collection.compact(), Err(Error::DiskFull { .. })));
    let index = IndexOptions { lists: Some(4), ..IndexOptions::default() };
    assert!(matches!(collection.build_index(&index), Err(Error::DiskFull { .. })));
    limit(&folder, None);
    collection.build_index(&index).unwrap();
    collection.insert_many(&ids(1000..5000), &vectors(4000), &[]).unwrap();
    collection.insert("last", &query, json!({ "n": 1 })).unwrap();
    collection.verify().unwrap();
    let all: Vec<StoredRecord> = collection.iter().collect();
    drop(collection);
    let again = Collection::open(runtime, &folder, options).unwrap();
    assert!(again.iter().eq(all) && again.len() == 4101);
    again.verify().unwrap();
    drop(again);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_full_disk_leaves_no_files_behind() {
    keys().into_iter().for_each(fill_the_disk_early);
}

fn fill_the_disk_early(key: Option<MasterKey>) {
    let (runtime, folder) = (runtime(), new_folder("leftover"));
    let options = Options { segment_bytes_max: 1 << 16, key, ..Options::default() };
    let schema = Schema::new("leftover", 64, Metric::Dot);
    limit(&folder, Some(10));
    let created = Collection::create(Arc::clone(&runtime), &folder, schema.clone(), options.clone());
    assert!(matches!(created, Err(Error::DiskFull { .. })));
    assert!(!folder.exists());
    limit(&folder, None);
    let collection = Collection::create(runtime, &folder, schema, options).unwrap();
    collection.insert_many(&ids(0..200), &vectors(200), &[]).unwrap();
    collection.remove("v0").unwrap();
    collection.flush().unwrap();
    let before = files(&folder);
    limit(&folder, Some(10));
    for _ in 0..5 {
        // Each insert begins a segment and fails soon after.
        let full = collection.insert_many(&ids(1000..1200), &vectors(200), &[]);
        assert!(matches!(full, Err(Error::DiskFull { .. })), "{full:?}");
        assert!(collection.clear().is_err() && collection.compact().is_err());
        assert!(collection.build_index(&IndexOptions { lists: Some(2), ..IndexOptions::default() }).is_err());
    }
    limit(&folder, None);
    assert_eq!(files(&folder), before);
    assert_eq!(collection.len(), 199);
    let target = new_folder("leftover-snapshot");
    limit(&target, Some(10));
    assert!(matches!(collection.snapshot(&target), Err(Error::DiskFull { .. })));
    assert!(!target.exists());
    // A folder that was there stays.
    std::fs::create_dir(&target).unwrap();
    assert!(matches!(collection.snapshot(&target), Err(Error::DiskFull { .. })));
    assert_eq!(files(&target), 0);
    limit(&target, None);
    collection.snapshot(&target).unwrap();
    drop(collection);
    std::fs::remove_dir_all(&target).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn after_a_failed_sync_nothing_is_written_until_it_is_opened_again() {
    keys().into_iter().for_each(fail_syncs);
}

fn fail_syncs(key: Option<MasterKey>) {
    let (runtime, options) = (runtime(), Options { key, ..Options::default() });
    for (file, count) in [("segment-000000.log", 1), ("segment-000000.log", 2000), ("segment-000000.rows", 2000)] {
        let folder = new_folder("sync");
        let schema = Schema::new("sync", 64, Metric::Dot);
        let collection = Collection::create(Arc::clone(&runtime), &folder, schema, options.clone()).unwrap();
        // Inline: these rows are in the log, and their file has not certainly reached the disk.
        collection.insert_many(&ids(0..50), &vectors(50), &[]).unwrap();
        refuse_sync(&folder.join(file), true);
        let failed = collection.insert_many(&ids(100..100 + count), &vectors(count), &[]);
        assert!(matches!(failed, Err(Error::Io { action: "sync", .. })), "{failed:?}");
        refuse_sync(&folder.join(file), false);
        assert!(matches!(collection.insert("later", &vectors(1), Value::Null), Err(Error::WritesStopped { .. })));
        assert!(matches!(collection.flush(), Err(Error::WritesStopped { .. })));
        assert_eq!(collection.search(&vectors(1), &SearchOptions::new(100)).unwrap().hits.len(), 50);
        drop(collection);
        let again = Collection::open(Arc::clone(&runtime), &folder, options.clone()).unwrap();
        assert_eq!(again.len(), 50);
        again.insert("later", &vectors(1), Value::Null).unwrap();
        again.verify().unwrap();
        drop(again);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

/// The new manifest may or may not be in effect, so a write to the old segments could be lost.
#[test]
fn a_manifest_that_may_not_have_reached_the_disk_stops_writes() {
    let (runtime, folder) = (runtime(), new_folder("names"));
    let schema = Schema::new("names", 64, Metric::Dot);
    let collection = Collection::create(Arc::clone(&runtime), &folder, schema, Options::default()).unwrap();
    collection.insert_many(&ids(0..50), &vectors(50), &[]).unwrap();
    refuse_sync(&folder.join("names"), true);
    assert!(matches!(collection.clear(), Err(Error::Io { action: "sync", .. })));
    refuse_sync(&folder.join("names"), false);
    assert_eq!(collection.len(), 50);
    assert!(matches!(collection.insert("later", &vectors(1), Value::Null), Err(Error::WritesStopped { .. })));
    drop(collection);
    let again = Collection::open(runtime, &folder, Options::default()).unwrap();
    assert_eq!(again.len(), 0, "the new manifest is on this disk");
    drop(again);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_compaction_that_fails_is_not_tried_at_every_write() {
    let (runtime, folder) = (runtime(), new_folder("rest"));
    let schema = Schema::new("rest", 64, Metric::Dot);
    let collection = Collection::create(runtime, &folder, schema, Options::default()).unwrap();
    collection.insert_many(&ids(0..3000), &vectors(3000), &[]).unwrap();
    // The log has room for removals, but a copy of the rows does not fit.
    limit(&folder, Some(200_000));
    collection.remove_many(&ids(0..1200)).unwrap();
    for index in 1200..1240 {
        collection.remove(&format!("v{index}")).unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
    let numbers = collection.inner.writer.run(|writer| Ok(writer.manifest.next)).wait().unwrap();
    limit(&folder, None);
    // Numbers: the first segment, the segment after it, and the copy that failed.
    assert!((2..=3).contains(&numbers), "{numbers} files were begun");
    drop(collection);
    std::fs::remove_dir_all(&folder).unwrap();
}
