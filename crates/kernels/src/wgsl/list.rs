//! Candidates of a search with many queries, in `search_lists.wgsl`: a tiled matrix product whose
//! sums are not stored. Rows whose scores are within a query's limit are appended to the query's
//! list.
//!
//! Parameters as in [`super::gemm`], with queries as A, rows as B and no C. The last five are
//! replaced by the id of the first row, the offsets of the filter, of the row norms and of the
//! query norms, and the capacity of a list; one more parameter is the number of limits per query,
//! of which the last one applies. Written: pairs of key and id, and the number of candidates of
//! each list, those beyond its capacity included. Reads queries, rows, limits (pairs), then filter
//! bits, row norms and query norms if needed.

use panoply_core::DType;
use panoply_core::op::compute::Metric;

use super::gemm::{Accumulate, Load, Tile, loaded, tiled};
use super::select::scored;
use super::template::Template;

/// Selects the candidates of many queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListKernel {
    /// The access pattern of queries.
    pub load_a: Load,
    /// The access pattern of rows.
    pub load_b: Load,
    /// The metric of the scores.
    pub metric: Metric,
    /// Whether only rows whose bit is set are candidates.
    pub filtered: bool,
    /// The size of a workgroup's tile.
    pub tile: Tile,
}

impl ListKernel {
    pub(super) fn source(&self) -> String {
        let template = Template::new(include_str!("search_lists.wgsl")).set("KERNEL", "Lists").flag("LISTS", true);
        let template = scored(template.dtype("TYPE", DType::F32).set("CARRIER", "f32"), self.metric, true);
        let template = loaded(template, [(DType::F32, self.load_a), (DType::F32, self.load_b)]);
        let template = template.flag("FILTERED", self.filtered);
        tiled(template, self.tile, Accumulate::of(self.metric), [self.load_a, self.load_b]).text()
    }
}
