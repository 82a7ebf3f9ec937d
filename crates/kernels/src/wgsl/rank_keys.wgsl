// Ranking all rows of a search: sums become keys whose ascending order is the wanted one. NaN is the worst score and comes before rows
// that are filtered out; no other score has either of their keys.

struct Params {
  lines: u32,
  axis: u32,
  all: u32,
  first: u32,
  fo: u32,
  no: u32,
  qo: u32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(1) @binding(next) var<storage, read_write> out: array<u32>;
@group(1) @binding(next) var<storage, read> source: array<f32>;
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

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * nwg.x + wid.x;
  let i = group * 256u + lid;
  if (i >= p.lines * p.axis) { return; }
  let line = i / p.axis;
  let t = i % p.axis;
  let row = p.first + t;
  // The worst score is NaN, with the key 0, which becomes the last but one.
  var key = ~max(score_key(finish(source[i], t, line)), 1u);
//# if FILTERED
  if (((bits[p.fo + (row >> 5u)] >> (row & 31u)) & 1u) == 0u) { key = 0xffffffffu; }
//# end
  out[line * p.all + row] = key;
}
