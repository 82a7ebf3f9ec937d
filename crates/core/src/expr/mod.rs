//! The fused elementwise expression behind `Map`.
//!
//! An [`Expr`] is built with ordinary operators and becomes a [`Program`]: a flat list of [`Node`]s
//! in which every node names earlier nodes by number. No part of it is recursive, so an expression
//! of any depth is built, cloned, dropped, checked, printed and evaluated on a small stack. Equal
//! subexpressions are stored once. The same program is one pass of SIMD on the CPU and one
//! generated kernel elsewhere, so the meaning of every node is fixed here:
//!
//! 1. **Types.** All operands of a node have one dtype, which is also the dtype of its result. Only
//!    `cast` changes the dtype. There is no implicit promotion. A constant takes the dtype of the
//!    other operands of its node. Beside integer operands it must be a value of their dtype.
//!    Subexpressions of constants only are computed in f64 and rounded where they are used. A
//!    program of constants only is an f32. See [`Program::types`].
//! 2. **f16 and bf16** are computed in f32. They are rounded (to nearest, ties to even) when they
//!    are stored, and when a `cast` from another dtype makes them. Casts to them go through f32.
//!    Constants beside them are f32.
//! 3. **Integers** are computed in their own width and wrap. Division truncates. Division and
//!    remainder by zero give 0. `MIN / -1` wraps to `MIN`. `abs(MIN)` is `MIN`. `pow` with a
//!    negative exponent gives the truncated quotient (`1` for base 1, ±1 for base -1, else 0).
//!    `floor`, `ceil` and `round` are the identity. Functions whose values are not integers (`exp`,
//!    `sqrt`, `recip`, …) are a typed error.
//! 4. **Floats** follow IEEE 754: division by zero gives an infinity or NaN. `rem` has the sign of
//!    the dividend (C's `fmod`). `round` takes ties to even. Comparisons with NaN are false, except
//!    `ne`, which is true.
//! 5. **NaN** propagates through every arithmetic function except `pow`, which follows IEEE 754:
//!    `pow(1, x)` and `pow(x, 0)` are 1 for every `x`, including NaN; any other `pow` with a NaN
//!    operand is NaN. `min`, `max`, `clamp` and `relu` propagate NaN from any operand. Which of two
//!    zeros `min` and `max` return is unspecified. The sign and payload of a NaN are unspecified.
//! 6. **Truth** is any value other than zero (NaN is true). Comparisons, `and`, `or` and `not` give
//!    1 or 0 in the dtype of their operands. `select(c, a, b)` evaluates both branches.
//! 7. **Casts.** Float to integer truncates toward zero, saturates, and converts NaN to 0. Integer
//!    to integer wraps. Real to complex has imaginary part 0. Complex to real is a typed error. A
//!    cast to the same dtype is the identity.
//! 8. **Limits.** `gelu`, `gelu_tanh` and `silu` are 0 at -∞ (their limit) and +∞ at +∞.
//! 9. `mul_add` may round once or twice. No other pair of nodes is contracted.
//! 10. **Complex** numbers have `neg`, `recip`, `add`, `sub`, `mul`, `div`, `mul_add` in the
//!     textbook form.
//! 11. **Subnormal numbers** are kept exactly on every device by functions that only compare or
//!     move bits: `neg`, `abs`, `relu`, `min`, `max`, `clamp`, comparisons, `and`, `or`, `not`,
//!     `select`, `sort` and copies. Arithmetic keeps them on every device without the feature
//!     [`FLUSHES_SUBNORMALS`](crate::Capabilities::FLUSHES_SUBNORMALS). On devices with that
//!     feature, a subnormal f32 or bf16 operand or result may become zero of the same sign. `log`,
//!     `sqrt` and `rsqrt` of a subnormal number are correct on those devices as well. Numbers of
//!     f16 are computed in f32, where all of them are normal, and f64 is never flushed.

mod arena;
mod build;
mod compose;
mod eval;
mod node;
mod program;
mod special;
mod types;

pub use build::Expr;
pub use compose::Operand;
pub use node::{BinaryOp, Constant, Node, NodeId, TernaryOp, UnaryOp};
pub use program::Program;
pub use special::{erf, erfc};
pub use types::{Types, Value};

use crate::dtype::DType;

/// The most nodes that one expression may have.
pub const NODES_MAX: usize = 65_536;

/// The most inputs that one expression may read. Indices are below this number.
pub const INPUTS_MAX: u32 = 64;

/// Why an expression is rejected. Every variant is a caller's error.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ExprError {
    /// The expression has more distinct nodes than [`NODES_MAX`].
    #[error("the expression has more than {nodes_max} nodes")]
    TooManyNodes {
        /// The limit.
        nodes_max: usize,
    },
    /// An input's index is not below [`INPUTS_MAX`].
    #[error("input {index} is beyond the last one allowed ({inputs_max} inputs)")]
    InputIndex {
        /// The index that was requested.
        index: u32,
        /// The limit.
        inputs_max: u32,
    },
    /// The expression reads an input that is missing.
    #[error("the expression reads {expected} inputs, {got} were given")]
    MissingInput {
        /// Number of inputs that the expression reads.
        expected: u32,
        /// Number of inputs that were given.
        got: u32,
    },
    /// The operands of one node differ in dtype.
    #[error("{op} needs operands of one dtype: expected {expected}, got {got}")]
    DTypeMismatch {
        /// The node's operation.
        op: &'static str,
        /// The dtype of the first typed operand.
        expected: DType,
        /// The dtype that differs from it.
        got: DType,
    },
    /// The operation does not exist for this dtype.
    #[error("{op} is not defined for {dtype}")]
    Unsupported {
        /// The node's operation.
        op: &'static str,
        /// The dtype of its operands.
        dtype: DType,
    },
    /// A constant is not a value of the dtype of the other, integer operands.
    #[error("the constant {value} is not a value of {dtype}")]
    ConstantNotRepresentable {
        /// The constant.
        value: f64,
        /// The dtype of the other operands.
        dtype: DType,
    },
    /// A cast that has no meaning: complex to real.
    #[error("{from} cannot be cast to {to}")]
    Cast {
        /// The dtype of the operand.
        from: DType,
        /// The requested dtype.
        to: DType,
    },
}

#[cfg(test)]
mod tests;
