//! Vector collections: exact and approximate nearest-neighbour search, durable, on every device of
//! the runtime.
//!
//! A [`Collection`] holds vectors of one dimension under string ids, each with JSON metadata, in
//! memory or in a folder. Searches run through `panoply_runtime::Runtime`, so this crate names no
//! backend: rows are on the host or on the devices that a [`Residency`] allows, and a search runs
//! where its rows are.
//!
//! Modules in reading order:
//!
//! * [`schema`]: the definition of a collection and the meaning of its scores.
//! * [`collection`]: the handle that a program holds.
//! * `embedding_model`: the model that computed the vectors.
//! * [`search`]: the options and results of a search.
//! * [`filter`]: conditions on metadata.
//! * [`formats`]: files of vectors.
//! * [`error`] and [`task`]: errors, and results that can be awaited.
//! * `state`, `writer`: the state that a collection's threads share, and the one thread that
//!   changes it.
//! * `segment`, `record`, `region`, `source`, `encode`, `folder`: the storage of rows, ids and
//!   metadata. `sealed`: encrypted storage. `held_log`: the lock on the log
//!   that grows.
//! * [`ivf`] and `compact`: the index, and the reclaiming of space.
//! * [`repair`]: the repair of damaged folders.
//!
//! # Why a log of its own
//!
//! Vectors are written once, to the place where they are searched: a rows file that is mapped into
//! memory. A log beside the file holds ids, metadata and removals, and searches read ids and
//! metadata from the log itself. An embedded store (redb, fjall) would write all of that a second
//! time, and the vectors too if a batch is to be atomic, to provide a key order that nothing here
//! needs. Million-row ingest is therefore limited by the disk, and one disk sync serves a whole
//! group of writes.
#![allow(unsafe_code)] // Memory maps, and append-only memory that readers share with one writer.

pub mod collection;
mod compact;
mod embedding_model;
mod encode;
pub mod error;
pub mod filter;
mod folder;
pub mod formats;
#[doc(hidden)]
pub mod fuzzing;
mod held_log;
pub mod ivf;
mod record;
mod region;
pub mod repair;
pub mod schema;
mod sealed;
pub mod search;
mod segment;
mod source;
mod state;
pub mod task;
mod writer;

pub use collection::{Collection, Entries, Page, RecallRow, Stats, StoredRecord};
pub use compact::Compaction;
pub use embedding_model::EmbeddingModel;
pub use error::{Error, Result};
pub use filter::Filter;
pub use ivf::{IndexOptions, IndexReport};
pub use panoply_core::op::compute::Metric;
pub use repair::Repair;
pub use schema::{Options, Residency, Schema, Storage};
pub use search::placement::{DevicePlacement, PlacementVerdict};
pub use search::{Hit, SearchOptions, SearchReport, SearchResult, SearchResults};
pub use task::Task;
