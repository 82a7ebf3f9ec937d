//! Classification of pictures.

use panoply_inputs::picture::{Fit, Normalisation, Picture};
use panoply_inputs::tasks::{Class, Labels, classes};
use panoply_models::Model;
use panoply_runtime::RunOptions;

use super::frame::{frame_of, framed};
use crate::error::{Error, Result};

/// The most probable classes of a picture, in descending order of probability.
pub fn classify(
    model: &Model,
    picture: &Picture,
    normalisation: Normalisation,
    top: usize,
    labels: &Labels,
) -> Result<Vec<Class>> {
    classify_with(model, picture, normalisation, top, labels, &RunOptions::default())
}

/// As [`classify`], with options.
pub fn classify_with(
    model: &Model,
    picture: &Picture,
    normalisation: Normalisation,
    top: usize,
    labels: &Labels,
    run: &RunOptions,
) -> Result<Vec<Class>> {
    let port = model.inputs().first().ok_or_else(|| Error::invalid("a classifier", "an input", "none"))?;
    let frame = frame_of(port, None);
    let frame = frame.ok_or_else(|| Error::invalid("a classifier", "an input that is a picture", port.shape_text()))?;
    let (array, _) = framed(picture, &frame, Fit::Crop, normalisation)?;
    let outputs = model.infer_with(&[(&port.name, array)], run)?;
    Ok(classes(&outputs.first()?.to_floats()?, top, labels))
}
