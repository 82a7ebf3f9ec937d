//! `panoply vectors update`.

use serde_json::json;

use super::{open, path_text, start};
use crate::configuration::Format;
use crate::configuration::store::KeySource;
use crate::configuration::vectors::UpdateOptions;
use crate::failure::Failure;
use crate::screen::Screen;

/// Replaces a record's metadata, or its vector, or both. A part that is not given stays as it is.
pub fn run(options: &UpdateOptions, key: Option<&KeySource>, screen: &mut Screen) -> Result<(), Failure> {
    let runtime = start()?;
    let collection = open(&options.path, key, &runtime)?;
    collection.update(&options.id, options.vector.as_deref(), options.metadata.clone())?;
    match options.format {
        Format::Json => screen.json(&json!({
            "path": path_text(&options.path),
            "id": options.id,
            "metadata": options.metadata.is_some(),
            "vector": options.vector.is_some(),
        })),
        Format::Table => screen.prose(&format!("{} is updated.", options.id)),
    }
}
