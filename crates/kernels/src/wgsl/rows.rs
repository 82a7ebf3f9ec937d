//! Softmax and layer normalisation, in `rows.wgsl`: a line is read, what it comes to is found, and the line is written.
//!
//! Parameters: `outer`, the line's length, `inner`, the input's offset, epsilon as a float, and the offsets of weight and
//! bias. Buffers read: the input, then weight and bias where there are any. In [`RowForm::Cached`] every invocation keeps
//! its part of the line, up to `chunks` vectors of four, in registers.

use panoply_core::DType;

use super::prelude::word;
use super::template::Template;

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
        let (form, chunks, lanes) = match self.form {
            RowForm::Serial => ("Serial", 0, 256),
            RowForm::Cooperative => ("Cooperative", 0, 256),
            RowForm::Cached { chunks } => ("Cached", chunks, 256),
            RowForm::Subgroup { chunks, lanes } => ("Subgroup", chunks, u32::from(lanes)),
        };
        let (op, log, rms, weight, bias) = match self.op {
            RowOp::Softmax { log } => ("Softmax", log, false, false, false),
            RowOp::LayerNorm { rms, weight, bias } => ("LayerNorm", false, rms, weight, bias),
        };
        let cached = chunks > 0;
        let template = Template::new(include_str!("rows.wgsl")).dtype("TYPE", self.dtype).set("FORM", form);
        let template = template.set("ELEMENT", if cached { "vec4<f32>" } else { "f32" });
        let template = template.set("SOURCE", if cached { "vec4<f32>" } else { word(self.dtype) });
        let template = template.set("OP", op).flag("LOG", log).flag("RMS", rms);
        let template = template.flag("WEIGHT", weight).flag("BIAS", bias).flag("CACHED", cached);
        let template = template.set("CHUNKS", chunks).set("LANES", lanes).set("ROWS", 256 / lanes);
        template.set("WRITTEN", self.written(cached, weight, bias)).text()
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
