//! `panoply embed`: turns texts or pictures into vectors, and prints them or puts them into a
//! collection.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, anyhow};
use panoply::Runtime;
use panoply::inputs::picture::Normalisation;
use panoply::models::Model;
use panoply::serve::tasks;
use panoply::vector::{Collection, Metric, Options, Residency, Schema};
use serde_json::{Value, json};

use super::{bytes_of, devices_of, load, picture_of, spoken, tokenizer_of};
use crate::configuration::Format;
use crate::configuration::models::EmbedOptions;
use crate::failure::Failure;
use crate::screen::Screen;
use crate::vectors::start;

/// The number of texts per batch, and the most tokens of each text.
const BATCH: usize = 32;
const PIECES_MAX: usize = 256;

/// A vector with its id, and metadata about its source.
struct Row {
    id: String,
    vector: Vec<f32>,
    metadata: Value,
}

/// Runs `panoply embed`.
pub fn run(options: &EmbedOptions, screen: &mut Screen) -> Result<(), Failure> {
    let runtime = start()?;
    let model = load(&runtime, &options.model)?;
    let started = Instant::now();
    let mut rows = if options.pictures.is_empty() { texts(&model, options)? } else { pictures(&model, options)? };
    let Some(folder) = &options.into else {
        let shown = |row: &Row| json!({ "id": row.id, "vector": row.vector, "metadata": row.metadata });
        return rows.iter().try_for_each(|row| screen.json_line(&shown(row)));
    };
    let (embed_ms, devices) = (started.elapsed().as_secs_f64() * 1e3, devices_of(&model));
    let Some(dimension) = rows.first().map(|row| row.vector.len()) else {
        return Err(anyhow!("there is no text to embed; {} is as it was", folder.display()).into());
    };
    let collection = collection(&runtime, folder, dimension)?;
    if options.pictures.is_empty() {
        let first = next_number(&collection);
        rows.iter_mut().zip(first..).for_each(|(row, number)| row.id = number.to_string());
    }
    let ids: Vec<&str> = rows.iter().map(|row| row.id.as_str()).collect();
    let vectors: Vec<f32> = rows.iter().flat_map(|row| row.vector.iter().copied()).collect();
    let metadata: Vec<Value> = rows.iter().map(|row| row.metadata.clone()).collect();
    collection.upsert_many(&ids, &vectors, &metadata)?;
    collection.flush()?;
    let (path, count, len) = (folder.display().to_string(), rows.len(), collection.len());
    match options.format {
        Format::Json => {
            let told =
                json!({ "path": path, "embedded": count, "records": len, "devices": devices, "embed_ms": embed_ms });
            screen.json(&told)
        }
        Format::Table => {
            screen.prose(&format!("{count} vectors were put into {path}, which has {len} records now."))?;
            let devices = spoken(&devices);
            screen.line(screen.faint(&format!("embedded by {devices} in {embed_ms:.1} ms")))
        }
    }
}

fn texts(model: &Model, options: &EmbedOptions) -> Result<Vec<Row>, Failure> {
    let mut texts = options.texts.clone();
    if let Some(file) = &options.lines {
        let bytes = bytes_of(file)?;
        let text = std::str::from_utf8(&bytes).with_context(|| format!("{} is no UTF-8 text", file.display()))?;
        texts.extend(text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned));
    }
    let tokenizer = tokenizer_of(&options.model, options.vocabulary.as_deref())?;
    let mut rows = Vec::with_capacity(texts.len());
    for batch in texts.chunks(BATCH) {
        let vectors = tasks::embed_texts(model, &tokenizer, batch, PIECES_MAX).map_err(anyhow::Error::new)?;
        for (text, vector) in batch.iter().zip(vectors) {
            rows.push(Row { id: (rows.len() + 1).to_string(), vector, metadata: json!({ "text": text }) });
        }
    }
    Ok(rows)
}

fn pictures(model: &Model, options: &EmbedOptions) -> Result<Vec<Row>, Failure> {
    let row = |file: &std::path::PathBuf| {
        let vector = tasks::embed_pictures(model, &picture_of(file)?, Normalisation::IMAGENET);
        let name = file.display().to_string();
        Ok(Row { vector: vector.map_err(anyhow::Error::new)?, metadata: json!({ "file": name }), id: name })
    };
    options.pictures.iter().map(row).collect()
}

/// Returns the next free number as an id. Texts have no names of their own, and a new text must not
/// replace another.
fn next_number(collection: &Collection) -> u64 {
    let numbers = collection.iter().filter_map(|entry| entry.id.parse::<u64>().ok());
    // Ids in the upper half of the range count as names, not numbers, so that free numbers follow
    // the last one.
    numbers.filter(|number| *number < u64::MAX / 2).max().map_or(1, |last| last + 1)
}

fn collection(runtime: &Runtime, folder: &Path, dimension: usize) -> Result<Collection, Failure> {
    let options = Options { residency: Residency::Host, ..Options::default() };
    if folder.exists() {
        return Ok(Collection::open(runtime, folder, options)?);
    }
    let name = folder.file_name().map_or("vectors".to_owned(), |name| name.to_string_lossy().into_owned());
    Ok(Collection::create(runtime, folder, Schema::new(name, dimension, Metric::Cosine), options)?)
}
