//! The functions that the fuzz targets call. Each reads bytes as untrusted input as far as
//! possible. No function may panic, hang, or allocate more than a few times the input at once; the
//! results must be consistent. `fuzz/` runs the functions under cargo-fuzz, `tests/fuzz.rs` over
//! mutated files with a fixed seed.
//!
//! This module covers filters and the files that a collection imports; `stored` covers the
//! collection's own files.

mod stored;

use std::io::Cursor;

use serde_json::Value;

use crate::filter::{Columns, Filter};
use crate::formats::{
    ArrowReader, ColumnNames, FormatError, JsonLinesReader, NpyReader, ParquetReader, RecordsReader, VecsKind,
    VecsReader, VectorReader,
};

pub use stored::{centroids, lists, log, manifest, packed, repair, store, unpack};

/// Rows per batch.
const ROWS_PER_BATCH: usize = 64;

/// A fuzz target.
pub type FuzzTarget = fn(&[u8]);

/// Every target and its name.
pub const TARGETS: [(&str, FuzzTarget); 15] = [
    ("npy", npy),
    ("fvecs", fvecs),
    ("bvecs", bvecs),
    ("ivecs", ivecs),
    ("jsonl", jsonl),
    ("parquet", parquet),
    ("arrow", arrow),
    ("filter_text", filter_text),
    ("filter_json", filter_json),
    ("log", log),
    ("manifest", manifest),
    ("centroids", centroids),
    ("lists", lists),
    ("store", store),
    ("repair", repair),
];

/// A NumPy array.
pub fn npy(bytes: &[u8]) {
    drain(NpyReader::new(Cursor::new(bytes.to_vec()), Some(bytes.len() as u64)));
    drain(NpyReader::new(Cursor::new(bytes.to_vec()), None));
}

/// Rows of f32.
pub fn fvecs(bytes: &[u8]) {
    vecs(bytes, VecsKind::F32);
}

/// Rows of bytes.
pub fn bvecs(bytes: &[u8]) {
    vecs(bytes, VecsKind::U8);
}

/// Rows of integers.
pub fn ivecs(bytes: &[u8]) {
    vecs(bytes, VecsKind::I32);
}

/// JSON lines, with and without vectors.
pub fn jsonl(bytes: &[u8]) {
    drain(JsonLinesReader::new(Cursor::new(bytes.to_vec())));
    let mut records = RecordsReader::new(bytes);
    while let Ok(Some(_)) = records.next_record() {}
}

/// A Parquet file.
pub fn parquet(bytes: &[u8]) {
    drain(ParquetReader::new(bytes::Bytes::copy_from_slice(bytes), &ColumnNames::default()));
}

/// An Arrow file or stream.
pub fn arrow(bytes: &[u8]) {
    let names = ColumnNames::default();
    drain(ArrowReader::new(Cursor::new(bytes.to_vec()), Some(bytes.len() as u64), &names));
}

/// A filter as text. An accepted filter must have an equivalent JSON form.
pub fn filter_text(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    if let Ok(filter) = Filter::parse(text) {
        assert_eq!(Filter::from_json(&filter.to_json()).as_ref(), Ok(&filter));
    }
}

/// A filter as JSON, which also serves as the metadata. Columns must select the row exactly if the
/// filter matches.
pub fn filter_json(bytes: &[u8]) {
    let Ok(value) = serde_json::from_slice::<Value>(bytes) else { return };
    let Ok(filter) = Filter::from_json(&value) else { return };
    assert_eq!(Filter::from_json(&filter.to_json()).as_ref(), Ok(&filter));
    let mut columns = Columns::new(1);
    columns.build(&filter, |_, sink| sink.value(&value));
    assert_eq!(filter.select(&columns) == [1], filter.matches(&value));
}

fn vecs(bytes: &[u8], kind: VecsKind) {
    drain(VecsReader::new(Cursor::new(bytes.to_vec()), Some(bytes.len() as u64), kind));
    drain(VecsReader::new(Cursor::new(bytes.to_vec()), None, kind));
}

/// Reads to the end or to the first error. The batches must be consistent.
fn drain<R: VectorReader>(reader: Result<R, FormatError>) {
    let Ok(mut reader) = reader else { return };
    while let Ok(Some(batch)) = reader.next_batch(ROWS_PER_BATCH) {
        let (rows, dimension) = (batch.ids.len(), reader.dimension().unwrap_or(0));
        assert!((1..=ROWS_PER_BATCH).contains(&rows), "{rows} rows");
        assert_eq!(batch.vectors.len(), rows * dimension);
        assert!(batch.metadata.is_empty() || batch.metadata.len() == rows);
        assert!(batch.vectors.iter().all(|value| value.is_finite()));
    }
}
