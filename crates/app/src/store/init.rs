//! `panoply store init`.

use panoply::store::{Options, Store};
use serde_json::json;

use super::{at, keys, start, warn_of_anchor};
use crate::configuration::Format;
use crate::configuration::store::{InitOptions, KeySource};
use crate::failure::Failure;
use crate::screen::Screen;
use crate::vectors::path_text;

/// Makes an empty store.
pub fn run(options: &InitOptions, screen: &mut Screen) -> Result<(), Failure> {
    let runtime = start()?;
    let key = keys::read_new(&options.key)?;
    let made = Store::create(&runtime, &options.place.path, &key, at(&options.place, Options::default()));
    if let (Err(_), KeySource::Generated(file)) = (&made, &options.key) {
        // A key that opens nothing; the next attempt makes another one.
        let _ = std::fs::remove_file(file);
    }
    let store = made?;
    warn_of_anchor(&store);
    match options.format {
        Format::Json => screen.json(&json!({ "path": path_text(&options.place.path), "id": store.id() })),
        Format::Table => {
            screen.line(format!("{} is ready.", options.place.path.display()))?;
            match &options.key {
                KeySource::Generated(file) => screen.prose(&format!(
                    "Its key is in {}. Whoever loses it loses the store: keep a copy elsewhere.",
                    file.display()
                )),
                _ => Ok(()),
            }
        }
    }
}
