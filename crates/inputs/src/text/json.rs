//! The values of a `tokenizer.json`, and the fields that many of its parts have.

use crate::error::{Error, Result};

pub(super) use serde_json::Value as Json;

/// The type of a part.
pub(super) fn known(json: &Json) -> Result<&str> {
    json["type"].as_str().ok_or_else(|| Error::invalid("tokenizer.json", "the type of a part", &json["type"]))
}

pub(super) fn text_of(json: &Json, key: &str) -> Result<String> {
    let text = json[key].as_str();
    text.map(str::to_owned).ok_or_else(|| Error::invalid(format!("{key:?} in tokenizer.json"), "a text", &json[key]))
}
