//! Pictures as the input of `panoply infer`: prepared for the model, run as a batch where the model
//! takes one, and answered one by one.

use std::path::{Path, PathBuf};

use panoply::RunOptions;
use panoply::inputs::picture::{Fit, Normalisation, Picture, Placement};
use panoply::inputs::tasks::{BoxForm, BoxLayout, Class, DetectOptions, Detection, Labels, classes, in_picture};
use panoply::models::{Array, Dimension, Model, Outputs, Port, rows};
use panoply::serve::tasks::{Detector, OPEN_SIDE, frame_of};
use serde::Serialize;
use serde_json::{Value, json};

use super::infer::{refused_there, run_options};
use super::picture_of;
use crate::configuration::models::InferOptions;
use crate::failure::Failure;
use crate::partial::Partial;

/// The most pictures that a model gets at once.
const BATCH_MAX: usize = 32;
/// The colours of boxes, by class.
const COLOURS: [[u8; 3]; 6] =
    [[230, 25, 75], [60, 180, 75], [0, 130, 200], [245, 130, 48], [145, 30, 180], [0, 128, 128]];

/// The answers of a model about pictures.
pub struct PictureAnswers {
    pub preprocessing: Preprocessing,
    /// For each picture its file, and its classes or objects, in the form of the JSON output.
    pub pictures: Vec<Value>,
    /// The most pictures that the model got at once.
    pub batch: usize,
    /// The outputs of all pictures, joined along the first dimension; `None` if no file wants them.
    pub outputs: Option<Outputs>,
    /// The input of the first picture.
    pub first: (String, Array),
}

/// How a picture becomes an input.
#[derive(Clone, Debug, Serialize)]
pub struct Preprocessing {
    pub width: usize,
    pub height: usize,
    pub channels: usize,
    /// `channels_first` or `channels_last`.
    pub layout: &'static str,
    #[serde(rename = "type")]
    pub dtype: String,
    /// `crop`: scaled to cover the input, and its centre cut out. `letterbox`: scaled to fit into
    /// the input, with grey bars.
    pub fit: &'static str,
    /// `imagenet`, `unit`, `signed` or `bytes`.
    pub normalise: &'static str,
}

impl Preprocessing {
    /// The steps in a sentence.
    pub fn text(&self) -> String {
        let Preprocessing { width, height, dtype, normalise, .. } = self;
        let colours = if self.channels == 1 { "grey" } else { "RGB" };
        let layout = self.layout.replace('_', " ");
        let fit = if self.fit == "crop" { "scaled, and its centre cut out" } else { "scaled, with grey bars" };
        let numbers = match self.normalise {
            "imagenet" => "(byte / 255 - mean) / deviation of ImageNet",
            "unit" => "byte / 255",
            "signed" => "byte / 127.5 - 1",
            _ => "the bytes as they are",
        };
        format!(
            "each picture {fit}: {width} × {height} {colours}, {layout}, {dtype}; numbers are {numbers} \
             (--normalise {normalise})"
        )
    }
}

/// A picture and the model's input made of it.
struct PreparedPicture {
    file: PathBuf,
    picture: Picture,
    input: Array,
    placement: Placement,
}

/// Whether the model answers with boxes: its first output has three dimensions.
fn answers_with_boxes(model: &Model) -> bool {
    let first = model.outputs().first().and_then(|port| port.dims.as_ref());
    first.is_some_and(|dims| dims.len() == 3)
}

/// Runs the model on the pictures of these files. Writes the picture with boxes if it is wanted.
pub fn look(model: &Model, files: &[PathBuf], options: &InferOptions) -> Result<PictureAnswers, Failure> {
    let has_boxes = answers_with_boxes(model);
    if options.boxes.is_some() && !has_boxes {
        return Err(Failure::Usage("--boxes: expected a model that answers with boxes".to_owned()));
    }
    let labels = match &options.labels {
        Some(file) => Labels::load(file).map_err(anyhow::Error::new)?,
        None => Labels::of(model.metadata()),
    };
    let normalisation =
        options.normalisation.unwrap_or(if has_boxes { Normalisation::Unit } else { Normalisation::IMAGENET });
    let (prepared, preprocessing) = prepare(model, files, normalisation, has_boxes)?;
    let name = model.inputs().first().map(|port| port.name.clone()).unwrap_or_default();
    let inputs: Vec<&Array> = prepared.iter().map(|one| &one.input).collect();
    let (answers, batch) =
        answers(model, &name, &inputs, &run_options(options)).map_err(|error| refused_there(options, error))?;
    if let (Some(file), Some(answer)) = (&options.labels, answers.first()) {
        expect_labels(file, labels.len(), answer, has_boxes)?;
    }
    let mut pictures = Vec::with_capacity(prepared.len());
    let detector = Detector::new(model);
    for (one, answer) in prepared.iter().zip(&answers) {
        let (key, found) = match has_boxes {
            true => ("objects", objects(&detector, one, answer, &labels, normalisation, options)?),
            false => ("classes", named_classes(answer, &labels, options.top)?),
        };
        pictures.push(json!({ "file": one.file.display().to_string(), key: found }));
    }
    let outputs = if options.outputs.is_empty() { None } else { Some(joined(&answers)?) };
    let first = prepared.first().map(|one| one.input.clone());
    let first = first.ok_or_else(|| Failure::Usage("--image: expected a picture, got none".to_owned()))?;
    Ok(PictureAnswers { preprocessing, pictures, batch, outputs, first: (name, first) })
}

/// Decodes and prepares every picture.
fn prepare(
    model: &Model,
    files: &[PathBuf],
    normalisation: Normalisation,
    has_boxes: bool,
) -> Result<(Vec<PreparedPicture>, Preprocessing), Failure> {
    let pictures = files.iter().map(|file| picture_of(file)).collect::<Result<Vec<_>, _>>()?;
    let port = model.inputs().first().ok_or_else(|| anyhow::anyhow!("the model has no input"))?;
    let frame = frame_of(port, has_boxes.then_some(OPEN_SIDE));
    let frame = frame.ok_or_else(|| {
        anyhow::anyhow!("the input {} of the model is no picture: its shape is {}", port.name, port.shape_text())
    })?;
    let fit = if has_boxes { Fit::Letterbox } else { Fit::Crop };
    let one = |(file, picture): (&PathBuf, Picture)| {
        let (tensor, placement) = picture.tensor(&frame, fit, normalisation).map_err(anyhow::Error::new)?;
        let input = Array::from_tensor(&tensor).map_err(anyhow::Error::new)?;
        Ok::<_, Failure>(PreparedPicture { file: file.clone(), picture, input, placement })
    };
    let preprocessing = Preprocessing {
        width: frame.width,
        height: frame.height,
        channels: frame.channels,
        layout: if frame.planes { "channels_first" } else { "channels_last" },
        dtype: frame.dtype.to_string(),
        fit: if has_boxes { "letterbox" } else { "crop" },
        normalise: match normalisation {
            Normalisation::Unit => "unit",
            Normalisation::Bytes => "bytes",
            Normalisation::Signed => "signed",
            Normalisation::Standard { .. } => "imagenet",
        },
    };
    Ok((files.iter().zip(pictures).map(one).collect::<Result<_, _>>()?, preprocessing))
}

/// The outputs for each input, and the largest batch that the model got. Inputs are joined where
/// the model leaves the batch dimension open. A model that refuses a batch gets its inputs one
/// after the other.
fn answers(
    model: &Model,
    name: &str,
    inputs: &[&Array],
    run: &RunOptions,
) -> Result<(Vec<Outputs>, usize), panoply::models::Error> {
    let is_open = |port: &Port| {
        let first = port.dims.as_ref().and_then(|dims| dims.first());
        matches!(first, Some(Dimension::Named(_)))
    };
    let takes_batches = model.inputs().len() == 1 && model.inputs().iter().all(is_open);
    let (mut answers, mut largest) = (Vec::with_capacity(inputs.len()), 1);
    for chunk in inputs.chunks(BATCH_MAX) {
        let batch = if takes_batches { as_batch(model, name, chunk, run) } else { None };
        match batch {
            Some(outputs) => {
                answers.extend(outputs);
                largest = largest.max(chunk.len());
            }
            None => {
                for input in chunk {
                    answers.push(model.infer_with(&[(name, (*input).clone())], run)?);
                }
            }
        }
    }
    Ok((answers, largest))
}

/// The outputs of one run for each input. `None` if there is a single input, the model refuses the
/// batch, or an output is not one row for each input.
fn as_batch(model: &Model, name: &str, inputs: &[&Array], run: &RunOptions) -> Option<Vec<Outputs>> {
    if inputs.len() < 2 {
        return None;
    }
    let together = rows::concat(inputs, 0).ok()?;
    let outputs = model.infer_with(&[(name, together)], run).ok()?;
    if !outputs.0.iter().all(|(_, array)| array.dims().first() == Some(&inputs.len())) {
        return None;
    }
    let row = |at: usize| {
        let part = |(name, array): &(String, Array)| Some((name.clone(), rows::cut(array, 0, at, 1).ok()?));
        outputs.0.iter().map(part).collect::<Option<Vec<_>>>().map(Outputs)
    };
    (0..inputs.len()).map(row).collect()
}

/// The outputs of all pictures, joined along the first dimension.
fn joined(answers: &[Outputs]) -> Result<Outputs, Failure> {
    let [first, others @ ..] = answers else { return Ok(Outputs(Vec::new())) };
    if others.is_empty() {
        return Ok(first.clone());
    }
    let all = |name: &String| -> Result<(String, Array), Failure> {
        let arrays = answers.iter().map(|answer| answer.get(name)).collect::<Result<Vec<_>, _>>();
        let array = arrays.and_then(|arrays| rows::concat(&arrays, 0)).map_err(|error| {
            let reason = format!("{error}; the outputs of these pictures do not fit into one file");
            Failure::Run(anyhow::anyhow!("--output {name}: {reason}"))
        })?;
        Ok((name.clone(), array))
    };
    first.0.iter().map(|(name, _)| all(name)).collect::<Result<_, _>>().map(Outputs)
}

/// Refuses names that are not as many as the model's classes.
fn expect_labels(file: &Path, got: usize, answer: &Outputs, has_boxes: bool) -> Result<(), Failure> {
    let Ok(output) = answer.first() else { return Ok(()) };
    let expected = match has_boxes {
        false => Some(output.len()),
        true => BoxForm::of(output.dims()).ok().and_then(|form| match form.layout {
            BoxLayout::Across => Some(form.width - 4),
            BoxLayout::Down => Some(form.width - 5),
            // The output names classes by number and does not say how many there are.
            BoxLayout::Corners => None,
        }),
    };
    match expected {
        Some(expected) if expected != got => Err(Failure::Usage(format!(
            "--labels: expected a name for each of the model's {expected} classes, got {got} in {}",
            file.display()
        ))),
        _ => Ok(()),
    }
}

fn named_classes(answer: &Outputs, labels: &Labels, top: usize) -> Result<Vec<Value>, Failure> {
    let scores = answer.first().and_then(Array::to_floats).map_err(anyhow::Error::new)?;
    let class = |class: &Class| json!({ "class": class.index, "label": class.label, "score": class.score });
    Ok(classes(&scores, top, labels).iter().map(class).collect())
}

/// The objects in one picture. Writes the picture with their boxes if it is wanted.
fn objects(
    detector: &Detector,
    one: &PreparedPicture,
    answer: &Outputs,
    labels: &Labels,
    normalisation: Normalisation,
    options: &InferOptions,
) -> Result<Vec<Value>, Failure> {
    let detect = DetectOptions { score_min: options.score_min, normalisation, ..DetectOptions::default() };
    let output = answer.first().map_err(anyhow::Error::new)?;
    let found = detector.boxes(output, &detect, &run_options(options));
    let mut found = found.map_err(|error| refused_there(options, error))?;
    let sizes = [one.picture.width() as f32, one.picture.height() as f32];
    for object in &mut found {
        object.corners = in_picture(object.corners, &one.placement, sizes);
        object.label = labels.get(object.class);
    }
    if let Some(file) = &options.boxes {
        draw(&one.picture, &found, file)?;
    }
    Ok(found.iter().map(object).collect())
}

/// Writes a picture with a box around each object.
fn draw(picture: &Picture, objects: &[Detection], file: &Path) -> Result<(), Failure> {
    let mut drawn = picture.clone();
    objects.iter().for_each(|object| drawn.draw_box(object.corners, COLOURS[object.class % COLOURS.len()]));
    let is_jpeg = file.extension().is_some_and(|extension| extension == "jpg" || extension == "jpeg");
    Ok(Partial::create(file, true)?.finish_with(&drawn.encode(is_jpeg).map_err(anyhow::Error::new)?)?)
}

fn object(object: &Detection) -> Value {
    let Detection { corners: [left, top, right, bottom], class, label, score } = object;
    json!({ "class": class, "label": label, "score": score, "left": left, "top": top, "right": right, "bottom": bottom })
}
