//! Ranking all rows of a search, in `rank_keys.wgsl` and `rank_scores.wgsl`: scores become keys whose rising order is the wanted one, and sorted keys scores again.
//!
//! NaN is the worst score and comes before rows that are filtered out; no other score has either of their keys. Parameters
//! of `Keys`: queries, rows, the rows of all chunks, the first row, the offsets of the filter and of the row norms, the first
//! query. Parameters of `Ranked`: queries, rows, k, the first place to write to, the score of what is missing.

use panoply_core::op::compute::Metric;

use super::select::scored;
use super::template::Template;

/// One step of a ranking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RankKernel {
    /// Sums become keys. Reads sums, then filter bits, row norms and query norms where they are needed.
    Keys {
        /// How scores are made.
        metric: Metric,
        /// Only rows whose bit is set.
        filtered: bool,
    },
    /// Writes ids and scores of the first k. Reads keys and their order.
    Ranked {
        /// How scores were made.
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
