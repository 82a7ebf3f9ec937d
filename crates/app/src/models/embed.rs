//! `panoply embed`: turns texts or pictures into vectors, and prints them or puts them into a
//! collection.

use std::io::Read;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use anyhow::{Context, anyhow};
use panoply::Runtime;
use panoply::inputs::picture::Normalisation;
use panoply::serve::tasks;
use panoply::vector::{Collection, EmbeddingModel, Metric, Options, Residency, Schema};
use serde_json::{Value, json};

use super::text_model::{self, TextModel};
use super::{bytes_of, devices_of, load, picture_of, spoken};
use crate::configuration::Format;
use crate::configuration::models::{EmbedOptions, Lines};
use crate::failure::Failure;
use crate::screen::Screen;
use crate::standard;
use crate::store::commit::{Commit, CommitState};
use crate::vectors::{counted, start};

/// The largest input of texts that is read, in bytes.
const INPUT_BYTES_MAX: u64 = 1 << 32;

/// A vector with its id, and metadata about its source.
struct EmbeddingRow {
    id: String,
    vector: Vec<f32>,
    metadata: Value,
}

/// The rows that are put into a collection, for the final message.
#[derive(Debug)]
struct InsertedRows {
    count: usize,
    first: String,
    last: String,
    /// Whether the same command puts the rows under other ids.
    is_doubled_by_repeating: bool,
}

impl InsertedRows {
    fn of(rows: &[EmbeddingRow], is_doubled_by_repeating: bool) -> InsertedRows {
        let id = |row: Option<&EmbeddingRow>| row.map_or(String::new(), |row| row.id.clone());
        InsertedRows { count: rows.len(), first: id(rows.first()), last: id(rows.last()), is_doubled_by_repeating }
    }

    /// The final message of a command whose rows are committed (`true`), or may be (`false`).
    fn text(&self, path: &str, is_known: bool) -> String {
        let InsertedRows { count, first, last, .. } = self;
        let ids = if count == &1 { format!("id `{first}`") } else { format!("ids `{first}` to `{last}`") };
        let rows = counted_are(*count);
        match (is_known, self.is_doubled_by_repeating) {
            (true, true) => format!(
                "{rows} committed and durable in {path}, with the {ids}: do not repeat the command, which would add \
                 them again under new ids"
            ),
            (true, false) => {
                format!("{rows} committed and durable in {path}, with the {ids}; the same command replaces them")
            }
            (false, true) => format!(
                "it is unknown whether {rows} committed in {path}, all or none, with the {ids}: repeat the command only \
                 if `panoply vectors get {path} {last}` finds nothing"
            ),
            (false, false) => format!(
                "it is unknown whether {rows} committed in {path}, all or none; the same command adds or replaces them"
            ),
        }
    }
}

fn counted_are(count: usize) -> String {
    format!("{} {}", counted(count as u64, "row"), if count == 1 { "is" } else { "are" })
}

/// Sets the messages about the one commit. `written` is set before the commit begins.
fn announce(path: &str, written: &Arc<OnceLock<InsertedRows>>) -> Commit {
    let (path, written) = (path.to_owned(), Arc::clone(written));
    Commit::announced_by(move |made| match (made, written.get()) {
        (CommitState::Yes, Some(written)) => written.text(&path, true),
        (CommitState::Unknown, Some(written)) => written.text(&path, false),
        (CommitState::No, _) | (_, None) => format!("no row is committed in {path}; the same command adds all of them"),
    })
}

/// Runs `panoply embed`.
pub fn run(options: &EmbedOptions, screen: &mut Screen) -> Result<(), Failure> {
    let runtime = start()?;
    // Another model is refused before the vectors are computed, which may take long.
    let existing = options.into.as_deref().filter(|folder| folder.exists());
    let existing = existing.map(|folder| existing_collection(&runtime, folder, options)).transpose()?;
    let started = Instant::now();
    let (mut rows, devices) =
        if options.pictures.is_empty() { texts(&runtime, options)? } else { pictures(&runtime, options)? };
    let Some(folder) = &options.into else {
        let shown = |row: &EmbeddingRow| json!({ "id": row.id, "vector": row.vector, "metadata": row.metadata });
        return rows.iter().try_for_each(|row| screen.json_line(&shown(row)));
    };
    let embed_ms = started.elapsed().as_secs_f64() * 1e3;
    let path = folder.display().to_string();
    let Some(dimension) = rows.first().map(|row| row.vector.len()) else {
        return Err(anyhow!("there is no text to embed; {path} is as it was").into());
    };
    let written = Arc::new(OnceLock::new());
    let commit = announce(&path, &written);
    let collection = match existing {
        Some(collection) => collection,
        None => new_collection(&runtime, folder, dimension, options)?,
    };
    if options.pictures.is_empty() {
        let first = next_number(&collection);
        rows.iter_mut().zip(first..).for_each(|(row, number)| row.id = number.to_string());
    }
    let _ = written.set(InsertedRows::of(&rows, options.pictures.is_empty()));
    commit.make(|| put(&collection, &rows).map_err(|error| (error, true))).map_err(|(error, _)| error)?;
    let (count, len) = (rows.len(), collection.len());
    screen.note_done(format!("{} committed in {path}", counted_are(count)));
    match options.format {
        Format::Json => {
            let told =
                json!({ "path": path, "embedded": count, "records": len, "devices": devices, "embed_ms": embed_ms });
            screen.json(&told)
        }
        Format::Table => {
            let were = if count == 1 { "was" } else { "were" };
            let (vectors, records) = (counted(count as u64, "vector"), counted(len as u64, "record"));
            screen.prose(&format!("{vectors} {were} put into {path}, which has {records} now."))?;
            let devices = spoken(&devices);
            screen.line(screen.faint(&format!("embedded by {devices} in {embed_ms:.1} ms")))
        }
    }
}

fn put(collection: &Collection, rows: &[EmbeddingRow]) -> Result<(), Failure> {
    let ids: Vec<&str> = rows.iter().map(|row| row.id.as_str()).collect();
    let vectors: Vec<f32> = rows.iter().flat_map(|row| row.vector.iter().copied()).collect();
    let metadata: Vec<Value> = rows.iter().map(|row| row.metadata.clone()).collect();
    collection.upsert_many(&ids, &vectors, &metadata)?;
    Ok(collection.flush()?)
}

/// Returns the vectors of the texts, and the devices that computed them.
fn texts(runtime: &Runtime, options: &EmbedOptions) -> Result<(Vec<EmbeddingRow>, Vec<String>), Failure> {
    let mut texts = options.texts.clone();
    if let Some(lines) = &options.lines {
        let text = text_of(lines)?;
        texts.extend(text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned));
    }
    let model = TextModel::load(runtime, &options.model, options.vocabulary.as_deref())?;
    let vectors = model.embed(&texts)?;
    let row = |(number, (text, vector)): (usize, (&String, Vec<f32>))| EmbeddingRow {
        id: (number + 1).to_string(),
        vector,
        metadata: json!({ "text": text }),
    };
    let rows = texts.iter().zip(vectors).enumerate().map(row).collect();
    Ok((rows, devices_of(&model.model)))
}

/// Reads the whole text of a file or of the standard input.
fn text_of(lines: &Lines) -> Result<String, Failure> {
    let (bytes, name) = match lines {
        Lines::File(file) => (bytes_of(file)?, file.display().to_string()),
        Lines::Input => {
            let mut bytes = Vec::new();
            let cannot = "the standard input cannot be read";
            let input = standard::input().context(cannot)?;
            input.take(INPUT_BYTES_MAX + 1).read_to_end(&mut bytes).context(cannot)?;
            if bytes.len() as u64 > INPUT_BYTES_MAX {
                return Err(anyhow!("the standard input is longer than {INPUT_BYTES_MAX} bytes").into());
            }
            (bytes, "the standard input".to_owned())
        }
    };
    Ok(String::from_utf8(bytes).with_context(|| format!("{name} is no UTF-8 text"))?)
}

/// Returns the vectors of the pictures, and the devices that computed them.
fn pictures(runtime: &Runtime, options: &EmbedOptions) -> Result<(Vec<EmbeddingRow>, Vec<String>), Failure> {
    let model = load(runtime, &options.model)?;
    let row = |file: &std::path::PathBuf| {
        let vector = tasks::embed_pictures(&model, &picture_of(file)?, Normalisation::IMAGENET);
        let name = file.display().to_string();
        Ok(EmbeddingRow { vector: vector.map_err(anyhow::Error::new)?, metadata: json!({ "file": name }), id: name })
    };
    let rows = options.pictures.iter().map(row).collect::<Result<_, Failure>>()?;
    Ok((rows, devices_of(&model)))
}

/// Returns the next free number as an id. Texts have no names of their own, and a new text must not
/// replace another.
fn next_number(collection: &Collection) -> u64 {
    let numbers = collection.iter().filter_map(|entry| entry.id.parse::<u64>().ok());
    // Ids in the upper half of the range count as names, not numbers, so that free numbers follow
    // the last one.
    numbers.filter(|number| *number < u64::MAX / 2).max().map_or(1, |last| last + 1)
}

/// Opens the collection that the vectors go to, and checks that its vectors come from the same
/// model.
fn existing_collection(runtime: &Runtime, folder: &Path, options: &EmbedOptions) -> Result<Collection, Failure> {
    let collection = Collection::open(runtime, folder, on_host())?;
    text_model::remember(&collection, identity(runtime, options)?)?;
    Ok(collection)
}

fn new_collection(
    runtime: &Runtime,
    folder: &Path,
    dimension: usize,
    options: &EmbedOptions,
) -> Result<Collection, Failure> {
    let model = identity(runtime, options)?;
    let name = folder.file_name().map_or("vectors".to_owned(), |name| name.to_string_lossy().into_owned());
    let collection = Collection::create(runtime, folder, Schema::new(name, dimension, Metric::Cosine), on_host())?;
    text_model::remember(&collection, model)?;
    Ok(collection)
}

fn identity(runtime: &Runtime, options: &EmbedOptions) -> Result<EmbeddingModel, Failure> {
    text_model::identity(runtime, &options.model, options.vocabulary.as_deref())
}

fn on_host() -> Options {
    Options { residency: Residency::Host, ..Options::default() }
}
