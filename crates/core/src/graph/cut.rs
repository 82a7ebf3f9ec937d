//! Cutting a graph at the ops that a device lacks: parts that it runs whole, and parts for others, in an order in which
//! they can run.
//!
//! Nodes are put into stages: even ones run on the device, odd ones elsewhere. A node's stage is the first of its kind that is not
//! before those of its operands. Constants, inputs and views of them belong to no stage; each part that needs one has its own.

use std::collections::HashMap;

use super::Graph;
use super::builder::GraphBuilder;
use super::dim::{Dim, SymbolSizes};
use super::instance::Instance;
use super::node::{Kind, Node, NodeId, Nodes};
use crate::backend::Support;
use crate::error::{Error, Result};
use crate::op::Op;

/// The most stages: a graph that would be cut more often is better run elsewhere as a whole.
const STAGES_MAX: usize = 64;

/// A graph in parts, for given sizes of its symbols.
#[derive(Debug)]
pub struct Parts {
    /// The parts, in an order in which they can run.
    pub parts: Vec<GraphPart>,
    /// Where each output of the graph comes from.
    pub outputs: Vec<Source>,
}

/// One part: a graph of its own.
#[derive(Debug)]
pub struct GraphPart {
    /// The graph, without symbols.
    pub graph: Graph,
    /// Where each of its inputs comes from.
    pub inputs: Vec<Source>,
    /// Why the device does not run it: the first op that it lacks, and its reason. `None`: it does.
    pub lacks: Option<String>,
}

/// Where a tensor comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The graph's input with this number.
    Input(usize),
    /// An output of a part.
    Output {
        /// The part.
        part: usize,
        /// The number of its output.
        output: usize,
    },
}

impl Parts {
    /// Cuts a graph where `ask` says that a device lacks an op.
    pub fn new(graph: &Graph, instance: &Instance, ask: &dyn Fn(&Op) -> Support) -> Result<Parts> {
        let mut lacks: HashMap<usize, String> = HashMap::new();
        for step in &instance.steps {
            if let Support::No(reason) = ask(&step.op) {
                lacks.insert(step.node, format!("{}: {reason}", graph.node_text(step.node)));
            }
        }
        let stages = stages(graph, &lacks);
        let last = stages.iter().flatten().max().copied().unwrap_or(0);
        if last >= STAGES_MAX {
            let got = format!("{last}, so often do the ops that the device lacks and others follow each other");
            return Err(Error::invalid("graph: cuts", format!("fewer than {STAGES_MAX}"), got));
        }
        let mut cutting =
            Cutting { graph, sizes: instance.sizes, stages: &stages, made: HashMap::new(), parts: Vec::new() };
        for stage in 0..=last {
            let lacks = (0..stages.len()).filter(|node| stages[*node] == Some(stage)).find_map(|node| lacks.get(&node));
            cutting.part(stage, stage == last, lacks.cloned())?;
        }
        let outputs = graph.outputs().iter().map(|(name, node)| {
            let missing = || Error::invalid("graph: an output of its parts", "one of them", name);
            cutting.made.get(node).copied().ok_or_else(missing)
        });
        let outputs = outputs.collect::<Result<_>>()?;
        Ok(Parts { parts: cutting.parts, outputs })
    }
}

/// The stage of each node; none for what each part has of its own.
fn stages(graph: &Graph, lacks: &HashMap<usize, String>) -> Vec<Option<usize>> {
    let mut stages: Vec<Option<usize>> = Vec::with_capacity(graph.nodes().len());
    for (index, node) in graph.nodes().iter().enumerate() {
        let after = node.operands.iter().filter_map(|operand| stages[*operand as usize]).max();
        stages.push(match &node.kind {
            Kind::Op(_) => {
                let (least, elsewhere) = (after.unwrap_or(0), usize::from(lacks.contains_key(&index)));
                Some(if least % 2 == elsewhere { least } else { least + 1 })
            }
            _ => after,
        });
    }
    stages
}

struct Cutting<'a> {
    graph: &'a Graph,
    sizes: SymbolSizes,
    stages: &'a [Option<usize>],
    /// Where nodes that leave their part come from.
    made: HashMap<usize, Source>,
    parts: Vec<GraphPart>,
}

/// A part under construction.
struct Making {
    builder: GraphBuilder,
    nodes: HashMap<usize, NodeId>,
    inputs: Vec<Source>,
}

impl Cutting<'_> {
    /// Adds the part of a stage, unless nothing belongs to it. The last one has the outputs that belong to no stage.
    fn part(&mut self, stage: usize, is_last: bool, lacks: Option<String>) -> Result<()> {
        let nodes: Vec<usize> = (0..self.stages.len()).filter(|node| self.stages[*node] == Some(stage)).collect();
        let outputs = self.outputs_of(stage, is_last);
        if outputs.is_empty() {
            return Ok(());
        }
        let builder = Graph::builder(self.graph.name());
        let mut making = Making { builder, nodes: HashMap::new(), inputs: Vec::new() };
        for node in nodes {
            self.add(&mut making, node, stage)?;
        }
        for (place, node) in outputs.iter().enumerate() {
            self.provide(&mut making, *node, stage)?;
            making.builder.output(&format!("y{place}"), making.nodes[node])?;
            self.made.insert(*node, Source::Output { part: self.parts.len(), output: place });
        }
        self.parts.push(GraphPart { graph: making.builder.finish()?, inputs: making.inputs, lacks });
        Ok(())
    }

    /// The nodes of a stage that later stages or the graph's outputs need.
    fn outputs_of(&self, stage: usize, is_last: bool) -> Vec<usize> {
        let mut needed = vec![false; self.stages.len()];
        for (index, node) in self.graph.nodes().iter().enumerate() {
            for operand in node.operands.iter().map(|operand| *operand as usize) {
                needed[operand] |= self.stages[operand] == Some(stage) && self.stages[index] != Some(stage);
            }
        }
        for (_, node) in self.graph.outputs() {
            needed[*node] |= self.stages[*node] == Some(stage) || is_last && self.stages[*node].is_none();
        }
        (0..needed.len()).filter(|node| needed[*node]).collect()
    }

    /// Adds a node whose operands are provided first.
    fn add(&self, making: &mut Making, index: usize, stage: usize) -> Result<()> {
        let node = &self.graph.nodes()[index];
        for operand in &node.operands {
            self.provide(making, *operand as usize, stage)?;
        }
        let operands: Vec<NodeId> = node.operands.iter().map(|operand| making.nodes[&(*operand as usize)]).collect();
        if let Kind::Part(_) = node.kind {
            // It was added together with its op.
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

    /// Makes sure that a node is there: made in this part, an input of it, or what each part has of its own.
    fn provide(&self, making: &mut Making, index: usize, stage: usize) -> Result<()> {
        // What is missing is added from the bottom up; a chain of views may be long.
        let mut waiting = vec![index];
        while let Some(index) = waiting.last().copied() {
            if making.nodes.contains_key(&index) {
                waiting.pop();
                continue;
            }
            let node = &self.graph.nodes()[index];
            let is_input = matches!(node.kind, Kind::Input);
            if is_input || self.stages[index].is_some_and(|own| own != stage) {
                let port = self.graph.inputs().iter().position(|input| *input == index).map(Source::Input);
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
                self.add(making, index, stage)?;
            }
        }
        Ok(())
    }
}

impl GraphBuilder {
    /// Adds a copy of a node of another graph, with its dimensions for these sizes, over these operands: every output of it.
    fn copy_node(&mut self, node: &Node, operands: &[NodeId], sizes: &SymbolSizes) -> Result<Vec<NodeId>> {
        let dims = fixed(&node.dims, sizes)?;
        let one = |id: Result<NodeId>| id.map(|id| vec![id]);
        match &node.kind {
            Kind::Constant(tensor) => one(self.unnamed_constant(tensor)),
            Kind::Reshape => one(self.reshape(operands[0], &dims)),
            Kind::Broadcast => one(self.broadcast(operands[0], &dims)),
            Kind::Permute(order) => one(self.permute(operands[0], order)),
            Kind::Slice { axis, start, end, step } => one(self.slice(operands[0], *axis, *start, *end, *step)),
            Kind::Op(op) => self.copy_op(op, operands),
            Kind::Input | Kind::Part(_) => Err(Error::invalid("graph: a part", "an op or a view", node.kind.name())),
        }
    }
}

fn fixed(dims: &[Dim], sizes: &SymbolSizes) -> Result<Vec<Dim>> {
    Ok(Nodes::shape(dims, sizes)?.iter().map(|size| Dim::fixed(*size)).collect())
}
