//! Models on ONNX Runtime: an answer to compare with, and a way to run a model that
//! [`models`](crate::models) refuses.
//!
//! No model goes there by itself. A program loads the model through this module. The device
//! `onnxruntime:0` is in its list of devices if the variable `PANOPLY_ONNXRUNTIME` names the
//! library.

use std::path::Path;
use std::sync::Arc;

use panoply_core::{Absence, Backend, Bytes, Capabilities, DeviceId, DeviceInfo, Object};
use panoply_models::{Array, ElementType, Error, Outputs, Result};
use panoply_onnxruntime::{LoadModel, ModelArray, ModelSource, OnnxRuntimeBackend, RunModel};
use panoply_runtime::{RunOptions, Runtime};

pub use panoply_onnxruntime::ONNX_RUNTIME;

/// Whether a device runs whole models, as those of [`OnnxRuntimeModel`] are run.
pub fn runs_whole_models(device: &DeviceInfo) -> bool {
    device.capabilities.has(Capabilities::WHOLE_MODELS)
}

/// Whether the runtime has a device that runs whole models, or the reason why ONNX Runtime is not
/// there.
pub fn presence(runtime: &Runtime) -> std::result::Result<(), Absence> {
    if runtime.devices().any(|device| runs_whole_models(&device)) {
        return Ok(());
    }
    let backend = OnnxRuntimeBackend::from_environment();
    let report = runtime.backends().into_iter().find(|report| report.api == backend.api());
    let unused = || Absence::NoDevice { reason: "the runtime was built without it".to_owned() };
    Err(report.and_then(|report| report.devices.err()).unwrap_or_else(unused))
}

/// A model that ONNX Runtime has loaded. Clones share it.
#[derive(Clone)]
pub struct OnnxRuntimeModel {
    runtime: Arc<Runtime>,
    model: Object,
}

impl OnnxRuntimeModel {
    /// Loads a model from a file; weights beside the file are found. Fails with the reason if there
    /// is no ONNX Runtime device.
    pub fn load(runtime: impl Into<Arc<Runtime>>, path: impl AsRef<Path>) -> Result<OnnxRuntimeModel> {
        OnnxRuntimeModel::load_with(runtime, path, &RunOptions::default())
    }

    /// Like [`OnnxRuntimeModel::load`], with the caller's options. They may require a device, where
    /// the model stays.
    pub fn load_with(
        runtime: impl Into<Arc<Runtime>>,
        path: impl AsRef<Path>,
        options: &RunOptions,
    ) -> Result<OnnxRuntimeModel> {
        OnnxRuntimeModel::of(runtime.into(), ModelSource::File(path.as_ref().to_owned()), options)
    }

    /// Loads a model that contains all its weights.
    pub fn from_bytes(runtime: impl Into<Arc<Runtime>>, bytes: &[u8]) -> Result<OnnxRuntimeModel> {
        let source = ModelSource::Bytes(Bytes::from_vec(bytes.to_vec()));
        OnnxRuntimeModel::of(runtime.into(), source, &RunOptions::default())
    }

    fn of(runtime: Arc<Runtime>, source: ModelSource, options: &RunOptions) -> Result<OnnxRuntimeModel> {
        let model = runtime.run_with(LoadModel { source }, options.clone()).wait()?;
        Ok(OnnxRuntimeModel { runtime, model })
    }

    /// The device that has loaded the model and runs it.
    pub fn device(&self) -> DeviceId {
        self.model.device()
    }

    /// Runs the model with named inputs, in any order.
    pub fn infer(&self, inputs: &[(&str, Array)]) -> Result<Outputs> {
        self.infer_with(inputs, &RunOptions::default())
    }

    /// Like [`OnnxRuntimeModel::infer`], with the caller's options.
    pub fn infer_with(&self, inputs: &[(&str, Array)], options: &RunOptions) -> Result<Outputs> {
        let given = inputs.iter().map(|(name, array)| Ok(((*name).to_owned(), given(name, array)?)));
        let inputs = given.collect::<Result<Vec<(String, ModelArray)>>>()?;
        let op = RunModel { model: self.model.clone(), inputs };
        let outputs = self.runtime.run_with(op, options.clone()).wait()?;
        outputs.into_iter().map(|(name, array)| Ok((name, taken(&array)?))).collect::<Result<_>>().map(Outputs)
    }
}

impl std::fmt::Debug for OnnxRuntimeModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OnnxRuntimeModel({})", self.device())
    }
}

fn given(name: &str, array: &Array) -> Result<ModelArray> {
    let element_type = array.kind().code();
    if ModelArray::size_bytes(element_type, array.dims()).is_none() {
        return Err(Error::Unsupported { what: format!("{} elements for ONNX Runtime, in {name:?}", array.kind()) });
    }
    Ok(ModelArray { element_type, dims: array.dims().to_vec(), bytes: Bytes::from_vec(array.bytes().to_vec()) })
}

fn taken(array: &ModelArray) -> Result<Array> {
    let kind = ElementType::from_code(i64::from(array.element_type))?;
    Array::from_bytes(kind, &array.dims, array.bytes.as_slice()?)
}
