//! Cuts a graph that no device can run whole into parts. Each part runs on one device, and the
//! parts are in an order in which they can run.
//!
//! Each op belongs to the first device of a list that can run it. A part consists of the nodes of
//! one device and one level. An op's level is that of its latest operand, plus one if that operand
//! belongs to another device. So a part depends only on parts of lower levels. Constants, inputs
//! and views of them belong to no part: each part that needs one has its own copy.

use std::collections::{BTreeMap, HashMap};

use super::Graph;
use super::builder::GraphBuilder;
use super::dim::{Dim, SymbolSizes};
use super::instance::Instance;
use super::node::{Kind, Node, NodeId, Nodes};
use crate::backend::Support;
use crate::device::DeviceId;
use crate::error::{Error, Result};
use crate::op::{Describe, Op};

/// The most levels. A graph with more cuts is refused, since it would spend its time waiting for
/// copies.
const LEVELS_MAX: usize = 64;

/// A graph in parts, for given sizes of its symbols.
#[derive(Debug)]
pub struct GraphParts {
    /// The parts, in an order in which they can run.
    pub parts: Vec<GraphPart>,
    /// The source of each output of the graph.
    pub outputs: Vec<TensorSource>,
}

/// One part: a complete graph.
#[derive(Debug)]
pub struct GraphPart {
    /// The graph, without symbols.
    pub graph: Graph,
    /// The source of each input.
    pub inputs: Vec<TensorSource>,
    /// The device that runs the part.
    pub device: DeviceId,
    /// Why the first device does not run the part: the first op that it lacks, and its reason.
    /// `None` if the first device runs it.
    pub lacks: Option<String>,
    /// Whether the part makes an output of the whole graph.
    pub makes_output: bool,
}

/// The source of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorSource {
    /// The graph's input with this number.
    Input(usize),
    /// An output of a part.
    Output {
        /// The part.
        part: usize,
        /// The index of its output.
        output: usize,
    },
}

/// A level, and the index of a device in the list. It identifies a part, and orders the parts.
type PartKey = (usize, usize);

impl GraphParts {
    /// Cuts a graph for these devices. Each op goes to the first device for which `ask` answers
    /// yes. If there is none, the error names the node.
    pub fn new(
        graph: &Graph,
        instance: &Instance,
        devices: &[DeviceId],
        ask: &dyn Fn(DeviceId, &Op) -> Support,
    ) -> Result<GraphParts> {
        let (owners, lacks) = owners(graph, instance, devices, ask)?;
        let places = places(graph, &owners)?;
        let last = places.iter().flatten().max().copied().unwrap_or((0, 0));
        let mut nodes: BTreeMap<PartKey, Vec<usize>> = BTreeMap::from([(last, Vec::new())]);
        for (node, place) in places.iter().enumerate() {
            place.iter().for_each(|place| nodes.entry(*place).or_default().push(node));
        }
        let leaving = leaving(graph, &places);
        let mut cutting =
            Cutting { graph, sizes: instance.sizes, places: &places, made: HashMap::new(), parts: Vec::new() };
        for (place, nodes) in &nodes {
            // The last part also has the outputs that belong to no part.
            let outputs: Vec<usize> = match *place == last {
                true => {
                    let unplaced = (0..places.len()).filter(|node| places[*node].is_none());
                    nodes.iter().copied().chain(unplaced).filter(|node| leaving[*node]).collect()
                }
                false => nodes.iter().copied().filter(|node| leaving[*node]).collect(),
            };
            let lacks = nodes.iter().find_map(|node| lacks.get(node)).filter(|_| place.1 > 0);
            let device = devices.get(place.1).copied().ok_or_else(nowhere)?;
            cutting.part(*place, nodes, &outputs, (device, lacks.cloned()))?;
        }
        let outputs = graph.outputs().iter().map(|(name, node)| {
            let missing = || Error::invalid("graph: an output of its parts", "one of them", name);
            cutting.made.get(node).copied().ok_or_else(missing)
        });
        let outputs = outputs.collect::<Result<_>>()?;
        Ok(GraphParts { parts: cutting.parts, outputs })
    }
}

fn nowhere() -> Error {
    Error::invalid("graph: devices", "at least one", "none")
}

/// For each op, the index of the first device that runs it, and the reason why the very first
/// device does not.
#[allow(clippy::type_complexity)] // Two lists, named where they are used.
fn owners(
    graph: &Graph,
    instance: &Instance,
    devices: &[DeviceId],
    ask: &dyn Fn(DeviceId, &Op) -> Support,
) -> Result<(Vec<usize>, HashMap<usize, String>)> {
    let (mut owners, mut lacks) = (vec![0; graph.nodes().len()], HashMap::new());
    for step in &instance.steps {
        let mut reasons = Vec::new();
        let mut runs = |device: &DeviceId| match ask(*device, &step.op) {
            Support::Yes => true,
            Support::No(reason) => {
                reasons.push(format!("{device}: {reason}"));
                false
            }
        };
        let owner = devices.iter().position(&mut runs);
        if let Some(reason) = reasons.first() {
            lacks.insert(step.node, format!("{}: {reason}", graph.node_text(step.node)));
        }
        owners[step.node] = owner.ok_or_else(|| {
            let cause = Error::Unsupported { op: step.op.name(), reason: reasons.join("; ") };
            graph.0.nodes.error(step.node, cause)
        })?;
    }
    Ok((owners, lacks))
}

/// The place of each node. `None` for nodes of which each part has its own copy.
fn places(graph: &Graph, owners: &[usize]) -> Result<Vec<Option<PartKey>>> {
    let mut places: Vec<Option<PartKey>> = Vec::with_capacity(graph.nodes().len());
    for (index, node) in graph.nodes().iter().enumerate() {
        let before = || node.operands.iter().filter_map(|operand| places[*operand as usize]);
        let place = match &node.kind {
            Kind::Op(_) => {
                let owner = owners[index];
                let after = |(level, other): PartKey| level + usize::from(other != owner);
                Some((before().map(after).max().unwrap_or(0), owner))
            }
            _ => before().max(),
        };
        if place.is_some_and(|(level, _)| level >= LEVELS_MAX) {
            let got = "more, so often does one device need what another makes";
            return Err(Error::invalid("graph: cuts one after the other", format!("fewer than {LEVELS_MAX}"), got));
        }
        places.push(place);
    }
    Ok(places)
}

/// For each node, whether another part or the caller needs it.
fn leaving(graph: &Graph, places: &[Option<PartKey>]) -> Vec<bool> {
    let mut leaving = vec![false; places.len()];
    for (index, node) in graph.nodes().iter().enumerate() {
        for operand in node.operands.iter().map(|operand| *operand as usize) {
            leaving[operand] |= places[operand].is_some() && places[operand] != places[index];
        }
    }
    graph.outputs().iter().for_each(|(_, node)| leaving[*node] = true);
    leaving
}

struct Cutting<'a> {
    graph: &'a Graph,
    sizes: SymbolSizes,
    places: &'a [Option<PartKey>],
    /// The sources of nodes that leave their part.
    made: HashMap<usize, TensorSource>,
    parts: Vec<GraphPart>,
}

/// A part under construction.
struct PartBuilder {
    builder: GraphBuilder,
    nodes: HashMap<usize, NodeId>,
    inputs: Vec<TensorSource>,
}

impl Cutting<'_> {
    /// Adds a part of these nodes, unless it has no outputs.
    fn part(
        &mut self,
        place: PartKey,
        nodes: &[usize],
        outputs: &[usize],
        (device, lacks): (DeviceId, Option<String>),
    ) -> Result<()> {
        if outputs.is_empty() {
            return Ok(());
        }
        let builder = Graph::builder(self.graph.name());
        let mut making = PartBuilder { builder, nodes: HashMap::new(), inputs: Vec::new() };
        for node in nodes {
            self.add(&mut making, *node, place)?;
        }
        for (number, node) in outputs.iter().enumerate() {
            self.provide(&mut making, *node, place)?;
            making.builder.output(&format!("y{number}"), making.nodes[node])?;
            self.made.insert(*node, TensorSource::Output { part: self.parts.len(), output: number });
        }
        let makes_output = self.graph.outputs().iter().any(|(_, node)| outputs.contains(node));
        let (graph, inputs) = (making.builder.finish()?, making.inputs);
        self.parts.push(GraphPart { graph, inputs, device, lacks, makes_output });
        Ok(())
    }

    /// Adds a node after its operands.
    fn add(&self, making: &mut PartBuilder, index: usize, place: PartKey) -> Result<()> {
        let node = &self.graph.nodes()[index];
        for operand in &node.operands {
            self.provide(making, *operand as usize, place)?;
        }
        let operands: Vec<NodeId> = node.operands.iter().map(|operand| making.nodes[&(*operand as usize)]).collect();
        if let Kind::Part(_) = node.kind {
            // The node was added together with its op.
            return Ok(());
        }
        let added = making.builder.copy_node(node, &operands, &self.sizes)?;
        making.nodes.insert(index, added[0]);
        for (later, part) in self.graph.nodes().iter().enumerate().skip(index + 1) {
            match part.kind {
                Kind::Part(port) if part.operands.first() == Some(&(index as u32)) => {
                    added.get(port).map(|id| making.nodes.insert(later, *id));
                }
                _ => {}
            }
            if later > index + added.len() {
                break;
            }
        }
        Ok(())
    }

    /// Makes a node available in this part: computed here, as an input of the part, or as the
    /// part's own copy.
    fn provide(&self, making: &mut PartBuilder, index: usize, place: PartKey) -> Result<()> {
        // Missing nodes are added from the bottom up with an explicit stack, since a chain of views
        // may be long.
        let mut waiting = vec![index];
        while let Some(index) = waiting.last().copied() {
            if making.nodes.contains_key(&index) {
                waiting.pop();
                continue;
            }
            let node = &self.graph.nodes()[index];
            let is_input = matches!(node.kind, Kind::Input);
            if is_input || self.places[index].is_some_and(|own| own != place) {
                let port = self.graph.inputs().iter().position(|input| *input == index).map(TensorSource::Input);
                let source = port.or_else(|| self.made.get(&index).copied());
                let missing = || Error::invalid("graph: a part's input", "a node of an earlier part", index);
                making.inputs.push(source.ok_or_else(missing)?);
                let name = format!("x{}", making.inputs.len() - 1);
                let id = making.builder.input(&name, node.dtype, &fixed(&node.dims, &self.sizes)?)?;
                making.nodes.insert(index, id);
            } else if let Some(missing) =
                node.operands.iter().find(|operand| !making.nodes.contains_key(&(**operand as usize)))
            {
                waiting.push(*missing as usize);
            } else {
                self.add(making, index, place)?;
            }
        }
        Ok(())
    }
}

impl GraphBuilder {
    /// Copies a node of another graph onto these operands, with its dimensions for these sizes.
    /// Returns all its outputs.
    fn copy_node(&mut self, node: &Node, operands: &[NodeId], sizes: &SymbolSizes) -> Result<Vec<NodeId>> {
        let dims = fixed(&node.dims, sizes)?;
        let one = |id: Result<NodeId>| id.map(|id| vec![id]);
        match &node.kind {
            Kind::Constant(tensor) => one(self.unnamed_constant(tensor)),
            Kind::Reshape => one(self.reshape(operands[0], &dims)),
            Kind::Broadcast => one(self.broadcast(operands[0], &dims)),
            Kind::Permute(order) => one(self.permute(operands[0], order)),
            Kind::Slice { axis, start, end, step } => one(self.slice(operands[0], *axis, *start, *end, *step)),
            Kind::Op(op) => self.copy_op(&op.op(), operands),
            Kind::Input | Kind::Part(_) => Err(Error::invalid("graph: a part", "an op or a view", node.kind.name())),
        }
    }
}

fn fixed(dims: &[Dim], sizes: &SymbolSizes) -> Result<Vec<Dim>> {
    Ok(Nodes::shape(dims, sizes)?.iter().map(|size| Dim::fixed(*size)).collect())
}
