//! What a program holds.

/// A collection of vectors.
pub struct Collection {}
