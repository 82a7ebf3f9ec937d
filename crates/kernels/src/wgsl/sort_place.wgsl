// Moves the positions in a piece to their places in a window of the line.

struct Params {
  n: u32,
  start: u32,
  seen: u32,
  base: u32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(1) @binding(next) var<storage, read_write> out: array<u32>;
@group(1) @binding(next) var<storage, read> ranks: array<u32>;
@group(1) @binding(next) var<storage, read> positions: array<u32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * nwg.x + wid.x;
  let i = group * 256u + lid;
  if (i >= p.n) { return; }
  let at = ranks[i] - p.start;
  if (at < p.seen) { out[at] = p.base + positions[i]; }
}
