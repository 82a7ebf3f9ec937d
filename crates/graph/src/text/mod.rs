//! Graphs as text: one statement a line, `#` begins a comment.
//!
//! ```text
//! graph mlp
//! symbol batch
//! input x f32 [batch, 784]
//! const w1 f32 [784, 512] = random(1)
//! const b1 f32 [512] = fill(0.5)
//! h = matmul(x, w1)
//! h1 = add(h, b1)
//! a = relu(h1)
//! output y = a
//! ```
//!
//! `docs/graph-text.md` has every op with its arguments.
//!
//! A node can only refer to earlier ones, so a file cannot have a cycle: a name that is defined
//! later is refused with both lines. The values of a constant are a list (`[1, 2.5]`),
//! `fill(number)`, `random(seed)` (between -1 and 1), or `hex(bytes)`, which preserves every bit.
//! [`write`] writes the format that [`parse`] reads. Files may come from untrusted sources, so
//! every fault is a [`TextError`] with its line, and sizes are bounded.

mod expression;
mod fields;
mod lexer;
mod ops;
mod parse;
mod signal_fields;
mod table;
mod values;
mod write;

pub use parse::parse;
pub use write::write;

/// Maximal length of a text.
pub const TEXT_BYTES_MAX: usize = 256 << 20;
/// Maximal number of bytes of all constants of a text.
pub const CONSTANT_BYTES_MAX: usize = 1 << 30;
/// Maximal number of values of one argument: the maximum of an interleaver's order.
pub const LIST_NUMBERS_MAX: usize = 1 << 24;
/// Maximal number of nodes of one expression.
pub const EXPRESSION_NODES_MAX: usize = panoply_core::expr::NODES_MAX;

/// An error in a text, with its line.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct TextError {
    /// The line, counted from one.
    pub line: usize,
    /// The fault, and the expected text.
    pub reason: String,
}

#[cfg(test)]
mod tests;
