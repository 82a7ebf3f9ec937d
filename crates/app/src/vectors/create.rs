//! `panoply vectors create`.

use panoply::vector::{Collection, Options};
use serde_json::json;

use super::{path_text, start};
use crate::configuration::Format;
use crate::configuration::vectors::CreateOptions;
use crate::failure::Failure;
use crate::screen::Screen;

/// Makes an empty collection.
pub fn run(options: &CreateOptions, screen: &mut Screen) -> Result<(), Failure> {
    let runtime = start()?;
    let schema = &options.schema;
    let collection = Collection::create(&runtime, &options.path, schema.clone(), Options::default())?;
    collection.flush()?;
    match options.format {
        Format::Json => screen.json(&json!({
            "path": path_text(&options.path),
            "name": schema.name,
            "dimension": schema.dimension,
            "metric": schema.metric.name(),
            "storage": schema.storage.name(),
        })),
        Format::Table => screen.prose(&format!(
            "{} is ready: vectors of {} {} components, compared by {}.",
            options.path.display(),
            schema.dimension,
            schema.storage,
            schema.metric.name()
        )),
    }
}
