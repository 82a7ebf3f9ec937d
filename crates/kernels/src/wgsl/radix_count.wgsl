// One pass of a radix sort by eight bits, for devices with subgroups: how often each digit occurs, for each line, digit and block.

struct Params {
  lines: u32,
  axis: u32,
  blocks: u32,
  shift: u32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(1) @binding(next) var<storage, read_write> counts: array<u32>;
@group(1) @binding(next) var<storage, read> keys: array<u32>;
var<workgroup> found: array<atomic<u32>, 256>;

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
  atomicStore(&found[lid], 0u);
  workgroupBarrier();
//# for J in KEYS
  let key$J = keys[min(base + own + $Ju * $LANESu, last)];
//# end
  // Keys behind the end have a digit like any other, and are not counted.
//# for J in KEYS
  {
    let digit = (key$J >> p.shift) & 255u;
    let same = alike(digit) & subgroupBallot(own + $Ju * $LANESu < count).x;
    if (own + $Ju * $LANESu < count && lane == firstTrailingBit(same)) { atomicAdd(&found[digit], countOneBits(same)); }
  }
//# end
  workgroupBarrier();
  counts[(line * 256u + lid) * p.blocks + block] = atomicLoad(&found[lid]);
}
