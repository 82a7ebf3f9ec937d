//! Networks as ONNX files, for this library's models and for other readers of ONNX.
//!
//! A network that was recorded for inference ([`Mode::Use`](crate::Mode::Use)) is written with its
//! parameters. Inputs keep the names of the data, weights keep their names, and symbolic dimensions
//! stay symbolic. An op that has no ONNX form is refused by name. `ops` writes single ops,
//! `expression` elementwise expressions, `wire` the bytes.

mod expression;
mod ops;
mod wire;

use std::collections::HashMap;
use std::path::Path;

use panoply_core::graph::{Dim, Kind};
use panoply_core::{DType, Tensor};

use crate::error::{Error, Result};
use crate::files;
use crate::grad::Tape;
use crate::net::{Recording, Role};
use crate::parameters::Parameters;
use wire::{Attribute, INT64, Message, element_type};

/// The IR version of the files, and their opset version.
const IR_VERSION: i64 = 8;
const OPSET: i64 = 18;
/// The largest file: protocol buffers have 31-bit lengths.
const FILE_BYTES_MAX: usize = i32::MAX as usize;

/// Writes a network with its parameters.
pub fn save(path: &Path, recording: &Recording, parameters: &Parameters) -> Result<()> {
    files::replace(path, &to_bytes(recording, parameters)?)
}

/// The contents of an ONNX file of a network with its parameters. The file has the named outputs of
/// the network.
pub fn to_bytes(recording: &Recording, parameters: &Parameters) -> Result<Vec<u8>> {
    let mut exporter = Exporter::new(recording)?;
    exporter.inputs(recording, parameters)?;
    exporter.nodes()?;
    exporter.outputs(recording)?;
    let bytes = exporter.model(recording.graph.name());
    match bytes.len() <= FILE_BYTES_MAX {
        true => Ok(bytes),
        false => Err(Error::invalid("onnx: a file", format!("at most {FILE_BYTES_MAX} bytes"), bytes.len())),
    }
}

/// A file under construction.
struct Exporter {
    tape: Tape,
    /// For each entry of the tape whether an output needs it, and its name.
    needed: Vec<bool>,
    names: Vec<String>,
    symbols: Vec<String>,
    /// For each symbol an input and the axis of that input that has this size.
    sizes: HashMap<usize, (String, usize)>,
    graph: Message,
    ports: [Message; 2],
    constants: HashMap<(i64, Vec<i64>, Vec<u8>), String>,
    count: usize,
}

impl Exporter {
    fn new(recording: &Recording) -> Result<Exporter> {
        let tape = Tape::replay(&recording.graph)?;
        let mut needed = vec![false; tape.entries.len()];
        for (_, node) in &recording.graph.outputs()[..recording.named] {
            needed[tape.entry_of[*node]] = true;
        }
        for entry in (0..tape.entries.len()).rev() {
            if needed[entry] {
                tape.entries[entry].operands.iter().for_each(|operand| needed[*operand] = true);
            }
        }
        Ok(Exporter {
            names: vec![String::new(); tape.entries.len()],
            needed,
            tape,
            symbols: recording.graph.symbols().to_vec(),
            sizes: HashMap::new(),
            graph: Message::default(),
            ports: Default::default(),
            constants: HashMap::new(),
            count: 0,
        })
    }

    /// Writes the data as inputs, and the parameters as constants under their names.
    fn inputs(&mut self, recording: &Recording, parameters: &Parameters) -> Result<()> {
        for (role, node) in recording.roles.iter().zip(recording.graph.inputs()) {
            let entry = self.tape.entry_of[*node];
            if !self.needed[entry] {
                continue;
            }
            self.names[entry] = match role {
                Role::Data(name) => self.data(entry, name)?,
                Role::Value(spec) => {
                    let spec = &recording.specs[*spec];
                    let bytes = wire::tensor_bytes(parameters.for_spec(spec)?)?;
                    let dims: Vec<i64> = spec.dims.iter().map(|size| *size as i64).collect();
                    self.graph.message(5, wire::tensor(&spec.name, 1, &dims, &bytes));
                    spec.name.clone()
                }
                Role::Seed => {
                    let expected = "a network recorded for use";
                    return Err(Error::invalid("onnx: a network", expected, "one that draws random numbers"));
                }
            };
        }
        Ok(())
    }

    fn data(&mut self, entry: usize, name: &str) -> Result<String> {
        let (dtype, dims) = self.tape.type_of(self.tape.entries[entry].id)?;
        for (axis, dim) in dims.iter().enumerate() {
            if let Some(symbol) = dim.as_symbol() {
                self.sizes.entry(symbol).or_insert((name.to_owned(), axis));
            }
        }
        self.ports[0].message(11, wire::port(name, element(dtype)?, &dims, &self.symbols));
        Ok(name.to_owned())
    }

    fn nodes(&mut self) -> Result<()> {
        for entry in 0..self.tape.entries.len() {
            let is_input = matches!(self.tape.entries[entry].kind, Kind::Input);
            if self.needed[entry] && !is_input {
                self.names[entry] = self.entry(entry)?;
            }
        }
        Ok(())
    }

    fn outputs(&mut self, recording: &Recording) -> Result<()> {
        for (name, node) in &recording.graph.outputs()[..recording.named] {
            let entry = self.tape.entry_of[*node];
            let (dtype, dims) = self.tape.type_of(self.tape.entries[entry].id)?;
            self.graph.message(1, wire::node("Identity", &[&self.names[entry]], name, &[]));
            self.ports[1].message(12, wire::port(name, element(dtype)?, &dims, &self.symbols));
        }
        Ok(())
    }

    fn model(self, name: &str) -> Vec<u8> {
        let (mut model, mut graph, mut opset) = (Message::default(), self.graph, Message::default());
        graph.text(2, name);
        self.ports.into_iter().for_each(|ports| graph.0.extend(ports.0));
        opset.text(1, "");
        opset.integer(2, OPSET);
        model.integer(1, IR_VERSION);
        model.text(2, "panoply");
        model.text(3, env!("CARGO_PKG_VERSION"));
        model.message(7, graph);
        model.message(8, opset);
        model.0
    }

    /// Adds a node and returns the name of its output.
    fn node(&mut self, op: &str, inputs: &[&str], attributes: &[Attribute<'_>]) -> String {
        self.count += 1;
        // No parameter's name begins with a slash.
        let name = format!("/{}", self.count);
        self.graph.message(1, wire::node(op, inputs, &name, attributes));
        name
    }

    /// Adds a constant. Equal constants are written once.
    fn constant(&mut self, element: i64, dims: &[i64], bytes: Vec<u8>) -> String {
        let key = (element, dims.to_vec(), bytes);
        if let Some(known) = self.constants.get(&key) {
            return known.clone();
        }
        self.count += 1;
        let name = format!("/{}", self.count);
        self.graph.message(5, wire::tensor(&name, element, dims, &key.2));
        self.constants.insert(key, name.clone());
        name
    }

    fn tensor(&mut self, tensor: &Tensor) -> Result<String> {
        let dims: Vec<i64> = tensor.shape().iter().map(|size| *size as i64).collect();
        let bytes = wire::tensor_bytes(tensor)?;
        Ok(self.constant(element(tensor.dtype())?, &dims, bytes))
    }

    fn integers(&mut self, values: &[i64]) -> String {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.constant(INT64, &[values.len() as i64], bytes)
    }

    fn cast(&mut self, x: &str, element: i64) -> String {
        self.node("Cast", &[x], &[Attribute::Integer("to", element)])
    }

    /// Dimensions as a one-dimensional tensor that is computed when the network runs: constants,
    /// and sizes of inputs for symbols.
    fn shape(&mut self, dims: &[Dim]) -> Result<String> {
        if let Some(fixed) = dims.iter().map(Dim::as_fixed).collect::<Option<Vec<usize>>>() {
            return Ok(self.integers(&fixed.iter().map(|size| *size as i64).collect::<Vec<_>>()));
        }
        let parts: Vec<String> = dims.iter().map(|dim| self.size(*dim)).collect::<Result<_>>()?;
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        Ok(self.node("Concat", &parts, &[Attribute::Integer("axis", 0)]))
    }

    /// One dimension as a tensor of one element.
    fn size(&mut self, dim: Dim) -> Result<String> {
        let mut size = self.integers(&[dim.factor() as i64]);
        for (symbol, power) in dim.powers().iter().enumerate() {
            for _ in 0..*power {
                let unknown = || Error::invalid("onnx: a symbol", "one that is a dimension of an input", symbol);
                let (input, axis) = self.sizes.get(&symbol).ok_or_else(unknown)?.clone();
                let (start, end) =
                    (Attribute::Integer("start", axis as i64), Attribute::Integer("end", axis as i64 + 1));
                let one = self.node("Shape", &[&input], &[start, end]);
                size = self.node("Mul", &[&size, &one], &[]);
            }
        }
        Ok(size)
    }
}

fn element(dtype: DType) -> Result<i64> {
    element_type(dtype).ok_or_else(|| Error::invalid("onnx: element type", "a float, i8, u8, i32 or u32", dtype))
}
