//! Ranks all rows of a search, in `rank_keys.wgsl` and `rank_scores.wgsl`: scores become keys whose
//! ascending order is the wanted one, and sorted keys become scores again.
//!
//! NaN is the worst score and comes before rows that are filtered out. Other scores never have the
//! keys of these two. Parameters of `Keys`: queries, rows, the rows of all chunks, the first row,
//! the offsets of the filter and of the row norms, the first query. Parameters of `Ranked`:
//! queries, rows, k, the first position to write, the score of missing results.

use panoply_core::op::compute::Metric;

use super::select::scored;
use super::template::Template;

/// One step of a ranking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RankKernel {
    /// Converts sums to keys. Reads sums, then filter bits, row norms and query norms if needed.
    Keys {
        /// The metric of the scores.
        metric: Metric,
        /// Whether only rows whose bit is set are ranked.
        filtered: bool,
    },
    /// Writes ids and scores of the first k. Reads keys and their order.
    Ranked {
        /// The metric of the scores.
        metric: Metric,
    },
}

impl RankKernel {
    pub(super) fn source(&self) -> String {
        match *self {
            RankKernel::Keys { metric, filtered } => {
                let template = scored(Template::new(include_str!("rank_keys.wgsl")), metric, true);
                template.flag("FILTERED", filtered).text()
            }
            RankKernel::Ranked { metric } => {
                scored(Template::new(include_str!("rank_scores.wgsl")), metric, false).text()
            }
        }
    }
}
