// Images scaled and shifted channel by channel: `affine` holds a factor and a summand for each.

struct Params {
  n: u32,
  channels: u32,
  inner: u32,
  o: u32,
  first: u32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(1) @binding(next) var<storage, read_write> out: array<f32>;
@group(1) @binding(next) var<storage, read> source: array<$TYPE_WORD>;
@group(1) @binding(next) var<storage, read> affine: array<vec2<f32>>;
//# load source TYPE as f32

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * nwg.x + wid.x;
  let i = group * 256u + lid;
  if (i >= p.n) { return; }
  let line = affine[(p.first + i) / p.inner % p.channels];
  out[i] = ld_source(p.o + i) * line.x - line.y;
}
