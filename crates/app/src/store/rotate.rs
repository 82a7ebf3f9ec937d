//! `panoply store rotate`.

use panoply::store::Options;
use serde_json::json;

use super::{keys, open, start, warn_of_anchor};
use crate::configuration::Format;
use crate::configuration::store::{KeySource, RotateOptions};
use crate::failure::Failure;
use crate::screen::Screen;
use crate::vectors::path_text;

/// Locks the store with another key.
pub fn run(options: &RotateOptions, screen: &mut Screen) -> Result<(), Failure> {
    let runtime = start()?;
    let mut store = open(&options.place, &options.key, Options::default(), &runtime)?;
    let new_key = keys::read_new(&options.new_key)?;
    store.rotate(&new_key)?;
    warn_of_anchor(&store);
    if options.format == Format::Json {
        let path = path_text(&options.place.path);
        return screen.json(&json!({
            "path": path, "generation": store.generation(), "root_keys": store.epochs()
        }));
    }
    screen.line(format!("{} opens with the new key alone.", options.place.path.display()))?;
    match &options.new_key {
        KeySource::Generated(file) => screen
            .prose(&format!("It is in {}. Whoever loses it loses the store: keep a copy elsewhere.", file.display())),
        _ => Ok(()),
    }
}
