//! Tests with files from this crate, files from Arrow's own library, and malformed files.

use std::io::Cursor;

use proptest::prelude::*;
use serde_json::json;

use super::super::batch::Writer;
use super::*;

/// Made by `fixtures/arrow.py` with Arrow's own library: two record batches, with a column of every
/// kind.
const FILE: &[u8] = include_bytes!("../../../fixtures/foreign.arrow");
/// The same data with compressed bodies.
const COMPRESSED: &[u8] = include_bytes!("../../../fixtures/foreign-lz4.feather");
/// The same data as a stream, with text views.
const STREAM: &[u8] = include_bytes!("../../../fixtures/foreign-views.arrows");

fn open(bytes: &[u8]) -> Result<ArrowReader<Cursor<Vec<u8>>>> {
    ArrowReader::new(Cursor::new(bytes.to_vec()), Some(bytes.len() as u64), &ColumnNames::default())
}

fn all(bytes: &[u8], rows_max: usize) -> Result<Batch> {
    let mut reader = open(bytes)?;
    let mut all = Batch::default();
    while let Some(batch) = reader.next_batch(rows_max)? {
        assert!(batch.ids.len() <= rows_max);
        all.ids.extend(batch.ids);
        all.vectors.extend(batch.vectors);
        all.metadata.extend(batch.metadata);
    }
    Ok(all)
}

fn written(batches: &[Batch], dimension: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::new(&mut bytes, dimension).unwrap();
    batches.iter().for_each(|batch| writer.write(batch).unwrap());
    writer.finish().unwrap();
    bytes
}

fn batch(first: usize, rows: usize, dimension: usize) -> Batch {
    let metadata = |row| if row % 3 == 0 { Value::Null } else { json!({"row": row, "text": "é".repeat(row % 20)}) };
    Batch {
        ids: (first..first + rows).map(|row| format!("row {row}")).collect(),
        vectors: (0..rows * dimension).map(|index| (first + index) as f32 / 7.0).collect(),
        metadata: (first..first + rows).map(metadata).collect(),
    }
}

/// Null metadata is read back as an empty object, because the column exists.
fn without_null(metadata: &[Value]) -> Vec<Value> {
    metadata.iter().map(|value| if value.is_null() { json!({}) } else { value.clone() }).collect()
}

#[test]
fn what_is_written_is_read() {
    let batches = [batch(0, 10, 3), batch(10, 1, 3)];
    let bytes = written(&batches, 3);
    for rows_max in [1, 4, 100] {
        let read = all(&bytes, rows_max).unwrap();
        assert_eq!(read.ids, (0..11).map(|row| format!("row {row}")).collect::<Vec<_>>());
        assert_eq!(read.vectors, [batches[0].vectors.clone(), batches[1].vectors.clone()].concat());
        assert_eq!(read.metadata, without_null(&[batches[0].metadata.clone(), batches[1].metadata.clone()].concat()));
    }
    let mut empty = open(&written(&[], 3)).unwrap();
    assert_eq!((empty.dimension(), empty.next_batch(5).unwrap()), (None, None));
}

#[test]
fn files_of_others_are_read() {
    for (name, bytes) in [("file", FILE), ("compressed", COMPRESSED), ("stream", STREAM)] {
        let reader = open(bytes).unwrap();
        assert_eq!(reader.dimension(), Some(2), "{name}");
        assert_eq!(reader.columns_left_out(), ["category", "blob"], "{name}");
        let read = all(bytes, 2).unwrap();
        assert_eq!(read.ids, ["a", "b", "c"], "{name}");
        assert_eq!(read.vectors, [0.5, 1.5, 2.5, 3.5, 4.5, 5.5], "{name}");
        let first = json!({
            "size": 7, "price": 0.1, "ratio": 0.25, "free": true, "day": 1,
            "tags": ["red", "a text that is longer than twelve bytes"], "place": {"x": 1, "y": {"z": "deep"}},
        });
        let last = json!({"size": 9, "price": 2.0, "ratio": 0.5, "tags": [], "place": {"y": {}}});
        assert_eq!(read.metadata, [first, json!({"free": false, "day": 2}), last], "{name}");
    }
}

#[test]
fn columns_can_be_named() {
    let open = |vector: &str, id: &str| {
        let names = ColumnNames { vector: Some(vector.to_owned()), id: Some(id.to_owned()) };
        ArrowReader::new(FILE, Some(FILE.len() as u64), &names).and_then(|mut reader| reader.next_batch(1))
    };
    assert_eq!(open("embedding", "id").unwrap().unwrap().ids, ["a"]);
    assert_eq!(open("embedding", "size").unwrap().unwrap().ids, ["7"]);
    for (vector, id) in [("tags", "id"), ("embedding", "free"), ("nothing", "id")] {
        let error = open(vector, id).unwrap_err();
        assert!(error.to_string().contains("the file has: id, embedding, size"), "{error}");
    }
}

#[test]
fn files_that_are_cut_short_are_refused() {
    let bytes = written(&[batch(0, 20, 4)], 4);
    let end_of_batches = bytes.windows(8).rposition(|eight| eight == [255, 255, 255, 255, 0, 0, 0, 0]).unwrap();
    for length in (0..=end_of_batches).step_by(7).chain([end_of_batches, end_of_batches + 7]) {
        let error = all(&bytes[..length], 10).unwrap_err();
        assert!(matches!(error, FormatError::Header { .. } | FormatError::Truncated { .. }), "{length}: {error}");
    }
    assert!(matches!(all(b"not a file of this kind", 10), Err(FormatError::Header { .. })));
}

#[test]
fn headers_that_claim_too_much_are_refused() {
    let mut bytes = b"\xff\xff\xff\xff".to_vec();
    bytes.extend(u32::MAX.to_le_bytes());
    assert!(matches!(all(&bytes, 1), Err(FormatError::TooLarge { .. })));
    let mut bytes = b"\xff\xff\xff\xff".to_vec();
    bytes.extend(1000_u32.to_le_bytes());
    assert!(matches!(all(&bytes, 1), Err(FormatError::Truncated { .. })));
}

#[test]
fn components_that_are_not_numbers_are_refused() {
    let mut batch = batch(0, 2, 2);
    batch.vectors[3] = f32::NAN;
    let error = all(&written(&[batch], 2), 10).unwrap_err();
    assert!(matches!(error, FormatError::NotFinite { row: 1, component: 1, .. }), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn rows_come_back(rows in 1..30_usize, dimension in 1..6_usize, rows_max in 1..40_usize) {
        let batch = batch(3, rows, dimension);
        let read = all(&written(std::slice::from_ref(&batch), dimension), rows_max).unwrap();
        prop_assert_eq!(read.vectors, batch.vectors);
        prop_assert_eq!(read.metadata, without_null(&batch.metadata));
        prop_assert_eq!(read.ids, batch.ids);
    }
}
