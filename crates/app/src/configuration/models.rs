//! Validates the arguments of `panoply infer` and `panoply embed`.

use std::path::PathBuf;

use panoply::DeviceId;
use panoply::inputs::picture::Normalisation;

use super::{Format, format};
use crate::arguments::models::{EmbedArguments, InferArguments};
use crate::failure::Failure;

/// The most classes that are shown.
const TOP_MAX: usize = 1 << 20;
/// The default number of classes to show.
const TOP: usize = 5;
/// The default of the lowest score of an object to report.
const SCORE_MIN: f32 = 0.25;

/// The input of a model.
#[derive(Debug)]
pub enum ModelInput {
    /// No input: the command describes the model.
    Nothing,
    /// At least one picture.
    Pictures(Vec<PathBuf>),
    Text(String),
    Arrays(Vec<(String, PathBuf)>),
}

#[derive(Debug)]
pub struct InferOptions {
    pub model: PathBuf,
    pub given: ModelInput,
    /// Outputs to write to files, by name.
    pub outputs: Vec<(String, PathBuf)>,
    pub top: usize,
    pub labels: Option<PathBuf>,
    pub normalisation: Option<Normalisation>,
    pub score_min: f32,
    pub boxes: Option<PathBuf>,
    pub vocabulary: Option<PathBuf>,
    pub device: Option<DeviceId>,
    /// Whether the time of each node is measured.
    pub profile: bool,
    pub format: Format,
}

/// The source of texts, one on each line.
#[derive(Debug)]
pub enum Lines {
    Input,
    File(PathBuf),
}

#[derive(Debug)]
pub struct EmbedOptions {
    pub model: PathBuf,
    pub texts: Vec<String>,
    pub lines: Option<Lines>,
    pub pictures: Vec<PathBuf>,
    pub vocabulary: Option<PathBuf>,
    pub into: Option<PathBuf>,
    pub format: Format,
}

impl InferOptions {
    /// Validates the arguments. Fails with a usage error that names the invalid argument.
    pub fn resolve(arguments: InferArguments) -> Result<InferOptions, Failure> {
        let normalisation = arguments.normalise.as_deref().map(normalisation).transpose()?;
        let (score_min, top) = (arguments.score.unwrap_or(SCORE_MIN), arguments.top.unwrap_or(TOP));
        if !(0.0..=1.0).contains(&score_min) {
            return Err(Failure::Usage(format!("--score: expected 0 to 1, got {score_min}")));
        }
        if !(1..=TOP_MAX).contains(&top) {
            return Err(Failure::Usage(format!("--top: expected 1 to {TOP_MAX}, got {top}")));
        }
        if arguments.image.is_empty() {
            let of_pictures = [
                ("--labels", arguments.labels.is_some()),
                ("--normalise", arguments.normalise.is_some()),
                ("--boxes", arguments.boxes.is_some()),
                ("--top", arguments.top.is_some()),
                ("--score", arguments.score.is_some()),
            ];
            if let Some((name, _)) = of_pictures.iter().find(|(_, given)| *given) {
                return Err(Failure::Usage(format!("{name}: expected --image beside it")));
            }
        }
        if arguments.vocabulary.is_some() && arguments.text.is_none() {
            return Err(Failure::Usage("--vocabulary: expected --text beside it".to_owned()));
        }
        let inputs = named(&arguments.input, "--input")?;
        if let (Some(_), count @ 2..) = (&arguments.boxes, arguments.image.len()) {
            return Err(Failure::Usage(format!("--boxes: expected one --image beside it, got {count}")));
        }
        let given = match arguments.text {
            _ if !arguments.image.is_empty() => ModelInput::Pictures(arguments.image),
            Some(text) => ModelInput::Text(text),
            None if inputs.is_empty() => ModelInput::Nothing,
            None => ModelInput::Arrays(inputs),
        };
        let device = |text: String| {
            text.parse().map_err(|_| Failure::Usage(format!("--device: expected an id such as cpu:0, got {text}")))
        };
        Ok(InferOptions {
            model: arguments.model,
            given,
            outputs: named(&arguments.output, "--output")?,
            top,
            labels: arguments.labels,
            normalisation,
            score_min,
            boxes: arguments.boxes,
            vocabulary: arguments.vocabulary,
            device: arguments.device.map(device).transpose()?,
            profile: arguments.profile,
            format: format(arguments.json),
        })
    }
}

impl EmbedOptions {
    /// Validates the arguments. Fails with a usage error that names the invalid argument.
    pub fn resolve(arguments: EmbedArguments) -> Result<EmbedOptions, Failure> {
        let EmbedArguments { model, text, lines, image, vocabulary, into, json } = arguments;
        if text.is_empty() && lines.is_none() && image.is_empty() {
            return Err(Failure::Usage("expected --text, --lines or --image: there is nothing to embed".to_owned()));
        }
        let lines = lines.map(|file| if file.as_os_str() == "-" { Lines::Input } else { Lines::File(file) });
        Ok(EmbedOptions { model, texts: text, lines, pictures: image, vocabulary, into, format: format(json) })
    }
}

fn normalisation(text: &str) -> Result<Normalisation, Failure> {
    Ok(match text {
        "imagenet" => Normalisation::IMAGENET,
        "unit" => Normalisation::Unit,
        "signed" => Normalisation::Signed,
        "bytes" => Normalisation::Bytes,
        other => {
            let expected = "--normalise: expected imagenet, unit, signed or bytes";
            return Err(Failure::Usage(format!("{expected}, got {other}")));
        }
    })
}

fn named(list: &[String], argument: &str) -> Result<Vec<(String, PathBuf)>, Failure> {
    let example = if argument == "--output" { "y=output.npy" } else { "x=input.npy" };
    let pair = |text: &String| {
        let wrong = || Failure::Usage(format!("{argument}: expected a name and a file such as {example}, got {text}"));
        let parts = text.rsplit_once('=').filter(|(name, file)| !name.is_empty() && !file.is_empty());
        parts.map(|(name, file)| (name.to_owned(), PathBuf::from(file))).ok_or_else(wrong)
    };
    list.iter().map(pair).collect()
}
