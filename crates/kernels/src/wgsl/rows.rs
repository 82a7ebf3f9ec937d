//! Softmax and layer normalisation, in `rows.wgsl`: a line is read, its statistics are computed,
//! and the line is written.
//!
//! Parameters: `outer`, the line's length, `inner`, the input's offset, epsilon as a float, and the
//! offsets of weight and bias. Buffers read: the input, then weight and bias if there are any. In
//! [`RowForm::Cached`] every invocation keeps its part of the line, up to `chunks` vectors of four,
//! in registers.

use panoply_core::DType;

use super::prelude::word;
use super::template::Template;

/// The function of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowOp {
    /// Softmax.
    Softmax {
        /// Whether to return its logarithm.
        log: bool,
    },
    /// Normalisation to mean zero and variance one, or with `rms` to a mean square of one.
    LayerNorm {
        /// Whether to leave the mean unchanged.
        rms: bool,
        /// Whether to multiply by weights.
        weight: bool,
        /// Whether to add a bias.
        bias: bool,
    },
}

/// The distribution of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowForm {
    /// One invocation per line.
    Serial,
    /// One workgroup per line, which is read three times.
    Cooperative,
    /// One workgroup per line of f32, which is read once: at most `chunks` · 1024 elements, a
    /// multiple of four.
    Cached {
        /// Vectors of four per invocation.
        chunks: u8,
    },
    /// One subgroup per line of f32, which is read once, without barriers: at most `chunks` · 4 ·
    /// `lanes` elements, a multiple of four.
    Subgroup {
        /// Vectors of four per invocation.
        chunks: u8,
        /// Invocations of a subgroup, constant on the adapter.
        lanes: u8,
    },
}

/// Softmax or layer normalisation over lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowKernel {
    /// The type of the elements: f32, f16 or bf16.
    pub dtype: DType,
    /// The function of a line.
    pub op: RowOp,
    /// The distribution of the work.
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
            // The elements were replaced by their exponentials already.
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
