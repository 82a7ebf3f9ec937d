// The maximum or the average of windows. One invocation for each output.

struct Params {
  planes: u32,
  ih: i32,
  iw: i32,
  kh: i32,
  kw: i32,
  sh: i32,
  sw: i32,
  oh: u32,
  ow: u32,
  pt: i32,
  pl: i32,
  o: u32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(1) @binding(next) var<storage, read_write> out: array<f32>;
@group(1) @binding(next) var<storage, read> source: array<$TYPE_WORD>;
//# include bits.wgsl
//# include keys.wgsl
//# load source TYPE

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * nwg.x + wid.x;
  let i = group * 256u + lid;
  if (i >= p.planes * p.oh * p.ow) { return; }
  let ox = i32(i % p.ow);
  let oy = i32(i / p.ow % p.oh);
  let plane = i / (p.ow * p.oh);
  let y0 = max(oy * p.sh - p.pt, 0);
  let x0 = max(ox * p.sw - p.pl, 0);
  let y1 = min(oy * p.sh - p.pt + p.kh, p.ih);
  let x1 = min(ox * p.sw - p.pl + p.kw, p.iw);
  let base = p.o + plane * u32(p.ih * p.iw);
//# if KIND is Max
  var a = 0u;
//# else
  var a = 0.0;
//# end
  for (var y = y0; y < y1; y = y + 1) {
    for (var x2 = x0; x2 < x1; x2 = x2 + 1) {
      let x = ld_source(base + u32(y * p.iw + x2));
//# if KIND is Max
      a = max(a, key_f32(x));
//# else
      a = a + x;
//# end
    }
  }
//# if KIND is Max
  out[i] = unkey_f32(a);
//# else
//# if COUNT_PADDING
  out[i] = a / f32(p.kh * p.kw);
//# else
  out[i] = a / f32((y1 - y0) * (x1 - x0));
//# end
//# end
}
