//! The fused elementwise expression behind `Map`.
//!
//! An [`Expr`] is built with ordinary operators and becomes a [`Program`]: a flat list of [`Node`]s in which every node
//! names earlier ones by number. Nothing in it is recursive, so an expression of any depth is built, cloned, dropped,
//! checked, printed and evaluated on a small stack. Equal subexpressions are stored once. The same program is one pass
//! of SIMD on the CPU and one generated kernel elsewhere, so the meaning of every node is fixed here:
//!
//! 1. **Types.** All operands of a node have one dtype, which is also the dtype of its result; only `cast` changes it.
//!    There is no implicit promotion. A constant takes the dtype of the operands beside it; beside integers it must be
//!    one of their values. Subexpressions of constants alone are computed in f64 and rounded where they are used; a
//!    program of constants alone is an f32. See [`Program::types`].
//! 2. **f16 and bf16** are carried in f32 and rounded (to nearest, ties to even) when they are stored and where a
//!    `cast` from another dtype makes them. Casts to them go through f32. Constants beside them are f32.
//! 3. **Integers** are computed in their own width and wrap. Division truncates; division and remainder by zero give 0;
//!    `MIN / -1` wraps to `MIN`. `abs(MIN)` is `MIN`. `pow` with a negative exponent gives the quotient truncated
//!    (`1` for base 1, ±1 for base -1, else 0). `floor`, `ceil` and `round` are the identity. Functions that are
//!    not integer-valued (`exp`, `sqrt`, `recip`, …) are a typed error.
//! 4. **Floats** follow IEEE 754: dividing by zero gives an infinity or NaN. `rem` has the sign of the dividend (C's
//!    `fmod`). `round` takes ties to even. Comparisons with NaN are false, except `ne`, which is true.
//! 5. **NaN** goes through every function. `min`, `max`, `clamp` and `relu` propagate it from any operand. Which of two
//!    zeros `min` and `max` give is not specified. NaN's sign and payload are not specified.
//! 6. **Truth** is any value other than zero (NaN is true). Comparisons, `and`, `or` and `not` give 1 or 0 in the dtype
//!    of their operands. `select(c, a, b)` evaluates both branches.
//! 7. **Casts.** Float to integer truncates toward zero, saturates, and takes NaN to 0. Integer to integer wraps. Real to
//!    complex has imaginary part 0; complex to real is a typed error. A cast to the same dtype is the identity.
//! 8. **Limits.** `gelu`, `gelu_tanh` and `silu` are 0 at -∞ (their limit) and +∞ at +∞.
//! 9. `mul_add` may round once or twice. No other pair of nodes is contracted.
//! 10. **Complex** numbers have `neg`, `recip`, `add`, `sub`, `mul`, `div`, `mul_add` in the textbook form.

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

/// The most inputs that one expression may read: indices are below this.
pub const INPUTS_MAX: u32 = 64;

/// Why an expression is not accepted. Every variant is the caller's fault.
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
        /// The index asked for.
        index: u32,
        /// The limit.
        inputs_max: u32,
    },
    /// The expression reads an input that was not given.
    #[error("the expression reads {expected} inputs, {got} were given")]
    MissingInput {
        /// Inputs that the expression reads.
        expected: u32,
        /// Inputs that were given.
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
    /// A constant beside integers is not one of their values.
    #[error("the constant {value} is not a value of {dtype}")]
    ConstantNotRepresentable {
        /// The constant.
        value: f64,
        /// The dtype of the operands beside it.
        dtype: DType,
    },
    /// A cast that has no meaning: complex to real.
    #[error("{from} cannot be cast to {to}")]
    Cast {
        /// The dtype of the operand.
        from: DType,
        /// The dtype asked for.
        to: DType,
    },
}

#[cfg(test)]
mod tests;
