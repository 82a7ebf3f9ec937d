//! The types of values that a filter's conditions compare fields with, and the types that fields
//! have.

use serde_json::Value;

use super::path::Path;
use super::scalar::Scalar;
use super::{Filter, Node};

/// A type of values that conditions compare fields with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FieldType {
    Number,
    Text,
    Bool,
}

impl FieldType {
    pub(crate) const ALL: [FieldType; 3] = [FieldType::Number, FieldType::Text, FieldType::Bool];

    fn of(scalar: &Scalar) -> Option<FieldType> {
        match scalar {
            Scalar::Null => None,
            Scalar::Bool(_) => Some(FieldType::Bool),
            Scalar::Number(_) => Some(FieldType::Number),
            Scalar::Text(_) => Some(FieldType::Text),
        }
    }

    /// The name in errors.
    pub(crate) fn name(self) -> &'static str {
        match self {
            FieldType::Number => "a number",
            FieldType::Text => "a text",
            FieldType::Bool => "a truth value",
        }
    }

    /// Whether a condition of this type can hold for a field with this value: the value has the
    /// type, or is a list with such an element.
    pub(crate) fn is_in(self, value: &Value) -> bool {
        match (self, value) {
            (FieldType::Number, Value::Number(_))
            | (FieldType::Text, Value::String(_))
            | (FieldType::Bool, Value::Bool(_)) => true,
            (_, Value::Array(elements)) => elements.iter().any(|element| !element.is_array() && self.is_in(element)),
            _ => false,
        }
    }
}

impl Filter {
    /// The fields that a condition compares with values of one type, each pair once.
    pub(crate) fn typed_fields(&self) -> Vec<(&Path, FieldType)> {
        let mut found = Vec::new();
        self.collect_types(&mut found);
        found
    }

    fn collect_types<'a>(&'a self, found: &mut Vec<(&'a Path, FieldType)>) {
        let (path, kind) = match &self.node {
            Node::And(filters) | Node::Or(filters) => {
                return filters.iter().for_each(|filter| filter.collect_types(found));
            }
            Node::Not(filter) => return filter.collect_types(found),
            Node::Equals(path, value) => (path, FieldType::of(value)),
            Node::In(path, values) => (path, common_type(values)),
            Node::Range(path, range) => {
                let bound = range.lower.as_ref().or(range.upper.as_ref());
                (path, bound.and_then(|bound| FieldType::of(&bound.value)))
            }
        };
        if let Some(kind) = kind
            && !found.contains(&(path, kind))
        {
            found.push((path, kind));
        }
    }
}

/// The type of all values, if they have the same one.
fn common_type(values: &[Scalar]) -> Option<FieldType> {
    let first = FieldType::of(values.first()?)?;
    values.iter().all(|value| FieldType::of(value) == Some(first)).then_some(first)
}
