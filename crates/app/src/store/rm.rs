//! `panoply store rm`.

use panoply::store::{Error, Options, Store};
use serde_json::json;

use super::commit::{self, Commit, Words};
use super::{open, start, warn_of_anchor};
use crate::configuration::Format;
use crate::configuration::store::{Removed, RmOptions};
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
    let names = names(&store, options)?;
    let removal = Commit::announced(WORDS);
    let removed = removal.make(|| {
        let removed = remove(&mut store, &names);
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
            "removed": names.len(),
            "left": left,
            "generation": store.generation(),
        })),
        Format::Table => {
            let removed = counted(names.len() as u64, "object");
            screen.line(format!("{removed} removed; {} left.", counted(left, "object")))
        }
    }
}

fn remove(store: &mut Store, names: &[String]) -> Result<(), Error> {
    let mut batch = store.batch()?;
    names.iter().try_for_each(|name| batch.remove(name))?;
    batch.commit()
}

/// The names of the objects to remove. Fails if one of them does not exist.
fn names(store: &Store, options: &RmOptions) -> Result<Vec<String>, Failure> {
    let with = |prefix: &str| -> Vec<String> {
        store.entries().filter(|entry| entry.name.starts_with(prefix)).map(|entry| entry.name).collect()
    };
    match &options.what {
        Removed::Named(names) => {
            let Some(missing) = names.iter().find(|name| store.get(name).is_none()) else { return Ok(names.clone()) };
            let folder = format!("{}/", missing.trim_end_matches('/'));
            match with(&folder).len() as u64 {
                0 => Err(Error::NoObject { name: missing.clone() }.into()),
                below => Err(Failure::Run(anyhow::anyhow!(
                    "there is no object `{missing}`, but {} below it; --prefix {folder} removes all of them",
                    counted(below, "object")
                ))),
            }
        }
        Removed::Prefix(prefix) => match with(prefix) {
            none if none.is_empty() => Err(Failure::Run(anyhow::anyhow!(
                "no object has a name that begins with `{prefix}`; `panoply store ls` names the objects that are there"
            ))),
            names => Ok(names),
        },
    }
}
