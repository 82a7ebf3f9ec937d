//! `panoply store`: encrypted stores. One module per command; each prints a few lines for people, or one JSON object.
//!
//! Before a key is read the process is closed to debuggers and core dumps ([`private`]). Ctrl-C may end it at any moment: a store is safe
//! from that, and a file that is being written is removed.

mod bench;
mod get;
mod init;
pub mod keys;
mod ls;
pub mod private;
mod progress;
mod put;
mod rm;
mod rotate;
mod verify;

use std::path::{Path, PathBuf};

use panoply::store::{Options, Store};
use panoply::{Api, Runtime, Settings};

use crate::configuration::store::{AnchorPlace, KeySource, Place, StoreOptions};
use crate::failure::{Failure, warn};
use crate::screen::Screen;

/// Does what was asked for.
pub fn run(options: &StoreOptions, screen: &mut Screen) -> Result<(), Failure> {
    private::close_process();
    match options {
        StoreOptions::Init(options) => init::run(options, screen),
        StoreOptions::Put(options) => put::run(options, screen),
        StoreOptions::Get(options) => get::run(options, screen),
        StoreOptions::Ls(options) => ls::run(options, screen),
        StoreOptions::Cat(options) => get::cat(options),
        StoreOptions::Verify(options) => verify::run(options, screen),
        StoreOptions::Rotate(options) => rotate::run(options, screen),
        StoreOptions::Rm(options) => rm::run(options, screen),
        StoreOptions::Bench(options) => bench::run(options, screen),
    }
}

/// A runtime with the processor alone: what is on the disk comes from the host and goes back there.
fn start() -> Result<Runtime, Failure> {
    let settings = Settings::load().map_err(anyhow::Error::new)?;
    Ok(settings.builder().only([Api::CPU]).build()?)
}

/// Opens a store to be changed.
fn open(place: &Place, key: &KeySource, options: Options, runtime: &Runtime) -> Result<Store, Failure> {
    let store = Store::open(runtime, &place.path, &keys::read(key)?, at(place, options))?;
    warn_of_anchor(&store);
    warn_of_new_anchor(&store);
    Ok(store)
}

/// Opens a store to be read, beside others that read.
fn open_to_read(place: &Place, key: &KeySource, runtime: &Runtime) -> Result<Store, Failure> {
    let store = Store::open_read_only(runtime, &place.path, &keys::read(key)?, at(place, Options::default()))?;
    warn_of_anchor(&store);
    warn_of_new_anchor(&store);
    Ok(store)
}

/// The options with what the place says. Without a place for the anchor, that is said.
fn at(place: &Place, options: Options) -> Options {
    let anchor = match &place.anchor {
        AnchorPlace::None => None,
        AnchorPlace::File(file) => Some(file.clone()),
        AnchorPlace::StateFolder => state_file(&place.path).map_err(warn_of_no_anchor).ok(),
    };
    Options { lock_wait: place.wait, anchor, ..options }
}

fn warn_of_anchor(store: &Store) {
    if let Some(problem) = store.anchor_problem() {
        warn(format!("nobody will notice where an older copy of the store is put back: {problem}"));
    }
}

fn warn_of_no_anchor(reason: String) {
    warn(format!(
        "nobody will notice where an older copy of the store is put back: {reason}; --anchor names a file for that, --no-anchor does without"
    ));
}

/// A store that was moved, or came from elsewhere, or whose anchor somebody has deleted.
fn warn_of_new_anchor(store: &Store) {
    if store.had_no_anchor() {
        let path = store.path().display();
        warn(format!(
            "nothing was known so far of a store at {path}: whether it is an older copy cannot be told; from now on it can"
        ));
    }
}

/// The anchor of a store in the user's state folder: named after the path, so that another store in its place is noticed as well.
fn state_file(store: &Path) -> Result<PathBuf, String> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    let state = state.ok_or_else(|| "neither XDG_STATE_HOME nor HOME names a folder".to_owned())?;
    let folder = state.join("panoply").join("stores");
    std::fs::create_dir_all(&folder).map_err(|error| format!("{} cannot be made: {error}", folder.display()))?;
    let path = place_of(store).ok_or_else(|| format!("{} leads nowhere", store.display()))?;
    // 128 bits of two sums (FNV-1a from two beginnings): names, not proofs.
    let sum = |start: u64| {
        let bytes = path.as_os_str().as_encoded_bytes().iter();
        bytes.fold(start, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
    };
    Ok(folder.join(format!("{:016x}{:016x}", sum(0xcbf2_9ce4_8422_2325), sum(0x9ae1_6a3b_2f90_404f))))
}

/// Where a store is, or will be: the folder above it without links, and its name.
fn place_of(store: &Path) -> Option<PathBuf> {
    let path = std::path::absolute(store).ok()?;
    // A path that ends in `..` has no name, and leads to something that is there.
    match (path.parent(), path.file_name()) {
        (Some(above), Some(name)) => {
            Some(std::fs::canonicalize(above).ok().unwrap_or_else(|| above.to_owned()).join(name))
        }
        _ => std::fs::canonicalize(&path).ok(),
    }
}

/// Whether a path leads into a store.
fn is_within(store: &Path, path: &Path) -> bool {
    let Ok(store) = std::fs::canonicalize(store) else { return false };
    let Ok(path) = std::path::absolute(path) else { return false };
    let there = path.ancestors().find_map(|part| std::fs::canonicalize(part).ok());
    there.is_some_and(|there| there.starts_with(store))
}

/// Bytes in a time, for people.
fn rate_text(bytes: u64, seconds: f64) -> String {
    format!("{}/s", crate::screen::bytes_text((bytes as f64 / seconds.max(1e-9)) as u64))
}
