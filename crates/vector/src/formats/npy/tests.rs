//! Tests with arrays as NumPy writes them, and with malformed ones.

use std::io::Cursor;

use proptest::prelude::*;

use super::*;

fn file(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend([1, 0]);
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.bytes());
    bytes.extend(data);
    bytes
}

fn open(bytes: &[u8]) -> Result<NpyReader<Cursor<Vec<u8>>>> {
    NpyReader::new(Cursor::new(bytes.to_vec()), Some(bytes.len() as u64))
}

fn refused(bytes: &[u8]) -> FormatError {
    match open(bytes).and_then(|mut reader| reader.next_batch(100)) {
        Ok(_) => panic!("it was read"),
        Err(error) => error,
    }
}

fn shaped(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    file(&format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n"), data)
}

#[test]
fn every_element_type_is_read() {
    let expected = [1.0, -2.0];
    let f16s: Vec<u8> = expected.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect();
    let f32s: Vec<u8> = expected.iter().flat_map(|value: &f32| value.to_be_bytes()).collect();
    let f64s: Vec<u8> = expected.iter().flat_map(|value| f64::from(*value).to_le_bytes()).collect();
    for (descr, data) in [("<f2", f16s), (">f4", f32s), ("<f8", f64s), ("|i1", vec![1, 254])] {
        let mut reader = open(&shaped(descr, "(1, 2)", &data)).unwrap();
        assert_eq!((reader.dimension(), reader.rows()), (Some(2), Some(1)));
        assert_eq!(reader.next_batch(10).unwrap().unwrap().vectors, expected, "{descr}");
        assert_eq!(reader.next_batch(10).unwrap(), None);
    }
    let mut reader = open(&shaped("|u1", "(2L,)", &[7, 255])).unwrap();
    assert_eq!(reader.next_batch(10).unwrap().unwrap().vectors, [7.0, 255.0]);
}

#[test]
fn later_versions_are_read() {
    let header = "{\"shape\": (1, 1), 'fortran_order': False, 'descr': '|u1'}";
    let mut bytes = MAGIC.to_vec();
    bytes.extend([3, 0]);
    bytes.extend((header.len() as u32).to_le_bytes());
    bytes.extend(header.bytes());
    bytes.push(9);
    assert_eq!(open(&bytes).unwrap().next_batch(1).unwrap().unwrap().vectors, [9.0]);
}

#[test]
fn a_header_that_claims_too_much_is_refused_before_anything_is_allocated() {
    let claims = ["(1152921504606846976, 128)", "(18446744073709551615, 65536)", "(1000, 2)"];
    let error = refused(&shaped("<f4", claims[0], &[0; 16]));
    assert!(matches!(error, FormatError::Header { .. } | FormatError::Truncated { .. }), "{error}");
    assert!(matches!(refused(&shaped("<f4", claims[1], &[0; 16])), FormatError::Header { .. }));
    let error = refused(&shaped("<f4", claims[2], &[0; 16]));
    assert!(matches!(error, FormatError::Truncated { expected_bytes: 8066.., .. }), "{error}");
    for shape in ["(1, 0)", "(1, 65537)", "(1, 4611686018427387904)"] {
        assert!(matches!(refused(&shaped("<f4", shape, &[])), FormatError::DimensionRange { .. }), "{shape}");
    }
    // Without a known length, the early end of the stream is detected instead.
    let bytes = shaped("<f4", "(1152921504606846, 128)", &[0; 16]);
    let mut reader = NpyReader::new(Cursor::new(bytes), None).unwrap();
    assert!(matches!(reader.next_batch(1000), Err(FormatError::Truncated { .. })));
}

#[test]
fn what_is_not_supported_says_what_to_do() {
    let fortran = file("{'descr': '<f4', 'fortran_order': True, 'shape': (1, 2), }", &[0; 8]);
    assert!(refused(&fortran).to_string().contains("ascontiguousarray"));
    assert!(refused(&shaped("<i4", "(1, 1)", &[0; 4])).to_string().contains("astype"));
    assert!(refused(&shaped("<f4", "(1, 1, 1)", &[0; 4])).to_string().contains("reshape"));
    let structures = file("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }", &[0; 4]);
    assert!(refused(&structures).to_string().contains("structures"));
}

#[test]
fn damaged_headers_are_refused() {
    for bytes in
        [&b""[..], b"\x93NUMP", b"PARQUETS", b"\x93NUMPY\x09\x00\x00\x00", b"\x93NUMPY\x02\x00\xff\xff\xff\xff"]
    {
        let error = refused(bytes);
        assert!(matches!(error, FormatError::Header { .. } | FormatError::TooLarge { .. }), "{error}");
    }
    for header in
        ["", "{", "{}", "{'descr': '<f4'}", "{'a': 1}", "{'shape': (1,2,)", "{'shape': (-1, 2)}", "{'descr': 'f'}"]
    {
        assert!(matches!(refused(&file(header, &[0; 8])), FormatError::Header { .. }), "{header}");
    }
}

#[test]
fn components_that_are_not_numbers_are_refused_with_their_place() {
    let data: Vec<u8> = [0.0, 1.0, 2.0, f32::NAN].iter().flat_map(|value| value.to_le_bytes()).collect();
    let error = refused(&shaped("<f4", "(2, 2)", &data));
    assert!(matches!(error, FormatError::NotFinite { row: 1, component: 1, .. }), "{error}");
    let error = refused(&shaped("<f8", "(1, 1)", &1e300_f64.to_le_bytes()));
    assert!(matches!(error, FormatError::NotFinite { row: 0, component: 0, .. }), "{error}");
}

proptest! {
    #[test]
    fn what_is_written_is_read(rows in 0..40_usize, dimension in 1..9_usize, batch in 1..50_usize) {
        let vectors: Vec<f32> = (0..rows * dimension).map(|index| index as f32 / 3.0).collect();
        let mut out = Cursor::new(Vec::new());
        let mut writer = NpyWriter::new(&mut out, dimension).unwrap();
        for vectors in vectors.chunks(batch * dimension) {
            writer.write(&Batch { vectors: vectors.to_vec(), ..Batch::default() }).unwrap();
        }
        writer.finish().unwrap();
        let mut reader = open(out.get_ref()).unwrap();
        prop_assert_eq!(reader.rows(), Some(rows as u64));
        let (mut read, mut ids) = (Vec::new(), Vec::new());
        while let Some(next) = reader.next_batch(batch).unwrap() {
            prop_assert!(next.ids.len() <= batch && next.vectors.len() == next.ids.len() * dimension);
            read.extend(next.vectors);
            ids.extend(next.ids);
        }
        prop_assert_eq!(read, vectors);
        prop_assert_eq!(ids, numbered(0, rows));
    }

    #[test]
    fn no_header_makes_the_reader_panic(text in "[{}'(),:a-z0-9<>| ]{0,60}") {
        if let Ok(mut reader) = open(&file(&text, &[0; 64])) {
            let _ = reader.next_batch(4);
        }
    }
}
