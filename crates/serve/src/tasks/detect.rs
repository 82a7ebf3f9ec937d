//! Object detection: objects in pictures, as boxes.

use panoply_inputs::picture::{Fit, Picture};
use panoply_inputs::tasks::{DetectOptions, Detection, Labels, in_picture};
use panoply_models::{Array, Model, RunValue};
use panoply_runtime::RunOptions;

use super::boxes::Graphs;
use super::frame::{frame_of, framed};
use crate::error::{Error, Result};

/// The side of a picture, in pixels, if a detector leaves the size open.
pub const OPEN_SIDE: usize = 640;

/// A model that detects objects, with an output in the layout of the YOLO versions. A detector
/// caches its graphs, so keep one for many pictures.
pub struct Detector {
    model: Model,
    graphs: Graphs,
}

impl Detector {
    /// A detector of this model.
    pub fn new(model: &Model) -> Detector {
        Detector { model: model.clone(), graphs: Graphs::default() }
    }

    /// The objects in a picture, in descending order of score. Boxes are decoded and suppressed on
    /// the device that holds the model's output.
    pub fn detect(
        &self,
        picture: &Picture,
        options: &DetectOptions,
        labels: &Labels,
        run: &RunOptions,
    ) -> Result<Vec<Detection>> {
        let port = self.model.inputs().first().ok_or_else(|| Error::invalid("a detector", "an input", "none"))?;
        let frame = frame_of(port, Some(OPEN_SIDE));
        let frame =
            frame.ok_or_else(|| Error::invalid("a detector", "an input that is a picture", port.shape_text()))?;
        let (array, placement) = framed(picture, &frame, Fit::Letterbox, options.normalisation)?;
        let outputs = self.model.infer_live(&[(&port.name, RunValue::Value(array.into()))], run)?;
        let output = outputs.first().ok_or_else(|| Error::invalid("a detector", "an output", "none"))?;
        let sizes = [picture.width() as f32, picture.height() as f32];
        let mut found = self.graphs.run(self.model.runtime(), &output.tensor()?, options, run)?;
        for object in &mut found {
            object.corners = in_picture(object.corners, &placement, sizes);
            object.label = labels.get(object.class);
        }
        Ok(found)
    }

    /// The boxes in a model's output array, in the model's pixels. Computes on a runtime's devices
    /// what [`boxes`](panoply_inputs::tasks::boxes) and
    /// [`suppress`](panoply_inputs::tasks::suppress) compute on the host.
    pub fn boxes(&self, output: &Array, options: &DetectOptions, run: &RunOptions) -> Result<Vec<Detection>> {
        self.graphs.run(self.model.runtime(), &output.tensor()?, options, run)
    }
}

/// The objects in a picture, in descending order of score. For many pictures use a [`Detector`].
pub fn detect(model: &Model, picture: &Picture, options: &DetectOptions, labels: &Labels) -> Result<Vec<Detection>> {
    Detector::new(model).detect(picture, options, labels, &RunOptions::default())
}
