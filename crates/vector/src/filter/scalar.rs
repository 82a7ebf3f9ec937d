//! Values that fields are compared with, and ranges of values.

use std::cmp::Ordering;

use serde_json::Value;

use super::error::FilterError;
use super::number;
use super::path::Path;

/// A value that a field can be compared with.
#[derive(Clone, Debug, PartialEq)]
pub enum Scalar {
    /// The null value; a missing field is also null.
    Null,
    /// A truth value.
    Bool(bool),
    /// A number.
    Number(serde_json::Number),
    /// A text.
    Text(String),
}

/// The bounds of a range. At least one bound exists; two bounds are both numbers or both texts.
#[derive(Clone, Debug, PartialEq)]
pub struct Range {
    pub(super) lower: Option<RangeEnd>,
    pub(super) upper: Option<RangeEnd>,
}

/// One end of a range.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RangeEnd {
    pub(super) value: Scalar,
    pub(super) inclusive: bool,
}

/// How a field is compared with a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// Less than the bound.
    Less,
    /// Less than the bound, or equal to it.
    AtMost,
    /// Greater than the bound.
    Greater,
    /// Greater than the bound, or equal to it.
    AtLeast,
}

impl Scalar {
    /// The scalar of a JSON value; `None` for a list or an object.
    pub(super) fn from_value(value: &Value) -> Option<Scalar> {
        match value {
            Value::Null => Some(Scalar::Null),
            Value::Bool(value) => Some(Scalar::Bool(*value)),
            Value::Number(number) => Some(Scalar::Number(number.clone())),
            Value::String(text) => Some(Scalar::Text(text.clone())),
            Value::Array(_) | Value::Object(_) => None,
        }
    }

    pub(super) fn to_value(&self) -> Value {
        match self {
            Scalar::Null => Value::Null,
            Scalar::Bool(value) => Value::Bool(*value),
            Scalar::Number(number) => Value::Number(number.clone()),
            Scalar::Text(text) => Value::String(text.clone()),
        }
    }

    /// Whether the value equals this scalar.
    pub(super) fn is(&self, value: &Value) -> bool {
        match (self, value) {
            (Scalar::Null, Value::Null) => true,
            (Scalar::Bool(wanted), Value::Bool(value)) => wanted == value,
            (Scalar::Number(wanted), Value::Number(value)) => number::compare(value, wanted).is_eq(),
            (Scalar::Text(wanted), Value::String(value)) => wanted == value,
            _ => false,
        }
    }

    fn type_name(&self) -> &'static str {
        match self {
            Scalar::Null => "null",
            Scalar::Bool(_) => "a truth value",
            Scalar::Number(_) => "a number",
            Scalar::Text(_) => "a text",
        }
    }
}

impl From<&str> for Scalar {
    fn from(text: &str) -> Scalar {
        Scalar::Text(text.to_owned())
    }
}

impl From<String> for Scalar {
    fn from(text: String) -> Scalar {
        Scalar::Text(text)
    }
}

impl From<bool> for Scalar {
    fn from(value: bool) -> Scalar {
        Scalar::Bool(value)
    }
}

impl From<i64> for Scalar {
    fn from(value: i64) -> Scalar {
        Scalar::Number(value.into())
    }
}

impl From<u64> for Scalar {
    fn from(value: u64) -> Scalar {
        Scalar::Number(value.into())
    }
}

/// NaN and infinities, which JSON does not have, become `null`.
impl From<f64> for Scalar {
    fn from(value: f64) -> Scalar {
        serde_json::Number::from_f64(value).map_or(Scalar::Null, Scalar::Number)
    }
}

impl Range {
    pub(super) fn new(path: &Path, comparison: Comparison, value: Scalar) -> Result<Range, FilterError> {
        let mut range = Range { lower: None, upper: None };
        range.narrow(path, comparison, value)?;
        Ok(range)
    }

    /// Adds a bound on a side that has none yet.
    pub(super) fn narrow(&mut self, path: &Path, comparison: Comparison, value: Scalar) -> Result<(), FilterError> {
        if !matches!(value, Scalar::Number(_) | Scalar::Text(_)) {
            return Err(FilterError::BoundType { path: path.to_string(), got: value.type_name() });
        }
        let inclusive = matches!(comparison, Comparison::AtMost | Comparison::AtLeast);
        let (side, other) = match comparison {
            Comparison::Less | Comparison::AtMost => (&mut self.upper, &self.lower),
            Comparison::Greater | Comparison::AtLeast => (&mut self.lower, &self.upper),
        };
        if side.is_some() {
            return Err(FilterError::BoundTwice { path: path.to_string() });
        }
        if let Some(other) = other
            && other.value.type_name() != value.type_name()
        {
            return Err(FilterError::BoundsDiffer { path: path.to_string() });
        }
        *side = Some(RangeEnd { value, inclusive });
        Ok(())
    }

    pub(super) fn contains(&self, value: &Value) -> bool {
        let order = |bound: &Scalar| match (value, bound) {
            (Value::Number(value), Scalar::Number(bound)) => Some(number::compare(value, bound)),
            (Value::String(value), Scalar::Text(bound)) => Some(value.as_str().cmp(bound.as_str())),
            _ => None,
        };
        let holds = |bound: &Option<RangeEnd>, wanted: Ordering| match bound {
            None => true,
            Some(bound) => {
                order(&bound.value).is_some_and(|order| order == wanted || (bound.inclusive && order.is_eq()))
            }
        };
        holds(&self.lower, Ordering::Greater) && holds(&self.upper, Ordering::Less)
    }
}
