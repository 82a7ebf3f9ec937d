//! Programs: a model's graph with every name resolved, functions expanded and nodes in an
//! executable order.
//!
//! Loading checks everything that is independent of shapes: every op is known in its version, each
//! name is defined once, and the graph has no cycle. Errors name the node.

pub(crate) mod build;
mod fold;
mod spelled;

use std::collections::HashMap;
use std::sync::Arc;

use panoply_core::{Error as RunError, ErrorKind};

use crate::array::Array;
use crate::error::{Error, Result};
use crate::ops::call::Call;
use crate::value::Value;

/// A value of the whole model. Numbers are unique across all graphs of the model.
pub(crate) type ValueId = usize;

/// A node with its operands.
#[derive(Debug)]
pub(crate) struct Node {
    /// Its name, or the name of its first output.
    pub name: String,
    /// The name of its op.
    pub op: String,
    pub kind: OpKind,
    /// The version of the op's domain that the model requests.
    pub version: i64,
    pub inputs: Vec<Option<ValueId>>,
    pub outputs: Vec<Option<ValueId>>,
    pub attributes: HashMap<String, Attribute>,
    /// Values of the surrounding graph that its bodies use.
    pub captures: Vec<ValueId>,
}

/// The host function of an op.
pub(crate) type Eval = fn(&Call<'_>) -> Result<Vec<Value>>;

/// The properties of an op that a model's plan needs.
#[derive(Clone, Copy)]
pub(crate) enum OpKind {
    /// A function of its operands.
    Plain {
        eval: Eval,
        /// A bit mask of the operands whose values decide the shapes of the outputs.
        shape_operands: u32,
    },
    /// A constant in the file.
    Constant,
    If,
    Loop,
    Scan,
    SequenceMap,
}

/// Every operand decides the outputs' shapes.
pub(crate) const ALL_OPERANDS: u32 = u32::MAX;

impl std::fmt::Debug for OpKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            OpKind::Plain { .. } => "Plain",
            OpKind::Constant => "Constant",
            OpKind::If => "If",
            OpKind::Loop => "Loop",
            OpKind::Scan => "Scan",
            OpKind::SequenceMap => "SequenceMap",
        })
    }
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

/// A graph: the model's own graph, or one inside a node.
#[derive(Debug)]
pub(crate) struct Body {
    pub inputs: Vec<ValueId>,
    pub outputs: Vec<ValueId>,
    pub nodes: Vec<Arc<Node>>,
    pub constants: Vec<(ValueId, Array)>,
    /// Values of the surrounding graph that this graph uses.
    pub captures: Vec<ValueId>,
}

impl Body {
    /// The number of nodes, with those of the bodies of `If`, `Loop` and `Scan`.
    pub(crate) fn node_count(&self) -> usize {
        let nested = |node: &Arc<Node>| -> usize {
            let bodies = node.attributes.values().filter_map(|attribute| match attribute {
                Attribute::Body(body) => Some(body.node_count()),
                _ => None,
            });
            bodies.sum()
        };
        self.nodes.iter().map(|node| 1 + nested(node)).sum()
    }
}

impl Node {
    /// Wraps the cause with this node's name, unless it is not the node's fault: a device failed,
    /// the deadline passed, or the run was cancelled.
    pub(crate) fn error(&self, cause: Error) -> Error {
        match cause {
            // An error keeps the innermost node.
            Error::Node { .. } => cause,
            Error::Run(ref run) if run.kind() != ErrorKind::Caller || matches!(run, RunError::Cancelled) => cause,
            cause => Error::Node { node: self.name.clone(), op: self.op.clone(), cause: Box::new(cause) },
        }
    }

    pub(crate) fn body(&self, name: &str) -> Result<&Arc<Body>> {
        match self.attributes.get(name) {
            Some(Attribute::Body(body)) => Ok(body),
            _ => Err(Error::invalid(format!("the attribute {name}"), "a graph", "none")),
        }
    }

    /// Every value that must be available before the node runs.
    pub(crate) fn needs(&self) -> impl Iterator<Item = ValueId> + '_ {
        self.inputs.iter().flatten().copied().chain(self.captures.iter().copied())
    }
}
