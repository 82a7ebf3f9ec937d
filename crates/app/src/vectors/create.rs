//! `panoply vectors create`.

use panoply::vector::{Collection, Options};
use serde_json::json;

use super::{path_text, start};
use crate::configuration::Format;
use crate::configuration::store::KeySource;
use crate::configuration::vectors::CreateOptions;
use crate::failure::Failure;
use crate::screen::Screen;
use crate::store::{keys, private};

/// Makes an empty collection.
pub fn run(options: &CreateOptions, key: Option<&KeySource>, screen: &mut Screen) -> Result<(), Failure> {
    let runtime = start()?;
    let schema = &options.schema;
    private::close_process();
    // Before anything is made: a file that is there already is refused, and stays.
    let master_key = key.map(keys::read_new).transpose()?;
    let opened = Options { key: master_key, ..Options::default() };
    let made = Collection::create(&runtime, &options.path, schema.clone(), opened);
    if let (Err(_), Some(KeySource::Generated(file))) = (&made, key) {
        // A key that opens nothing; the next attempt makes another one.
        let _ = std::fs::remove_file(file);
    }
    let collection = made?;
    collection.flush()?;
    match options.format {
        Format::Json => screen.json(&json!({
            "path": path_text(&options.path),
            "name": schema.name,
            "dimension": schema.dimension,
            "metric": schema.metric.name(),
            "storage": schema.storage.name(),
            "encrypted": key.is_some(),
        })),
        Format::Table => screen.prose(&format!(
            "{} is ready: vectors of {} {} components, compared by {}{}.",
            options.path.display(),
            schema.dimension,
            schema.storage,
            schema.metric.name(),
            if key.is_some() { "; encrypted: whoever loses its key loses it" } else { "" }
        )),
    }
}
