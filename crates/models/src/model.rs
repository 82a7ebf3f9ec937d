//! A model on the devices of a runtime.

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use panoply_core::Tensor;
use panoply_runtime::{PendingTask, RunOptions, Runtime, TaskOutcome};

use crate::array::Array;
use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::exec::{Context, RunValue, finished};
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

/// The answer of a model: values with their names, in the file's order.
#[derive(Clone, Debug)]
pub struct Outputs<V = Array>(pub Vec<(String, V)>);

/// A run of a model that has begun; see [`Model::run`].
pub type PendingRun = PendingTask<Outputs<ModelValue>, Error>;

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

    /// Runs the model as one task: a future that also blocks (`wait`), can be cancelled by dropping
    /// it, and reports its steps. Outputs stay in the memory where they were computed.
    ///
    /// ```
    /// # use panoply_models::{Array, Model, NewNode, Network};
    /// # use panoply_runtime::Runtime;
    /// # use std::sync::Arc;
    /// # let runtime = Runtime::builder().backend(Arc::new(panoply_cpu::CpuBackend::new())).build()?;
    /// # let network = Network::of_nodes("twice", vec![NewNode::new("Add", &["x", "x"], &["y"])], &["x"], &["y"])?;
    /// # let model = Model::new(runtime, network);
    /// let x = Array::from_slice(&[1.0_f32, 2.0], [2])?;
    /// let outcome = model.run(&[("x", x.into())]).with_report().wait()?;
    /// assert_eq!(outcome.output.get("y")?.tensor()?.to_vec::<f32>()?, [2.0, 4.0]);
    /// println!("{} ran on {:?}:\n{}", model.name(), outcome.report.devices(), outcome.report);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn run(&self, inputs: &[(&str, ModelValue)]) -> PendingRun {
        self.run_with(inputs, &RunOptions::default())
    }

    /// As [`Model::run`], with options: those of every graph of the model. The deadline bounds the
    /// whole run, and with [`RunOptions::to_host`] the outputs come as arrays on the host.
    ///
    /// Nodes that no device runs are computed on the thread that polls or waits.
    pub fn run_with(&self, inputs: &[(&str, ModelValue)], options: &RunOptions) -> PendingRun {
        let own = |(name, value): &(&str, ModelValue)| ((*name).to_owned(), RunValue::from(value));
        let given: Vec<(String, RunValue)> = inputs.iter().map(own).collect();
        let (model, run, to_host) = (self.clone(), options.clone(), options.to_host);
        self.runtime.task(options, async move {
            let begun = Instant::now();
            // Values between steps stay where they are.
            let context = Context::awaiting(&model.runtime, RunOptions { to_host: false, ..run });
            let given: Vec<(&str, RunValue)> = given.iter().map(|(name, value)| (&**name, value.clone())).collect();
            let mut outputs = Vec::new();
            for (port, value) in model.outputs().iter().zip(model.network.run_live(&context, &given).await?) {
                outputs.push((port.name.clone(), ModelValue::of(&context, value, to_host).await?));
            }
            Ok(TaskOutcome { output: Outputs(outputs), report: context.into_report(begun) })
        })
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
        let given: Vec<(&str, RunValue)> = inputs.iter().map(|(name, held)| (*name, held.into())).collect();
        let context = Context::blocking(Some(&self.runtime), options.clone());
        finished(async {
            let mut outputs = Vec::new();
            for output in self.network.run_live(&context, &given).await? {
                outputs.push(ModelValue::of(&context, output, false).await?);
            }
            Ok(outputs)
        })
    }

    /// As [`Model::infer_with`], with values that stay on their devices.
    pub fn infer_live(&self, inputs: &[(&str, RunValue)], options: &RunOptions) -> Result<Vec<RunValue>> {
        finished(self.network.run_live(&Context::blocking(Some(&self.runtime), options.clone()), inputs))
    }

    /// As [`Model::infer_with`], with a report. It ends with `Cancelled` before its next step if
    /// the answer is no longer wanted.
    pub fn infer_while(
        &self,
        inputs: &[(&str, Array)],
        options: &RunOptions,
        is_wanted: &(dyn Fn() -> bool + Sync),
    ) -> Result<TaskOutcome<Outputs>> {
        let begun = Instant::now();
        let given: Vec<(&str, RunValue)> =
            inputs.iter().map(|(name, array)| (*name, RunValue::Value(array.clone().into()))).collect();
        let context = Context::blocking(Some(&self.runtime), options.clone()).with_report().while_wanted(is_wanted);
        let mut outputs = Vec::with_capacity(self.network.outputs().len());
        finished(async {
            for (port, value) in self.network.outputs().iter().zip(self.network.run_live(&context, &given).await?) {
                outputs.push((port.name.clone(), context.fetch(&value).await?.array()?.clone()));
            }
            Ok::<_, Error>(())
        })?;
        Ok(TaskOutcome { output: Outputs(outputs), report: context.into_report(begun) })
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

impl ModelValue {
    /// A value of a run. Only values whose element type devices lack are copied to the host, and
    /// all values if they are wanted there.
    pub async fn of(context: &Context<'_>, value: RunValue, to_host: bool) -> Result<ModelValue> {
        match value {
            RunValue::Tensor(tensor, kind) if !to_host && kind.dtype() == Some(tensor.dtype()) => {
                Ok(ModelValue::Tensor(tensor))
            }
            other => Ok(ModelValue::Array(context.fetch(&other).await?.array()?.clone())),
        }
    }

    /// The value as a tensor, in the memory where it is.
    pub fn tensor(&self) -> Result<Tensor> {
        match self {
            ModelValue::Array(array) => array.tensor(),
            ModelValue::Tensor(tensor) => Ok(tensor.clone()),
        }
    }

    /// The value as an array. A tensor in a device's memory is fetched first, for which this waits:
    /// [`RunOptions::to_host`] brings outputs to the host as part of the run.
    pub fn array(&self) -> Result<Array> {
        match self {
            ModelValue::Array(array) => Ok(array.clone()),
            ModelValue::Tensor(tensor) => Array::from_tensor(tensor),
        }
    }
}

impl From<Array> for ModelValue {
    fn from(array: Array) -> ModelValue {
        ModelValue::Array(array)
    }
}

impl From<Tensor> for ModelValue {
    fn from(tensor: Tensor) -> ModelValue {
        ModelValue::Tensor(tensor)
    }
}

impl From<&ModelValue> for RunValue {
    fn from(value: &ModelValue) -> RunValue {
        match value {
            ModelValue::Array(array) => RunValue::Value(array.clone().into()),
            ModelValue::Tensor(tensor) => RunValue::Tensor(tensor.clone(), tensor.dtype().into()),
        }
    }
}

impl<V> Outputs<V> {
    /// The output with this name.
    pub fn get(&self, name: &str) -> Result<&V> {
        let found = self.0.iter().find(|(known, _)| known == name);
        let names = || self.0.iter().map(|(name, _)| format!("{name:?}")).collect::<Vec<_>>().join(" or ");
        found
            .map(|(_, value)| value)
            .ok_or_else(|| Error::invalid("the name of an output", names(), format!("{name:?}")))
    }

    /// The first output. Most models have only one.
    pub fn first(&self) -> Result<&V> {
        self.0.first().map(|(_, value)| value).ok_or_else(|| Error::invalid("a model", "an output", "none"))
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
