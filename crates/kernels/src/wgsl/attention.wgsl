// Attention by tiles: 64 queries of one head against 32 keys at a time, with a softmax that is corrected as larger scores come.
//
// A workgroup of 16 x 16 invocations has 64 queries and 64 columns of the values; for more columns other workgroups compute the same
// weights again. An invocation has the scores of four queries and two keys, and the sums of four queries and four columns. Scores go
// through workgroup memory, where four invocations make weights of each query's.

struct Params {
  lines: u32,
  tiles: u32,
  parts: u32,
  n_q: u32,
  n_k: u32,
  d: u32,
  d_v: u32,
  causal: u32,
  scale: f32,
  qo: u32,
  qs: u32,
  ko: u32,
  ks: u32,
  vo: u32,
  vs: u32,
  mo: u32,
  mrs: u32,
  mcs: u32,
//# for J in RANK
  d$J: u32,
//# end
//# for J in RANK
  q$J: u32,
//# end
//# for J in RANK
  k$J: u32,
//# end
//# for J in RANK
  v$J: u32,
//# end
//# for J in RANK
  m$J: u32,
//# end
}
@group(0) @binding(0) var<uniform> p: Params;
@group(1) @binding(next) var<storage, read_write> out: array<f32>;
@group(1) @binding(next) var<storage, read> q: array<$TYPE_WORD>;
@group(1) @binding(next) var<storage, read> k: array<$TYPE_WORD>;
@group(1) @binding(next) var<storage, read> v: array<$TYPE_WORD>;
//# if MASKED
@group(1) @binding(next) var<storage, read> mask: array<$MASK_WORD>;
//# end
//# include bits.wgsl
//# include math.wgsl
//# load q TYPE
//# load k TYPE
//# load v TYPE
//# if MASKED
//# load mask MASK
//# end

const PITCH = 33u;
// Four queries at one place of their vectors, or values of one key: four columns each.
var<workgroup> tile: array<vec4<f32>, 256>;
// Two keys at one place.
var<workgroup> tile_k: array<vec2<f32>, 256>;
var<workgroup> weights: array<f32, 2112>;
var<workgroup> shares: array<f32, 256>;
// Of each query the largest score so far, the sum of the weights under it, and what sums before this tile are multiplied with.
var<workgroup> largest: array<f32, 64>;
var<workgroup> total: array<f32, 64>;
var<workgroup> correction: array<f32, 64>;

fn is_lowest(x: f32) -> bool { return bitcast<u32>(x) == 0xff800000u; }
fn weight(score: f32, base: f32) -> f32 {
  if (is_lowest(score)) { return 0.0; }
  return exp_(score - base);
}
// How many keys a query sees.
fn seen(row: u32) -> u32 {
  if (p.causal == 0u) { return p.n_k; }
  let behind = i32(row) + 1 + i32(p.n_k) - i32(p.n_q);
  return min(u32(max(behind, 0)), p.n_k);
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * nwg.x + wid.x;
  if (group >= p.lines * p.tiles * p.parts) { return; }
  let column0 = group % p.parts * 64u;
  // Those that see the most keys come first.
  let row0 = (p.tiles - 1u - group / p.parts % p.tiles) * 64u;
  let line = group / p.parts / p.tiles;
  var q_base = p.qo;
  var k_base = p.ko;
  var v_base = p.vo;
  var m_base = p.mo;
  {
    var t = line;
    var c = 0u;
//# down J in RANK
    c = t % p.d$J; t = t / p.d$J;
    q_base += c * p.q$J; k_base += c * p.k$J; v_base += c * p.v$J; m_base += c * p.m$J;
//# end
  }
  let tx = lid % 16u;
  let ty = lid / 16u;
  if (lid < 64u) {
    largest[lid] = -inf_value();
    total[lid] = 0.0;
  }
  var sum0 = vec4<f32>();
  var sum1 = sum0;
  var sum2 = sum0;
  var sum3 = sum0;
  let end = seen(min(row0 + 64u, p.n_q) - 1u);
  for (var first = 0u; first < end; first = first + 32u) {
    // The scores of four queries and a key each.
    var s0 = vec4<f32>();
    var s1 = s0;
    for (var depth = 0u; depth < p.d; depth = depth + 16u) {
      let at = depth + tx;
      var four = vec4<f32>();
      var two = vec2<f32>();
      if (at < p.d) {
        let row = row0 + ty * 4u;
        if (row < p.n_q) { four.x = ld_q(q_base + row * p.qs + at); }
        if (row + 1u < p.n_q) { four.y = ld_q(q_base + (row + 1u) * p.qs + at); }
        if (row + 2u < p.n_q) { four.z = ld_q(q_base + (row + 2u) * p.qs + at); }
        if (row + 3u < p.n_q) { four.w = ld_q(q_base + (row + 3u) * p.qs + at); }
        let key = first + ty * 2u;
        if (key < p.n_k) { two.x = ld_k(k_base + key * p.ks + at); }
        if (key + 1u < p.n_k) { two.y = ld_k(k_base + (key + 1u) * p.ks + at); }
      }
      // The previous tile has been read.
      workgroupBarrier();
      tile[tx * 16u + (ty ^ tx)] = four;
      tile_k[tx * 16u + (ty ^ tx)] = two;
      workgroupBarrier();
      for (var step = 0u; step < 16u; step = step + 1u) {
        let a = tile[step * 16u + (ty ^ step)];
        let b = tile_k[step * 16u + (tx ^ step)];
        s0 = fma(a, vec4<f32>(b.x), s0);
        s1 = fma(a, vec4<f32>(b.y), s1);
      }
    }
    for (var j = 0u; j < 4u; j = j + 1u) {
      let row = row0 + ty * 4u + j;
      let key = first + tx * 2u;
      var x = s0[j] * p.scale;
      var y = s1[j] * p.scale;
//# if MASKED
      if (row < p.n_q) {
        if (key < p.n_k) { x = x + ld_mask(m_base + row * p.mrs + key * p.mcs); }
        if (key + 1u < p.n_k) { y = y + ld_mask(m_base + row * p.mrs + (key + 1u) * p.mcs); }
      }
//# end
      let limit = seen(min(row, p.n_q - 1u));
      if (key >= limit) { x = -inf_value(); }
      if (key + 1u >= limit) { y = -inf_value(); }
      weights[(ty * 4u + j) * PITCH + tx * 2u] = x;
      weights[(ty * 4u + j) * PITCH + tx * 2u + 1u] = y;
    }
    workgroupBarrier();
    // Four invocations for each query, eight keys for each of them.
    let own = lid / 4u * PITCH + lid % 4u * 8u;
    var top = -inf_value();
    for (var j = 0u; j < 8u; j = j + 1u) { if (weights[own + j] > top) { top = weights[own + j]; } }
    shares[lid] = top;
    workgroupBarrier();
    let before = largest[lid / 4u];
    top = before;
    for (var j = 0u; j < 4u; j = j + 1u) { let x = shares[lid / 4u * 4u + j]; if (x > top) { top = x; } }
    workgroupBarrier();
    // As long as every key is masked there is nothing to subtract.
    let base = select(top, 0.0, is_lowest(top));
    var added = 0.0;
    for (var j = 0u; j < 8u; j = j + 1u) {
      let w = weight(weights[own + j], base);
      weights[own + j] = w;
      added = added + w;
    }
    shares[lid] = added;
    workgroupBarrier();
    if (lid % 4u == 0u) {
      let factor = weight(before, base);
      correction[lid / 4u] = factor;
      largest[lid / 4u] = top;
      total[lid / 4u] = total[lid / 4u] * factor + ((shares[lid] + shares[lid + 1u]) + (shares[lid + 2u] + shares[lid + 3u]));
    }
    for (var half = 0u; half < 2u; half = half + 1u) {
      let key = first + half * 16u + ty;
      let column = column0 + tx * 4u;
      var four = vec4<f32>();
      if (key < p.n_k) {
        let at = v_base + key * p.vs + column;
        if (column < p.d_v) { four.x = ld_v(at); }
        if (column + 1u < p.d_v) { four.y = ld_v(at + 1u); }
        if (column + 2u < p.d_v) { four.z = ld_v(at + 2u); }
        if (column + 3u < p.d_v) { four.w = ld_v(at + 3u); }
      }
      workgroupBarrier();
      tile[lid] = four;
      workgroupBarrier();
      if (half == 0u) {
        sum0 = sum0 * correction[ty * 4u];
        sum1 = sum1 * correction[ty * 4u + 1u];
        sum2 = sum2 * correction[ty * 4u + 2u];
        sum3 = sum3 * correction[ty * 4u + 3u];
      }
      for (var step = 0u; step < 16u; step = step + 1u) {
        let b = tile[step * 16u + tx];
        let w = ty * 4u * PITCH + half * 16u + step;
        sum0 = fma(vec4<f32>(weights[w]), b, sum0);
        sum1 = fma(vec4<f32>(weights[w + PITCH]), b, sum1);
        sum2 = fma(vec4<f32>(weights[w + 2u * PITCH]), b, sum2);
        sum3 = fma(vec4<f32>(weights[w + 3u * PITCH]), b, sum3);
      }
    }
    // The next tile's scores take the place of these weights.
    workgroupBarrier();
  }
  workgroupBarrier();
  for (var j = 0u; j < 4u; j = j + 1u) {
    let row = row0 + ty * 4u + j;
    let column = column0 + tx * 4u;
    var sum = sum0;
    if (j == 1u) { sum = sum1; }
    if (j == 2u) { sum = sum2; }
    if (j == 3u) { sum = sum3; }
    let whole = total[ty * 4u + j];
    // Without keys there are no sums but zeros, even where values that do not count are NaN.
    if (whole == 0.0) { sum = vec4<f32>(); } else { sum = sum / whole; }
    if (row < p.n_q) {
      let at = (line * p.n_q + row) * p.d_v + column;
      if (column < p.d_v) { out[at] = sum.x; }
      if (column + 1u < p.d_v) { out[at + 1u] = sum.y; }
      if (column + 2u < p.d_v) { out[at + 2u] = sum.z; }
      if (column + 3u < p.d_v) { out[at + 3u] = sum.w; }
    }
  }
}
