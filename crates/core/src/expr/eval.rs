//! The meaning of every operation on real numbers, in f64.

use super::node::{BinaryOp, TernaryOp, UnaryOp};
use super::special::{erf, erfc};

impl UnaryOp {
    /// The function's value for an f64.
    #[inline(always)]
    pub fn eval(self, x: f64) -> f64 {
        match self {
            UnaryOp::Neg => -x,
            UnaryOp::Abs => x.abs(),
            UnaryOp::Exp => x.exp(),
            UnaryOp::Log => x.ln(),
            UnaryOp::Sqrt => x.sqrt(),
            UnaryOp::Rsqrt => 1.0 / x.sqrt(),
            UnaryOp::Recip => 1.0 / x,
            UnaryOp::Tanh => x.tanh(),
            UnaryOp::Sigmoid => sigmoid(x),
            UnaryOp::Erf => erf(x),
            UnaryOp::Relu => {
                if x <= 0.0 {
                    0.0
                } else {
                    x
                }
            }
            UnaryOp::Gelu => times_or_zero(x, erfc(-x * std::f64::consts::FRAC_1_SQRT_2) * 0.5),
            UnaryOp::GeluTanh => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
                times_or_zero(x, sigmoid(2.0 * inner))
            }
            UnaryOp::Silu => times_or_zero(x, sigmoid(x)),
            UnaryOp::Floor => x.floor(),
            UnaryOp::Ceil => x.ceil(),
            UnaryOp::Round => x.round_ties_even(),
            UnaryOp::Sin => x.sin(),
            UnaryOp::Cos => x.cos(),
            UnaryOp::Not => truth(x == 0.0),
        }
    }
}

impl BinaryOp {
    /// The function's value for two f64.
    #[inline(always)]
    pub fn eval(self, a: f64, b: f64) -> f64 {
        match self {
            BinaryOp::Add => a + b,
            BinaryOp::Sub => a - b,
            BinaryOp::Mul => a * b,
            BinaryOp::Div => a / b,
            BinaryOp::Rem => a % b,
            BinaryOp::Pow => a.powf(b),
            BinaryOp::Min => min(a, b),
            BinaryOp::Max => max(a, b),
            BinaryOp::Eq => truth(a == b),
            BinaryOp::Ne => truth(a != b),
            BinaryOp::Lt => truth(a < b),
            BinaryOp::Le => truth(a <= b),
            BinaryOp::Gt => truth(a > b),
            BinaryOp::Ge => truth(a >= b),
            BinaryOp::And => truth(a != 0.0 && b != 0.0),
            BinaryOp::Or => truth(a != 0.0 || b != 0.0),
        }
    }
}

impl TernaryOp {
    /// The function's value for three f64.
    #[inline(always)]
    pub fn eval(self, a: f64, b: f64, c: f64) -> f64 {
        match self {
            TernaryOp::Select => {
                if a != 0.0 {
                    b
                } else {
                    c
                }
            }
            TernaryOp::Clamp => min(max(a, b), c),
            TernaryOp::MulAdd => a * b + c,
        }
    }
}

fn truth(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}

fn min(a: f64, b: f64) -> f64 {
    if a < b || a.is_nan() { a } else { b }
}

fn max(a: f64, b: f64) -> f64 {
    if a > b || a.is_nan() { a } else { b }
}

/// `1 / (1 + exp(-x))` without overflow and with full precision in both tails.
fn sigmoid(x: f64) -> f64 {
    let decay = (-x.abs()).exp();
    if x < 0.0 { decay / (1.0 + decay) } else { 1.0 / (1.0 + decay) }
}

/// `x · weight`, but zero for a zero weight, even if `x` is infinite.
fn times_or_zero(x: f64, weight: f64) -> f64 {
    if weight == 0.0 { 0.0 } else { x * weight }
}
