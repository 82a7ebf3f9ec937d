//! The types of values that a filter's conditions compare fields with.

use super::error::FilterError;
use super::path::Path;
use super::scalar::{Comparison, Range, Scalar};
use super::{Filter, Node};

/// A type of values that conditions compare fields with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    Number,
    Text,
    Bool,
}

/// A field with the only type that a condition compares it with.
pub(crate) struct TypedField {
    /// The path of the field.
    pub(crate) path: String,
    /// The name of the type.
    pub(crate) got: &'static str,
    /// Passes records whose field has this type.
    pub(crate) wanted: Filter,
    /// The names of the other types, each with a filter that passes records whose field has it.
    pub(crate) others: Vec<(&'static str, Filter)>,
}

impl Type {
    const ALL: [Type; 3] = [Type::Number, Type::Text, Type::Bool];

    fn of(scalar: &Scalar) -> Option<Type> {
        match scalar {
            Scalar::Null => None,
            Scalar::Bool(_) => Some(Type::Bool),
            Scalar::Number(_) => Some(Type::Number),
            Scalar::Text(_) => Some(Type::Text),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Type::Number => "a number",
            Type::Text => "a text",
            Type::Bool => "a truth value",
        }
    }

    /// A filter that passes every value of this type.
    fn every_value(self, path: &Path) -> Result<Filter, FilterError> {
        let at_least = |bound: Scalar| {
            let range = Range::new(path, Comparison::AtLeast, bound)?;
            Filter::condition(Node::Range(path.clone(), range))
        };
        match self {
            Type::Number => at_least(f64::MIN.into()),
            Type::Text => at_least("".into()),
            Type::Bool => Filter::condition(Node::In(path.clone(), vec![true.into(), false.into()])),
        }
    }
}

impl Filter {
    /// The fields that a condition compares with values of one type.
    pub(crate) fn typed_fields(&self) -> Result<Vec<TypedField>, FilterError> {
        let mut found = Vec::new();
        self.collect_types(&mut found);
        let field = |(path, wanted): &(&Path, Type)| {
            let others = Type::ALL.into_iter().filter(|other| other != wanted);
            let others = others.map(|other| Ok((other.name(), other.every_value(path)?)));
            Ok(TypedField {
                path: path.to_string(),
                got: wanted.name(),
                wanted: wanted.every_value(path)?,
                others: others.collect::<Result<_, FilterError>>()?,
            })
        };
        found.iter().map(field).collect()
    }

    /// Adds each pair of a path and a type once.
    fn collect_types<'a>(&'a self, found: &mut Vec<(&'a Path, Type)>) {
        let (path, kind) = match &self.node {
            Node::And(filters) | Node::Or(filters) => {
                return filters.iter().for_each(|filter| filter.collect_types(found));
            }
            Node::Not(filter) => return filter.collect_types(found),
            Node::Equals(path, value) => (path, Type::of(value)),
            Node::In(path, values) => (path, common_type(values)),
            Node::Range(path, range) => {
                let bound = range.lower.as_ref().or(range.upper.as_ref());
                (path, bound.and_then(|bound| Type::of(&bound.value)))
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
fn common_type(values: &[Scalar]) -> Option<Type> {
    let first = Type::of(values.first()?)?;
    values.iter().all(|value| Type::of(value) == Some(first)).then_some(first)
}
