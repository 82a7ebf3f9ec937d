//! Values that flow between the nodes of a model on the host.

use std::sync::Arc;

use crate::array::Array;
use crate::error::{Error, Result};

/// An input or output of a node.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Value {
    /// An array. Nearly all values are arrays.
    Array(Array),
    /// A list of values.
    Sequence(Arc<[Value]>),
    /// A value that may be missing.
    Optional(Option<Box<Value>>),
}

impl Value {
    /// The array, if the value is an array or a present optional array.
    pub fn array(&self) -> Result<&Array> {
        match self {
            Value::Array(array) => Ok(array),
            Value::Optional(Some(value)) => value.array(),
            other => Err(Error::invalid("a value", "an array", other.sort())),
        }
    }

    /// The list, if the value is a list or a present optional list.
    pub fn sequence(&self) -> Result<&[Value]> {
        match self {
            Value::Sequence(values) => Ok(values),
            Value::Optional(Some(value)) => value.sequence(),
            other => Err(Error::invalid("a value", "a sequence", other.sort())),
        }
    }

    /// A list of arrays. Lists hold arrays only, so the deepest value is a list inside an optional
    /// value.
    pub(crate) fn list(values: Vec<Value>) -> Result<Value> {
        match values.iter().find(|value| !matches!(value, Value::Array(_))) {
            None => Ok(Value::Sequence(values.into())),
            Some(other) => Err(Error::invalid("an element of a sequence", "an array", other.sort())),
        }
    }

    /// An optional value, which is an array or a list if present.
    pub(crate) fn maybe(value: Option<Value>) -> Result<Value> {
        match &value {
            Some(Value::Optional(_)) => Err(Error::invalid("an optional value", "an array or a sequence", "another")),
            _ => Ok(Value::Optional(value.map(Box::new))),
        }
    }

    /// Whether the value is an array, a list of arrays, or one of the two inside an optional value.
    pub(crate) fn is_shallow(&self) -> bool {
        let is_plain = |value: &Value| match value {
            Value::Sequence(values) => values.iter().all(|value| matches!(value, Value::Array(_))),
            other => matches!(other, Value::Array(_)),
        };
        match self {
            Value::Optional(Some(value)) => is_plain(value),
            other => matches!(other, Value::Optional(None)) || is_plain(other),
        }
    }

    /// The bytes of its elements.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Value::Array(array) => array.size_bytes(),
            Value::Sequence(values) => values.iter().map(Value::bytes).sum(),
            Value::Optional(value) => value.as_ref().map_or(0, |value| value.bytes()),
        }
    }

    fn sort(&self) -> &'static str {
        match self {
            Value::Array(_) => "an array",
            Value::Sequence(_) => "a sequence",
            Value::Optional(Some(_)) => "an optional value",
            Value::Optional(None) => "a missing value",
        }
    }

    /// Appends the element types and dimensions of all contained arrays as numbers. Values with
    /// equal forms fit the same plan.
    pub(crate) fn form(&self, form: &mut Vec<u64>) {
        match self {
            Value::Array(array) => {
                form.extend([array.kind().code() as u64, array.dims().len() as u64]);
                form.extend(array.dims().iter().map(|dim| *dim as u64));
            }
            Value::Sequence(values) => {
                form.extend([1000, values.len() as u64]);
                values.iter().for_each(|value| value.form(form));
            }
            Value::Optional(None) => form.push(1001),
            Value::Optional(Some(value)) => {
                form.push(1002);
                value.form(form);
            }
        }
    }
}

impl From<Array> for Value {
    fn from(array: Array) -> Value {
        Value::Array(array)
    }
}
