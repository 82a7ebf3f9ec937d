//! `panoply infer`: runs a model once and shows its answer.

use std::time::Instant;

use anyhow::Context;
use panoply::models::{Array, Dimension, Model, Outputs, Port, npy};
use panoply::serve::tasks;
use panoply::whole_models::{ModelShare, WholeModel, presence, runs_whole_models};
use panoply::{Absence, RunOptions, Runtime};
use serde::Serialize;
use serde_json::{Value, json};

use super::pictures::{self, Preprocessing};
use super::profile::{self, ProfileRow};
use super::{LoadError, bytes_of, devices_of, load, spoken, tokenizer_of};
use crate::configuration::Format;
use crate::configuration::models::{InferOptions, ModelInput};
use crate::failure::Failure;
use crate::partial::Partial;
use crate::screen::{Screen, bytes_text, visible, wrapped};
use crate::vectors::{device_of, start};

/// The most tokens of a text that a model gets.
const PIECES_MAX: usize = 512;
/// The number of elements of an output that are printed.
const SHOWN_MAX: usize = 8;

/// A model's answer, in the form of the JSON output.
#[derive(Default, Serialize)]
struct InferReport {
    #[serde(skip_serializing_if = "Value::is_null")]
    model: Value,
    load_ms: f64,
    /// The device of the other runtime, if it answered, and the reason why Panoply refused the
    /// model.
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
    /// The parts of the other runtime that ran the model.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    shares: Vec<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    infer_ms: Option<f64>,
    /// The devices that ran the model, as reported by the runtime.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    devices: Vec<String>,
    /// How pictures were prepared.
    #[serde(skip_serializing_if = "Option::is_none")]
    preprocessing: Option<Preprocessing>,
    /// The most pictures that the model got at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    batch: Option<usize>,
    /// Each picture's file, and its classes or objects.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pictures: Vec<Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    outputs: Vec<Value>,
    /// The time of each node.
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<Vec<ProfileRow>>,
}

/// Runs `panoply infer`.
pub fn run(options: &InferOptions, screen: &mut Screen) -> Result<(), Failure> {
    if let (ModelInput::Nothing, Some((name, _))) = (&options.given, options.outputs.first()) {
        let expected = "expected something to run it on: --input, --image or --text";
        return Err(Failure::Usage(format!("--output {name}: {expected}")));
    }
    let needs_input = [("--profile", options.profile), ("--device", options.device.is_some())];
    if let (ModelInput::Nothing, Some((name, _))) = (&options.given, needs_input.iter().find(|(_, given)| *given)) {
        return Err(Failure::Usage(format!("{name}: expected an input: --input, --image or --text")));
    }
    let runtime = start()?;
    let started = Instant::now();
    let wanted = options.device.map(|device| device_of(device, &runtime)).transpose()?;
    if wanted.as_ref().is_some_and(runs_whole_models) {
        return on_another_runtime(&runtime, options, None, screen);
    }
    let model = match load(&runtime, &options.model) {
        Ok(model) => model,
        // Panoply refuses this model. Another runtime may run it, if the user has named its
        // library.
        Err(refused) if options.device.is_none() && refused.error.is_unsupported() => {
            return match presence(&runtime) {
                Ok(()) => on_another_runtime(&runtime, options, Some(&refused.error), screen),
                Err(absence) => Err(without_another(&absence, refused)),
            };
        }
        Err(refused) => return Err(refused.into()),
    };
    let mut findings = InferReport { model: described(&model), load_ms: ms(started), ..InferReport::default() };
    let started = Instant::now();
    let inputs = run_on(&model, options, &mut findings)?;
    if !matches!(options.given, ModelInput::Nothing) {
        findings.infer_ms = Some(ms(started));
        findings.devices = devices_of(&model);
    }
    if options.profile {
        let times = model.profile(&borrowed(&inputs), &run_options(options));
        findings.profile = Some(profile::rows(&times.map_err(|error| refused_there(options, error))?));
    }
    match options.format {
        Format::Json => screen.json(&findings),
        Format::Table => print(&findings, &model, screen),
    }
}

/// Runs the model on the input of the command line. Returns the inputs as arrays; of several
/// pictures, the first one's.
fn run_on(model: &Model, options: &InferOptions, findings: &mut InferReport) -> Result<Vec<(String, Array)>, Failure> {
    match &options.given {
        ModelInput::Nothing => Ok(Vec::new()),
        ModelInput::Pictures(files) => {
            let seen = pictures::look(model, files, options)?;
            if let Some(outputs) = &seen.outputs {
                write(outputs, options)?;
            }
            findings.preprocessing = Some(seen.preprocessing);
            findings.batch = Some(seen.batch);
            findings.pictures = seen.pictures;
            Ok(vec![seen.first])
        }
        ModelInput::Text(text) => {
            let tokens = tokenizer_of(&options.model, options.vocabulary.as_deref())?.encode(&[text], PIECES_MAX);
            let tokens = tokens.map_err(anyhow::Error::new)?;
            let inputs = tasks::text_inputs(model, &tokens).map_err(anyhow::Error::new)?;
            answer(model, &inputs, options, findings)?;
            Ok(inputs.into_iter().map(|(name, array)| (name.to_owned(), array)).collect())
        }
        ModelInput::Arrays(files) => {
            let arrays = arrays(files)?;
            answer(model, &borrowed(&arrays), options, findings)?;
            Ok(arrays)
        }
    }
}

/// Combines the reason why the model was refused with the reason why no other runtime is there.
fn without_another(absence: &Absence, LoadError { path, error }: LoadError) -> Failure {
    let path = path.display();
    Failure::Run(anyhow::anyhow!("{path}: {error}\nno other runtime, which might run it, is there: {absence}"))
}

/// Runs a model on another runtime, because the user asked for it or because Panoply refused the
/// model. Inputs must be arrays: preparing a picture or a text needs knowledge about the model that
/// only Panoply's own reader has.
fn on_another_runtime(
    runtime: &Runtime,
    options: &InferOptions,
    refused: Option<&panoply::models::Error>,
    screen: &mut Screen,
) -> Result<(), Failure> {
    let ModelInput::Arrays(files) = &options.given else {
        let cause = refused.map_or_else(String::new, |refused| format!("{refused}; "));
        return Err(Failure::Usage(format!("{cause}on another runtime models are given arrays: expected --input")));
    };
    if options.profile {
        return Err(Failure::Usage(
            "--profile: expected a device of Panoply's own; other runtimes give no times".to_owned(),
        ));
    }
    let started = Instant::now();
    let model = WholeModel::load_with(runtime, &options.model, &run_options(options)).map_err(anyhow::Error::new)?;
    let load_ms = ms(started);
    let (arrays, started) = (arrays(files)?, Instant::now());
    let outputs = model.infer(&borrowed(&arrays)).map_err(anyhow::Error::new)?;
    let infer_ms = Some(ms(started));
    write(&outputs, options)?;
    let device = Some(model.device().to_string());
    let devices = device.iter().cloned().collect();
    let refused = refused.map(ToString::to_string);
    let outputs = shown(&outputs);
    let parts = model.shares().map_err(anyhow::Error::new)?;
    let shares = parts.iter().map(|share| json!({ "by": share.by, "nodes": share.nodes })).collect();
    let findings =
        InferReport { load_ms, infer_ms, device, devices, refused, shares, outputs, ..InferReport::default() };
    match options.format {
        Format::Json => screen.json(&findings),
        Format::Table => {
            let because = findings.refused.as_ref().map_or_else(String::new, |refused| format!(": {refused}"));
            let by = format!("answered by {}{}{because}", model.device(), split(&parts));
            screen.line(screen.faint(&by))?;
            print_answer(&findings, screen)
        }
    }
}

/// The parts that run a model, if it is split among several.
fn split(shares: &[ModelShare]) -> String {
    let told = |share: &ModelShare| match share.nodes {
        Some(nodes) => format!("{nodes} nodes by {}", share.by),
        None => share.by.clone(),
    };
    match shares.len() {
        0 | 1 => String::new(),
        _ => format!(" (split: {})", shares.iter().map(told).collect::<Vec<_>>().join(", ")),
    }
}

/// Reads arrays from files, by name.
fn arrays(files: &[(String, std::path::PathBuf)]) -> Result<Vec<(String, Array)>, Failure> {
    let read = |(name, file): &(String, std::path::PathBuf)| {
        let array = npy::read(&bytes_of(file)?);
        Ok((name.clone(), array.with_context(|| format!("{} cannot be read", file.display()))?))
    };
    files.iter().map(read).collect()
}

fn borrowed(arrays: &[(String, Array)]) -> Vec<(&str, Array)> {
    arrays.iter().map(|(name, array)| (name.as_str(), array.clone())).collect()
}

/// Writes the requested outputs to files.
fn write(outputs: &Outputs, options: &InferOptions) -> Result<(), Failure> {
    for (name, file) in &options.outputs {
        let array = outputs.get(name).and_then(npy::write).map_err(anyhow::Error::new)?;
        Partial::create(file, true)?.finish_with(&array)?;
    }
    Ok(())
}

fn ms(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

pub(super) fn run_options(options: &InferOptions) -> RunOptions {
    options.device.map_or_else(RunOptions::default, RunOptions::require)
}

fn answer(
    model: &Model,
    inputs: &[(&str, Array)],
    options: &InferOptions,
    findings: &mut InferReport,
) -> Result<(), Failure> {
    let outputs = model.infer_with(inputs, &run_options(options)).map_err(|error| refused_there(options, error))?;
    write(&outputs, options)?;
    findings.outputs = shown(&outputs);
    Ok(())
}

/// Adds advice to an error when the requested device cannot run the model.
pub(super) fn refused_there(options: &InferOptions, error: impl Into<panoply::serve::Error>) -> anyhow::Error {
    let error = error.into();
    match options.device {
        Some(device) if is_refused(&error) => {
            anyhow::anyhow!("{error}\nwithout --device {device} what it has no kernel for runs elsewhere")
        }
        _ => anyhow::Error::new(error),
    }
}

/// Whether the error means that no device could run a graph or a node.
fn is_refused(error: &panoply::serve::Error) -> bool {
    fn is_refused_node(error: &panoply::models::Error) -> bool {
        match error {
            panoply::models::Error::Run(panoply::Error::Unsupported { .. }) => true,
            panoply::models::Error::Node { cause, .. } => is_refused_node(cause),
            _ => false,
        }
    }
    match error {
        panoply::serve::Error::Run(panoply::Error::Unsupported { .. }) => true,
        panoply::serve::Error::Model(error) => is_refused_node(error),
        _ => false,
    }
}

fn shown(outputs: &Outputs) -> Vec<Value> {
    let row = |(name, array): &(String, Array)| {
        let first: Vec<Value> =
            array.to_floats().map(|values| values.into_iter().take(SHOWN_MAX).map(told).collect()).unwrap_or_default();
        json!({ "name": name, "type": array.kind().name(), "shape": array.dims(), "first": first })
    };
    outputs.0.iter().map(row).collect()
}

fn described(model: &Model) -> Value {
    let port =
        |port: &Port| json!({ "name": port.name, "type": port.kind.map(|kind| kind.name()), "shape": shape(port) });
    json!({
        "name": model.name(),
        "producer": model.producer(),
        "nodes": model.nodes(),
        "weight_bytes": model.weight_bytes(),
        "inputs": model.inputs().iter().map(port).collect::<Vec<_>>(),
        "outputs": model.outputs().iter().map(port).collect::<Vec<_>>(),
    })
}

/// The shape of an input or output as JSON: numbers, names of open dimensions, and `null` for open
/// dimensions without a name. `null` if the file does not state the rank.
fn shape(port: &Port) -> Value {
    let dim = |dim: &Dimension| match dim {
        Dimension::Fixed(size) => json!(size),
        Dimension::Named(name) if name.is_empty() || name == "?" => Value::Null,
        Dimension::Named(name) => json!(name),
    };
    port.dims.as_ref().map_or(Value::Null, |dims| dims.iter().map(dim).collect())
}

/// Prints the classes or objects of each picture.
fn print_pictures(findings: &InferReport, screen: &mut Screen) -> Result<(), Failure> {
    let name = |row: &Value| row["label"].as_str().map_or_else(|| format!("class {}", row["class"]), str::to_owned);
    let percent = |row: &Value| format!("{:>5.1} %", row["score"].as_f64().unwrap_or(0.0) * 100.0);
    for picture in &findings.pictures {
        if findings.pictures.len() > 1 {
            screen.line(screen.strong(&visible(picture["file"].as_str().unwrap_or_default())))?;
        }
        for row in picture["classes"].as_array().into_iter().flatten() {
            screen.line(format!("{}  {}", percent(row), screen.strong(&name(row))))?;
        }
        for row in picture["objects"].as_array().into_iter().flatten() {
            let side = |side: &str| row[side].as_f64().unwrap_or(0.0).round();
            let place = format!("{}, {} to {}, {}", side("left"), side("top"), side("right"), side("bottom"));
            screen.line(format!("{}  {}  {}", percent(row), screen.strong(&name(row)), screen.faint(&place)))?;
        }
        if picture["objects"].as_array().is_some_and(Vec::is_empty) {
            screen.line("nothing was found; --score lowers what counts")?;
        }
    }
    if let Some(preprocessing) = &findings.preprocessing {
        for line in wrapped(&preprocessing.text(), screen.width()) {
            screen.line(screen.faint(&line))?;
        }
    }
    Ok(())
}

fn print(findings: &InferReport, model: &Model, screen: &mut Screen) -> Result<(), Failure> {
    print_pictures(findings, screen)?;
    match findings.infer_ms {
        Some(_) => print_answer(findings, screen)?,
        None => describe(model, screen)?,
    }
    findings.profile.as_ref().map_or(Ok(()), |rows| profile::print(rows, screen))
}

/// Converts a number to JSON. NaN and infinities become strings, because JSON numbers must be
/// finite.
fn told(number: f64) -> Value {
    if number.is_finite() { json!(number) } else { json!(number.to_string()) }
}

/// Prints the first elements of the outputs, and the time.
fn print_answer(findings: &InferReport, screen: &mut Screen) -> Result<(), Failure> {
    for row in &findings.outputs {
        let first: Vec<String> = row["first"].as_array().into_iter().flatten().map(short).collect();
        let count: u64 = row["shape"].as_array().into_iter().flatten().filter_map(Value::as_u64).product();
        let is_complete = first.len() as u64 == count;
        screen.line(format!(
            "{} {} {}: {}{}",
            screen.strong(row["name"].as_str().unwrap_or("")),
            row["type"].as_str().unwrap_or(""),
            row["shape"],
            first.join(" "),
            if is_complete { "" } else { " …" }
        ))?;
    }
    let (load_ms, infer_ms) = (findings.load_ms, findings.infer_ms.unwrap_or_default());
    let devices = spoken(&findings.devices);
    let together = match findings.batch {
        Some(batch) if batch > 1 => format!(", {batch} pictures at once"),
        _ if findings.pictures.len() > 1 => ", one picture after the other".to_owned(),
        _ => String::new(),
    };
    let times = format!("loaded in {load_ms:.1} ms, answered by {devices} in {infer_ms:.1} ms{together}");
    screen.line(screen.faint(&times))
}

fn short(number: &Value) -> String {
    number.as_str().map_or_else(|| format!("{:.4}", number.as_f64().unwrap_or(f64::NAN)), str::to_owned)
}

fn describe(model: &Model, screen: &mut Screen) -> Result<(), Failure> {
    let size = bytes_text(model.weight_bytes() as u64);
    screen.line(format!("{}: {} nodes, {size} of weights", screen.strong(model.name()), model.nodes()))?;
    for (side, ports) in [("takes", model.inputs()), ("gives", model.outputs())] {
        for port in ports {
            let kind = port.kind.map_or("any", |kind| kind.name());
            screen.line(format!("{side} {} {kind} {}", screen.strong(&port.name), port.shape_text()))?;
        }
    }
    Ok(())
}
