//! `panoply vectors create`.

use panoply::vector::{Collection, Options};
use serde_json::json;

use super::{path_text, start};
use crate::configuration::Format;
use crate::configuration::store::KeySource;
use crate::configuration::vectors::CreateOptions;
use crate::failure::Failure;
use crate::screen::Screen;
use crate::secrets;
use crate::store::commit::{Commit, Words};
use crate::store::{keys, private};

const WORDS: Words = Words {
    before: "there is no new collection",
    after: "the new collection is there",
    unknown: "it is unknown whether the new collection is there; `panoply vectors info` tells",
};

/// Makes an empty collection.
pub fn run(options: &CreateOptions, key: Option<&KeySource>, screen: &mut Screen) -> Result<(), Failure> {
    let runtime = start()?;
    let schema = &options.schema;
    private::close_process();
    // Announced before a key file is made.
    let creation = Commit::announced(WORDS);
    // Read before the collection is created: if the key file exists already, the command fails here
    // and the file stays.
    let master_key = key.map(|key| keys::read_new(key, options.weak_passphrase)).transpose()?;
    secrets::wipe_unannounced();
    let opened = Options { key: master_key, ..Options::default() };
    let create = || {
        let made = Collection::create(&runtime, &options.path, schema.clone(), opened);
        if let (Err(_), Some(KeySource::Generated(file))) = (&made, key) {
            // Removes the new key, which opens nothing. The next attempt makes another one.
            let _ = std::fs::remove_file(file);
        }
        made.and_then(|collection| collection.flush()).map_err(|error| (error, true))
    };
    creation.make(create).map_err(|(error, _)| error)?;
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
