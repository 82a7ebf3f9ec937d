// For each key of a sorted piece, how many keys of another sorted piece of the same line come before it. Equal keys of an earlier
// piece come first.

struct Params {
  n: u32,
  others_n: u32,
  first: u32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(1) @binding(next) var<storage, read_write> ranks: array<u32>;
@group(1) @binding(next) var<storage, read> keys: array<u32>;
@group(1) @binding(next) var<storage, read> others: array<u32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * nwg.x + wid.x;
  let i = group * 256u + lid;
  if (i >= p.n) { return; }
  let key = keys[i];
  var low = 0u;
  var high = p.others_n;
  while (low < high) {
    let middle = (low + high) / 2u;
//# if BEFORE
    let is_before = others[middle] <= key;
//# else
    let is_before = others[middle] < key;
//# end
    if (is_before) { low = middle + 1u; } else { high = middle; }
  }
  if (p.first == 1u) { ranks[i] = i + low; } else { ranks[i] = ranks[i] + low; }
}
