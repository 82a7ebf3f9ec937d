//! Element types of tensors.

use core::fmt;

pub use half::{bf16, f16};
/// A complex number of two `f32`: real part first, then the imaginary part.
pub type Complex64 = num_complex::Complex<f32>;

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 half precision.
    F16,
    /// The upper half of an `f32`.
    BF16,
    /// IEEE 754 double precision.
    F64,
    /// Signed 32-bit integer.
    I32,
    /// Unsigned 32-bit integer.
    U32,
    /// Signed 8-bit integer.
    I8,
    /// Unsigned 8-bit integer.
    U8,
    /// Two `f32`: real and imaginary part.
    Complex64,
}

impl DType {
    /// Every element type, in the order of the documentation.
    pub const ALL: [DType; 9] = [
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::F64,
        DType::I32,
        DType::U32,
        DType::I8,
        DType::U8,
        DType::Complex64,
    ];

    /// Bytes that one element takes.
    pub const fn size_bytes(self) -> usize {
        match self {
            DType::I8 | DType::U8 => 1,
            DType::F16 | DType::BF16 => 2,
            DType::F32 | DType::I32 | DType::U32 => 4,
            DType::F64 | DType::Complex64 => 8,
        }
    }

    /// The alignment that one element needs.
    pub const fn align_bytes(self) -> usize {
        match self {
            DType::Complex64 => 4,
            other => other.size_bytes(),
        }
    }

    /// True for f32, f16, bf16 and f64.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F16 | DType::BF16 | DType::F64)
    }

    /// True for i32, u32, i8 and u8.
    pub const fn is_integer(self) -> bool {
        matches!(self, DType::I32 | DType::U32 | DType::I8 | DType::U8)
    }

    /// The name used in the command line, in benchmarks and in messages.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F64 => "f64",
            DType::I32 => "i32",
            DType::U32 => "u32",
            DType::I8 => "i8",
            DType::U8 => "u8",
            DType::Complex64 => "c64",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A Rust type that can be a tensor's element. The trait is sealed: the list is [`DType::ALL`].
pub trait Element: bytemuck::Pod + Send + Sync + fmt::Debug + PartialEq + sealed::Sealed {
    /// The element type of `Self`.
    const DTYPE: DType;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident),* $(,)?) => {$(
        impl sealed::Sealed for $rust {}
        impl Element for $rust {
            const DTYPE: DType = DType::$dtype;
        }
    )*};
}

elements! {
    f32 => F32, f16 => F16, bf16 => BF16, f64 => F64, i32 => I32, u32 => U32, i8 => I8, u8 => U8,
    Complex64 => Complex64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_agree_with_the_rust_types() {
        fn check<T: Element>() {
            assert_eq!(T::DTYPE.size_bytes(), size_of::<T>());
            assert_eq!(T::DTYPE.align_bytes(), align_of::<T>());
        }
        check::<f32>();
        check::<f16>();
        check::<bf16>();
        check::<f64>();
        check::<i32>();
        check::<u32>();
        check::<i8>();
        check::<u8>();
        check::<Complex64>();
    }
}
