// One pass of a radix sort by eight bits, for devices with subgroups: keys to their places, with their positions.
//
// A subgroup takes a run of neighbouring keys, one for each invocation at a time. Invocations with equal digits find each other by
// voting; the first of them counts for all, in the subgroup's own counters, so that a key's rank is what was counted before plus how
// many of its equals stand before it. Two counters of sixteen bits share a word, digits below 128 the lower half. Keys are put in
// order in workgroup memory first, so that they leave it in runs.

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
var<workgroup> moved: array<u32, $BLOCK>;
var<workgroup> counters: array<atomic<u32>, $SUBGROUPS * 128>;
// Where each digit begins in the block, and how far from there it is to its place in the line.
var<workgroup> begins: array<u32, 256>;
var<workgroup> jumps: array<u32, 256>;
var<workgroup> sums: array<u32, $SUBGROUPS>;

// The invocations of the subgroup whose digit is the same, a bit for each: they vote on the digit's bits.
fn alike(digit: u32) -> u32 {
  var same = 0xffffffffu;
//# for B in 8
  { let one = (digit & (1u << $Bu)) != 0u; let ones = subgroupBallot(one).x; same = same & select(~ones, ones, one); }
//# end
  return same & (0xffffffffu >> (32u - $LANESu));
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(subgroup_id) subgroup: u32, @builtin(subgroup_invocation_id) lane: u32) {
  let group = wid.y * nwg.x + wid.x;
  let lid = subgroup * $LANESu + lane;
  // `base` is the block's first key, `own` this invocation's first, counted from there, `count` the block's keys.
  if (group >= p.lines * p.blocks) { return; }
  let block = group % p.blocks;
  let line = group / p.blocks;
  let start = block * $BLOCKu;
  let base = line * p.axis + start;
  let last = line * p.axis + p.axis - 1u;
  let count = min(p.axis - start, $BLOCKu);
  let own = subgroup * $RUNu + lane;
  let before = (1u << lane) - 1u;
  for (var t = lid; t < $SUBGROUPSu * 128u; t = t + 256u) { atomicStore(&counters[t], 0u); }
//# for J in KEYS
  let key$J = keys[min(base + own + $Ju * $LANESu, last)];
//# end
  workgroupBarrier();
  // Keys behind the end count as the largest digit; they come last and are never stored.
//# for J in KEYS
  let digit$J = select(255u, (key$J >> p.shift) & 255u, own + $Ju * $LANESu < count);
  let half$J = (digit$J >> 7u) * 16u;
  let word$J = subgroup * 128u + (digit$J & 127u);
  let same$J = alike(digit$J);
  let first$J = firstTrailingBit(same$J);
  var counted$J = 0u;
  if (lane == first$J) { counted$J = atomicAdd(&counters[word$J], countOneBits(same$J) << half$J); }
  let rank$J = ((subgroupShuffle(counted$J, first$J) >> half$J) & 0xffffu) + countOneBits(same$J & before);
//# end
  // Every subgroup's counters become what the subgroups before it have counted; then the digits' beginnings are found.
  workgroupBarrier();
  var total = 0u;
  if (lid < 128u) {
    for (var s = 0u; s < $SUBGROUPSu; s = s + 1u) {
      let here = atomicLoad(&counters[s * 128u + lid]);
      atomicStore(&counters[s * 128u + lid], total);
      total = total + here;
    }
  }
  var begin = subgroupExclusiveAdd(total);
  if (lane == $LANESu - 1u) { sums[subgroup] = begin + total; }
  workgroupBarrier();
  var low_total = 0u;
  for (var s = 0u; s < $SUBGROUPSu; s = s + 1u) {
    if (s < subgroup) { begin = begin + sums[s]; }
    low_total = low_total + sums[s];
  }
  low_total = low_total & 0xffffu;
  if (lid < 128u) {
    let low = begin & 0xffffu;
    let high = (begin >> 16u) + low_total;
    begins[lid] = low;
    begins[lid + 128u] = high;
    jumps[lid] = line * p.axis + starts[(line * 256u + lid) * p.blocks + block] - low;
    jumps[lid + 128u] = line * p.axis + starts[(line * 256u + lid + 128u) * p.blocks + block] - high;
  }
  workgroupBarrier();
//# for J in KEYS
  let place$J = begins[digit$J] + ((atomicLoad(&counters[word$J]) >> half$J) & 0xffffu) + rank$J;
//# end
//# for J in KEYS
  moved[place$J] = key$J;
//# end
  workgroupBarrier();
//# for J in KEYS
  var target$J = 0u;
  if (lid + $Ju * 256u < count) {
    let key = moved[lid + $Ju * 256u];
    target$J = jumps[(key >> p.shift) & 255u] + lid + $Ju * 256u;
    out_keys[target$J] = key;
  }
//# end
//# if POSITIONS
  workgroupBarrier();
//# if FIRST
//# for J in KEYS
  moved[place$J] = start + own + $Ju * $LANESu;
//# end
//# else
//# for J in KEYS
  moved[place$J] = positions[min(base + own + $Ju * $LANESu, last)];
//# end
//# end
  workgroupBarrier();
//# for J in KEYS
  if (lid + $Ju * 256u < count) { out_positions[target$J] = moved[lid + $Ju * 256u]; }
//# end
//# end
}
