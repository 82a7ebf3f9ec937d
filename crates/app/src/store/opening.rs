//! Opens stores, and warns of their problems.

use panoply::store::{CompressionUse, Error, Options, Store};
use panoply::{Api, DeviceId, RunOptions, Runtime, Settings};
use serde_json::{Value, json};

use super::keys;
use super::places::{BY_ID, is_same_file, is_within, state_file, state_folder};
use crate::configuration::store::{AnchorPlace, KeySource, StorePlace};
use crate::failure::{Failure, warn};
use crate::partial::is_same_place;
use crate::vectors::device_of;

/// A runtime with the CPU only: the data comes from the host's disk and goes back there.
pub(super) fn start() -> Result<Runtime, Failure> {
    let settings = Settings::load().map_err(anyhow::Error::new)?;
    Ok(settings.builder().only([Api::CPU]).build()?)
}

/// A runtime with the CPU, and with the API of the device that compresses, if the user names one.
/// The options require that device.
pub(super) fn start_with(device: Option<DeviceId>) -> Result<(Runtime, RunOptions), Failure> {
    let Some(device) = device else { return Ok((start()?, RunOptions::default())) };
    let settings = Settings::load().map_err(anyhow::Error::new)?;
    let runtime = settings.builder().only([Api::CPU, device.api]).build()?;
    device_of(device, &runtime)?;
    Ok((runtime, RunOptions::require(device)))
}

/// The devices that compressed or decompressed, as JSON.
pub(super) fn uses_json(store: &Store) -> Vec<Value> {
    let row = |CompressionUse { device, compressed, decompressed, fallbacks }| json!({ "device": device.to_string(), "compressed": compressed, "decompressed": decompressed, "fallbacks": fallbacks });
    store.compression_uses().into_iter().map(row).collect()
}

/// The devices that compressed or decompressed, as text.
pub(super) fn uses_text(store: &Store) -> String {
    let uses = store.compression_uses();
    let devices: Vec<String> = uses.iter().map(|used| used.device.to_string()).collect();
    if devices.is_empty() { "none".to_owned() } else { devices.join(", ") }
}

/// Opens a store for writing.
pub(super) fn open(place: &StorePlace, key: &KeySource, options: Options, runtime: &Runtime) -> Result<Store, Failure> {
    expect_anchor_apart(place, key)?;
    let store = Store::open(runtime, &place.path, &keys::read(key)?, at(place, options))?;
    warn_of_anchor(&store);
    warn_of_new_anchor(&store);
    warn_of_damage(&store);
    Ok(store)
}

/// Opens a store read-only, shared with other readers.
pub(super) fn open_to_read(place: &StorePlace, key: &KeySource, runtime: &Runtime) -> Result<Store, Failure> {
    open_to_read_with(place, key, Options::default(), runtime)
}

/// Like [`open_to_read`], with options.
pub(super) fn open_to_read_with(
    place: &StorePlace,
    key: &KeySource,
    options: Options,
    runtime: &Runtime,
) -> Result<Store, Failure> {
    expect_anchor_apart(place, key)?;
    let store = Store::open_read_only(runtime, &place.path, &keys::read(key)?, at(place, options))?;
    warn_of_anchor(&store);
    warn_of_new_anchor(&store);
    warn_of_damage(&store);
    Ok(store)
}

/// Refuses an anchor in the store's own folder, which an older copy of the folder would put back as
/// well, and an anchor that is the key's file.
pub(super) fn expect_anchor_apart(place: &StorePlace, key: &KeySource) -> Result<(), Failure> {
    let AnchorPlace::File(file) = &place.anchor else { return Ok(()) };
    let (own, there) = (std::path::absolute(&place.path), std::path::absolute(file));
    let is_named_within = own.is_ok_and(|own| there.is_ok_and(|there| there.starts_with(own)));
    if is_named_within || is_within(&place.path, file) {
        let got = file.display();
        return Err(Failure::Usage(format!("--anchor: expected a file outside of the store's folder, got {got}")));
    }
    let key = match key {
        KeySource::File(key) | KeySource::PassphraseFile(key) | KeySource::Generated(key) => Some(key),
        KeySource::Environment(_) | KeySource::PassphraseEnvironment(_) | KeySource::Terminal => None,
    };
    if key.is_some_and(|key| is_same_place(key, file) || is_same_file(key, file)) {
        return Err(Failure::Usage("--anchor: expected another file than the key's".to_owned()));
    }
    Ok(())
}

/// Adds the anchor's location to the options. Warns if there is none.
pub(super) fn at(place: &StorePlace, options: Options) -> Options {
    let (anchor, anchor_folder) = match &place.anchor {
        AnchorPlace::None => (None, None),
        AnchorPlace::File(file) => (Some(file.clone()), None),
        AnchorPlace::StateFolder => match state_folder() {
            Ok(folder) => (state_file(&folder, &place.path).map_err(warn_of_no_anchor).ok(), Some(folder.join(BY_ID))),
            Err(reason) => {
                warn_of_no_anchor(reason);
                (None, None)
            }
        },
    };
    let mut passphrase_cost = options.passphrase_cost;
    passphrase_cost.memory_kib = place.passphrase_memory_mib.map_or(passphrase_cost.memory_kib, |mib| mib << 10);
    Options { lock_wait: place.wait, anchor, anchor_folder, passphrase_cost, ..options }
}

pub(super) fn warn_of_anchor(store: &Store) {
    if let Some(problem) = store.anchor_problem() {
        warn(format!("a rollback to an older copy of the store cannot be detected: {problem}"));
    }
}

fn warn_of_no_anchor(reason: String) {
    warn(format!(
        "a rollback to an older copy of the store cannot be detected: {reason}; --anchor names a file for that, --no-anchor does without"
    ));
}

/// Warns about damage that the store was opened in spite of.
fn warn_of_damage(store: &Store) {
    for damage in store.damaged_copies() {
        let comfort = match damage {
            Error::OlderHead { .. } => "the store is at its newest commit, and nothing is lost",
            _ => "its other copy is in order, and nothing is lost, but the disk may be failing",
        };
        warn(format!("{damage}; {comfort}"));
    }
}

/// Warns about a store without an anchor: it was moved, came from elsewhere, or its anchor was
/// deleted.
fn warn_of_new_anchor(store: &Store) {
    if store.had_no_anchor() {
        let path = store.path().display();
        let from_now_on = if store.anchor_problem().is_none() { "; from now on it can" } else { "" };
        warn(format!(
            "nothing was known so far of a store at {path}: whether it is an older copy cannot be told{from_now_on}"
        ));
    }
}

/// A data rate, as text.
pub(super) fn rate_text(bytes: u64, seconds: f64) -> String {
    format!("{}/s", crate::screen::bytes_text((bytes as f64 / seconds.max(1e-9)) as u64))
}
