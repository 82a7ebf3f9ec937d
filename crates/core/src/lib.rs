//! The vocabulary of Panoply.
pub mod dtype;
pub mod expr;
