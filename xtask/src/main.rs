//! The repository's own tooling.
fn main() {}
