//! `panoply vectors import`.
//!
//! Each batch is acknowledged before the next one is read. If an import ends early (Ctrl-C, a full
//! disk, a damaged row), the collection has all batches before that point.
//!
//! A batch is sent as several writes, which the collection makes durable together. The rows of one
//! write share a checksum, so damage to the stored bytes costs no more than one write.

use std::fs::File;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use panoply::vector::formats::{self, Batch, PairedReader, VectorReader, rows_per_batch};
use panoply::vector::{Collection, Error, Task};
use serde_json::json;

use super::{counted, expect_dimension, grouped, open, path_text, start};
use crate::configuration::Format;
use crate::configuration::store::KeySource;
use crate::configuration::vectors::ImportOptions;
use crate::failure::{self, Failure};
use crate::gate::Gate;
use crate::screen::{Screen, spinner};
use crate::standard;

/// Rows in one write.
const WRITE_ROWS_MAX: usize = 1024;

/// Adds the vectors of a file.
pub fn run(options: &ImportOptions, key: Option<&KeySource>, screen: &mut Screen) -> Result<(), Failure> {
    let mut reader = reader(options)?;
    let runtime = start()?;
    let collection = open(&options.path, key, &runtime)?;
    expect_dimension(reader.as_ref(), collection.schema().dimension, &name(options))?;
    let taken: Arc<Gate<u64>> = Arc::default();
    announce(&taken);
    let start = Instant::now();
    let progress = progress_bar(reader.as_ref(), options)?;
    let outcome = copy(reader.as_mut(), &collection, options, &taken, &progress);
    progress.finish_and_clear();
    let rows = *taken.pass();
    outcome.with_context(|| not_to_its_end(options, rows))?;
    collection.flush()?;
    let seconds = start.elapsed().as_secs_f64();
    let rows_per_s = rows as f64 / seconds.max(1e-9);
    let left_out = reader.columns_left_out();
    match options.format {
        Format::Json => screen.json(&json!({
            "path": path_text(&options.path),
            "rows": rows,
            "records": collection.len(),
            "seconds": seconds,
            "rows_per_s": rows_per_s,
            "columns_left_out": left_out,
        })),
        Format::Table => {
            screen.prose(&format!(
                "{} in {seconds:.2} s ({} a second); {} holds {}.",
                counted(rows, "row"),
                grouped(rows_per_s as u64),
                options.path.display(),
                counted(collection.len() as u64, "record")
            ))?;
            if !left_out.is_empty() {
                let columns = left_out.join(", ");
                screen.prose(&format!("Left out, since metadata cannot hold their types: {columns}."))?;
            }
            Ok(())
        }
    }
}

fn reader(options: &ImportOptions) -> Result<Box<dyn VectorReader>, Failure> {
    let cannot = || format!("{} cannot be read", name(options));
    let vectors = match &options.file {
        Some(file) => formats::open_as(options.kind, file, &options.columns).with_context(cannot)?,
        None => {
            let input = standard::input().with_context(cannot)?;
            formats::read(options.kind, input, &options.columns).with_context(cannot)?
        }
    };
    let Some(records) = &options.records else { return Ok(vectors) };
    let file = File::open(records).with_context(|| format!("{} cannot be read", records.display()))?;
    Ok(Box::new(PairedReader::new(vectors, file)))
}

/// Names the source of the vectors.
fn name(options: &ImportOptions) -> String {
    options.file.as_ref().map_or_else(|| "the standard input".to_owned(), |file| file.display().to_string())
}

fn copy(
    reader: &mut dyn VectorReader,
    collection: &Collection,
    options: &ImportOptions,
    taken: &Gate<u64>,
    progress: &ProgressBar,
) -> anyhow::Result<()> {
    let rows_max = rows_per_batch(collection.schema().dimension);
    let in_rows = reader.rows().is_some();
    while let Some(mut batch) = reader.next_batch(rows_max)? {
        prefix(&mut batch, &options.id_prefix);
        let mut taken = taken.pass();
        write(&batch, collection, options, &mut taken)?;
        progress.set_position(if in_rows { *taken } else { reader.bytes_read() });
    }
    Ok(())
}

/// Writes a batch, and adds the number of rows that were written to `taken`, also after an error.
fn write(batch: &Batch, collection: &Collection, options: &ImportOptions, taken: &mut u64) -> Result<(), Error> {
    let mut vectors = batch.vectors.chunks(WRITE_ROWS_MAX * collection.schema().dimension);
    let mut metadata = batch.metadata.chunks(WRITE_ROWS_MAX);
    let send = |ids: &[String]| {
        let (vectors, metadata) = (vectors.next().unwrap_or_default(), metadata.next().unwrap_or_default());
        let written = match options.replace {
            true => collection.upsert_many_async(ids, vectors, metadata),
            false => collection.insert_many_async(ids, vectors, metadata),
        };
        (ids.len() as u64, written)
    };
    let writes: Vec<(u64, Task<()>)> = batch.ids.chunks(WRITE_ROWS_MAX).map(send).collect();
    let mut outcome = Ok(());
    for (rows, written) in writes {
        match written.wait() {
            Ok(()) => *taken += rows,
            Err(error) => outcome = outcome.and(Err(error)),
        }
    }
    outcome
}

fn not_to_its_end(options: &ImportOptions, rows: u64) -> String {
    let taken = match rows {
        0 => "nothing was taken".to_owned(),
        _ if options.replace => format!("{} taken", counted(rows, "row")),
        _ => format!("{} taken; import it again with --replace once that is mended", counted(rows, "row")),
    };
    format!("{} could not be imported to its end ({taken})", name(options))
}

fn prefix(batch: &mut Batch, prefix: &str) {
    if !prefix.is_empty() {
        batch.ids.iter_mut().for_each(|id| id.insert_str(0, prefix));
    }
}

/// Sets the message that reports on Ctrl-C how far the import has come.
fn announce(taken: &Arc<Gate<u64>>) {
    const UNKNOWN: &str = "interrupted in the middle of a batch: `panoply vectors count` tells how many rows are in the \
                           collection; --replace takes them again";
    let taken = Arc::clone(taken);
    failure::say_on_interrupt(move |_| match taken.close(|rows| *rows) {
        Some(rows) => {
            let are = if rows == 1 { "is" } else { "are" };
            let rows = counted(rows, "row");
            format!("interrupted; {rows} of the file {are} committed and durable; --replace takes them again")
        }
        None => UNKNOWN.to_owned(),
    });
}

/// Makes a progress bar that counts rows if the file gives their number, else bytes.
fn progress_bar(reader: &dyn VectorReader, options: &ImportOptions) -> Result<ProgressBar, Failure> {
    if !crate::verbosity::shows_progress() {
        return Ok(ProgressBar::hidden());
    }
    let length = match reader.rows() {
        Some(rows) => rows,
        None => {
            let bytes = |file| std::fs::metadata(file).map(|metadata| metadata.len());
            options.file.as_ref().and_then(|file| bytes(file).ok()).unwrap_or(0)
        }
    };
    let unit = if reader.rows().is_some() { "{human_pos}/{human_len} rows" } else { "{bytes}/{total_bytes}" };
    if length == 0 {
        // The total is unknown.
        return Ok(spinner("importing"));
    }
    let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template(&format!("{{bar:30}} {unit}  {{per_sec}}  {{eta}} left"));
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    Ok(bar)
}
