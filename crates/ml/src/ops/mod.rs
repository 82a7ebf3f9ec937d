//! Every supported ONNX op as a plain function on the host. The function defines the op: device
//! code (the module `lower`) has to agree with it.
//!
//! Modules, in reading order: `call` (the arguments of an op), `index` (shapes and views), then
//! families of ops.

pub(crate) mod call;
mod cast;
pub(crate) mod conv;
mod elementwise;
mod gather;
pub(crate) mod index;
mod linear;
mod loss;
pub(crate) mod make;
mod norm;
mod pool;
mod quantize;
pub(crate) mod recurrent;
pub(crate) mod reduce;
pub(crate) mod resize;
mod scatter;
mod sequence;
pub(crate) mod shape;
mod signal;
pub(crate) mod sizes;
mod table;
pub(crate) mod windows;

use std::collections::HashMap;

use crate::array::Array;
use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::program::Attribute;
use crate::value::Value;
use call::Call;

pub(crate) use table::newest_version;

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

/// Whether the name stands for ONNX's default domain.
pub(crate) fn is_default(domain: &str) -> bool {
    domain.is_empty() || domain == "ai.onnx"
}

/// The op with this name. Fails with the name if the op is unknown.
pub(crate) fn find(domain: &str, op: &str, version: i64) -> Result<OpKind> {
    let domain = if is_default(domain) { "" } else { domain };
    if domain.is_empty() && version < table::OLDEST_VERSION && !table::UNCHANGED.contains(&op) {
        return Err(Error::unsupported(format!(
            "version {version} of ai.onnx; the oldest known is {}",
            table::OLDEST_VERSION
        )));
    }
    let shown = if domain.is_empty() { op.to_owned() } else { format!("{domain}.{op}") };
    table::find(domain, op).ok_or_else(|| Error::unsupported(format!("the op {shown}")))
}

/// The value of a `Constant` node.
pub(crate) fn constant(attributes: &HashMap<String, Attribute>) -> Result<Array> {
    for (name, attribute) in attributes {
        match (name.as_str(), attribute) {
            ("value" | "sparse_value", Attribute::Array(array)) => return Ok(array.clone()),
            ("value_float", Attribute::Float(value)) => return Array::from_slice(&[*value], []),
            ("value_int", Attribute::Integer(value)) => return Array::from_slice(&[*value], []),
            ("value_floats", Attribute::Floats(values)) => return Array::from_slice(values, [values.len()]),
            ("value_ints", Attribute::Integers(values)) => return Array::from_slice(values, [values.len()]),
            ("value_string", Attribute::Text(text)) => return Array::from_strings(vec![text.clone()], []),
            ("value_strings", Attribute::Texts(texts)) => return Array::from_strings(texts.clone(), [texts.len()]),
            _ => {}
        }
    }
    Err(Error::invalid("a constant", "a value", "none"))
}

/// The boolean in a one-element array.
pub(crate) fn truth(value: &Value) -> Result<bool> {
    let array = value.array()?;
    match (array.kind(), array.bytes()) {
        (ElementType::Bool, [value]) => Ok(*value != 0),
        _ => Err(Error::invalid("a condition", "one element of bool", format!("{array:?}"))),
    }
}
