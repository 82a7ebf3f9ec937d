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
//! * [`filter`]: conditions on metadata.
//! * [`formats`]: files of vectors.
//! * [`error`]: what can go wrong.
#![allow(unsafe_code)] // Memory maps, and append-only memory that readers share with one writer.

pub mod collection;
pub mod error;
pub mod filter;
pub mod formats;
pub mod schema;

pub use collection::Collection;
pub use error::{Error, Result};
pub use filter::Filter;
pub use panoply_core::op::compute::Metric;
pub use schema::{Options, Residency, Schema, Storage};
