//! The demonstration's data: where it is, and what is in it.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use panoply::vector::Filter;
use panoply::vector::formats::{self, Batch, ColumnNames, Paired, Reader};
use serde_json::Value;

const VECTORS: &str = "debian-packages.npy";
const RECORDS: &str = "debian-packages.jsonl";
const QUERY_VECTORS: &str = "queries.npy";
const QUERY_TEXTS: &str = "queries.txt";
/// The folder in the source tree that this command was built from.
const SOURCE_FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data");

/// Packages and questions about them.
pub struct Data {
    pub dimension: usize,
    pub ids: Vec<String>,
    pub vectors: Vec<f32>,
    pub metadata: Vec<Value>,
    /// Never empty.
    pub questions: Vec<Question>,
}

/// A question in plain words.
pub struct Question {
    pub text: String,
    pub filter_text: Option<String>,
    pub filter: Option<Filter>,
    pub vector: Vec<f32>,
}

impl Data {
    /// Reads the files of this folder, or of the first place that has them.
    pub fn load(folder: Option<&Path>) -> Result<Data> {
        let folder = match folder {
            Some(folder) => folder.to_owned(),
            None => find()?,
        };
        let (vectors, records) = (folder.join(VECTORS), folder.join(RECORDS));
        let records_file = File::open(&records).with_context(|| format!("{} cannot be read", records.display()))?;
        let packages = all(&vectors, |vectors| Box::new(Paired::new(vectors, records_file)))?;
        let queries = all(&folder.join(QUERY_VECTORS), |vectors| vectors)?;
        let dimension = packages.vectors.len() / packages.ids.len().max(1);
        let texts = folder.join(QUERY_TEXTS);
        let lines = std::fs::read_to_string(&texts).with_context(|| format!("{} cannot be read", texts.display()))?;
        let questions = questions(&lines, &queries, dimension).with_context(|| texts.display().to_string())?;
        let Batch { ids, vectors, metadata } = packages;
        Ok(Data { dimension, ids, vectors, metadata, questions })
    }
}

/// The folder `data` here, or in the source tree.
fn find() -> Result<PathBuf> {
    let places = [PathBuf::from("data"), PathBuf::from(SOURCE_FOLDER)];
    match places.iter().find(|place| place.join(VECTORS).is_file()) {
        Some(place) => Ok(place.clone()),
        None => {
            let tried: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
            bail!("{VECTORS} is in none of {}; --data FOLDER says where it is", tried.join(", "))
        }
    }
}

/// Every row of a file.
fn all(path: &Path, with: impl FnOnce(Box<dyn Reader>) -> Box<dyn Reader>) -> Result<Batch> {
    let cannot = || format!("{} cannot be read", path.display());
    let mut reader = with(formats::open(path, &ColumnNames::default()).with_context(cannot)?);
    let mut all = Batch::default();
    while let Some(batch) = reader.next_batch(1 << 12).with_context(cannot)? {
        all.ids.extend(batch.ids);
        all.vectors.extend(batch.vectors);
        all.metadata.extend(batch.metadata);
    }
    if all.ids.is_empty() {
        bail!("{} is empty", path.display());
    }
    Ok(all)
}

fn questions(lines: &str, vectors: &Batch, dimension: usize) -> Result<Vec<Question>> {
    let lines = lines.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    let lines: Vec<&str> = lines.collect();
    if lines.is_empty() || lines.len() * dimension != vectors.vectors.len() {
        bail!("expected a vector of {dimension} components for each of {} questions", lines.len());
    }
    let question = |(line, vector): (&&str, &[f32])| {
        let (text, filter) = line.split_once('\t').map_or((*line, None), |(text, filter)| (text, Some(filter)));
        Ok(Question {
            text: text.to_owned(),
            filter_text: filter.map(ToOwned::to_owned),
            filter: filter.map(Filter::parse).transpose()?,
            vector: vector.to_vec(),
        })
    };
    lines.iter().zip(vectors.vectors.chunks(dimension)).map(question).collect()
}
