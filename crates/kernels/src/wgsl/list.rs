//! Candidates of a search with many queries, in `search_lists.wgsl`: a matrix product by tiles whose sums are not written. Those whose scores are not worse
//! than the query's limit go to its list.
//!
//! Parameters as in [`super::gemm`], with queries as A, rows as B and no C; in place of the last five the id of the first row, the
//! offsets of the filter, of the row norms and of the query norms, and the places of a list; then how many limits each query has,
//! of which the last counts. Written: pairs of key and id, and how many each list would have. Reads queries, rows, limits
//! (pairs), then filter bits, row norms and query norms where they are needed.

use panoply_core::DType;
use panoply_core::op::compute::Metric;

use super::gemm::{Accumulate, Load, Tile, loaded, tiled};
use super::select::scored;
use super::template::Template;

/// The candidates of many queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListKernel {
    /// How queries are read.
    pub load_a: Load,
    /// How rows are read.
    pub load_b: Load,
    /// How scores are made.
    pub metric: Metric,
    /// Only rows whose bit is set.
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
