//! Reduce: sums, means, extremes and their positions along one axis, in one stage or in two.
//!
//! A line is what becomes one element. Parameters: lines outside the axis (`outer`), its length, the elements behind it
//! (`inner`), chunks per line, elements per chunk, the input's offset, the count that a mean divides by, and the position of
//! the first element on its line. The first
//! stage may leave one partial result per line and chunk, which the second reads as lines of `chunks` elements.

use panoply_core::DType;
use panoply_core::op::compute::Reduction;

use super::prelude::{BITS, ENTRY, KEYS, buffers, carrier, fill, load, params, word};

/// How the work is spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReduceForm {
    /// One invocation for each line and chunk.
    Serial,
    /// One workgroup for each line and chunk.
    Cooperative,
    /// As `Cooperative`, reading vectors of four: types of four bytes, `inner` of one, everything a multiple of four.
    Vector,
}

/// One stage of a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReduceKernel {
    /// The type of the reduced elements.
    pub dtype: DType,
    /// What is computed.
    pub reduction: Reduction,
    /// How the work is spread.
    pub form: ReduceForm,
    /// Reads partial results instead of elements.
    pub from_partial: bool,
    /// Writes partial results instead of carriers.
    pub to_partial: bool,
}

/// What is kept while reducing: its type, its start, how an element joins it, how two join, and what becomes of it.
struct Accumulator {
    kind: &'static str,
    start: &'static str,
    /// From the element `x` at `place`.
    make: String,
    join: &'static str,
    /// The carrier of the output made of `a`.
    finish: String,
    output: &'static str,
}

impl ReduceKernel {
    /// Bytes of one partial result.
    pub fn partial_bytes(&self) -> usize {
        if self.accumulator().kind.starts_with("vec2") { 8 } else { 4 }
    }

    pub(super) fn source(&self) -> String {
        let accumulator = self.accumulator();
        let mut text = params(&["outer", "axis", "inner", "chunks", "chunk", "o", "count", "first"]);
        let input = match (self.from_partial, self.form) {
            (true, _) => accumulator.kind.to_owned(),
            (false, ReduceForm::Vector) => format!("vec4<{}>", word(self.dtype)),
            (false, _) => word(self.dtype).to_owned(),
        };
        let output = if self.to_partial { accumulator.kind } else { accumulator.output };
        text.push_str(&buffers(&[("out", output)], &[("source", &input)]));
        text.push_str(BITS);
        text.push_str(KEYS);
        if self.from_partial {
            text.push_str(&format!("fn take(i: u32, place: u32) -> {} {{ return source[i]; }}\n", accumulator.kind));
        } else {
            if self.form != ReduceForm::Vector {
                text.push_str(&load("source", self.dtype));
                text.push_str("fn take(i: u32, place: u32) -> $A { return make(ld_source(i), place); }\n");
            }
            text.push_str(&format!("fn make(x: {}, place: u32) -> $A {{ return $MAKE; }}\n", carrier(self.dtype)));
        }
        text.push_str("fn join(a: $A, b: $A) -> $A { $JOIN }\n");
        if self.form == ReduceForm::Vector {
            text.push_str(&FOUR.replace("$C", word(self.dtype)));
        }
        text.push_str(WIDE);
        let finish = if self.to_partial { "a".to_owned() } else { accumulator.finish.clone() };
        text.push_str(&format!("fn finish(a: $A) -> {output} {{ return {finish}; }}\n"));
        if self.form != ReduceForm::Serial {
            text.push_str("var<workgroup> shared_a: array<$A, 256>;\n");
        }
        text.push_str(ENTRY);
        text.push_str(match self.form {
            ReduceForm::Serial => SERIAL,
            ReduceForm::Cooperative => COOPERATIVE,
            ReduceForm::Vector => VECTOR,
        });
        if self.form != ReduceForm::Serial {
            text.push_str(TREE);
        }
        fill(
            &text,
            &[
                ("$MAKE", &accumulator.make),
                ("$JOIN", accumulator.join),
                ("$START", accumulator.start),
                ("$A", accumulator.kind),
            ],
        )
    }

    fn accumulator(&self) -> Accumulator {
        let carrier = carrier(self.dtype);
        let (key, unkey) = match self.reduction {
            Reduction::Min | Reduction::ArgMin => ("least", "unleast"),
            _ => ("key", "unkey"),
        };
        match (self.reduction, carrier) {
            (Reduction::Sum | Reduction::Mean, "vec2<f32>") => Accumulator {
                kind: "vec2<f32>",
                start: "vec2<f32>(0.0, 0.0)",
                make: "x".to_owned(),
                join: "return a + b;",
                finish: self.mean("a"),
                output: "vec2<f32>",
            },
            (Reduction::Sum | Reduction::Mean, "f32") => Accumulator {
                kind: "f32",
                start: "0.0",
                make: "x".to_owned(),
                join: "return a + b;",
                finish: self.mean("a"),
                output: "f32",
            },
            (Reduction::Sum, _) => Accumulator {
                kind: carrier,
                start: if carrier == "i32" { "0i" } else { "0u" },
                make: "x".to_owned(),
                join: "return a + b;",
                finish: "a".to_owned(),
                output: carrier,
            },
            (Reduction::Mean, _) => Accumulator {
                kind: "vec2<u32>",
                start: "vec2<u32>(0u, 0u)",
                make: if carrier == "i32" {
                    "vec2<u32>(bitcast<u32>(x), select(0u, 0xffffffffu, x < 0))".to_owned()
                } else {
                    "vec2<u32>(x, 0u)".to_owned()
                },
                join: "return wide_add(a, b);",
                finish: format!("wide_value(a, {}) / f32(p.count)", carrier == "i32"),
                output: "f32",
            },
            (Reduction::Max | Reduction::Min, _) => Accumulator {
                kind: "u32",
                start: "0u",
                make: format!("{key}_{carrier}(x)"),
                join: "return max(a, b);",
                finish: format!("{unkey}_{carrier}(a)"),
                output: carrier,
            },
            (Reduction::ArgMax | Reduction::ArgMin, _) => Accumulator {
                kind: "vec2<u32>",
                start: "vec2<u32>(0u, 0xffffffffu)",
                make: format!("vec2<u32>({key}_{carrier}(x), p.first + place)"),
                join: "if (b.x > a.x || (b.x == a.x && b.y < a.y)) { return b; } return a;",
                finish: "a.y".to_owned(),
                output: "u32",
            },
        }
    }

    fn mean(&self, sum: &str) -> String {
        if self.reduction == Reduction::Mean { format!("{sum} / f32(p.count)") } else { sum.to_owned() }
    }
}

/// Sums of 64 bits in two words, and their value as a float.
const WIDE: &str = "
fn wide_add(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let low = a.x + b.x;
  return vec2<u32>(low, a.y + b.y + select(0u, 1u, low < a.x));
}
fn wide_value(a: vec2<u32>, is_signed: bool) -> f32 {
  if (is_signed && a.y >= 0x80000000u) {
    let low = 0u - a.x;
    let high = ~a.y + select(0u, 1u, a.x == 0u);
    return -(f32(high) * 4294967296.0 + f32(low));
  }
  return f32(a.y) * 4294967296.0 + f32(a.x);
}
";

const SERIAL: &str = "
  let t = group * 256u + lid;
  if (t >= p.outer * p.chunks * p.inner) { return; }
  let i = t % p.inner;
  let r = t / p.inner;
  let c = r % p.chunks;
  let o = r / p.chunks;
  let end = min(p.axis, (c + 1u) * p.chunk);
  var a = $START;
  for (var k = c * p.chunk; k < end; k = k + 1u) {
    a = join(a, take(p.o + (o * p.axis + k) * p.inner + i, k));
  }
  out[(o * p.inner + i) * p.chunks + c] = finish(a);
}
";

const COOPERATIVE: &str = "
  if (group >= p.outer * p.inner * p.chunks) { return; }
  let c = group % p.chunks;
  let line = group / p.chunks;
  let i = line % p.inner;
  let o = line / p.inner;
  let end = min(p.axis, (c + 1u) * p.chunk);
  var a = $START;
  for (var k = c * p.chunk + lid; k < end; k = k + 256u) {
    a = join(a, take(p.o + (o * p.axis + k) * p.inner + i, k));
  }
";

/// Four vectors are read before any is used, so that their latencies overlap.
const VECTOR: &str = "
  if (group >= p.outer * p.chunks) { return; }
  let c = group % p.chunks;
  let line = group / p.chunks;
  let start = (p.o + line * p.axis) / 4u;
  let end = p.axis / 4u;
  var a = $START;
  var a1 = $START;
  var a2 = $START;
  var a3 = $START;
  // Neighbouring workgroups read neighbouring vectors, so that all of them sweep over memory together.
  for (var k = c * 1024u + lid; k < end; k = k + p.chunks * 1024u) {
    let x0 = source[start + k];
    let x1 = source[start + min(k + 256u, end - 1u)];
    let x2 = source[start + min(k + 512u, end - 1u)];
    let x3 = source[start + min(k + 768u, end - 1u)];
    a = join(a, four(x0, k * 4u));
    if (k + 256u < end) { a1 = join(a1, four(x1, k * 4u + 1024u)); }
    if (k + 512u < end) { a2 = join(a2, four(x2, k * 4u + 2048u)); }
    if (k + 768u < end) { a3 = join(a3, four(x3, k * 4u + 3072u)); }
  }
  a = join(join(a, a1), join(a2, a3));
";

/// Four neighbouring elements as one.
const FOUR: &str = "
fn four(x: vec4<$C>, k: u32) -> $A {
  return join(join(make(x.x, k), make(x.y, k + 1u)), join(make(x.z, k + 2u), make(x.w, k + 3u)));
}
";

const TREE: &str = "
  shared_a[lid] = a;
  workgroupBarrier();
  for (var s = 128u; s > 0u; s = s >> 1u) {
    if (lid < s) { shared_a[lid] = join(shared_a[lid], shared_a[lid + s]); }
    workgroupBarrier();
  }
  if (lid == 0u) { out[line * p.chunks + c] = finish(shared_a[0]); }
}
";
