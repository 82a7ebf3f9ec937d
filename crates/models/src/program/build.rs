//! Builds a program from a model's messages.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use super::{Attribute, Body, Node, OpKind, ValueId, fold, spelled};
use crate::array::Array;
use crate::error::{Error, Result};
use crate::onnx::tensor::{SparseMessage, TensorMessage};
use crate::onnx::{AttributeMessage, DEPTH_MAX, FunctionMessage, GraphMessage, ModelMessage, NODES_MAX, NodeMessage};
use crate::ops::make::constant;
use crate::ops::table;

/// The deepest nesting of function calls.
const CALLS_MAX: usize = 32;
/// The most values of all graphs, with functions expanded.
const VALUES_MAX: usize = 1 << 22;
/// The most memory for weights, attributes and names, with functions expanded: `GROWTH_MAX` times
/// the size of the model's files, plus `FLOOR_BYTES`.
const GROWTH_MAX: u64 = 16;
const FLOOR_BYTES: u64 = 64 << 20;

/// The program of the model's own graph, and the names of its inputs without constants.
pub(crate) struct MainProgram {
    pub body: Body,
    pub names: HashMap<String, ValueId>,
}

/// Builds the program of a model whose file has `file_bytes` bytes. External weights are looked for
/// in `folder`.
pub(crate) fn build(model: &ModelMessage<'_>, file_bytes: usize, folder: Option<&Path>) -> Result<MainProgram> {
    let graph = model.graph.as_ref().ok_or(Error::Malformed { what: "there is no graph", at: 0 })?;
    let mut functions = HashMap::new();
    for function in &model.functions {
        if functions.insert((&function.domain, &function.name, &function.overload), function).is_some() {
            return Err(Error::invalid(
                "a function",
                "one definition of each name",
                format!("two of {:?}", function.name),
            ));
        }
    }
    let room = FLOOR_BYTES + GROWTH_MAX * file_bytes as u64;
    let weights = Weights { folder, room, made: HashMap::new(), files: HashSet::new() };
    let declared = HashSet::new();
    let mut builder = Builder { weights, functions, scopes: Vec::new(), declared, values: 0, nodes: 0, depth: 0 };
    let opsets = Opsets::new(&model.opsets)?;
    let (body, names) = builder.graph(graph, &opsets, 0, &Bindings::new())?;
    Ok(MainProgram { body, names })
}

/// The version of each domain that applies to a graph's nodes.
#[derive(Clone)]
struct Opsets(Vec<(String, i64)>);

impl Opsets {
    fn new(opsets: &[(String, i64)]) -> Result<Opsets> {
        for (domain, version) in opsets {
            let newest = table::newest_version(domain);
            if *version > newest && newest > 0 {
                let domain = if domain.is_empty() { "ai.onnx" } else { domain };
                return Err(Error::unsupported(format!("version {version} of {domain}; the newest known is {newest}")));
            }
        }
        Ok(Opsets(opsets.to_vec()))
    }

    fn version(&self, domain: &str) -> i64 {
        let same = |known: &str| known == domain || (table::is_default(known) && table::is_default(domain));
        self.0.iter().find(|(known, _)| same(known)).map_or(1, |(_, version)| *version)
    }
}

/// The arrays of a model. Each is made once, no matter how often the function that has it is
/// called. Their memory is bounded by the size of the files.
struct Weights<'m> {
    folder: Option<&'m Path>,
    /// The bytes still available.
    room: u64,
    /// Arrays by the address of their message.
    made: HashMap<usize, Array>,
    files: HashSet<&'m str>,
}

impl<'m> Weights<'m> {
    fn take(&mut self, bytes: u64) -> Result<()> {
        match self.room.checked_sub(bytes) {
            Some(left) => {
                self.room = left;
                Ok(())
            }
            None => {
                let what = "the bytes of weights, attributes and names, by what the model's files hold";
                Err(Error::Limit { what, limit: self.room, got: bytes })
            }
        }
    }

    fn array(&mut self, tensor: &'m TensorMessage<'_>) -> Result<Array> {
        let key = std::ptr::from_ref(tensor) as usize;
        if let Some(array) = self.made.get(&key) {
            return Ok(array.clone());
        }
        if let (Some(location), Some(folder)) = (tensor.location(), self.folder)
            && self.files.insert(location)
        {
            let size = std::fs::metadata(folder.join(location)).map_or(0, |file| file.len());
            self.room = self.room.saturating_add(size.saturating_mul(GROWTH_MAX));
        }
        self.take(tensor.claimed_bytes())?;
        let array = tensor.array(self.folder)?;
        self.made.insert(key, array.clone());
        Ok(array)
    }

    fn sparse(&mut self, tensor: &'m SparseMessage<'_>) -> Result<Array> {
        let key = std::ptr::from_ref(tensor) as usize;
        if let Some(array) = self.made.get(&key) {
            return Ok(array.clone());
        }
        self.take(tensor.claimed_bytes())?;
        let array = tensor.array(self.folder)?;
        self.made.insert(key, array.clone());
        Ok(array)
    }

    /// Converts an attribute other than a graph or a reference.
    fn attribute(&mut self, value: &'m AttributeMessage<'_>) -> Result<Attribute> {
        let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
        self.take(value.bytes())?;
        Ok(match value {
            AttributeMessage::Float(value) => Attribute::Float(*value),
            AttributeMessage::Integer(value) => Attribute::Integer(*value),
            AttributeMessage::Text(bytes) => Attribute::Text(text(bytes)),
            AttributeMessage::Tensor(tensor) => Attribute::Array(self.array(tensor)?),
            AttributeMessage::Sparse(tensor) => Attribute::Array(self.sparse(tensor)?),
            AttributeMessage::Floats(values) => Attribute::Floats(values.clone()),
            AttributeMessage::Integers(values) => Attribute::Integers(values.clone()),
            AttributeMessage::Texts(values) => Attribute::Texts(values.iter().map(text).collect()),
            AttributeMessage::Graph(_) | AttributeMessage::Reference(_) | AttributeMessage::Other => Attribute::Other,
        })
    }
}

/// Domain, name and overload.
type FunctionKey<'m> = (&'m String, &'m String, &'m String);

struct Builder<'m> {
    weights: Weights<'m>,
    functions: HashMap<FunctionKey<'m>, &'m FunctionMessage<'m>>,
    /// The definitions of the current graph and of each surrounding graph, the innermost last.
    scopes: Vec<HashMap<String, ValueId>>,
    /// Outputs of the function being expanded. Their values exist before a node makes them.
    declared: HashSet<&'m str>,
    values: usize,
    nodes: usize,
    /// Number of graphs around the current position, those around function calls included.
    depth: usize,
}

/// The attributes of a call, which nodes of the function refer to.
type Bindings = HashMap<String, Attribute>;

impl<'m> Builder<'m> {
    fn fresh(&mut self) -> Result<ValueId> {
        if self.values == VALUES_MAX {
            let (what, limit) = ("the values of a model, functions written out", VALUES_MAX as u64);
            return Err(Error::Limit { what, limit, got: limit + 1 });
        }
        self.values += 1;
        Ok(self.values - 1)
    }

    /// The innermost value with this name.
    fn lookup(&self, name: &str) -> Option<ValueId> {
        self.scopes.iter().rev().find_map(|scope| scope.get(name).copied())
    }

    fn define(&mut self, name: &str) -> Result<ValueId> {
        let id = self.fresh()?;
        let scope = self.scopes.last_mut();
        if scope.is_some_and(|scope| scope.insert(name.to_owned(), id).is_some()) {
            return Err(Error::invalid("a value", "one definition of each name", format!("two of {name:?}")));
        }
        Ok(id)
    }

    fn graph(
        &mut self,
        graph: &'m GraphMessage<'m>,
        opsets: &Opsets,
        calls: usize,
        bindings: &Bindings,
    ) -> Result<(Body, HashMap<String, ValueId>)> {
        if self.depth > DEPTH_MAX {
            let (what, limit) = ("graphs within graphs, functions written out", DEPTH_MAX as u64);
            return Err(Error::Limit { what, limit, got: self.depth as u64 });
        }
        self.depth += 1;
        let first = self.values;
        self.scopes.push(HashMap::new());
        let mut constants = Vec::new();
        for tensor in &graph.initializers {
            constants.push((self.define(&tensor.name)?, self.weights.array(tensor)?));
        }
        for tensor in &graph.sparse {
            constants.push((self.define(&tensor.values.name)?, self.weights.sparse(tensor)?));
        }
        let weights = first..self.values;
        let mut inputs = Vec::new();
        for port in &graph.inputs {
            // Old files list weights as inputs too.
            match self.scopes.last().and_then(|scope| scope.get(&port.name)) {
                Some(known) if weights.contains(known) => {}
                _ => inputs.push(self.define(&port.name)?),
            }
        }
        let mut nodes = self.nodes(&graph.nodes, opsets, calls, bindings, &mut constants)?;
        fold::carried_constants(&mut nodes, &constants, &mut || self.fresh())?;
        let mut outputs = Vec::new();
        for port in &graph.outputs {
            let missing =
                || Error::invalid("an output of a graph", "a value that is defined", format!("{:?}", port.name));
            outputs.push(self.lookup(&port.name).ok_or_else(missing)?);
        }
        let names = self.scopes.pop().unwrap_or_default();
        let known: HashSet<ValueId> = constants.iter().map(|(id, _)| *id).chain(inputs.iter().copied()).collect();
        sort(&mut nodes, &known, first)?;
        fold::normalizations(&mut nodes, &mut constants, &outputs, &mut |bytes| {
            self.weights.take(bytes)?;
            self.fresh()
        })?;
        spelled::replace(&mut nodes, &constants, &outputs)?;
        let used = nodes.iter().flat_map(|node| node.needs().collect::<Vec<_>>()).chain(outputs.iter().copied());
        let mut captures: Vec<ValueId> = used.filter(|id| *id < first).collect();
        captures.sort_unstable();
        captures.dedup();
        let nodes = nodes.into_iter().map(Arc::new).collect();
        self.depth -= 1;
        Ok((Body { inputs, outputs, nodes, constants, captures }, names))
    }

    /// The nodes of one list, with function calls expanded. Every output is defined before any
    /// input is looked up, because a file may list nodes in any order.
    fn nodes(
        &mut self,
        list: &'m [NodeMessage<'m>],
        opsets: &Opsets,
        calls: usize,
        bindings: &Bindings,
        constants: &mut Vec<(ValueId, Array)>,
    ) -> Result<Vec<Node>> {
        let mut declared = std::mem::take(&mut self.declared);
        for output in list.iter().flat_map(|message| &message.outputs).filter(|output| !output.is_empty()) {
            if !declared.remove(output.as_str()) {
                self.define(output)?;
            }
        }
        let mut nodes = Vec::new();
        for message in list {
            let name = message.shown();
            let error = |cause| Error::Node { node: name.clone(), op: message.op.clone(), cause: Box::new(cause) };
            self.node(message, opsets, calls, bindings, constants, &mut nodes).map_err(|cause| match cause {
                Error::Node { .. } => cause,
                cause => error(cause),
            })?;
        }
        Ok(nodes)
    }

    fn node(
        &mut self,
        message: &'m NodeMessage<'m>,
        opsets: &Opsets,
        calls: usize,
        bindings: &Bindings,
        constants: &mut Vec<(ValueId, Array)>,
        nodes: &mut Vec<Node>,
    ) -> Result<()> {
        self.nodes += 1;
        if self.nodes > NODES_MAX {
            let (what, limit) = ("the nodes of a model, functions written out", NODES_MAX as u64);
            return Err(Error::Limit { what, limit, got: self.nodes as u64 });
        }
        self.weights.take(node_bytes(message))?;
        let mut resolve = |name: &String| match name.is_empty() {
            true => Ok(None),
            false => match self.lookup(name) {
                Some(id) => Ok(Some(id)),
                None => Err(Error::invalid("an operand", "a value that is defined", format!("{name:?}"))),
            },
        };
        let inputs = message.inputs.iter().map(&mut resolve).collect::<Result<Vec<_>>>()?;
        let outputs = message.outputs.iter().map(&mut resolve).collect::<Result<Vec<_>>>()?;
        let (version, mut attributes) = (opsets.version(&message.domain), HashMap::new());
        if let Some(function) = self.functions.get(&(&message.domain, &message.op, &message.overload)).copied() {
            self.attributes(message, opsets, calls, bindings, &mut attributes)?;
            return self.call(function, (&inputs, &outputs), attributes, calls, constants, nodes);
        }
        let kind = table::find(&message.domain, &message.op, version)?;
        self.attributes(message, opsets, calls, bindings, &mut attributes)?;
        if let OpKind::Constant = kind {
            let array = constant(&attributes)?;
            constants.extend(outputs.first().copied().flatten().map(|id| (id, array)));
            return Ok(());
        }
        let mut captures = Vec::new();
        for attribute in attributes.values() {
            if let Attribute::Body(body) = attribute {
                captures.extend(&body.captures);
            }
        }
        let (name, op) = (message.shown(), message.op.clone());
        nodes.push(Node { name, op, kind, version, inputs, outputs, attributes, captures });
        Ok(())
    }

    fn attributes(
        &mut self,
        message: &'m NodeMessage<'m>,
        opsets: &Opsets,
        calls: usize,
        bindings: &Bindings,
        attributes: &mut HashMap<String, Attribute>,
    ) -> Result<()> {
        for (name, value) in &message.attributes {
            let value = match value {
                AttributeMessage::Reference(name) => match bindings.get(name) {
                    Some(value) => value.clone(),
                    None => continue,
                },
                AttributeMessage::Graph(graph) => {
                    Attribute::Body(Arc::new(self.graph(graph, opsets, calls, bindings)?.0))
                }
                other => self.weights.attribute(other)?,
            };
            attributes.insert(name.clone(), value);
        }
        Ok(())
    }

    /// Replaces a call by the function's nodes.
    fn call(
        &mut self,
        function: &'m FunctionMessage<'m>,
        (inputs, outputs): (&[Option<ValueId>], &[Option<ValueId>]),
        attributes: HashMap<String, Attribute>,
        calls: usize,
        constants: &mut Vec<(ValueId, Array)>,
        nodes: &mut Vec<Node>,
    ) -> Result<()> {
        if calls == CALLS_MAX {
            let (what, limit) = ("calls of functions within functions", CALLS_MAX as u64);
            return Err(Error::Limit { what, limit, got: calls as u64 + 1 });
        }
        self.weights.take(call_bytes(function))?;
        let mut bindings = Bindings::new();
        for (name, value) in &function.defaults {
            if !matches!(value, AttributeMessage::Graph(_)) {
                bindings.insert(name.clone(), self.weights.attribute(value)?);
            }
        }
        bindings.extend(attributes);
        // A function sees only its arguments, so the scopes around the call are hidden.
        let around = std::mem::take(&mut self.scopes);
        let ports = function.inputs.iter().zip(inputs).chain(function.outputs.iter().zip(outputs));
        let mut scope = HashMap::new();
        for (name, id) in ports {
            let id = id.map_or_else(|| self.fresh(), Ok)?;
            scope.insert(name.clone(), id);
        }
        for name in function.inputs.iter().skip(inputs.len()).chain(function.outputs.iter().skip(outputs.len())) {
            let id = self.fresh()?;
            scope.insert(name.clone(), id);
        }
        let absent: HashSet<ValueId> = function
            .inputs
            .iter()
            .enumerate()
            .filter(|(place, _)| inputs.get(*place).copied().flatten().is_none())
            .filter_map(|(_, name)| scope.get(name).copied())
            .collect();
        self.scopes.push(scope);
        let opsets = Opsets::new(&function.opsets)?;
        self.declared = function.outputs.iter().map(String::as_str).collect();
        let made = self.nodes(&function.nodes, &opsets, calls + 1, &bindings, constants);
        self.scopes = around;
        for mut node in made? {
            for input in &mut node.inputs {
                *input = input.filter(|id| !absent.contains(id));
            }
            nodes.push(node);
        }
        Ok(())
    }
}

/// The bytes of a node without its attributes' values: its names and its operands' entries.
fn node_bytes(message: &NodeMessage<'_>) -> u64 {
    let names = [&message.name, &message.op].into_iter().chain(&message.outputs).chain(message.attributes.keys());
    let places = (message.inputs.len() + message.outputs.len()) * size_of::<Option<ValueId>>();
    (names.map(String::len).sum::<usize>() + places) as u64
}

/// The bytes of a function call without its nodes: the names in its scope.
fn call_bytes(function: &FunctionMessage<'_>) -> u64 {
    let ports = function.inputs.iter().chain(&function.outputs).chain(function.defaults.keys());
    let names = ports.chain(function.opsets.iter().map(|(domain, _)| domain));
    names.map(String::len).sum::<usize>() as u64
}

/// Sorts nodes so that each comes after the nodes whose outputs it needs. Fails on a cycle. Values
/// numbered below `first` are defined in the surrounding graph.
fn sort(nodes: &mut Vec<Node>, known: &HashSet<ValueId>, first: ValueId) -> Result<()> {
    let mut made_by: HashMap<ValueId, usize> = HashMap::new();
    for (place, node) in nodes.iter().enumerate() {
        made_by.extend(node.outputs.iter().flatten().map(|id| (*id, place)));
    }
    let mut missing = vec![0_usize; nodes.len()];
    let mut waiting: HashMap<usize, Vec<usize>> = HashMap::new();
    for (place, node) in nodes.iter().enumerate() {
        for id in node.needs().filter(|id| *id >= first && !known.contains(id)) {
            if let Some(maker) = made_by.get(&id) {
                missing[place] += 1;
                waiting.entry(*maker).or_default().push(place);
            }
        }
    }
    let mut ready: std::collections::BTreeSet<usize> = (0..nodes.len()).filter(|place| missing[*place] == 0).collect();
    let mut order = Vec::with_capacity(nodes.len());
    while let Some(place) = ready.pop_first() {
        order.push(place);
        for next in waiting.remove(&place).unwrap_or_default() {
            missing[next] -= 1;
            if missing[next] == 0 {
                ready.insert(next);
            }
        }
    }
    if order.len() < nodes.len() {
        let stuck = (0..nodes.len()).find(|place| missing[*place] > 0).map_or("", |place| nodes[place].name.as_str());
        return Err(Error::invalid(
            "a graph",
            "nodes that do not depend on themselves",
            format!("a cycle at {stuck:?}"),
        ));
    }
    let mut places: Vec<Option<Node>> = nodes.drain(..).map(Some).collect();
    nodes.extend(order.into_iter().filter_map(|place| places[place].take()));
    Ok(())
}
