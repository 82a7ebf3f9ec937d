//! Images: resizing, normalising and colours. One invocation for each output element, written as a carrier.
//!
//! Parameters of [`ResizeKernel`]: planes, input height and width, output height and width, interleaved channels, offset.
//! Of [`NormalizeKernel`]: elements, channels, elements behind the channel axis, offset, the place of the first element in
//! its image; it reads factors and summands, one pair for each channel. Of [`ColorKernel`]: images, height, width, offset, the weights of red, green and blue, the code
//! of black, the spans of luma and of chroma.

use panoply_core::DType;
use panoply_core::op::compute::{ColorFormat, ResizeMode};

use super::prelude::{BITS, ENTRY, buffers, carrier, fill, load_as, params, word};

/// Images of another size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ResizeKernel {
    /// The type of the elements: f32, f16, bf16 or u8.
    pub dtype: DType,
    /// How pixels are found.
    pub mode: ResizeMode,
}

/// Images scaled and shifted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NormalizeKernel {
    /// The type of the input.
    pub dtype: DType,
}

/// Images in another arrangement of colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ColorKernel {
    /// u8 or f32.
    pub dtype: DType,
    /// The input's format.
    pub from: ColorFormat,
    /// The output's format.
    pub to: ColorFormat,
}

impl ResizeKernel {
    pub(super) fn source(&self) -> String {
        let mut text = params(&["planes", "ih", "iw", "oh", "ow", "channels", "o"]);
        text.push_str(&buffers(&[("out", carrier(self.dtype))], &[("source", word(self.dtype))]));
        text.push_str(BITS);
        text.push_str(&load_as("source", self.dtype, "f32"));
        text.push_str(RESIZE_AT);
        text.push_str(ENTRY);
        text.push_str(RESIZE_HEAD);
        text.push_str(match self.mode {
            ResizeMode::Nearest => "  let v = at(plane, scaled(oy, p.ih, p.oh), scaled(ox, p.iw, p.ow), ch);\n",
            ResizeMode::Bilinear => BILINEAR,
            ResizeMode::Area => AREA,
        });
        text.push_str(if self.dtype == DType::U8 {
            "  out[i] = u32(clamp(round(v), 0.0, 255.0));\n}\n"
        } else {
            "  out[i] = v;\n}\n"
        });
        text
    }
}

const RESIZE_AT: &str = "
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
";

const RESIZE_HEAD: &str = "
  let i = group * 256u + lid;
  if (i >= p.planes * p.oh * p.ow * p.channels) { return; }
  let ch = i % p.channels;
  let ox = i / p.channels % p.ow;
  let oy = i / (p.channels * p.ow) % p.oh;
  let plane = i / (p.channels * p.ow * p.oh);
";

const BILINEAR: &str = "
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
";

const AREA: &str = "
  let y0 = scaled(oy, p.ih, p.oh);
  let y1 = min(scaled_up(oy + 1u, p.ih, p.oh), p.ih);
  let x0 = scaled(ox, p.iw, p.ow);
  let x1 = min(scaled_up(ox + 1u, p.iw, p.ow), p.iw);
  var sum = 0.0;
  for (var y = y0; y < y1; y = y + 1u) {
    for (var x = x0; x < x1; x = x + 1u) { sum = sum + at(plane, y, x, ch); }
  }
  let v = sum / f32((y1 - y0) * (x1 - x0));
";

impl NormalizeKernel {
    pub(super) fn source(&self) -> String {
        let mut text = params(&["n", "channels", "inner", "o", "first"]);
        text.push_str(&buffers(&[("out", "f32")], &[("source", word(self.dtype)), ("affine", "vec2<f32>")]));
        text.push_str(&load_as("source", self.dtype, "f32"));
        text.push_str(ENTRY);
        text.push_str(
            "  let i = group * 256u + lid;
  if (i >= p.n) { return; }
  let line = affine[(p.first + i) / p.inner % p.channels];
  out[i] = ld_source(p.o + i) * line.x - line.y;
}
",
        );
        text
    }
}

impl ColorKernel {
    pub(super) fn source(&self) -> String {
        let mut text = params(&[
            "images",
            "h",
            "w",
            "o",
            "kr: f32",
            "kg: f32",
            "kb: f32",
            "black: f32",
            "luma_span: f32",
            "chroma_span: f32",
        ]);
        text.push_str(&buffers(&[("out", carrier(self.dtype))], &[("source", word(self.dtype))]));
        text.push_str(&load_as("source", self.dtype, "f32"));
        text.push_str(COLOR);
        text.push_str(&self.color());
        text.push_str(ENTRY);
        let stored = if self.dtype == DType::U8 { "u32(clamp(round(v), 0.0, 255.0))" } else { "v" };
        text.push_str(&fill(&self.body(), &[("$STORED", stored)]));
        text
    }

    /// `fn color(image, y, x)`: red, green and blue of a pixel, neither rounded nor clamped.
    fn color(&self) -> String {
        let body = match self.from {
            ColorFormat::Rgb => {
                "let at = p.o + ((image * p.h + y) * p.w + x) * 3u; return vec3<f32>(ld_source(at), ld_source(at + 1u), ld_source(at + 2u));"
            }
            ColorFormat::Bgr => {
                "let at = p.o + ((image * p.h + y) * p.w + x) * 3u; return vec3<f32>(ld_source(at + 2u), ld_source(at + 1u), ld_source(at));"
            }
            ColorFormat::Gray => "return vec3<f32>(ld_source(p.o + (image * p.h + y) * p.w + x));",
            ColorFormat::I420 | ColorFormat::Nv12 if self.to == ColorFormat::Gray => {
                "return vec3<f32>((stored_luma(image, y, x) - p.black) / p.luma_span);"
            }
            ColorFormat::I420 | ColorFormat::Nv12 => {
                "let uv = stored_chroma(image, y, x); let l = (stored_luma(image, y, x) - p.black) / p.luma_span;
  let red = l + (2.0 - 2.0 * p.kr) * (uv.y - 128.0) / p.chroma_span;
  let blue = l + (2.0 - 2.0 * p.kb) * (uv.x - 128.0) / p.chroma_span;
  return vec3<f32>(red, (l - p.kr * red - p.kb * blue) / p.kg, blue);"
            }
        };
        let chroma = if self.from == ColorFormat::Nv12 {
            "let at = base + y / 2u * p.w + x / 2u * 2u; return vec2<f32>(ld_source(at), ld_source(at + 1u));"
        } else {
            "let at = base + y / 2u * (p.w / 2u) + x / 2u; return vec2<f32>(ld_source(at), ld_source(at + p.h * p.w / 4u));"
        };
        format!(
            "fn stored_luma(image: u32, y: u32, x: u32) -> f32 {{ return ld_source(p.o + image * (p.h * p.w / 2u * 3u) + y * p.w + x); }}
fn stored_chroma(image: u32, y: u32, x: u32) -> vec2<f32> {{ let base = p.o + image * (p.h * p.w / 2u * 3u) + p.h * p.w; {chroma} }}
fn color(image: u32, y: u32, x: u32) -> vec3<f32> {{ {body} }}
"
        )
    }

    fn body(&self) -> String {
        let (place, is_first) = match self.to {
            ColorFormat::Rgb => return RGB.to_owned(),
            ColorFormat::Bgr => return BGR.to_owned(),
            ColorFormat::Gray => return GRAY.to_owned(),
            ColorFormat::I420 => (
                "let e = c % (p.h * p.w / 4u); let y = e / (p.w / 2u) * 2u; let x = e % (p.w / 2u) * 2u;",
                "c < p.h * p.w / 4u",
            ),
            ColorFormat::Nv12 => ("let y = c / p.w * 2u; let x = c % p.w / 2u * 2u;", "c % 2u == 0u"),
        };
        let (luma, chroma) = if self.from.is_yuv420() {
            ("stored_luma(image, y, x)", "stored_chroma(image, y, x)")
        } else {
            ("p.black + p.luma_span * luma(color(image, y, x))", "chroma_of(mean_color(image, y, x))")
        };
        fill(YUV420, &[("$LUMA", luma), ("$CHROMA", chroma), ("$PLACE", place), ("$IS_FIRST", is_first)])
    }
}

const COLOR: &str = "
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
";

const RGB: &str = "
  let i = group * 256u + lid;
  if (i >= p.images * p.h * p.w * 3u) { return; }
  let pixel = i / 3u;
  let c = color(pixel / (p.h * p.w), pixel / p.w % p.h, pixel % p.w);
  let v = select(select(c.z, c.y, i % 3u == 1u), c.x, i % 3u == 0u);
  out[i] = $STORED;
}
";

const BGR: &str = "
  let i = group * 256u + lid;
  if (i >= p.images * p.h * p.w * 3u) { return; }
  let pixel = i / 3u;
  let c = color(pixel / (p.h * p.w), pixel / p.w % p.h, pixel % p.w);
  let v = select(select(c.x, c.y, i % 3u == 1u), c.z, i % 3u == 0u);
  out[i] = $STORED;
}
";

const GRAY: &str = "
  let i = group * 256u + lid;
  if (i >= p.images * p.h * p.w) { return; }
  let v = luma(color(i / (p.h * p.w), i / p.w % p.h, i % p.w));
  out[i] = $STORED;
}
";

/// Planes of luma and, at half the size, of chroma, which is two planes or pairs.
const YUV420: &str = "
  let i = group * 256u + lid;
  let size = p.h * p.w / 2u * 3u;
  if (i >= p.images * size) { return; }
  let image = i / size;
  let t = i % size;
  var v = 0.0;
  if (t < p.h * p.w) {
    let y = t / p.w;
    let x = t % p.w;
    v = $LUMA;
  } else {
    let c = t - p.h * p.w;
    $PLACE
    let uv = $CHROMA;
    v = select(uv.y, uv.x, $IS_FIRST);
  }
  out[i] = $STORED;
}
";
