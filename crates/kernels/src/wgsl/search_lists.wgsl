// Candidates of a search with many queries: a matrix product by tiles whose sums are not written. Those whose scores are not worse than
// the query's limit go to its list. Queries are A, rows are B; each query has `wanted` limits, of which the last counts.

alias T = f32;
//# include product_params.wgsl
@group(1) @binding(next) var<storage, read_write> lists: array<vec2<u32>>;
@group(1) @binding(next) var<storage, read_write> counts: array<atomic<u32>>;
@group(1) @binding(next) var<storage, read> a: array<$WORDS_A>;
@group(1) @binding(next) var<storage, read> b: array<$WORDS_B>;
@group(1) @binding(next) var<storage, read> limits: array<vec2<u32>>;
//# if FILTERED
@group(1) @binding(next) var<storage, read> bits: array<u32>;
//# end
//# if METRIC is Cosine
@group(1) @binding(next) var<storage, read> row_norms: array<f32>;
@group(1) @binding(next) var<storage, read> query_norms: array<f32>;
//# end
//# include bits.wgsl
//# include keys.wgsl
//# include score.wgsl
//# if LOAD_A is Single
//# load a TYPE
//# end
//# if LOAD_B is Single
//# load b TYPE
//# end

// Lists what is good enough of the sums of a query with four rows.
fn list_one(sum: f32, line: u32, t: u32, limit: u32) {
  if (t >= p.n) { return; }
  let key = score_key(finish(sum, t, line));
  if (key < limit) { return; }
//# if FILTERED
  let id = p.first + t;
  if (((bits[p.fo + (id >> 5u)] >> (id & 31u)) & 1u) == 0u) { return; }
//# end
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
//# include tile.wgsl
