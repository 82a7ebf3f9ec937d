//! Combines a file of vectors with a file of JSON lines that has their ids and metadata, row by
//! row.

use std::io::Read;

use super::batch::{Batch, VectorReader};
use super::error::{FormatError, Result};
use super::jsonl::RecordsReader;

/// The vectors of one file with the records of another.
pub struct PairedReader<R> {
    vectors: Box<dyn VectorReader>,
    records: RecordsReader<R>,
    rows: u64,
}

impl<R: Read> PairedReader<R> {
    /// Combines both. The records replace any ids and metadata of the vectors' own file.
    pub fn new(vectors: Box<dyn VectorReader>, records: R) -> PairedReader<R> {
        PairedReader { vectors, records: RecordsReader::new(records), rows: 0 }
    }
}

impl<R: Read + Send> VectorReader for PairedReader<R> {
    fn dimension(&self) -> Option<usize> {
        self.vectors.dimension()
    }

    fn rows(&self) -> Option<u64> {
        self.vectors.rows()
    }

    fn bytes_read(&self) -> u64 {
        self.vectors.bytes_read()
    }

    fn next_batch(&mut self, rows_max: usize) -> Result<Option<Batch>> {
        let Some(mut batch) = self.vectors.next_batch(rows_max)? else {
            return match self.records.next_record()? {
                None => Ok(None),
                Some(_) => Err(FormatError::CountMismatch { vectors: self.rows, records: self.rows + 1 }),
            };
        };
        let rows = batch.ids.len();
        (batch.ids, batch.metadata) = (Vec::with_capacity(rows), Vec::with_capacity(rows));
        for row in 0..rows {
            let Some((id, metadata)) = self.records.next_record()? else {
                let records = self.rows + row as u64;
                return Err(FormatError::CountMismatch { vectors: self.rows + rows as u64, records });
            };
            batch.ids.push(id);
            batch.metadata.push(metadata);
        }
        self.rows += rows as u64;
        Ok(Some(batch))
    }

    fn columns_left_out(&self) -> &[String] {
        self.vectors.columns_left_out()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::vecs::{VecsKind, VecsReader};
    use super::*;

    fn paired(records: &'static str) -> PairedReader<&'static [u8]> {
        let bytes: Vec<u8> = (0..3_u8).flat_map(|row| [1, 0, 0, 0, row]).collect();
        let length = Some(bytes.len() as u64);
        let vectors = VecsReader::new(std::io::Cursor::new(bytes), length, VecsKind::U8).unwrap();
        PairedReader::new(Box::new(vectors), records.as_bytes())
    }

    #[test]
    fn rows_get_their_records() {
        let mut reader = paired("{\"id\": \"a\"}\n{\"id\": \"b\", \"x\": 1}\n{\"id\": \"c\"}\n");
        let first = reader.next_batch(2).unwrap().unwrap();
        assert_eq!((first.ids, first.vectors), (vec!["a".to_owned(), "b".to_owned()], vec![0.0, 1.0]));
        assert_eq!(first.metadata[1], json!({"x": 1}));
        assert_eq!(reader.next_batch(2).unwrap().unwrap().ids, ["c"]);
        assert_eq!(reader.next_batch(2).unwrap(), None);
    }

    #[test]
    fn files_that_do_not_belong_together_are_noticed() {
        let error = paired("{}\n{}").next_batch(9).unwrap_err();
        assert!(matches!(error, FormatError::CountMismatch { vectors: 3, records: 2 }), "{error}");
        let mut reader = paired("{}\n{}\n{}\n{}");
        reader.next_batch(9).unwrap().unwrap();
        let error = reader.next_batch(9).unwrap_err();
        assert!(matches!(error, FormatError::CountMismatch { vectors: 3, records: 4 }), "{error}");
    }
}
