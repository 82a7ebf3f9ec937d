//! Object detection: objects in pictures, as boxes.

use std::sync::Arc;
use std::time::Instant;

use panoply_core::Tensor;
use panoply_inputs::picture::{Fit, Picture};
use panoply_inputs::tasks::{DetectOptions, Detection, Labels, in_picture};
use panoply_models::{Array, Context, Model, ModelValue, Outputs, RunValue, finished};
use panoply_runtime::{PendingTask, RunOptions, TaskOutcome};

use super::boxes::Graphs;
use super::frame::{frame_of, framed};
use crate::error::{Error, Result};

/// The side of a picture, in pixels, if a detector leaves the size open.
pub const OPEN_SIDE: usize = 640;

/// A model that detects objects, with an output in the layout of the YOLO versions. A detector
/// caches its graphs, so keep one for many pictures.
pub struct Detector {
    model: Model,
    graphs: Arc<Graphs>,
}

impl Detector {
    /// A detector of this model.
    pub fn new(model: &Model) -> Detector {
        Detector { model: model.clone(), graphs: Arc::default() }
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
        let mut found = self.found(&output.tensor()?, options, run)?;
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
        self.found(&output.tensor()?, options, run)
    }

    fn found(&self, output: &Tensor, options: &DetectOptions, run: &RunOptions) -> Result<Vec<Detection>> {
        let context = Context::blocking(Some(self.model.runtime()), run.clone());
        finished(self.graphs.run(&context, output, options))
    }

    /// As [`Detector::boxes`], as one task, for the first output of a run ([`Model::run`]), which
    /// stays on its device.
    pub fn boxes_task(
        &self,
        outputs: &Outputs<ModelValue>,
        options: &DetectOptions,
        run: &RunOptions,
    ) -> PendingTask<Vec<Detection>, Error> {
        let (model, graphs, options) = (self.model.clone(), Arc::clone(&self.graphs), *options);
        let (output, own) = (outputs.first().cloned(), RunOptions { to_host: false, ..run.clone() });
        self.model.runtime().task(run, async move {
            let begun = Instant::now();
            let context = Context::awaiting(model.runtime(), own);
            let found = graphs.run(&context, &output?.tensor()?, &options).await?;
            Ok(TaskOutcome { output: found, report: context.into_report(begun) })
        })
    }
}

/// The objects in a picture, in descending order of score. For many pictures use a [`Detector`].
pub fn detect(model: &Model, picture: &Picture, options: &DetectOptions, labels: &Labels) -> Result<Vec<Detection>> {
    Detector::new(model).detect(picture, options, labels, &RunOptions::default())
}
