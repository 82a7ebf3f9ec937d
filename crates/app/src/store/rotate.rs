//! `panoply store rotate`.

use panoply::store::Options;
use serde_json::json;

use super::commit::{self, Commit, Words};
use super::{keys, open, start, warn_of_anchor};
use crate::configuration::Format;
use crate::configuration::store::{KeySource, RotateOptions};
use crate::failure::Failure;
use crate::screen::Screen;
use crate::vectors::path_text;

const WORDS: Words = Words {
    before: "the store opens with the old key",
    after: "the store opens with the new key alone",
    unknown: "it is unknown whether the store opens with the old key or with the new one: keep both, and try",
};

/// Locks the store with another key.
pub fn run(options: &RotateOptions, screen: &mut Screen) -> Result<(), Failure> {
    let runtime = start()?;
    let how = Options { compression: options.compression, ..Options::default() };
    let mut store = open(&options.place, &options.key, how, &runtime)?;
    // Announced before a key file is made.
    let rotation = Commit::announced(WORDS);
    let new_key = keys::read_new(&options.new_key, options.weak_passphrase)?;
    let rotated = rotation.make(|| {
        let rotated = store.rotate(&new_key);
        rotated.map_err(|error| {
            let is_unclear = commit::is_unclear(&error, &mut store);
            (error, is_unclear)
        })
    });
    rotated.map_err(|(error, is_unclear)| commit::failure(error, is_unclear, WORDS.unknown))?;
    screen.note_done(WORDS.after);
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
