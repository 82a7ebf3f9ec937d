//! The definition of a collection, and the options for opening one.
//!
//! # Scores
//!
//! | metric | score | nearest |
//! | --- | --- | --- |
//! | dot | the dot product of query and record | largest |
//! | cosine | the cosine of their angle, -1 to 1 | largest |
//! | euclidean | their distance (the root, not its square) | smallest |
//!
//! Scores are computed in `f32` from the stored vectors: with `f16`, `bf16` or `i8` storage they
//! are the scores of the rounded vectors. Hits come nearest first. Rows of equal score come oldest
//! first: in the order in which they were inserted or last replaced. With an index, rows are sorted
//! into lists: equal scores of different lists come in the order of the lists, and equal scores
//! within a list, including equal vectors, come oldest first.
//!
//! A vector's length must not exceed [`LENGTH_MAX`] and, with cosine, must be at least
//! [`LENGTH_MIN`], so that every score is finite; other vectors are refused. With cosine, a query
//! may have any non-zero length. With euclidean, distances below 1e-19 are 0.

use std::fmt;
use std::str::FromStr;

use panoply_core::op::compute::Metric;
use panoply_core::{DType, DeviceId};
use panoply_store::MasterKey;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

pub use crate::encode::{LENGTH_MAX, LENGTH_MIN};

/// Maximum length of a collection's name, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Maximum number of components of a vector.
pub const DIMENSION_MAX: usize = 1 << 16;
/// Maximum length of an id, in bytes.
pub const ID_BYTES_MAX: usize = 1 << 12;
/// Maximum size of the metadata of one record, in bytes of JSON.
pub const METADATA_BYTES_MAX: usize = 1 << 20;

/// The element type in which vectors are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Storage {
    /// Single precision; lossless.
    F32,
    /// Half precision; components up to 65,504.
    F16,
    /// bfloat16: the upper half of single precision.
    Bf16,
    /// Eight bits per component and a scale per vector. Neither is ever rounded again. With
    /// euclidean the scale is a power of two, so steps are up to twice as wide: a search ranks the
    /// rows of one scale at a time, and any other scales would be as many as rows.
    I8,
}

impl Storage {
    /// Every storage type.
    pub const ALL: [Storage; 4] = [Storage::F32, Storage::F16, Storage::Bf16, Storage::I8];

    /// The name used on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Storage::F32 => "f32",
            Storage::F16 => "f16",
            Storage::Bf16 => "bf16",
            Storage::I8 => "i8",
        }
    }

    /// The element type of the stored rows.
    pub const fn dtype(self) -> DType {
        match self {
            Storage::F32 => DType::F32,
            Storage::F16 => DType::F16,
            Storage::Bf16 => DType::BF16,
            Storage::I8 => DType::I8,
        }
    }

    /// Bytes of one component.
    pub const fn size_bytes(self) -> usize {
        match self {
            Storage::F32 => 4,
            Storage::F16 | Storage::Bf16 => 2,
            Storage::I8 => 1,
        }
    }
}

impl fmt::Display for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Storage {
    type Err = Error;

    fn from_str(text: &str) -> Result<Storage> {
        let known = || Storage::ALL.map(Storage::name).join(", ");
        Storage::ALL
            .into_iter()
            .find(|storage| storage.name() == text)
            .ok_or_else(|| Error::invalid("storage type", format!("one of {}", known()), text))
    }
}

/// The definition of a collection. It never changes.
#[derive(Clone, Debug, PartialEq)]
pub struct Schema {
    /// The collection's name.
    pub name: String,
    /// Number of components of each vector.
    pub dimension: usize,
    /// The metric of nearness.
    pub metric: Metric,
    /// The storage type of vectors.
    pub storage: Storage,
}

impl Schema {
    /// A schema with vectors stored as `f32`.
    pub fn new(name: impl Into<String>, dimension: usize, metric: Metric) -> Schema {
        Schema { name: name.into(), dimension, metric, storage: Storage::F32 }
    }

    /// Sets the storage type of vectors.
    pub fn storage(mut self, storage: Storage) -> Schema {
        self.storage = storage;
        self
    }

    /// Bytes of one stored row.
    pub(crate) fn row_bytes(&self) -> usize {
        self.dimension * self.storage.size_bytes()
    }

    /// Checks name and dimension.
    pub(crate) fn validate(&self) -> Result<()> {
        if self.name.is_empty() || self.name.len() > NAME_BYTES_MAX {
            return Err(Error::invalid("name", format!("1 to {NAME_BYTES_MAX} bytes"), self.name.len()));
        }
        if self.dimension == 0 || self.dimension > DIMENSION_MAX {
            return Err(Error::invalid("dimension", format!("1 to {DIMENSION_MAX}"), self.dimension));
        }
        Ok(())
    }
}

/// Parses the name of a metric.
pub fn parse_metric(text: &str) -> Result<Metric> {
    let known = || Metric::ALL.map(Metric::name).join(", ");
    Metric::ALL
        .into_iter()
        .find(|metric| metric.name() == text)
        .ok_or_else(|| Error::invalid("metric", format!("one of {}", known()), text))
}

/// The devices on which rows may be stored.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Residency {
    /// The fastest devices if the collection is large enough for that to pay, else the host. Each
    /// GPU or TPU is used through one API, the fastest there; several share the rows by speed.
    #[default]
    Auto,
    /// These devices, for a collection of any size, in equal shares. A device that cannot search
    /// the rows, or is not ready, holds none.
    Devices(Vec<DeviceId>),
    /// The host alone.
    Host,
}

impl Residency {
    /// Bytes of rows from which [`Residency::Auto`] uses devices. Below this a CPU finishes before
    /// a device has begun.
    pub const AUTO_BYTES_MIN: usize = 8 << 20;
}

/// Options for opening a collection. They are not stored in it.
#[derive(Clone, Debug)]
pub struct Options {
    /// The devices on which rows may be stored.
    pub residency: Residency,
    /// Maximum bytes of rows in one segment. Fewer, larger segments are searched faster.
    pub segment_bytes_max: usize,
    /// Percentage of dead rows from which a segment is compacted in the background.
    pub compact_dead_percent: u32,
    /// Maximum number of single queries in one batch.
    pub batch_queries_max: usize,
    /// Whether an acknowledged write has reached the disk. Without it a crash of the machine (not
    /// of the process) may lose the last writes, but each write is still all or nothing.
    pub durable: bool,
    /// Whether rows that are not checked on opening are compared with their checksums later, in the
    /// background, at about 400 MB/s. If damage is found, every later search returns an error.
    pub check_in_background: bool,
    /// The key of an encrypted collection. A collection created with a key is encrypted.
    pub key: Option<MasterKey>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            residency: Residency::Auto,
            segment_bytes_max: 1 << 30,
            compact_dead_percent: 25,
            batch_queries_max: 256,
            durable: true,
            check_in_background: true,
            key: None,
        }
    }
}
