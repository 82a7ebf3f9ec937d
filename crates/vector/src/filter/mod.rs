//! Conditions on metadata, evaluated before vectors are scored.
//!
//! A [`Filter`] is built by its constructors, from JSON ([`Filter::from_json`]) or from a line of
//! text ([`Filter::parse`]):
//!
//! | JSON | text | passes |
//! | --- | --- | --- |
//! | `{"section": "games"}` | `section = games` | records whose section is `games` |
//! | `{"section": {"ne": "games"}}` | `section != games` | all others, also those without a section |
//! | `{"section": {"in": ["games", "x11"]}}` | `section in (games, x11)` | either |
//! | `{"size": {"gte": 10, "lt": 1000}}` | `size >= 10 and size < 1000` | 10 ≤ size < 1000 |
//! | `{"and": [A, B]}`, `{"or": [A, B]}`, `{"not": A}` | `A and B`, `A or B`, `not A` | |
//! | `{"author.name": "Ada"}` | `author.name = Ada` | `{"author": {"name": "Ada"}}` |
//!
//! The meaning of conditions:
//!
//! 1. Numbers are compared by value, exactly: `1` equals `1.0`, and no integer is rounded. Texts
//!    are compared by code point. A range passes no value of another type than its bounds.
//! 2. A field that is missing is `null`; `null` equals nothing but `null` and lies in no range.
//! 3. A list passes if one of its elements does: `tags = red` finds
//!    `{"tags": ["red", "round"]}`.
//! 4. An object equals nothing; its fields are reached with a dotted path. A backslash makes the
//!    next character of a path a plain one: `a\.b` is the field `a.b`, and `\and` the field `and`.
//!
//! Filters come from untrusted input, so their size and depth are bounded: see the constants.

mod columns;
mod error;
mod json;
mod number;
mod path;
mod scalar;
mod text;
mod types;

#[cfg(test)]
mod tests;

use serde_json::Value;

pub use columns::{Columns, RowSink};
pub use error::FilterError;
pub use path::Path;
pub use scalar::{Comparison, Range, Scalar};
pub(crate) use types::FieldType;

/// Maximum nesting of `and`, `or`, `not` and parentheses. A `not` around the whole filter may add
/// one level.
pub const DEPTH_MAX: usize = 32;
/// Maximum number of conditions in one filter; each value of an `in` counts as one.
pub const CONDITIONS_MAX: usize = 1 << 16;
/// Maximum nesting depth that the readers of text and JSON accept.
const DEPTH_READ_MAX: usize = DEPTH_MAX + 1;
/// Maximum length of a filter's text, in bytes.
pub const TEXT_BYTES_MAX: usize = 1 << 20;

/// A condition on a record's metadata. The module defines the conditions. Every constructor
/// enforces the bounds on depth and size, so that code that recurses over a filter needs little
/// stack.
#[derive(Clone, Debug, PartialEq)]
pub struct Filter {
    node: Node,
    /// Levels of nesting, including this one.
    depth: usize,
    /// Number of conditions; each value of an `in` counts as one.
    conditions: usize,
}

#[derive(Clone, Debug, PartialEq)]
enum Node {
    /// The field has this value.
    Equals(Path, Scalar),
    /// The field has one of these values.
    In(Path, Vec<Scalar>),
    /// The field lies in the range.
    Range(Path, Range),
    /// All of these hold; with none, everything passes.
    And(Vec<Filter>),
    /// At least one of these holds; with none, nothing passes.
    Or(Vec<Filter>),
    /// The filter inside does not hold. The filter inside is never a `Not`.
    Not(Box<Filter>),
}

impl Filter {
    /// The field at this path has this value.
    pub fn equals(path: &str, value: impl Into<Scalar>) -> Result<Filter, FilterError> {
        Filter::condition(Node::Equals(Path::parse(path)?, value.into()))
    }

    /// The field at this path has one of these values.
    pub fn one_of<S: Into<Scalar>>(path: &str, values: impl IntoIterator<Item = S>) -> Result<Filter, FilterError> {
        // One value beyond the bound is enough to detect that there are too many.
        let values: Vec<Scalar> = values.into_iter().take(CONDITIONS_MAX + 1).map(Into::into).collect();
        Filter::condition(Node::In(Path::parse(path)?, values))
    }

    /// The field at this path compares with a number or a text as `comparison` says.
    pub fn compare(path: &str, comparison: Comparison, bound: impl Into<Scalar>) -> Result<Filter, FilterError> {
        let path = Path::parse(path)?;
        let range = Range::new(&path, comparison, bound.into())?;
        Filter::condition(Node::Range(path, range))
    }

    /// All of these hold; with none, everything passes.
    pub fn all_of(filters: impl IntoIterator<Item = Filter>) -> Result<Filter, FilterError> {
        Filter::joined(filters.into_iter().collect(), Node::And)
    }

    /// At least one of these holds; with none, nothing passes.
    pub fn any_of(filters: impl IntoIterator<Item = Filter>) -> Result<Filter, FilterError> {
        Filter::joined(filters.into_iter().collect(), Node::Or)
    }

    /// Both filters hold. A chain of `and` is one level deep.
    pub fn and(mut self, other: Filter) -> Result<Filter, FilterError> {
        let Node::And(all) = &mut self.node else { return Filter::all_of([self, other]) };
        self.depth = self.depth.max(other.depth + 1);
        self.conditions = self.conditions.saturating_add(other.conditions);
        all.push(other);
        self.bounded()
    }

    /// At least one of the two filters holds. A chain of `or` is one level deep.
    pub fn or(mut self, other: Filter) -> Result<Filter, FilterError> {
        let Node::Or(any) = &mut self.node else { return Filter::any_of([self, other]) };
        self.depth = self.depth.max(other.depth + 1);
        self.conditions = self.conditions.saturating_add(other.conditions);
        any.push(other);
        self.bounded()
    }

    /// The filter of a line of text, such as `section = games and size < 1000`.
    pub fn parse(text: &str) -> Result<Filter, FilterError> {
        text::parse(text)
    }

    /// The filter of a JSON object, such as `{"section": "games", "size": {"lt": 1000}}`.
    pub fn from_json(value: &Value) -> Result<Filter, FilterError> {
        json::read(value)
    }

    /// Reads JSON if the argument begins with a brace, otherwise a line of text.
    pub fn from_argument(argument: &str) -> Result<Filter, FilterError> {
        if !argument.trim_start().starts_with('{') {
            return Filter::parse(argument);
        }
        if argument.len() > TEXT_BYTES_MAX {
            return Err(FilterError::TooLong { bytes: argument.len(), bytes_max: TEXT_BYTES_MAX });
        }
        let value =
            serde_json::from_str(argument).map_err(|error| FilterError::NotJson { reason: error.to_string() })?;
        Filter::from_json(&value)
    }

    /// The JSON form, which [`Filter::from_json`] reads back as an equal filter.
    pub fn to_json(&self) -> Value {
        json::write(self)
    }

    /// Whether a record with this metadata passes.
    pub fn matches(&self, metadata: &Value) -> bool {
        match &self.node {
            Node::And(all) => all.iter().all(|filter| filter.matches(metadata)),
            Node::Or(any) => any.iter().any(|filter| filter.matches(metadata)),
            Node::Not(filter) => !filter.matches(metadata),
            Node::Equals(path, _) | Node::In(path, _) | Node::Range(path, _) => {
                self.passes(path.find(metadata).unwrap_or(&Value::Null))
            }
        }
    }

    /// The rows of `columns` that pass, as the bit mask that a search takes: bit `r % 32` of word
    /// `r / 32` stands for row `r`. A field without a column counts as missing in every row.
    pub fn select(&self, columns: &Columns) -> Vec<u32> {
        columns.select(self)
    }

    /// Calls `visit` with the first part of each path in the filter: the top-level field of the
    /// metadata.
    pub fn for_each_field(&self, visit: &mut dyn FnMut(&str)) {
        self.for_each_path(&mut |path| visit(path.field()));
    }

    /// Calls `visit` with each path, once per occurrence in the filter.
    fn for_each_path(&self, visit: &mut dyn FnMut(&Path)) {
        match &self.node {
            Node::Equals(path, _) | Node::In(path, _) | Node::Range(path, _) => visit(path),
            Node::And(filters) | Node::Or(filters) => {
                filters.iter().for_each(|filter| filter.for_each_path(visit));
            }
            Node::Not(filter) => filter.for_each_path(visit),
        }
    }

    /// Whether a field with this value passes a condition on it.
    fn passes(&self, value: &Value) -> bool {
        if let Value::Array(elements) = value {
            return elements.iter().any(|element| !element.is_array() && self.passes(element));
        }
        match &self.node {
            Node::Equals(_, wanted) => wanted.is(value),
            Node::In(_, wanted) => wanted.iter().any(|wanted| wanted.is(value)),
            Node::Range(_, range) => range.contains(value),
            Node::And(_) | Node::Or(_) | Node::Not(_) => false,
        }
    }

    /// A condition on one field.
    fn condition(node: Node) -> Result<Filter, FilterError> {
        let conditions = if let Node::In(_, values) = &node { values.len().max(1) } else { 1 };
        Filter { node, depth: 1, conditions }.bounded()
    }

    fn joined(filters: Vec<Filter>, node: fn(Vec<Filter>) -> Node) -> Result<Filter, FilterError> {
        let depth = 1 + filters.iter().map(|filter| filter.depth).max().unwrap_or(0);
        let conditions = filters.iter().fold(0_usize, |sum, filter| sum.saturating_add(filter.conditions));
        Filter { node: node(filters), depth, conditions }.bounded()
    }

    /// Returns the filter if it is within the bounds.
    fn bounded(self) -> Result<Filter, FilterError> {
        if self.conditions > CONDITIONS_MAX {
            return Err(FilterError::TooManyConditions { conditions_max: CONDITIONS_MAX });
        }
        if self.depth > DEPTH_MAX {
            return Err(FilterError::TooDeep { depth_max: DEPTH_MAX });
        }
        Ok(self)
    }
}

/// The negation; a double negation gives the original filter. The bounds hold without a check,
/// because negation adds one level at most.
impl std::ops::Not for Filter {
    type Output = Filter;

    fn not(self) -> Filter {
        match self.node {
            Node::Not(filter) => *filter,
            _ => {
                let (depth, conditions) = (self.depth + 1, self.conditions);
                Filter { node: Node::Not(Box::new(self)), depth, conditions }
            }
        }
    }
}
