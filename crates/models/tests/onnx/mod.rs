//! Minimal hand-written ONNX files for tests. Each test uses a part of this module.
#![allow(dead_code)]

use panoply_models::ElementType;

/// A message under construction.
#[derive(Clone, Default)]
pub struct Message(pub Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    pub fn number(mut self, field: u32, value: i64) -> Message {
        self.varint(u64::from(field) << 3);
        self.varint(value as u64);
        self
    }

    pub fn bytes(mut self, field: u32, bytes: &[u8]) -> Message {
        self.varint(u64::from(field) << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }

    pub fn text(self, field: u32, text: &str) -> Message {
        self.bytes(field, text.as_bytes())
    }

    pub fn message(self, field: u32, message: &Message) -> Message {
        self.bytes(field, &message.0)
    }

    pub fn float(mut self, field: u32, value: f32) -> Message {
        self.varint(u64::from(field) << 3 | 5);
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }
}

pub fn int(name: &str, value: i64) -> Message {
    Message::default().text(1, name).number(3, value).number(20, 2)
}

pub fn ints(name: &str, values: &[i64]) -> Message {
    values.iter().fold(Message::default().text(1, name).number(20, 7), |message, value| message.number(8, *value))
}

pub fn float(name: &str, value: f32) -> Message {
    Message::default().text(1, name).float(2, value).number(20, 1)
}

pub fn floats(name: &str, values: &[f32]) -> Message {
    values.iter().fold(Message::default().text(1, name).number(20, 6), |message, value| message.float(7, *value))
}

pub fn text(name: &str, value: &str) -> Message {
    Message::default().text(1, name).text(4, value).number(20, 3)
}

pub fn texts(name: &str, values: &[&str]) -> Message {
    values.iter().fold(Message::default().text(1, name).number(20, 8), |message, value| message.text(9, value))
}

pub fn graph_of(name: &str, graph: &Message) -> Message {
    Message::default().text(1, name).message(6, graph).number(20, 5)
}

pub fn node(op: &str, inputs: &[&str], outputs: &[&str], attributes: &[Message]) -> Message {
    let mut node = Message::default().text(4, op);
    node = inputs.iter().fold(node, |node, input| node.text(1, input));
    node = outputs.iter().fold(node, |node, output| node.text(2, output));
    attributes.iter().fold(node, |node, attribute| node.message(5, attribute))
}

/// An input or output. Negative dimensions are open; `i64::MIN` is an open dimension without a
/// name.
pub fn port(name: &str, kind: ElementType, dims: &[i64]) -> Message {
    let dim = |dim: &i64| match *dim {
        i64::MIN => Message::default(),
        dim if dim < 0 => Message::default().text(2, &format!("d{}", -dim)),
        dim => Message::default().number(1, dim),
    };
    let shape = dims.iter().fold(Message::default(), |shape, size| shape.message(1, &dim(size)));
    let tensor = Message::default().number(1, i64::from(kind.code())).message(2, &shape);
    Message::default().text(1, name).message(2, &Message::default().message(1, &tensor))
}

/// An output of any shape.
pub fn any(name: &str) -> Message {
    Message::default().text(1, name)
}

pub fn tensor(name: &str, kind: ElementType, dims: &[i64], raw: &[u8]) -> Message {
    let tensor = dims.iter().fold(Message::default(), |tensor, dim| tensor.number(1, *dim));
    tensor.number(2, i64::from(kind.code())).text(8, name).bytes(9, raw)
}

pub fn i64s(name: &str, dims: &[i64], values: &[i64]) -> Message {
    tensor(name, ElementType::I64, dims, &values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>())
}

pub fn i32s(name: &str, dims: &[i64], values: &[i32]) -> Message {
    tensor(name, ElementType::I32, dims, &values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>())
}

pub fn f32s(name: &str, dims: &[i64], values: &[f32]) -> Message {
    tensor(name, ElementType::F32, dims, &values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>())
}

/// A graph of nodes, constants, inputs and outputs.
pub fn graph(nodes: &[Message], constants: &[Message], inputs: &[Message], outputs: &[Message]) -> Message {
    let mut graph = nodes.iter().fold(Message::default(), |graph, node| graph.message(1, node));
    graph = constants.iter().fold(graph, |graph, constant| graph.message(5, constant));
    graph = inputs.iter().fold(graph, |graph, input| graph.message(11, input));
    outputs.iter().fold(graph, |graph, output| graph.message(12, output))
}

pub fn opset(domain: &str, version: i64) -> Message {
    Message::default().text(1, domain).number(2, version)
}

/// A model of this graph with this operator set version.
pub fn model(version: i64, graph: &Message) -> Message {
    Message::default().number(1, 9).message(7, graph).message(8, &opset("", version))
}
