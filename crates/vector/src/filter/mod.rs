//! Conditions on metadata, evaluated before vectors are scored.

use serde_json::Value;

/// A condition on a record's metadata.
#[derive(Clone, Debug, PartialEq)]
pub enum Filter {
    /// The field has this value.
    Equals(String, Value),
}

impl Filter {
    /// Whether a record with this metadata passes.
    pub fn matches(&self, metadata: &Value) -> bool {
        match self {
            Filter::Equals(field, value) => metadata.get(field) == Some(value),
        }
    }

    /// Shows each field that the filter asks for.
    pub fn for_each_field(&self, visit: &mut dyn FnMut(&str)) {
        match self {
            Filter::Equals(field, _) => visit(field),
        }
    }
}
