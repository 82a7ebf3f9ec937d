//! The vocabulary of Panoply.
pub mod cpu_set;
pub mod dtype;
