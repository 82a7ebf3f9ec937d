//! `panoply vectors export`.
//!
//! A file is written under another name and renamed when it is complete, so that no half file is taken for a whole one.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use panoply::vector::Collection;
use panoply::vector::formats::{self, Batch, FileKind, FormatError, JsonLinesWriter, Writer, rows_per_batch};
use serde_json::{Map, Value, json};

use super::{counted, open_to_read, path_text, start};
use crate::configuration::Format;
use crate::configuration::vectors::{ExportOptions, Target};
use crate::failure::{Failure, say_on_interrupt};
use crate::screen::Screen;

/// Writes every record.
pub fn run(options: &ExportOptions, screen: &mut Screen) -> Result<(), Failure> {
    let runtime = start()?;
    let collection = open_to_read(&options.path, &runtime)?;
    // Everything is read anyway, and damaged vectors are not handed on.
    collection.verify()?;
    match &options.target {
        Target::Screen => to_screen(&collection),
        Target::File { path, kind, records } => {
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
    let partial: Vec<PathBuf> =
        [Some(&vectors), records.as_ref()].into_iter().flatten().map(|of| of.path.clone()).collect();
    say_on_interrupt(move || {
        // Destructors do not run then.
        partial.iter().for_each(|path| drop(std::fs::remove_file(path)));
        "interrupted; no file was written".to_owned()
    });
    let written = (|| {
        let mut writer = formats::create(kind, vectors.file()?, collection.schema().dimension)?;
        let lines = records.as_ref().map(Partial::file).transpose()?;
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

/// Hands every record to `write`, a batch at a time.
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

/// Ids and metadata in the form that an import takes them in.
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

/// A file that is being written. Unless it is completed, it is removed again.
struct Partial {
    target: PathBuf,
    /// Where it is until then.
    path: PathBuf,
    completed: bool,
}

impl Partial {
    fn create(target: &Path, overwrite: bool) -> Result<Partial, Failure> {
        if target.exists() && !overwrite {
            let problem = anyhow::anyhow!("{} exists already; --overwrite replaces it", target.display());
            return Err(Failure::Run(problem));
        }
        let mut name = target.file_name().map_or_else(OsString::new, ToOwned::to_owned);
        name.push(format!(".{}.partial", std::process::id()));
        let path = target.with_file_name(name);
        // What is there under that name is left over from a process that was killed, or a link that leads elsewhere.
        let _ = std::fs::remove_file(&path);
        let made = File::options().write(true).create_new(true).open(&path);
        made.with_context(|| format!("{} cannot be written", target.display()))?;
        Ok(Partial { target: target.to_owned(), path, completed: false })
    }

    fn file(&self) -> Result<File, FormatError> {
        File::options().read(true).write(true).open(&self.path).map_err(io_error)
    }

    fn complete(mut self) -> Result<(), Failure> {
        let cannot = || format!("{} could not be written", self.target.display());
        File::open(&self.path).and_then(|file| file.sync_all()).with_context(cannot)?;
        std::fs::rename(&self.path, &self.target).with_context(cannot)?;
        self.completed = true;
        Ok(())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.completed {
            // If even that fails, the name says that it is not whole.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
