//! The vocabulary of Panoply.
pub mod dtype;
