//! Ranking all rows of a search: scores become keys whose rising order is the wanted one, and sorted keys scores again.
//!
//! NaN is the worst score and comes before rows that are filtered out; no other score has either of their keys. Parameters
//! of `Keys`: queries, rows, the rows of all chunks, the first row, the offsets of the filter and of the row norms, the first
//! query. Parameters of `Ranked`: queries, rows, k, the first place to write to, the score of what is missing.

use panoply_core::op::compute::Metric;

use super::prelude::{BITS, ENTRY, KEYS, buffers, params};
use super::select::{finish, score_keys};

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
            RankKernel::Keys { metric, filtered } => keys(metric, filtered),
            RankKernel::Ranked { metric } => {
                let mut text = params(&["lines", "axis", "k", "at", "missing: f32"]);
                text.push_str(&buffers(&[("ids", "u32"), ("scores", "f32")], &[("keys", "u32"), ("order", "u32")]));
                text.push_str(BITS);
                text.push_str(KEYS);
                text.push_str(&score_keys(metric));
                text.push_str(ENTRY);
                text.push_str(RANKED);
                text
            }
        }
    }
}

fn keys(metric: Metric, filtered: bool) -> String {
    let mut text = params(&["lines", "axis", "all", "first", "fo", "no", "qo"]);
    let mut reads = vec![("source", "f32")];
    if filtered {
        reads.push(("bits", "u32"));
    }
    if metric == Metric::Cosine {
        reads.extend([("row_norms", "f32"), ("query_norms", "f32")]);
    }
    text.push_str(&buffers(&[("out", "u32")], &reads));
    text.push_str(BITS);
    text.push_str(KEYS);
    text.push_str(&score_keys(metric));
    text.push_str(finish(metric));
    text.push_str(ENTRY);
    let bit = "  if (((bits[p.fo + (row >> 5u)] >> (row & 31u)) & 1u) == 0u) { key = 0xffffffffu; }";
    text.push_str(&KEYED.replace("$FILTER", if filtered { bit } else { "" }));
    text
}

const KEYED: &str = "
  let i = group * 256u + lid;
  if (i >= p.lines * p.axis) { return; }
  let line = i / p.axis;
  let t = i % p.axis;
  let row = p.first + t;
  // The worst score is NaN, with the key 0, which becomes the last but one.
  var key = ~max(score_key(finish(source[i], t, line)), 1u);
$FILTER
  out[line * p.all + row] = key;
}
";

const RANKED: &str = "
  let i = group * 256u + lid;
  if (i >= p.lines * p.k) { return; }
  let line = i / p.k;
  let j = i % p.k;
  var id = 0xffffffffu;
  var score = p.missing;
  if (j < p.axis) {
    let place = order[line * p.axis + j];
    let key = ~keys[line * p.axis + place];
    if (key == 1u) {
      id = place;
      score = nan_value();
    } else if (key > 1u) {
      id = place;
      score = key_score(key);
    }
  }
  ids[p.at + i] = id;
  scores[p.at + i] = score;
}
";
