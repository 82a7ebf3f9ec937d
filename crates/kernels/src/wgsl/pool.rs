//! Pool2d: one invocation for each output.
//!
//! Parameters: planes, height and width of input, kernel, stride and output, padding at top and left, the offset.

use panoply_core::DType;
use panoply_core::op::compute::PoolKind;

use super::prelude::{BITS, ENTRY, KEYS, buffers, fill, load, params, word};

/// A pooling of f32, f16 or bf16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PoolKernel {
    /// The type of the elements.
    pub dtype: DType,
    /// What becomes of a window.
    pub kind: PoolKind,
}

impl PoolKernel {
    pub(super) fn source(&self) -> String {
        let names = [
            "planes", "ih: i32", "iw: i32", "kh: i32", "kw: i32", "sh: i32", "sw: i32", "oh", "ow", "pt: i32",
            "pl: i32", "o",
        ];
        let mut text = params(&names);
        text.push_str(&buffers(&[("out", "f32")], &[("source", word(self.dtype))]));
        text.push_str(BITS);
        text.push_str(KEYS);
        text.push_str(&load("source", self.dtype));
        text.push_str(ENTRY);
        let (start, step, finish) = match self.kind {
            PoolKind::Max => ("0u", "a = max(a, key_f32(x));", "unkey_f32(a)"),
            PoolKind::Average { count_padding: true } => ("0.0", "a = a + x;", "a / f32(p.kh * p.kw)"),
            PoolKind::Average { count_padding: false } => ("0.0", "a = a + x;", "a / f32((y1 - y0) * (x1 - x0))"),
        };
        text.push_str(&fill(BODY, &[("$START", start), ("$STEP", step), ("$FINISH", finish)]));
        text
    }
}

const BODY: &str = "
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
  var a = $START;
  for (var y = y0; y < y1; y = y + 1) {
    for (var x2 = x0; x2 < x1; x2 = x2 + 1) {
      let x = ld_source(base + u32(y * p.iw + x2));
      $STEP
    }
  }
  out[i] = $FINISH;
}
";
