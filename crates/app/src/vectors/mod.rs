//! `panoply vectors`: collections in folders. One module per command; each prints a few lines for people, or one JSON object.

mod compact;
mod count;
mod create;
mod delete;
mod export;
mod get;
mod ids;
mod import;
mod info;
mod repair;
mod search;
mod snapshot;
mod tune;
mod update;

use std::borrow::Cow;
use std::path::Path;

use anyhow::Context;
use panoply::store::MasterKey;
use panoply::vector::formats::{self, ColumnNames, Reader};
use panoply::vector::{Collection, Options, Residency};
use panoply::{DeviceId, DeviceInfo, DeviceKind, Runtime};

use crate::configuration::store::{KeySource, key_of_environment};
use crate::configuration::vectors::{VectorsOption, VectorsOptions};
use crate::failure::Failure;
use crate::screen::Screen;
use crate::store::{keys, private};

/// The most components of queries that are read from one file: 512 MiB of them.
const QUERY_COMPONENTS_MAX: usize = 1 << 27;

/// Does what was asked for.
pub fn run(options: &VectorsOptions, screen: &mut Screen) -> Result<(), Failure> {
    let key = options.key.as_ref();
    match &options.command {
        VectorsOption::Create(options) => create::run(options, key, screen),
        VectorsOption::Import(options) => import::run(options, key, screen),
        VectorsOption::Search(options) => search::run(options, key, screen),
        VectorsOption::Info(options) => info::run(options, key, screen),
        VectorsOption::Tune(options) => tune::run(options, key, screen),
        VectorsOption::Export(options) => export::run(options, key, screen),
        VectorsOption::Delete(options) => delete::run(options, key, screen),
        VectorsOption::Get(options) => get::run(options, key, screen),
        VectorsOption::Count(options) => count::run(options, key, screen),
        VectorsOption::Ids(options) => ids::run(options, key, screen),
        VectorsOption::Update(options) => update::run(options, key, screen),
        VectorsOption::Snapshot(options) => snapshot::run(options, key, screen),
        VectorsOption::Compact(options) => compact::run(options, key, screen),
        VectorsOption::Repair(options) => repair::run(options, key, screen),
    }
}

/// A runtime as `panoply.toml` and the environment say.
pub fn start() -> Result<Runtime, Failure> {
    Ok(Runtime::configured().map_err(anyhow::Error::new)?)
}

/// Where rows must live to be searched on this device: a CPU reads them where they are.
pub fn residency_on(device: &DeviceInfo) -> Residency {
    if device.kind == DeviceKind::Cpu { Residency::Host } else { Residency::Devices(vec![device.id]) }
}

/// The device with this id.
fn device_of(id: DeviceId, runtime: &Runtime) -> Result<&DeviceInfo, Failure> {
    runtime.devices().find(|info| info.id == id).ok_or_else(|| {
        let known: Vec<String> = runtime.devices().map(|info| info.id.to_string()).collect();
        let known = known.join(", ");
        Failure::Usage(format!("--device: expected one of {known}; got {id}. `panoply devices` says what is missing"))
    })
}

/// The collection in a folder, to be looked at beside whoever writes to it, with its rows on the host.
fn open_to_read(path: &Path, key: Option<&KeySource>, runtime: &Runtime) -> Result<Collection, Failure> {
    let options = Options { residency: Residency::Host, key: key_of(path, key)?, ..Options::default() };
    Ok(Collection::open_read_only(runtime, path, options)?)
}

/// The collection in a folder, to be changed, with its rows on the host.
fn open(path: &Path, key: Option<&KeySource>, runtime: &Runtime) -> Result<Collection, Failure> {
    let options = Options { residency: Residency::Host, key: key_of(path, key)?, ..Options::default() };
    Ok(Collection::open(runtime, path, options)?)
}

/// The key of a collection that is there. Where nothing was said of one, an encrypted collection has that of the environment, or asks for it.
fn key_of(path: &Path, key: Option<&KeySource>) -> Result<Option<MasterKey>, Failure> {
    match key {
        Some(source) => read_key(source).map(Some),
        None if Collection::is_encrypted(path)? => read_key(&key_of_environment()).map(Some),
        None => Ok(None),
    }
}

/// Reads a key, in a process that nobody looks into.
fn read_key(source: &KeySource) -> Result<MasterKey, Failure> {
    private::close_process();
    keys::read(source)
}

fn open_file(path: &Path, columns: &ColumnNames) -> Result<Box<dyn Reader>, Failure> {
    Ok(formats::open(path, columns).with_context(|| format!("{} cannot be read", path.display()))?)
}

/// Every vector of a file of queries, one behind the other.
fn queries_of(path: &Path, dimension: usize) -> Result<Vec<f32>, Failure> {
    let mut reader = open_file(path, &ColumnNames::default())?;
    expect_dimension(reader.as_ref(), dimension, &path.display().to_string())?;
    let mut queries = Vec::new();
    let damaged = || format!("{} cannot be read", path.display());
    while let Some(batch) = reader.next_batch(formats::rows_per_batch(dimension)).with_context(damaged)? {
        queries.extend(batch.vectors);
        if queries.len() > QUERY_COMPONENTS_MAX {
            let queries_max = grouped((QUERY_COMPONENTS_MAX / dimension) as u64);
            let problem = anyhow::anyhow!("{} has more than {queries_max} queries", path.display());
            return Err(Failure::Run(problem));
        }
    }
    Ok(queries)
}

fn expect_dimension(reader: &dyn Reader, expected: usize, name: &str) -> Result<(), Failure> {
    match reader.dimension() {
        Some(got) if got != expected => Err(Failure::Run(anyhow::anyhow!(
            "{name} has vectors of {got} components, the collection of {expected}; take another file, or make a \
                 collection with --dimension {got}"
        ))),
        _ => Ok(()),
    }
}

/// A path as JSON can hold it: what is not UTF-8 is replaced.
pub fn path_text(path: &Path) -> Cow<'_, str> {
    path.to_string_lossy()
}

/// A count with its noun, and thousands set apart.
pub fn counted(count: u64, noun: &str) -> String {
    format!("{} {noun}{}", grouped(count), if count == 1 { "" } else { "s" })
}

/// A number with its thousands set apart.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_readable() {
        assert_eq!(counted(1, "record"), "1 record");
        assert_eq!(counted(0, "record"), "0 records");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1,234,567");
    }
}
