// One pass of a radix sort by four bits: keys to their places, with their positions. The first pass makes positions up.
//
// Each invocation owns eight neighbouring keys and a counter for each digit; two counters of sixteen bits share a word, digits below
// eight the lower half. A scan of the counters gives every key its place in the block; keys are put in order in workgroup memory
// first, so that they leave it in runs.

struct Params {
  lines: u32,
  axis: u32,
  blocks: u32,
  shift: u32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(1) @binding(next) var<storage, read_write> out_keys: array<u32>;
//# if POSITIONS
@group(1) @binding(next) var<storage, read_write> out_positions: array<u32>;
//# end
@group(1) @binding(next) var<storage, read> keys: array<u32>;
@group(1) @binding(next) var<storage, read> starts: array<u32>;
//# if POSITIONS
//# if not FIRST
@group(1) @binding(next) var<storage, read> positions: array<u32>;
//# end
//# end
var<workgroup> moved: array<u32, 2048>;
var<workgroup> counters: array<u32, 2048>;
var<workgroup> sums: array<u32, 256>;

fn place_of(digit: u32, lid: u32, low_total: u32) -> u32 {
  let word = counters[(digit & 7u) * 256u + lid];
  return select(word & 0xffffu, (word >> 16u) + low_total, digit >= 8u);
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * nwg.x + wid.x;
  if (group >= p.lines * p.blocks) { return; }
  let block = group % p.blocks;
  let line = group / p.blocks;
  let start = block * 2048u;
  let base = line * p.axis + start;
  let last = line * p.axis + p.axis - 1u;
  let count = min(p.axis - start, 2048u);
  for (var t = 0u; t < 8u; t = t + 1u) { counters[t * 256u + lid] = 0u; }
//# for J in KEYS
  let key$J = keys[min(base + lid * 8u + $Ju, last)];
//# end
  // Keys behind the end count as the largest digit; they come last and are never stored.
//# for J in KEYS
  let digit$J = select(15u, (key$J >> p.shift) & 15u, lid * 8u + $Ju < count);
  let word$J = (digit$J & 7u) * 256u + lid;
  let half$J = (digit$J >> 3u) * 16u;
  let before$J = (counters[word$J] >> half$J) & 0xffffu;
  counters[word$J] = counters[word$J] + (1u << half$J);
//# end
  workgroupBarrier();
  var own = 0u;
  for (var t = 0u; t < 8u; t = t + 1u) { own = own + counters[lid * 8u + t]; }
  sums[lid] = own;
  workgroupBarrier();
  for (var s = 1u; s < 256u; s = s << 1u) {
    var value = sums[lid];
    if (lid >= s) { value = value + sums[lid - s]; }
    workgroupBarrier();
    sums[lid] = value;
    workgroupBarrier();
  }
  var running = sums[lid] - own;
  for (var t = 0u; t < 8u; t = t + 1u) {
    let here = counters[lid * 8u + t];
    counters[lid * 8u + t] = running;
    running = running + here;
  }
  let low_total = sums[255] & 0xffffu;
  workgroupBarrier();
//# for J in KEYS
  let rank$J = place_of(digit$J, lid, low_total) + before$J;
//# end
//# for J in KEYS
  moved[rank$J] = key$J;
//# end
  workgroupBarrier();
//# for J in KEYS
  var target$J = 0u;
  if (lid + $Ju * 256u < count) {
    let key = moved[lid + $Ju * 256u];
    let digit = (key >> p.shift) & 15u;
    target$J = line * p.axis + starts[(line * 16u + digit) * p.blocks + block] + (lid + $Ju * 256u - place_of(digit, 0u, low_total));
    out_keys[target$J] = key;
  }
//# end
//# if POSITIONS
  workgroupBarrier();
//# if FIRST
//# for J in KEYS
  moved[rank$J] = start + lid * 8u + $Ju;
//# end
//# else
//# for J in KEYS
  let position$J = positions[min(base + lid * 8u + $Ju, last)];
//# end
//# for J in KEYS
  moved[rank$J] = position$J;
//# end
//# end
  workgroupBarrier();
//# for J in KEYS
  if (lid + $Ju * 256u < count) { out_positions[target$J] = moved[lid + $Ju * 256u]; }
//# end
//# end
}
