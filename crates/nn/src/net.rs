//! Recording a network: a graph builder that knows parameters by name.
//!
//! A [`Net`] is a [`GraphBuilder`] (all of its ops can be called on a `Net`). It adds parameters,
//! buffers that change from step to step, a path of layers for names and messages, and a mode: a
//! network is recorded once to be trained and once to be used. The same code records both; dropout
//! and batch norm read the mode.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};

use panoply_core::DType;
use panoply_core::graph::{Dim, Graph, GraphBuilder, NodeId};
use panoply_core::op::compute::Reduction;

use crate::error::{Error, Result};
use crate::grad::Segment;
use crate::parameters::{Init, Spec};
use crate::random;

/// The purpose for which a network is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Training: dropout is active; batch norm uses the batch's own mean and variance, and updates
    /// its buffers.
    Train,
    /// Inference: nothing is random, and no buffer changes.
    Use,
}

/// The role of one input of a recorded graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// The data of a batch, by name.
    Data(String),
    /// The parameter or buffer with this index in `Recording::specs`.
    Value(usize),
    /// The u32 seed of the random masks.
    Seed,
}

/// A network under construction.
#[derive(Debug)]
pub struct Net {
    g: GraphBuilder,
    mode: Mode,
    compute: DType,
    path: Vec<String>,
    specs: Vec<Spec>,
    roles: Vec<Role>,
    known: HashMap<String, (usize, NodeId)>,
    casts: HashMap<(NodeId, DType), NodeId>,
    updates: Vec<(usize, NodeId)>,
    masks: HashMap<String, usize>,
    segments: Vec<String>,
    seed: Option<NodeId>,
}

/// A recorded network.
#[derive(Clone, Debug)]
pub struct Recording {
    /// The graph. Its outputs are the named ones, then one for each buffer that changes.
    pub graph: Graph,
    /// The role of each input, in the graph's order.
    pub roles: Vec<Role>,
    /// The parameters and buffers.
    pub specs: Vec<Spec>,
    /// Number of named outputs.
    pub named: usize,
    /// The buffers that change, as indices in `specs`, in the order of the outputs that follow the
    /// named ones.
    pub updates: Vec<usize>,
    /// The segments whose values are recomputed for the gradients.
    pub segments: Vec<Segment>,
}

impl Net {
    /// An empty network.
    pub fn new(name: &str, mode: Mode) -> Net {
        Net {
            g: Graph::builder(name),
            mode,
            compute: DType::F32,
            path: Vec::new(),
            specs: Vec::new(),
            roles: Vec::new(),
            known: HashMap::new(),
            casts: HashMap::new(),
            updates: Vec::new(),
            masks: HashMap::new(),
            segments: Vec::new(),
            seed: None,
        }
    }

    /// Computes products, convolutions and attention in this element type. Parameters stay in f32.
    pub fn with_compute(mut self, dtype: DType) -> Net {
        self.compute = dtype;
        self
    }

    /// The mode in which the network is recorded.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Adds an input for data that comes with each batch.
    pub fn data(&mut self, name: &str, dtype: DType, dims: &[Dim]) -> Result<NodeId> {
        let node = self.g.input(name, dtype, dims)?;
        self.roles.push(Role::Data(name.to_owned()));
        Ok(node)
    }

    /// Records a part of the network as a layer. The layer's name becomes a prefix of its
    /// parameters' names, and errors carry it.
    pub fn layer<T>(&mut self, name: &str, record: impl FnOnce(&mut Net) -> Result<T>) -> Result<T> {
        self.path.push(name.to_owned());
        let path = self.path.join(".");
        let made = record(self);
        self.path.pop();
        made.map_err(|error| error.in_layer(&path))
    }

    /// Records a part of the network whose inner values are recomputed for the gradients and not
    /// kept.
    pub fn checkpoint(
        &mut self,
        name: &str,
        x: NodeId,
        record: impl FnOnce(&mut Net, NodeId) -> Result<NodeId>,
    ) -> Result<NodeId> {
        let marked = |net: &mut Net, x: NodeId, name: String| -> Result<NodeId> {
            let dims = net.g.type_of(x)?.1.to_vec();
            let marked = net.g.reshape(x, &dims)?;
            net.g.rename(marked, &name)?;
            Ok(marked)
        };
        let name = node_name(&self.full_name(name));
        let x = marked(self, x, format!("{name}.begin"))?;
        let y = record(self, x)?;
        let y = marked(self, y, format!("{name}.end"))?;
        self.segments.push(name);
        Ok(y)
    }

    /// A parameter of the current layer, in f32. A second call with the same name returns the same
    /// node.
    pub fn parameter(&mut self, name: &str, dims: &[usize], init: Init) -> Result<NodeId> {
        self.value(name, dims, init, true)
    }

    /// A buffer of the current layer: kept with the parameters, and not trained. If the buffer was
    /// already updated in this network, as by a layer that is used twice, this is the updated
    /// value.
    pub fn buffer(&mut self, name: &str, dims: &[usize], init: Init) -> Result<NodeId> {
        let first = self.value(name, dims, init, false)?;
        let spec = self.known.get(&self.full_name(name)).map(|(spec, _)| *spec);
        let updated = self.updates.iter().find(|(updated, _)| Some(*updated) == spec);
        Ok(updated.map_or(first, |(_, node)| *node))
    }

    /// Sets the value of a buffer after this step.
    pub fn update(&mut self, name: &str, value: NodeId) -> Result<()> {
        let full = self.full_name(name);
        let known = self.known.get(&full).map(|(spec, _)| *spec);
        let Some(spec) = known.filter(|spec| !self.specs[*spec].trained) else {
            return Err(Error::invalid("net: update", "a buffer of this layer", name));
        };
        match self.updates.iter_mut().find(|(updated, _)| *updated == spec) {
            Some(updated) => updated.1 = value,
            None => self.updates.push((spec, value)),
        }
        Ok(())
    }

    /// The element type of products, convolutions and attention.
    pub fn compute_dtype(&self) -> DType {
        self.compute
    }

    /// Casts a float node to the element type of products.
    pub fn narrow(&mut self, x: NodeId) -> Result<NodeId> {
        self.in_dtype(x, self.compute)
    }

    /// Casts a float node to f32, for sums, norms and losses. f64 stays.
    pub fn wide(&mut self, x: NodeId) -> Result<NodeId> {
        match self.g.type_of(x)?.0 {
            DType::F64 => Ok(x),
            _ => self.in_dtype(x, DType::F32),
        }
    }

    /// The dimensions of a node.
    pub fn dims(&self, x: NodeId) -> Result<Vec<Dim>> {
        Ok(self.g.type_of(x)?.1.to_vec())
    }

    /// The dimensions of `x`. Fails unless axis `axis` has `expected` elements.
    pub(crate) fn expect_features(&self, x: NodeId, axis: usize, expected: usize) -> Result<Vec<Dim>> {
        let dims = self.dims(x)?;
        match dims.get(axis) {
            Some(dim) if dim.as_fixed() == Some(expected) => Ok(dims),
            other => {
                let got = other.map_or("no such axis".to_owned(), |dim| {
                    dim.as_fixed().map_or("a symbol".to_owned(), |size| size.to_string())
                });
                let shape: Vec<String> =
                    dims.iter().map(|dim| dim.as_fixed().map_or("?".to_owned(), |size| size.to_string())).collect();
                let got = format!("{got}, of an input of [{}]", shape.join(", "));
                Err(Error::invalid("input", format!("{expected} elements along axis {axis}"), got))
            }
        }
    }

    /// A mask of ones and zeros, a one with probability `keep`. The mask differs in each step and
    /// for each use of a layer.
    pub fn mask(&mut self, dims: &[Dim], dtype: DType, keep: f64, stream: &str) -> Result<NodeId> {
        let seed = match self.seed {
            Some(seed) => seed,
            None => {
                let seed = self.g.input("seed", DType::U32, &[])?;
                self.roles.push(Role::Seed);
                self.seed = Some(seed);
                seed
            }
        };
        let mut stream = self.full_name(stream);
        let uses = self.masks.entry(stream.clone()).or_insert(0);
        *uses += 1;
        if *uses > 1 {
            stream = format!("{stream}, use {uses}");
        }
        random::mask(&mut self.g, dims, dtype, keep, seed, &stream)
    }

    /// The number of elements of these dimensions, as an f32 node. The node depends on constants
    /// alone, so it is computed once for each size.
    pub fn count(&mut self, dims: &[Dim]) -> Result<NodeId> {
        let product = dims.iter().fold(Dim::fixed(1), |product, dim| product * *dim);
        let one = self.g.unnamed_constant(&panoply_core::Tensor::scalar(1.0_f32)?)?;
        let ones = self.g.broadcast(one, &[product])?;
        Ok(self.g.reduce(Reduction::Sum, ones, &[0])?)
    }

    /// Finishes the network with these outputs.
    pub fn finish(mut self, outputs: &[(&str, NodeId)]) -> Result<Recording> {
        for (name, node) in outputs {
            self.g.output(name, *node)?;
        }
        for (place, (_, node)) in self.updates.iter().enumerate() {
            self.g.output(&format!("buffer.{place}"), *node)?;
        }
        let Net { g, roles, specs, updates, segments, .. } = self;
        let graph = g.finish()?;
        let named = |name: String| {
            let found = graph.nodes().iter().position(|node| node.name.as_deref() == Some(&name));
            found.ok_or_else(|| Error::invalid("net: a segment", "its first and last node", name))
        };
        let segments: Vec<Segment> = segments
            .into_iter()
            .map(|name| Ok(named(format!("{name}.begin"))? + 1..named(format!("{name}.end"))?))
            .collect::<Result<_>>()?;
        let updates = updates.into_iter().map(|(spec, _)| spec).collect();
        Ok(Recording { graph, roles, specs, named: outputs.len(), updates, segments })
    }

    fn value(&mut self, name: &str, dims: &[usize], init: Init, trained: bool) -> Result<NodeId> {
        let full = self.full_name(name);
        if let Some((spec, node)) = self.known.get(&full) {
            if self.specs[*spec].dims != dims {
                let (expected, got) = (format!("{:?}, as before", self.specs[*spec].dims), format!("{dims:?}"));
                return Err(Error::Parameter { name: full, expected, got });
            }
            return Ok(*node);
        }
        let fixed: Vec<Dim> = dims.iter().map(|size| Dim::fixed(*size)).collect();
        let node = self.g.input(&node_name(&full), DType::F32, &fixed)?;
        self.roles.push(Role::Value(self.specs.len()));
        self.known.insert(full.clone(), (self.specs.len(), node));
        self.specs.push(Spec { name: full, dims: dims.to_vec(), init, trained });
        Ok(node)
    }

    fn in_dtype(&mut self, x: NodeId, dtype: DType) -> Result<NodeId> {
        if self.g.type_of(x)?.0 == dtype {
            return Ok(x);
        }
        if let Some(known) = self.casts.get(&(x, dtype)) {
            return Ok(*known);
        }
        let made = self.g.cast(x, dtype)?;
        self.casts.insert((x, dtype), made);
        Ok(made)
    }

    fn full_name(&self, name: &str) -> String {
        let parts: Vec<&str> = self.path.iter().map(String::as_str).chain([name]).collect();
        parts.join(".")
    }
}

/// A node name that graphs accept. Names of nodes may not begin with a digit, but those of the
/// layers of a sequence do, so these get an underscore in front.
fn node_name(name: &str) -> String {
    if name.starts_with(|letter: char| letter.is_ascii_digit()) { format!("_{name}") } else { name.to_owned() }
}

impl Deref for Net {
    type Target = GraphBuilder;

    fn deref(&self) -> &GraphBuilder {
        &self.g
    }
}

impl DerefMut for Net {
    fn deref_mut(&mut self) -> &mut GraphBuilder {
        &mut self.g
    }
}
