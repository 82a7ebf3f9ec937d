//! Whole models on the runtimes of others, ONNX Runtime and OpenVINO: an answer to compare with, a
//! way to run a model that [`models`](crate::models) refuses, and the way to NPUs.
//!
//! No model goes there by itself. A program loads the model through this module. The devices are in
//! its list of devices if `PANOPLY_ONNXRUNTIME` or `PANOPLY_OPENVINO` names the library.

use std::path::Path;
use std::sync::Arc;

use panoply_core::{Absence, Bytes, Capabilities, DeviceId, DeviceInfo, Object};
use panoply_models::{Array, ElementType, Error, Outputs, Result};
use panoply_runtime::{RunOptions, Runtime};
use panoply_whole_model::{InspectModel, LoadModel, ModelArray, ModelSource, RunModel};

pub use panoply_whole_model::ModelShare;

/// Whether a device runs whole models, as those of [`WholeModel`] are run.
pub fn runs_whole_models(device: &DeviceInfo) -> bool {
    device.capabilities.has(Capabilities::WHOLE_MODELS)
}

/// Whether the runtime has a device that runs whole models, or the reasons why there is none.
pub fn presence(runtime: &Runtime) -> std::result::Result<(), Absence> {
    if runtime.devices().any(|device| runs_whole_models(&device)) {
        return Ok(());
    }
    let apis = crate::compiled::whole_model_apis();
    let reports = runtime.backends().into_iter().filter(|report| apis.contains(&report.api));
    let reasons = reports.filter_map(|report| Some(format!("{}: {}", report.api, report.devices.err()?)));
    let reasons: Vec<String> = reasons.collect();
    let reason = if reasons.is_empty() { "the runtime was built without it".to_owned() } else { reasons.join("; ") };
    Err(Absence::NoDevice { reason })
}

/// A model that another runtime has loaded. Clones share it.
#[derive(Clone)]
pub struct WholeModel {
    runtime: Arc<Runtime>,
    model: Object,
}

impl WholeModel {
    /// Loads a model from a file; weights beside the file are found. Fails if no device runs
    /// whole models.
    pub fn load(runtime: impl Into<Arc<Runtime>>, path: impl AsRef<Path>) -> Result<WholeModel> {
        WholeModel::load_with(runtime, path, &RunOptions::default())
    }

    /// Like [`WholeModel::load`], with the caller's options. They may require a device, where
    /// the model stays.
    pub fn load_with(
        runtime: impl Into<Arc<Runtime>>,
        path: impl AsRef<Path>,
        options: &RunOptions,
    ) -> Result<WholeModel> {
        WholeModel::of(runtime.into(), ModelSource::File(path.as_ref().to_owned()), options)
    }

    /// Loads a model that contains all its weights.
    pub fn from_bytes(runtime: impl Into<Arc<Runtime>>, bytes: &[u8]) -> Result<WholeModel> {
        let source = ModelSource::Bytes(Bytes::from_vec(bytes.to_vec()));
        WholeModel::of(runtime.into(), source, &RunOptions::default())
    }

    fn of(runtime: Arc<Runtime>, source: ModelSource, options: &RunOptions) -> Result<WholeModel> {
        let model = runtime.run_with(LoadModel { source }, options.clone()).wait()?;
        Ok(WholeModel { runtime, model })
    }

    /// The device that has loaded the model and runs it.
    pub fn device(&self) -> DeviceId {
        self.model.device()
    }

    /// The parts of the other runtime that run the model: execution providers with their numbers of
    /// nodes, or devices. More than one means that the model is split.
    pub fn shares(&self) -> Result<Vec<ModelShare>> {
        Ok(self.runtime.run(InspectModel { model: self.model.clone() }).wait()?)
    }

    /// Runs the model with named inputs, in any order.
    pub fn infer(&self, inputs: &[(&str, Array)]) -> Result<Outputs> {
        self.infer_with(inputs, &RunOptions::default())
    }

    /// Like [`WholeModel::infer`], with the caller's options.
    pub fn infer_with(&self, inputs: &[(&str, Array)], options: &RunOptions) -> Result<Outputs> {
        let given = inputs.iter().map(|(name, array)| Ok(((*name).to_owned(), given(name, array)?)));
        let inputs = given.collect::<Result<Vec<(String, ModelArray)>>>()?;
        let op = RunModel { model: self.model.clone(), inputs };
        let outputs = self.runtime.run_with(op, options.clone()).wait()?;
        outputs.into_iter().map(|(name, array)| Ok((name, taken(&array)?))).collect::<Result<_>>().map(Outputs)
    }
}

impl std::fmt::Debug for WholeModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WholeModel({})", self.device())
    }
}

fn given(name: &str, array: &Array) -> Result<ModelArray> {
    let element_type = array.kind().code();
    if ModelArray::size_bytes(element_type, array.dims()).is_none() {
        return Err(Error::Unsupported { what: format!("{} elements for another runtime, in {name:?}", array.kind()) });
    }
    Ok(ModelArray { element_type, dims: array.dims().to_vec(), bytes: Bytes::from_vec(array.bytes().to_vec()) })
}

fn taken(array: &ModelArray) -> Result<Array> {
    let kind = ElementType::from_code(i64::from(array.element_type))?;
    Array::from_bytes(kind, &array.dims, array.bytes.as_slice()?)
}
