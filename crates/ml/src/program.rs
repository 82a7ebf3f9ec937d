//! Programs: a model's graph with every name resolved, functions written out and nodes in an order in which they can run.
//!
//! Loading checks all that does not depend on shapes: that every op is known in its version, that each name is defined once, that
//! nothing depends on itself. What is refused is named with its node.

mod build;
mod fold;
mod spelled;

use std::collections::HashMap;
use std::sync::Arc;

use crate::array::Array;
use crate::error::{Error, Result};
use crate::ops::OpKind;

pub(crate) use build::{Built, build};

/// A value of the whole model: no two have the same number, in whatever graph they are.
pub(crate) type ValueId = usize;

/// A node with its operands.
#[derive(Debug)]
pub(crate) struct Node {
    /// Its name, or that of its first output.
    pub name: String,
    /// What it does.
    pub op: String,
    pub kind: OpKind,
    /// The version of the op's domain that the model asks for.
    pub version: i64,
    pub inputs: Vec<Option<ValueId>>,
    pub outputs: Vec<Option<ValueId>>,
    pub attributes: HashMap<String, Attribute>,
    /// Values that its bodies take from around it.
    pub captures: Vec<ValueId>,
}

/// An attribute's value.
#[derive(Clone, Debug)]
pub(crate) enum Attribute {
    Float(f32),
    Integer(i64),
    Text(String),
    Array(Array),
    Floats(Vec<f32>),
    Integers(Vec<i64>),
    Texts(Vec<String>),
    Body(Arc<Body>),
    Other,
}

/// A graph: the model's own, or one inside a node.
#[derive(Debug)]
pub(crate) struct Body {
    pub inputs: Vec<ValueId>,
    pub outputs: Vec<ValueId>,
    pub nodes: Vec<Arc<Node>>,
    pub constants: Vec<(ValueId, Array)>,
    /// Values that it takes from around it.
    pub captures: Vec<ValueId>,
}

impl Node {
    /// The cause, with this node's name.
    pub(crate) fn error(&self, cause: Error) -> Error {
        match cause {
            // The innermost node is the one to look at.
            Error::Node { .. } => cause,
            cause => Error::Node { node: self.name.clone(), op: self.op.clone(), cause: Box::new(cause) },
        }
    }

    pub(crate) fn body(&self, name: &str) -> Result<&Arc<Body>> {
        match self.attributes.get(name) {
            Some(Attribute::Body(body)) => Ok(body),
            _ => Err(Error::invalid(format!("the attribute {name}"), "a graph", "none")),
        }
    }

    /// Every value that must be there before it runs.
    pub(crate) fn needs(&self) -> impl Iterator<Item = ValueId> + '_ {
        self.inputs.iter().flatten().copied().chain(self.captures.iter().copied())
    }
}
