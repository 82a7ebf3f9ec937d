//! Softmax and layer normalisation: a line is read, what it comes to is found, and the line is written.
//!
//! Parameters: `outer`, the line's length, `inner`, the input's offset, epsilon as a float, and the offsets of weight and
//! bias. Buffers read: the input, then weight and bias where there are any. In [`RowForm::Cached`] every invocation keeps
//! its part of the line, up to `chunks` vectors of four, in registers.

use panoply_core::DType;

use super::math::MATH;
use super::prelude::{BITS, ENTRY, buffers, fill, load, params, word};

/// What becomes of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowOp {
    /// Exponentials that add up to one.
    Softmax {
        /// Their logarithms instead.
        log: bool,
    },
    /// Mean zero and variance one, or with `rms` a mean square of one.
    LayerNorm {
        /// Leaves the mean alone.
        rms: bool,
        /// Multiplied by weights.
        weight: bool,
        /// With summands.
        bias: bool,
    },
}

/// How the work is spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowForm {
    /// One invocation for each line.
    Serial,
    /// One workgroup for each line, which is read three times.
    Cooperative,
    /// One workgroup for each line of f32, which is read once: at most `chunks` · 1024 elements, a multiple of four.
    Cached {
        /// Vectors of four in each invocation.
        chunks: u8,
    },
    /// One subgroup for each line of f32, which is read once, and no barrier: at most `chunks` · 4 · `lanes` elements, a
    /// multiple of four.
    Subgroup {
        /// Vectors of four in each invocation.
        chunks: u8,
        /// Invocations of a subgroup, on this adapter always the same number.
        lanes: u8,
    },
}

/// One kernel over lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowKernel {
    /// The type of the elements: f32, f16 or bf16.
    pub dtype: DType,
    /// What becomes of a line.
    pub op: RowOp,
    /// How the work is spread.
    pub form: RowForm,
}

impl RowKernel {
    pub(super) fn source(&self) -> String {
        let mut text = params(&["outer", "axis", "inner", "o", "epsilon: f32", "wo", "bo"]);
        let cached = matches!(self.form, RowForm::Cached { .. } | RowForm::Subgroup { .. });
        let element = if cached { "vec4<f32>" } else { "f32" };
        let source = if cached { "vec4<f32>" } else { word(self.dtype) };
        let mut reads = vec![("source", source)];
        let (weight, bias) = match self.op {
            RowOp::LayerNorm { weight, bias, .. } => (weight, bias),
            RowOp::Softmax { .. } => (false, false),
        };
        if weight {
            reads.push(("weight", source));
        }
        if bias {
            reads.push(("bias", source));
        }
        text.push_str(&buffers(&[("out", element)], &reads));
        text.push_str(BITS);
        if matches!(self.op, RowOp::Softmax { .. }) {
            text.push_str(MATH);
            text.push_str("fn exp4(x: vec4<f32>) -> vec4<f32> { return vec4<f32>(exp_(x.x), exp_(x.y), exp_(x.z), exp_(x.w)); }\n");
        }
        for (name, _) in reads.iter().filter(|_| !cached) {
            text.push_str(&load(name, self.dtype));
        }
        text.push_str(&self.shared());
        text.push_str(if matches!(self.form, RowForm::Subgroup { .. }) { SUBGROUP_ENTRY } else { ENTRY });
        let written = self.written(cached, weight, bias);
        text.push_str(&match self.form {
            RowForm::Serial => fill(SERIAL, &[("$PASSES", &passes(self.op))]),
            RowForm::Cooperative => fill(COOPERATIVE, &[("$PASSES", &passes(self.op))]),
            RowForm::Cached { chunks } => cached_body(self.op, chunks, 256, CACHED_HEAD),
            RowForm::Subgroup { chunks, lanes } => {
                let rows = (256 / u32::from(lanes)).to_string();
                cached_body(self.op, chunks, u32::from(lanes), &SUBGROUP_HEAD.replace("$ROWS", &rows))
            }
        });
        text.replace("$WRITTEN", &written)
    }

    /// Reductions over the workgroup, for the forms that have one.
    fn shared(&self) -> String {
        if self.form == RowForm::Serial {
            return "fn total_max(x: f32, lid: u32) -> f32 { return x; }\nfn total_sum(x: f32, lid: u32) -> f32 { return x; }\n"
                .to_owned();
        }
        if matches!(self.form, RowForm::Subgroup { .. }) {
            return "fn total_max(x: f32, lid: u32) -> f32 { return subgroupMax(x); }\nfn total_sum(x: f32, lid: u32) -> f32 { return subgroupAdd(x); }\n"
                .to_owned();
        }
        SHARED.to_owned()
    }

    /// The expression of the output for the element `x` at position `k`.
    fn written(&self, cached: bool, weight: bool, bias: bool) -> String {
        match self.op {
            RowOp::Softmax { log: true } => "(x - top - log_total)".to_owned(),
            // The exponentials are in place of the elements already.
            RowOp::Softmax { log: false } if cached => "(x * scale)".to_owned(),
            RowOp::Softmax { log: false } => "(exp_(x - top) / total)".to_owned(),
            RowOp::LayerNorm { .. } => {
                let factor = match (weight, cached) {
                    (false, _) => String::new(),
                    (true, true) => " * weight[(p.wo + k) / 4u]".to_owned(),
                    (true, false) => " * ld_weight(p.wo + k)".to_owned(),
                };
                let summand = match (bias, cached) {
                    (false, _) => String::new(),
                    (true, true) => " + bias[(p.bo + k) / 4u]".to_owned(),
                    (true, false) => " + ld_bias(p.bo + k)".to_owned(),
                };
                format!("((x - mean) / deviation{factor}{summand})")
            }
        }
    }
}

/// The passes over a line that is read again for each. `first` and `step` come from the form.
fn passes(op: RowOp) -> String {
    match op {
        RowOp::Softmax { .. } => {
            "  var top = -inf_value();
  for (var k = first; k < p.axis; k = k + step) {
    let x = ld_source(p.o + place(o, i, k));
    if (x > top) { top = x; }
  }
  top = total_max(top, lid);
  var total = 0.0;
  for (var k = first; k < p.axis; k = k + step) { total = total + exp_(ld_source(p.o + place(o, i, k)) - top); }
  total = total_sum(total, lid);
  let log_total = log_(total);
"
        }
        RowOp::LayerNorm { rms: true, .. } => {
            "  let mean = 0.0;
  var squares = 0.0;
  for (var k = first; k < p.axis; k = k + step) { let x = ld_source(p.o + place(o, i, k)); squares = squares + x * x; }
  squares = total_sum(squares, lid);
  let deviation = sqrt(squares / f32(p.axis) + p.epsilon);
"
        }
        RowOp::LayerNorm { rms: false, .. } => {
            "  var mean = 0.0;
  for (var k = first; k < p.axis; k = k + step) { mean = mean + ld_source(p.o + place(o, i, k)); }
  mean = total_sum(mean, lid) / f32(p.axis);
  var squares = 0.0;
  for (var k = first; k < p.axis; k = k + step) { let d = ld_source(p.o + place(o, i, k)) - mean; squares = squares + d * d; }
  squares = total_sum(squares, lid);
  let deviation = sqrt(squares / f32(p.axis) + p.epsilon);
"
        }
    }
    .to_owned()
}

/// The body of the form that keeps the line in registers, written out vector by vector.
fn cached_body(op: RowOp, chunks: u8, lanes: u32, head: &str) -> String {
    let mut text = head.to_owned();
    let each = |line: &str| {
        let place = |chunk: u8| format!("(lane + {}u)", u32::from(chunk) * lanes);
        let lines = (0..chunks).map(|chunk| line.replace("$C", &chunk.to_string()).replace("$K", &place(chunk)));
        lines.collect::<String>()
    };
    let filler = if matches!(op, RowOp::Softmax { .. }) { "-inf_value()" } else { "0.0" };
    let read = "  let in$C = $K < len;\n  var x$C = vec4<f32>($FILLER);\n  if (in$C) { x$C = source[start + $K]; }\n";
    text.push_str(&each(&read.replace("$FILLER", filler)));
    match op {
        RowOp::Softmax { log } => {
            text.push_str("  var top = -inf_value();\n");
            text.push_str(&each("  if (x$C.x > top) { top = x$C.x; }\n  if (x$C.y > top) { top = x$C.y; }\n  if (x$C.z > top) { top = x$C.z; }\n  if (x$C.w > top) { top = x$C.w; }\n"));
            text.push_str("  top = total_max(top, lid);\n  var total = 0.0;\n");
            // A line whose largest is infinite, or that has only -inf, must become NaN: places behind its end do not count.
            let kept = if log { "" } else { "x$C = e; " };
            let sum = "  if (in$C) { let e = exp4(x$C - top); $KEPTtotal = total + ((e.x + e.y) + (e.z + e.w)); }\n";
            text.push_str(&each(&sum.replace("$KEPT", kept)));
            text.push_str("  total = total_sum(total, lid);\n");
            text.push_str(if log { "  let log_total = log_(total);\n" } else { "  let scale = 1.0 / total;\n" });
        }
        RowOp::LayerNorm { rms, .. } => {
            text.push_str("  var mean = 0.0;\n");
            if !rms {
                text.push_str(&each("  mean = mean + ((x$C.x + x$C.y) + (x$C.z + x$C.w));\n"));
                text.push_str("  mean = total_sum(mean, lid) / f32(p.axis);\n");
            }
            text.push_str("  var squares = 0.0;\n");
            text.push_str(&each("  if (in$C) { let d = x$C - mean; squares = squares + dot(d, d); }\n"));
            text.push_str(
                "  squares = total_sum(squares, lid);\n  let deviation = sqrt(squares / f32(p.axis) + p.epsilon);\n",
            );
        }
    }
    text.push_str(&each("  if (in$C) { let x = x$C; let k = $K * 4u; out[place + $K] = $WRITTEN; }\n"));
    text.push_str("}\n");
    text
}

const CACHED_HEAD: &str = "
  if (group >= p.outer) { return; }
  let start = (p.o + group * p.axis) / 4u;
  let place = group * p.axis / 4u;
  let len = p.axis / 4u;
  let lane = lid;
";

/// Lines behind the last are computed like it and not written, so that subgroups stay whole.
const SUBGROUP_HEAD: &str = "
  let row = group * $ROWSu + subgroup;
  let line = min(row, p.outer - 1u);
  let start = (p.o + line * p.axis) / 4u;
  let place = line * p.axis / 4u;
  let len = select(0u, p.axis / 4u, row < p.outer);
";

const SUBGROUP_ENTRY: &str = "
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>,
        @builtin(local_invocation_index) lid: u32, @builtin(subgroup_id) subgroup: u32,
        @builtin(subgroup_invocation_id) lane: u32) {
  let group = wid.y * nwg.x + wid.x;
";

const SHARED: &str = "
var<workgroup> shared_x: array<f32, 256>;
fn total_max(x: f32, lid: u32) -> f32 {
  shared_x[lid] = x;
  workgroupBarrier();
  for (var s = 128u; s > 0u; s = s >> 1u) {
    if (lid < s && shared_x[lid + s] > shared_x[lid]) { shared_x[lid] = shared_x[lid + s]; }
    workgroupBarrier();
  }
  let result = shared_x[0];
  workgroupBarrier();
  return result;
}
fn total_sum(x: f32, lid: u32) -> f32 {
  shared_x[lid] = x;
  workgroupBarrier();
  for (var s = 128u; s > 0u; s = s >> 1u) {
    if (lid < s) { shared_x[lid] = shared_x[lid] + shared_x[lid + s]; }
    workgroupBarrier();
  }
  let result = shared_x[0];
  workgroupBarrier();
  return result;
}
fn place(o: u32, i: u32, k: u32) -> u32 { return (o * p.axis + k) * p.inner + i; }
";

const SERIAL: &str = "
  let t = group * 256u + lid;
  if (t >= p.outer * p.inner) { return; }
  let o = t / p.inner;
  let i = t % p.inner;
  let first = 0u;
  let step = 1u;
$PASSES
  for (var k = first; k < p.axis; k = k + step) {
    let at = (o * p.axis + k) * p.inner + i;
    let x = ld_source(p.o + at);
    out[at] = $WRITTEN;
  }
}
fn place(o: u32, i: u32, k: u32) -> u32 { return (o * p.axis + k) * p.inner + i; }
";

const COOPERATIVE: &str = "
  if (group >= p.outer * p.inner) { return; }
  let o = group / p.inner;
  let i = group % p.inner;
  let first = lid;
  let step = 256u;
$PASSES
  for (var k = first; k < p.axis; k = k + step) {
    let at = (o * p.axis + k) * p.inner + i;
    let x = ld_source(p.o + at);
    out[at] = $WRITTEN;
  }
}
";
