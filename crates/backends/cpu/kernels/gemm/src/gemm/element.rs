//! Element types of operands, sums and results.

use panoply_core::dtype::{Complex64, bf16, f16};

use panoply_core::op::compute::Activation;

use super::activation::{activate_f32, activate_f64};

/// The type in which products are summed.
pub trait Accumulator: bytemuck::Pod + Send + Sync + PartialEq {
    /// The type of `alpha` and `beta`.
    type Scale: Copy + PartialEq + Send + Sync + std::fmt::Debug;
    /// The scale of one, which changes nothing.
    const ONE: Self::Scale;
    /// `self + other`; integers wrap.
    fn plus(self, other: Self) -> Self;
    /// `self + x * y`, rounded once if `FUSED`, which pays off only if the CPU has the instruction.
    fn plus_product<const FUSED: bool>(self, x: Self, y: Self) -> Self;
    /// `self * scale`; integers wrap.
    fn scaled(self, scale: Self::Scale) -> Self;
    /// The activation of `self`. Integers support only [`Activation::Relu`], complex numbers none.
    fn activated(self, activation: Activation) -> Self;
}

/// A matrix element that can be widened to its accumulator.
pub trait Operand: bytemuck::Pod + Send + Sync {
    /// The type of the sums of its products: f32 for f16 and bf16, i32 for i8 and u8.
    type Acc: Accumulator;
    /// The value in the accumulator's type.
    fn widen(self) -> Self::Acc;
}

/// An element of a result: an operand to which an accumulator can be rounded.
pub trait Output: Operand {
    /// The nearest value (ties to even); integers are kept as they are.
    fn narrow(acc: Self::Acc) -> Self;
}

macro_rules! accumulate_float {
    ($float:ty, $activate:ident) => {
        impl Accumulator for $float {
            type Scale = $float;
            const ONE: $float = 1.0;
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn plus_product<const FUSED: bool>(self, x: Self, y: Self) -> Self {
                if FUSED { x.mul_add(y, self) } else { self + x * y }
            }
            #[inline(always)]
            fn scaled(self, scale: $float) -> Self {
                self * scale
            }
            #[inline(always)]
            fn activated(self, activation: Activation) -> Self {
                $activate(self, activation)
            }
        }
    };
}

accumulate_float!(f32, activate_f32);
accumulate_float!(f64, activate_f64);

impl Accumulator for i32 {
    type Scale = i32;
    const ONE: i32 = 1;
    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        self.wrapping_add(other)
    }
    #[inline(always)]
    fn plus_product<const FUSED: bool>(self, x: Self, y: Self) -> Self {
        self.wrapping_add(x.wrapping_mul(y))
    }
    #[inline(always)]
    fn scaled(self, scale: i32) -> Self {
        self.wrapping_mul(scale)
    }
    #[inline(always)]
    fn activated(self, activation: Activation) -> Self {
        if activation == Activation::Relu { self.max(0) } else { self }
    }
}

impl Accumulator for Complex64 {
    type Scale = f32;
    const ONE: f32 = 1.0;
    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        self + other
    }
    #[inline(always)]
    fn plus_product<const FUSED: bool>(self, x: Self, y: Self) -> Self {
        self + x * y
    }
    #[inline(always)]
    fn scaled(self, scale: f32) -> Self {
        self * scale
    }
    #[inline(always)]
    fn activated(self, _activation: Activation) -> Self {
        self
    }
}

macro_rules! operands {
    ($($operand:ty => $acc:ty, $value:ident, $widen:expr;)*) => {$(
        impl Operand for $operand {
            type Acc = $acc;
            #[inline(always)]
            fn widen(self) -> $acc {
                let $value = self;
                $widen
            }
        }
    )*};
}

operands! {
    f32 => f32, value, value;
    f64 => f64, value, value;
    i32 => i32, value, value;
    i8 => i32, value, i32::from(value);
    u8 => i32, value, i32::from(value);
    Complex64 => Complex64, value, value;
    bf16 => f32, value, f32::from_bits(u32::from(value.to_bits()) << 16);
    f16 => f32, value, f16_to_f32(value.to_bits());
}

macro_rules! outputs {
    ($($output:ty => $value:ident, $narrow:expr;)*) => {$(
        impl Output for $output {
            #[inline(always)]
            fn narrow($value: Self::Acc) -> Self {
                $narrow
            }
        }
    )*};
}

outputs! {
    f32 => value, value;
    f64 => value, value;
    i32 => value, value;
    Complex64 => value, value;
    bf16 => value, bf16::from_bits(f32_to_bf16(value));
    f16 => value, f16::from_bits(f32_to_f16(value));
}

/// Widens without branches, so that loops over the function vectorise at every level.
#[inline(always)]
fn f16_to_f32(half: u16) -> f32 {
    let magnitude = u32::from(half & 0x7fff);
    let sign = u32::from(half & 0x8000) << 16;
    // Multiplying by 2^112 moves the exponent's bias from 15 to 127 and makes subnormals exact.
    let scaled = (f32::from_bits(magnitude << 13) * f32::from_bits(0x7780_0000)).to_bits();
    let special = if magnitude >= 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(scaled | special | sign)
}

/// Rounds to nearest, ties to even, without branches.
#[inline(always)]
fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    let nan_or_infinity = if magnitude > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
    // Adding one half lets the adder round a subnormal result at the right bit.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
    let odd = (magnitude >> 13) & 1;
    let normal = magnitude.wrapping_sub(0x3800_0000).wrapping_add(0xfff + odd) >> 13;
    let finite = if magnitude < 0x3880_0000 { subnormal } else { normal };
    let rounded = if magnitude >= 0x4780_0000 { nan_or_infinity } else { finite };
    (rounded | sign) as u16
}

#[inline(always)]
fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    let quiet_nan = (bits >> 16) | 0x40;
    (if value.is_nan() { quiet_nan } else { rounded }) as u16
}
