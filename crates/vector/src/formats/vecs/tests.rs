//! Tests with valid rows, and with rows that do not add up.

use std::io::Cursor;

use proptest::prelude::*;

use super::*;

fn open(bytes: &[u8], kind: VecsKind) -> Result<VecsReader<Cursor<Vec<u8>>>> {
    VecsReader::new(Cursor::new(bytes.to_vec()), Some(bytes.len() as u64), kind)
}

fn row(dimension: u32, components: &[f32]) -> Vec<u8> {
    dimension.to_le_bytes().into_iter().chain(components.iter().flat_map(|value| value.to_le_bytes())).collect()
}

#[test]
fn an_empty_file_has_no_rows() {
    let mut reader = open(&[], VecsKind::F32).unwrap();
    assert_eq!((reader.dimension(), reader.rows()), (None, Some(0)));
    assert_eq!(reader.next_batch(5).unwrap(), None);
}

#[test]
fn bytes_and_integers_are_read() {
    let bytes: Vec<u8> = [2_u32.to_le_bytes().as_slice(), &[3, 255]].concat();
    assert_eq!(open(&bytes, VecsKind::U8).unwrap().next_batch(9).unwrap().unwrap().vectors, [3.0, 255.0]);
    let integers: Vec<u8> = [1_i32, -7].iter().flat_map(|value| value.to_le_bytes()).collect();
    assert_eq!(open(&integers, VecsKind::I32).unwrap().next_batch(9).unwrap().unwrap().vectors, [-7.0]);
}

#[test]
fn dimensions_that_make_no_sense_are_refused() {
    for dimension in [0, 65_537, u32::MAX, 1 << 31] {
        let error = open(&row(dimension, &[0.0]), VecsKind::F32).map(drop).unwrap_err();
        assert!(matches!(error, FormatError::DimensionRange { .. }), "{error}");
    }
    let changing = [row(2, &[0.0, 1.0]), row(1, &[0.0, 1.0])].concat();
    let error = open(&changing, VecsKind::F32).unwrap().next_batch(9).unwrap_err();
    assert!(matches!(error, FormatError::DimensionChange { row: 1, expected: 2, got: 1 }), "{error}");
}

#[test]
fn files_that_are_cut_short_are_refused() {
    let whole = [row(2, &[0.0, 1.0]), row(2, &[2.0, 3.0])].concat();
    for length in 1..whole.len() {
        if length % 12 == 0 {
            continue;
        }
        let error = open(&whole[..length], VecsKind::F32).map(drop).unwrap_err();
        assert!(matches!(error, FormatError::Truncated { .. }), "{length}: {error}");
        // A pipe has no length, so the missing bytes are noticed when they are read.
        let stream = VecsReader::new(Cursor::new(whole[..length].to_vec()), None, VecsKind::F32);
        let error = stream.and_then(|mut reader| reader.next_batch(9)).unwrap_err();
        assert!(matches!(error, FormatError::Truncated { .. }), "{length}: {error}");
    }
}

#[test]
fn components_that_are_not_numbers_are_refused() {
    let bytes = [row(2, &[0.0, 1.0]), row(2, &[f32::INFINITY, 3.0])].concat();
    let error = open(&bytes, VecsKind::F32).unwrap().next_batch(9).unwrap_err();
    assert!(matches!(error, FormatError::NotFinite { row: 1, component: 0, .. }), "{error}");
}

#[test]
fn bytes_hold_bytes_alone() {
    let write = |value| {
        let batch = Batch { vectors: vec![1.0, value], ..Batch::default() };
        VecsWriter::new(Vec::new(), 2, VecsKind::U8).write(&batch)
    };
    write(255.0).unwrap();
    for value in [256.0, -1.0, 0.5] {
        assert!(matches!(write(value), Err(FormatError::NotRepresentable { row: 0, component: 1, .. })));
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read(rows in 1..40_usize, dimension in 1..9_usize, batch in 1..50_usize, known: bool) {
        let vectors: Vec<f32> = (0..rows * dimension).map(|index| (index % 256) as f32).collect();
        for kind in [VecsKind::F32, VecsKind::U8, VecsKind::I32] {
            let mut bytes = Vec::new();
            let mut writer = VecsWriter::new(&mut bytes, dimension, kind);
            writer.write(&Batch { vectors: vectors.clone(), ..Batch::default() }).unwrap();
            writer.finish().unwrap();
            let length = known.then_some(bytes.len() as u64);
            let mut reader = VecsReader::new(Cursor::new(bytes), length, kind).unwrap();
            prop_assert_eq!(reader.rows(), known.then_some(rows as u64));
            let mut read = Vec::new();
            while let Some(next) = reader.next_batch(batch).unwrap() {
                prop_assert!(next.ids.len() <= batch);
                read.extend(next.vectors);
            }
            prop_assert_eq!(&read, &vectors);
        }
    }
}
