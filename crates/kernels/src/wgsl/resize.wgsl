// Resizing of images. One invocation for each output element.

struct Params {
  planes: u32,
  ih: u32,
  iw: u32,
  oh: u32,
  ow: u32,
  channels: u32,
  o: u32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(1) @binding(next) var<storage, read_write> out: array<$TYPE_CARRIER>;
@group(1) @binding(next) var<storage, read> source: array<$TYPE_WORD>;
//# load source TYPE as f32

fn at(plane: u32, y: u32, x: u32, ch: u32) -> f32 {
  return ld_source(p.o + ((plane * p.ih + y) * p.iw + x) * p.channels + ch);
}
// index * from / to for an index below to, without overflow: whole steps and the rest apart.
fn scaled(index: u32, from_size: u32, to_size: u32) -> u32 {
  let whole = from_size / to_size;
  let rest = from_size % to_size;
  return index * whole + index * rest / to_size;
}
fn scaled_up(index: u32, from_size: u32, to_size: u32) -> u32 {
  let whole = from_size / to_size;
  let rest = from_size % to_size;
  return index * whole + (index * rest + to_size - 1u) / to_size;
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * nwg.x + wid.x;
  let i = group * 256u + lid;
  if (i >= p.planes * p.oh * p.ow * p.channels) { return; }
  let ch = i % p.channels;
  let ox = i / p.channels % p.ow;
  let oy = i / (p.channels * p.ow) % p.oh;
  let plane = i / (p.channels * p.ow * p.oh);
//# if MODE is Nearest
  let v = at(plane, scaled(oy, p.ih, p.oh), scaled(ox, p.iw, p.ow), ch);
//# end
//# if MODE is Bilinear
  let py = (2u * oy + 1u) * p.ih;
  let qy = select(0u, py - p.oh, py > p.oh);
  let y0 = min(qy / (2u * p.oh), p.ih - 1u);
  let wy = f32(qy % (2u * p.oh)) / f32(2u * p.oh);
  let y1 = min(y0 + 1u, p.ih - 1u);
  let px = (2u * ox + 1u) * p.iw;
  let qx = select(0u, px - p.ow, px > p.ow);
  let x0 = min(qx / (2u * p.ow), p.iw - 1u);
  let wx = f32(qx % (2u * p.ow)) / f32(2u * p.ow);
  let x1 = min(x0 + 1u, p.iw - 1u);
  let top = (1.0 - wx) * at(plane, y0, x0, ch) + wx * at(plane, y0, x1, ch);
  let bottom = (1.0 - wx) * at(plane, y1, x0, ch) + wx * at(plane, y1, x1, ch);
  let v = (1.0 - wy) * top + wy * bottom;
//# end
//# if MODE is Area
  let y0 = scaled(oy, p.ih, p.oh);
  let y1 = min(scaled_up(oy + 1u, p.ih, p.oh), p.ih);
  let x0 = scaled(ox, p.iw, p.ow);
  let x1 = min(scaled_up(ox + 1u, p.iw, p.ow), p.iw);
  var sum = 0.0;
  for (var y = y0; y < y1; y = y + 1u) {
    for (var x = x0; x < x1; x = x + 1u) { sum = sum + at(plane, y, x, ch); }
  }
  let v = sum / f32((y1 - y0) * (x1 - x0));
//# end
//# if TYPE is u8
  out[i] = u32(clamp(round(v), 0.0, 255.0));
//# else
  out[i] = v;
//# end
}
