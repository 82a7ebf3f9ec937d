//! `panoply store rm`.

use panoply::store::{Error, Options, Store};
use serde_json::json;

use super::commit::{self, Commit, Words};
use super::{open, start, warn_of_anchor};
use crate::configuration::Format;
use crate::configuration::store::RmOptions;
use crate::failure::Failure;
use crate::screen::Screen;
use crate::vectors::{counted, path_text};

const WORDS: Words = Words {
    before: "nothing was removed",
    after: "the objects are removed",
    unknown: "it is unknown whether the objects are removed; `panoply store ls` tells",
};

/// Removes objects, all of them or none.
pub fn run(options: &RmOptions, screen: &mut Screen) -> Result<(), Failure> {
    let runtime = start()?;
    let mut store = open(&options.place, &options.key, Options::default(), &runtime)?;
    let removal = Commit::announced(WORDS);
    let removed = removal.make(|| {
        let removed = remove(&mut store, &options.names);
        removed.map_err(|error| {
            let is_unclear = commit::is_unclear(&error, &mut store);
            (error, is_unclear)
        })
    });
    removed.map_err(|(error, is_unclear)| commit::failure(error, is_unclear, WORDS.unknown))?;
    screen.note_done(WORDS.after);
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

fn remove(store: &mut Store, names: &[String]) -> Result<(), Error> {
    let mut batch = store.batch()?;
    names.iter().try_for_each(|name| batch.remove(name))?;
    batch.commit()
}
