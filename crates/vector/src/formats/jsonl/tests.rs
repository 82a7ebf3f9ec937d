//! Tests with valid and malformed lines.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn read(text: &str) -> Result<Vec<Batch>> {
    let mut reader = JsonLinesReader::new(text.as_bytes())?;
    let mut batches = Vec::new();
    while let Some(batch) = reader.next_batch(2)? {
        batches.push(batch);
    }
    Ok(batches)
}

#[test]
fn both_forms_of_metadata_are_read() {
    let text = "{\"id\": \"a\", \"vector\": [1, 2.5], \"metadata\": {\"x\": 1}}\n\n\
        {\"id\": 7, \"embedding\": [0, -1e2], \"x\": 2, \"metadata\": {\"y\": {\"z\": null}}}\r\n\
        {\"vector\": [3, 4]}";
    let batches = read(text).unwrap();
    assert_eq!(batches.len(), 2);
    assert_eq!(batches[0].ids, ["a", "7"]);
    assert_eq!(batches[0].vectors, [1.0, 2.5, 0.0, -100.0]);
    assert_eq!(batches[0].metadata, [json!({"x": 1}), json!({"x": 2, "y": {"z": null}})]);
    assert_eq!((&batches[1].ids, &batches[1].metadata), (&vec!["2".to_owned()], &vec![Value::Null]));
}

#[test]
fn nothing_is_no_rows() {
    for text in ["", "\n \n"] {
        let mut reader = JsonLinesReader::new(text.as_bytes()).unwrap();
        assert_eq!((reader.dimension(), reader.next_batch(4).unwrap()), (None, None));
    }
}

#[test]
fn mistakes_say_their_line() {
    let good = "{\"id\": \"a\", \"vector\": [1, 2]}\n";
    for (line, word) in [
        ("{\"id\": \"b\", \"vector\": [1, 2]", "ends before"),
        ("{\"id\": \"b\"}", "no `vector`"),
        ("{\"id\": null, \"vector\": [1, 2]}", "neither a text nor an integer"),
        ("{\"id\": 1.5, \"vector\": [1, 2]}", "neither a text nor an integer"),
        ("{\"vector\": [1, null]}", "null"),
        ("{\"vector\": 1}", "a list of numbers"),
        ("{\"vector\": [1, 2], \"metadata\": 3}", "not an object"),
        ("{\"vector\": [1, 2], \"x\": 3, \"metadata\": {\"x\": 4}}", "twice"),
        ("{\"vector\": [1, 2], \"vector\": [1, 2]}", "twice"),
        ("[1, 2]", "an object"),
        ("not json", "column"),
        ("{} {}", "column"),
    ] {
        let error = read(&format!("{good}{line}\n")).unwrap_err();
        assert!(matches!(error, FormatError::Record { place: "line", at: 2, .. }), "{line}: {error}");
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[test]
fn vectors_that_do_not_fit_are_refused() {
    let error = read("{\"vector\": [1, 2]}\n{\"vector\": [1]}").unwrap_err();
    assert!(matches!(error, FormatError::DimensionChange { row: 1, expected: 2, got: 1 }), "{error}");
    let error = read("{\"vector\": [1, 1e39]}").unwrap_err();
    assert!(matches!(error, FormatError::NotFinite { row: 0, component: 1, .. }), "{error}");
    assert!(matches!(read("{\"vector\": []}"), Err(FormatError::DimensionRange { got: 0, .. })));
    let endless = format!("{{\"vector\": [{}0]}}", "0,".repeat(crate::schema::DIMENSION_MAX));
    assert!(read(&endless).unwrap_err().to_string().contains("more than"));
    let deep = format!("{{\"vector\": [1], \"x\": {}", "[".repeat(100_000));
    assert!(matches!(read(&deep), Err(FormatError::Record { .. })));
}

#[test]
fn a_line_without_end_is_refused() {
    struct Endless;
    impl Read for Endless {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            buffer.fill(b' ');
            Ok(buffer.len())
        }
    }
    assert!(matches!(JsonLinesReader::new(Endless).map(drop), Err(FormatError::TooLarge { .. })));
}

#[test]
fn records_need_no_vectors() {
    let mut records = RecordsReader::new(&b"{\"id\": \"a\", \"x\": 1}\n{\"vector\": [1], \"y\": 2}"[..]);
    assert_eq!(records.next_record().unwrap(), Some(("a".to_owned(), json!({"x": 1}))));
    assert_eq!(records.next_record().unwrap(), Some(("1".to_owned(), json!({"y": 2}))));
    assert_eq!(records.next_record().unwrap(), None);
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        rows in proptest::collection::vec(("[a-z\"\\\\é\n]{0,5}", any::<[f32; 3]>(), proptest::option::of("[a-z\n]{0,4}")), 0..9),
    ) {
        let finite = |vector: [f32; 3]| vector.map(|value| if value.is_finite() { value } else { 0.0 });
        let batch = Batch {
            ids: rows.iter().map(|(id, ..)| id.clone()).collect(),
            vectors: rows.iter().flat_map(|(_, vector, _)| finite(*vector)).collect(),
            metadata: rows.iter().map(|(.., field)| field.as_ref().map_or(Value::Null, |field| json!({"f": field}))).collect(),
        };
        let mut bytes = Vec::new();
        let mut writer = JsonLinesWriter::new(&mut bytes, 3);
        writer.write(&batch).unwrap();
        writer.finish().unwrap();
        let read = JsonLinesReader::new(bytes.as_slice()).unwrap().next_batch(100).unwrap();
        prop_assert_eq!(read.unwrap_or_default(), batch);
    }
}
