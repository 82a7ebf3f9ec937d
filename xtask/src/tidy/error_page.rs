//! Checks that `docs/errors.md` says what to do about every error of ops, tensors and devices.

use super::report::Report;

/// The file of the enum.
pub const ERRORS: &str = "crates/core/src/error.rs";
/// The page.
pub const PAGE: &str = "docs/errors.md";

/// Compares the variants of the enum with the first cells of the page's tables.
pub fn check(page: &str, code: &str, report: &mut Report) {
    let body = code.split_once("pub enum Error {").map_or("", |(_, rest)| rest);
    let body = body.split_once("\n}").map_or(body, |(inside, _)| inside);
    let variants = body.lines().filter_map(|line| line.strip_prefix("    "));
    let variants = variants.filter(|line| line.starts_with(|c: char| c.is_ascii_uppercase()));
    let names = variants.map(|line| line.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default());
    let cells: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("| ")?.split('|').next()).collect();
    for name in names {
        if !cells.iter().any(|cell| cell.contains(&format!("`{name}`"))) {
            report.fail("error-page", PAGE, 0, format!("Error::{name} has no line"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variant_needs_a_line() {
        let code = "pub enum Kind {\n    Other,\n}\npub enum Error {\n    /// Doc.\n    Busy {\n        /// Doc.\n        A: u8,\n    },\n    Lost(u8),\n    Gone,\n}\n";
        let mut report = Report::default();
        check("| `Busy`, `Gone` | wait for `Lost` |\n", code, &mut report);
        let texts: Vec<&str> = report.findings.iter().map(|finding| finding.text.as_str()).collect();
        assert_eq!(texts, ["Error::Lost has no line"]);
    }
}
