//! Tests with files from this crate, files from other writers, and malformed files.

use ::bytes::Bytes;
use parquet::basic::Compression;
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use proptest::prelude::*;
use serde_json::json;

use super::super::batch::Writer;
use super::*;

fn open(bytes: &[u8]) -> Result<ParquetReader<Bytes>> {
    ParquetReader::new(Bytes::copy_from_slice(bytes), &ColumnNames::default())
}

fn all(bytes: &[u8], rows_max: usize) -> Result<Batch> {
    let mut reader = open(bytes)?;
    let mut all = Batch::default();
    while let Some(batch) = reader.next_batch(rows_max)? {
        all.ids.extend(batch.ids);
        all.vectors.extend(batch.vectors);
        all.metadata.extend(batch.metadata);
    }
    Ok(all)
}

fn written(batches: &[Batch], dimension: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = ParquetWriter::new(&mut bytes, dimension).unwrap();
    batches.iter().for_each(|batch| writer.write(batch).unwrap());
    writer.finish().unwrap();
    drop(writer);
    bytes
}

fn batch(first: usize, rows: usize, dimension: usize) -> Batch {
    Batch {
        ids: (first..first + rows).map(|row| format!("row {row}")).collect(),
        vectors: (0..rows * dimension).map(|index| (first + index) as f32 / 7.0).collect(),
        metadata: (first..first + rows).map(|row| json!({"row": row, "even": row % 2 == 0})).collect(),
    }
}

/// A file as other programs write it: doubles, nullable lists, columns of several types, a
/// structure.
fn foreign() -> Vec<u8> {
    let schema = "message schema {
        optional int64 id;
        optional group embedding (LIST) { repeated group list { optional double element; } }
        optional binary name (UTF8);
        optional group tags (LIST) { repeated group list { optional binary element (UTF8); } }
        optional group place { optional boolean near; }
        optional int96 time;
    }";
    let properties = WriterProperties::builder().set_compression(Compression::LZ4_RAW).build();
    let mut bytes = Vec::new();
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let mut file = SerializedFileWriter::new(&mut bytes, schema, Arc::new(properties)).unwrap();
    let mut group = file.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<Int64Type>().write_batch(&[7, 8], Some(&[1, 1]), None).unwrap();
    column.close().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let levels: (&[i16], &[i16]) = (&[3, 3, 3, 3], &[0, 1, 0, 1]);
    column.typed::<DoubleType>().write_batch(&[0.5, 1.5, 2.5, 3.5], Some(levels.0), Some(levels.1)).unwrap();
    column.close().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<ByteArrayType>().write_batch(&[ByteArray::from("ä")], Some(&[0, 1]), None).unwrap();
    column.close().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let tags = [ByteArray::from("red"), ByteArray::from("round")];
    column.typed::<ByteArrayType>().write_batch(&tags, Some(&[3, 3, 1]), Some(&[0, 1, 0])).unwrap();
    column.close().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<BoolType>().write_batch(&[true], Some(&[2, 0]), None).unwrap();
    column.close().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<parquet::data_type::Int96Type>().write_batch(&[], Some(&[0, 0]), None).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    file.close().unwrap();
    bytes
}

#[test]
fn what_is_written_is_read_whatever_the_batches() {
    let batches = [batch(0, 10, 3), batch(10, 1, 3), batch(11, 5, 3)];
    let bytes = written(&batches, 3);
    let reader = open(&bytes).unwrap();
    assert_eq!((reader.dimension(), reader.rows()), (Some(3), Some(16)));
    for rows_max in [1, 3, 100] {
        let read = all(&bytes, rows_max).unwrap();
        assert_eq!(read.ids, (0..16).map(|row| format!("row {row}")).collect::<Vec<_>>());
        assert_eq!(read.vectors, batches.iter().flat_map(|batch| batch.vectors.clone()).collect::<Vec<_>>());
        assert_eq!(read.metadata, batches.iter().flat_map(|batch| batch.metadata.clone()).collect::<Vec<_>>());
    }
}

#[test]
fn a_file_without_rows_has_no_dimension() {
    let bytes = written(&[], 3);
    let mut reader = open(&bytes).unwrap();
    assert_eq!((reader.dimension(), reader.rows(), reader.next_batch(4).unwrap()), (None, Some(0), None));
}

#[test]
fn columns_of_others_become_metadata() {
    let bytes = foreign();
    let reader = open(&bytes).unwrap();
    assert_eq!(reader.columns_left_out(), ["time"]);
    let read = all(&bytes, 10).unwrap();
    assert_eq!((read.ids, read.vectors), (vec!["7".to_owned(), "8".to_owned()], vec![0.5, 1.5, 2.5, 3.5]));
    assert_eq!(
        read.metadata,
        [json!({"tags": ["red", "round"], "place": {"near": true}}), json!({"name": "ä", "tags": []})]
    );
}

#[test]
fn files_of_the_arrow_library_are_read() {
    // Made by `fixtures/arrow.py`.
    let bytes = include_bytes!("../../../fixtures/foreign.parquet");
    assert_eq!(open(bytes).unwrap().columns_left_out(), ["blob"]);
    let read = all(bytes, 2).unwrap();
    assert_eq!(read.ids, ["a", "b", "c"]);
    assert_eq!(read.vectors, [0.5, 1.5, 2.5, 3.5, 4.5, 5.5]);
    let first = json!({
        "size": 7, "price": 0.1, "ratio": 0.25, "free": true, "day": 1,
        "tags": ["red", "a text that is longer than twelve bytes"], "place": {"x": 1, "y": {"z": "deep"}},
    });
    let last = json!({"size": 9, "price": 2.0, "ratio": 0.5, "tags": []});
    assert_eq!(read.metadata, [first, json!({"free": false, "day": 2}), last]);
}

#[test]
fn columns_can_be_named() {
    let names = ColumnNames { vector: Some("embedding".to_owned()), id: Some("name".to_owned()) };
    let bytes = Bytes::from(foreign());
    let error = ParquetReader::new(bytes.clone(), &names).map(drop).unwrap_err();
    assert!(error.to_string().contains("id is null"), "{error}");
    let names = ColumnNames { vector: Some("name".to_owned()), id: None };
    let error = ParquetReader::new(bytes.clone(), &names).map(drop).unwrap_err();
    assert!(error.to_string().contains("id, embedding, name, tags, place, time"), "{error}");
    let names = ColumnNames { vector: None, id: Some("place.near".to_owned()) };
    let error = ParquetReader::new(bytes, &names).map(drop).unwrap_err();
    assert!(matches!(error, FormatError::MissingColumn { .. }), "{error}");
}

#[test]
fn vectors_that_do_not_fit_are_refused() {
    let mut ragged = batch(0, 2, 2);
    ragged.vectors = vec![1.0, 2.0, 3.0];
    ragged.ids = vec!["a".to_owned(), "b".to_owned()];
    let error = all(&written(&[ragged], 2), 10).unwrap_err();
    assert!(matches!(error, FormatError::DimensionChange { row: 1, expected: 2, got: 1 }), "{error}");
    let mut endless = batch(0, 2, 2);
    endless.vectors[3] = f32::NAN;
    let error = all(&written(&[endless], 2), 10).unwrap_err();
    assert!(matches!(error, FormatError::NotFinite { row: 1, component: 1, .. }), "{error}");
}

#[test]
fn files_that_are_cut_short_are_refused() {
    let bytes = written(&[batch(0, 20, 4)], 4);
    for length in (0..bytes.len()).step_by(7) {
        assert!(matches!(all(&bytes[..length], 10), Err(FormatError::Header { .. })), "{length}");
    }
    assert!(matches!(all(b"not a file of this kind", 10), Err(FormatError::Header { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn rows_come_back(rows in 1..30_usize, dimension in 1..6_usize, rows_max in 1..40_usize) {
        let batch = batch(3, rows, dimension);
        prop_assert_eq!(all(&written(std::slice::from_ref(&batch), dimension), rows_max).unwrap(), batch);
    }
}
