//! Searching: from queries to hits.
//!
//! * `run`: one batch of queries over one snapshot: which rows are searched where, and how the findings are merged.
//! * `bits`: which rows a filter lets through.
//! * `scales`: rows of eight bits under euclidean, by their scales.
//! * `direct`: scores of a few rows on the caller's thread.
//! * `residency`: which rows live on which device.
//! * `rerank`: candidates from eight-bit copies of the rows, ranked by the rows themselves.
//! * `ties`: hits of equal score, oldest first.
//! * `gather`: single queries of many callers become one batch.

mod bits;
pub(crate) mod direct;
pub(crate) mod gather;
mod rerank;
pub(crate) mod residency;
pub(crate) mod run;
mod scales;
pub(crate) mod ties;

pub(crate) use bits::{FilterCache, Passing, passes, passing};
pub(crate) use rerank::{CodesCache, exact_score};
pub(crate) use scales::ScalesCache;

use panoply_core::DeviceId;
use serde_json::Value;

use crate::filter::Filter;

/// What is wanted of a search.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchOptions {
    /// How many hits at most.
    pub k: usize,
    /// Only records whose metadata passes.
    pub filter: Option<Filter>,
    /// How many lists of the index to search. `None`: every row is searched, exactly.
    pub nprobe: Option<usize>,
    /// Finds this many times `k` candidates with eight-bit copies of the rows, and ranks those by the stored rows. The
    /// copies are made when a search first asks for them, and live on the host. `None`: stored rows are searched directly, as
    /// are those that are stored in eight bits: there is nothing better to rank them by.
    pub rerank: Option<usize>,
    /// How many of the nearest hits to leave out: those of the pages before. Pages with the same `k` repeat no hit and leave
    /// none out; with `rerank` each page is ranked for itself.
    pub offset: usize,
    /// Only hits whose score is at most this under euclidean, at least this otherwise. `k` still bounds their number.
    pub within: Option<f32>,
}

impl SearchOptions {
    /// The `k` nearest records, found exactly.
    pub fn new(k: usize) -> SearchOptions {
        SearchOptions { k, filter: None, nprobe: None, rerank: None, offset: 0, within: None }
    }

    /// Leaves out so many of the nearest hits.
    pub fn offset(mut self, hits: usize) -> SearchOptions {
        self.offset = hits;
        self
    }

    /// Only hits as near as this score. With a `k` of `usize::MAX`, all of them.
    pub fn within(mut self, score: f32) -> SearchOptions {
        self.within = Some(score);
        self
    }

    /// Only records whose metadata passes.
    pub fn filter(mut self, filter: Filter) -> SearchOptions {
        self.filter = Some(filter);
        self
    }

    /// Searches this many lists of the index only.
    pub fn nprobe(mut self, lists: usize) -> SearchOptions {
        self.nprobe = Some(lists);
        self
    }

    /// Finds candidates with eight-bit copies of the rows, this many times `k`, and ranks them exactly.
    pub fn rerank(mut self, times: usize) -> SearchOptions {
        self.rerank = Some(times);
        self
    }
}

/// A record that a search found.
#[derive(Clone, Debug, PartialEq)]
pub struct Hit {
    /// The record's id.
    pub id: String,
    /// Its score; [`crate::schema`] says what it means.
    pub score: f32,
    /// Its metadata: an object, or null where it has none.
    pub metadata: Value,
}

/// What a search for one query found.
#[derive(Clone, Debug)]
pub struct Found {
    /// The hits, nearest first.
    pub hits: Vec<Hit>,
    /// How they were found.
    pub report: SearchReport,
}

/// What a search for several queries found.
#[derive(Clone, Debug)]
pub struct FoundMany {
    /// For each query its hits, nearest first.
    pub hits: Vec<Vec<Hit>>,
    /// How they were found.
    pub report: SearchReport,
}

/// How a search went.
#[derive(Clone, Debug, Default)]
pub struct SearchReport {
    /// The devices that searched rows.
    pub devices: Vec<DeviceId>,
    /// Rows that were looked at, summed over the queries of the batch.
    pub scanned_rows: u64,
    /// Rows that should have been on a device, did not fit into its memory, and were searched on the host.
    pub spilled_rows: u64,
    /// How many queries were searched together, those of other callers included.
    pub batch_size: usize,
    /// How many ops the batch took. A few rows of an index are searched without one.
    pub ops: usize,
    /// Why rows of a device were searched on the host instead, where that happened.
    pub fallback: Option<panoply_core::Error>,
}
