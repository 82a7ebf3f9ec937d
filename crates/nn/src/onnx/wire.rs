//! ONNX messages as bytes: protocol buffers, written field by field.

use panoply_core::graph::Dim;
use panoply_core::{DType, Tensor};

/// The name and value of a node's attribute.
pub(super) enum Attribute<'a> {
    Integer(&'a str, i64),
    Float(&'a str, f32),
    Integers(&'a str, Vec<i64>),
    Text(&'a str, &'a str),
}

/// Element types of ONNX that no tensor of this library has.
pub(super) const INT64: i64 = 7;
pub(super) const BOOL: i64 = 9;

/// ONNX's number of an element type.
pub(super) fn element_type(dtype: DType) -> Option<i64> {
    Some(match dtype {
        DType::F32 => 1,
        DType::U8 => 2,
        DType::I8 => 3,
        DType::I32 => 6,
        DType::F16 => 10,
        DType::F64 => 11,
        DType::U32 => 12,
        DType::BF16 => 16,
        _ => return None,
    })
}

/// A message under construction.
#[derive(Default)]
pub(super) struct Message(pub(super) Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    pub(super) fn integer(&mut self, field: u64, value: i64) {
        self.varint(field << 3);
        self.varint(value as u64);
    }

    pub(super) fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    pub(super) fn text(&mut self, field: u64, text: &str) {
        self.bytes(field, text.as_bytes());
    }

    pub(super) fn message(&mut self, field: u64, message: Message) {
        self.bytes(field, &message.0);
    }

    fn integers(&mut self, field: u64, values: &[i64]) {
        let mut packed = Message::default();
        values.iter().for_each(|value| packed.varint(*value as u64));
        self.message(field, packed);
    }

    fn float(&mut self, field: u64, value: f32) {
        self.varint(field << 3 | 5);
        self.0.extend_from_slice(&value.to_le_bytes());
    }
}

/// A constant tensor: its name, element type, dimensions and bytes.
pub(super) fn tensor(name: &str, element: i64, dims: &[i64], bytes: &[u8]) -> Message {
    let mut tensor = Message::default();
    tensor.integers(1, dims);
    tensor.integer(2, element);
    tensor.text(8, name);
    tensor.bytes(9, bytes);
    tensor
}

/// The bytes of a tensor on the host.
pub(super) fn tensor_bytes(tensor: &Tensor) -> panoply_core::Result<Vec<u8>> {
    Ok(tensor.contiguous()?.as_bytes()?.to_vec())
}

/// A node of the default domain.
pub(super) fn node(op: &str, inputs: &[&str], output: &str, attributes: &[Attribute<'_>]) -> Message {
    let mut node = Message::default();
    inputs.iter().for_each(|input| node.text(1, input));
    node.text(2, output);
    node.text(3, output);
    node.text(4, op);
    attributes.iter().for_each(|said| node.message(5, attribute(said)));
    node
}

fn attribute(said: &Attribute<'_>) -> Message {
    let mut message = Message::default();
    let kind = match said {
        Attribute::Float(name, value) => {
            message.text(1, name);
            message.float(2, *value);
            1
        }
        Attribute::Integer(name, value) => {
            message.text(1, name);
            message.integer(3, *value);
            2
        }
        Attribute::Text(name, value) => {
            message.text(1, name);
            message.text(4, value);
            3
        }
        Attribute::Integers(name, values) => {
            message.text(1, name);
            message.integers(8, values);
            7
        }
    };
    message.integer(20, kind);
    message
}

/// An input or output of a graph. Symbolic dimensions keep their names.
pub(super) fn port(name: &str, element: i64, dims: &[Dim], symbols: &[String]) -> Message {
    let mut shape = Message::default();
    for dim in dims {
        let mut one = Message::default();
        match (dim.as_fixed(), dim.as_symbol()) {
            (Some(size), _) => one.integer(1, size as i64),
            (None, Some(symbol)) => one.text(2, &symbols[symbol]),
            (None, None) => one.text(2, &dim.text(symbols).to_string()),
        }
        shape.message(1, one);
    }
    let (mut kind, mut of_tensor, mut port) = (Message::default(), Message::default(), Message::default());
    of_tensor.integer(1, element);
    of_tensor.message(2, shape);
    kind.message(1, of_tensor);
    port.text(1, name);
    port.message(2, kind);
    port
}
