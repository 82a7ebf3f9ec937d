//! Search for one query, in `search.wgsl`: scores every row and keeps the best k, in one pass over
//! the rows.
//!
//! A workgroup takes 256 rows at a time. Eight invocations share eight rows: each reads every
//! eighth vector of four of all of them, so that eight loads are in flight at once and adjacent
//! invocations read adjacent memory. Their partial sums are combined in workgroup memory, and each
//! invocation gets the score of one row. The best k are kept as in [`super::select`].
//!
//! Parameters as in [`super::select`], with the rows as the axis and the query's line in place of
//! the query norms' offset, then the vectors' length and the offsets of the query and of its norm.
//! Reads rows, query (f32), then filter bits, row norms and the query's norm if needed.
//!
//! With `listed`, only queries whose list overflowed are searched. Workgroups are counted query by
//! query, and the capacity of a list is one more parameter. The number of candidates of each list
//! is read after the query. Other queries get no results.

use panoply_core::DType;
use panoply_core::op::compute::Metric;

use super::prelude::word;
use super::select::{list_entries, scored};
use super::template::Template;

/// A pass over all rows for one query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SearchKernel {
    /// The type of the rows: f32, f16, bf16 or i8.
    pub rows: DType,
    /// The metric of the scores.
    pub metric: Metric,
    /// Whether only rows whose bit is set are searched.
    pub filtered: bool,
    /// Whether row norms are given. Otherwise the cosine metric computes them on the fly.
    pub norms_given: bool,
    /// Whether rows and query are read in vectors of four: lengths and offsets are multiples of
    /// four.
    pub quads: bool,
    /// Whether rows of f16 or bf16 are read eight elements at a time: their lengths and offset are
    /// multiples of eight, the query's of four.
    pub octs: bool,
    /// Whether to write results instead of pairs.
    pub last: bool,
    /// Whether to search only queries whose lists overflowed.
    pub listed: bool,
    list: u16,
}

/// Computes the norms of vectors, in `norms.wgsl`. Parameters: rows, their length, the offset, and
/// the position of the first norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NormKernel {
    /// The type of the vectors.
    pub dtype: DType,
}

impl SearchKernel {
    /// The kernel for a k of at most 256. The vectors' length and the rows' offset are multiples of
    /// `aligned_to`. The query's offset is a multiple of four if `aligned_to` is.
    pub fn new(
        rows: DType,
        metric: Metric,
        filtered: bool,
        norms_given: bool,
        aligned_to: usize,
        last: bool,
    ) -> SearchKernel {
        let octs = aligned_to.is_multiple_of(8) && rows.size_bytes() == 2;
        let quads = aligned_to.is_multiple_of(4);
        SearchKernel { rows, metric, filtered, norms_given, quads, octs, last, listed: false, list: list_entries(1) }
    }

    pub(super) fn source(&self) -> String {
        let (read, row_words) = match (self.octs, self.quads, self.rows) {
            (true, ..) => ("Eights", "vec4<u32>"),
            (_, true, DType::F32) => ("Fours", "vec4<f32>"),
            (_, true, DType::F16 | DType::BF16) => ("Fours", "vec2<u32>"),
            (_, true, dtype) => ("Fours", word(dtype)),
            (_, _, dtype) => ("Singles", word(dtype)),
        };
        let template = scored(Template::new(include_str!("search.wgsl")), self.metric, false).dtype("TYPE", self.rows);
        let template = template.set("READ", read).set("ROW_WORDS", row_words);
        let template = template.set("QUERY_WORDS", if self.quads { "vec4<f32>" } else { "f32" });
        let template = template.set("CHUNK", if self.octs { 8 } else { 4 }).set("LIST", self.list);
        let template = template.flag("FILTERED", self.filtered).flag("NORMS_GIVEN", self.norms_given);
        let own_norms = self.metric == Metric::Cosine && !self.norms_given;
        let template = template.flag("OWN_NORMS", own_norms).flag("LISTED", self.listed);
        template.flag("LAST", self.last).flag("SCORED", true).text()
    }
}

impl NormKernel {
    pub(super) fn source(&self) -> String {
        Template::new(include_str!("norms.wgsl")).dtype("TYPE", self.dtype).text()
    }
}
