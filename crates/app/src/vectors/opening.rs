//! Opens collections, and the files of vectors and queries.

use std::path::Path;

use anyhow::Context;
use panoply::store::MasterKey;
use panoply::vector::formats::{self, ColumnNames, VectorReader};
use panoply::vector::{Collection, Filter, Options, Residency};
use panoply::{DeviceId, DeviceInfo, Runtime};

use super::text::grouped;
use crate::configuration::store::{KeySource, key_of_environment};
use crate::failure::Failure;
use crate::secrets;
use crate::store::{keys, private};

/// The most components that are read from one file of queries: 512 MiB.
const QUERY_COMPONENTS_MAX: usize = 1 << 27;

/// Starts a runtime with the settings of `panoply.toml` and the environment.
pub fn start() -> Result<Runtime, Failure> {
    Ok(Runtime::configured().map_err(anyhow::Error::new)?)
}

/// Finds the device with this id.
pub fn device_of(id: DeviceId, runtime: &Runtime) -> Result<DeviceInfo, Failure> {
    runtime.devices().find(|info| info.id == id).ok_or_else(|| {
        let known: Vec<String> = runtime.devices().map(|info| info.id.to_string()).collect();
        let known = known.join(", ");
        Failure::Usage(format!("--device: expected one of {known}; got {id}. `panoply devices` says what is missing"))
    })
}

/// Opens the collection in a folder read-only, beside a possible writer, with its rows on the host.
pub(super) fn open_to_read(path: &Path, key: Option<&KeySource>, runtime: &Runtime) -> Result<Collection, Failure> {
    let options = Options { residency: Residency::Host, key: key_of(path, key)?, ..Options::default() };
    Ok(Collection::open_read_only(runtime, path, options)?)
}

/// Opens the collection in a folder for changes, with its rows on the host.
pub(super) fn open(path: &Path, key: Option<&KeySource>, runtime: &Runtime) -> Result<Collection, Failure> {
    let options = Options { residency: Residency::Host, key: key_of(path, key)?, ..Options::default() };
    Ok(Collection::open(runtime, path, options)?)
}

/// Returns the key of an existing collection. Without a key option, the key of an encrypted
/// collection comes from the environment or the terminal. No other secret of the environment is
/// kept.
pub(super) fn key_of(path: &Path, key: Option<&KeySource>) -> Result<Option<MasterKey>, Failure> {
    let key = match key {
        Some(source) => read_key(source).map(Some),
        None if Collection::is_encrypted(path)? => read_key(&key_of_environment()).map(Some),
        None => Ok(None),
    };
    secrets::wipe_unannounced();
    key
}

/// Reads a key, after the process was closed to inspection by others.
fn read_key(source: &KeySource) -> Result<MasterKey, Failure> {
    private::close_process();
    keys::read(source)
}

fn open_file(path: &Path, columns: &ColumnNames) -> Result<Box<dyn VectorReader>, Failure> {
    Ok(formats::open(path, columns).with_context(|| format!("{} cannot be read", path.display()))?)
}

/// Reads all vectors of a file of queries, one after the other.
pub(super) fn queries_of(path: &Path, dimension: usize) -> Result<Vec<f32>, Failure> {
    queries_from(open_file(path, &ColumnNames::default())?, dimension, &path.display().to_string())
}

/// Reads all vectors, one after the other.
pub(super) fn queries_from(
    mut reader: Box<dyn VectorReader>,
    dimension: usize,
    name: &str,
) -> Result<Vec<f32>, Failure> {
    expect_dimension(reader.as_ref(), dimension, name)?;
    let mut queries = Vec::new();
    let damaged = || format!("{name} cannot be read");
    while let Some(batch) = reader.next_batch(formats::rows_per_batch(dimension)).with_context(damaged)? {
        queries.extend(batch.vectors);
        if queries.len() > QUERY_COMPONENTS_MAX {
            let queries_max = grouped((QUERY_COMPONENTS_MAX / dimension) as u64);
            return Err(Failure::Run(anyhow::anyhow!("{name} has more than {queries_max} queries")));
        }
    }
    Ok(queries)
}

/// Refuses a filter that names a field which no record has, or compares a field with a value of a
/// type that the field has in no record.
pub(super) fn check_filter(filter: Option<&Filter>, collection: &Collection) -> Result<(), Failure> {
    Ok(filter.map_or(Ok(()), |filter| collection.check_filter_types(filter))?)
}

pub(super) fn expect_dimension(reader: &dyn VectorReader, expected: usize, name: &str) -> Result<(), Failure> {
    match reader.dimension() {
        Some(got) if got != expected => Err(Failure::Run(anyhow::anyhow!(
            "{name} has vectors of {got} components, the collection of {expected}; take another file, or make a \
                 collection with --dimension {got}"
        ))),
        _ => Ok(()),
    }
}
