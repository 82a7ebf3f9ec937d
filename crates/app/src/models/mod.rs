//! `panoply infer` and `panoply embed`: models from ONNX files. [`text_model`] finds the model for
//! searches by text.

pub mod embed;
pub mod infer;
mod pictures;
mod profile;
pub mod text_model;

use std::path::{Path, PathBuf};

use anyhow::Context;
use panoply::Runtime;
use panoply::inputs::picture::Picture;
use panoply::inputs::text::Tokenizer;
use panoply::models::{Error, Model};

use crate::failure::Failure;

/// The largest file of a picture or an array, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 32;

/// The name of the host, for models that run on no device.
const HOST: &str = "host";

/// Reads a file's bytes.
fn bytes_of(path: &Path) -> Result<Vec<u8>, Failure> {
    let unreadable = || format!("{} cannot be read", path.display());
    let size = std::fs::metadata(path).with_context(unreadable)?.len();
    if size > FILE_BYTES_MAX {
        return Err(Failure::Run(anyhow::anyhow!("{} is larger than {FILE_BYTES_MAX} bytes", path.display())));
    }
    Ok(std::fs::read(path).with_context(unreadable)?)
}

/// Reads a model. An error names the file.
fn load(runtime: &Runtime, path: &Path) -> panoply::models::Result<Model, LoadError> {
    Model::load(runtime, path).map_err(|error| LoadError { path: path.to_owned(), error })
}

/// Why a model could not be read.
struct LoadError {
    path: PathBuf,
    error: Error,
}

impl From<LoadError> for Failure {
    fn from(LoadError { path, error }: LoadError) -> Failure {
        let is_named = matches!(error, Error::File { .. });
        let error = anyhow::Error::new(error);
        Failure::Run(if is_named { error } else { error.context(path.display().to_string()) })
    }
}

/// Returns the devices that ran the model, as reported by the runtime. If no node became part of a
/// graph, the host ran everything.
fn devices_of(model: &Model) -> Vec<String> {
    let devices: Vec<String> = model.devices().iter().map(|(device, _)| device.to_string()).collect();
    if devices.is_empty() { vec![HOST.to_owned()] } else { devices }
}

/// Formats the devices as a phrase.
fn spoken(devices: &[String]) -> String {
    let name = |device: &String| if device == HOST { format!("the {HOST}") } else { device.clone() };
    devices.iter().map(name).collect::<Vec<_>>().join(" and ")
}

fn picture_of(path: &Path) -> Result<Picture, Failure> {
    let picture = Picture::decode(&bytes_of(path)?);
    Ok(picture.with_context(|| format!("{} cannot be decoded", path.display()))?)
}

fn tokenizer_of(model: &Path, vocabulary: Option<&Path>) -> Result<Tokenizer, Failure> {
    let tokenizer = match vocabulary {
        Some(path) => Tokenizer::load(path),
        None => Tokenizer::beside(model),
    };
    Ok(tokenizer.context("the model has no vocabulary beside it, and --vocabulary names none")?)
}
