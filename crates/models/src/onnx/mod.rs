//! ONNX files: the messages of `onnx.proto` that form a model, as plain structures over the file's
//! bytes.
//!
//! Only the fields needed for inference are read. Documentation, training information and
//! quantisation notes are skipped. The bytes of weights stay in the file's buffer until
//! [`tensor::TensorMessage::array`] copies them into aligned memory.

pub(crate) mod tensor;
pub(crate) mod wire;

use std::collections::HashMap;

use crate::error::{Error, Result};
use tensor::{SparseMessage, TensorMessage};
use wire::Fields;

/// The deepest nesting of graphs in graphs (If in Loop in If, …) that is accepted.
pub(crate) const DEPTH_MAX: usize = 16;
/// The most nodes of all graphs and functions of a model together.
pub(crate) const NODES_MAX: usize = 1 << 18;
/// The most names, attributes, tensors, ports and other entries of a model together.
pub(crate) const ITEMS_MAX: usize = 1 << 22;
/// The most domains that a model or a function names.
const OPSETS_MAX: usize = 64;

/// A model file.
#[derive(Debug, Default)]
pub(crate) struct ModelMessage<'a> {
    pub ir_version: i64,
    pub producer: String,
    /// Domain and version of each operator set.
    pub opsets: Vec<(String, i64)>,
    pub graph: Option<GraphMessage<'a>>,
    pub functions: Vec<FunctionMessage<'a>>,
    pub metadata: Vec<(String, String)>,
}

/// A graph: the model's own, or the body of a Loop, an If or a Scan.
#[derive(Debug, Default, Clone)]
pub(crate) struct GraphMessage<'a> {
    pub name: String,
    pub nodes: Vec<NodeMessage<'a>>,
    pub initializers: Vec<TensorMessage<'a>>,
    pub sparse: Vec<SparseMessage<'a>>,
    pub inputs: Vec<PortMessage>,
    pub outputs: Vec<PortMessage>,
}

/// A node of a graph.
#[derive(Debug, Default, Clone)]
pub(crate) struct NodeMessage<'a> {
    pub name: String,
    pub op: String,
    pub domain: String,
    /// The overload of the called function.
    pub overload: String,
    pub inputs: Vec<String>,
    pub outputs: Vec<String>,
    pub attributes: HashMap<String, AttributeMessage<'a>>,
}

/// The value of a node's attribute.
#[derive(Debug, Clone)]
pub(crate) enum AttributeMessage<'a> {
    Float(f32),
    Integer(i64),
    Text(Vec<u8>),
    Tensor(Box<TensorMessage<'a>>),
    Sparse(Box<SparseMessage<'a>>),
    Graph(Box<GraphMessage<'a>>),
    Floats(Vec<f32>),
    Integers(Vec<i64>),
    Texts(Vec<Vec<u8>>),
    /// In a function's node, the attribute of the call with this name.
    Reference(String),
    /// A kind that no supported op uses.
    Other,
}

/// An input or output of a graph.
#[derive(Debug, Default, Clone)]
pub(crate) struct PortMessage {
    pub name: String,
    pub kind: PortType,
}

/// A dimension of a port: a number, or a name, which may be empty.
pub(crate) type PortDim = Result<usize, String>;

/// The type of a value.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) enum PortType {
    #[default]
    Unknown,
    /// Element type, and the dimensions if they are known.
    Tensor(i64, Option<Vec<PortDim>>),
    Sequence(Box<PortType>),
    Optional(Box<PortType>),
    Other,
}

/// A function defined by the model, which nodes may call.
#[derive(Debug, Default)]
pub(crate) struct FunctionMessage<'a> {
    pub name: String,
    pub domain: String,
    pub overload: String,
    pub inputs: Vec<String>,
    pub outputs: Vec<String>,
    pub nodes: Vec<NodeMessage<'a>>,
    pub opsets: Vec<(String, i64)>,
    /// Default values of attributes, for calls that omit them.
    pub defaults: HashMap<String, AttributeMessage<'a>>,
}

/// Counters of entries while a model is read.
#[derive(Default)]
pub(crate) struct Reading {
    nodes: usize,
    items: usize,
}

impl Reading {
    fn node(&mut self) -> Result<()> {
        self.nodes += 1;
        match self.nodes <= NODES_MAX {
            true => self.item(),
            false => {
                Err(Error::Limit { what: "the nodes of a model", limit: NODES_MAX as u64, got: self.nodes as u64 })
            }
        }
    }

    /// Counts an entry that takes more memory than its bytes in the file.
    pub(crate) fn item(&mut self) -> Result<()> {
        self.items += 1;
        match self.items <= ITEMS_MAX {
            true => Ok(()),
            false => {
                let (what, limit) = ("the names, attributes and tensors of a model", ITEMS_MAX as u64);
                Err(Error::Limit { what, limit, got: self.items as u64 })
            }
        }
    }
}

impl<'a> ModelMessage<'a> {
    pub(crate) fn read(bytes: &'a [u8]) -> Result<ModelMessage<'a>> {
        let mut reading = Reading::default();
        let mut model = ModelMessage::default();
        for field in Fields::new(bytes) {
            let (number, content) = field?;
            match number {
                1 => model.ir_version = content.number()?,
                2 => model.producer = content.text()?,
                7 => model.graph = Some(GraphMessage::read(content.bytes()?, 0, &mut reading)?),
                8 => push_opset(&mut model.opsets, content.bytes()?)?,
                14 => {
                    reading.item()?;
                    model.metadata.push(read_pair(content.bytes()?)?);
                }
                25 => model.functions.push(FunctionMessage::read(content.bytes()?, &mut reading)?),
                _ => {}
            }
        }
        Ok(model)
    }
}

impl<'a> GraphMessage<'a> {
    fn read(bytes: &'a [u8], depth: usize, reading: &mut Reading) -> Result<GraphMessage<'a>> {
        reading.item()?;
        if depth > DEPTH_MAX {
            let (what, limit) = ("graphs within graphs", DEPTH_MAX as u64);
            return Err(Error::Limit { what, limit, got: depth as u64 });
        }
        let mut graph = GraphMessage::default();
        for field in Fields::new(bytes) {
            let (number, content) = field?;
            match number {
                1 => graph.nodes.push(NodeMessage::read(content.bytes()?, depth, reading)?),
                2 => graph.name = content.text()?,
                5 => graph.initializers.push(TensorMessage::read(content.bytes()?, reading)?),
                11 => graph.inputs.push(PortMessage::read(content.bytes()?, reading)?),
                12 => graph.outputs.push(PortMessage::read(content.bytes()?, reading)?),
                15 => graph.sparse.push(SparseMessage::read(content.bytes()?, reading)?),
                _ => {}
            }
        }
        Ok(graph)
    }
}

impl<'a> NodeMessage<'a> {
    fn read(bytes: &'a [u8], depth: usize, reading: &mut Reading) -> Result<NodeMessage<'a>> {
        reading.node()?;
        let mut node = NodeMessage::default();
        for field in Fields::new(bytes) {
            let (number, content) = field?;
            match number {
                1 => push_text(&mut node.inputs, content.text()?, reading)?,
                2 => push_text(&mut node.outputs, content.text()?, reading)?,
                3 => node.name = content.text()?,
                4 => node.op = content.text()?,
                5 => {
                    let (name, attribute) = AttributeMessage::read(content.bytes()?, depth, reading)?;
                    node.attributes.insert(name, attribute);
                }
                7 => node.domain = content.text()?,
                8 => node.overload = content.text()?,
                _ => {}
            }
        }
        Ok(node)
    }

    /// The node's name for messages: its name, or its first output.
    pub(crate) fn shown(&self) -> String {
        match (&self.name, self.outputs.first()) {
            (name, Some(output)) if name.is_empty() => output.clone(),
            (name, _) => name.clone(),
        }
    }
}

impl<'a> AttributeMessage<'a> {
    /// The memory of a copy of the attribute's list.
    pub(crate) fn bytes(&self) -> u64 {
        let bytes = match self {
            AttributeMessage::Text(text) => text.len(),
            AttributeMessage::Floats(values) => values.len() * 4,
            AttributeMessage::Integers(values) => values.len() * 8,
            AttributeMessage::Texts(texts) => texts.iter().map(|text| text.len() + size_of::<String>()).sum(),
            _ => 0,
        };
        bytes as u64
    }

    fn read(bytes: &'a [u8], depth: usize, reading: &mut Reading) -> Result<(String, AttributeMessage<'a>)> {
        reading.item()?;
        let mut name = String::new();
        let (mut float, mut integer, mut text, mut tensor, mut graph) = (None, None, None, None, None);
        let (mut floats, mut integers, mut texts) = (Vec::new(), Vec::new(), Vec::new());
        let (mut kind, mut reference, mut sparse) = (0, None, None);
        for field in Fields::new(bytes) {
            let (number, content) = field?;
            match number {
                1 => name = content.text()?,
                2 => float = Some(content.float()?),
                3 => integer = Some(content.number()?),
                4 => text = Some(content.bytes()?.to_vec()),
                5 => tensor = Some(Box::new(TensorMessage::read(content.bytes()?, reading)?)),
                6 => graph = Some(Box::new(GraphMessage::read(content.bytes()?, depth + 1, reading)?)),
                7 => content.floats(&mut floats)?,
                8 => content.numbers(&mut integers)?,
                9 => {
                    reading.item()?;
                    texts.push(content.bytes()?.to_vec());
                }
                20 => kind = content.number()?,
                21 => reference = Some(content.text()?),
                22 => sparse = Some(Box::new(SparseMessage::read(content.bytes()?, reading)?)),
                _ => {}
            }
        }
        // Files of the first versions do not state which of the fields is valid.
        let attribute = match (kind, reference) {
            (_, Some(reference)) if !reference.is_empty() => AttributeMessage::Reference(reference),
            (1, _) => AttributeMessage::Float(float.unwrap_or(0.0)),
            (2, _) => AttributeMessage::Integer(integer.unwrap_or(0)),
            (3, _) => AttributeMessage::Text(text.unwrap_or_default()),
            (4, _) => tensor.map_or(AttributeMessage::Other, AttributeMessage::Tensor),
            (5, _) => graph.map_or(AttributeMessage::Other, AttributeMessage::Graph),
            (6, _) => AttributeMessage::Floats(floats),
            (7, _) => AttributeMessage::Integers(integers),
            (8, _) => AttributeMessage::Texts(texts),
            (11, _) => sparse.map_or(AttributeMessage::Other, AttributeMessage::Sparse),
            _ if float.is_some() => AttributeMessage::Float(float.unwrap_or(0.0)),
            _ if integer.is_some() => AttributeMessage::Integer(integer.unwrap_or(0)),
            _ if text.is_some() => AttributeMessage::Text(text.unwrap_or_default()),
            _ if !integers.is_empty() => AttributeMessage::Integers(integers),
            _ if !floats.is_empty() => AttributeMessage::Floats(floats),
            _ if !texts.is_empty() => AttributeMessage::Texts(texts),
            _ => match (tensor, graph) {
                (Some(tensor), _) => AttributeMessage::Tensor(tensor),
                (_, Some(graph)) => AttributeMessage::Graph(graph),
                _ => AttributeMessage::Other,
            },
        };
        Ok((name, attribute))
    }
}

impl PortMessage {
    fn read(bytes: &[u8], reading: &mut Reading) -> Result<PortMessage> {
        reading.item()?;
        let mut port = PortMessage::default();
        for field in Fields::new(bytes) {
            let (number, content) = field?;
            match number {
                1 => port.name = content.text()?,
                2 => port.kind = PortType::read(content.bytes()?, 0, reading)?,
                _ => {}
            }
        }
        Ok(port)
    }
}

impl PortType {
    fn read(bytes: &[u8], depth: usize, reading: &mut Reading) -> Result<PortType> {
        if depth > DEPTH_MAX {
            let (what, limit) = ("types within types", DEPTH_MAX as u64);
            return Err(Error::Limit { what, limit, got: depth as u64 });
        }
        let mut kind = PortType::Unknown;
        for field in Fields::new(bytes) {
            let (number, content) = field?;
            match number {
                1 => kind = PortType::tensor(content.bytes()?, reading)?,
                4 => kind = PortType::Sequence(Box::new(PortType::inner(content.bytes()?, depth, reading)?)),
                9 => kind = PortType::Optional(Box::new(PortType::inner(content.bytes()?, depth, reading)?)),
                5 | 8 => kind = PortType::Other,
                _ => {}
            }
        }
        Ok(kind)
    }

    fn inner(bytes: &[u8], depth: usize, reading: &mut Reading) -> Result<PortType> {
        let mut kind = PortType::Unknown;
        for field in Fields::new(bytes) {
            if let (1, content) = field? {
                kind = PortType::read(content.bytes()?, depth + 1, reading)?;
            }
        }
        Ok(kind)
    }

    fn tensor(bytes: &[u8], reading: &mut Reading) -> Result<PortType> {
        let (mut element, mut dims) = (0, None);
        for field in Fields::new(bytes) {
            let (number, content) = field?;
            match number {
                1 => element = content.number()?,
                2 => dims = Some(read_dims(content.bytes()?, reading)?),
                _ => {}
            }
        }
        Ok(PortType::Tensor(element, dims))
    }
}

impl<'a> FunctionMessage<'a> {
    fn read(bytes: &'a [u8], reading: &mut Reading) -> Result<FunctionMessage<'a>> {
        reading.item()?;
        let mut function = FunctionMessage::default();
        for field in Fields::new(bytes) {
            let (number, content) = field?;
            match number {
                1 => function.name = content.text()?,
                4 => push_text(&mut function.inputs, content.text()?, reading)?,
                5 => push_text(&mut function.outputs, content.text()?, reading)?,
                7 => function.nodes.push(NodeMessage::read(content.bytes()?, 0, reading)?),
                9 => push_opset(&mut function.opsets, content.bytes()?)?,
                10 => function.domain = content.text()?,
                11 => {
                    let (name, attribute) = AttributeMessage::read(content.bytes()?, 0, reading)?;
                    function.defaults.insert(name, attribute);
                }
                13 => function.overload = content.text()?,
                _ => {}
            }
        }
        Ok(function)
    }
}

fn read_dims(bytes: &[u8], reading: &mut Reading) -> Result<Vec<PortDim>> {
    let mut dims = Vec::new();
    for field in Fields::new(bytes) {
        let (1, content) = field? else { continue };
        reading.item()?;
        let mut dim = Err(String::new());
        for field in Fields::new(content.bytes()?) {
            match field? {
                // Some exporters write a negative number for any size.
                (1, content) => dim = usize::try_from(content.number()?).map_err(|_| String::new()),
                (2, content) => dim = Err(content.text()?),
                _ => {}
            }
        }
        dims.push(dim);
    }
    Ok(dims)
}

fn push_text(list: &mut Vec<String>, text: String, reading: &mut Reading) -> Result<()> {
    list.push(text);
    reading.item()
}

fn push_opset(opsets: &mut Vec<(String, i64)>, bytes: &[u8]) -> Result<()> {
    opsets.push(read_opset(bytes)?);
    match opsets.len() <= OPSETS_MAX {
        true => Ok(()),
        false => {
            let (what, limit) = ("the domains of a model", OPSETS_MAX as u64);
            Err(Error::Limit { what, limit, got: opsets.len() as u64 })
        }
    }
}

fn read_opset(bytes: &[u8]) -> Result<(String, i64)> {
    let (mut domain, mut version) = (String::new(), 0);
    for field in Fields::new(bytes) {
        match field? {
            (1, content) => domain = content.text()?,
            (2, content) => version = content.number()?,
            _ => {}
        }
    }
    Ok((domain, version))
}

pub(crate) fn read_pair(bytes: &[u8]) -> Result<(String, String)> {
    let (mut key, mut value) = (String::new(), String::new());
    for field in Fields::new(bytes) {
        match field? {
            (1, content) => key = content.text()?,
            (2, content) => value = content.text()?,
            _ => {}
        }
    }
    Ok((key, value))
}

/// Reads a value from a file of ONNX's test cases: a tensor, a list of values, or an optional
/// value.
pub(crate) fn read_value(bytes: &[u8], kind: &PortType, depth: usize) -> Result<crate::Value> {
    if depth > DEPTH_MAX {
        return Err(Error::Limit { what: "values within values", limit: DEPTH_MAX as u64, got: depth as u64 });
    }
    match kind {
        PortType::Sequence(inner) => {
            let mut values = Vec::new();
            for field in Fields::new(bytes) {
                if let (3 | 5 | 7, content) = field? {
                    values.push(read_value(content.bytes()?, inner, depth + 1)?);
                }
            }
            crate::Value::list(values)
        }
        PortType::Optional(inner) => {
            for field in Fields::new(bytes) {
                if let (3 | 5, content) = field? {
                    let value = read_value(content.bytes()?, inner, depth + 1)?;
                    return crate::Value::maybe(Some(value));
                }
            }
            Ok(crate::Value::Optional(None))
        }
        _ => TensorMessage::read(bytes, &mut Reading::default())?.array(None).map(crate::Value::Array),
    }
}
