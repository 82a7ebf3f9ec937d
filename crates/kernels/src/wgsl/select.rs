//! Select, in `select.wgsl`: the best k of every line, by one workgroup for each line and part.
//!
//! A candidate is a key and an id; the larger key is better, and among equals the smaller id. The workgroup keeps the best
//! k in workgroup memory, sorted, with room behind them: candidates better than the worst of the k are appended, and when
//! the room is short everything is sorted and cut. Once the k are good, hardly any candidate passes.
//!
//! Parameters: lines, the line's length, `inner` (elements behind the axis; for scores, how far apart their rows are), parts per line, elements per part, k, the
//! source's offset, the id of the first element, the offset of the filter, of the row norms and of the query norms, and the
//! score of what is missing, the slots of a line and the first of them to write to. Written: pairs of key and id, `k` for
//! each line and slot, a part taking one slot; or, with `last`, the ids and the scores (only the ids for
//! [`SelectSource::Elements`]), in places `(outer · k + j) · inner + i`.

use panoply_core::DType;
use panoply_core::op::compute::Metric;

use super::prelude::word;
use super::template::Template;

/// The most elements that a select keeps.
pub const SELECT_K_MAX: usize = 512;

/// Where candidates come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SelectSource {
    /// Elements of a tensor, the largest or the smallest of them.
    Elements {
        /// Their type.
        dtype: DType,
        /// The largest are wanted, NaN before all.
        largest: bool,
    },
    /// Sums that become scores of a search, NaN the worst.
    Scores {
        /// How scores are made.
        metric: Metric,
        /// Only rows whose bit is set.
        filtered: bool,
    },
    /// Pairs of lists that may not be full. A list that would have more is taken for empty.
    Lists {
        /// How scores were made.
        metric: Metric,
    },
    /// Pairs of an earlier select.
    Pairs {
        /// The metric whose scores the keys stand for; nothing for elements.
        metric: Option<Metric>,
    },
}

/// One select.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SelectKernel {
    /// Where candidates come from.
    pub source: SelectSource,
    /// Writes results instead of pairs.
    pub last: bool,
    /// Entries of the list: 512 for a k of at most 256, else 1024.
    pub list: u16,
}

/// How many entries a list for this k has.
pub(super) fn list_entries(k: usize) -> u16 {
    if k <= 256 { 512 } else { 1024 }
}

/// Candidates that an invocation takes at once. Most of them are hopeless, which costs one barrier for all.
const TAKEN: usize = 8;

impl SelectKernel {
    /// The select for a k.
    pub fn new(source: SelectSource, last: bool, k: usize) -> SelectKernel {
        SelectKernel { source, last, list: list_entries(k) }
    }

    pub(super) fn source(&self) -> String {
        let template = Template::new(include_str!("select.wgsl")).flag("LAST", self.last);
        let template = template.set("LIST", self.list).set("TAKEN", TAKEN);
        match self.source {
            SelectSource::Elements { dtype, largest } => {
                let template = template.dtype("TYPE", dtype).set("SOURCE", "Elements").set("SOURCE_WORD", word(dtype));
                template.flag("LARGEST", largest).text()
            }
            SelectSource::Scores { metric, filtered } => {
                let template = scored(template, metric, true).flag("SCORED", true).flag("FILTERED", filtered);
                template.set("SOURCE", "Scores").set("SOURCE_WORD", "f32").text()
            }
            SelectSource::Lists { metric } => {
                let template = scored(template, metric, false).flag("SCORED", true);
                template.set("SOURCE", "Lists").set("SOURCE_WORD", "vec2<u32>").text()
            }
            SelectSource::Pairs { metric } => {
                let template = template.set("SOURCE", "Pairs").set("SOURCE_WORD", "vec2<u32>");
                match metric {
                    Some(metric) => scored(template, metric, false).flag("SCORED", true).text(),
                    None => template.text(),
                }
            }
        }
    }
}

/// A kernel that makes keys of scores, or scores of keys; where it `finishes`, also scores of sums.
pub(super) fn scored(template: Template, metric: Metric, finishes: bool) -> Template {
    let template = template.set("METRIC", format!("{metric:?}")).flag("FINISHES", finishes);
    template.flag("NEARER_IS_SMALLER", metric.smaller_is_nearer())
}
