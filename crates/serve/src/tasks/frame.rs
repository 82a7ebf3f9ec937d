//! Pictures as a model's input.

use panoply_inputs::picture::{Fit, Frame, Normalisation, Picture, Placement};
use panoply_models::{Array, Dimension, Port};

use crate::error::Result;

/// The frame that a model's input asks for. Sizes that the input leaves open are `open` pixels.
/// `None` if the input is not a picture.
pub fn frame_of(port: &Port, open: Option<usize>) -> Option<Frame> {
    let size = |dim: &Dimension| match dim {
        Dimension::Fixed(size) => Some(*size),
        Dimension::Named(_) => None,
    };
    let dims: Vec<Option<usize>> = port.dims.as_ref()?.iter().map(size).collect();
    Frame::of(&dims, port.kind?.dtype()?, open)
}

/// The picture as a model's input, and the picture's placement in it.
pub(super) fn framed(
    picture: &Picture,
    frame: &Frame,
    fit: Fit,
    normalisation: Normalisation,
) -> Result<(Array, Placement)> {
    let (tensor, placement) = picture.tensor(frame, fit, normalisation)?;
    Ok((Array::from_tensor(&tensor)?, placement))
}
