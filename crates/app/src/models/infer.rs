//! `panoply infer`: runs a model once and shows its answer.

use std::time::Instant;

use anyhow::Context;
use panoply::inputs::picture::{Normalisation, Picture};
use panoply::inputs::tasks::{Class, DetectOptions, Detection, Labels};
use panoply::models::{Array, Model, Outputs, Port, npy};
use panoply::onnxruntime::{ONNX_RUNTIME, OnnxRuntimeModel, is_onnxruntime, presence};
use panoply::serve::tasks::{self, Detector};
use panoply::{RunOptions, Runtime};
use serde::Serialize;
use serde_json::{Value, json};

use super::{bytes_of, devices_of, picture_of, spoken, tokenizer_of};
use crate::configuration::Format;
use crate::configuration::models::{Given, InferOptions};
use crate::failure::Failure;
use crate::partial::Partial;
use crate::screen::{Screen, bytes_text};
use crate::vectors::start;

/// The most tokens of a text that a model gets.
const PIECES_MAX: usize = 512;
/// The number of elements of an output that are printed.
const SHOWN_MAX: usize = 8;
/// The colours of boxes, by class.
const COLOURS: [[u8; 3]; 6] =
    [[230, 25, 75], [60, 180, 75], [0, 130, 200], [245, 130, 48], [145, 30, 180], [0, 128, 128]];

/// A model's answer, in the form of the JSON output.
#[derive(Default, Serialize)]
struct Findings {
    #[serde(skip_serializing_if = "Value::is_null")]
    model: Value,
    load_ms: f64,
    /// The device of the other runtime, if it answered, and the reason why Panoply refused the
    /// model.
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    infer_ms: Option<f64>,
    /// The devices that ran the model, as reported by the runtime.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    devices: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    classes: Vec<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    objects: Option<Vec<Value>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    outputs: Vec<Value>,
}

/// Runs `panoply infer`.
pub fn run(options: &InferOptions, screen: &mut Screen) -> Result<(), Failure> {
    if let (Given::Nothing, Some((name, _))) = (&options.given, options.outputs.first()) {
        let expected = "expected something to run it on: --input, --image or --text";
        return Err(Failure::Usage(format!("--output {name}: {expected}")));
    }
    let runtime = start()?;
    let started = Instant::now();
    if options.device.is_some_and(|device| is_onnxruntime(device.api)) {
        return on_onnxruntime(&runtime, options, None, screen);
    }
    let model = match Model::load(&runtime, &options.model) {
        // Panoply refuses this model. ONNX Runtime may run it, if the user has named its library.
        Err(refused) if options.device.is_none() && refused.is_unsupported() && presence(&runtime).is_ok() => {
            return on_onnxruntime(&runtime, options, Some(&refused), screen);
        }
        Err(refused) if options.device.is_none() && refused.is_unsupported() => {
            return Err(Failure::Run(without_another(&runtime, refused)));
        }
        model => model.map_err(anyhow::Error::new)?,
    };
    let mut findings = Findings { model: described(&model), load_ms: ms(started), ..Findings::default() };
    let started = Instant::now();
    match &options.given {
        Given::Nothing => {}
        Given::Picture(file) => look(&model, &picture_of(file)?, options, &mut findings)?,
        Given::Text(text) => {
            let tokens = tokenizer_of(&options.model, options.vocabulary.as_deref())?.encode(&[text], PIECES_MAX);
            let tokens = tokens.map_err(anyhow::Error::new)?;
            let inputs = tasks::text_inputs(&model, &tokens).map_err(anyhow::Error::new)?;
            answer(&model, &inputs, options, &mut findings)?;
        }
        Given::Arrays(files) => {
            let arrays = arrays(files)?;
            answer(&model, &borrowed(&arrays), options, &mut findings)?;
        }
    }
    if !matches!(options.given, Given::Nothing) {
        findings.infer_ms = Some(ms(started));
        findings.devices = devices_of(&model);
    }
    match options.format {
        Format::Json => screen.json(&findings),
        Format::Table => print(&findings, &model, screen),
    }
}

/// Combines the reason why the model was refused with the reason why ONNX Runtime is absent.
fn without_another(runtime: &Runtime, refused: panoply::models::Error) -> anyhow::Error {
    match presence(runtime) {
        Err(absence) => anyhow::anyhow!("{refused}\nONNX Runtime, which might run it, is not there: {absence}"),
        Ok(()) => anyhow::Error::new(refused),
    }
}

/// Runs a model on ONNX Runtime, because the user asked for it or because Panoply refused the
/// model. Inputs must be arrays: preparing a picture or a text needs knowledge about the model that
/// only Panoply's own reader has.
fn on_onnxruntime(
    runtime: &Runtime,
    options: &InferOptions,
    refused: Option<&panoply::models::Error>,
    screen: &mut Screen,
) -> Result<(), Failure> {
    let Given::Arrays(files) = &options.given else {
        let cause = refused.map_or_else(String::new, |refused| format!("{refused}; "));
        return Err(Failure::Usage(format!("{cause}on ONNX Runtime models are given arrays: expected --input")));
    };
    let started = Instant::now();
    let model = OnnxRuntimeModel::load(runtime, &options.model).map_err(anyhow::Error::new)?;
    let load_ms = ms(started);
    let (arrays, started) = (arrays(files)?, Instant::now());
    let outputs = model.infer(&borrowed(&arrays)).map_err(anyhow::Error::new)?;
    let infer_ms = Some(ms(started));
    write(&outputs, options)?;
    let device = Some(ONNX_RUNTIME.to_string());
    let devices = device.iter().cloned().collect();
    let refused = refused.map(ToString::to_string);
    let outputs = shown(&outputs);
    let findings = Findings { load_ms, infer_ms, device, devices, refused, outputs, ..Findings::default() };
    match options.format {
        Format::Json => screen.json(&findings),
        Format::Table => {
            let because = findings.refused.as_ref().map_or_else(String::new, |refused| format!(": {refused}"));
            screen.line(screen.faint(&format!("answered by ONNX Runtime{because}")))?;
            print_answer(&findings, screen)
        }
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

fn run_options(options: &InferOptions) -> RunOptions {
    options.device.map_or_else(RunOptions::default, RunOptions::require)
}

fn answer(
    model: &Model,
    inputs: &[(&str, Array)],
    options: &InferOptions,
    findings: &mut Findings,
) -> Result<(), Failure> {
    let outputs = model.infer_with(inputs, &run_options(options)).map_err(|error| refused_there(options, error))?;
    write(&outputs, options)?;
    findings.outputs = shown(&outputs);
    Ok(())
}

/// Adds advice to an error when the requested device cannot run the model.
fn refused_there(options: &InferOptions, error: impl Into<panoply::serve::Error>) -> anyhow::Error {
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

fn look(model: &Model, picture: &Picture, options: &InferOptions, findings: &mut Findings) -> Result<(), Failure> {
    let labels = match &options.labels {
        Some(file) => Labels::load(file).map_err(anyhow::Error::new)?,
        None => Labels::of(model.metadata()),
    };
    if !answers_with_boxes(model) {
        let normalisation = options.normalisation.unwrap_or(Normalisation::IMAGENET);
        let classes = tasks::classify_with(model, picture, normalisation, options.top, &labels, &run_options(options));
        findings.classes = classes.map_err(|error| refused_there(options, error))?.iter().map(class).collect();
        return match &options.boxes {
            Some(_) => Err(Failure::Usage("--boxes: expected a model that answers with boxes".to_owned())),
            None => Ok(()),
        };
    }
    let normalisation = options.normalisation.unwrap_or(Normalisation::Unit);
    let detect = DetectOptions { score_min: options.score_min, normalisation, ..DetectOptions::default() };
    let objects = Detector::new(model).detect(picture, &detect, &labels, &run_options(options));
    let objects = objects.map_err(|error| refused_there(options, error))?;
    if let Some(file) = &options.boxes {
        let mut drawn = picture.clone();
        objects.iter().for_each(|object| drawn.draw_box(object.corners, COLOURS[object.class % COLOURS.len()]));
        let is_jpeg = file.extension().is_some_and(|extension| extension == "jpg" || extension == "jpeg");
        Partial::create(file, true)?.finish_with(&drawn.encode(is_jpeg).map_err(anyhow::Error::new)?)?;
    }
    findings.objects = Some(objects.iter().map(object).collect());
    Ok(())
}

/// Whether the first output is a list of boxes: it has three dimensions.
fn answers_with_boxes(model: &Model) -> bool {
    let first = model.outputs().first().and_then(|port| port.dims.as_ref());
    first.is_some_and(|dims| dims.len() == 3)
}

fn class(class: &Class) -> Value {
    json!({ "class": class.index, "label": class.label, "score": class.score })
}

fn object(object: &Detection) -> Value {
    let Detection { corners: [left, top, right, bottom], class, label, score } = object;
    json!({ "class": class, "label": label, "score": score, "left": left, "top": top, "right": right, "bottom": bottom })
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
    let port = |port: &Port| json!({ "name": port.name, "type": port.kind.map(|kind| kind.name()), "shape": port.shape_text() });
    json!({
        "name": model.name(),
        "producer": model.producer(),
        "nodes": model.nodes(),
        "weight_bytes": model.weight_bytes(),
        "inputs": model.inputs().iter().map(port).collect::<Vec<_>>(),
        "outputs": model.outputs().iter().map(port).collect::<Vec<_>>(),
    })
}

fn print(findings: &Findings, model: &Model, screen: &mut Screen) -> Result<(), Failure> {
    let name = |row: &Value| row["label"].as_str().map_or_else(|| format!("class {}", row["class"]), str::to_owned);
    let percent = |row: &Value| format!("{:>5.1} %", row["score"].as_f64().unwrap_or(0.0) * 100.0);
    for row in &findings.classes {
        screen.line(format!("{}  {}", percent(row), screen.strong(&name(row))))?;
    }
    for row in findings.objects.iter().flatten() {
        let side = |side: &str| row[side].as_f64().unwrap_or(0.0).round();
        let place = format!("{}, {} to {}, {}", side("left"), side("top"), side("right"), side("bottom"));
        screen.line(format!("{}  {}  {}", percent(row), screen.strong(&name(row)), screen.faint(&place)))?;
    }
    if findings.objects.as_ref().is_some_and(Vec::is_empty) {
        screen.line("nothing was found; --score lowers what counts")?;
    }
    match findings.infer_ms {
        Some(_) => print_answer(findings, screen),
        None => describe(model, screen),
    }
}

/// Converts a number to JSON. NaN and infinities become strings, because JSON numbers must be
/// finite.
fn told(number: f64) -> Value {
    if number.is_finite() { json!(number) } else { json!(number.to_string()) }
}

/// Prints the first elements of the outputs, and the time.
fn print_answer(findings: &Findings, screen: &mut Screen) -> Result<(), Failure> {
    for row in &findings.outputs {
        let first: Vec<String> = row["first"].as_array().into_iter().flatten().map(short).collect();
        screen.line(format!(
            "{} {} {}: {} …",
            screen.strong(row["name"].as_str().unwrap_or("")),
            row["type"].as_str().unwrap_or(""),
            row["shape"],
            first.join(" ")
        ))?;
    }
    let (load_ms, infer_ms) = (findings.load_ms, findings.infer_ms.unwrap_or_default());
    let devices = spoken(&findings.devices);
    screen.line(screen.faint(&format!("loaded in {load_ms:.1} ms, answered by {devices} in {infer_ms:.1} ms")))
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
