// One pass over all rows for one query: every row is scored and the best k are kept.
//
// A workgroup takes 256 rows at a time. Eight invocations share eight rows: each reads every eighth vector of four of all of them, so
// that eight loads are on their way at once and neighbours read neighbouring memory; their partial sums meet in workgroup memory, and
// each invocation ends up with the score of one row.
//
// If queries have lists, only those whose list overflowed are searched: workgroups are counted query by query.

struct Params {
  lines: u32,
  axis: u32,
  inner: u32,
  parts: u32,
  part: u32,
  k: u32,
  o: u32,
  first: u32,
  fo: u32,
  no: u32,
  qo: u32,
  missing: f32,
  slots: u32,
  slot: u32,
  dim: u32,
  query_o: u32,
  query_norm_o: u32,
//# if LISTED
  places: u32,
//# end
}
@group(0) @binding(0) var<uniform> p: Params;
//# if LAST
@group(1) @binding(next) var<storage, read_write> out: array<u32>;
//# if SCORED
@group(1) @binding(next) var<storage, read_write> scores: array<f32>;
//# end
//# else
@group(1) @binding(next) var<storage, read_write> out: array<vec2<u32>>;
//# end
@group(1) @binding(next) var<storage, read> rows: array<$ROW_WORDS>;
@group(1) @binding(next) var<storage, read> query: array<$QUERY_WORDS>;
//# if LISTED
@group(1) @binding(next) var<storage, read> counts: array<u32>;
//# end
//# if FILTERED
@group(1) @binding(next) var<storage, read> bits: array<u32>;
//# end
//# if METRIC is Cosine
//# if NORMS_GIVEN
@group(1) @binding(next) var<storage, read> row_norms: array<f32>;
//# end
@group(1) @binding(next) var<storage, read> query_norms: array<f32>;
//# end
//# include bits.wgsl
//# include keys.wgsl
//# include score.wgsl
//# include candidates.wgsl
var<workgroup> partial: array<f32, 2056>;
// The query, counted from the first.
//# if LISTED
var<private> asked: u32;
//# else
const asked = 0u;
//# end

// The quad `c` of a row, or eight elements of it, and the quad `c` of the query.
//# if READ is Eights
fn row8(row: u32, c: u32) -> vec4<u32> { return rows[(p.o + row * p.dim) / 8u + c]; }
fn four(a: u32, b: u32) -> vec4<f32> {
//# if TYPE is f16
  return vec4<f32>(unpack2x16float(a), unpack2x16float(b));
//# else
  return bitcast<vec4<f32>>(vec4<u32>(a << 16u, a & 0xffff0000u, b << 16u, b & 0xffff0000u));
//# end
}
//# end
//# if READ is Fours
fn row4(row: u32, c: u32) -> vec4<f32> {
//# if TYPE is f32
  return rows[(p.o + row * p.dim) / 4u + c];
//# end
//# if TYPE is f16
  let w = rows[(p.o + row * p.dim) / 4u + c];
  return vec4<f32>(unpack2x16float(w.x), unpack2x16float(w.y));
//# end
//# if TYPE is bf16
  let w = rows[(p.o + row * p.dim) / 4u + c];
  return bitcast<vec4<f32>>(vec4<u32>(w.x << 16u, w.x & 0xffff0000u, w.y << 16u, w.y & 0xffff0000u));
//# end
//# if TYPE is i8
  let w = bitcast<i32>(rows[(p.o + row * p.dim) / 4u + c]);
  return vec4<f32>(vec4<i32>(extractBits(w, 0u, 8u), extractBits(w, 8u, 8u), extractBits(w, 16u, 8u), extractBits(w, 24u, 8u)));
//# end
}
//# end
//# if READ is Singles
//# load rows TYPE as f32
fn row4(row: u32, c: u32) -> vec4<f32> {
  let at = p.o + row * p.dim;
  var v = vec4<f32>();
  if (c * 4u < p.dim) { v.x = ld_rows(at + c * 4u); }
  if (c * 4u + 1u < p.dim) { v.y = ld_rows(at + c * 4u + 1u); }
  if (c * 4u + 2u < p.dim) { v.z = ld_rows(at + c * 4u + 2u); }
  if (c * 4u + 3u < p.dim) { v.w = ld_rows(at + c * 4u + 3u); }
  return v;
}
fn query4(c: u32) -> vec4<f32> {
  let at = p.query_o + asked * p.dim;
  var v = vec4<f32>();
  if (c * 4u < p.dim) { v.x = query[at + c * 4u]; }
  if (c * 4u + 1u < p.dim) { v.y = query[at + c * 4u + 1u]; }
  if (c * 4u + 2u < p.dim) { v.z = query[at + c * 4u + 2u]; }
  if (c * 4u + 3u < p.dim) { v.w = query[at + c * 4u + 3u]; }
  return v;
}
//# else
fn query4(c: u32) -> vec4<f32> { return query[(p.query_o + asked * p.dim) / 4u + c]; }
//# end

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * nwg.x + wid.x;
  // Which part of the rows this is, where they end, and for which query.
//# if LISTED
  if (group >= p.parts * p.lines) { return; }
  let part = group % p.parts;
  asked = group / p.parts;
  let line = asked;
  let end = select(0u, p.axis, counts[line] > p.places);
//# else
  if (group >= p.parts) { return; }
  let part = group;
  let line = p.qo;
  let end = p.axis;
//# end
  let chunks = (p.dim + $CHUNKu - 1u) / $CHUNKu;
  let lane = lid % 8u;
  clear_list(lid);
  // Neighbouring workgroups read neighbouring rows, so that all of them sweep over memory together.
  for (var base = part * 256u; base < end; base = base + p.parts * 256u) {
    let row0 = base + lid / 8u * 8u;
//# for R in 8
    // Rows behind the end are read as the last one and not counted.
    let r$R = min(row0 + $Ru, end - 1u);
    var s$R = 0.0;
//# if OWN_NORMS
    var n$R = 0.0;
//# end
//# end
    for (var c = lane; c < chunks; c = c + 8u) {
//# if READ is Eights
      let q = query4(2u * c);
      let q2 = query4(2u * c + 1u);
//# for R in 8
      let w$R = row8(r$R, c);
//# end
//# for R in 8
      let x$R = four(w$R.x, w$R.y);
      let y$R = four(w$R.z, w$R.w);
//# end
//# else
      let q = query4(c);
//# for R in 8
      let x$R = row4(r$R, c);
//# end
//# end
//# for R in 8
//# if METRIC is Euclidean
      { let d = x$R - q; s$R = s$R + dot(d, d); }
//# if READ is Eights
      { let d = y$R - q2; s$R = s$R + dot(d, d); }
//# end
//# else
      s$R = s$R + dot(x$R, q);
//# if READ is Eights
      s$R = s$R + dot(y$R, q2);
//# end
//# end
//# end
//# if OWN_NORMS
//# for R in 8
      n$R = n$R + dot(x$R, x$R);
//# if READ is Eights
      n$R = n$R + dot(y$R, y$R);
//# end
//# end
//# end
    }
    // Sums over the eight invocations that share a row: each gets that of its own.
    let at = (lid % 8u) * 257u + lid / 8u * 8u;
//# for R in 8
    partial[$Ru * 257u + lid] = s$R;
//# end
    workgroupBarrier();
    let sum = ((partial[at] + partial[at + 1u]) + (partial[at + 2u] + partial[at + 3u]))
      + ((partial[at + 4u] + partial[at + 5u]) + (partial[at + 6u] + partial[at + 7u]));
    let t = base + lid;
//# if METRIC is Dot
    let score = sum;
//# end
//# if METRIC is Euclidean
    let score = sqrt(sum);
//# end
//# if METRIC is Cosine
//# if OWN_NORMS
    workgroupBarrier();
//# for R in 8
    partial[$Ru * 257u + lid] = n$R;
//# end
    workgroupBarrier();
    let squares = ((partial[at] + partial[at + 1u]) + (partial[at + 2u] + partial[at + 3u]))
      + ((partial[at + 4u] + partial[at + 5u]) + (partial[at + 6u] + partial[at + 7u]));
    let row_norm = sqrt(squares);
//# else
    let row_norm = row_norms[p.no + p.first + min(t, end - 1u)];
//# end
    let norms = row_norm * query_norms[p.query_norm_o + asked];
    var score = 0.0;
    if (!(norms == 0.0)) { score = sum / norms; }
//# end
    var candidate = vec2<u32>(0u, 0xffffffffu);
//# if FILTERED
    let is_taken = t < end && ((bits[p.fo + ((p.first + t) >> 5u)] >> ((p.first + t) & 31u)) & 1u) == 1u;
//# else
    let is_taken = t < end;
//# end
    if (is_taken) { candidate = vec2<u32>(score_key(score), p.first + t); }
    offer(candidate, p.k);
    let count = waiting(lid);
    if (p.k + count + 256u > $LISTu) { settle(p.k, count, lid); }
  }
  let count = waiting(lid);
  if (count > 0u) { settle(p.k, count, lid); }
  for (var j = lid; j < p.k; j = j + 256u) {
//# if LAST
//# if SCORED
    let at = line * p.k + j;
    out[at] = best[j].y;
    scores[at] = select(key_score(best[j].x), p.missing, best[j].y == 0xffffffffu);
//# else
    out[(outer * p.k + j) * p.inner + i] = best[j].y;
//# end
//# else
    out[(line * p.slots + p.slot + part) * p.k + j] = best[j];
//# end
  }
}
