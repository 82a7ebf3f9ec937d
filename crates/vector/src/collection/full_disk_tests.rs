//! A full disk is a typed error, after which everything is as it was and goes on.

use std::sync::Arc;

use panoply_cpu::CpuBackend;
use panoply_runtime::Runtime;
use serde_json::{Value, json};

use super::{Collection, Entry};
use crate::error::Error;
use crate::region::full_disk::limit;
use crate::schema::{Options, Schema};
use crate::search::SearchOptions;
use crate::{IndexOptions, Metric};

fn ids(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|index| format!("v{index}")).collect()
}

fn vectors(count: usize) -> Vec<f32> {
    (0..count * 64).map(|index| ((index * 37 + index / 64) % 101) as f32 - 50.0).collect()
}

#[test]
fn a_full_disk_changes_nothing_and_passes() {
    let runtime = Arc::new(Runtime::builder().backend(Arc::new(CpuBackend::new())).build().unwrap());
    let folder = std::env::temp_dir().join(format!("panoply-vector-full-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    let options = Options { segment_bytes_max: 1 << 20, ..Options::default() };
    let schema = Schema::new("full", 64, Metric::Euclidean);
    let collection = Collection::create(Arc::clone(&runtime), &folder, schema, options.clone()).unwrap();
    collection.insert_many(&ids(0..100), &vectors(100), &[]).unwrap();
    let before: Vec<Entry> = collection.iter().collect();
    let query = vectors(1);
    // Where a small write meets the end of the disk, where a large one does, and where a new segment does.
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
    let all: Vec<Entry> = collection.iter().collect();
    drop(collection);
    let again = Collection::open(runtime, &folder, options).unwrap();
    assert!(again.iter().eq(all) && again.len() == 4101);
    again.verify().unwrap();
    drop(again);
    std::fs::remove_dir_all(&folder).unwrap();
}
