//! Nodes that a program writes itself, for networks that come from no file.

use crate::onnx::{AttributeMessage, NodeMessage};

/// A node of ONNX's default domain, for [`Network::of_nodes`](crate::Network::of_nodes).
#[derive(Clone, Debug)]
pub struct NewNode {
    op: String,
    inputs: Vec<String>,
    outputs: Vec<String>,
    attributes: Vec<(String, Setting)>,
}

/// The value of a node's attribute.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Setting {
    /// An integer.
    Integer(i64),
    /// A list of integers.
    Integers(Vec<i64>),
    /// A list of floats.
    Floats(Vec<f32>),
}

impl NewNode {
    /// A node with this op, and with inputs and outputs of these names.
    pub fn new(op: &str, inputs: &[&str], outputs: &[&str]) -> NewNode {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        NewNode { op: op.to_owned(), inputs: owned(inputs), outputs: owned(outputs), attributes: Vec::new() }
    }

    /// The node with an attribute.
    pub fn with(mut self, attribute: &str, setting: Setting) -> NewNode {
        self.attributes.push((attribute.to_owned(), setting));
        self
    }

    /// The node as a file would have it.
    pub(crate) fn message(self) -> NodeMessage<'static> {
        let message = |setting| match setting {
            Setting::Integer(value) => AttributeMessage::Integer(value),
            Setting::Integers(values) => AttributeMessage::Integers(values),
            Setting::Floats(values) => AttributeMessage::Floats(values),
        };
        let attributes = self.attributes.into_iter().map(|(name, setting)| (name, message(setting))).collect();
        NodeMessage { op: self.op, inputs: self.inputs, outputs: self.outputs, attributes, ..NodeMessage::default() }
    }
}
