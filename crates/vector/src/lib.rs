//! Vector collections: exact and approximate nearest neighbours, durable, on every device that the runtime has.
//!
//! A [`Collection`] holds vectors of one dimension under string ids, each with JSON metadata, in memory or in a folder.
//! It is searched through `panoply_runtime::Runtime`, so this crate names no backend: rows live on the host or on the
//! devices that a [`Residency`] allows, and a search runs where its rows are.
//!
//! Modules in reading order:
//!
//! * [`schema`]: what a collection is made of, and what its scores mean.
//! * [`collection`]: what a program holds.
//! * [`search`]: what is wanted of a search, and what it finds.
//! * [`filter`]: conditions on metadata.
//! * [`formats`]: files of vectors.
//! * [`error`] and [`task`]: what can go wrong, and what can be awaited.
//! * `state`, `writer`: what a collection's threads share, and the one thread that changes it.
//! * `segment`, `record`, `region`, `source`, `encode`, `folder`: how rows, ids and metadata are stored. `sealed`: the same, encrypted.
//! * [`ivf`] and `compact`: the index, and giving space back.
//! * [`repair`]: mending what was damaged.
//!
//! # Why a log of its own
//!
//! Vectors are written once, to where they are searched: a rows file that is mapped into memory. Beside it lies a log of
//! ids, metadata and removals, whose entries are also where ids and metadata live; an embedded store (redb, fjall)
//! would write all of that a second time, and vectors as well if a batch is to be atomic, for an order of keys that nothing
//! here asks for. Million-row ingest is then bound by the disk, and one wait for it serves a whole group of writes.
#![allow(unsafe_code)] // Memory maps, and append-only memory that readers share with one writer.

pub mod collection;
mod compact;
mod encode;
pub mod error;
pub mod filter;
mod folder;
pub mod formats;
#[doc(hidden)]
pub mod fuzzing;
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

pub use collection::{Collection, Entries, Entry, Page, RecallRow, Stats};
pub use compact::Compaction;
pub use error::{Error, Result};
pub use filter::Filter;
pub use ivf::{IndexOptions, IndexReport};
pub use panoply_core::op::compute::Metric;
pub use repair::Repair;
pub use schema::{Options, Residency, Schema, Storage};
pub use search::{Found, FoundMany, Hit, SearchOptions, SearchReport};
pub use task::Task;
