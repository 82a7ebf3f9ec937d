//! Conditions on metadata, evaluated before vectors are scored.
//!
//! A [`Filter`] is built by its constructors, from JSON ([`Filter::from_json`]) or from a line of text
//! ([`Filter::parse`]):
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
//! What a condition means:
//!
//! 1. Numbers are compared by value, exactly: `1` equals `1.0`, and no integer is rounded. Texts are compared by code
//!    point. A range passes no value of another type than its bounds.
//! 2. A field that is missing is `null`; `null` equals nothing but `null` and lies in no range.
//! 3. A list passes where one of its elements does: `tags = red` finds `{"tags": ["red", "round"]}`.
//! 4. An object equals nothing; its fields are reached with a dotted path. A backslash makes the next character of a
//!    path a plain one: `a\.b` is the field `a.b`, and `\and` the field `and`.
//!
//! Filters come from outside, so everything about them is bounded: see the constants.

mod columns;
mod error;
mod json;
mod number;
mod path;
mod scalar;
mod text;

#[cfg(test)]
mod tests;

use serde_json::Value;

pub use columns::{Columns, RowSink};
pub use error::FilterError;
pub use path::Path;
pub use scalar::{Comparison, Range, Scalar};

/// The deepest nesting of `and`, `or`, `not` and parentheses.
pub const DEPTH_MAX: usize = 32;
/// The most conditions in one filter; each value of an `in` counts as one.
pub const CONDITIONS_MAX: usize = 1 << 16;
/// The longest text of a filter, in bytes.
pub const TEXT_BYTES_MAX: usize = 1 << 20;

/// A condition on a record's metadata. The module says what each means.
#[derive(Clone, Debug, PartialEq)]
pub enum Filter {
    /// The field has this value.
    Equals(Path, Scalar),
    /// The field has one of these values.
    In(Path, Vec<Scalar>),
    /// The field lies between two bounds.
    Range(Path, Range),
    /// All of these hold; with none, everything passes.
    And(Vec<Filter>),
    /// At least one of these holds; with none, nothing passes.
    Or(Vec<Filter>),
    /// This does not hold.
    Not(Box<Filter>),
}

impl Filter {
    /// The field at this path has this value.
    pub fn equals(path: &str, value: impl Into<Scalar>) -> Result<Filter, FilterError> {
        Ok(Filter::Equals(Path::parse(path)?, value.into()))
    }

    /// The field at this path has one of these values.
    pub fn one_of<S: Into<Scalar>>(path: &str, values: impl IntoIterator<Item = S>) -> Result<Filter, FilterError> {
        let values: Vec<Scalar> = values.into_iter().map(Into::into).collect();
        Filter::In(Path::parse(path)?, values).bounded()
    }

    /// The field at this path compares so with a number or a text.
    pub fn compare(path: &str, comparison: Comparison, bound: impl Into<Scalar>) -> Result<Filter, FilterError> {
        let path = Path::parse(path)?;
        let range = Range::new(&path, comparison, bound.into())?;
        Ok(Filter::Range(path, range))
    }

    /// This and the other hold.
    pub fn and(self, other: Filter) -> Filter {
        match self {
            Filter::And(mut all) => {
                all.push(other);
                Filter::And(all)
            }
            first => Filter::And(vec![first, other]),
        }
    }

    /// This or the other holds.
    pub fn or(self, other: Filter) -> Filter {
        match self {
            Filter::Or(mut any) => {
                any.push(other);
                Filter::Or(any)
            }
            first => Filter::Or(vec![first, other]),
        }
    }

    /// The filter of a line of text, such as `section = games and size < 1000`.
    pub fn parse(text: &str) -> Result<Filter, FilterError> {
        text::parse(text)?.bounded()
    }

    /// The filter of a JSON object, such as `{"section": "games", "size": {"lt": 1000}}`.
    pub fn from_json(value: &Value) -> Result<Filter, FilterError> {
        json::read(value)?.bounded()
    }

    /// The filter of a text that is JSON where it begins with a brace, and a line of text otherwise.
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
        match self {
            Filter::And(all) => all.iter().all(|filter| filter.matches(metadata)),
            Filter::Or(any) => any.iter().any(|filter| filter.matches(metadata)),
            Filter::Not(filter) => !filter.matches(metadata),
            Filter::Equals(path, _) | Filter::In(path, _) | Filter::Range(path, _) => {
                self.passes(path.find(metadata).unwrap_or(&Value::Null))
            }
        }
    }

    /// The rows of these columns that pass, as the bit mask that a search takes: bit `r % 32` of word `r / 32` stands for
    /// row `r`. A field without a column is missing in every row.
    pub fn select(&self, columns: &Columns) -> Vec<u32> {
        columns.select(self)
    }

    /// Shows the first part of each path that the filter asks for: the metadata's own field.
    pub fn for_each_field(&self, visit: &mut dyn FnMut(&str)) {
        self.for_each_path(&mut |path| visit(path.field()));
    }

    /// Shows each path, as often as it stands in the filter.
    fn for_each_path(&self, visit: &mut dyn FnMut(&Path)) {
        match self {
            Filter::Equals(path, _) | Filter::In(path, _) | Filter::Range(path, _) => visit(path),
            Filter::And(filters) | Filter::Or(filters) => {
                filters.iter().for_each(|filter| filter.for_each_path(visit));
            }
            Filter::Not(filter) => filter.for_each_path(visit),
        }
    }

    /// Whether a field with this value passes a condition on it.
    fn passes(&self, value: &Value) -> bool {
        if let Value::Array(elements) = value {
            return elements.iter().any(|element| !element.is_array() && self.passes(element));
        }
        match self {
            Filter::Equals(_, wanted) => wanted.is(value),
            Filter::In(_, wanted) => wanted.iter().any(|wanted| wanted.is(value)),
            Filter::Range(_, range) => range.contains(value),
            Filter::And(_) | Filter::Or(_) | Filter::Not(_) => false,
        }
    }

    /// The filter, if it is within the bounds.
    fn bounded(self) -> Result<Filter, FilterError> {
        let (mut conditions, mut deepest) = (0, 0);
        let mut waiting = vec![(&self, 1)];
        while let Some((filter, depth)) = waiting.pop() {
            deepest = deepest.max(depth);
            match filter {
                Filter::Equals(..) | Filter::Range(..) => conditions += 1,
                Filter::In(_, values) => conditions += values.len().max(1),
                Filter::And(filters) | Filter::Or(filters) => {
                    waiting.extend(filters.iter().map(|filter| (filter, depth + 1)));
                }
                Filter::Not(filter) => waiting.push((filter, depth + 1)),
            }
        }
        if conditions > CONDITIONS_MAX {
            return Err(FilterError::TooManyConditions { conditions_max: CONDITIONS_MAX });
        }
        if deepest > DEPTH_MAX {
            return Err(FilterError::TooDeep { depth_max: DEPTH_MAX });
        }
        Ok(self)
    }
}

impl std::ops::Not for Filter {
    type Output = Filter;

    fn not(self) -> Filter {
        Filter::Not(Box::new(self))
    }
}
