//! The JSON form of filters.

use serde_json::{Map, Value};

use super::error::FilterError;
use super::path::Path;
use super::{Comparison, DEPTH_MAX, DEPTH_READ_MAX, Filter, Node, Range, Scalar};

/// Reads the filter of a JSON object. Its keys are paths, `and`, `or` and `not`; all of them must
/// hold.
pub fn read(value: &Value) -> Result<Filter, FilterError> {
    conditions("filter", value, 1)
}

/// The JSON form of a filter.
pub fn write(filter: &Filter) -> Value {
    match &filter.node {
        Node::Equals(path, value) => keyed(path.to_string(), value.to_value()),
        Node::In(path, values) => {
            keyed(path.to_string(), keyed("in", values.iter().map(Scalar::to_value).collect::<Vec<Value>>()))
        }
        Node::Range(path, range) => keyed(path.to_string(), bounds(range)),
        Node::And(all) => keyed("and", all.iter().map(write).collect::<Vec<Value>>()),
        Node::Or(any) => keyed("or", any.iter().map(write).collect::<Vec<Value>>()),
        Node::Not(filter) => keyed("not", write(filter)),
    }
}

fn conditions(at: &str, value: &Value, depth: usize) -> Result<Filter, FilterError> {
    if depth > DEPTH_READ_MAX {
        return Err(FilterError::TooDeep { depth_max: DEPTH_MAX });
    }
    let Value::Object(object) = value else { return Err(form(at, "an object of conditions", value)) };
    let filters = object.iter().map(|(key, value)| match key.as_str() {
        "and" => Filter::all_of(list(key, value, depth)?),
        "or" => Filter::any_of(list(key, value, depth)?),
        "not" => Ok(!conditions(key, value, depth + 1)?),
        path => field(Path::parse(path)?, value),
    });
    let mut filters: Vec<Filter> = filters.collect::<Result<_, _>>()?;
    if filters.len() == 1 { Ok(filters.remove(0)) } else { Filter::all_of(filters) }
}

fn list(at: &str, value: &Value, depth: usize) -> Result<Vec<Filter>, FilterError> {
    let Value::Array(filters) = value else { return Err(form(at, "a list of conditions", value)) };
    filters.iter().map(|filter| conditions(at, filter, depth + 1)).collect()
}

/// The conditions on one field: a value to equal, or an object of operators.
fn field(path: Path, value: &Value) -> Result<Filter, FilterError> {
    if let Some(scalar) = Scalar::from_value(value) {
        return Filter::condition(Node::Equals(path, scalar));
    }
    const EXPECTED: &str = "a value, or an object of eq, ne, in, lt, lte, gt and gte";
    let operators = match value {
        Value::Object(operators) if !operators.is_empty() => operators,
        _ => return Err(form(&path.to_string(), EXPECTED, value)),
    };
    let mut filters = Vec::new();
    let mut range: Option<Range> = None;
    for (operator, operand) in operators {
        let scalar = || {
            Scalar::from_value(operand)
                .ok_or_else(|| form(&path.to_string(), "a number, a text, true, false or null", operand))
        };
        let comparison = match operator.as_str() {
            "eq" => {
                filters.push(Filter::condition(Node::Equals(path.clone(), scalar()?))?);
                continue;
            }
            "ne" => {
                filters.push(!Filter::condition(Node::Equals(path.clone(), scalar()?))?);
                continue;
            }
            "in" => {
                filters.push(Filter::condition(Node::In(path.clone(), scalars(&path, operand)?))?);
                continue;
            }
            "lt" => Comparison::Less,
            "lte" => Comparison::AtMost,
            "gt" => Comparison::Greater,
            "gte" => Comparison::AtLeast,
            _ => {
                let got = "an operator that does not exist";
                return Err(FilterError::Form { at: format!("{path}.{operator}"), expected: EXPECTED, got });
            }
        };
        match &mut range {
            Some(range) => range.narrow(&path, comparison, scalar()?)?,
            None => range = Some(Range::new(&path, comparison, scalar()?)?),
        }
    }
    filters.extend(range.map(|range| Filter::condition(Node::Range(path, range))).transpose()?);
    if filters.len() == 1 { Ok(filters.remove(0)) } else { Filter::all_of(filters) }
}

fn scalars(path: &Path, value: &Value) -> Result<Vec<Scalar>, FilterError> {
    let Value::Array(values) = value else { return Err(form(&path.to_string(), "a list of values", value)) };
    let scalar = |value| {
        Scalar::from_value(value).ok_or_else(|| form(&path.to_string(), "numbers, texts, true, false or null", value))
    };
    values.iter().map(scalar).collect()
}

fn bounds(range: &Range) -> Value {
    let mut operators = Map::new();
    if let Some(bound) = &range.lower {
        operators.insert(if bound.inclusive { "gte" } else { "gt" }.to_owned(), bound.value.to_value());
    }
    if let Some(bound) = &range.upper {
        operators.insert(if bound.inclusive { "lte" } else { "lt" }.to_owned(), bound.value.to_value());
    }
    Value::Object(operators)
}

fn keyed(key: impl Into<String>, value: impl Into<Value>) -> Value {
    Value::Object(Map::from_iter([(key.into(), value.into())]))
}

fn form(at: &str, expected: &'static str, got: &Value) -> FilterError {
    let got = match got {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(object) if object.is_empty() => "an empty object",
        Value::Object(_) => "an object",
    };
    FilterError::Form { at: at.to_owned(), expected, got }
}
