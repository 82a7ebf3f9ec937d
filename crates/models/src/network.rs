//! A parsed network: named inputs and outputs, and runs on the host or on a runtime's devices.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use panoply_core::DeviceId;
use panoply_core::buffer::HostBufferMut;
use panoply_core::graph::Graph;
use panoply_runtime::{RunOptions, Runtime};

use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::exec::{CachedNodeCount, Context, Executable, RunValue, count_in, finished};
use crate::nodes::NewNode;
use crate::onnx::{GraphMessage, ModelMessage, PortMessage, PortType, read_value};
use crate::ops::table;
use crate::profile::{NodeTime, medians};
use crate::program::build::{MainProgram, build};
use crate::value::Value;

/// The largest model file in bytes, external weights not counted. Larger models keep their weights
/// in external files.
pub const MODEL_BYTES_MAX: u64 = 1 << 32;

/// The number of measured runs of a profile.
const PROFILE_RUNS: usize = 5;

/// A parsed model file, ready to run. Cloning shares it: weights are in the host's memory once.
/// [`Model`](crate::Model) is a network with its runtime.
#[derive(Clone)]
pub struct Network(Arc<Inner>);

struct Inner {
    name: String,
    producer: String,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    metadata: Vec<(String, String)>,
    program: Executable,
    weight_bytes: usize,
    nodes: usize,
    /// The devices that ran graphs of the network, each with its number of graphs.
    devices: Mutex<Vec<(DeviceId, u64)>>,
}

/// An input or output of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// Its element type; for a sequence, the element type of its arrays. `None` if the file does
    /// not state it.
    pub kind: Option<ElementType>,
    /// Its dimensions. `None` if the file does not state the rank.
    pub dims: Option<Vec<Dimension>>,
    sort: PortType,
}

/// A dimension of an input or output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dimension {
    /// A fixed size.
    Fixed(usize),
    /// A size known when the model runs. Equal names stand for equal sizes. The name may be empty.
    Named(String),
}

impl Network {
    /// Reads a model. External weights are looked for in the file's folder only.
    pub fn load(path: impl AsRef<Path>) -> Result<Network> {
        let path = path.as_ref();
        let error = |cause| Error::file(path, cause);
        let mut file = File::open(path).map_err(error)?;
        let size = file.metadata().map_err(error)?.len();
        if size > MODEL_BYTES_MAX {
            return Err(Error::Limit { what: "the bytes of a model", limit: MODEL_BYTES_MAX, got: size });
        }
        let mut buffer = HostBufferMut::zeroed(size as usize)?;
        file.read_exact(buffer.bytes_mut()).map_err(error)?;
        Network::read(
            buffer.bytes(),
            Some(path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))),
        )
    }

    /// Reads a model whose weights are all inside it.
    pub fn from_bytes(bytes: &[u8]) -> Result<Network> {
        Network::read(bytes, None)
    }

    fn read(bytes: &[u8], folder: Option<&Path>) -> Result<Network> {
        Network::of(&ModelMessage::read(bytes)?, bytes.len(), folder)
    }

    /// A network of these nodes, with ops of the newest known version. Inputs and outputs have any
    /// type and shape.
    pub fn of_nodes(name: &str, nodes: Vec<NewNode>, inputs: &[&str], outputs: &[&str]) -> Result<Network> {
        let nodes = nodes.into_iter().map(NewNode::message).collect();
        let port = |name: &&str| PortMessage { name: (*name).to_owned(), ..PortMessage::default() };
        let (inputs, outputs) = (inputs.iter().map(port).collect(), outputs.iter().map(port).collect());
        let graph = GraphMessage { name: name.to_owned(), nodes, inputs, outputs, ..GraphMessage::default() };
        let opsets = vec![(String::new(), table::newest_version(""))];
        Network::of(&ModelMessage { opsets, graph: Some(graph), ..ModelMessage::default() }, 0, None)
    }

    fn of(message: &ModelMessage<'_>, file_bytes: usize, folder: Option<&Path>) -> Result<Network> {
        let MainProgram { body, names } = build(message, file_bytes, folder)?;
        let graph = message.graph.as_ref().ok_or(Error::Malformed { what: "there is no graph", at: 0 })?;
        let given: HashSet<usize> = body.inputs.iter().copied().collect();
        let is_input = |port: &&PortMessage| names.get(&port.name).is_some_and(|id| given.contains(id));
        let inputs = graph.inputs.iter().filter(is_input).map(Port::new).collect::<Result<Vec<_>>>()?;
        let outputs = graph.outputs.iter().map(Port::new).collect::<Result<Vec<_>>>()?;
        let weight_bytes = body.constants.iter().map(|(_, array)| array.bytes().len()).sum();
        let nodes = body.node_count();
        let program =
            Executable::new(Arc::new(body), HashMap::new(), Vec::new(), &Arc::new(CachedNodeCount::default()));
        let (name, producer, metadata) = (graph.name.clone(), message.producer.clone(), message.metadata.clone());
        let devices = Mutex::default();
        let inner = Inner { name, producer, inputs, outputs, metadata, program, weight_bytes, nodes, devices };
        Ok(Network(Arc::new(inner)))
    }

    /// The graph's name in the file.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The program that wrote the file.
    pub fn producer(&self) -> &str {
        &self.0.producer
    }

    /// The inputs that a caller must give.
    pub fn inputs(&self) -> &[Port] {
        &self.0.inputs
    }

    /// The outputs of a run.
    pub fn outputs(&self) -> &[Port] {
        &self.0.outputs
    }

    /// The file's metadata, for example names of classes.
    pub fn metadata(&self) -> &[(String, String)] {
        &self.0.metadata
    }

    /// The bytes of its weights.
    pub fn weight_bytes(&self) -> usize {
        self.0.weight_bytes
    }

    /// Number of nodes, with those of the bodies of `If`, `Loop` and `Scan`.
    pub fn nodes(&self) -> usize {
        self.0.nodes
    }

    /// Drops the plans compiled for the shapes seen so far, and with them the data that devices
    /// keep for these plans.
    pub fn forget(&self) {
        self.0.program.forget();
    }

    /// The steps of runs for the shapes seen so far: graphs and host steps, by the names of their
    /// ops.
    pub fn steps(&self) -> String {
        self.0.program.steps()
    }

    /// The graphs submitted to devices, for the shapes seen so far.
    pub fn graphs(&self) -> Vec<Graph> {
        self.0.program.graphs()
    }

    /// The devices that ran graphs of this network, as the runtime reported them, each with its
    /// number of graphs, over all runs that succeeded. The parts of a split graph count as graphs.
    /// Nodes outside of graphs ran on the host.
    pub fn devices(&self) -> Vec<(DeviceId, u64)> {
        self.0.devices.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Runs the model node by node in plain loops on the calling thread. The answers of all devices
    /// are compared with this one. Values may be sequences too.
    pub fn reference(&self, inputs: &[(&str, Value)]) -> Result<Vec<Value>> {
        self.run(&Context::blocking(None, RunOptions::default()), inputs)
    }

    /// Runs the network on a runtime's devices. Inputs are given by name, in any order. Outputs
    /// come in the order of [`Network::outputs`]. Values may be sequences too.
    pub fn infer_values(
        &self,
        runtime: &Runtime,
        inputs: &[(&str, Value)],
        options: &RunOptions,
    ) -> Result<Vec<Value>> {
        self.run(&Context::blocking(Some(runtime), options.clone()), inputs)
    }

    fn run(&self, context: &Context<'_>, inputs: &[(&str, Value)]) -> Result<Vec<Value>> {
        let live: Vec<(&str, RunValue)> =
            inputs.iter().map(|(name, value)| (*name, RunValue::Value(value.clone()))).collect();
        finished(async {
            let mut values = Vec::new();
            for output in self.run_live(context, &live).await? {
                values.push(context.fetch(&output).await?);
            }
            Ok(values)
        })
    }

    /// Measures each node: runs the network several times, one node after the other. Nodes whose
    /// results depend on nothing but the model are computed before and are left out.
    pub fn profile(&self, runtime: &Runtime, inputs: &[(&str, Value)], options: &RunOptions) -> Result<Vec<NodeTime>> {
        let live: Vec<(&str, RunValue)> =
            inputs.iter().map(|(name, value)| (*name, RunValue::Value(value.clone()))).collect();
        let mut runs = Vec::with_capacity(PROFILE_RUNS);
        // The first run compiles kernels and brings weights to devices.
        for run in 0..=PROFILE_RUNS {
            let context = Context::profiling(runtime, options.clone());
            finished(self.run_live(&context, &live))?;
            if run > 0 {
                runs.push(context.into_times());
            }
        }
        Ok(medians(&runs))
    }

    /// As [`Network::infer_values`], with values that stay where they were computed.
    pub async fn run_live(&self, context: &Context<'_>, inputs: &[(&str, RunValue)]) -> Result<Vec<RunValue>> {
        if let Some((name, _)) = inputs.iter().find(|(name, _)| !self.0.inputs.iter().any(|port| port.name == *name)) {
            return Err(Error::invalid("the name of an input", self.input_names(), format!("{name:?}")));
        }
        let mut symbols = HashMap::new();
        let mut live = Vec::with_capacity(self.0.inputs.len());
        for port in &self.0.inputs {
            let mut given = inputs.iter().filter(|(name, _)| *name == port.name);
            let (Some((_, value)), None) = (given.next(), given.next()) else {
                let got = if inputs.iter().any(|(name, _)| *name == port.name) { "two" } else { "none" };
                return Err(Error::invalid(format!("the input {:?}", port.name), "one value", got));
            };
            port.check(value, &mut symbols)?;
            live.push(value.clone());
        }
        let outputs = self.0.program.run(context, live).await?;
        let mut devices = self.0.devices.lock().unwrap_or_else(PoisonError::into_inner);
        context.devices().into_iter().for_each(|(device, graphs)| count_in(&mut devices, device, graphs));
        Ok(outputs)
    }

    fn input_names(&self) -> String {
        self.0.inputs.iter().map(|port| format!("{:?}", port.name)).collect::<Vec<_>>().join(" or ")
    }
}

impl std::fmt::Debug for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Network({:?}, {} nodes)", self.0.name, self.0.nodes)
    }
}

impl Port {
    fn new(message: &PortMessage) -> Result<Port> {
        fn innermost(kind: &PortType) -> &PortType {
            match kind {
                PortType::Sequence(inner) | PortType::Optional(inner) => innermost(inner),
                other => other,
            }
        }
        let is_array = matches!(message.kind, PortType::Tensor(..));
        let (kind, dims) = match innermost(&message.kind) {
            PortType::Tensor(0, dims) => (None, dims.clone()),
            PortType::Tensor(code, dims) => (Some(ElementType::from_code(*code)?), dims.clone()),
            PortType::Other => return Err(Error::unsupported(format!("maps and sparse tensors ({:?})", message.name))),
            _ => (None, None),
        };
        let dim = |dim: Result<usize, String>| dim.map_or_else(Dimension::Named, Dimension::Fixed);
        let dims = dims.filter(|_| is_array).map(|dims| dims.into_iter().map(dim).collect());
        Ok(Port { name: message.name.clone(), kind, dims, sort: message.kind.clone() })
    }

    /// Reads a value for this port from the bytes of a file in ONNX's format (`TensorProto` and
    /// related messages), as ONNX's test cases have them.
    pub fn read_value(&self, bytes: &[u8]) -> Result<Value> {
        read_value(bytes, &self.sort, 0)
    }

    /// Checks that a value fits the element type and the dimensions. `symbols` holds the sizes of
    /// the named dimensions so far.
    fn check<'a>(&'a self, value: &RunValue, symbols: &mut HashMap<&'a str, usize>) -> Result<()> {
        let what = || format!("the input {:?}", self.name);
        let (got_kind, got_dims) = match (&self.sort, value) {
            (_, RunValue::Value(value)) if !value.is_shallow() => {
                return Err(Error::invalid(what(), "an array or a list of arrays", "lists within lists"));
            }
            (_, RunValue::Tensor(tensor, kind)) => (*kind, tensor.shape().dims()),
            (_, RunValue::Value(Value::Array(array))) => (array.kind(), array.dims()),
            (PortType::Tensor(..), _) => return Err(Error::invalid(what(), "an array", "a list or an optional value")),
            _ => return Ok(()),
        };
        if let Some(kind) = self.kind.filter(|kind| *kind != got_kind) {
            return Err(Error::invalid(what(), format!("elements of {kind}"), got_kind));
        }
        let Some(dims) = &self.dims else { return Ok(()) };
        let fits = dims.len() == got_dims.len()
            && dims.iter().zip(got_dims).all(|(dim, got)| match dim {
                Dimension::Fixed(size) => size == got,
                // Some exporters write `?` for every unknown dimension.
                Dimension::Named(name) if name.is_empty() || name == "?" => true,
                Dimension::Named(name) => symbols.entry(name).or_insert(*got) == got,
            });
        match fits {
            true => Ok(()),
            false => Err(Error::invalid(what(), format!("the shape {}", self.shape_text()), format!("{got_dims:?}"))),
        }
    }

    /// The dimensions as text: `[batch, 3, 224, 224]`.
    pub fn shape_text(&self) -> String {
        let Some(dims) = &self.dims else { return "[…]".to_owned() };
        let dims = dims.iter().map(|dim| match dim {
            Dimension::Fixed(size) => size.to_string(),
            Dimension::Named(name) if name.is_empty() => "?".to_owned(),
            Dimension::Named(name) => name.clone(),
        });
        format!("[{}]", dims.collect::<Vec<_>>().join(", "))
    }
}
