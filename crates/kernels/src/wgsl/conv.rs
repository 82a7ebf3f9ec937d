//! Convolutions and their gradients as tiled matrix products whose operands are read through the images.
//!
//! | pass | rows | columns | inner |
//! | --- | --- | --- | --- |
//! | forward | filters of a group | outputs of all images | channels of a group × taps |
//! | input's gradient | channels of a group | inputs of all images | filters of a group × taps |
//! | weights' gradient | filters of a group | channels of a group × taps | outputs of all images |
//!
//! The first buffer read holds the weights (forward and input) or the output's gradient (weights), the second the images
//! (forward and weights) or the output's gradient (input). Parameters: m, n, k, tiles along m and n, groups (as `batches`),
//! offsets of the two operands and of the bias, channels and filters of a group, channels and filters in all, height and
//! width of input, kernel and output, stride, dilation, padding at top and left.

use std::fmt::Write;

use panoply_core::DType;

use super::gemm::{
    Accumulate, Epilogue, Hooks, Load, Tile, addend_buffers, epilogue, epilogue_math, fetch_loop, tile_kernel,
};
use super::prelude::{buffers, load, params, word, zero};

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConvPass {
    /// The convolution.
    Forward,
    /// The gradient with respect to its input.
    BackwardInput,
    /// The gradient with respect to its weights.
    BackwardWeight,
}

/// A convolution of f32, f16 or bf16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConvKernel {
    /// The type of all operands.
    pub dtype: DType,
    /// What is computed.
    pub pass: ConvPass,
    /// Bias (per row) and activation.
    pub epilogue: Epilogue,
    /// The size of a workgroup's tile.
    pub tile: Tile,
}

const PARAMS: [&str; 28] = [
    "m",
    "n",
    "k",
    "tiles_m",
    "tiles_n",
    "batches",
    "ao",
    "bo",
    "bias_o",
    "bias_s",
    "gc: i32",
    "gf: i32",
    "channels: i32",
    "filters: i32",
    "ih: i32",
    "iw: i32",
    "kh: i32",
    "kw: i32",
    "oh: i32",
    "ow: i32",
    "sh: i32",
    "sw: i32",
    "dh: i32",
    "dw: i32",
    "pt: i32",
    "pl: i32",
    "u0",
    "u1",
];

/// How places are found, in WGSL. `$L` stands for one of four columns, `$SET` for what an element is assigned to.
struct Places {
    /// What an inner step `kk` means for A.
    a_inner: &'static str,
    /// Where A's element for row `r` is.
    a_at: &'static str,
    /// What a column `col` means.
    column: &'static str,
    /// What an inner step `kk` means for B.
    inner: &'static str,
    /// The reading of B's element.
    value: &'static str,
    /// Where the output for row `r` and column `cc` goes.
    out: &'static str,
}

impl ConvKernel {
    pub(super) fn source(&self) -> String {
        let mut text = "alias T = f32;\n".to_owned();
        text.push_str(&params(&PARAMS));
        let mut reads = vec![("a", word(self.dtype)), ("b", word(self.dtype))];
        addend_buffers(&self.epilogue, &mut reads);
        text.push_str(&buffers(&[("out", "f32")], &reads));
        text.push_str(&epilogue_math(&self.epilogue));
        text.push_str(&load("a", self.dtype));
        text.push_str(&load("b", self.dtype));
        // A row of the result is a filter of this group; the bias counts all filters.
        text.push_str(&epilogue(&self.epilogue).replace("p.bias_o + row", "p.bias_o + (batch * u32(p.gf) + row)"));
        let places = self.places();
        let out = places.out;
        let (setup, fetch_a, fetch_b) = if self.tile.unrolled { unrolled(&places) } else { looped(&places) };
        let mut store = "    if (row < p.m) {\n".to_owned();
        for (lane, place) in ["x", "y", "z", "w"].into_iter().zip(0..) {
            let _ = writeln!(
                store,
                "      if (col + {place}u < p.n) {{ let r = i32(row); let cc = i32(col + {place}u); out[u32({out})] = finish(v.{lane}, batch, row, col + {place}u, 0u); }}"
            );
        }
        store.push_str("    }");
        let order_a = if self.pass == ConvPass::Forward { Load::AlongInner } else { Load::AlongOuter };
        let hooks =
            Hooks { zero: zero(DType::F32), setup, order_a, order_b: Load::AlongOuter, fetch_a, fetch_b, store };
        text.push_str(&tile_kernel(self.tile, "f32", Accumulate::Product, &hooks));
        text
    }

    fn places(&self) -> Places {
        match self.pass {
            ConvPass::Forward => Places {
                a_inner: "",
                a_at: "(g * p.gf + r) * i32(p.k) + kk",
                column: "let img = col / (p.oh * p.ow); let pix = col % (p.oh * p.ow); y$L = pix / p.ow * p.sh - p.pt; \
                 x$L = pix % p.ow * p.sw - p.pl; base$L = (img * p.channels + g * p.gc) * p.ih * p.iw;",
                inner: "let ch = kk / (p.kh * p.kw); let tap = kk % (p.kh * p.kw); let dy = tap / p.kw * p.dh; \
                 let dx = tap % p.kw * p.dw;",
                value: "let y = y$L + dy; let x = x$L + dx; if (y >= 0 && y < p.ih && x >= 0 && x < p.iw) { \
                 $SET = ld_b(p.bo + u32(base$L + (ch * p.ih + y) * p.iw + x)); }",
                out: "((cc / (p.oh * p.ow) * p.filters + g * p.gf + r) * (p.oh * p.ow) + cc % (p.oh * p.ow))",
            },
            ConvPass::BackwardInput => Places {
                a_inner: "let fl = kk / (p.kh * p.kw); let tp = kk % (p.kh * p.kw);",
                a_at: "((g * p.gf + fl) * p.gc + r) * (p.kh * p.kw) + tp",
                column: "let img = col / (p.ih * p.iw); let pix = col % (p.ih * p.iw); y$L = pix / p.iw + p.pt; \
                 x$L = pix % p.iw + p.pl; base$L = (img * p.filters + g * p.gf) * p.oh * p.ow;",
                inner: "let ch = kk / (p.kh * p.kw); let tap = kk % (p.kh * p.kw); let dy = tap / p.kw * p.dh; \
                 let dx = tap % p.kw * p.dw;",
                value: "let y = y$L - dy; let x = x$L - dx; if (y >= 0 && x >= 0 && y % p.sh == 0 && x % p.sw == 0) { \
                 let oy = y / p.sh; let ox = x / p.sw; if (oy < p.oh && ox < p.ow) { \
                 $SET = ld_b(p.bo + u32(base$L + (ch * p.oh + oy) * p.ow + ox)); } }",
                out: "((cc / (p.ih * p.iw) * p.channels + g * p.gc + r) * (p.ih * p.iw) + cc % (p.ih * p.iw))",
            },
            ConvPass::BackwardWeight => Places {
                a_inner: "let im = kk / (p.oh * p.ow); let px = kk % (p.oh * p.ow);",
                a_at: "(im * p.filters + g * p.gf + r) * (p.oh * p.ow) + px",
                column: "let ch = col / (p.kh * p.kw); let tap = col % (p.kh * p.kw); y$L = tap / p.kw * p.dh - p.pt; \
                 x$L = tap % p.kw * p.dw - p.pl; base$L = (g * p.gc + ch) * p.ih * p.iw;",
                inner: "let img = kk / (p.oh * p.ow); let pix = kk % (p.oh * p.ow); let dy = pix / p.ow * p.sh; \
                 let dx = pix % p.ow * p.sw;",
                value: "let y = y$L + dy; let x = x$L + dx; if (y >= 0 && y < p.ih && x >= 0 && x < p.iw) { \
                 $SET = ld_b(p.bo + u32(base$L + (img * p.channels * p.ih + y) * p.iw + x)); }",
                out: "((g * p.gf + r) * i32(p.n) + cc)",
            },
        }
    }
}

/// The lines that are run once, and those that fetch A and B, all written out.
fn unrolled(places: &Places) -> (String, String, String) {
    let mut setup = "  let g = i32(batch);\n".to_owned();
    let mut fetch_b = String::new();
    for lane in 0..4 {
        let _ = writeln!(setup, "  var y{lane} = 0; var x{lane} = 0; var base{lane} = 0;");
        let column = places.column.replace("$L", &lane.to_string());
        let _ = writeln!(fetch_b, "      {{ let col = i32(min(outer + {lane}u, p.n - 1u)); {column} }}");
    }
    let mut fetch_a = String::new();
    for step in 0..4 {
        let head = format!(
            "      g{step} = vec4<f32>();\n      if (kf + {step}u < p.k) {{\n        let kk = i32(kf + {step}u);\n"
        );
        let _ = writeln!(fetch_a, "{head}        {}", places.a_inner);
        let _ = writeln!(fetch_b, "{head}        {}", places.inner);
        for (place, lane) in ["x", "y", "z", "w"].into_iter().enumerate() {
            let value = places.value.replace("$L", &place.to_string()).replace("$SET", &format!("g{step}.{lane}"));
            let _ = writeln!(fetch_b, "        if (outer + {place}u < p.n) {{ {value} }}");
            let at = places.a_at;
            let _ = writeln!(
                fetch_a,
                "        if (outer + {place}u < p.m) {{ let r = i32(outer + {place}u); g{step}.{lane} = ld_a(p.ao + u32({at})); }}"
            );
        }
        fetch_a.push_str("      }\n");
        fetch_b.push_str("      }\n");
    }
    (setup, fetch_a, fetch_b)
}

/// As [`unrolled`], in loops.
fn looped(places: &Places) -> (String, String, String) {
    let setup = "  let g = i32(batch);\n".to_owned();
    let a_value = format!("let r = i32(outer + place); fetched[step][place] = ld_a(p.ao + u32({}));", places.a_at);
    let b_value = format!(
        "let col = i32(outer + place); var y_ = 0; var x_ = 0; var base_ = 0; {{ {} }} {}",
        places.column, places.value
    );
    let b_value = b_value.replace("$L", "_").replace("$SET", "fetched[step][place]");
    (setup, fetch_loop("m", places.a_inner, &a_value), fetch_loop("n", places.inner, &b_value))
}
