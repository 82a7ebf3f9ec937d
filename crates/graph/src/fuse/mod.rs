//! Fusing: each pass makes fewer steps of more, and leaves the list in an order in which it can run.

pub mod attention;
mod changes;
pub mod copies;
pub mod elementwise;
pub mod epilogue;
pub mod heads;
pub mod images;
pub mod products;
pub mod rows;
pub mod sums;
pub mod tails;
