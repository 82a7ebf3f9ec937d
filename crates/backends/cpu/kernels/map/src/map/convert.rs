//! Kernels that convert between element types: casts, and the narrow floats in their stored form.

use std::marker::PhantomData;

use panoply_core::{Complex64, DType};

use super::kernel::{BlockFn, ComputeType, Kernel, block_fn, each};
use crate::simd::Simd;
use crate::vmath::lanes::Lanes;

/// The type in which values of a dtype are computed.
pub(super) fn kind_of(dtype: DType) -> ComputeType {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => ComputeType::F32,
        DType::F64 => ComputeType::F64,
        DType::I32 => ComputeType::I32,
        DType::U32 => ComputeType::U32,
        DType::I8 => ComputeType::I8,
        DType::U8 => ComputeType::U8,
        DType::Complex64 => ComputeType::Complex,
    }
}

/// The kernel from a stored input to its computed type; `None` if both are the same.
pub(super) fn load_fn(dtype: DType, simd: Simd) -> Option<BlockFn> {
    match dtype {
        DType::F16 => Some(block_fn::<Convert<u16, f32, FromF16>>(simd)),
        DType::BF16 => Some(block_fn::<Convert<u16, f32, FromBf16>>(simd)),
        _ => None,
    }
}

/// The kernel from the computed type to the stored one; `None` if both are the same.
pub(super) fn store_fn(dtype: DType, simd: Simd) -> Option<BlockFn> {
    match dtype {
        DType::F16 => Some(block_fn::<Convert<f32, u16, ToF16>>(simd)),
        DType::BF16 => Some(block_fn::<Convert<f32, u16, ToBf16>>(simd)),
        _ => None,
    }
}

/// The kernel that rounds f32 to the values of a narrow float; `None` for other dtypes.
pub(super) fn round_fn(dtype: DType, simd: Simd) -> Option<BlockFn> {
    match dtype {
        DType::F16 => Some(block_fn::<Convert<f32, f32, RoundF16>>(simd)),
        DType::BF16 => Some(block_fn::<Convert<f32, f32, RoundBf16>>(simd)),
        _ => None,
    }
}

/// The kernel that casts between kinds; `None` from complex to real, and for a kind to itself.
pub(super) fn cast_fn(from: ComputeType, to: ComputeType, simd: Simd) -> Option<BlockFn> {
    match from {
        ComputeType::F32 => cast_from::<f32>(from, to, simd),
        ComputeType::F64 => cast_from::<f64>(from, to, simd),
        ComputeType::I32 => cast_from::<i32>(from, to, simd),
        ComputeType::U32 => cast_from::<u32>(from, to, simd),
        ComputeType::I8 => cast_from::<i8>(from, to, simd),
        ComputeType::U8 => cast_from::<u8>(from, to, simd),
        ComputeType::Complex => None,
    }
}

/// The kernel that copies elements of `size_bytes`.
pub(super) fn copy_fn(size_bytes: usize, simd: Simd) -> BlockFn {
    match size_bytes {
        1 => block_fn::<Convert<u8, u8, Same>>(simd),
        2 => block_fn::<Convert<u16, u16, Same>>(simd),
        4 => block_fn::<Convert<u32, u32, Same>>(simd),
        _ => block_fn::<Convert<u64, u64, Same>>(simd),
    }
}

/// One f64 as an element of a kind in the first bytes of a word, saturated and rounded as in a
/// cast.
pub(super) fn constant_word(value: f64, kind: ComputeType) -> u64 {
    let mut word = [0; 8];
    match kind {
        ComputeType::F32 | ComputeType::Complex => word[..4].copy_from_slice(&(value as f32).to_ne_bytes()),
        ComputeType::F64 => word = value.to_ne_bytes(),
        ComputeType::I32 => word[..4].copy_from_slice(&(value as i32).to_ne_bytes()),
        ComputeType::U32 => word[..4].copy_from_slice(&(value as u32).to_ne_bytes()),
        ComputeType::I8 => word[..1].copy_from_slice(&(value as i8).to_ne_bytes()),
        ComputeType::U8 => word[..1].copy_from_slice(&(value as u8).to_ne_bytes()),
    }
    u64::from_ne_bytes(word)
}

/// One f32 rounded to the values of a narrow float; returned unchanged for other dtypes.
pub(super) fn round_constant(value: f64, dtype: DType) -> f64 {
    match dtype {
        DType::F16 => f64::from(f16_to_f32(f32_to_f16(value as f32))),
        DType::BF16 => f64::from(bf16_to_f32(f32_to_bf16(value as f32))),
        _ => value,
    }
}

fn cast_from<A: Copy>(from: ComputeType, to: ComputeType, simd: Simd) -> Option<BlockFn>
where
    Cast: Element<A, f32> + Element<A, f64> + Element<A, i32> + Element<A, u32> + Element<A, i8> + Element<A, u8>,
    Cast: Element<A, Complex64>,
{
    if from == to {
        return None;
    }
    Some(match to {
        ComputeType::F32 => block_fn::<Convert<A, f32, Cast>>(simd),
        ComputeType::F64 => block_fn::<Convert<A, f64, Cast>>(simd),
        ComputeType::I32 => block_fn::<Convert<A, i32, Cast>>(simd),
        ComputeType::U32 => block_fn::<Convert<A, u32, Cast>>(simd),
        ComputeType::I8 => block_fn::<Convert<A, i8, Cast>>(simd),
        ComputeType::U8 => block_fn::<Convert<A, u8, Cast>>(simd),
        ComputeType::Complex => block_fn::<Convert<A, Complex64, Cast>>(simd),
    })
}

struct Convert<A, T, F>(PhantomData<(A, T, F)>);

/// A conversion of one element.
pub trait Element<A, T> {
    /// The converted element.
    fn call(value: A) -> T;
}

impl<A: Copy, T, F: Element<A, T>> Kernel for Convert<A, T, F> {
    #[inline(always)]
    unsafe fn run<L: Lanes>(target: *mut u8, a: *const u8, _b: *const u8, _c: *const u8, len: usize) {
        // SAFETY: the caller's contract.
        unsafe { each(target, a, len, |value: A| F::call(value)) }
    }
}

macro_rules! conversions {
    ($($name:ident: $from:ty => $to:ty = $function:expr;)*) => {$(
        struct $name;

        impl Element<$from, $to> for $name {
            #[inline(always)]
            fn call(value: $from) -> $to {
                $function(value)
            }
        }
    )*};
}

conversions! {
    FromF16: u16 => f32 = f16_to_f32;
    FromBf16: u16 => f32 = bf16_to_f32;
    ToF16: f32 => u16 = f32_to_f16;
    ToBf16: f32 => u16 = f32_to_bf16;
    RoundF16: f32 => f32 = |value| f16_to_f32(f32_to_f16(value));
    RoundBf16: f32 => f32 = |value| bf16_to_f32(f32_to_bf16(value));
}

struct Same;

impl<A> Element<A, A> for Same {
    #[inline(always)]
    fn call(value: A) -> A {
        value
    }
}

/// Casts with Rust's `as`, which has the required semantics: it truncates and saturates floats, and
/// wraps integers.
pub struct Cast;

macro_rules! casts {
    ($($from:ident: $($to:ident)*;)*) => {$(
        casts! { @to $from: $($to)* }

        impl Element<$from, Complex64> for Cast {
            #[inline(always)]
            fn call(value: $from) -> Complex64 {
                Complex64::new(value as f32, 0.0)
            }
        }
    )*};
    (@to $from:ident: $($to:ident)*) => {$(
        impl Element<$from, $to> for Cast {
            #[inline(always)]
            fn call(value: $from) -> $to {
                value as $to
            }
        }
    )*};
}

casts! {
    f32: f32 f64;
    f64: f32 f64 i32 u32 i8 u8;
    i32: f32 f64 i32 u32 i8 u8;
    u32: f32 f64 i32 u32 i8 u8;
    i8: f32 f64 i32 u32 i8 u8;
    u8: f32 f64 i32 u32 i8 u8;
}

/// Casts from f32 to integers with the semantics of `as`, in steps that the compiler can vectorise:
/// NaN becomes zero, the number is clamped to the range, and the clamped number is converted
/// without a check.
macro_rules! float_casts {
    ($($to:ident by $through:ident: $least:literal to $most:literal, above $beyond:literal;)*) => {$(
        impl Element<f32, $to> for Cast {
            #[inline(always)]
            fn call(value: f32) -> $to {
                let number = if value.is_nan() { 0.0 } else { value };
                let inside = number.max($least).min($most);
                // SAFETY: the number is finite, and within the range of the type.
                let made = unsafe { inside.to_int_unchecked::<$through>() } as $to;
                if value >= $beyond { $to::MAX } else { made }
            }
        }
    )*};
}

float_casts! {
    i32 by i32: -2_147_483_648.0 to 2_147_483_520.0, above 2_147_483_648.0;
    u32 by u32: 0.0 to 4_294_967_040.0, above 4_294_967_296.0;
    i8 by i32: -128.0 to 127.0, above 127.0;
    u8 by i32: 0.0 to 255.0, above 255.0;
}

/// Exact and without branches: the product with a power of two also scales subnormal numbers.
#[inline(always)]
pub fn f16_to_f32(half: u16) -> f32 {
    let magnitude = u32::from(half & 0x7fff) << 13;
    let finite = f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23);
    let special = f32::from_bits(magnitude | 0x7f80_0000);
    let value = if magnitude >= 0x7c00 << 13 { special } else { finite };
    f32::from_bits(value.to_bits() | u32::from(half & 0x8000) << 16)
}

/// To nearest, ties to even, without branches.
#[inline(always)]
pub fn f32_to_f16(value: f32) -> u16 {
    const INFINITE_FROM: u32 = (127 + 16) << 23;
    const NORMAL_FROM: u32 = (127 - 14) << 23;
    let bits = value.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    // Rounds by adding half an ulp minus one, and one more if the last kept bit is odd; the
    // exponent is rebased.
    let odd = (magnitude >> 13) & 1;
    let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(0xfff + odd) >> 13;
    // Adding 1/2 moves the bits of a subnormal result to the end of the sum; the addition itself
    // rounds.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5_f32.to_bits());
    let special = if magnitude > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
    let finite = if magnitude < NORMAL_FROM { subnormal } else { normal };
    let result = if magnitude >= INFINITE_FROM { special } else { finite };
    (result | (bits >> 16) & 0x8000) as u16
}

#[inline(always)]
fn bf16_to_f32(half: u16) -> f32 {
    f32::from_bits(u32::from(half) << 16)
}

/// To nearest, ties to even.
#[inline(always)]
pub fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    (if value.is_nan() { (bits >> 16) | 0x40 } else { rounded }) as u16
}
