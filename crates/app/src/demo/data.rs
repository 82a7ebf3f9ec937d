//! The demonstration's data: embedded in the command, or read from a folder.

use std::fs::{self, File};
use std::io::{Cursor, Read};
use std::path::Path;

use anyhow::{Context, Result, bail};
use lz4_flex::frame::FrameDecoder;
use panoply::vector::Filter;
use panoply::vector::formats::{Batch, NpyReader, PairedReader, VectorReader};
use serde_json::Value;

const VECTORS: &str = "debian-packages.npy";
const RECORDS: &str = "debian-packages.jsonl";
const QUERY_VECTORS: &str = "queries.npy";
const QUERY_TEXTS: &str = "queries.txt";

/// Rounded to bytes by the build script, 4 MB.
const CARRIED_VECTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/debian-packages.npy"));
/// Compressed by the build script.
const CARRIED_RECORDS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/debian-packages.jsonl.lz4"));
const CARRIED_QUERY_VECTORS: &[u8] = include_bytes!("../../data/queries.npy");
const CARRIED_QUERY_TEXTS: &str = include_str!("../../data/queries.txt");

/// The packages, and questions about them.
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
    /// The data that the command carries.
    pub fn carried() -> Result<Data> {
        let records = Box::new(FrameDecoder::new(CARRIED_RECORDS));
        let (vectors, queries) = (array(Cursor::new(CARRIED_VECTORS))?, array(Cursor::new(CARRIED_QUERY_VECTORS))?);
        Data::assemble(vectors, records, queries, CARRIED_QUERY_TEXTS)
    }

    /// Reads the same four files from a folder.
    pub fn of_folder(folder: &Path) -> Result<Data> {
        let open = |name: &str| {
            let path = folder.join(name);
            File::open(&path).with_context(|| format!("{} cannot be read", path.display()))
        };
        let (vectors, records, queries) = (open(VECTORS)?, open(RECORDS)?, open(QUERY_VECTORS)?);
        let texts = folder.join(QUERY_TEXTS);
        let texts = fs::read_to_string(&texts).with_context(|| format!("{} cannot be read", texts.display()))?;
        let data = || Data::assemble(array(vectors)?, Box::new(records), array(queries)?, &texts);
        data().with_context(|| format!("the data in {}", folder.display()))
    }

    /// Replaces the questions. Each has a vector and no filter.
    pub fn ask(&mut self, texts: &[String], vectors: Vec<Vec<f32>>) {
        let question = |(text, vector): (&String, Vec<f32>)| Question {
            text: text.clone(),
            filter_text: None,
            filter: None,
            vector,
        };
        self.questions = texts.iter().zip(vectors).map(question).collect();
    }

    fn assemble(
        vectors: Box<dyn VectorReader>,
        records: Box<dyn Read + Send>,
        queries: Box<dyn VectorReader>,
        texts: &str,
    ) -> Result<Data> {
        let packages = all(Box::new(PairedReader::new(vectors, records))).context(VECTORS)?;
        let queries = all(queries).context(QUERY_VECTORS)?;
        let dimension = packages.vectors.len() / packages.ids.len().max(1);
        let questions = questions(texts, &queries, dimension).context(QUERY_TEXTS)?;
        let Batch { ids, vectors, metadata } = packages;
        Ok(Data { dimension, ids, vectors, metadata, questions })
    }
}

fn array(stream: impl Read + Send + 'static) -> Result<Box<dyn VectorReader>> {
    Ok(Box::new(NpyReader::new(stream, None)?))
}

/// Reads all rows.
fn all(mut reader: Box<dyn VectorReader>) -> Result<Batch> {
    let mut all = Batch::default();
    while let Some(batch) = reader.next_batch(1 << 12)? {
        all.ids.extend(batch.ids);
        all.vectors.extend(batch.vectors);
        all.metadata.extend(batch.metadata);
    }
    if all.ids.is_empty() {
        bail!("there is no row");
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
