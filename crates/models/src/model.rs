//! A model on the devices of a runtime.

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use panoply_core::Tensor;
use panoply_runtime::{RunOptions, Runtime};

use crate::array::Array;
use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::exec::{Context, RunValue};
use crate::network::{Dimension, Network, Port};
use crate::profile::NodeTime;
use crate::value::Value;

/// A model with its runtime. Cloning shares both. Weights are in the host's memory once. They stay
/// on each device that has run the model until the last clone is dropped, or until
/// [`Network::forget`].
#[derive(Clone)]
pub struct Model {
    network: Network,
    runtime: Arc<Runtime>,
}

/// An input or output of a model, on the host or on a device.
#[derive(Clone, Debug)]
pub enum ModelValue {
    /// An array on the host, of any element type.
    Array(Array),
    /// A tensor in the memory where a device placed it.
    Tensor(Tensor),
}

/// The answer of a model: arrays with their names, in the file's order.
#[derive(Clone, Debug)]
pub struct Outputs(pub Vec<(String, Array)>);

impl Model {
    /// Reads a model. External weights are looked for in the file's folder only.
    pub fn load(runtime: impl Into<Arc<Runtime>>, path: impl AsRef<Path>) -> Result<Model> {
        Ok(Model::new(runtime, Network::load(path)?))
    }

    /// Reads a model whose weights are all inside it.
    pub fn from_bytes(runtime: impl Into<Arc<Runtime>>, bytes: &[u8]) -> Result<Model> {
        Ok(Model::new(runtime, Network::from_bytes(bytes)?))
    }

    /// A model of a parsed network on this runtime.
    pub fn new(runtime: impl Into<Arc<Runtime>>, network: Network) -> Model {
        Model { network, runtime: runtime.into() }
    }

    /// The runtime of the model.
    pub fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }

    /// Runs the model on inputs by name, in any order.
    pub fn infer(&self, inputs: &[(&str, Array)]) -> Result<Outputs> {
        self.infer_with(inputs, &RunOptions::default())
    }

    /// As [`Model::infer`], with options.
    pub fn infer_with(&self, inputs: &[(&str, Array)], options: &RunOptions) -> Result<Outputs> {
        let given: Vec<(&str, Value)> = inputs.iter().map(|(name, array)| (*name, array.clone().into())).collect();
        let values = self.network.infer_values(&self.runtime, &given, options)?;
        let named = self.network.outputs().iter().zip(values);
        named.map(|(port, value)| Ok((port.name.clone(), value.array()?.clone()))).collect::<Result<_>>().map(Outputs)
    }

    /// Measures each node: runs the model several times, one node after the other. See
    /// [`Network::profile`].
    pub fn profile(&self, inputs: &[(&str, Array)], options: &RunOptions) -> Result<Vec<NodeTime>> {
        let given: Vec<(&str, Value)> = inputs.iter().map(|(name, array)| (*name, array.clone().into())).collect();
        self.network.profile(&self.runtime, &given, options)
    }

    /// As [`Model::infer_with`], with inputs on the host or on a device. Outputs come in the file's
    /// order and stay where they were computed. Only values whose element types devices lack are
    /// copied to the host.
    pub fn infer_on_device(&self, inputs: &[(&str, ModelValue)], options: &RunOptions) -> Result<Vec<ModelValue>> {
        let live = |held: &ModelValue| match held {
            ModelValue::Array(array) => RunValue::Value(array.clone().into()),
            ModelValue::Tensor(tensor) => RunValue::Tensor(tensor.clone(), tensor.dtype().into()),
        };
        let given: Vec<(&str, RunValue)> = inputs.iter().map(|(name, held)| (*name, live(held))).collect();
        let context = Context::new(Some(&self.runtime), options.clone());
        let held = |output: RunValue| match output {
            RunValue::Tensor(tensor, kind) if kind.dtype() == Some(tensor.dtype()) => Ok(ModelValue::Tensor(tensor)),
            other => Ok(ModelValue::Array(context.fetch(&other)?.array()?.clone())),
        };
        self.network.run_live(&context, &given)?.into_iter().map(held).collect()
    }

    /// As [`Model::infer_with`], with values that stay on their devices.
    pub fn infer_live(&self, inputs: &[(&str, RunValue)], options: &RunOptions) -> Result<Vec<RunValue>> {
        self.network.run_live(&Context::new(Some(&self.runtime), options.clone()), inputs)
    }

    /// Runs the model once on zeros, so that weights are on the device and kernels are compiled
    /// before the first request. `sizes` gives the open dimensions by name; a dimension without an
    /// entry is 1.
    pub fn warm_up(&self, sizes: &[(&str, usize)]) -> Result<()> {
        let zeros = self.network.inputs().iter().map(|port| Ok((port.name.as_str(), zeros_of(port, sizes)?)));
        self.infer(&zeros.collect::<Result<Vec<_>>>()?).map(drop)
    }
}

impl Deref for Model {
    type Target = Network;

    fn deref(&self) -> &Network {
        &self.network
    }
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.network.fmt(f)
    }
}

impl Outputs {
    /// The output with this name.
    pub fn get(&self, name: &str) -> Result<&Array> {
        let found = self.0.iter().find(|(known, _)| known == name);
        let names = || self.0.iter().map(|(name, _)| format!("{name:?}")).collect::<Vec<_>>().join(" or ");
        found
            .map(|(_, array)| array)
            .ok_or_else(|| Error::invalid("the name of an output", names(), format!("{name:?}")))
    }

    /// The first output. Most models have only one.
    pub fn first(&self) -> Result<&Array> {
        self.0.first().map(|(_, array)| array).ok_or_else(|| Error::invalid("a model", "an output", "none"))
    }
}

/// An array of zeros that fits an input.
pub(crate) fn zeros_of(port: &Port, sizes: &[(&str, usize)]) -> Result<Array> {
    let missing = || Error::invalid(format!("the input {:?}", port.name), "a shape in the model's file", "none");
    let dims = port.dims.as_ref().ok_or_else(missing)?;
    let size = |dim: &Dimension| match dim {
        Dimension::Fixed(size) => *size,
        Dimension::Named(name) => sizes.iter().find(|(known, _)| known == name).map_or(1, |(_, size)| *size),
    };
    let dims: Vec<usize> = dims.iter().map(size).collect();
    match port.kind.unwrap_or(ElementType::F32) {
        ElementType::String => Array::from_texts(std::iter::repeat(&String::new()), &dims),
        kind => Array::build(kind, &dims, |_| ()),
    }
}
