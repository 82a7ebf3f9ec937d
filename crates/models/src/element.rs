//! The element types of ONNX. Devices have tensors of some of them.

use std::fmt;

use panoply_core::DType;

use crate::error::{Error, Result};

macro_rules! element_types {
    ($($(#[$doc:meta])* $item:ident = $code:literal $name:literal $bytes:literal,)*) => {
        /// The type of an array's elements.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum ElementType {
            $($(#[$doc])* $item,)*
        }

        impl ElementType {
            /// Every element type.
            pub const ALL: &'static [ElementType] = &[$(ElementType::$item,)*];

            /// The name in messages and on the command line.
            pub const fn name(self) -> &'static str {
                match self { $(ElementType::$item => $name,)* }
            }

            /// Bytes that one element takes in an [`Array`](crate::Array). Zero for strings.
            pub const fn size_bytes(self) -> usize {
                match self { $(ElementType::$item => $bytes,)* }
            }

            /// The number of the type in ONNX files.
            pub const fn code(self) -> i32 {
                match self { $(ElementType::$item => $code,)* }
            }
        }
    };
}

element_types! {
    /// IEEE 754 single precision.
    F32 = 1 "f32" 4,
    /// Unsigned 8-bit integer.
    U8 = 2 "u8" 1,
    /// Signed 8-bit integer.
    I8 = 3 "i8" 1,
    /// Unsigned 16-bit integer.
    U16 = 4 "u16" 2,
    /// Signed 16-bit integer.
    I16 = 5 "i16" 2,
    /// Signed 32-bit integer.
    I32 = 6 "i32" 4,
    /// Signed 64-bit integer.
    I64 = 7 "i64" 8,
    /// Text.
    String = 8 "string" 0,
    /// True or false: a byte of 1 or 0.
    Bool = 9 "bool" 1,
    /// IEEE 754 half precision.
    F16 = 10 "f16" 2,
    /// IEEE 754 double precision.
    F64 = 11 "f64" 8,
    /// Unsigned 32-bit integer.
    U32 = 12 "u32" 4,
    /// Unsigned 64-bit integer.
    U64 = 13 "u64" 8,
    /// The upper half of an `f32`.
    BF16 = 16 "bf16" 2,
    /// Four bits of exponent, three of fraction, no infinity.
    F8E4M3 = 17 "f8e4m3fn" 1,
    /// As `F8E4M3`, with another bias and no negative zero.
    F8E4M3Uz = 18 "f8e4m3fnuz" 1,
    /// Five bits of exponent, two of fraction.
    F8E5M2 = 19 "f8e5m2" 1,
    /// As `F8E5M2`, with another bias, no infinity and no negative zero.
    F8E5M2Uz = 20 "f8e5m2fnuz" 1,
    /// Unsigned 4-bit integer, in a byte of its own.
    U4 = 21 "u4" 1,
    /// Signed 4-bit integer, in a byte of its own.
    I4 = 22 "i4" 1,
    /// Two bits of exponent, one of fraction, in a byte of its own.
    F4E2M1 = 23 "f4e2m1" 1,
    /// A power of two.
    F8E8M0 = 24 "f8e8m0" 1,
    /// Unsigned 2-bit integer, in a byte of its own.
    U2 = 25 "u2" 1,
    /// Signed 2-bit integer, in a byte of its own.
    I2 = 26 "i2" 1,
}

impl ElementType {
    /// The element type with this number in ONNX files.
    pub fn from_code(code: i64) -> Result<ElementType> {
        let known = ElementType::ALL.iter().find(|kind| i64::from(kind.code()) == code);
        known.copied().ok_or_else(|| match code {
            14 | 15 => Error::unsupported("complex elements"),
            _ => Error::invalid("an element type", "one that ONNX has (1 to 26)", code),
        })
    }

    /// The element type with this name.
    pub fn from_name(name: &str) -> Option<ElementType> {
        ElementType::ALL.iter().find(|kind| kind.name() == name).copied()
    }

    /// The device element type, if devices have this type unchanged.
    pub fn dtype(self) -> Option<DType> {
        Some(match self {
            ElementType::F32 => DType::F32,
            ElementType::F16 => DType::F16,
            ElementType::BF16 => DType::BF16,
            ElementType::F64 => DType::F64,
            ElementType::I32 => DType::I32,
            ElementType::U32 => DType::U32,
            ElementType::I8 => DType::I8,
            ElementType::U8 => DType::U8,
            _ => return None,
        })
    }

    /// The element type that devices hold it in: [`ElementType::dtype`], or bytes for booleans.
    pub(crate) fn carrier(self) -> Option<DType> {
        if self == ElementType::Bool { Some(DType::U8) } else { self.dtype() }
    }

    /// Whether the type is a floating-point type.
    pub fn is_float(self) -> bool {
        use ElementType::*;
        matches!(self, F32 | F16 | BF16 | F64 | F8E4M3 | F8E4M3Uz | F8E5M2 | F8E5M2Uz | F8E8M0 | F4E2M1)
    }

    /// Whether the type is an integer type (booleans are not).
    pub fn is_integer(self) -> bool {
        !self.is_float() && !matches!(self, ElementType::Bool | ElementType::String)
    }

    /// Number of bits of an integer.
    pub(crate) fn bits(self) -> u32 {
        match self {
            ElementType::U2 | ElementType::I2 => 2,
            ElementType::U4 | ElementType::I4 | ElementType::F4E2M1 => 4,
            other => other.size_bytes() as u32 * 8,
        }
    }

    /// Whether the type is a signed integer.
    pub(crate) fn is_signed(self) -> bool {
        use ElementType::*;
        matches!(self, I2 | I4 | I8 | I16 | I32 | I64)
    }

    /// The smallest and the largest value of an integer type.
    pub(crate) fn range(self) -> (i128, i128) {
        match (self, self.bits()) {
            (ElementType::Bool, _) => (0, 1),
            (kind, bits) if kind.is_signed() => (-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
            (_, bits) => (0, (1 << bits.clamp(1, 64)) - 1),
        }
    }

    /// Wraps an integer to the type's bits.
    pub(crate) fn wrap(self, value: i128) -> i128 {
        if self == ElementType::Bool {
            return i128::from(value != 0);
        }
        let (low, high) = self.range();
        // `width` divides 2^128, so an overflow of the subtraction does not change the remainder.
        let width = (high - low + 1) as u128;
        if (low..=high).contains(&value) { value } else { (value.wrapping_sub(low) as u128 % width) as i128 + low }
    }
}

impl From<DType> for ElementType {
    fn from(dtype: DType) -> ElementType {
        match dtype {
            DType::F32 => ElementType::F32,
            DType::F16 => ElementType::F16,
            DType::BF16 => ElementType::BF16,
            DType::F64 => ElementType::F64,
            DType::I32 => ElementType::I32,
            DType::U32 => ElementType::U32,
            DType::I8 => ElementType::I8,
            // Complex tensors do not reach models. Their bytes stand for them here.
            DType::U8 | DType::Complex64 => ElementType::U8,
        }
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_wrap_in_their_own_width() {
        assert_eq!(ElementType::I8.wrap(200), -56);
        assert_eq!(ElementType::U4.wrap(-1), 15);
        assert_eq!(ElementType::I2.wrap(2), -2);
        assert_eq!(ElementType::U64.wrap(-1), i128::from(u64::MAX));
        assert_eq!(ElementType::I64.wrap(1 << 63), i128::from(i64::MIN));
        assert_eq!(ElementType::Bool.wrap(7), 1);
        assert_eq!(ElementType::I8.wrap(i128::MAX), -1);
        assert_eq!(ElementType::I64.wrap(i128::MIN), 0);
    }

    #[test]
    fn numbers_and_names_lead_back() {
        for kind in ElementType::ALL {
            assert_eq!(ElementType::from_code(i64::from(kind.code())).unwrap(), *kind);
            assert_eq!(ElementType::from_name(kind.name()), Some(*kind));
        }
        assert!(ElementType::from_code(14).unwrap_err().is_unsupported());
        assert!(!ElementType::from_code(99).unwrap_err().is_unsupported());
    }
}
