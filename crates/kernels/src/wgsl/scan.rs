//! Scans, in `scan.wgsl`: running values along one axis.
//!
//! A line is the elements along the axis. Parameters: `outer`, the axis' length, `inner`, chunks
//! per line, elements per chunk, the input's offset, 1 for reverse order, 1 for an exclusive scan;
//! then the first chunk to work on and the end of the range, counted over all lines, and the number
//! added to the output's indices. Both offsets count from the line's start and may be negative,
//! modulo 2³²: buffers then begin in the middle of a line. [`ScanForm::Total`] writes the total of
//! each chunk, one word per line and chunk; [`ScanForm::Chunks`] scans every chunk, starting from
//! the carry in the second buffer if `carried`. Totals are scanned exclusively, as lines of
//! `chunks` words.

use panoply_core::DType;
use panoply_core::op::compute::ScanKind;

use super::prelude::{carrier, word};
use super::template::Template;

/// The role of one kernel of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScanForm {
    /// One invocation per line.
    Serial,
    /// One workgroup per line and chunk.
    Chunks,
    /// As `Chunks`, but only computes the total of each chunk.
    Total,
    /// An exclusive scan of totals, one workgroup per line.
    Carries,
}

/// One kernel of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScanKernel {
    /// The type of the elements.
    pub dtype: DType,
    /// The operation.
    pub kind: ScanKind,
    /// The role of the kernel.
    pub form: ScanForm,
    /// Whether chunks start from a carry.
    pub carried: bool,
    /// Whether to use vectors of four. Requires types of four bytes, `inner` of one, forward order,
    /// and sizes and offsets that are multiples of four.
    pub vector: bool,
    /// Scan over subgroups of this many invocations, with few barriers; only for sums and products.
    pub lanes: Option<u8>,
}

impl ScanKernel {
    pub(super) fn source(&self) -> String {
        let carrier = carrier(self.dtype);
        let (key, unkey) = if self.kind == ScanKind::Min { ("least", "unleast") } else { ("key", "unkey") };
        let by_key = matches!(self.kind, ScanKind::Max | ScanKind::Min);
        let kept = if by_key { "u32" } else { carrier };
        let carries = self.form == ScanForm::Carries;
        let four = |kind: &str| if self.vector { format!("vec4<{kind}>") } else { kind.to_owned() };
        let element = if carries { kept } else { carrier };
        let output = if self.form == ScanForm::Total { kept.to_owned() } else { four(element) };
        let (make, finish) = if by_key && !carries {
            (format!("{key}_{carrier}(x)"), format!("{unkey}_{carrier}(a)"))
        } else {
            ("x".to_owned(), "a".to_owned())
        };
        let within = if self.kind == ScanKind::Sum { "subgroupExclusiveAdd" } else { "subgroupExclusiveMul" };
        let template = Template::new(include_str!("scan.wgsl")).dtype("TYPE", self.dtype).set("KEPT", kept);
        let template = template.set("SOURCE", four(if carries { kept } else { word(self.dtype) })).set("OUT", output);
        let template = template.set("ELEMENT", element).set("MAKE", make).set("FINISH", finish);
        let template = template.set("JOIN", self.join()).set("START", self.start(carrier)).set("WITHIN", within);
        let template = template.set("FORM", format!("{:?}", self.form)).flag("CARRIED", self.carried);
        let template = template.flag("VECTOR", self.vector).flag("ROWS", self.vector && self.lanes.is_some());
        let lanes = u32::from(self.lanes.unwrap_or(1));
        template.flag("SUBGROUPS", self.lanes.is_some()).set("COUNT", 256 / lanes).text()
    }

    fn join(&self) -> &'static str {
        match self.kind {
            ScanKind::Sum => "a + b",
            ScanKind::Product => "a * b",
            ScanKind::Max | ScanKind::Min => "max(a, b)",
        }
    }

    fn start(&self, carrier: &str) -> String {
        let lowest = match (self.kind, self.dtype) {
            (ScanKind::Sum, _) => return if carrier == "f32" { "0.0".to_owned() } else { format!("{carrier}(0)") },
            (ScanKind::Product, _) => return if carrier == "f32" { "1.0".to_owned() } else { format!("{carrier}(1)") },
            (ScanKind::Max, DType::I8) => "key_i32(-128)",
            (ScanKind::Min, DType::I8) => "least_i32(127)",
            (ScanKind::Min, DType::U8) => "least_u32(255u)",
            (ScanKind::Max, _) if carrier == "f32" => "key_f32(-inf_value())",
            (ScanKind::Min, _) if carrier == "f32" => "least_f32(inf_value())",
            _ => "0u",
        };
        lowest.to_owned()
    }
}
