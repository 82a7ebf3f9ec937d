//! `panoply vectors update`.

use panoply::vector::Error;
use serde_json::json;

use super::{open, path_text, start};
use crate::configuration::Format;
use crate::configuration::store::KeySource;
use crate::configuration::vectors::UpdateOptions;
use crate::failure::Failure;
use crate::screen::Screen;
use crate::store::commit::{Commit, Words};

const WORDS: Words = Words {
    before: "nothing was updated",
    after: "the record is updated",
    unknown: "it is unknown whether the record is updated; `panoply vectors get` tells",
};

/// Sets fields of a record, or replaces its metadata, or its vector, or both. A part that is not
/// given stays as it is.
pub fn run(options: &UpdateOptions, key: Option<&KeySource>, screen: &mut Screen) -> Result<(), Failure> {
    let runtime = start()?;
    let collection = open(&options.path, key, &runtime)?;
    let update = || match options.fields.is_empty() {
        true => collection.update(&options.id, options.vector.as_deref(), options.metadata.clone()),
        false => collection.set_fields(&options.id, options.fields.clone()),
    };
    Commit::announced(WORDS)
        .make(|| update().map_err(|error| (error, true)))
        .map_err(|(error, _)| told(options, error))?;
    match options.format {
        Format::Json => screen.json(&json!({
            "path": path_text(&options.path),
            "id": options.id,
            "metadata": options.metadata.is_some() || !options.fields.is_empty(),
            "vector": options.vector.is_some(),
        })),
        Format::Table => screen.prose(&format!("{} is updated.", options.id)),
    }
}

/// Adds to an unknown id how to list those that exist.
fn told(options: &UpdateOptions, error: Error) -> anyhow::Error {
    match error {
        Error::NoSuchId { .. } => {
            anyhow::anyhow!("{error}; `panoply vectors ids {}` lists all ids", options.path.display())
        }
        error => anyhow::Error::new(error),
    }
}
