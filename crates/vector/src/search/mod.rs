//! Searching: from queries to hits.
//!
//! * `run`: one batch of queries over one snapshot: where rows are searched, and how results are
//!   merged. `hits`: from candidates to hits.
//! * `bits`: the rows that a filter accepts.
//! * `scales`: eight-bit rows under euclidean, grouped by scale.
//! * `direct`: scores of a few rows on the caller's thread.
//! * `placement`: the choice of the devices that hold rows. `resident`: the blocks of one segment's
//!   rows there. `residency`: what is uploaded.
//! * `codes`: eight-bit copies of the rows. `rerank`: candidates from these copies, ranked by the
//!   stored rows.
//! * `ties`: hits of equal score, oldest first.
//! * `types`: the types of the fields that filters compare.
//! * `gather`: single queries of many callers are batched.

mod bits;
mod codes;
pub(crate) mod direct;
pub(crate) mod gather;
pub(crate) mod hits;
pub(crate) mod placement;
mod rerank;
pub(crate) mod residency;
pub(crate) mod resident;
pub(crate) mod run;
mod scales;
pub(crate) mod ties;
mod types;

pub(crate) use bits::{FilterCache, Passing, passes, passing};
pub(crate) use codes::CodesCache;
pub(crate) use rerank::exact_score;
pub(crate) use scales::ScalesCache;
pub(crate) use types::{TypesCache, check_types};

use panoply_core::DeviceId;
use serde_json::Value;

use crate::filter::Filter;

/// The options of a search.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchOptions {
    /// Maximum number of hits.
    pub k: usize,
    /// Only records whose metadata passes the filter.
    pub filter: Option<Filter>,
    /// Number of lists of the index to search. `None`: every row is searched exactly.
    pub nprobe: Option<usize>,
    /// Finds this many times `k` candidates with eight-bit copies of the rows, and ranks the
    /// candidates by the stored rows. The copies are made when a search first needs them, and stay
    /// on the host. `None`: the stored rows are searched directly. Rows stored in eight bits are
    /// always searched directly, since no better rows exist to rank them by.
    pub rerank: Option<usize>,
    /// Number of the nearest hits to skip: the hits of the pages before. Pages with the same `k`
    /// neither repeat nor skip a hit; with `rerank` each page is ranked separately.
    pub offset: usize,
    /// Only hits whose score is at most this (euclidean) or at least this (other metrics). `k`
    /// still limits their number.
    pub within: Option<f32>,
}

impl SearchOptions {
    /// The `k` nearest records, found exactly.
    pub fn new(k: usize) -> SearchOptions {
        SearchOptions { k, filter: None, nprobe: None, rerank: None, offset: 0, within: None }
    }

    /// Skips the nearest `hits` hits.
    pub fn offset(mut self, hits: usize) -> SearchOptions {
        self.offset = hits;
        self
    }

    /// Only hits as near as this score. A `k` of `usize::MAX` returns all of them.
    pub fn within(mut self, score: f32) -> SearchOptions {
        self.within = Some(score);
        self
    }

    /// Only records whose metadata passes the filter.
    pub fn filter(mut self, filter: Filter) -> SearchOptions {
        self.filter = Some(filter);
        self
    }

    /// Searches only this many lists of the index.
    pub fn nprobe(mut self, lists: usize) -> SearchOptions {
        self.nprobe = Some(lists);
        self
    }

    /// Finds candidates with eight-bit copies of the rows, this many times `k`, and ranks them
    /// exactly.
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
    /// Its score, as defined in [`crate::schema`].
    pub score: f32,
    /// Its metadata: an object, or null if it has none.
    pub metadata: Value,
}

/// The result of a search for one query.
#[derive(Clone, Debug)]
pub struct SearchResult {
    /// The hits, nearest first.
    pub hits: Vec<Hit>,
    /// Figures about the search.
    pub report: SearchReport,
}

/// The result of a search for several queries.
#[derive(Clone, Debug)]
pub struct SearchResults {
    /// For each query, its hits, nearest first.
    pub hits: Vec<Vec<Hit>>,
    /// Figures about the search.
    pub report: SearchReport,
}

/// Figures about a search.
#[derive(Clone, Debug, Default)]
pub struct SearchReport {
    /// The devices that searched rows.
    pub devices: Vec<DeviceId>,
    /// Number of rows read, summed over the queries of the batch.
    pub scanned_rows: u64,
    /// Number of rows that should be on a device but did not fit into its memory, and were searched
    /// on the host.
    pub spilled_rows: u64,
    /// Number of queries in the batch, including those of other callers.
    pub batch_size: usize,
    /// Number of ops of the batch. A few rows of an index are searched without an op.
    pub ops: usize,
    /// The error for which a device's rows were searched on the host instead, if any.
    pub fallback: Option<panoply_core::Error>,
}
