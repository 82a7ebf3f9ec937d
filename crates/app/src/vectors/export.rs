//! `panoply vectors export`.
//!
//! A file appears only when it is complete, so that a partial file is never taken for a whole one.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use anyhow::Context;
use panoply::vector::Collection;
use panoply::vector::formats::{self, Batch, FileKind, FormatError, JsonLinesWriter, Writer, rows_per_batch};
use serde_json::{Map, Value, json};

use super::{counted, open_to_read, path_text, start};
use crate::configuration::Format;
use crate::configuration::store::KeySource;
use crate::configuration::vectors::{ExportOptions, ExportTarget};
use crate::failure::{Failure, say_on_interrupt};
use crate::partial::{GivenUp, Partial};
use crate::screen::Screen;
use crate::store::protected::ProtectedPlaces;

/// Writes all records.
pub fn run(options: &ExportOptions, key: Option<&KeySource>, screen: &mut Screen) -> Result<(), Failure> {
    if let ExportTarget::File { path, records, .. } = &options.target {
        let protected = ProtectedPlaces::of_collection(&options.path, key);
        protected.expect_outside("FILE", [path.clone()])?;
        protected.expect_outside("--records", records.clone())?;
    }
    let runtime = start()?;
    let collection = open_to_read(&options.path, key, &runtime)?;
    // All data is read anyway, and damaged vectors must not be exported.
    collection.verify()?;
    match &options.target {
        ExportTarget::Screen => to_screen(&collection),
        ExportTarget::File { path, kind, records } => {
            to_files(&collection, path, *kind, records.as_deref(), options.overwrite)?;
            report(&collection, path, *kind, records.is_some(), options.format, screen)
        }
    }
}

fn to_screen(collection: &Collection) -> Result<(), Failure> {
    let mut writer = JsonLinesWriter::new(BufWriter::new(io::stdout()), collection.schema().dimension);
    let written = copy(collection, |batch| writer.write(batch)).and_then(|()| writer.finish());
    match written {
        Err(FormatError::Io { source }) if source.kind() == io::ErrorKind::BrokenPipe => Err(Failure::ReaderGone),
        written => Ok(written.context("the output could not be written")?),
    }
}

fn to_files(
    collection: &Collection,
    path: &Path,
    kind: FileKind,
    records: Option<&Path>,
    overwrite: bool,
) -> Result<(), Failure> {
    let vectors = Partial::create(path, overwrite)?;
    let records = records.map(|records| Partial::create(records, overwrite)).transpose()?;
    say_on_interrupt(GivenUp::told);
    let written = (|| {
        let mut writer = formats::create(kind, vectors.file().map_err(io_error)?, collection.schema().dimension)?;
        let lines = records.as_ref().map(Partial::file).transpose().map_err(io_error)?;
        let mut lines = lines.map(BufWriter::new);
        copy(collection, |batch| {
            writer.write(batch)?;
            lines.as_mut().map_or(Ok(()), |lines| write_records(lines, batch))
        })?;
        lines.map_or(Ok(()), |mut lines| lines.flush().map_err(io_error))?;
        writer.finish()
    })();
    written.with_context(|| format!("{} could not be written", path.display()))?;
    vectors.complete()?;
    records.map_or(Ok(()), Partial::complete)
}

/// Passes all records to `write`, one batch at a time.
fn copy(collection: &Collection, mut write: impl FnMut(&Batch) -> Result<(), FormatError>) -> Result<(), FormatError> {
    let rows_max = rows_per_batch(collection.schema().dimension);
    let mut batch = Batch::default();
    for entry in collection.iter() {
        batch.ids.push(entry.id);
        batch.vectors.extend(entry.vector);
        batch.metadata.push(entry.metadata);
        if batch.ids.len() == rows_max {
            write(&batch)?;
            batch = Batch::default();
        }
    }
    if batch.ids.is_empty() { Ok(()) } else { write(&batch) }
}

/// Writes ids and metadata in the form that an import reads.
fn write_records(out: &mut impl Write, batch: &Batch) -> Result<(), FormatError> {
    for (id, metadata) in batch.ids.iter().zip(&batch.metadata) {
        let mut line = Map::from_iter([("id".to_owned(), json!(id))]);
        if !metadata.is_null() {
            line.insert("metadata".to_owned(), metadata.clone());
        }
        writeln!(out, "{}", Value::Object(line)).map_err(io_error)?;
    }
    Ok(())
}

fn io_error(source: io::Error) -> FormatError {
    FormatError::Io { source: source.into() }
}

fn report(
    collection: &Collection,
    path: &Path,
    kind: FileKind,
    with_records: bool,
    format: Format,
    screen: &mut Screen,
) -> Result<(), Failure> {
    let records = collection.len() as u64;
    if format == Format::Json {
        return screen.json(&json!({"path": path_text(path), "records": records}));
    }
    screen.line(format!("{} in {}.", counted(records, "record"), path.display()))?;
    if !kind.holds_metadata() && !with_records {
        screen.line("Ids and metadata are not in it; --records FILE.jsonl writes them beside it.")?;
    }
    Ok(())
}
