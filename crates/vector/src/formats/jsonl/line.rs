//! Parses one line.

use std::fmt;

use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::schema::DIMENSION_MAX;

/// The contents of a line.
#[derive(Debug, Default)]
pub struct JsonRecord {
    id: Option<String>,
    pub vector: Option<Vec<f32>>,
    metadata: Map<String, Value>,
    /// Whether the line had `metadata`, even an empty object, or any further field.
    has_metadata: bool,
}

impl JsonRecord {
    /// Parses a line; the error describes the fault.
    pub fn parse(bytes: &[u8]) -> Result<JsonRecord, String> {
        serde_json::from_slice(bytes).map_err(|error| match error.classify() {
            // The parser saw only this line, so its position is the position in the line.
            serde_json::error::Category::Eof => "the line ends before its object does".to_owned(),
            _ => strip_line(error.to_string()),
        })
    }

    /// The id, or the row's number, and the metadata.
    pub fn into_record(self, row: u64) -> (String, Value) {
        let metadata = if self.has_metadata { Value::Object(self.metadata) } else { Value::Null };
        (self.id.unwrap_or_else(|| row.to_string()), metadata)
    }
}

/// Removes the parser's line number, which counts within its input; the caller reports the line's
/// number.
fn strip_line(message: String) -> String {
    message.replace(" at line 1 column ", ", at column ")
}

impl<'de> Deserialize<'de> for JsonRecord {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<JsonRecord, D::Error> {
        deserializer.deserialize_map(LineVisitor)
    }
}

struct LineVisitor;

impl<'de> Visitor<'de> for LineVisitor {
    type Value = JsonRecord;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with `id`, `vector` and metadata")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<JsonRecord, A::Error> {
        let mut line = JsonRecord::default();
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "id" if line.id.is_none() => line.id = Some(id(map.next_value()?)?),
                "vector" | "embedding" if line.vector.is_none() => {
                    line.vector = Some(map.next_value::<Components>()?.0);
                }
                "metadata" => match map.next_value()? {
                    Value::Null => {}
                    Value::Object(fields) => {
                        line.has_metadata = true;
                        fields.into_iter().try_for_each(|(key, value)| insert(&mut line.metadata, key, value))?;
                    }
                    _ => return Err(A::Error::custom("`metadata` is not an object")),
                },
                "id" | "vector" | "embedding" => return Err(A::Error::custom(format!("`{key}` is there twice"))),
                _ => {
                    line.has_metadata = true;
                    insert(&mut line.metadata, key, map.next_value()?)?;
                }
            }
        }
        Ok(line)
    }
}

fn insert<E: Error>(metadata: &mut Map<String, Value>, key: String, value: Value) -> Result<(), E> {
    if metadata.contains_key(&key) {
        return Err(E::custom(format!("the metadata field `{key}` is there twice")));
    }
    metadata.insert(key, value);
    Ok(())
}

fn id<E: Error>(value: Value) -> Result<String, E> {
    match value {
        Value::String(text) => Ok(text),
        Value::Number(number) if !number.is_f64() => Ok(number.to_string()),
        _ => Err(E::custom("`id` is neither a text nor an integer")),
    }
}

/// The components of a vector, at most `DIMENSION_MAX`.
struct Components(Vec<f32>);

impl<'de> Deserialize<'de> for Components {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Components, D::Error> {
        deserializer.deserialize_seq(ComponentsVisitor)
    }
}

struct ComponentsVisitor;

impl<'de> Visitor<'de> for ComponentsVisitor {
    type Value = Components;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of numbers")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Components, A::Error> {
        let mut components = Vec::new();
        while let Some(component) = sequence.next_element::<f32>()? {
            if components.len() == DIMENSION_MAX {
                return Err(A::Error::custom(format!("a vector of more than {DIMENSION_MAX} components")));
            }
            components.push(component);
        }
        Ok(Components(components))
    }
}
