//! Models on ONNX Runtime: an answer to compare with, and a way to run a model that
//! [`models`](crate::models) refuses.
//!
//! No model goes there by itself. A program loads the model through this module. The device
//! `onnxruntime:0` is in its list of devices if the variable `PANOPLY_ONNXRUNTIME` names the
//! library.

use std::path::Path;
use std::sync::Arc;

use panoply_core::{Absence, Bytes, Object};
use panoply_models::{Array, ElementType, Error, Outputs, Result};
use panoply_onnxruntime::{LoadModel, ModelArray, ModelSource, RunModel};
use panoply_runtime::{RunOptions, Runtime};

pub use panoply_onnxruntime::{ONNX_RUNTIME, is_onnxruntime};

/// Whether the runtime has an ONNX Runtime device, or the reason why not.
pub fn presence(runtime: &Runtime) -> std::result::Result<(), Absence> {
    if runtime.devices().any(|device| is_onnxruntime(device.id.api)) {
        return Ok(());
    }
    let report = runtime.backends().into_iter().find(|report| is_onnxruntime(report.api));
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
        OnnxRuntimeModel::of(runtime.into(), ModelSource::File(path.as_ref().to_owned()))
    }

    /// Loads a model that contains all its weights.
    pub fn from_bytes(runtime: impl Into<Arc<Runtime>>, bytes: &[u8]) -> Result<OnnxRuntimeModel> {
        OnnxRuntimeModel::of(runtime.into(), ModelSource::Bytes(Bytes::from_vec(bytes.to_vec())))
    }

    fn of(runtime: Arc<Runtime>, source: ModelSource) -> Result<OnnxRuntimeModel> {
        let model = runtime.run(LoadModel { source }).wait()?;
        Ok(OnnxRuntimeModel { runtime, model })
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
        write!(f, "OnnxRuntimeModel({})", self.model.device())
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
