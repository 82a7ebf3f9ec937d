//! `panoply vectors search`.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::time::Instant;

use anyhow::Context;
use panoply::Runtime;
use panoply::vector::formats::{self, ColumnNames, FileKind};
use panoply::vector::{Collection, Error, Hit, Options, SearchOptions as Wanted, SearchReport, SearchResults};
use serde_json::{Value, json};

use super::{check_filter, counted, device_of, grouped, key_of, queries_from, queries_of, residency_on, start};
use crate::bench::row::time_text;
use crate::configuration::Format;
use crate::configuration::store::KeySource;
use crate::configuration::vectors::{Query, SearchOptions};
use crate::failure::{Failure, warn};
use crate::models::text_model::TextModel;
use crate::screen::{Screen, columns, padded, shortened};
use crate::standard;

/// The largest width of an id.
const ID_WIDTH_MAX: usize = 40;
/// The width of scores, and the smallest width left for metadata.
const SCORE_WIDTH: usize = 9;
const METADATA_WIDTH_MIN: usize = 8;
/// The smallest page size when ranked hits are requested for a record that is itself left out.
const RANKED_PAGE_MIN: usize = 1000;

/// Searches and prints the hits.
pub fn run(options: &SearchOptions, key: Option<&KeySource>, screen: &mut Screen) -> Result<(), Failure> {
    let runtime = start()?;
    let residency = match options.device {
        Some(device) => residency_on(&device_of(device, &runtime)?),
        None => Options::default().residency,
    };
    let collection = Collection::open_read_only(
        &runtime,
        &options.path,
        Options { residency, key: key_of(&options.path, key)?, ..Options::default() },
    )?;
    if options.device.is_some() {
        collection.make_resident()?;
    }
    let dimension = collection.schema().dimension;
    check_filter(options.filter.as_ref(), &collection)?;
    let queries = queries(&options.query, &collection, &runtime)?;
    let own_id = match &options.query {
        Query::Record(id) => Some(id.as_str()),
        Query::Vector(_) | Query::File(_) | Query::Input | Query::Text { .. } => None,
    };
    // A record is usually its own nearest hit and is left out. Earlier pages are therefore skipped
    // here, not by the search.
    let (k, offset) = match own_id {
        Some(_) => (options.k.saturating_add(options.offset).saturating_add(1), 0),
        None => (options.k, options.offset),
    };
    let wanted = Wanted {
        filter: options.filter.clone(),
        nprobe: options.nprobe,
        rerank: options.rerank,
        within: options.within,
        offset,
        ..Wanted::new(k)
    };
    if options.nprobe.is_some() && collection.stats().index.is_none() {
        let path = options.path.display();
        warn(format!(
            "--nprobe: there is no index, so every row is searched; `panoply vectors tune {path}` builds one"
        ));
    }
    let start = Instant::now();
    let mut found = match own_id {
        Some(own_id) if options.rerank.is_some() => others_ranked(&collection, &queries, &wanted, own_id, options)?,
        _ if queries.len() == dimension => {
            let found = collection.search(&queries, &wanted)?;
            SearchResults { hits: vec![found.hits], report: found.report }
        }
        _ => collection.search_many(&queries, &wanted)?,
    };
    let ms = start.elapsed().as_secs_f64() * 1e3;
    if let Some(own_id) = own_id {
        for hits in &mut found.hits {
            hits.retain(|hit| hit.id != own_id);
            hits.drain(..options.offset.min(hits.len()));
            hits.truncate(options.k);
        }
    }
    match options.format {
        Format::Json => screen.json(&document(&found, ms)),
        Format::Table => print(&found, ms, screen),
    }
}

/// Collects the ranked hits from the first on, without `own_id`, until the answer is complete. All
/// pages have the same size: the ranking depends on the number of requested hits, so pages of
/// different sizes would repeat some hits and miss others.
fn others_ranked(
    collection: &Collection,
    query: &[f32],
    wanted: &Wanted,
    own_id: &str,
    options: &SearchOptions,
) -> Result<SearchResults, Failure> {
    let page = options.k.max(RANKED_PAGE_MIN);
    let enough = options.offset.saturating_add(options.k);
    let mut hits = Vec::new();
    let mut next = Wanted { k: page, offset: 0, ..wanted.clone() };
    loop {
        let found = collection.search(query, &next)?;
        let is_last = found.hits.len() < page;
        hits.extend(found.hits.into_iter().filter(|hit| hit.id != own_id));
        if is_last || hits.len() >= enough {
            return Ok(SearchResults { hits: vec![hits], report: found.report });
        }
        next.offset += page;
    }
}

fn queries(query: &Query, collection: &Collection, runtime: &Runtime) -> Result<Vec<f32>, Failure> {
    let dimension = collection.schema().dimension;
    match query {
        // One vector; a wrong length is an error.
        Query::Vector(vector) => one_query(vector.clone(), dimension),
        Query::File(path) if FileKind::of(path).is_ok() => queries_of(path, dimension),
        // A device has no length and may never end, so the length of what is read is limited.
        Query::File(path) => {
            let name = path.display().to_string();
            let file = File::open(path).with_context(|| format!("{name} cannot be read"))?;
            one_query(vector_in(file, &name)?, dimension)
        }
        Query::Input => queries_of_input(dimension),
        Query::Text { text, model } => {
            let model = TextModel::of_collection(runtime, collection, model)?;
            one_query(model.embed(&[text])?.concat(), dimension)
        }
        Query::Record(id) => match collection.get(id)? {
            Some(entry) => Ok(entry.vector),
            None => {
                let all =
                    collection.path().map(|path| format!("; `panoply vectors ids {}` lists all ids", path.display()));
                Err(Failure::Run(anyhow::anyhow!("there is no record `{id}`{}", all.unwrap_or_default())))
            }
        },
    }
}

fn one_query(vector: Vec<f32>, expected: usize) -> Result<Vec<f32>, Failure> {
    match vector.len() {
        got if got == expected => Ok(vector),
        got => Err(Error::DimensionMismatch { expected, got }.into()),
    }
}

/// Reads the queries on the standard input: a JSON list of numbers, or JSON lines as
/// `panoply embed` prints them.
fn queries_of_input(dimension: usize) -> Result<Vec<f32>, Failure> {
    const NAME: &str = "the standard input";
    let mut input = BufReader::new(standard::input().with_context(|| format!("{NAME} cannot be read"))?);
    let is_list = loop {
        let bytes = input.fill_buf().with_context(|| format!("{NAME} cannot be read"))?;
        if bytes.is_empty() {
            return Err(Failure::Run(anyhow::anyhow!(
                "{NAME} is empty; expected a JSON list of numbers, or JSON lines"
            )));
        }
        let blanks = bytes.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        let first = bytes.get(blanks).copied();
        input.consume(blanks);
        if let Some(first) = first {
            break first == b'[';
        }
    };
    if is_list {
        return one_query(vector_in(input, NAME)?, dimension);
    }
    let reader = formats::read(FileKind::JsonLines, input, &ColumnNames::default());
    queries_from(reader.with_context(|| format!("{NAME} cannot be read"))?, dimension, NAME)
}

/// Reads a vector that is a JSON list.
fn vector_in(source: impl Read, name: &str) -> Result<Vec<f32>, Failure> {
    const BYTES_MAX: u64 = 16 << 20;
    let mut text = String::new();
    source.take(BYTES_MAX + 1).read_to_string(&mut text).with_context(|| format!("{name} cannot be read"))?;
    if text.len() as u64 > BYTES_MAX {
        return Err(Failure::Run(anyhow::anyhow!("{name} has more than the {BYTES_MAX} bytes of a vector")));
    }
    Ok(serde_json::from_str(&text).with_context(|| format!("{name} is not a JSON list of numbers"))?)
}

fn document(found: &SearchResults, ms: f64) -> Value {
    let hit = |hit: &Hit| json!({"id": hit.id, "score": hit.score, "metadata": hit.metadata});
    let hits = |hits: &Vec<Hit>| json!({"hits": hits.iter().map(hit).collect::<Vec<_>>()});
    let SearchReport { devices, scanned_rows, spilled_rows, ops, fallback, .. } = &found.report;
    json!({
        "results": found.hits.iter().map(hits).collect::<Vec<_>>(),
        "ms": ms,
        "devices": devices.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "scanned_rows": scanned_rows,
        "spilled_rows": spilled_rows,
        "ops": ops,
        "fallback": fallback.as_ref().map(ToString::to_string),
    })
}

fn print(found: &SearchResults, ms: f64, screen: &mut Screen) -> Result<(), Failure> {
    let all = || found.hits.iter().flatten();
    let widest = ID_WIDTH_MAX.min(screen.width().saturating_sub(SCORE_WIDTH + METADATA_WIDTH_MIN + 4));
    let width = all().map(|hit| columns(&shortened(&hit.id, widest))).max().unwrap_or(0).max(2);
    let several = found.hits.len() > 1;
    screen.line(screen.strong(&format!("{:>SCORE_WIDTH$}  {:<width$}  METADATA", "SCORE", "ID")))?;
    for (index, hits) in found.hits.iter().enumerate() {
        if several {
            screen.line(screen.faint(&format!("query {index}")))?;
        }
        for hit in hits {
            screen.line(hit_line(hit, width, screen.width()))?;
        }
    }
    screen.line("")?;
    screen.prose(&summary(found, ms))
}

fn hit_line(hit: &Hit, id_width: usize, screen_width: usize) -> String {
    let metadata = if hit.metadata.is_null() { String::new() } else { hit.metadata.to_string() };
    let id = padded(&shortened(&hit.id, id_width), id_width);
    let left = screen_width.saturating_sub(id_width + SCORE_WIDTH + 4);
    format!("{:>SCORE_WIDTH$}  {id}  {}", score_text(hit.score), shortened(&metadata, left))
}

/// Formats a score such that it fits its column.
fn score_text(score: f32) -> String {
    let plain = score == 0.0 || (1.0e-3..1.0e4).contains(&score.abs());
    if plain { format!("{score:.4}") } else { format!("{score:.2e}") }
}

fn summary(found: &SearchResults, ms: f64) -> String {
    let report = &found.report;
    let hits: usize = found.hits.iter().map(Vec::len).sum();
    let devices: Vec<String> = report.devices.iter().map(ToString::to_string).collect();
    let place = if devices.is_empty() { "nowhere".to_owned() } else { devices.join(" and ") };
    let rows = grouped(report.scanned_rows);
    let searched = match found.hits.len() {
        1 => format!("for 1 query among {rows} rows"),
        // `scanned_rows` is the sum over the queries. An index sends different queries to different
        // rows.
        queries => format!("for {queries} queries, with {rows} comparisons in all"),
    };
    let mut text = format!("{} {searched}, on {place}, in {}.", counted(hits as u64, "hit"), time_text(ms));
    if report.spilled_rows > 0 {
        text += &format!(" {} did not fit into the device's memory.", counted(report.spilled_rows, "row"));
    }
    if let Some(cause) = &report.fallback {
        text += &format!(" The device failed, so the host searched its rows: {cause}.");
    }
    text
}
