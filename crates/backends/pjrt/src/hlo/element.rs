//! Element types of StableHLO values, and constants of these types.

use panoply_core::DType;

/// The type of a value's elements: one of Panoply's dtypes, or a boolean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Element {
    Of(DType),
    Bool,
}

impl Element {
    pub(crate) const F32: Element = Element::Of(DType::F32);
    pub(crate) const F64: Element = Element::Of(DType::F64);
    pub(crate) const I32: Element = Element::Of(DType::I32);
    pub(crate) const U32: Element = Element::Of(DType::U32);

    /// The name in MLIR.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Element::Bool => "i1",
            Element::Of(DType::F32) => "f32",
            Element::Of(DType::F16) => "f16",
            Element::Of(DType::BF16) => "bf16",
            Element::Of(DType::F64) => "f64",
            Element::Of(DType::I32) => "i32",
            Element::Of(DType::U32) => "ui32",
            Element::Of(DType::I8) => "i8",
            Element::Of(DType::U8) => "ui8",
            Element::Of(DType::Complex64) => "complex<f32>",
        }
    }

    /// Formats a number as an MLIR constant of this type. Floats are written by their bits, so that
    /// nothing is lost.
    pub(crate) fn literal(self, value: f64) -> String {
        let f32_bits = |value: f64| format!("0x{:08X}", (value as f32).to_bits());
        match self {
            Element::Bool => (value != 0.0).to_string(),
            Element::Of(DType::F32) => f32_bits(value),
            Element::Of(DType::F16) => format!("0x{:04X}", panoply_core::f16::from_f64(value).to_bits()),
            Element::Of(DType::BF16) => format!("0x{:04X}", panoply_core::bf16::from_f64(value).to_bits()),
            Element::Of(DType::F64) => format!("0x{:016X}", value.to_bits()),
            Element::Of(DType::Complex64) => format!("({}, {})", f32_bits(value), f32_bits(0.0)),
            Element::Of(DType::I32) => (value as i32).to_string(),
            Element::Of(DType::U32) => (value as u32).to_string(),
            Element::Of(DType::I8) => (value as i8).to_string(),
            Element::Of(DType::U8) => (value as u8).to_string(),
        }
    }

    pub(crate) fn is_integer(self) -> bool {
        matches!(self, Element::Of(dtype) if dtype.is_integer())
    }

    pub(crate) fn is_unsigned(self) -> bool {
        matches!(self, Element::Of(DType::U32 | DType::U8))
    }

    /// The lowest value, the identity of the maximum.
    pub(crate) fn lowest(self) -> f64 {
        match self {
            Element::Of(DType::I32) => f64::from(i32::MIN),
            Element::Of(DType::I8) => f64::from(i8::MIN),
            Element::Of(DType::U32 | DType::U8) | Element::Bool => 0.0,
            _ => f64::NEG_INFINITY,
        }
    }

    /// The highest value, the identity of the minimum.
    pub(crate) fn highest(self) -> f64 {
        match self {
            Element::Of(DType::I32) => f64::from(i32::MAX),
            Element::Of(DType::U32) => f64::from(u32::MAX),
            Element::Of(DType::I8) => f64::from(i8::MAX),
            Element::Of(DType::U8) => f64::from(u8::MAX),
            Element::Bool => 1.0,
            _ => f64::INFINITY,
        }
    }
}

impl From<DType> for Element {
    fn from(dtype: DType) -> Element {
        Element::Of(dtype)
    }
}
