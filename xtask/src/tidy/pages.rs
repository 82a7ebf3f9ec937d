//! Checks the documents as a book: pages, links, widths and lengths.
//!
//! * Every page of `docs/` stands once in `docs/SUMMARY.md`.
//! * Relative links and their anchors exist. A page of the book links to pages of the book alone,
//!   because other files have no place in the built book.
//! * Text has plain words, as comments do, and lines of at most 100 characters. Tables, code and
//!   addresses are exempt.
//! * Cells of the tables that people compare have at most 200 characters, and the documents that
//!   people read first have a limited length.
//! * Rust examples of a page are doctests of the façade.

use anyhow::Result;

use super::documents::is_document;
use super::report::Report;
use super::words;

const SUMMARY: &str = "docs/SUMMARY.md";
const FOLDER: &str = "docs/";
/// The file that includes the pages whose examples are doctests.
const FACADE: &str = "crates/panoply/src/lib.rs";
const WIDTH_MAX: usize = 100;
const CELL_MAX: usize = 200;
/// Documents whose cells are limited.
const NARROW_TABLES: [&str; 2] = ["README.md", "docs/support.md"];
/// The most lines of a document.
const LINES_MAX: [(&str, usize); 2] = [("README.md", 180), ("CHANGELOG.md", 60)];

/// Checks all documents. `names` are all files from the root, and `read` returns a file's text.
pub fn check(names: &[String], read: impl Fn(&str) -> Result<String>, report: &mut Report) -> Result<()> {
    let mut pages = Vec::new();
    for name in names.iter().filter(|name| is_document(name)) {
        pages.push((name.as_str(), read(name)?));
    }
    let facade = read(FACADE)?;
    for (name, text) in &pages {
        links(name, text, names, &pages, report);
        widths(name, text, report);
        words::check_document(name, text, report);
        lengths(name, text, report);
        doctests(name, text, &facade, report);
    }
    summary(&pages, report);
    Ok(())
}

fn summary(pages: &[(&str, String)], report: &mut Report) {
    let Some((_, summary)) = pages.iter().find(|(name, _)| *name == SUMMARY) else { return };
    let listed = targets(summary);
    let is_page = |name: &&&str| name.starts_with(FOLDER) && **name != SUMMARY;
    for page in pages.iter().map(|(name, _)| name).filter(is_page) {
        let times = listed.iter().filter(|(_, target)| page.strip_prefix(FOLDER) == Some(target)).count();
        if times != 1 {
            report.fail("book-page", SUMMARY, 0, format!("expected one line for {page}, got {times}"));
        }
    }
}

fn links(name: &str, text: &str, names: &[String], pages: &[(&str, String)], report: &mut Report) {
    for (line, target) in targets(text) {
        if target.contains("://") || target.starts_with("mailto:") {
            continue;
        }
        let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
        let file = if path.is_empty() { name.to_string() } else { resolved(name, path) };
        let is_folder = || names.iter().any(|other| other.starts_with(&format!("{}/", file.trim_end_matches('/'))));
        if !names.contains(&file) && !is_folder() {
            report.fail("document-link", name, line, format!("{target}: {file} does not exist"));
        } else if name.starts_with(FOLDER) && !file.starts_with(FOLDER) {
            let text = format!("{target} is not in the book; name the file in backticks instead of a link");
            report.fail("document-link", name, line, text);
        } else if !anchor.is_empty() && !pages.iter().any(|(page, text)| *page == file && has_anchor(text, anchor)) {
            report.fail("document-link", name, line, format!("{target}: {file} has no such heading"));
        }
    }
}

/// Returns the target of each link with its line number. Code has no links.
fn targets(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        let mut rest = line;
        while let Some((before, after)) = rest.split_once("](") {
            let in_code = line[..line.len() - rest.len() + before.len()].matches('`').count() % 2 == 1;
            let (target, behind) = after.split_once(')').unwrap_or((after, ""));
            if !in_code {
                found.push((number, target.split_whitespace().next().unwrap_or_default()));
            }
            rest = behind;
        }
    }
    found
}

/// Returns the lines outside of code blocks with their numbers.
pub fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        fenced ^= is_fence;
        !fenced && !is_fence
    })
}

/// Resolves a path relative to the folder of a document.
fn resolved(name: &str, path: &str) -> String {
    let mut parts: Vec<&str> = name.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Whether a document has a heading with this anchor, as mdBook and forges name anchors.
fn has_anchor(text: &str, anchor: &str) -> bool {
    let mut seen: Vec<String> = Vec::new();
    for (_, line) in prose(text).filter(|(_, line)| line.starts_with('#')) {
        let slug = slug(line.trim_start_matches('#').trim());
        let before = seen.iter().filter(|other| **other == slug).count();
        let unique = if before == 0 { slug.clone() } else { format!("{slug}-{before}") };
        if unique == anchor {
            return true;
        }
        seen.push(slug);
    }
    false
}

fn slug(heading: &str) -> String {
    let keep = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    heading.chars().filter(keep).map(|c| if c == ' ' { '-' } else { c }).collect::<String>().to_lowercase()
}

fn widths(name: &str, text: &str, report: &mut Report) {
    for (number, line) in prose(text) {
        let width = line.chars().count();
        let is_row = line.trim_start().starts_with('|');
        if width > WIDTH_MAX && !is_row && !line.contains("://") {
            report.fail("document-width", name, number, format!("{width} characters, at most {WIDTH_MAX}"));
        }
        let cells = line.trim().split('|').map(|cell| cell.trim().chars().count());
        let widest = cells.max().filter(|_| is_row && NARROW_TABLES.contains(&name)).unwrap_or_default();
        if widest > CELL_MAX {
            let text = format!("a cell of {widest} characters, at most {CELL_MAX}; put the rest into a note below");
            report.fail("document-cell", name, number, text);
        }
    }
}

fn lengths(name: &str, text: &str, report: &mut Report) {
    let lines = text.lines().count();
    if let Some((_, most)) = LINES_MAX.iter().find(|(limited, most)| *limited == name && lines > *most) {
        report.fail("document-length", name, 0, format!("{lines} lines, at most {most}"));
    }
}

fn doctests(name: &str, text: &str, facade: &str, report: &mut Report) {
    let language = |line: &str| line.strip_prefix("```").map(str::trim).map(str::to_string);
    let has_rust = text.lines().filter_map(language).any(|language| language.split(',').next() == Some("rust"));
    if has_rust && !facade.contains(&format!("/{name}\")]")) {
        report.fail("document-doctest", name, 0, format!("has Rust examples, and {FACADE} does not include it"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the rules that the pages break, with the lines, where `docs/a.md` has this text.
    fn broken(text: &str) -> Vec<(&'static str, usize)> {
        let names = ["README.md", "docs/SUMMARY.md", "docs/a.md", "docs/b.md", "crates/x.rs"].map(str::to_string);
        let read = |name: &str| {
            Ok(match name {
                "docs/SUMMARY.md" => "- [A](a.md)\n- [B](b.md)\n".to_string(),
                "docs/a.md" => text.to_string(),
                "docs/b.md" => "# B\n\n## Two words, `code`!\n\n## Same\n\n## Same\n".to_string(),
                FACADE => "#[doc = include_str!(\"../../../docs/b.md\")]\n".to_string(),
                _ => String::new(),
            })
        };
        let mut report = Report::default();
        check(&names, read, &mut report).expect("readable");
        report.findings.iter().map(|finding| (finding.rule, finding.line)).collect()
    }

    #[test]
    fn links_and_anchors_must_exist() {
        assert_eq!(broken("[b](b.md) [c](b.md#two-words-code), [d](b.md#same-1), [e](https://a/b.md)\n"), []);
        assert_eq!(broken("# Here\n\n[it](#here) `[code](none.md)`\n```text\n[a](none.md)\n```\n"), []);
        assert_eq!(broken("[b](none.md)\n"), [("document-link", 1)]);
        assert_eq!(broken("\n[b](b.md#three-words)\n"), [("document-link", 2)]);
        assert_eq!(broken("[b](b.md#same-2)\n"), [("document-link", 1)]);
        assert_eq!(broken("[it](#there)\n"), [("document-link", 1)]);
        assert_eq!(broken("[code](../crates/x.rs)\n"), [("document-link", 1)]);
    }

    #[test]
    fn every_page_is_listed_once() {
        let names = ["docs/SUMMARY.md", "docs/a.md", "docs/b.md"].map(str::to_string);
        let mut report = Report::default();
        let read = |name: &str| Ok(if name == SUMMARY { "[A](a.md) [A](a.md)".to_string() } else { String::new() });
        check(&names, read, &mut report).expect("readable");
        let texts: Vec<&str> = report.findings.iter().map(|finding| finding.text.as_str()).collect();
        assert_eq!(texts, ["expected one line for docs/a.md, got 2", "expected one line for docs/b.md, got 0"]);
    }

    #[test]
    fn widths_and_lengths_are_limited() {
        let long = "x ".repeat(60);
        assert_eq!(broken(&format!("{long}\n")), [("document-width", 1)]);
        assert_eq!(broken(&format!("| {long} |\n```text\n{long}\n```\n{long} https://a\n")), []);
        let mut report = Report::default();
        let row = format!("| a | {} |\n", "b".repeat(CELL_MAX + 1));
        widths("docs/support.md", &row, &mut report);
        widths("docs/other.md", &row, &mut report);
        lengths("README.md", &"\n".repeat(180), &mut report);
        lengths("README.md", &"\n".repeat(181), &mut report);
        let rules: Vec<&str> = report.findings.iter().map(|finding| finding.rule).collect();
        assert_eq!(rules, ["document-cell", "document-length"]);
    }

    #[test]
    fn rust_examples_are_doctests() {
        assert_eq!(broken("```rust\nlet a = 1;\n```\n"), [("document-doctest", 0)]);
        assert_eq!(broken("```rust,no_run\nlet a = 1;\n```\n"), [("document-doctest", 0)]);
        assert_eq!(broken("```sh\nls\n```\n"), []);
    }
}
