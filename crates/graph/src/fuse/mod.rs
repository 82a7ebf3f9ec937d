//! Fusion: each pass replaces several steps by fewer, larger ones, and leaves the list in an
//! executable order.

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
