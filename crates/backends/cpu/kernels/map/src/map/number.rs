//! The operations on one element, for each type in which values are computed.
//!
//! An operation is a `const` parameter, so that the compiler sees straight-line code and vectorises
//! the loops around it. The semantics are documented in [`panoply_core::expr`]. Codes that
//! [`panoply_core::expr`] rejects for a type (a transcendental function of integers) never occur
//! here; they would return the first operand.

use panoply_core::Complex64;
use panoply_core::expr::{BinaryOp, TernaryOp, UnaryOp};

/// An element type in which values are computed.
pub(super) trait MapNumber: Copy + 'static {
    /// The [`UnaryOp`] with this code.
    fn unary<const OP: u8>(self) -> Self;
    /// The [`BinaryOp`] with this code.
    fn binary<const OP: u8>(self, other: Self) -> Self;
    /// The [`TernaryOp`] with this code.
    fn ternary<const OP: u8>(self, second: Self, third: Self) -> Self;
}

/// Defines the codes of operations as constants, so that they can be patterns.
macro_rules! codes {
    ($($module:ident: $enum:ident { $($code:ident = $op:ident,)* })*) => {$(
        pub(super) mod $module {
            use super::$enum;
            $(pub const $code: u8 = $enum::$op as u8;)*
        }
    )*};
}

codes! {
    unary: UnaryOp {
        NEG = Neg, ABS = Abs, SQRT = Sqrt, RSQRT = Rsqrt, RECIP = Recip, RELU = Relu, FLOOR = Floor, CEIL = Ceil,
        ROUND = Round, SIN = Sin, COS = Cos, NOT = Not,
    }
    binary: BinaryOp {
        ADD = Add, SUB = Sub, MUL = Mul, DIV = Div, REM = Rem, POW = Pow, MIN = Min, MAX = Max, EQ = Eq, NE = Ne,
        LT = Lt, LE = Le, GT = Gt, GE = Ge, AND = And,
    }
    ternary: TernaryOp { SELECT = Select, CLAMP = Clamp, }
}

macro_rules! float_number {
    ($($float:ident)*) => {$(
        impl MapNumber for $float {
            #[inline(always)]
            fn unary<const OP: u8>(self) -> $float {
                match OP {
                    unary::NEG => -self,
                    unary::ABS => self.abs(),
                    unary::SQRT => self.sqrt(),
                    unary::RSQRT => 1.0 / self.sqrt(),
                    unary::RECIP => 1.0 / self,
                    unary::RELU => if self <= 0.0 { 0.0 } else { self },
                    unary::FLOOR => self.floor(),
                    unary::CEIL => self.ceil(),
                    unary::ROUND => self.round_ties_even(),
                    unary::NOT => if self == 0.0 { 1.0 } else { 0.0 },
                    unary::SIN => self.sin(),
                    unary::COS => self.cos(),
                    _ => transcendental::<OP>(f64::from(self)) as $float,
                }
            }

            #[inline(always)]
            fn binary<const OP: u8>(self, other: $float) -> $float {
                match OP {
                    binary::ADD => self + other,
                    binary::SUB => self - other,
                    binary::MUL => self * other,
                    binary::DIV => self / other,
                    binary::REM => self % other,
                    binary::POW => self.powf(other),
                    binary::MIN => if self < other || self.is_nan() { self } else { other },
                    binary::MAX => if self > other || self.is_nan() { self } else { other },
                    _ => if compare::<OP, $float>(self, other, 0.0) { 1.0 } else { 0.0 },
                }
            }

            #[inline(always)]
            fn ternary<const OP: u8>(self, second: $float, third: $float) -> $float {
                match OP {
                    ternary::SELECT => if self != 0.0 { second } else { third },
                    ternary::CLAMP => self.binary::<{ binary::MAX }>(second).binary::<{ binary::MIN }>(third),
                    _ => self * second + third,
                }
            }
        }
    )*};
}

float_number! { f32 f64 }

/// Transcendental functions, for f64 only; f32 has vector code for them.
fn transcendental<const OP: u8>(x: f64) -> f64 {
    UnaryOp::ALL[usize::from(OP)].eval(x)
}

#[inline(always)]
fn compare<const OP: u8, T: PartialOrd>(a: T, b: T, zero: T) -> bool {
    match OP {
        binary::EQ => a == b,
        binary::NE => a != b,
        binary::LT => a < b,
        binary::LE => a <= b,
        binary::GT => a > b,
        binary::GE => a >= b,
        binary::AND => (a != zero) & (b != zero),
        _ => (a != zero) | (b != zero),
    }
}

macro_rules! integer_number {
    ($($integer:ident, $absolute:expr, $power:expr;)*) => {$(
        impl MapNumber for $integer {
            #[inline(always)]
            fn unary<const OP: u8>(self) -> $integer {
                match OP {
                    unary::NEG => self.wrapping_neg(),
                    unary::ABS => $absolute(self),
                    unary::RELU => self.max(0),
                    unary::NOT => $integer::from(self == 0),
                    _ => self,
                }
            }

            #[inline(always)]
            fn binary<const OP: u8>(self, other: $integer) -> $integer {
                match OP {
                    binary::ADD => self.wrapping_add(other),
                    binary::SUB => self.wrapping_sub(other),
                    binary::MUL => self.wrapping_mul(other),
                    binary::DIV => if other == 0 { 0 } else { self.wrapping_div(other) },
                    binary::REM => if other == 0 { 0 } else { self.wrapping_rem(other) },
                    binary::POW => $power(self, other),
                    binary::MIN => self.min(other),
                    binary::MAX => self.max(other),
                    _ => $integer::from(compare::<OP, $integer>(self, other, 0)),
                }
            }

            #[inline(always)]
            fn ternary<const OP: u8>(self, second: $integer, third: $integer) -> $integer {
                match OP {
                    ternary::SELECT => if self != 0 { second } else { third },
                    ternary::CLAMP => self.max(second).min(third),
                    _ => self.wrapping_mul(second).wrapping_add(third),
                }
            }
        }
    )*};
}

/// Integer powers: they wrap, and a negative exponent gives the truncated quotient.
macro_rules! signed_power {
    ($integer:ident) => {
        |base: $integer, exponent: $integer| match (u32::try_from(exponent), base) {
            (Ok(exponent), _) => base.wrapping_pow(exponent),
            (Err(_), 1) => 1,
            (Err(_), -1) => {
                if exponent % 2 == 0 {
                    1
                } else {
                    -1
                }
            }
            (Err(_), _) => 0,
        }
    };
}

integer_number! {
    i32, i32::wrapping_abs, signed_power!(i32);
    i8, i8::wrapping_abs, signed_power!(i8);
    u32, std::convert::identity, u32::wrapping_pow;
    u8, std::convert::identity, |base: u8, exponent: u8| base.wrapping_pow(u32::from(exponent));
}

impl MapNumber for Complex64 {
    #[inline(always)]
    fn unary<const OP: u8>(self) -> Complex64 {
        match OP {
            unary::NEG => Complex64::new(-self.re, -self.im),
            unary::RECIP => Complex64::new(1.0, 0.0).binary::<{ binary::DIV }>(self),
            _ => self,
        }
    }

    #[inline(always)]
    fn binary<const OP: u8>(self, other: Complex64) -> Complex64 {
        let (a, b) = (self, other);
        match OP {
            binary::ADD => Complex64::new(a.re + b.re, a.im + b.im),
            binary::SUB => Complex64::new(a.re - b.re, a.im - b.im),
            binary::MUL => Complex64::new(a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re),
            binary::DIV => {
                let norm = b.re * b.re + b.im * b.im;
                Complex64::new((a.re * b.re + a.im * b.im) / norm, (a.im * b.re - a.re * b.im) / norm)
            }
            _ => a,
        }
    }

    #[inline(always)]
    fn ternary<const OP: u8>(self, second: Complex64, third: Complex64) -> Complex64 {
        self.binary::<{ binary::MUL }>(second).binary::<{ binary::ADD }>(third)
    }
}
