// From line by line to the tensor's layout: elements made of exact keys, or positions.

struct Params {
  lines: u32,
  axis: u32,
  inner: u32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(1) @binding(next) var<storage, read_write> out: array<$OUT>;
@group(1) @binding(next) var<storage, read> keys: array<u32>;
//# include bits.wgsl
//# include keys.wgsl

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * nwg.x + wid.x;
  let t = group * 256u + lid;
  if (t >= p.lines * p.axis) { return; }
  let line = t / p.axis;
  let at = (line / p.inner * p.axis + t % p.axis) * p.inner + line % p.inner;
//# if POSITIONS
  out[at] = keys[t];
//# else
//# if DESCENDING
  out[at] = unkey_$OUT(~keys[t]);
//# else
  out[at] = unkey_$OUT(keys[t]);
//# end
//# end
}
