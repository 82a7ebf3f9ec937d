// Conversion of images between colour formats. One invocation for each output element. `color` gives red, green and blue of a pixel,
// neither rounded nor clamped.

struct Params {
  images: u32,
  h: u32,
  w: u32,
  o: u32,
  kr: f32,
  kg: f32,
  kb: f32,
  black: f32,
  luma_span: f32,
  chroma_span: f32,
}
@group(0) @binding(0) var<uniform> p: Params;
@group(1) @binding(next) var<storage, read_write> out: array<$TYPE_CARRIER>;
@group(1) @binding(next) var<storage, read> source: array<$TYPE_WORD>;
//# load source TYPE as f32

fn luma(c: vec3<f32>) -> f32 {
  if (c.x == c.y && c.y == c.z) { return c.x; }
  return p.kr * c.x + p.kg * c.y + p.kb * c.z;
}
fn chroma_of(mean: vec3<f32>) -> vec2<f32> {
  let l = luma(mean);
  return vec2<f32>(128.0 + p.chroma_span * (mean.z - l) / (2.0 - 2.0 * p.kb),
                   128.0 + p.chroma_span * (mean.x - l) / (2.0 - 2.0 * p.kr));
}
fn mean_color(image: u32, y: u32, x: u32) -> vec3<f32> {
  return (color(image, y, x) + color(image, y, x + 1u) + color(image, y + 1u, x) + color(image, y + 1u, x + 1u)) / 4.0;
}

//# if FROM is I420 or Nv12
fn stored_luma(image: u32, y: u32, x: u32) -> f32 {
  return ld_source(p.o + image * (p.h * p.w / 2u * 3u) + y * p.w + x);
}
fn stored_chroma(image: u32, y: u32, x: u32) -> vec2<f32> {
  let base = p.o + image * (p.h * p.w / 2u * 3u) + p.h * p.w;
//# if FROM is Nv12
  let at = base + y / 2u * p.w + x / 2u * 2u;
  return vec2<f32>(ld_source(at), ld_source(at + 1u));
//# else
  let at = base + y / 2u * (p.w / 2u) + x / 2u;
  return vec2<f32>(ld_source(at), ld_source(at + p.h * p.w / 4u));
//# end
}
//# end
fn color(image: u32, y: u32, x: u32) -> vec3<f32> {
//# if FROM is Rgb
  let at = p.o + ((image * p.h + y) * p.w + x) * 3u;
  return vec3<f32>(ld_source(at), ld_source(at + 1u), ld_source(at + 2u));
//# end
//# if FROM is Bgr
  let at = p.o + ((image * p.h + y) * p.w + x) * 3u;
  return vec3<f32>(ld_source(at + 2u), ld_source(at + 1u), ld_source(at));
//# end
//# if FROM is Gray
  return vec3<f32>(ld_source(p.o + (image * p.h + y) * p.w + x));
//# end
//# if FROM is I420 or Nv12
  let l = (stored_luma(image, y, x) - p.black) / p.luma_span;
//# if TO is Gray
  return vec3<f32>(l);
//# else
  let uv = stored_chroma(image, y, x);
  let red = l + (2.0 - 2.0 * p.kr) * (uv.y - 128.0) / p.chroma_span;
  let blue = l + (2.0 - 2.0 * p.kb) * (uv.x - 128.0) / p.chroma_span;
  return vec3<f32>(red, (l - p.kr * red - p.kb * blue) / p.kg, blue);
//# end
//# end
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32) {
  let group = wid.y * nwg.x + wid.x;
  let i = group * 256u + lid;
//# if TO is Rgb or Bgr
  if (i >= p.images * p.h * p.w * 3u) { return; }
  let pixel = i / 3u;
  let c = color(pixel / (p.h * p.w), pixel / p.w % p.h, pixel % p.w);
//# if TO is Rgb
  let v = select(select(c.z, c.y, i % 3u == 1u), c.x, i % 3u == 0u);
//# else
  let v = select(select(c.x, c.y, i % 3u == 1u), c.z, i % 3u == 0u);
//# end
//# end
//# if TO is Gray
  if (i >= p.images * p.h * p.w) { return; }
  let v = luma(color(i / (p.h * p.w), i / p.w % p.h, i % p.w));
//# end
//# if TO is I420 or Nv12
  // Planes of luma and, at half the size, of chroma, which is two planes or pairs.
  let size = p.h * p.w / 2u * 3u;
  if (i >= p.images * size) { return; }
  let image = i / size;
  let t = i % size;
  var v = 0.0;
  if (t < p.h * p.w) {
    let y = t / p.w;
    let x = t % p.w;
//# if FROM is I420 or Nv12
    v = stored_luma(image, y, x);
//# else
    v = p.black + p.luma_span * luma(color(image, y, x));
//# end
  } else {
    let c = t - p.h * p.w;
//# if TO is I420
    let e = c % (p.h * p.w / 4u);
    let y = e / (p.w / 2u) * 2u;
    let x = e % (p.w / 2u) * 2u;
    let is_first = c < p.h * p.w / 4u;
//# else
    let y = c / p.w * 2u;
    let x = c % p.w / 2u * 2u;
    let is_first = c % 2u == 0u;
//# end
//# if FROM is I420 or Nv12
    let uv = stored_chroma(image, y, x);
//# else
    let uv = chroma_of(mean_color(image, y, x));
//# end
    v = select(uv.y, uv.x, is_first);
  }
//# end
//# if TYPE is u8
  out[i] = u32(clamp(round(v), 0.0, 255.0));
//# else
  out[i] = v;
//# end
}
