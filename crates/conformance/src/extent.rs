//! How much of a long test runs.
//!
//! `cargo xtask test` runs a part of each long test, and `cargo xtask test --all`, which sets
//! `PANOPLY_TESTS=all`, runs all of it. The part must still fail if what the test is about breaks.

/// Returns `all` if `PANOPLY_TESTS=all` is set, and `few` otherwise.
pub fn few_or_all<T>(few: T, all: T) -> T {
    if std::env::var_os("PANOPLY_TESTS").is_some_and(|asked| asked == "all") { all } else { few }
}
