//! Reductions, in `reduce.wgsl`: sums, means, extremes and their positions along one axis, in one
//! or two stages.
//!
//! A line holds the elements that are reduced to one. Parameters: lines outside the axis (`outer`),
//! its length, the elements after the axis (`inner`), chunks per line, elements per chunk, the
//! input's offset, the divisor of a mean, and the position of the first element on its line. The
//! first stage may write one partial result per line and chunk, which the second reads as lines of
//! `chunks` elements.

use panoply_core::DType;
use panoply_core::op::compute::Reduction;

use super::prelude::{carrier, word};
use super::template::Template;

/// The distribution of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReduceForm {
    /// One invocation per line and chunk.
    Serial,
    /// One workgroup per line and chunk.
    Cooperative,
    /// As `Cooperative`, with vectors of four. Requires types of four bytes, `inner` of one, and
    /// sizes and offsets that are multiples of four.
    Vector,
}

/// One stage of a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReduceKernel {
    /// The type of the reduced elements.
    pub dtype: DType,
    /// The reduction.
    pub reduction: Reduction,
    /// The distribution of the work.
    pub form: ReduceForm,
    /// Whether the input consists of partial results instead of elements.
    pub from_partial: bool,
    /// Whether the output consists of partial results instead of carriers.
    pub to_partial: bool,
}

/// The accumulator of a reduction: its type, its initial value, and expressions that convert an
/// element, combine two accumulators, and convert the result.
struct Accumulator {
    kind: &'static str,
    start: &'static str,
    /// The accumulator of the element `x` at `place`.
    make: String,
    join: &'static str,
    /// The output's carrier, computed from `a`.
    finish: String,
    output: &'static str,
}

impl ReduceKernel {
    /// Bytes of one partial result.
    pub fn partial_bytes(&self) -> usize {
        if self.accumulator().kind.starts_with("vec2") { 8 } else { 4 }
    }

    pub(super) fn source(&self) -> String {
        let Accumulator { kind, start, make, join, finish, output } = self.accumulator();
        let source = match (self.from_partial, self.form) {
            (true, _) => kind.to_owned(),
            (false, ReduceForm::Vector) => format!("vec4<{}>", word(self.dtype)),
            (false, _) => word(self.dtype).to_owned(),
        };
        let (output, finish) = if self.to_partial { (kind, "a".to_owned()) } else { (output, finish) };
        let template = Template::new(include_str!("reduce.wgsl")).dtype("TYPE", self.dtype);
        let template = template.set("KEPT", kind).set("START", start).set("MAKE", make).set("JOIN", join);
        let template = template.set("FINISH", finish).set("OUT", output).set("SOURCE", source);
        template.set("FORM", format!("{:?}", self.form)).flag("FROM_PARTIAL", self.from_partial).text()
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
                join: "Sum",
                finish: self.mean("a"),
                output: "vec2<f32>",
            },
            (Reduction::Sum | Reduction::Mean, "f32") => Accumulator {
                kind: "f32",
                start: "0.0",
                make: "x".to_owned(),
                join: "Sum",
                finish: self.mean("a"),
                output: "f32",
            },
            (Reduction::Sum, _) => Accumulator {
                kind: carrier,
                start: if carrier == "i32" { "0i" } else { "0u" },
                make: "x".to_owned(),
                join: "Sum",
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
                join: "WideSum",
                finish: format!("wide_value(a, {}) / f32(p.count)", carrier == "i32"),
                output: "f32",
            },
            (Reduction::Max | Reduction::Min, _) => Accumulator {
                kind: "u32",
                start: "0u",
                make: format!("{key}_{carrier}(x)"),
                join: "Max",
                finish: format!("{unkey}_{carrier}(a)"),
                output: carrier,
            },
            (Reduction::ArgMax | Reduction::ArgMin, _) => Accumulator {
                kind: "vec2<u32>",
                start: "vec2<u32>(0u, 0xffffffffu)",
                make: format!("vec2<u32>({key}_{carrier}(x), p.first + place)"),
                join: "First",
                finish: "a.y".to_owned(),
                output: "u32",
            },
        }
    }

    fn mean(&self, sum: &str) -> String {
        if self.reduction == Reduction::Mean { format!("{sum} / f32(p.count)") } else { sum.to_owned() }
    }
}
