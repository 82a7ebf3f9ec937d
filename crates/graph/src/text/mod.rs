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
//! A node names those before it, so a file cannot have a cycle: a name that comes later is refused with both lines. The values of
//! a constant are a list (`[1, 2.5]`), `fill(number)`, `random(seed)` (between -1 and 1), or `hex(bytes)`, which keeps every
//! bit. [`write`] writes what [`parse`] reads; files may be anyone's, so every fault is a [`TextError`] with its line, and
//! sizes are bounded.

mod lexer;
mod ops;
mod parse;
mod values;
mod write;

pub use parse::parse;
pub use write::write;

/// The longest text that is read.
pub const TEXT_BYTES_MAX: usize = 256 << 20;
/// The most bytes of all constants that a text may ask for.
pub const CONSTANT_BYTES_MAX: usize = 1 << 30;
/// The most nodes of one expression.
pub const EXPRESSION_NODES_MAX: usize = 1024;

/// What is wrong with a text, and where.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct TextError {
    /// The line, counted from one.
    pub line: usize,
    /// What is wrong, what was expected.
    pub reason: String,
}

#[cfg(test)]
mod tests;
