//! The demonstration on one device: the collection on it, the answers, and their times.

use std::time::{Duration, Instant};

use anyhow::Result;
use panoply::vector::{Collection, Hit, Metric, Options, Schema, SearchOptions, Storage};
use panoply::{DeviceInfo, Runtime};
use serde::Serialize;

use super::data::Data;
use super::{HITS, milliseconds};
use crate::vectors::residency_on;

/// How long each kind of search is measured.
const MEASURED: Duration = Duration::from_millis(300);
/// The fewest measured searches of a kind.
const REPEATS_MIN: usize = 5;
/// The largest difference of a score between a device and the plain loop, from the rounding of f16.
const SCORE_TOLERANCE: f32 = 2e-3;

/// The result of one device.
#[derive(Serialize)]
pub struct Trial {
    pub device: String,
    pub name: String,
    /// The devices that did the work, as reported by the searches.
    pub answered_by: Vec<String>,
    /// The median time of one question, from the call until the hits are ready.
    pub one_ms: f64,
    /// The median time of all questions in one call.
    pub all_ms: f64,
    /// Questions per second, with all questions in one call.
    pub queries_per_s: f64,
    /// Whether the hits agree with those of the plain loop.
    pub agrees: bool,
}

/// Builds the collection with its rows on the device, asks every question, and measures. Returns
/// the trial, the build time and the hits.
pub fn run(
    data: &Data,
    device: &DeviceInfo,
    runtime: &Runtime,
    truth: &[Vec<(usize, f32)>],
) -> Result<(Trial, Duration, Vec<Vec<Hit>>)> {
    let start = Instant::now();
    let schema = Schema::new("packages", data.dimension, Metric::Cosine).storage(Storage::F16);
    let options = Options { residency: residency_on(device), ..Options::default() };
    let collection = Collection::in_memory(runtime, schema, options)?;
    collection.insert_many(&data.ids, &data.vectors, &data.metadata)?;
    collection.make_resident()?;
    let build = start.elapsed();
    let (trial, hits) = measure(data, device, &collection, truth)?;
    Ok((trial, build, hits))
}

fn measure(
    data: &Data,
    device: &DeviceInfo,
    collection: &Collection,
    truth: &[Vec<(usize, f32)>],
) -> Result<(Trial, Vec<Vec<Hit>>)> {
    let mut answers = Vec::new();
    let mut answered_by: Vec<String> = Vec::new();
    for question in &data.questions {
        let options = SearchOptions { filter: question.filter.clone(), ..SearchOptions::new(HITS) };
        let found = collection.search(&question.vector, &options)?;
        for device in found.report.devices.iter().map(ToString::to_string) {
            if !answered_by.contains(&device) {
                answered_by.push(device);
            }
        }
        answers.push(found.hits);
    }
    let agrees = answers.iter().zip(truth).all(|(hits, truth)| same(hits, truth, data));
    let mut next = data.questions.iter().cycle();
    let options = SearchOptions::new(HITS);
    let one = median(|| {
        if let Some(question) = next.next() {
            collection.search(&question.vector, &options)?;
        }
        Ok(())
    })?;
    let queries: Vec<f32> = data.questions.iter().flat_map(|question| question.vector.iter().copied()).collect();
    let all = median(|| {
        collection.search_many(&queries, &options)?;
        Ok(())
    })?;
    let trial = Trial {
        device: device.id.to_string(),
        name: device.name.clone(),
        answered_by,
        one_ms: milliseconds(one),
        all_ms: milliseconds(all),
        queries_per_s: data.questions.len() as f64 / all.as_secs_f64().max(1e-9),
        agrees,
    };
    Ok((trial, answers))
}

/// Whether the hits are the packages that the plain loop found. Packages with nearly the same score
/// may come in any order.
fn same(hits: &[Hit], truth: &[(usize, f32)], data: &Data) -> bool {
    hits.len() == truth.len()
        && hits.iter().zip(truth).all(|(hit, (row, score))| {
            let near = (hit.score - score).abs() <= SCORE_TOLERANCE;
            let known = truth.iter().any(|(row, _)| data.ids[*row] == hit.id);
            let last = truth.last().map_or(0.0, |(_, score)| *score);
            near && (hit.id == data.ids[*row] || known || (hit.score - last).abs() <= SCORE_TOLERANCE)
        })
}

/// Returns the median time of a search.
fn median(mut search: impl FnMut() -> Result<()>) -> Result<Duration> {
    search()?;
    let (begin, mut times) = (Instant::now(), Vec::new());
    while times.len() < REPEATS_MIN || begin.elapsed() < MEASURED {
        let start = Instant::now();
        search()?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}
