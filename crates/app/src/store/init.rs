//! `panoply store init`.

use std::fs::File;
use std::io::Read;

use panoply::Runtime;
use panoply::store::{Error, MasterKey, Options, Store};
use serde_json::json;

use super::commit::{self, Commit, Words};
use super::{at, expect_anchor_apart, keys, start, warn_of_anchor};
use crate::configuration::Format;
use crate::configuration::store::{AnchorPlace, InitOptions, KeySource};
use crate::failure::Failure;
use crate::screen::Screen;
use crate::vectors::path_text;

const WORDS: Words = Words {
    before: "there is no new store",
    after: "the new store is there",
    unknown: "it is unknown whether the new store is there; `panoply store ls` tells",
};

/// First bytes of an anchor.
const ANCHOR: &[u8] = b"panoply store anchor ";

/// Makes an empty store.
pub fn run(options: &InitOptions, screen: &mut Screen) -> Result<(), Failure> {
    let runtime = start()?;
    expect_anchor_apart(&options.place, &options.key)?;
    expect_anchor_free(options)?;
    // A generated key is made together with the store, so that a signal never leaves one without
    // the other.
    let known = match &options.key {
        KeySource::Generated(_) => None,
        source => Some(keys::read_new(source, options.weak_passphrase)?),
    };
    let made = Commit::announced(WORDS).make(|| make(options, known, &runtime));
    let store = made.map_err(|(failure, is_unclear)| match failure {
        Failure::Run(error) => commit::failure(error, is_unclear, WORDS.unknown),
        failure => failure,
    })?;
    screen.note_done(WORDS.after);
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

/// Makes the store, and its key if it is to be generated. On failure, also returns whether the
/// store may exist nevertheless.
fn make(options: &InitOptions, known: Option<MasterKey>, runtime: &Runtime) -> Result<Store, (Failure, bool)> {
    let path = &options.place.path;
    let key = known.map_or_else(|| keys::read_new(&options.key, false), Ok).map_err(|failure| (failure, false))?;
    Store::create(
        runtime,
        path,
        &key,
        at(&options.place, Options { compression: options.compression, ..Options::default() }),
    )
    .map_err(|error| {
        let is_others = matches!(error, Error::AlreadyExists { .. } | Error::InUse { .. });
        let is_unclear = !is_others && path.join("HEAD").symlink_metadata().is_ok();
        if let (false, KeySource::Generated(file)) = (is_unclear, &options.key) {
            // This key opens nothing; the next attempt makes another one.
            let _ = std::fs::remove_file(file);
        }
        (error.into(), is_unclear)
    })
}

/// Refuses an anchor path at which something else exists: a new store's anchor replaces the file.
fn expect_anchor_free(options: &InitOptions) -> Result<(), Failure> {
    let AnchorPlace::File(file) = &options.place.anchor else { return Ok(()) };
    let is_anchor = || {
        let mut begin = Vec::new();
        let read = File::open(file).and_then(|file| file.take(ANCHOR.len() as u64).read_to_end(&mut begin));
        read.is_ok() && begin == ANCHOR
    };
    match file.symlink_metadata() {
        Ok(metadata) if !metadata.is_file() || !is_anchor() => {
            let file = file.display();
            Err(Failure::Usage(format!("--anchor: expected a new file or the anchor of a store, got {file}")))
        }
        _ => Ok(()),
    }
}
