// Ranking all rows of a search: sorted keys become ids and scores again.

struct Params {
  lines: u32,
  axis: u32,
  k: u32,
  at: u32,
  missing: f32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(1) @binding(next) var<storage, read_write> ids: array<u32>;
@group(1) @binding(next) var<storage, read_write> scores: array<f32>;
@group(1) @binding(next) var<storage, read> keys: array<u32>;
@group(1) @binding(next) var<storage, read> order: array<u32>;
//# include bits.wgsl
//# include keys.wgsl
//# include score.wgsl

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * nwg.x + wid.x;
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
