//! Select: the best k of every line, by one workgroup for each line and part.
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

use super::prelude::{BITS, ENTRY, KEYS, buffers, carrier, fill, load, params, word};

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

const PARAMS: [&str; 14] =
    ["lines", "axis", "inner", "parts", "part", "k", "o", "first", "fo", "no", "qo", "missing: f32", "slots", "slot"];

impl SelectKernel {
    /// The select for a k.
    pub fn new(source: SelectSource, last: bool, k: usize) -> SelectKernel {
        SelectKernel { source, last, list: list_entries(k) }
    }

    pub(super) fn source(&self) -> String {
        let mut text = params(&PARAMS);
        let metric = match self.source {
            SelectSource::Elements { .. } => None,
            SelectSource::Scores { metric, .. } | SelectSource::Lists { metric } => Some(metric),
            SelectSource::Pairs { metric } => metric,
        };
        let mut writes = vec![("out", if self.last { "u32" } else { "vec2<u32>" })];
        if self.last && metric.is_some() {
            writes.push(("scores", "f32"));
        }
        let mut reads = Vec::new();
        let candidate = match self.source {
            SelectSource::Elements { dtype, largest } => {
                reads.push(("source", word(dtype)));
                let key = format!("key_{}(ld_source(p.o + (outer * p.axis + t) * p.inner + i))", carrier(dtype));
                let key = if largest { key } else { format!("~{key}") };
                format!("candidate = vec2<u32>({key}, p.first + t);")
            }
            SelectSource::Scores { metric, filtered } => {
                reads.push(("source", "f32"));
                if filtered {
                    reads.push(("bits", "u32"));
                }
                if metric == Metric::Cosine {
                    reads.extend([("row_norms", "f32"), ("query_norms", "f32")]);
                }
                let taken = "candidate = vec2<u32>(score_key(finish(source[p.o + line * p.axis + t], t * p.inner, line)), p.first + t * p.inner);";
                let bit = "let row = p.first + t * p.inner; if (((bits[p.fo + (row >> 5u)] >> (row & 31u)) & 1u) == 1u) { $TAKEN }";
                if filtered { bit.replace("$TAKEN", taken) } else { taken.to_owned() }
            }
            SelectSource::Lists { .. } => {
                reads.extend([("source", "vec2<u32>"), ("counts", "u32")]);
                "let count = counts[line]; if (t < select(count, 0u, count > p.axis)) { candidate = source[p.o + line * p.axis + t]; }"
                    .to_owned()
            }
            SelectSource::Pairs { .. } => {
                reads.push(("source", "vec2<u32>"));
                "candidate = source[p.o + line * p.axis + t];".to_owned()
            }
        };
        text.push_str(&buffers(&writes, &reads));
        text.push_str(BITS);
        text.push_str(KEYS);
        if let SelectSource::Elements { dtype, .. } = self.source {
            text.push_str(&load("source", dtype));
        }
        if let Some(metric) = metric {
            text.push_str(&score_keys(metric));
        }
        if let SelectSource::Scores { metric, .. } = self.source {
            text.push_str(finish(metric));
        }
        text.push_str(&list(self.list));
        text.push_str(ENTRY);
        let candidates = each(&CANDIDATE.replace("$CANDIDATE", &candidate));
        text.push_str(&fill(
            BODY,
            &[
                ("$CANDIDATES", &candidates),
                ("$HOPEFUL", &each(HOPEFUL)),
                ("$OFFERS", &each(OFFER)),
                ("$STEPS", &each(STEP)),
                ("$TAKEN", &(256 * TAKEN).to_string()),
                ("$LIST", &self.list.to_string()),
            ],
        ));
        text.push_str(&written(self.last, metric.is_some()));
        text
    }
}

/// `fn finish(s, t, line)`: the score that the sum `s` of the row `p.first + t` and the query `p.qo + line` comes to.
pub(super) fn finish(metric: Metric) -> &'static str {
    match metric {
        Metric::Dot => "fn finish(s: f32, t: u32, line: u32) -> f32 { return s; }\n",
        Metric::Euclidean => "fn finish(s: f32, t: u32, line: u32) -> f32 { return sqrt(s); }\n",
        Metric::Cosine => COSINE,
    }
}

const COSINE: &str = "
fn finish(s: f32, t: u32, line: u32) -> f32 {
  let norms = row_norms[p.no + p.first + t] * query_norms[p.qo + line];
  if (norms == 0.0) { return 0.0; }
  return s / norms;
}
";

/// `score_key` and its inverse `key_score`, in which NaN is the worst.
pub(super) fn score_keys(metric: Metric) -> String {
    if metric.smaller_is_nearer() {
        "fn score_key(s: f32) -> u32 { return ~key_f32(s); }\nfn key_score(k: u32) -> f32 { return unkey_f32(~k); }\n"
    } else {
        "fn score_key(s: f32) -> u32 { let k = key_f32(s); if (k == 0xffffffffu) { return 0u; } return k; }
fn key_score(k: u32) -> f32 { if (k == 0u) { return nan_value(); } return unkey_f32(k); }
"
    }
    .to_owned()
}

/// The list of the best, and how it is sorted.
pub(super) fn list(entries: u16) -> String {
    fill(LIST, &[("$HALF", &(entries / 2).to_string()), ("$LIST", &entries.to_string())])
}

const LIST: &str = "
var<workgroup> best: array<vec2<u32>, $LIST>;
var<workgroup> added: atomic<u32>;
var<workgroup> added_now: u32;
var<workgroup> wanted: atomic<u32>;

fn better(a: vec2<u32>, b: vec2<u32>) -> bool { return a.x > b.x || (a.x == b.x && a.y < b.y); }

fn clear_list(lid: u32) {
  for (var t = lid; t < $LISTu; t = t + 256u) { best[t] = vec2<u32>(0u, 0xffffffffu); }
  if (lid == 0u) { atomicStore(&added, 0u); atomicStore(&wanted, 0u); }
  workgroupBarrier();
}

fn offer(candidate: vec2<u32>, k: u32) {
  if (better(candidate, best[k - 1u])) {
    let slot = atomicAdd(&added, 1u);
    best[k + slot] = candidate;
  }
}

// Sorts what is there, best first, and empties the room behind the first k.
fn settle(k: u32, count: u32, lid: u32) {
  for (var t = k + count + lid; t < $LISTu; t = t + 256u) { best[t] = vec2<u32>(0u, 0xffffffffu); }
  workgroupBarrier();
  for (var size = 2u; size <= $LISTu; size = size << 1u) {
    for (var stride = size >> 1u; stride > 0u; stride = stride >> 1u) {
      for (var t = lid; t < $HALFu; t = t + 256u) {
        let low = 2u * t - (t & (stride - 1u));
        let high = low + stride;
        let a = best[low];
        let b = best[high];
        let falling = (low & size) == 0u;
        if (better(b, a) == falling) { best[low] = b; best[high] = a; }
      }
      workgroupBarrier();
    }
  }
  if (lid == 0u) { atomicStore(&added, 0u); }
  workgroupBarrier();
}

// How many candidates wait behind the first k, the same for all invocations.
fn waiting(lid: u32) -> u32 {
  workgroupBarrier();
  if (lid == 0u) { added_now = atomicLoad(&added); }
  return workgroupUniformLoad(&added_now);
}
";

const BODY: &str = "
  if (group >= p.lines * p.parts) { return; }
  let part = group % p.parts;
  let line = group / p.parts;
  let outer = line / p.inner;
  let i = line % p.inner;
  let end = min(p.axis, (part + 1u) * p.part);
  clear_list(lid);
  // How many candidates wait behind the first k, the same number in all invocations.
  var count = 0u;
  for (var base = part * p.part; base < end; base = base + $TAKENu) {
$CANDIDATES
    let worst = best[p.k - 1u];
    var hopeful = 0u;
$HOPEFUL
    if (hopeful > 0u) { atomicAdd(&wanted, hopeful); }
    workgroupBarrier();
    if (lid == 0u) { added_now = atomicLoad(&wanted); }
    let total = workgroupUniformLoad(&added_now);
    if (total > 0u) {
      if (lid == 0u) { atomicStore(&wanted, 0u); }
      if (p.k + count + total <= $LISTu) {
$OFFERS
        count = count + total;
        workgroupBarrier();
      } else {
        if (count > 0u) { settle(p.k, count, lid); }
$STEPS
      }
    }
  }
  if (count > 0u) { settle(p.k, count, lid); }
";

/// What an invocation does with each of the candidates that it takes at once. Most of them are hopeless, which costs one
/// barrier for all.
const CANDIDATE: &str = "
    var c$J = vec2<u32>(0u, 0xffffffffu);
    { let t = base + $OFFSETu + lid; var candidate = c$J; if (t < end) { $CANDIDATE } c$J = candidate; }
";
const HOPEFUL: &str = "    if (better(c$J, worst)) { hopeful = hopeful + 1u; }\n";
const OFFER: &str = "        offer(c$J, p.k);\n";
const STEP: &str = "
        offer(c$J, p.k);
        count = waiting(lid);
        if (p.k + count + 256u > $LISTu) { settle(p.k, count, lid); count = 0u; }
";

/// Candidates that an invocation takes at once.
const TAKEN: usize = 8;

/// The text once for each candidate.
fn each(text: &str) -> String {
    let one = |number: usize| fill(text, &[("$OFFSET", &(256 * number).to_string()), ("$J", &number.to_string())]);
    (0..TAKEN).map(one).collect()
}

/// The last lines: the list's first k to their places.
pub(super) fn written(last: bool, scored: bool) -> String {
    let store = match (last, scored) {
        (false, _) => "out[(line * p.slots + p.slot + part) * p.k + j] = best[j];",
        (true, false) => "out[(outer * p.k + j) * p.inner + i] = best[j].y;",
        (true, true) => {
            "let at = line * p.k + j; out[at] = best[j].y; \
             scores[at] = select(key_score(best[j].x), p.missing, best[j].y == 0xffffffffu);"
        }
    };
    format!("  for (var j = lid; j < p.k; j = j + 256u) {{ {store} }}\n}}\n")
}
