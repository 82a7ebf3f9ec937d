//! Candidates of a search with many queries: a matrix product by tiles whose sums are not written. Those whose scores are not worse
//! than the query's limit go to its list.
//!
//! Parameters as in [`super::gemm`], with queries as A, rows as B and no C; in place of the last five the id of the first row, the
//! offsets of the filter, of the row norms and of the query norms, and the places of a list; then how many limits each query has,
//! of which the last counts. Written: pairs of key and id, and how many each list would have. Reads queries, rows, limits
//! (pairs), then filter bits, row norms and query norms where they are needed.

use panoply_core::DType;
use panoply_core::op::compute::Metric;

use super::gemm::{Accumulate, BATCH_SETUP, Hooks, Load, PARAMS, Tile, fetch, tile_kernel};
use super::prelude::{BITS, KEYS, buffers, fill, load, params, zero};
use super::select::{finish, score_keys};

/// The names of the last parameters, the first five in place of those of a product.
const OWN_PARAMS: [&str; 6] = ["first", "fo", "no", "qo", "places", "wanted"];

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
        let names: Vec<&str> =
            PARAMS[..PARAMS.len() + 1 - OWN_PARAMS.len()].iter().copied().chain(OWN_PARAMS).collect();
        let mut text = "alias T = f32;\n".to_owned();
        text.push_str(&params(&names));
        let whole = |load: Load| if load == Load::Single { "f32" } else { "vec4<f32>" };
        let mut reads = vec![("a", whole(self.load_a)), ("b", whole(self.load_b)), ("limits", "vec2<u32>")];
        if self.filtered {
            reads.push(("bits", "u32"));
        }
        if self.metric == Metric::Cosine {
            reads.extend([("row_norms", "f32"), ("query_norms", "f32")]);
        }
        text.push_str(&buffers(&[("lists", "vec2<u32>"), ("counts", "atomic<u32>")], &reads));
        text.push_str(BITS);
        text.push_str(KEYS);
        text.push_str(&score_keys(self.metric));
        text.push_str(finish(self.metric));
        for (name, how) in [("a", self.load_a), ("b", self.load_b)] {
            if how == Load::Single {
                text.push_str(&load(name, DType::F32));
            }
        }
        let allowed = "let id = p.first + t; if (((bits[p.fo + (id >> 5u)] >> (id & 31u)) & 1u) == 0u) { return; }";
        text.push_str(&fill(APPEND, &[("$FILTER", if self.filtered { allowed } else { "" })]));
        let hooks = Hooks {
            zero: zero(DType::F32),
            setup: BATCH_SETUP.to_owned(),
            order_a: self.load_a,
            order_b: self.load_b,
            fetch_a: fetch(self.load_a, 'a', "m", self.tile.unrolled),
            fetch_b: fetch(self.load_b, 'b', "n", self.tile.unrolled),
            store: "    if (row < p.m) { list_four(v, row, col); }".to_owned(),
        };
        text.push_str(&tile_kernel(self.tile, "f32", Accumulate::of(self.metric), &hooks));
        text
    }
}

/// `list_four` lists what is good enough of the sums of a query with four rows.
const APPEND: &str = "
fn list_one(sum: f32, line: u32, t: u32, limit: u32) {
  if (t >= p.n) { return; }
  let key = score_key(finish(sum, t, line));
  if (key < limit) { return; }
  $FILTER
  let place = atomicAdd(&counts[line], 1u);
  if (place < p.places) { lists[line * p.places + place] = vec2<u32>(key, p.first + t); }
}
fn list_four(v: vec4<f32>, line: u32, t: u32) {
  let limit = limits[line * p.wanted + p.wanted - 1u].x;
  list_one(v.x, line, t, limit);
  list_one(v.y, line, t + 1u, limit);
  list_one(v.z, line, t + 2u, limit);
  list_one(v.w, line, t + 3u, limit);
}
";
