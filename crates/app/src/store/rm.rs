//! `panoply store rm`.

use panoply::store::Options;
use serde_json::json;

use super::{open, start, warn_of_anchor};
use crate::configuration::Format;
use crate::configuration::store::RmOptions;
use crate::failure::Failure;
use crate::screen::Screen;
use crate::vectors::{counted, path_text};

/// Removes objects, all of them or none.
pub fn run(options: &RmOptions, screen: &mut Screen) -> Result<(), Failure> {
    let runtime = start()?;
    let mut store = open(&options.place, &options.key, Options::default(), &runtime)?;
    let mut batch = store.batch()?;
    options.names.iter().try_for_each(|name| batch.remove(name))?;
    batch.commit()?;
    warn_of_anchor(&store);
    let left = store.entries().count() as u64;
    match options.format {
        Format::Json => screen.json(&json!({
            "path": path_text(&options.place.path),
            "removed": options.names.len(),
            "left": left,
            "generation": store.generation(),
        })),
        Format::Table => {
            let removed = counted(options.names.len() as u64, "object");
            screen.line(format!("{removed} removed; {} left.", counted(left, "object")))
        }
    }
}
