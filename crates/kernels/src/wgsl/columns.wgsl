// The windows of a convolution as columns: line after line of one tap of one channel, with all places of the output. Elements are two
// bytes each and are only moved. One invocation for each eight of them, which are in one line: its length is a multiple of eight.

struct Params {
  eights: u32,
  places: u32,
  ow: i32,
  lines: u32,
  channels: u32,
  taps: u32,
  kw: u32,
  ih: i32,
  iw: i32,
  sh: i32,
  sw: i32,
  dh: i32,
  dw: i32,
  pt: i32,
  pl: i32,
  o: u32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(1) @binding(next) var<storage, read_write> out: array<vec4<u32>>;
@group(1) @binding(next) var<storage, read> source: array<u32>;

// The element of a plane at a place, in the lower half; zero if there is none.
fn element(plane: u32, y: i32, x: i32) -> u32 {
  if (y < 0 || y >= p.ih || x < 0 || x >= p.iw) { return 0u; }
  let i = plane + u32(y * p.iw + x);
  return (source[i >> 1u] >> ((i & 1u) * 16u)) & 0xffffu;
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * nwg.x + wid.x;
  let i = group * 256u + lid;
  if (i >= p.eights) { return; }
  let line = i * 8u / p.places;
  let first = i32(i * 8u % p.places);
  let tap = line % p.lines % p.taps;
  let channel = line % p.lines / p.taps;
  let plane = p.o + (line / p.lines * p.channels + channel) * u32(p.ih * p.iw);
  let y0 = i32(tap / p.kw) * p.dh - p.pt;
  let x0 = i32(tap % p.kw) * p.dw - p.pl;
  var oy = first / p.ow;
  var ox = first % p.ow;
  var eight = vec4<u32>();
//# for J in 4
  {
    let low = element(plane, oy * p.sh + y0, ox * p.sw + x0);
    ox = ox + 1;
    if (ox == p.ow) { ox = 0; oy = oy + 1; }
    let high = element(plane, oy * p.sh + y0, ox * p.sw + x0);
    ox = ox + 1;
    if (ox == p.ow) { ox = 0; oy = oy + 1; }
    eight[$J] = low | (high << 16u);
  }
//# end
  out[i] = eight;
}
