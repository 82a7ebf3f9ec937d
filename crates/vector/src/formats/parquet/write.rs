//! Writing: the columns `id` (text), `vector` (list of float) and `metadata` (JSON text).

use std::io::Write;
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType, FloatType};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use serde_json::Value;

use super::super::batch::{Batch, Writer};
use super::super::error::{FormatError, Result};
use super::FORMAT;

const SCHEMA: &str = "message vectors {
    required binary id (UTF8);
    required group vector (LIST) { repeated group list { required float element; } }
    optional binary metadata (JSON);
}";

/// Writes a file with one row group per batch.
pub struct ParquetWriter<W: Write + Send> {
    /// `None` after `finish`.
    file: Option<SerializedFileWriter<W>>,
    dimension: usize,
}

impl<W: Write + Send> ParquetWriter<W> {
    /// Begins a file.
    pub fn new(out: W, dimension: usize) -> Result<ParquetWriter<W>> {
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            // Vector components hardly ever repeat, so a dictionary would not pay.
            .set_dictionary_enabled(false)
            .build();
        let schema = parse_message_type(SCHEMA).map_err(failed)?;
        let file = SerializedFileWriter::new(out, Arc::new(schema), Arc::new(properties)).map_err(failed)?;
        Ok(ParquetWriter { file: Some(file), dimension })
    }
}

impl<W: Write + Send> Writer for ParquetWriter<W> {
    fn write(&mut self, batch: &Batch) -> Result<()> {
        let Some(file) = &mut self.file else { return Err(FormatError::header(FORMAT, "the file is finished")) };
        if batch.ids.is_empty() {
            return Ok(());
        }
        write_group(file, batch, self.dimension).map_err(failed)
    }

    fn finish(&mut self) -> Result<()> {
        let Some(file) = self.file.take() else { return Ok(()) };
        let mut out = file.into_inner().map_err(failed)?;
        out.flush().map_err(FormatError::io)
    }
}

fn write_group<W: Write + Send>(
    file: &mut SerializedFileWriter<W>,
    batch: &Batch,
    dimension: usize,
) -> Result<(), ParquetError> {
    let mut group = file.next_row_group()?;
    if let Some(mut column) = group.next_column()? {
        let ids: Vec<ByteArray> = batch.ids.iter().map(|id| ByteArray::from(id.as_str())).collect();
        column.typed::<ByteArrayType>().write_batch(&ids, None, None)?;
        column.close()?;
    }
    if let Some(mut column) = group.next_column()? {
        let definitions = vec![1; batch.vectors.len()];
        let repetitions: Vec<i16> = (0..batch.vectors.len()).map(|at| i16::from(at % dimension != 0)).collect();
        column.typed::<FloatType>().write_batch(&batch.vectors, Some(&definitions), Some(&repetitions))?;
        column.close()?;
    }
    if let Some(mut column) = group.next_column()? {
        let of_row = |row: usize| batch.metadata.get(row).filter(|metadata| !metadata.is_null());
        let definitions: Vec<i16> = (0..batch.ids.len()).map(|row| i16::from(of_row(row).is_some())).collect();
        let texts: Vec<ByteArray> =
            batch.metadata.iter().filter(|metadata| !metadata.is_null()).map(json_text).collect();
        column.typed::<ByteArrayType>().write_batch(&texts, Some(&definitions), None)?;
        column.close()?;
    }
    group.close().map(drop)
}

fn json_text(metadata: &Value) -> ByteArray {
    ByteArray::from(metadata.to_string().as_str())
}

/// Converts an error; the library wraps operating system errors as external errors.
fn failed(error: ParquetError) -> FormatError {
    match error {
        ParquetError::External(source) => match source.downcast::<std::io::Error>() {
            Ok(source) => FormatError::io(*source),
            Err(source) => FormatError::header(FORMAT, source.to_string()),
        },
        other => FormatError::header(FORMAT, other.to_string()),
    }
}
