//! `panoply demo`: builds a collection of software packages and answers a dozen questions in plain
//! words, or the user's own, on every device. The command shows the hits, the device that answered,
//! its speed, and how the devices compare with each other and with a plain loop.
//!
//! [`data`] reads the data. `trial` searches and measures on one device. `plain` is a plain loop
//! over all rows, and every device must agree with its hits. `show` prints.

mod data;
mod plain;
mod show;
mod trial;

use std::time::Duration;

use panoply::vector::Hit;
use panoply::{DeviceInfo, Runtime};
use serde::Serialize;
use serde_json::Value;

use crate::configuration::Format;
use crate::configuration::vectors::DemoOptions;
use crate::failure::Failure;
use crate::models::text_model::{TextModel, expect_family};
use crate::screen::{Screen, spinner};
use crate::vectors::start;
use data::Data;
use trial::Trial;

/// Hits shown for each question.
const HITS: usize = 3;
/// Questions of the data whose vectors a user's model must make as well.
const QUESTIONS_COMPARED: usize = 3;

/// All results of the demonstration, in the form of the JSON output.
#[derive(Serialize)]
struct DemoReport {
    rows: usize,
    dimension: usize,
    /// The time to build the collection: from vectors in memory until the rows are where they are
    /// searched.
    build_ms: f64,
    questions: Vec<DemoAnswer>,
    /// The time of one search by a plain loop over all rows, on one thread.
    plain_loop_ms: f64,
    devices: Vec<Trial>,
    /// Devices that could not take part.
    unfit: Vec<UnfitDevice>,
}

/// A device that could not take part, and why.
#[derive(Serialize)]
struct UnfitDevice {
    device: String,
    reason: String,
}

/// A question and the hits of the first device.
#[derive(Serialize)]
struct DemoAnswer {
    text: String,
    filter: Option<String>,
    hits: Vec<Package>,
}

#[derive(Serialize)]
struct Package {
    id: String,
    score: f32,
    metadata: Value,
}

/// Runs the demonstration.
pub fn run(options: &DemoOptions, screen: &mut Screen) -> Result<(), Failure> {
    let waiting = spinner("reading the data");
    let mut data = options.data.as_deref().map_or_else(Data::carried, Data::of_folder)?;
    let runtime = start()?;
    if !options.questions.is_empty() {
        waiting.set_message("making vectors of the questions");
        ask(&mut data, options, &runtime)?;
    }
    let mut build_ms = None;
    let mut questions = Vec::new();
    let (truth, plain_loop) = plain::answers(&data, HITS);
    let (mut trials, mut unfit) = (Vec::new(), Vec::new());
    for device in runtime.devices().collect::<Vec<DeviceInfo>>() {
        waiting.set_message(format!("searching on {}", device.id));
        match trial::run(&data, &device, &runtime, &truth) {
            Ok((trial, build, hits)) => {
                build_ms.get_or_insert(milliseconds(build));
                if questions.is_empty() {
                    questions = data.questions.iter().zip(hits).map(answer).collect();
                }
                trials.push(trial);
            }
            Err(reason) => unfit.push(UnfitDevice { device: device.id.to_string(), reason: format!("{reason:#}") }),
        }
    }
    waiting.finish_and_clear();
    let findings = DemoReport {
        rows: data.ids.len(),
        dimension: data.dimension,
        build_ms: build_ms.unwrap_or(0.0),
        questions,
        plain_loop_ms: milliseconds(plain_loop),
        devices: trials,
        unfit,
    };
    match options.format {
        Format::Json => screen.json(&findings)?,
        Format::Table => show::print(&findings, screen)?,
    }
    all_agree(&findings)
}

/// Asks the user's own questions instead of those of the data. A model that does not make the
/// data's vectors is refused: its hits would mean nothing.
fn ask(data: &mut Data, options: &DemoOptions, runtime: &Runtime) -> Result<(), Failure> {
    let model = TextModel::named_or_default(runtime, &options.model)?;
    let known = &data.questions[..data.questions.len().min(QUESTIONS_COMPARED)];
    let texts: Vec<&str> = known.iter().map(|question| question.text.as_str()).collect();
    let vectors: Vec<&[f32]> = known.iter().map(|question| question.vector.as_slice()).collect();
    expect_family(&model, &texts, &vectors)?;
    data.ask(&options.questions, model.embed(&options.questions)?);
    Ok(())
}

fn answer((question, hits): (&data::Question, Vec<Hit>)) -> DemoAnswer {
    let package = |hit: Hit| Package { id: hit.id, score: hit.score, metadata: hit.metadata };
    DemoAnswer {
        text: question.text.clone(),
        filter: question.filter_text.clone(),
        hits: hits.into_iter().map(package).collect(),
    }
}

/// Fails if no device took part, or if a device's hits differ from those of the plain loop.
fn all_agree(findings: &DemoReport) -> Result<(), Failure> {
    if findings.devices.is_empty() {
        return Err(Failure::Run(anyhow::anyhow!("no device could take part")));
    }
    let wrong: Vec<&str> =
        findings.devices.iter().filter(|trial| !trial.agrees).map(|trial| trial.device.as_str()).collect();
    if wrong.is_empty() {
        return Ok(());
    }
    Err(Failure::Run(anyhow::anyhow!("not the hits that a plain loop finds, on: {}", wrong.join(", "))))
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
