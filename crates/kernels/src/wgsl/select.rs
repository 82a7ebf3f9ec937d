//! Top-k selection, in `select.wgsl`: the best k of every line, with one workgroup per line and
//! part.
//!
//! A candidate is a key and an id. The larger key is better, and among equal keys the smaller id.
//! The workgroup keeps the best k in workgroup memory, sorted, with free entries after them.
//! Candidates better than the worst of the k are appended. When the free entries run short,
//! everything is sorted and truncated. Once the k are good, hardly any candidate passes.
//!
//! Parameters: lines, the line's length, `inner` (elements after the axis; for scores, the stride
//! between their rows), parts per line, elements per part, k, the source's offset, the id of the
//! first element, the offset of the filter, of the row norms and of the query norms, the score of
//! missing results, the slots of a line and the first of them to write. Written: pairs of key and
//! id, `k` for each line and slot, a part taking one slot; or, with `last`, the ids and the scores
//! (only the ids for [`SelectSource::Elements`]), at index `(outer · k + j) · inner + i`.

use panoply_core::DType;
use panoply_core::op::compute::Metric;

use super::prelude::word;
use super::template::Template;

/// The largest k.
pub const SELECT_K_MAX: usize = 512;

/// The source of candidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SelectSource {
    /// The largest or smallest elements of a tensor.
    Elements {
        /// Their type.
        dtype: DType,
        /// Whether the largest are selected, with NaN first.
        largest: bool,
    },
    /// Sums that become scores of a search, with NaN as the worst.
    Scores {
        /// The metric of the scores.
        metric: Metric,
        /// Whether only rows whose bit is set are candidates.
        filtered: bool,
    },
    /// Pairs in lists that may be partly filled. A list that overflowed counts as empty.
    Lists {
        /// The metric of the scores.
        metric: Metric,
    },
    /// Pairs of an earlier selection.
    Pairs {
        /// The metric whose scores the keys represent. `None` for elements.
        metric: Option<Metric>,
    },
}

/// One selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SelectKernel {
    /// The source of candidates.
    pub source: SelectSource,
    /// Whether to write results instead of pairs.
    pub last: bool,
    /// Entries of the list: 512 for a k of at most 256, else 1024.
    pub list: u16,
}

/// Number of entries of a list for this k.
pub(super) fn list_entries(k: usize) -> u16 {
    if k <= 256 { 512 } else { 1024 }
}

/// Candidates that an invocation takes at once. Most of them fail, so one barrier serves all.
const TAKEN: usize = 8;

impl SelectKernel {
    /// The selection for this k.
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

/// Sets the template values for conversions between keys and scores; with `finishes` also from sums
/// to scores.
pub(super) fn scored(template: Template, metric: Metric, finishes: bool) -> Template {
    let template = template.set("METRIC", format!("{metric:?}")).flag("FINISHES", finishes);
    template.flag("NEARER_IS_SMALLER", metric.smaller_is_nearer())
}
