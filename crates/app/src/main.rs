//! The `panoply` command.
fn main() {}
