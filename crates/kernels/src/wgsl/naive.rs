//! Matrix products one output at a time, for complex numbers, which have no vectors of four. Parameters as in
//! [`super::gemm`], with alpha and beta as f32.

use panoply_core::DType;

use super::gemm::{Addend, PARAMS};
use super::prelude::{ENTRY, buffers, params};

/// A matrix product of complex64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NaiveGemmKernel {
    /// With `beta · C`.
    pub with_c: bool,
    /// With a bias.
    pub bias: Addend,
}

impl NaiveGemmKernel {
    pub(super) fn source(&self) -> String {
        let mut text = "alias T = f32;\n".to_owned();
        text.push_str(&params(&PARAMS));
        let word = super::prelude::word(DType::Complex64);
        let mut reads = vec![("a", word), ("b", word)];
        if self.with_c {
            reads.push(("c", word));
        }
        if self.bias != Addend::None {
            reads.push(("bias", word));
        }
        text.push_str(&buffers(&[("out", word)], &reads));
        text.push_str(ENTRY);
        text.push_str(BODY);
        if self.with_c {
            text.push_str("  x = x + p.beta * c[c_base + row * p.crs + col * p.ccs];\n");
        }
        match self.bias {
            Addend::None => {}
            Addend::PerColumn => text.push_str("  x = x + bias[p.bias_o + col * p.bias_s];\n"),
            Addend::PerRow => text.push_str("  x = x + bias[p.bias_o + row * p.bias_s];\n"),
        }
        text.push_str("  out[i] = x;\n}\n");
        text
    }
}

const BODY: &str = "
  let i = group * 256u + lid;
  if (i >= p.batches * p.m * p.n) { return; }
  let col = i % p.n;
  let row = i / p.n % p.m;
  var r = i / (p.n * p.m);
  var a_base = p.ao;
  var b_base = p.bo;
  var c_base = p.co;
  var step = r % p.d5; r = r / p.d5; a_base += step * p.as5; b_base += step * p.bs5; c_base += step * p.cs5;
  step = r % p.d4; r = r / p.d4; a_base += step * p.as4; b_base += step * p.bs4; c_base += step * p.cs4;
  step = r % p.d3; r = r / p.d3; a_base += step * p.as3; b_base += step * p.bs3; c_base += step * p.cs3;
  step = r % p.d2; r = r / p.d2; a_base += step * p.as2; b_base += step * p.bs2; c_base += step * p.cs2;
  step = r % p.d1; r = r / p.d1; a_base += step * p.as1; b_base += step * p.bs1; c_base += step * p.cs1;
  a_base += r * p.as0; b_base += r * p.bs0; c_base += r * p.cs0;
  var sum = vec2<f32>(0.0, 0.0);
  for (var k = 0u; k < p.k; k = k + 1u) {
    let x = a[a_base + row * p.ars + k * p.acs];
    let y = b[b_base + k * p.brs + col * p.bcs];
    sum = sum + vec2<f32>(x.x * y.x - x.y * y.y, x.x * y.y + x.y * y.x);
  }
  var x = sum * p.alpha;
";
