// One pass of a radix sort by four bits: how often each digit occurs, for each line, digit and block.

struct Params {
  lines: u32,
  axis: u32,
  blocks: u32,
  shift: u32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(1) @binding(next) var<storage, read_write> counts: array<u32>;
@group(1) @binding(next) var<storage, read> keys: array<u32>;
var<workgroup> found: array<atomic<u32>, 16>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * nwg.x + wid.x;
  if (group >= p.lines * p.blocks) { return; }
  let block = group % p.blocks;
  let line = group / p.blocks;
  if (lid < 16u) { atomicStore(&found[lid], 0u); }
  workgroupBarrier();
  let end = min(p.axis, (block + 1u) * 2048u);
  for (var t = block * 2048u + lid; t < end; t = t + 256u) {
    atomicAdd(&found[(keys[line * p.axis + t] >> p.shift) & 15u], 1u);
  }
  workgroupBarrier();
  if (lid < 16u) { counts[(line * 16u + lid) * p.blocks + block] = atomicLoad(&found[lid]); }
}
