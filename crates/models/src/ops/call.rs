//! The arguments of an op: its node and its operands, with checks that report errors.

use crate::array::Array;
use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::program::{Attribute, Node};
use crate::value::Value;

/// One evaluation of a node on the host.
pub(crate) struct Call<'a> {
    pub node: &'a Node,
    pub inputs: &'a [Option<Value>],
}

impl<'a> Call<'a> {
    /// The operand at `place`. Fails if it is missing.
    pub(crate) fn value(&self, place: usize) -> Result<&'a Value> {
        let missing = || Error::invalid(format!("operand {place}"), "a value", "none");
        self.inputs.get(place).and_then(Option::as_ref).ok_or_else(missing)
    }

    /// The array at `place`. Fails if it is missing.
    pub(crate) fn array(&self, place: usize) -> Result<&'a Array> {
        self.value(place)?.array()
    }

    /// The array at `place`, if given.
    pub(crate) fn optional(&self, place: usize) -> Result<Option<&'a Array>> {
        match self.inputs.get(place).and_then(Option::as_ref) {
            None | Some(Value::Optional(None)) => Ok(None),
            Some(value) => value.array().map(Some),
        }
    }

    /// The integers at `place`, if given.
    pub(crate) fn optional_ints(&self, place: usize) -> Result<Option<Vec<i64>>> {
        self.optional(place)?.map(Array::to_i64s).transpose()
    }

    /// The arrays from `from` on.
    pub(crate) fn arrays(&self, from: usize) -> Result<Vec<&'a Array>> {
        self.inputs.iter().skip(from).flatten().map(Value::array).collect()
    }

    pub(crate) fn version(&self) -> i64 {
        self.node.version
    }

    pub(crate) fn op(&self) -> &'a str {
        &self.node.op
    }

    /// Whether the output at this index is requested.
    pub(crate) fn wants(&self, output: usize) -> bool {
        self.node.outputs.get(output).is_some_and(Option::is_some)
    }

    pub(crate) fn int(&self, name: &str, default: i64) -> Result<i64> {
        match self.node.attributes.get(name) {
            None => Ok(default),
            Some(Attribute::Integer(value)) => Ok(*value),
            Some(_) => Err(wrong(name, "an integer")),
        }
    }

    pub(crate) fn flag(&self, name: &str, default: bool) -> Result<bool> {
        Ok(self.int(name, i64::from(default))? != 0)
    }

    pub(crate) fn float(&self, name: &str, default: f32) -> Result<f64> {
        match self.node.attributes.get(name) {
            None => Ok(f64::from(default)),
            Some(Attribute::Float(value)) => Ok(f64::from(*value)),
            Some(_) => Err(wrong(name, "a float")),
        }
    }

    pub(crate) fn text(&self, name: &str, default: &'a str) -> Result<&'a str> {
        match self.node.attributes.get(name) {
            None => Ok(default),
            Some(Attribute::Text(value)) => Ok(value),
            Some(_) => Err(wrong(name, "text")),
        }
    }

    pub(crate) fn ints(&self, name: &str) -> Result<Option<&'a [i64]>> {
        match self.node.attributes.get(name) {
            None => Ok(None),
            Some(Attribute::Integers(values)) => Ok(Some(values)),
            Some(_) => Err(wrong(name, "integers")),
        }
    }

    pub(crate) fn floats(&self, name: &str) -> Result<Option<&'a [f32]>> {
        match self.node.attributes.get(name) {
            None => Ok(None),
            Some(Attribute::Floats(values)) => Ok(Some(values)),
            Some(_) => Err(wrong(name, "floats")),
        }
    }

    pub(crate) fn texts(&self, name: &str) -> Result<Option<&'a [String]>> {
        match self.node.attributes.get(name) {
            None => Ok(None),
            Some(Attribute::Texts(values)) => Ok(Some(values)),
            Some(_) => Err(wrong(name, "texts")),
        }
    }

    pub(crate) fn tensor(&self, name: &str) -> Result<Option<&'a Array>> {
        match self.node.attributes.get(name) {
            None => Ok(None),
            Some(Attribute::Array(value)) => Ok(Some(value)),
            Some(_) => Err(wrong(name, "a tensor")),
        }
    }

    /// The axes of a reduction or a similar op: an attribute in old versions, an operand in new
    /// ones.
    pub(crate) fn axes(&self, place: usize) -> Result<Option<Vec<i64>>> {
        match self.optional_ints(place)? {
            Some(axes) => Ok(Some(axes)),
            None => Ok(self.ints("axes")?.map(<[i64]>::to_vec)),
        }
    }
}

fn wrong(name: &str, expected: &'static str) -> Error {
    Error::invalid(format!("the attribute {name}"), expected, "something else")
}

/// An axis counted from the front. A negative axis counts from the last.
pub(crate) fn axis_of(axis: i64, rank: usize) -> Result<usize> {
    let rank_signed = rank as i64;
    let from_front = if axis < 0 { axis + rank_signed } else { axis };
    match usize::try_from(from_front) {
        Ok(axis) if axis < rank => Ok(axis),
        _ => Err(Error::invalid("an axis", format!("-{rank} to {}", rank_signed - 1), axis)),
    }
}

/// The boolean in a one-element array.
pub(crate) fn truth(value: &Value) -> Result<bool> {
    let array = value.array()?;
    match (array.kind(), array.bytes()) {
        (ElementType::Bool, [value]) => Ok(*value != 0),
        _ => Err(Error::invalid("a condition", "one element of bool", format!("{array:?}"))),
    }
}

pub(crate) use crate::bounds::size_of_int;

/// The array as the only output.
pub(crate) fn one(array: Result<Array>) -> Result<Vec<Value>> {
    array.map(|array| vec![Value::Array(array)])
}
